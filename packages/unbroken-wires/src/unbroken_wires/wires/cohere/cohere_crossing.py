"""cohere-v2: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken_wires.errors import InvalidRequest
from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.wires.cohere.cohere_rules import OUTPUT_KEYWORDS, accepts_schema
from unbroken_wires.wires.crossing import Crossing, Name, Setting, Settings, Target, rest_of, simple
from unbroken_wires.wires.history_losses import HistoryCrossing, other_parts, unknown_fields
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, as_number, dicts, fit_name
from unbroken_wires.wires.schemas import limited

_FIELDS: Mapping[str, Name] = {
    "k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
_PENALTIES: tuple[Name, ...] = ("frequency_penalty", "presence_penalty")
_HANDLED = frozenset((*_FIELDS, "response_format", "thinking", "tools", "tool_choice", "logprobs"))


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    if extra.get("documents"):
        raise InvalidRequest("`documents`: this model has no such field; put their text into a message")
    settings: Settings = dict(simple(extra, _FIELDS))
    lost = rest_of(extra, _HANDLED)
    format = as_dict(extra.get("response_format"))
    if format.get("type") == "json_object":
        schema = as_dict(format.get("json_schema") or format.get("schema"))
        settings["output"] = Setting("response_format", OutputSchema(schema or None))
    elif format.get("type") not in (None, "text"):
        lost.append("response_format")
    lost += ["tools" for _ in dicts(extra.get("tools"))[:1]]
    lost += ["tool_choice"] if extra.get("tool_choice") is not None else []
    lost += ["logprobs"] if extra.get("logprobs") else []
    return settings, lost


def write_output(body: Object, output: OutputSchema) -> None:
    if body.get("tools"):
        return  # both together are refused
    if output.schema is None:
        body["response_format"] = {"type": "json_object"}
    elif accepts_schema(schema := limited(output.schema, OUTPUT_KEYWORDS)):
        body["response_format"] = {"type": "json_object", "json_schema": schema}


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    if "top_k" in settings:
        body["k"] = settings["top_k"].value
    for name in _PENALTIES:
        value = as_number(settings[name].value) if name in settings else None
        if value is not None and 0 <= value <= 1:
            body[name] = value
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    if (allowed := settings.get("allowed_tools")) is not None and body.get("tools"):
        mode, names = allowed.value
        fitting = {fit_name(name, TOOL_NAME) for name in names}
        body["tools"] = [tool for tool in dicts(body["tools"]) if as_dict(tool.get("function")).get("name") in fitting]
        if mode == "required":
            body["tool_choice"] = "REQUIRED"
    return []


def _lost_in_body(body: Object) -> Iterator[str]:
    for message in dicts(body.get("messages")):
        if message.get("role") == "system":
            yield from other_parts(message.get("content"), "messages.")


def _lost_in_answer(native: Json) -> Iterator[str]:
    return unknown_fields(as_dict(native), ("thinking",), "messages.")


CROSSING = Crossing(
    places={
        "max_tokens": ("max_tokens",),
        "temperature": ("temperature",),
        "top_p": ("p",),
        "stop": ("stop_sequences",),
        "seed": ("seed",),
        "choice": ("tool_choice",),
        "effort": ("thinking",),
        "strict": ("strict_tools",),
        "output": ("response_format",),
        "allowed_tools": ("tools",),
        **{name: (key,) for key, name in _FIELDS.items()},
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={
            "text_arguments": "messages.tool_calls.function.arguments",
            "image_detail": "messages.image_url.detail",
            "file_name": "messages.content",  # the first line of its text
        },
        in_body=_lost_in_body,
        in_answer=_lost_in_answer,
        shown=frozenset({"messages.tool_plan"}),
        tools="tools.function",
        tool_group="function",
        tool_fields=frozenset({"name", "description", "parameters"}),
    ),
)
