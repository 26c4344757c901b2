"""openai-responses: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.server_tools import CodeExecution
from unbroken_wires.wires.crossing import Crossing, Setting, Settings, Target, put, rest_of, simple, texts, write_tool
from unbroken_wires.wires.history_losses import Citation, HistoryCrossing, other_parts, unknown_fields
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, as_int, as_text, dicts, fit_name
from unbroken_wires.wires.openai_models import OPENAI, REASONING
from unbroken_wires.wires.openai_responses.responses_items import call_kind, part_text, run_by_provider, text_of
from unbroken_wires.wires.openai_responses.responses_server_tools import SERVER_TOOLS
from unbroken_wires.wires.openai_settings import (
    FIELDS,
    decode_output,
    decode_search,
    encode_output,
    portable_fields,
)

_HANDLED = frozenset((*FIELDS, "text", "tools", "tool_choice", "reasoning", "instructions", "background"))
_SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    settings: Settings = dict(simple(extra, FIELDS))
    lost = rest_of(extra, _HANDLED)
    text = as_dict(extra.get("text"))
    if text.get("verbosity") is not None:
        settings["verbosity"] = Setting("text.verbosity", text["verbosity"])
    if (output := decode_output(text.get("format"))) is not None:
        settings["output"] = Setting("text.format", output)
    elif as_dict(text.get("format")).get("type") not in (None, "text"):
        lost.append("text.format")
    lost += rest_of(text, ("format", "verbosity"), "text.")
    for tool in dicts(extra.get("tools")):
        lost += _read_tool(tool, settings)
    if extra.get("tool_choice") is not None:
        allowed = _decode_allowed(as_dict(extra["tool_choice"]))
        if allowed is not None:
            settings["allowed_tools"] = Setting("tool_choice", allowed)
        else:
            lost.append("tool_choice")
    lost += ["background"] if extra.get("background") else []
    return settings, lost + rest_of(as_dict(extra.get("reasoning")), (), "reasoning.")


def _read_tool(tool: Object, settings: Settings) -> list[str]:
    """A tool that the provider runs. What is not understood of it is returned."""
    type = as_text(tool.get("type"))
    field = f"tools.{type}"
    if type in _SEARCHES:
        settings["web_search"] = Setting(field, decode_search(tool))
        return rest_of(tool, ("type", "filters", "user_location", "search_context_size"), f"{field}.")
    if type == "code_interpreter":
        settings["code_execution"] = Setting(field, CodeExecution())
        container = as_dict(tool.get("container")) or {"id": tool.get("container")}
        return rest_of(container, ("type",), f"{field}.container.")
    return [field]


def _decode_allowed(choice: Object) -> tuple[str, tuple[str, ...]] | None:
    """The mode, and the names of the tools that may be called."""
    match choice:
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*_] as tools}:
            return mode, texts([tool.get("name") for tool in dicts(tools)])
        case {"type": "custom", "name": str(name)}:
            return "required", (name,)
        case _:
            return None


def _reasons(body: Object, target: Target) -> bool:
    effort = as_dict(body.get("reasoning")).get("effort")
    return target.vendor in OPENAI and target.model in REASONING and effort != "none"


def write_output(body: Object, output: OutputSchema) -> None:
    if output.schema is None:
        put(body, "text.format", {"type": "json_object"})
    elif (schema := encode_output(output)) is not None:
        put(body, "text.format", {"type": "json_schema", **schema})


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    lost: list[str] = []
    body |= dict(portable_fields(settings, target))
    if body.get("store") is False and _reasons(body, target):
        # The provider keeps nothing, so the reasoning has to come back with the history.
        body["include"] = ["reasoning.encrypted_content"]
    if "verbosity" in settings and target.vendor in OPENAI:
        put(body, "text.verbosity", settings["verbosity"].value)
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    lost += write_tool(settings, "web_search", SERVER_TOOLS, body, target)
    lost += write_tool(settings, "code_execution", SERVER_TOOLS, body, target)
    if (allowed := settings.get("allowed_tools")) is not None and body.get("tools"):
        mode, names = allowed.value
        functions = [{"type": "function", "name": fit_name(name, TOOL_NAME)} for name in names]
        one = functions[0] if len(functions) == 1 and mode == "required" else None
        body["tool_choice"] = one or {"type": "allowed_tools", "mode": mode, "tools": functions}
    return lost


def _lost_in_body(body: Object) -> Iterator[str]:
    for item in dicts(body.get("input")):
        if item.get("role") in ("system", "developer"):
            yield from other_parts(item.get("content"), "input.")


def _lost_in_answer(native: Json) -> Iterator[str]:
    for item in dicts(native):
        if run_by_provider(item) or as_text(item.get("type")).endswith("compaction"):
            yield f"input.{as_text(item.get('type'))}"
        elif item.get("role") == "assistant":
            yield from unknown_fields(item, ("type", "role", "content", "id", "status"), "input.message.")
            for part in dicts(item.get("content")):
                yield from unknown_fields(part, ("type", "text", "refusal"), f"input.{as_text(part.get('type'))}.")


def _citations(native: Json) -> Iterator[Citation]:
    start = 0
    for item in dicts(native):
        for part in dicts(item.get("content")) if item.get("role") == "assistant" else ():
            for one in dicts(part.get("annotations")):
                begin, end = as_int(one.get("start_index")), as_int(one.get("end_index"))
                yield Citation(as_text(one.get("url")), as_text(one.get("title")), start + begin, start + end)
            start += len(part_text(part))


_FILE = ("type", "image_url", "detail", "file_data", "file_url", "filename", "input_audio")


def _lost_in_part(part: Object) -> Iterator[str]:
    return unknown_fields(part, _FILE, f"input.{as_text(part.get('type'))}.")


def _block_kind(item: Object) -> Literal["text", "call", ""]:
    if call_kind(item):
        return "call"
    return "text" if item.get("role") == "assistant" and text_of(item).strip() else ""


CROSSING = Crossing(
    places={
        "max_tokens": ("max_output_tokens",),
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "choice": ("tool_choice",),
        "parallel": ("parallel_tool_calls",),
        "effort": ("reasoning.effort",),
        "strict": ("tools[]{strict=True}.strict",),
        "output": ("text.format",),
        "verbosity": ("text.verbosity",),
        "web_search": ("tools[]{type=web_search}", "tools[]{type=openrouter:web_search}"),
        "code_execution": ("tools[]{type=code_interpreter}",),
        "allowed_tools": ("tool_choice{type}",),
        **{name: (field,) for field, name in FIELDS.items()},
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={
            "text_arguments": "input.arguments",
            "image_detail": "input.input_image.detail",
            "file_name": "input.input_file.filename",
        },
        in_body=_lost_in_body,
        in_answer=_lost_in_answer,
        citations=_citations,
        cited="input.output_text.annotations",
        in_part=_lost_in_part,
        tools="tools",
        tool_fields=frozenset({"type", "name", "description", "parameters", "strict"}),
        block_kind=_block_kind,
    ),
)
