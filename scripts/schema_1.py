"""Recordings of schema 1: every line becomes the corresponding lines of schema 2.

In schema 1 a call was identified by its turn and its id, which repeats when a response breaks off and is retried. The
outcome of a call was in flags of `call_finished`. Here each call gets its number when it is written, as in a run of
today, and the flags become events of their own; those have the number and the time of the event beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from unbroken.tools.caller import fingerprint
from unbroken.tools.context import CallContext
from unbroken.tools.execution import NOT_ASKED_AGAIN
from unbroken.trajectory.line_checks import is_line
from unbroken.trajectory.lines import Line
from unbroken_wires.messages import Outcome, ToolCall

_CANCELLED, _TIMED_OUT = "Error: cancelled: ", "Error: Execution timeout after "
_FLAGS = ("executed", "adopted_from", "dropped", "uncertain")
_NEW: dict[str, Line] = {
    name: {"call": 0, "name": "", "outcome": "done"}
    for name in ("call_started", "call_progress", "call_finished", "approval_asked", "todo_updated", "tool_late")
}
"""What the events of calls did not have."""
_BESIDE = ("run", "turn", "seq", "time")
_ENDS = frozenset({"run_finished", "run_failed"})


@dataclass(slots=True)
class _Call:
    number: int
    id: str
    name: str
    arguments: dict[str, Any] | None
    written: bool = False
    """The lines say so."""
    started: bool = False


@dataclass(slots=True)
class Upgrade:
    """The state of one recording. `feed` takes its lines in order, without the first."""

    run: str
    _next_call: int = 0
    _turn: int = -1
    _calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    """Of the answer that is being read, by id."""
    _by_index: dict[int, _Call] = field(default_factory=dict[int, _Call])
    _lost: dict[str, _Call] = field(default_factory=dict[str, _Call])
    """Those that had started in answers of this turn that broke off."""
    _before: dict[str, _Call] = field(default_factory=dict[str, _Call])
    """The calls of this turn as they were when the run was resumed."""
    _running: dict[str, list[_Call]] = field(default_factory=dict[str, list[_Call]])
    """Those of this turn that have started, by id, in the order of their starts."""
    _by_start: dict[int, _Call] = field(default_factory=dict[int, _Call])
    """The same, by the number of the event that says so."""
    _coming: list[Line] = field(default_factory=list[Line])
    """Events that stand before the next one."""

    def feed(self, line: Line) -> list[Line]:
        """The lines that replace it; empty if it cannot be read."""
        kind = line.get("line")
        if kind == "event":
            return self._event(line)
        if kind in ("result", "cancelled"):
            line = self._about_execution(line)
        elif kind == "tools":
            line = _tools(line)
        if not is_line(line):
            return []
        if kind == "delta":
            self._delta(line)
        elif kind == "request":
            self._begin(line["turn"])
        elif kind == "resumed":
            self._coming.clear()
            self._drop_lost()
            self._before |= {id: call for id, call in self._calls.items() if call.written}
            self._calls, self._by_index = {}, {}
        return [line]

    # What a model says

    def _begin(self, turn: int) -> None:
        if turn != self._turn:
            self._turn = turn
            for kept in (self._calls, self._by_index, self._lost, self._before, self._running):
                kept.clear()

    def _delta(self, line: Line) -> None:
        match line["delta"]:
            case "call_ready":
                saved: Line = line["call"]
                id, index = saved.get("id"), saved.get("index", 0)
                if isinstance(id, str) and isinstance(index, int) and id not in self._calls:
                    self._by_index[index] = self._write(id, saved["name"], saved["arguments"])
            case "call_withdrawn":
                if (call := self._by_index.pop(line["index"], None)) is not None:
                    self._calls.pop(call.id, None)
                    self._drop(call, "it was no call of its own")
            case "restarted":
                for id, call in self._calls.items():
                    if call.started:
                        self._lost[id] = call
                    else:
                        self._drop(call, "the answer broke off")
                self._calls, self._by_index = {}, {}
            case _:
                pass

    def _write(self, id: str, name: str, arguments: dict[str, Any] | None) -> _Call:
        call = self._calls[id] = _Call(self._next_call, id, name, arguments)
        self._next_call += 1
        self._coming.append(_of(call, "call_written", arguments=arguments))
        before = self._before.pop(id, None)
        if before is not None and (before.name, before.arguments) == (name, arguments):
            self._coming.append(_of(call, "call_adopted", adopted=before.number))
        return call

    def _drop(self, call: _Call, reason: str) -> None:
        self._coming.append(_of(call, "call_dropped", reason=reason))

    def _call(self, id: str, line: Line) -> _Call:
        """The call with this id. In a resumed run some calls were written before the recording began."""
        call = self._calls.get(id) or self._before.get(id)
        if call is None:
            arguments = line.get("arguments")
            known = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else None
            call = self._write(id, _text(line, "name"), known)
        return call

    # What a tool gives

    def _about_execution(self, line: Line) -> Line:
        """A line about a call that had started, with its number."""
        call = self._execution(line)
        rest = {name: value for name, value in line.items() if name != "start"}
        return rest if call is None else {**rest, "call": call.number}

    def _execution(self, line: Line) -> _Call | None:
        start = line.get("start")
        if isinstance(start, int) and start in self._by_start:
            return self._by_start[start]
        calls = self._running.get(_text(line, "call_id"), [])
        if len(calls) > 1 and isinstance(line.get("key"), str):
            calls = [call for call in calls if line["key"].startswith(self._key(call))] or calls
        return calls[-1] if calls else None

    def _key(self, call: _Call) -> str:
        """The idempotency key of a call, without the number among identical ones in which it ends."""
        mark = fingerprint(ToolCall(call.id, call.name, call.arguments))
        return CallContext[Any](self.run, self._turn, fingerprint=mark).key.removesuffix("1")

    # Events

    def _event(self, line: Line) -> list[Line]:
        name = _text(line, "event")
        if name == "said":
            line = {**line, "event": "text_finished"}
        if not is_line({**_NEW.get(name, {}), **line}):
            return []
        if not all(field in line for field in _BESIDE):
            return [line]  # of a later version
        found = self._upgraded(name, line)
        if name == "request_sent" and line["turn"] != self._turn:
            self._drop_lost()
            self._begin(line["turn"])
        elif name in _ENDS:
            self._drop_lost()
        coming, self._coming = [{**each, **_beside(line)} for each in self._coming], []
        for call in (*self._calls.values(), *self._before.values()):
            call.written = True
        return [*coming, *found]

    def _drop_lost(self) -> None:
        for call in self._lost.values():
            self._drop(call, NOT_ASKED_AGAIN)
        self._lost.clear()

    def _upgraded(self, name: str, line: Line) -> list[Line]:
        match name:
            case "tool_calls_detected":
                return [{**line, "calls": self._numbered(line.get("calls", []))}]
            case "run_finished":
                return [{**line, "pending": self._numbered(line.get("pending", []))}]
            case "call_started":
                call = self._call(line["call_id"], line)
                call.started = True
                self._by_start[line["seq"]] = call
                self._running.setdefault(call.id, []).append(call)
                return [{**line, "call": call.number}]
            case "call_finished":
                return self._finished(line["call_id"], line)
            case "approval_asked":
                return [{**line, "call": self._call(line["call_id"], line).number}]
            case "call_progress" | "todo_updated" | "tool_late":
                call = self._execution(line) or self._call(line["call_id"], line)
                return [{"name": call.name, **self._about_execution(line), "call": call.number}]
            case _:
                return [line]

    def _numbered(self, calls: list[Line]) -> list[Line]:
        return [
            {"call": self._call(saved["id"], saved).number, **saved} if isinstance(saved.get("id"), str) else saved
            for saved in calls
        ]

    def _finished(self, id: str, line: Line) -> list[Line]:
        rest = {name: value for name, value in line.items() if name not in _FLAGS}
        rest["outcome"] = _outcome(line)
        if line.get("dropped") is True and (call := self._lost.pop(id, None)) is not None:
            dropped = _of(call, "call_dropped", reason=NOT_ASKED_AGAIN)
            return [{**rest, "call": call.number}, {**dropped, **_beside(line)}]
        call, adopted = self._call(id, line), line.get("adopted_from")
        lost = self._lost.pop(adopted, None) if isinstance(adopted, str) else None
        if lost is not None:
            self._coming.append(_of(call, "call_adopted", adopted=lost.number))
        return [{**rest, "call": call.number}]


def _beside(line: Line) -> Line:
    """The fields that an event shares with the one beside it."""
    return {name: line[name] for name in _BESIDE}


def _of(call: _Call, event: str, **fields: Any) -> Line:
    return {"line": "event", "event": event, "call": call.number, "call_id": call.id, "name": call.name, **fields}


def _outcome(line: Line) -> Outcome:
    text = _text(line, "text")
    if line.get("uncertain") is True:
        return "unknown"
    if line.get("error") is not True:
        return "done"
    if line.get("executed") is False:
        return "not_executed"
    if text.startswith(_CANCELLED):
        return "cancelled"
    return "timed_out" if text.startswith(_TIMED_OUT) else "failed"


def _tools(line: Line) -> Line:
    """Before tools could declare `overlap`, all of them could overlap."""
    tools = line.get("tools")
    if not isinstance(tools, list):
        return line
    each = [
        {"overlap": True, **cast("Line", tool)} if isinstance(tool, dict) else tool
        for tool in cast("list[object]", tools)
    ]
    return {**line, "tools": each}


def _text(line: Line, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""
