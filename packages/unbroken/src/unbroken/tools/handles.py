"""Handles of background calls: what the model reads of them, and how a handle in the arguments of a later call becomes
the result of the call that it names.

A handle is a whole string value, such as `"$call_3"`, at any depth of the arguments. Text that only contains one is
left alone. Nothing runs here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from unbroken_wires.messages import Json, Media, Part, Text, ToolCall, ToolResult, User
from unbroken_wires.transcript.saved import read_call, read_result, write_call, write_result

HANDLE = re.compile(r"\$call_\d+")

RUNNING = (
    "`{name}` is still running, in the background, as {handle}. Its result will arrive in a later message. Continue "
    'with work that does not need it; a call that needs it may have "{handle}" as the value of an argument, and waits '
    "for the result, which takes its place."
)
ARRIVED = {
    "done": "has finished. Its result:",
    "cached": "has finished. Its result:",
    "failed": "has failed:",
    "retry": "has failed:",
    "timed_out": "has failed:",
    "cancelled": "was cancelled:",
    "not_executed": "was not executed:",
    "unknown": "has an unknown outcome:",
}


@dataclass(frozen=True, slots=True)
class BackgroundCall:
    """A call that continued in the background after the model had been answered with its handle."""

    handle: str
    call: ToolCall
    turn: int
    """The request whose response contained it."""
    number: int
    """Unique in its run: the number that its events have."""
    result: ToolResult | None = None
    """None while it runs."""
    delivered: bool = False
    """The result is in the history, so the model has read it or can read it."""
    seconds: float = 0.0
    """How long its tool ran."""
    nth: int = 1
    """Its number among the identical calls of its message."""
    arguments: dict[str, Json] | None = None
    """What it was started with, if it has started: handles are replaced, and an approver may have edited them."""
    shared_by: tuple[tuple[int, ToolCall], ...] = ()
    """Identical calls of its message, which share its execution, with their numbers."""

    @property
    def place(self) -> int:
        """The number in its handle: that of the call in the conversation."""
        return int(self.handle.rpartition("_")[2])

    def to_json(self) -> dict[str, Json]:
        """All of it; `from_json` reads it."""
        saved: dict[str, Json] = {"handle": self.handle, "call": write_call(self.call), "turn": self.turn}
        saved |= {"number": self.number, "delivered": self.delivered, "seconds": self.seconds, "nth": self.nth}
        if self.shared_by:
            saved["shared_by"] = [[number, write_call(call)] for number, call in self.shared_by]
        if self.result is not None:
            saved["result"] = write_result(self.result)
        return saved

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> BackgroundCall:
        """Restores what `to_json` returned."""
        result = saved.get("result")
        return cls(
            saved["handle"],
            read_call(saved["call"]),
            saved["turn"],
            saved["number"],
            None if result is None else read_result(result),
            saved["delivered"],
            saved["seconds"],
            saved["nth"],
            shared_by=tuple((number, read_call(call)) for number, call in saved.get("shared_by", ())),
        )


def running(call: ToolCall, handle: str) -> ToolResult:
    """The result of a call that continues in the background."""
    text = RUNNING.format(name=call.name, handle=handle)
    return ToolResult(call.id, (Text(text),), name=call.name, ended_as="running")


def arrival(arrived: Iterable[tuple[str, ToolResult]]) -> User:
    """The message with the results of background calls, each after its handle. Media stay media."""
    parts: list[Part] = []
    for handle, result in arrived:
        between = "\n\n" if parts else ""
        parts.append(Text(f"{between}[Background call {handle} (`{result.name}`) {ARRIVED[result.outcome]}]\n"))
        parts += result.content
    texts = "".join(part.text for part in parts if isinstance(part, Text))
    media = [part for part in parts if isinstance(part, Media)]
    return User(tuple(parts) if media else (Text(texts),), arrived=True)


def find_handles(value: Json) -> tuple[str, ...]:
    """The handles in these arguments, each once."""
    found: dict[str, None] = {}
    pending: list[Json] = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            if each[:1] == "$" and HANDLE.fullmatch(each):
                found[each] = None
        elif isinstance(each, dict):
            pending += cast("dict[str, Json]", each).values()
        elif isinstance(each, list):
            pending += cast("list[Json]", each)
    return tuple(found)


def fill_in(
    arguments: dict[str, Json], results: Mapping[str, ToolResult], schema: Mapping[str, Json]
) -> dict[str, Any]:
    """The arguments with each handle replaced by the text of its result; or, where the schema takes no string, by the
    JSON value that the text stands for."""

    def value_of(handle: str, expected: Json) -> Json:
        text = results[handle].text
        if (wanted := _takes_text(expected, schema)) is True:
            return text
        try:
            value: Json = json.loads(text)
        except (ValueError, RecursionError):
            return text
        is_plain = value is None or isinstance(value, str | int | float)
        return text if wanted is None and is_plain else value

    return _replace(arguments, schema, schema, results, value_of)


def _replace(
    value: Any,
    expected: Any,
    root: Mapping[str, Json],
    results: Mapping[str, ToolResult],
    value_of: Callable[[str, Json], Json],
) -> Any:
    if isinstance(value, str):
        return value_of(value, expected) if value in results else value
    known = _resolved(expected, root)
    if isinstance(value, dict):
        fields, others = known.get("properties", {}), known.get("additionalProperties")
        return {
            name: _replace(inner, fields.get(name, others), root, results, value_of)
            for name, inner in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_replace(inner, known.get("items"), root, results, value_of) for inner in cast("list[Any]", value)]
    return value


def _resolved(schema: Any, root: Mapping[str, Json]) -> dict[str, Any]:
    """The schema that a local `$ref` names; empty if there is none."""
    for _ in range(16):
        if not isinstance(schema, dict):
            return {}
        known = cast("dict[str, Any]", schema)
        path = known.get("$ref")
        if not isinstance(path, str) or not path.startswith("#/"):
            return known
        schema = root
        for step in path[2:].split("/"):
            schema = cast("Any", schema).get(step) if isinstance(schema, Mapping) else None
    return {}


def _takes_text(schema: Any, root: Mapping[str, Json]) -> bool | None:
    """Does a value of this schema take a string? None if it takes anything."""
    known = _resolved(schema, root)
    kinds = known.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else (kinds,))
    if "enum" in known or "const" in known:
        return True
    options = [_takes_text(each, root) for name in ("anyOf", "oneOf", "allOf") for each in known.get(name, ())]
    return (True in options) if options and None not in options else None
