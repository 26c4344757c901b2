"""Checks that a line follows the schema. Readers can rely on the types that are checked here.

A recording may come from anywhere, and may be damaged anywhere. What is not checked is not relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any, cast

from unbroken.events import KINDS, NAMES
from unbroken.trajectory.lines import LARGEST, Line, read_delta
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
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite_small(value)


def isfinite_small(value: float) -> bool:
    return -LARGEST < value < LARGEST and isfinite(value)


def objects(value: object) -> list[Line]:
    """The objects in a list; empty if it is not a list."""
    if not isinstance(value, list):
        return []
    return [cast("Line", each) for each in cast("list[object]", value) if isinstance(each, dict)]


def texts(values: Iterable[object]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _is_call_number(value: object) -> bool:
    return value == -1 or _is_count(value)  # -1 if the tool was called without an agent


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))


def _are_named(value: object) -> bool:
    return _are_objects(value) and all(
        isinstance(each.get("name"), str) and isinstance(each.get("parameters"), dict)
        for each in cast("list[Line]", value)
    )


def _are_waiting(value: object) -> bool:
    return _are_objects(value) and all(
        isinstance(each.get("id"), str) and _is_call(each) for each in cast("list[Line]", value)
    )


def _is_verdict(value: object) -> bool:
    return isinstance(value, dict) and isinstance(cast("Line", value).get("kind"), str)


def _is_call(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    call = cast("Line", value)
    return isinstance(call.get("name"), str) and (call.get("arguments") is None or _is_object(call["arguments"]))


def _is_usage(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, bool) or _is_count(each) for name, each in cast("Line", value).items() if name != "raw"
    )


_COUNTED = frozenset(
    {"rounds", "requests", "calls", "attempts", "nudges", "empty_answers", "pauses", "corrections", "next_call"}
)


def is_state(value: object) -> bool:
    """What a run had used and noted: it is used when the run is resumed."""
    if not isinstance(value, dict):
        return False
    state = cast("Line", value)
    streaks = state.get("streaks", {})
    return (
        all(_is_count(each) for name, each in state.items() if name in _COUNTED)
        and _is_usage(state.get("usage", {}))
        and isinstance(state.get("stop"), str | None)
        and isinstance(streaks, dict)
        and all(map(_is_count, cast("dict[str, object]", streaks).values()))
    )


def _is_duration(value: object) -> bool:
    return is_number(value) and cast("float", value) >= 0


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


_NEEDS: dict[str, dict[str, Check]] = {
    "tools": {"tools": _are_named},
    "history": {"keep": _is_count, "messages": _are_objects},
    "request": {"keep": _is_count, "messages": _are_objects},
    "delta": {"delta": _is_text},
    "failed": {"error": _is_text, "message": _is_text},
    "closed": {},
    "cancelled": {"call_id": _is_text},
    "result": {"call_id": _is_text, "key": _is_text, "result": _is_object},
    "approval": {"call_id": _is_text, "decision": _is_text},
    "waits": {"call_id": _is_text, "call": _is_call_number, "pending": _are_waiting},
    "inner": {"call": _is_call_number, "call_id": _is_text, "key": _is_text, "of": _is_object},
    "stage": {"stage": _is_text, "status": _is_text},
}
_MAY_HAVE: dict[str, dict[str, Check]] = {
    "request": {"system": _maybe(_is_object), "tools": _are_named, "state": _is_object},
    "delta": {"text": _is_text, "index": _is_count, "call": _is_object, "usage": _is_usage, "verdict": _is_verdict},
    "result": {"call": _is_call_number, "inner_calls": _is_count, "veto": _is_text},
    "waits": {"inner_calls": _is_count},
    "cancelled": {"call": _is_call_number},
    "event": {"keep": _is_count},
}
_DELTAS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "reasoning": ("text",),
    "call_opened": ("index", "name", "id"),
    "call_arguments": ("index", "text"),
    "call_ready": ("call",),
    "call_spoiled": ("call",),
    "call_withdrawn": ("index",),
    "server_call": ("call",),
    "server_call_opened": ("call",),
    "server_call_ended": ("call", "error"),
    "usage": ("usage",),
    "ended": ("verdict",),
    "attempt_failed": ("verdict", "wait", "elsewhere"),
    "restarted": ("dropped",),
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
}


_BY_NAME: dict[str, Check] = {"usage": _is_usage, "seconds": _is_duration, "wait": _is_duration}
_EVENTS: dict[str, tuple[dict[str, Check], frozenset[str]]] = {
    NAMES[kind]: (
        {each.name: _BY_NAME.get(each.name) or _BY_TYPE[str(each.type)] for each in fields(kind)},
        frozenset(each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING),
    )
    for kind in KINDS
}


def is_line(line: Line) -> bool:
    kind = line.get("line")
    if not isinstance(kind, str):
        return False
    if kind == "event":
        return _is_event(line)
    if kind == "pieces":
        return _are_pieces(line)
    if "at" in line and not is_number(line["at"]):
        return False
    if kind in _NEEDS and not (_is_count(line.get("turn")) and is_number(line.get("at"))):
        return False
    if not all(name in line and check(line[name]) for name, check in _NEEDS.get(kind, {}).items()):
        return False
    if not all(check(line[name]) for name, check in _MAY_HAVE.get(kind, {}).items() if name in line):
        return False
    if kind == "delta":
        needed = _DELTAS.get(line["delta"])
        # A delta of a later version is not played; it is left out.
        return needed is not None and all(name in line for name in needed) and _fits(line)
    return True


def _are_pieces(line: Line) -> bool:
    if not _is_count(line.get("turn")) or line.get("delta") not in ("text", "reasoning"):
        return False
    pieces = line.get("pieces")
    return isinstance(pieces, list) and all(map(_is_piece, cast("list[object]", pieces)))


def _is_piece(value: object) -> bool:
    if not isinstance(value, list) or len(cast("list[object]", value)) < 2:
        return False
    at, *texts = cast("list[object]", value)
    return is_number(at) and all(map(_is_text, texts))


def _fits(line: Line) -> bool:
    match line["delta"]:
        case "call_ready" | "call_spoiled":
            return _is_call(line["call"])
        case "call_opened":
            return _is_text(line["name"]) and _is_text(line["id"])
        case "attempt_failed":
            return is_number(line["wait"]) and _is_flag(line["elsewhere"]) and _is_flag(line.get("streamed", True))
        case "restarted":
            return _are_texts(line["dropped"])
        case _:
            return True


def _is_event(line: Line) -> bool:
    name = line.get("event")
    if not isinstance(name, str):
        return False
    if name not in _EVENTS:
        return True  # of a later version: readers ignore it
    if "at" in line and not is_number(line["at"]):
        return False
    checks, needed = _EVENTS[name]
    if not all(check(line[field]) for field, check in checks.items() if field in line):
        return False
    return needed.issubset(line) and all(
        check(line[each]) for each, check in _MAY_HAVE["event"].items() if each in line
    )


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
        found = True
        match line["line"]:
            case "delta":
                self._deltas.append(line)
            case "result":
                self._given[line["call_id"]] = line["result"]
            case "request" | "history":
                found = self._expand(line)
                if line["line"] == "request":
                    self._deltas, self._given = [], {}
            case "event" if line["event"] == "run_finished":
                found = self._expand(line)
            case _:
                pass
        return found

    def _expand(self, line: Line) -> bool:
        found = True
        for place, message in enumerate(cast("list[Line]", line.get("messages", []))):
            if message.get("as_heard"):
                streamed = self._streamed_message()
                line["messages"][place] = streamed or {"role": "assistant", "content": ""}
                found = found and streamed is not None
            elif isinstance(message.get("results"), list):
                line["messages"][place] = {**message, "results": [self._result(each) for each in message["results"]]}
        found, self._lost = found and not self._lost, False
        return found

    def _result(self, saved: Any) -> Any:
        if not isinstance(saved, dict) or "as_given" not in saved:
            return cast("Any", saved)
        id = cast("Line", saved)["as_given"]
        given = self._given.get(id) if isinstance(id, str) else None
        if given is None:
            self._lost = True
            return {"call_id": str(id), "content": [{"type": "text", "text": LOST}], "metadata": {"error": True}}
        return given

    def _streamed_message(self) -> Line | None:
        so_far = PartialResponse()
        try:
            for line in self._deltas:
                delta = read_delta(line, so_far)
                if isinstance(delta, Ended):
                    return to_json([delta.message or so_far.message])[0]
                so_far.feed(delta)
        except Exception:  # noqa: BLE001 - whatever is wrong with the lines, there is no message
            pass
        return None
