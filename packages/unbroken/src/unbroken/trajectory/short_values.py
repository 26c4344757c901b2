"""Values in the lines of a recording without what needs not be written: defaults, and the text of arguments that is one
of the two usual ways to write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import orjson

from unbroken.events import KINDS, CallEvent, Event
from unbroken.trajectory.lines import Line
from unbroken_wires.messages import Json

_BY_TYPE: dict[str, Any] = {
    "str": "",
    "int": 0,
    "float": 0.0,
    "bool": False,
    "Outcome": "done",
    "float | None": None,
    "dict[str, Json] | None": None,
}


def _default(field: Any) -> Any:
    """What a field has if it is left out."""
    if field.default is not MISSING:
        return field.default
    kind = str(field.type)
    return _BY_TYPE[kind] if kind in _BY_TYPE else [] if kind.startswith("list") else {}


OWN_FIELDS: dict[type[Event], tuple[tuple[str, Any], ...]] = {
    kind: tuple(
        (each.name, _default(each))
        for each in fields(kind)[len(fields(CallEvent if issubclass(kind, CallEvent) else Event)) :]
    )
    for kind in KINDS
}
"""The fields of each kind that not all events, or all events of calls, have; with their defaults."""
_NO_USAGE: Line = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "estimated": False,
}
_COUNTERS = ("rounds", "requests", "calls", "attempts")
USUAL_TOOL: Line = {
    "description": "",
    "strict": None,
    "effect": "write",
    "timeout": 30.0,
    "key": False,
    "overlap": None,
    "dedupe": None,
    "cache": None,
    "retries": 0,
    "repeat": False,
    "approve": False,
    "after_crash": None,
    "client": False,
    "queue": None,
    "background": None,
}
"""What a tool in a line has if it is left out."""


def same(one: Json, other: Json) -> bool:
    return one is other or (one == other and repr(one) == repr(other))  # 1, 1.0 and True are equal


def short_tool(tool: Line) -> Line:
    """It is changed."""
    for name, usual in USUAL_TOOL.items():
        value = tool.get(name, tool)
        if value is usual or (value == usual and value.__class__ is usual.__class__):  # 0 and False are equal
            del tool[name]
    return tool


def short_state(state: Line) -> Line:
    """It is changed."""
    for name in _COUNTERS:
        if not state.get(name, True):
            del state[name]
    usage = {name: value for name, value in state.pop("usage", {}).items() if value}
    if usage:
        state["usage"] = usage
    return state


def full_state(state: Line) -> Line:
    return {**dict.fromkeys(_COUNTERS, 0), **state, "usage": {**_NO_USAGE, **state.get("usage", {})}}


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a saved result."""
    return "".join(part["text"] for part in result["content"] if part["type"] == "text")


# How a model has written the arguments of a call: nearly always in one of two ways, so that their text need not be
# kept beside them.

_STRINGS = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")')


def _compact(arguments: Json) -> str:
    return orjson.dumps(arguments).decode()


def _spaced(compact: str) -> str:
    """With a blank behind each comma and colon that is not in a string."""
    parts = _STRINGS.split(compact)
    parts[::2] = [part.replace(",", ", ").replace(":", ": ") for part in parts[::2]]
    return "".join(parts)


def short_call(saved: Line) -> Line:
    """It is changed."""
    if saved["complete"] is True:
        del saved["complete"]
    raw, arguments = saved.get("raw"), saved["arguments"]
    if raw and arguments is not None:
        try:
            compact = _compact(arguments)
        except (TypeError, ValueError):  # an integer beyond 64 bits, half a surrogate pair
            return saved
        spelling = "compact" if raw == compact else "spaced" if raw == _spaced(compact) else ""
        if spelling:
            del saved["raw"]
            saved["spelled"] = spelling
    return saved


def full_call(short: Line) -> Line:
    saved: Line = {"complete": True, **short}
    spelling = saved.pop("spelled", None)
    if spelling is not None:
        compact = _compact(saved["arguments"])
        saved["raw"] = _spaced(compact) if spelling == "spaced" else compact
    return saved
