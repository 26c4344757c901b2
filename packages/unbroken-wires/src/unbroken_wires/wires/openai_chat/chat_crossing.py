"""openai-chat: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.wires.crossing import Crossing, Name, Setting, Settings, Target, rest_of, simple, texts, write_tool
from unbroken_wires.wires.history_losses import Citation, HistoryCrossing, other_parts, unknown_fields
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, as_int, as_text, dicts, fit_name
from unbroken_wires.wires.openai_chat.chat_messages import OPAQUE_TEXTS
from unbroken_wires.wires.openai_chat.chat_native import KEPT
from unbroken_wires.wires.openai_chat.chat_server_tools import SERVER_TOOLS
from unbroken_wires.wires.openai_models import OPENAI
from unbroken_wires.wires.openai_settings import (
    FIELDS,
    OF_OPENAI,
    decode_output,
    decode_search,
    encode_output,
    portable_fields,
)

_FIELDS: Mapping[str, Name] = {
    **FIELDS,
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "top_k": "top_k",
    "verbosity": "verbosity",
}
_HANDLED = frozenset(
    (*_FIELDS, "response_format", "web_search_options", "max_completion_tokens", "tools", "tool_choice", "n")
) | {"stream_options", "logprobs"}


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    settings: Settings = dict(simple(extra, _FIELDS))
    lost = rest_of(extra, _HANDLED)
    format = as_dict(extra.get("response_format"))
    if (output := decode_output(format)) is not None:
        settings["output"] = Setting("response_format", output)
    elif format.get("type") not in (None, "text"):
        lost.append("response_format")
    if extra.get("web_search_options") is not None:
        search = decode_search(as_dict(extra["web_search_options"]))
        settings["web_search"] = Setting("web_search_options", search)
    lost += [f"tools.{as_text(tool.get('type'))}" for tool in dicts(extra.get("tools"))]
    if extra.get("tool_choice") is not None:
        allowed = _decode_allowed(as_dict(extra["tool_choice"]))
        if allowed is not None:
            settings["allowed_tools"] = Setting("tool_choice", allowed)
        else:
            lost.append("tool_choice")
    lost += ["n"] if extra.get("n") not in (None, 1) else []
    lost += ["logprobs"] if extra.get("logprobs") else []
    lost += rest_of(as_dict(extra.get("stream_options")), ("include_usage",), "stream_options.")
    return settings, lost


def _decode_allowed(choice: Object) -> tuple[str, tuple[str, ...]] | None:
    """The mode, and the names of the tools that may be called."""
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*_] as tools}}:
            named = [as_dict(tool.get("function") or tool.get("custom")).get("name") for tool in dicts(tools)]
            return mode, texts(named)
        case {"type": "custom", "custom": {"name": str(name)}}:
            return "required", (name,)
        case _:
            return None


def write_output(body: Object, output: OutputSchema) -> None:
    if output.schema is None:
        body["response_format"] = {"type": "json_object"}
    elif (schema := encode_output(output)) is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    lost: list[str] = []
    openai = target.vendor in OPENAI
    body |= dict(portable_fields(settings, target))
    if openai and body.get("store") is not True:
        body.pop("metadata", None)  # "only allowed when 'store' is enabled"
    for name in ("frequency_penalty", "presence_penalty", "verbosity"):
        if name in settings and (openai or name not in OF_OPENAI):
            body[name] = settings[name].value
    if "top_k" in settings and not openai:
        body["top_k"] = settings["top_k"].value
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    if openai:
        lost += write_tool(settings, "web_search", SERVER_TOOLS, body, target)
    if (allowed := settings.get("allowed_tools")) is not None and body.get("tools"):
        mode, names = allowed.value
        tools = [{"type": "function", "function": {"name": fit_name(name, TOOL_NAME)}} for name in names]
        choice: Object = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        one = tools[0] if len(tools) == 1 and mode == "required" else None
        if one is not None or openai:
            body["tool_choice"] = one or choice
    return lost


def _lost_in_body(body: Object) -> Iterator[str]:
    for message in dicts(body.get("messages")):
        if message.get("role") != "tool" and as_text(message.get("name")):
            yield "messages.name"
        if message.get("role") in ("system", "developer"):
            yield from other_parts(message.get("content"), "messages.")


def _lost_in_answer(native: Json) -> Iterator[str]:
    fields = as_dict(native)
    # The refusal is part of our text; beside calls stand signatures, which are like reasoning.
    yield from unknown_fields(
        fields, (*OPAQUE_TEXTS, *KEPT, "reasoning_details", "refusal", "tool_calls", "content"), "messages."
    )
    content = [part for part in dicts(fields.get("content")) if part.get("type") != "thinking"]
    yield from other_parts(content, "messages.")
    for part in content:
        yield from _lost_in_part(part)


def _citations(native: Json) -> Iterator[Citation]:
    for annotation in dicts(as_dict(native).get("annotations")):
        one = as_dict(annotation.get("url_citation"))
        places = as_int(one.get("start_index")), as_int(one.get("end_index"))
        yield Citation(as_text(one.get("url")), as_text(one.get("title")), *places)


_PART = ("type", "text", "refusal", "image_url", "file", "input_audio", "cache_control")


def _lost_in_part(part: Object) -> Iterator[str]:
    return unknown_fields(part, _PART, f"messages.{as_text(part.get('type'))}.")


CROSSING = Crossing(
    places={
        "max_tokens": ("max_tokens", "max_completion_tokens"),
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "stop": ("stop",),
        "seed": ("seed", "random_seed"),
        "choice": ("tool_choice",),
        "parallel": ("parallel_tool_calls",),
        "effort": ("reasoning_effort", "thinking", "enable_thinking"),
        "strict": ("tools[].function{strict=True}.strict",),
        "output": ("response_format",),
        "web_search": ("web_search_options",),
        "allowed_tools": ("tool_choice{type}",),
        **{name: (field,) for field, name in _FIELDS.items()},
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={
            "text_arguments": "messages.tool_calls.function.arguments",
            "image_detail": "messages.image_url.detail",
            "file_name": "messages.file.filename",
        },
        in_body=_lost_in_body,
        in_answer=_lost_in_answer,
        citations=_citations,
        cited="messages.annotations",
        in_part=_lost_in_part,
        tools="tools.function",
        tool_group="function",
        tool_fields=frozenset({"name", "description", "parameters", "strict"}),
    ),
)
