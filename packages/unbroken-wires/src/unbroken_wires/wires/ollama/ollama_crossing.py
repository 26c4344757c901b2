"""ollama: settings that not every wire has, and what only its messages can say, from and to other wires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unbroken_wires.messages import Json, OutputSchema
from unbroken_wires.wires.crossing import Crossing, Name, Setting, Settings, Target, put, rest_of, simple
from unbroken_wires.wires.history_losses import HistoryCrossing, unknown_fields
from unbroken_wires.wires.json_access import TOOL_NAME, Object, as_dict, dicts, fit_name

_OPTIONS: Mapping[str, Name] = {
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
_THINKS = (True, False, "low", "medium", "high")


def _read(extra: Mapping[str, Json]) -> tuple[Settings, list[str]]:
    options = as_dict(extra.get("options"))
    settings: Settings = dict(simple(options, _OPTIONS, "options."))
    lost = rest_of(extra, ("format", "options", "think", "tools")) + rest_of(options, _OPTIONS, "options.")
    match extra.get("format"):
        case None | "":
            pass
        case "json":
            settings["output"] = Setting("format", OutputSchema())
        case {**schema}:
            settings["output"] = Setting("format", OutputSchema(schema))
        case _:
            lost.append("format")
    if extra.get("think") not in (None, *_THINKS):
        lost.append("think")
    lost += ["tools" for _ in dicts(extra.get("tools"))[:1]]
    return settings, lost


def write_output(body: Object, output: OutputSchema) -> None:
    body["format"] = "json" if output.schema is None else dict(output.schema)


def _write(body: Object, settings: Settings, target: Target) -> list[str]:
    for key, name in _OPTIONS.items():
        if name in settings:
            put(body, f"options.{key}", settings[name].value)
    if (output := settings.get("output")) is not None:
        write_output(body, output.value)
    if (allowed := settings.get("allowed_tools")) is None:
        return []
    mode, names = allowed.value
    fitting = {fit_name(name, TOOL_NAME) for name in names}
    body["tools"] = [tool for tool in dicts(body.get("tools")) if as_dict(tool.get("function")).get("name") in fitting]
    return [f"{allowed.field}.mode"] if mode == "required" else []


def _lost_in_answer(native: Json) -> Iterator[str]:
    return unknown_fields(as_dict(native), ("thinking",), "messages.")


CROSSING = Crossing(
    places={
        "max_tokens": ("options.num_predict",),
        "temperature": ("options.temperature",),
        "top_p": ("options.top_p",),
        "stop": ("options.stop",),
        "seed": ("options.seed",),
        "effort": ("think",),
        "output": ("format",),
        "allowed_tools": ("tools",),
        **{name: (f"options.{key}",) for key, name in _OPTIONS.items()},
    },
    read=_read,
    write=_write,
    history=HistoryCrossing(
        features={"file_name": "messages.content"},  # the first line of its text
        in_answer=_lost_in_answer,
        tools="tools.function",
        tool_group="function",
        tool_fields=frozenset({"name", "description", "parameters"}),
    ),
)
