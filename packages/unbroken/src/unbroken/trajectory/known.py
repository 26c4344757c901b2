"""What the lines of a recording have said so far. No line repeats it: the writer leaves it out, the reader fills it in.

The arguments of a call are in the answer that contains it, its result is in the line `result`, the text of a turn is in
the pieces of its stream; the id and the name of a call are in its first line. A field with its default value is left
out, and so are the turn and the number of an event if they follow from the line before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from unbroken.events import (
    KINDS,
    NAMES,
    ApprovalAsked,
    CallEvent,
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    RequestSent,
    RunStarted,
    TextFinished,
    ToolCallsDetected,
)
from unbroken.trajectory.lines import Line
from unbroken.trajectory.short_values import (
    OWN_FIELDS,
    USUAL_TOOL,
    full_call,
    full_state,
    same,
    short_call,
    short_state,
    text_of,
    without,
)
from unbroken_wires.wires.json_access import as_dict

_OF_CALLS = frozenset(kind for kind in KINDS if issubclass(kind, CallEvent))
_KINDS = {name: kind for kind, name in NAMES.items()}

_OFTEN_KNOWN: dict[type[Event], frozenset[str]] = {
    RunStarted: frozenset({"model", "schedule"}),
    CallWritten: frozenset({"arguments"}),
    CallStarted: frozenset({"arguments"}),
    ApprovalAsked: frozenset({"arguments"}),
    ToolCallsDetected: frozenset({"calls", "count", "names"}),
    CallFinished: frozenset({"text"}),
    TextFinished: frozenset({"text"}),
}
_ALWAYS_WRITTEN = {
    kind: tuple((name, default) for name, default in own if name not in _OFTEN_KNOWN.get(kind, ()))
    for kind, own in OWN_FIELDS.items()
}
"""The fields that are in the line of an event unless they have their default value."""
_OF_TURNS = frozenset(
    {"tools", "history", "request", "delta", "pieces", "failed", "closed", "cancelled", "result", "approval", "waits"}
    | {"inner", "stage", "time_up"}
)
"""The lines that have a turn."""


@dataclass(slots=True, eq=False)
class _Call:
    id: str
    name: str
    arguments: Any = None
    """As the model wrote them."""
    given: str | None = None
    """The text of its result."""


class Known:
    """One is kept by the writer of a recording, another one by each reader. Both learn the same from a line."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.run: object = head.get("run", "")
        self.agent: object = head.get("agent_name", "main")
        self.forget(head)

    def forget(self, begin: Mapping[str, Any]) -> None:
        """The recording begins, or another process continues it: it knows nothing of the lines before."""
        self.model: object = begin.get("model", "")
        self.schedule: object = begin.get("schedule") or as_dict(begin.get("settings")).get("schedule", "")
        self.turn: object = 0
        self.seq = 0
        """The number of the next event; below 0 if it cannot be counted."""
        self.text: list[str] | None = []
        """What was streamed of the text of this answer. None if it is not known exactly."""
        self._silent = False
        """The answer is a second one, which is emitted when it is complete."""
        self._calls: dict[object, _Call] = {}
        self._written: dict[object, Any] = {}
        """The arguments of the calls of this answer, by their ids."""
        self._last_written: tuple[object, object] = "", ""
        """The id and the name of the last of these calls."""
        self._given: dict[object, str] = {}
        """The text of the last result of each id."""
        self._inner: dict[object, Line] = {}
        """Which call runs an agent: `turn`, `call_id` and `key`, by its number."""
        self._several: object = []
        """The names of the calls of the last answer that had several."""

    def streamed(self, name: object, texts: list[str], joined: bool = False) -> None:
        """Pieces of the answer that arrived together: one event, unless it is emitted later."""
        if name == "text" and self.text is not None:
            self.text += texts
        if not (self._silent or joined) and self.seq >= 0:
            self.seq += 1

    def lose_count(self) -> None:
        """From here on, until an event has its number, the pieces are not written as they are emitted."""
        self.seq, self.text = -1, None

    # Writing

    def wrote(self, id: str, arguments: object) -> None:
        """The arguments of a call that the model has just written: the object that the events of the call have, too."""
        self._written[id] = arguments

    def shorten_event(self, event: Event) -> Line:
        kind = event.__class__
        line: Line = {"line": "event", "event": NAMES[kind], "time": event.time}
        begins = kind is RequestSent or kind is RunStarted  # what is lost before it does no harm to what follows
        if begins or event.turn != self.turn:
            self.turn = line["turn"] = event.turn
        if begins or event.seq != self.seq:
            line["seq"] = event.seq
        self.seq = event.seq + 1
        values = vars(event)
        if kind in _OF_CALLS:
            number, id, name = values["call"], values["call_id"], values["name"]
            line["call"] = number
            known = self._calls.get(number)
            if known is None or known.id != id or known.name != name:
                if kind is not CallWritten or self._last_written != (id, name):
                    line["call_id"], line["name"] = id, name
                self._calls[number] = _Call(id, name)
        for name, default in _ALWAYS_WRITTEN[kind]:
            value = values[name]
            if value != default:
                line[name] = value
        shorten = self._SHORTEN.get(kind)
        if shorten is not None:
            shorten(self, event, line)
        return line

    def _shorten_written(self, event: CallWritten, line: Line) -> None:
        self._last_written = "", ""
        self._calls[event.call].arguments = event.arguments
        if event.call_id in self._written:
            if not same(self._written[event.call_id], event.arguments):
                line["arguments"] = event.arguments
        elif event.arguments is not None:
            line["arguments"] = event.arguments

    def _shorten_arguments(self, event: CallStarted | ApprovalAsked, line: Line) -> None:
        written = self._calls[event.call].arguments
        if not same({} if written is None else written, event.arguments):
            line["arguments"] = event.arguments

    def _shorten_detected(self, event: ToolCallsDetected, line: Line) -> None:
        known = all(self._is_known(call) for call in event.calls)
        line["calls"] = [call["call"] for call in event.calls] if known else event.calls
        if event.count != len(event.calls):
            line["count"] = event.count
        if event.names != [call["name"] for call in event.calls]:
            line["names"] = event.names

    def _is_known(self, call: Mapping[str, Any]) -> bool:
        known = self._calls.get(call["call"])
        return (
            known is not None
            and len(call) == 4
            and (known.id, known.name) == (call["id"], call["name"])
            and same(known.arguments, call["arguments"])
        )

    def _shorten_finished(self, event: CallFinished, line: Line) -> None:
        given = self._calls[event.call].given
        if given is None and event.duplicate_of:
            given = self._given.get(event.duplicate_of)
        if given != event.text:
            line["text"] = event.text

    def _shorten_text(self, event: TextFinished, line: Line) -> None:
        if self.text is None or "".join(self.text) != event.text:
            line["text"] = event.text

    def _shorten_start(self, event: RunStarted, line: Line) -> None:
        if event.model != self.model:
            line["model"] = event.model
        if event.schedule != self.schedule:
            line["schedule"] = event.schedule

    _SHORTEN: ClassVar[dict[type[Event], Callable[[Known, Any, Line], None]]] = {
        RunStarted: _shorten_start,
        CallWritten: _shorten_written,
        CallStarted: _shorten_arguments,
        ApprovalAsked: _shorten_arguments,
        ToolCallsDetected: _shorten_detected,
        CallFinished: _shorten_finished,
        TextFinished: _shorten_text,
    }

    def shorten(self, line: Line) -> Line:
        """The same for any other line, which it changes. `Known` may keep what is in it."""
        if line["line"] in _OF_TURNS:
            if line["turn"] == self.turn and line["line"] != "request":
                del line["turn"]
            else:
                self.turn = line["turn"]
        match line["line"]:
            case "delta":
                self._shorten_delta(line)
            case "result":
                self._shorten_result(line)
            case "request":
                self._begin_answer()
                if not line["messages"]:
                    del line["messages"]
                if line.get("state"):
                    line["state"] = short_state(line["state"])
            case "tools":
                line["tools"] = [without(USUAL_TOOL, tool) for tool in line["tools"]]
            case "stage":
                self._shorten_stage(line)
            case "resumed":
                self.forget(line)
            case _:
                pass
        return line

    def _begin_answer(self) -> None:
        self.text, self._silent, self._written, self._last_written = [], False, {}, ("", "")

    def _shorten_delta(self, line: Line) -> None:
        match line["delta"]:
            case "call_ready" | "call_spoiled":
                saved: Line = line["call"]
                self._written[saved["id"]] = saved["arguments"]
                self._last_written = saved["id"], saved["name"]
                line["call"] = short_call(saved)
            case "restarted":
                self.text, self._silent, self._written = [], True, {}
            case _:
                pass

    def _shorten_result(self, line: Line) -> None:
        known, saved = self._calls.get(line.get("call", -1)), line["result"]
        text = text_of(saved)
        self._given[line["call_id"]] = text
        if saved.get("call_id") == line["call_id"]:
            del saved["call_id"]
        if known is not None:
            known.given = text
            if saved.get("name", "") == known.name:
                saved.pop("name", None)
            else:
                saved.setdefault("name", "")
            if line["call_id"] == known.id:
                del line["call_id"]

    def _shorten_stage(self, line: Line) -> None:
        names = line["tool_names"]
        if line["agent_name"] == self.agent:
            del line["agent_name"]
        if line["tool_count"] == len(names):
            del line["tool_count"]
        if names == self._several:
            del line["tool_names"]
        self._several = names

    # Reading

    def complete(self, line: Line) -> Line:
        """The complete line. Raises anything if its fields are not what a writer left in it."""
        if line["line"] == "event":
            return self._complete_event(line)
        if line["line"] in _OF_TURNS:
            line = {**line, "turn": line.get("turn", self.turn)}
            self.turn = line["turn"]
        match line["line"]:
            case "delta":
                self._complete_delta(line)
            case "pieces":
                for _, *texts in line["pieces"]:
                    self.streamed(line["delta"], texts)
            case "result":
                self._complete_result(line)
            case "request":
                self._begin_answer()
                line.setdefault("messages", [])
                if line.get("state"):
                    line["state"] = full_state(line["state"])
            case "tools":
                line["tools"] = [{**USUAL_TOOL, **tool} for tool in line["tools"]]
            case "stage":
                self._several = line.setdefault("tool_names", self._several)
                line.setdefault("agent_name", self.agent)
                line.setdefault("tool_count", len(cast("list[object]", self._several)))
            case "inner":
                known = self._inner.get(line["call"], {})
                line = {**line, **{name: value for name, value in known.items() if name not in line}}
                self._inner[line["call"]] = {name: line[name] for name in ("call_id", "key")}
            case "resumed":
                self.forget(line)
            case _:
                pass
        return line

    def _complete_delta(self, line: Line) -> None:
        match line["delta"]:
            case "text" | "reasoning":
                self.streamed(line["delta"], [line["text"]])
            case "call_ready" | "call_spoiled":
                saved: Line = full_call(line["call"])
                line["call"], self._written[saved["id"]] = saved, saved["arguments"]
                self._last_written = saved["id"], saved["name"]
            case "restarted":
                self.text, self._silent, self._written = [], True, {}
            case _:
                pass

    def _complete_result(self, line: Line) -> None:
        known = self._calls.get(line.get("call", -1))
        if known is not None:
            line.setdefault("call_id", known.id)
        line.setdefault("call_id", "")  # its line is lost
        saved: Line = {"call_id": line["call_id"], **line["result"]}
        if known is not None:
            saved.setdefault("name", known.name)
            known.given = text_of(saved)
        if saved.get("name") == "":
            del saved["name"]
        line["result"] = saved
        self._given[line["call_id"]] = text_of(saved)

    def _complete_event(self, line: Line) -> Line:
        kind = _KINDS.get(line["event"])
        full: Line = {"line": "event", "event": line["event"], "run": self.run}
        full["turn"] = self.turn = line.get("turn", self.turn)
        full["seq"] = line.get("seq", self.seq)
        self.seq = full["seq"] + 1
        known: _Call | None = None
        if "call" in line:
            known = self._calls.get(line["call"])
            if known is None or "call_id" in line:
                id, name = line.get("call_id"), line.get("name")
                if kind is CallWritten and "call_id" not in line:
                    id, name = self._last_written
                known = self._calls[line["call"]] = _Call(_text(id), _text(name))
            full["call_id"], full["name"] = known.id, known.name
        if kind is not None:
            self._fill_in(kind, known, line, full)
        return {**full, **line} if kind is not ToolCallsDetected else {**line, **full}

    def _fill_in(self, kind: type[Event], known: _Call | None, line: Line, full: Line) -> None:
        for name, default in OWN_FIELDS[kind]:
            if name not in line:
                full[name] = copy(default)
        if kind is RunStarted:
            full |= {"model": line.get("model", self.model), "schedule": line.get("schedule", self.schedule)}
        elif kind is TextFinished and "text" not in line:
            full["text"] = "".join(self.text or ())
        elif kind is ToolCallsDetected:
            calls = [self._listed(each) for each in line.get("calls", ())]
            full |= {"calls": calls, "count": line.get("count", len(calls))}
            full["names"] = line.get("names") or [call["name"] for call in calls]
        elif known is not None and kind is CallWritten:
            self._last_written = "", ""
            if "arguments" not in line:
                full["arguments"] = self._written.get(known.id)
            known.arguments = line.get("arguments", full.get("arguments"))
        elif known is not None and "arguments" not in line and kind in (CallStarted, ApprovalAsked):
            full["arguments"] = known.arguments or {}
        elif known is not None and "text" not in line and kind is CallFinished:
            full["text"] = known.given if known.given is not None else self._given.get(line.get("duplicate_of"), "")

    def _listed(self, call: Any) -> Line:
        if isinstance(call, dict):
            return cast("Line", call)
        known = self._calls.get(call, _Call("", ""))
        return {"call": call, "id": known.id, "name": known.name, "arguments": known.arguments}


def _text(value: object) -> str:
    """Empty if its line is lost."""
    return value if isinstance(value, str) else ""
