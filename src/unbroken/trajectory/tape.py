"""The tape of a recording: what went into the run, in its order, and how it is given out again.

An input is given when its time has come, when all before it were given, and when the run has said all that it had said
by then. Nothing is known here of models and tools: `replay` stands between them and the tape.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.virtual import VirtualLoop

PlayedClock: TypeAlias = Literal["virtual", "real"]

SAID_BY_TOOLS = ("call_progress", "todo_updated", "tool_late")
"""Events that a tool causes: they are inputs too."""
_NEAR = 1e-9


@dataclass(slots=True)
class Input:
    """Something that went into the run."""

    at: float
    line: Line
    said_before: int
    """How many events and starts the run had said by then."""
    place: int = 0


@dataclass(slots=True)
class Exchange:
    """One request, and what came of it."""

    request: RecordedRequest
    inputs: list[Input]
    whole: bool = False
    """It came to its end: an end, or an error."""


@dataclass(slots=True)
class Execution:
    """A tool that ran: what it reported, and what it gave."""

    call_id: str
    inputs: list[Input]
    whole: bool = False


class Tape:
    """Gives inputs in their order, each at its time."""

    def __init__(self, inputs: list[Input], clock: PlayedClock, speed: float) -> None:
        self._inputs = sorted(inputs, key=lambda each: each.place)
        for place, each in enumerate(self._inputs):
            each.place = place
        self._virtual = clock == "virtual"
        self._speed = speed
        self._ordered = False
        self._began = 0.0
        self._next = 0
        self._said = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def left(self) -> int:
        return len(self._inputs) - self._next

    def begin(self, ordered: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._ordered = ordered and self._virtual
        self._began = self._loop.time()
        if self._ordered and isinstance(self._loop, VirtualLoop):
            self._loop.when_idle = self._unblock

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._loop, VirtualLoop):
            self._loop.when_idle = None

    def said(self) -> None:
        """The run has said something: what waited for it may come."""
        self._said += 1
        self._give()

    async def take(self, each: Input) -> None:
        assert self._loop is not None
        if not self._ordered:
            await self._wait_until(self._due(each))
            self._next = max(self._next, each.place + 1)
            return
        if each.place < self._next:  # it was passed over
            await self._wait_until(self._due(each))
            return
        if each.place == self._next and self._may(each):
            self._next += 1
            self._give()
            return
        self._waiting[each.place] = future = self._loop.create_future()
        self._give()
        try:
            await future
        finally:
            self._waiting.pop(each.place, None)

    async def _wait_until(self, due: float) -> None:
        assert self._loop is not None
        # At once there is nothing to wait for, but others must get their turn between two pieces of a stream.
        await asyncio.sleep(max(due - self._loop.time(), 0.0))

    def _due(self, each: Input) -> float:
        return round(self._began + each.at / self._speed, 9)

    def _is_due(self, each: Input) -> bool:
        assert self._loop is not None
        return self._due(each) - self._loop.time() < _NEAR

    def _may(self, each: Input) -> bool:
        return self._said >= each.said_before and self._is_due(each)

    def _give(self) -> None:
        while self._next < len(self._inputs) and self._next in self._waiting:
            each = self._inputs[self._next]
            if not self._may(each):
                self._look_at(each)
                return
            self._next += 1
            future = self._waiting[each.place]
            if not future.done():
                future.set_result(None)

    def _look_at(self, each: Input) -> None:
        """Look again when its time has come."""
        assert self._loop is not None
        if self._is_due(each):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due(each), self._give)

    def _unblock(self) -> bool:
        """Nothing else will happen now. Who waits for the next input gets it, though less was said than then; an input
        that nobody wants is passed over."""
        if not self._waiting:
            return False
        each = self._inputs[min(self._waiting)]
        if not self._is_due(each):
            self._look_at(each)
            return False
        self._next, self._said = each.place, max(self._said, each.said_before)
        self._give()
        return True


def read_tape(
    recording: Recording,
) -> tuple[list[Exchange], dict[str, list[Execution]], dict[str, list[Input]]]:
    """The requests with what came of them, the executions by their keys, the decisions by the ids of their calls."""
    exchanges: list[Exchange] = []
    executions: dict[str, list[Execution]] = {}
    running: dict[str, Execution] = {}
    approvals: dict[str, list[Input]] = {}
    requests = iter(recording.requests)
    said = 0
    for place, line in enumerate(recording.lines):
        each = Input(line.get("at", 0.0), line, said, place)
        match line["line"]:
            case "request":
                exchanges.append(Exchange(next(requests), []))
            case "delta" | "failed" if exchanges:
                exchanges[-1].inputs.append(each)
                exchanges[-1].whole = line["line"] == "failed" or line["delta"] == "ended"
            case "started":
                execution = running[line["call_id"]] = Execution(line["call_id"], [])
                executions.setdefault(line["key"], []).append(execution)
                said += 1
            case "result" if line["call_id"] in running:
                execution = running[line["call_id"]]
                execution.inputs.append(each)
                execution.whole = True
            case "approval":
                approvals.setdefault(line["call_id"], []).append(each)
            case "event" if line.get("event") in SAID_BY_TOOLS:
                each.at = _at(recording, line)
                if (execution := running.get(line.get("call_id", ""))) is not None:
                    execution.inputs.append(each)
            case "event":
                said += 1
            case "resumed":
                # Of what its process was busy with when it died nothing came, or it came again.
                if _died_before(recording, place):
                    exchanges = [exchange for exchange in exchanges if exchange.whole]
                    _drop_unfinished(executions)
                else:
                    break
            case _:
                pass
    return exchanges, executions, approvals


def _died_before(recording: Recording, place: int) -> bool:
    """Had the run not ended in any way before this line?"""
    before = recording.lines[:place]
    ends = [line for line in before if line["line"] == "event" and line.get("event") in ("run_finished", "run_failed")]
    return not ends


def _drop_unfinished(executions: dict[str, list[Execution]]) -> None:
    for key, some in list(executions.items()):
        executions[key] = [each for each in some if each.whole]
        if not executions[key]:
            del executions[key]


def _at(recording: Recording, line: Line) -> float:
    """An event has its own time; that of its inputs is counted from the beginning."""
    return round(max(line.get("time", 0.0) - recording.time, 0.0), 9)
