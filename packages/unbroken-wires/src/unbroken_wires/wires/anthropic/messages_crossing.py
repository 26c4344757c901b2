"""anthropic-messages: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.server_tools import CodeExecution, WebFetch, WebSearch
from unbroken_wires.wires.anthropic.messages_content import THINKING
from unbroken_wires.wires.anthropic.messages_requests import NAME_RULE
from unbroken_wires.wires.anthropic.messages_server_tools import CODE_EXECUTION, SERVER_TOOLS, WEB_FETCH, WEB_SEARCH
from unbroken_wires.wires.crossing import (
    Crossing,
    Name,
    Setting,
    Settings,
    Target,
    place_of,
    put,
    rest_of,
    simple,
    texts,
    write_tool,
)
from unbroken_wires.wires.history_losses import Citation, HistoryCrossing, unknown_fields
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts, fit_name
from unbroken_wires.wires.schemas import claude_form

_FIELDS: Mapping[str, Name] = {"top_k": "top_k"}
_HANDLED = frozenset(
    ("top_k", "metadata", "service_tier", "output_config", "output_format", "tools", "thinking", "tool_choice")
)
_TIERS = {"auto": "auto", "standard_only": "default"}


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    settings: Settings = dict(simple(extra, _FIELDS))
    lost = rest_of(extra, _HANDLED)
    metadata = as_dict(extra.get("metadata"))
    if metadata.get("user_id") is not None:
        settings["user"] = Setting("metadata.user_id", metadata["user_id"])
    lost += rest_of(metadata, ("user_id",), "metadata.")
    if extra.get("service_tier") is not None:
        tier = _TIERS.get(as_text(extra["service_tier"]), extra["service_tier"])
        settings["service_tier"] = Setting("service_tier", tier)
    config = as_dict(extra.get("output_config"))
    for field, format in (
        ("output_config.format", config.get("format")),
        ("output_format", extra.get("output_format")),
    ):
        if as_dict(format).get("type") == "json_schema":
            settings["output"] = Setting(field, OutputSchema(as_dict(as_dict(format).get("schema"))))
        elif format is not None:
            lost.append(field)
    # The effort is part of `Request.reasoning`, if the client turned thinking on.
    lost += rest_of(config, ("format", "effort") if extra.get("thinking") else ("format",), "output_config.")
    for tool in dicts(extra.get("tools")):
        lost += _read_tool(tool, settings)
    return settings, lost


def _read_tool(tool: Object, settings: Settings) -> list[str]:
    """A tool that the provider runs. What is not understood of it is returned."""
    type = as_text(tool.get("type"))
    field = f"tools.{type}"
    if type.startswith("web_search_"):
        search = WebSearch(
            allowed_domains=texts(tool.get("allowed_domains")),
            blocked_domains=texts(tool.get("blocked_domains")),
            user_location=place_of(as_dict(tool.get("user_location"))),
            max_uses=max(as_int(tool.get("max_uses")), 0) or None,
        )
        settings["web_search"] = Setting(field, search)
        known = ("type", "name", "allowed_domains", "blocked_domains", "user_location", "max_uses", "cache_control")
        return rest_of(tool, known, f"{field}.")
    if type.startswith(("code_execution_", "web_fetch_")):
        code = type.startswith("code")
        settings["code_execution" if code else "web_fetch"] = Setting(field, CodeExecution() if code else WebFetch())
        return rest_of(tool, ("type", "name", "cache_control"), f"{field}.")
    return [field]


def write_output(body: Object, output: OutputSchema) -> None:
    if output.schema is not None and (schema := claude_form(output.schema)) is not None:
        put(body, "output_config.format", {"type": "json_schema", "schema": schema})


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    lost: list[str] = []
    if "top_k" in settings:
        body["top_k"] = settings["top_k"].value
    user = settings.get("safety_identifier") or settings.get("user")
    if user is not None:
        body["metadata"] = {"user_id": user.value}
    if "safety_identifier" in settings and "user" in settings:
        lost.append(settings["user"].field)
    tier = settings.get("service_tier")
    if tier is not None and tier.value in _TIERS.values():
        body["service_tier"] = "auto" if tier.value == "auto" else "standard_only"
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    for name in ("web_search", "code_execution", "web_fetch"):
        lost += write_tool(settings, name, SERVER_TOOLS, body, target)
    if (allowed := settings.get("allowed_tools")) is not None:
        mode, names = allowed.value
        # There is no such choice here: the other tools are not offered.
        fitting = {fit_name(name, NAME_RULE) for name in names}
        kept = [tool for tool in dicts(body.get("tools")) if "input_schema" not in tool or tool.get("name") in fitting]
        if kept:
            body["tools"] = kept
            alone = as_dict(body.get("tool_choice")).get("disable_parallel_tool_use")
            choice: Object = {"type": "any" if mode == "required" else "auto"}
            body["tool_choice"] = choice if alone is None else {**choice, "disable_parallel_tool_use": alone}
    return lost


_BLOCKS = {"text": ("type", "text", "cache_control"), "tool_use": ("type", "id", "name", "input", "cache_control")}


def _lost_in_answer(native: Json) -> Iterator[str]:
    for block in dicts(native):
        type = as_text(block.get("type"))
        if type in _BLOCKS:
            yield from unknown_fields(block, _BLOCKS[type], f"messages.{type}.")
        elif type not in THINKING:
            yield f"messages.{type}"


def _citations(native: Json) -> Iterator[Citation]:
    start = 0
    for block in dicts(native):
        if block.get("type") != "text":
            continue
        end = start + len(as_text(block.get("text")))
        for one in dicts(block.get("citations")):
            yield Citation(as_text(one.get("url")), as_text(one.get("title")), start, end)
        start = end


def _lost_in_part(block: Object) -> Iterator[str]:
    known = ("type", "source", "title", "content", "cache_control")
    return unknown_fields(block, known, f"messages.{as_text(block.get('type'))}.")


def _block_kind(block: Object) -> Literal["text", "call", ""]:
    if block.get("type") == "tool_use":
        return "call"
    return "text" if block.get("type") == "text" and as_text(block.get("text")).strip() else ""


CROSSING = Crossing(
    places={
        "max_tokens": ("max_tokens",),
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "stop": ("stop_sequences",),
        "choice": ("tool_choice",),
        "parallel": ("tool_choice.disable_parallel_tool_use",),
        "effort": ("thinking",),
        "strict": ("tools[]{strict=True}.strict",),
        "output": ("output_config.format",),
        "top_k": ("top_k",),
        "user": ("metadata.user_id",),
        "safety_identifier": ("metadata.user_id",),
        "service_tier": ("service_tier",),
        "web_search": (f"tools[]{{type={WEB_SEARCH}}}",),
        "web_fetch": (f"tools[]{{type={WEB_FETCH}}}",),
        "code_execution": (f"tools[]{{type={CODE_EXECUTION}}}",),
        "allowed_tools": ("tools[]",),
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={"failed_result": "messages.tool_result.is_error", "file_name": "messages.document.title"},
        in_answer=_lost_in_answer,
        citations=_citations,
        cited="messages.text.citations",
        in_part=_lost_in_part,
        tools="tools",
        tool_fields=frozenset({"type", "name", "description", "input_schema", "strict", "cache_control"}),
        block_kind=_block_kind,
    ),
)
