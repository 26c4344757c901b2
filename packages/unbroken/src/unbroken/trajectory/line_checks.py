"""Checks that a line follows the schema. Readers can rely on the types that are checked here.

A recording may come from anywhere, and may be damaged anywhere. What is not checked is not relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, cast

from unbroken.events import KINDS, NAMES, Event
from unbroken.trajectory.lines import LARGEST, Line, read_delta
from unbroken.trajectory.lines import NAMES as DELTAS
from unbroken_wires.deltas import Ended, PartialResponse
from unbroken_wires.messages import OUTCOMES, Assistant, Message, ToolMessage, ToolResult
from unbroken_wires.transcript import to_json
from unbroken_wires.transcript.saved import write_result

Check = Callable[[Any], bool]


def number(value: object) -> float:
    """A number that can be calculated with; else 0."""
    return float(cast("float", value)) if is_number(value) else 0.0


def count(value: object) -> int:
    return int(number(value))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _is(kind: type[Any]) -> Check:
    return lambda value: isinstance(value, kind)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _all(check: Check) -> Check:
    """A list of such values."""
    return lambda value: isinstance(value, list) and all(map(check, cast("list[Any]", value)))


def _has(**checks: Check) -> Check:
    """An object in which these fields have such values; one that is missing is null."""
    return lambda value: (
        isinstance(value, dict) and all(check(cast("Line", value).get(name)) for name, check in checks.items())
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _is_call_number(value: object) -> bool:
    return value == -1 or _is_count(value)  # -1 if the tool was called without an agent


def _is_duration(value: object) -> bool:
    return is_number(value) and cast("float", value) >= 0


def _is_usage(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, bool) or _is_count(each) for name, each in cast("Line", value).items() if name != "raw"
    )


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, cast("Line", value).values()))


def _is_piece(value: Any) -> bool:
    """The time of some pieces, and their texts."""
    return _is_list(value) and len(value) > 1 and is_number(value[0]) and _are_texts(value[1:])


_is_text, _is_flag, _is_object, _is_list = _is(str), _is(bool), _is(dict), _is(list)
_is_call = _has(name=_is_text, arguments=_maybe(_is_object))
_are_texts, _are_objects = _all(_is_text), _all(_is_object)
_are_tools = _all(_has(name=_is_text, parameters=_is_object))

Shape = tuple[Mapping[str, Check], Mapping[str, Check]]
"""The fields that an object needs, and those that it may have; any others do not matter."""


def _follows(line: Line, shape: Shape) -> bool:
    needed, optional = shape
    return all(name in line and check(line[name]) for name, check in needed.items()) and all(
        check(line[name]) for name, check in optional.items() if name in line
    )


_COUNTED = ("rounds", "requests", "calls", "attempts", "nudges", "empty_answers", "pauses", "corrections", "next_call")
_STATE: Shape = (
    {},
    {**dict.fromkeys(_COUNTED, _is_count), "usage": _is_usage, "stop": _maybe(_is_text), "streaks": _are_counts},
)


def is_state(value: object) -> bool:
    """What a run had used and noted: it is used when the run is resumed."""
    return isinstance(value, dict) and _follows(cast("Line", value), _STATE)


_TIMED: dict[str, Check] = {"turn": _is_count, "at": is_number}
_NEEDS: dict[str, dict[str, Check]] = {
    "tools": {"tools": _are_tools},
    "history": {"keep": _is_count, "messages": _are_objects},
    "request": {"keep": _is_count, "messages": _are_objects},
    "failed": {"error": _is_text, "message": _is_text},
    "closed": {},
    "cancelled": {"call_id": _is_text},
    "result": {"call_id": _is_text, "key": _is_text, "result": _is_object},
    "approval": {"call_id": _is_text, "decision": _is_text},
    "waits": {
        "call_id": _is_text,
        "call": _is_call_number,
        "pending": _all(_has(id=_is_text, name=_is_text, arguments=_maybe(_is_object))),
    },
    "inner": {"call": _is_call_number, "call_id": _is_text, "key": _is_text, "of": _is_object},
    "stage": {"stage": _is_text, "status": _is_text},
}
_MAY_HAVE: dict[str, dict[str, Check]] = {
    "request": {"system": _maybe(_is_object), "tools": _are_tools, "state": _is_object},
    "result": {"call": _is_call_number, "inner_calls": _is_count, "veto": _is_text},
    "waits": {"inner_calls": _is_count},
    "cancelled": {"call": _is_call_number},
}
_OF_DELTAS: dict[str, Check] = {
    "text": _is_text,
    "index": _is_count,
    "call": _is_object,
    "usage": _is_usage,
    "verdict": _has(kind=_is_text),
}
_BY_TYPE: dict[str, Check] = {
    "str": _is_text,
    "int": _is_count,
    "float": is_number,
    "bool": _is_flag,
    "float | None": _maybe(is_number),
    "list[str]": _are_texts,
    "dict[str, Json]": _is_object,
    "dict[str, Json] | None": _maybe(_is_object),
    "Outcome": lambda value: value in OUTCOMES,
    "list[dict[str, Json]]": _are_objects,
    "tuple[str, ...]": _are_texts,
    "ToolCall": _is_call,
    "ServerCall": _is_object,
    "Usage": _is_usage,
    "Verdict": _is_object,
    "Assistant | None": _is(object),
}


def _is_inner_event(value: object) -> bool:
    """One of a later version has at least what every event has."""
    if not isinstance(value, dict) or not isinstance(name := cast("Line", value).get("event"), str):
        return False
    return _follows(cast("Line", value), _SHAPES.get(("event", name), _OF_ANY_EVENT))


_OF_EVENTS: dict[str, Check] = {
    "usage": _is_usage,
    "seconds": _is_duration,
    "wait": _is_duration,
    "inner": _is_inner_event,
}


def _shape_of(kind: type[Any], by_name: Mapping[str, Check], optional: Collection[str]) -> Shape:
    """By the fields of a class, all of which are needed but the optional ones."""
    checks = {each.name: by_name.get(each.name) or _BY_TYPE[str(each.type)] for each in fields(kind)}
    may_have = {name: checks.pop(name) for name in optional if name in checks}
    return checks, may_have


def _shape_of_event(kind: type[Event]) -> Shape:
    optional = [each.name for each in fields(kind) if (each.default, each.default_factory) != (MISSING, MISSING)]
    needed, may_have = _shape_of(kind, _OF_EVENTS, optional)
    return needed, {**may_have, "at": is_number, "keep": _is_count}


def _shape_of_delta(kind: type[Any]) -> Shape:
    needed, may_have = _shape_of(kind, {"error": _is(object)}, ("message", "streamed"))
    return {**_TIMED, **needed}, {**_OF_DELTAS, **may_have}


_ANY: Shape = {}, {"at": is_number}
_OF_ANY_EVENT = _shape_of_event(Event)
_SHAPES: dict[tuple[str, str], Shape] = {
    **{(line, ""): (_TIMED | needed, _MAY_HAVE.get(line, {})) for line, needed in _NEEDS.items()},
    **{("delta", name): _shape_of_delta(kind) for kind, name in DELTAS.items()},
    **{("event", NAMES[kind]): _shape_of_event(kind) for kind in KINDS},
    ("pieces", ""): (
        {"turn": _is_count, "delta": lambda value: value in ("text", "reasoning"), "pieces": _all(_is_piece)},
        {},
    ),
}


def is_line(line: Line) -> bool:
    kind = line.get("line")
    has_name = kind in ("event", "delta")
    name = line.get(kind) if has_name else ""
    if not (isinstance(kind, str) and isinstance(name, str)):
        return False
    shape = _SHAPES.get((kind, name))
    if shape is None and has_name:  # of a later version: readers ignore such an event, and cannot play such a delta
        return kind == "event"
    return _follows(line, shape or _ANY)


# References to earlier lines instead of repeated content: a message that was received, a result that was returned. The
# history grows by what the model said and what the tools returned. Both are in the recording when the next request is
# written, so the request only refers to them, and readers restore them.


def refer(messages: Sequence[Message], answer: Assistant | None, given: Mapping[str, ToolResult]) -> list[Line]:
    """The messages in their saved form. `answer` and `given` are already in the lines of the last turn."""
    saved: list[Line] = []
    for message in messages:
        if message is answer:
            saved.append({"role": "assistant", "as_heard": True})
        elif isinstance(message, ToolMessage):
            results = [
                {"as_given": result.call_id} if _is_given(result, given.get(result.call_id)) else write_result(result)
                for result in message.results
            ]
            saved.append({"role": "tool", "results": results})
        else:
            saved += to_json([message])
    return saved


def _is_given(result: ToolResult, given: ToolResult | None) -> bool:
    """The history has the result of a tool that raised an error without this exception."""
    return given is result or (given is not None and given.exception is not None and given == result)


LOST = "(its line is not in the recording)"


class Expander:
    """Replaces references by what they refer to, line by line."""

    def __init__(self) -> None:
        self._deltas: list[Line] = []
        self._given: dict[str, Line] = {}
        self._lost = False

    def feed(self, line: Line) -> bool:
        """False if it refers to something that is missing."""
        self._lost = False
        match line["line"]:
            case "delta":
                self._deltas.append(line)
            case "result":
                self._given[line["call_id"]] = line["result"]
            case "request":
                self._expand(line["messages"])
                self._deltas, self._given = [], {}
            case "history":
                self._expand(line["messages"])
            case "event" if line["event"] == "run_finished":
                self._expand(line.get("messages", []))
            case _:
                pass
        return not self._lost

    def _expand(self, messages: list[Line]) -> None:
        for place, message in enumerate(messages):
            if message.get("as_heard"):
                messages[place] = self._streamed_message()
            elif isinstance(message.get("results"), list):
                messages[place] = {**message, "results": [self._result(each) for each in message["results"]]}

    def _result(self, saved: Any) -> Any:
        if not isinstance(saved, dict) or "as_given" not in saved:
            return cast("Any", saved)
        id = cast("Line", saved)["as_given"]
        if isinstance(id, str) and id in self._given:
            return self._given[id]
        self._lost = True
        return {"call_id": str(id), "content": [{"type": "text", "text": LOST}], "metadata": {"error": True}}

    def _streamed_message(self) -> Line:
        so_far = PartialResponse()
        try:
            for line in self._deltas:
                delta = read_delta(line, so_far)
                if isinstance(delta, Ended):
                    return to_json([delta.message or so_far.message])[0]
                so_far.feed(delta)
        except Exception:  # noqa: BLE001 - whatever is wrong with the lines, there is no message
            pass
        self._lost = True
        return {"role": "assistant", "content": ""}
