"""The tape of a recording: what went into the run, in its order, and how it is given out again.

An input is given when its time has come, when all before it were given, and when the run has said all that it had said
by then. Nothing is known here of models and tools: `replay` stands between them and the tape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unbroken.events import NAMES
from unbroken.trajectory.lines import CAUSED_BY_TOOLS, Line
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken.virtual import VirtualLoop

_CAUSED_BY_TOOLS = [NAMES[kind] for kind in CAUSED_BY_TOOLS]
_NEAR = 1e-9
AFTER = 60.0
"""Seconds after its last input in which a run ends what it does not wait for any longer."""
PATIENCE = 0.25
"""Seconds of real time after which an input is given although less was said before it than then."""


@dataclass(slots=True)
class Input:
    """Something that went into the run."""

    at: float
    line: Line
    said_before: int
    """How many events the run had said by then."""
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

    def __init__(self, inputs: list[Input], speed: float) -> None:
        self._inputs = sorted(inputs, key=lambda each: each.place)
        for place, each in enumerate(self._inputs):
            each.place = place
        self._speed = speed
        self._ordered = False
        self._began = 0.0
        self._next = 0
        self._said = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._woken = 0
        """Who has been given something and has not gone on yet: nobody overtakes them."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def left(self) -> int:
        return len(self._inputs) - self._next

    def begin(self, ordered: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._ordered = ordered
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
        if each.place == self._next and self._may(each) and not self._woken:
            self._next += 1
            self._give()
            return
        self._waiting[each.place] = future = self._loop.create_future()
        self._give()
        try:
            if future.done():  # those who were given theirs before go on first
                await asyncio.sleep(0)
            await future
        finally:
            self._waiting.pop(each.place, None)
            self._woken -= future.done() and not future.cancelled()

    async def until_its_end(self) -> None:
        """Until nothing more can come."""
        assert self._loop is not None
        last = max((each.at for each in self._inputs), default=0.0)
        await self._wait_until(self._began + last / self._speed + AFTER)

    def pass_by(self, each: Input) -> None:
        """It is taken, and nobody waits for it."""
        if each.place == self._next:
            self._next += 1
            self._give()

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
        if self._next not in self._waiting and self._waiting:
            self._look_at(self._inputs[min(self._waiting)])
        while self._next < len(self._inputs) and self._next in self._waiting:
            each = self._inputs[self._next]
            if not self._may(each):
                self._look_at(each)
                return
            self._next += 1
            future = self._waiting[each.place]
            if not future.done():
                future.set_result(None)
                self._woken += 1

    def _look_at(self, each: Input) -> None:
        """Look again when its time has come."""
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_due(each):
            self._timer = self._loop.call_at(self._due(each), self._give)
        elif not isinstance(self._loop, VirtualLoop):  # which says when nothing will happen any more
            self._timer = self._loop.call_later(PATIENCE, self._unblock)

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


def came_together(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """The pieces of one answer, those in one list that were heard before the run acted on any of them: they have one
    time, and nothing was said or came in between. An error comes alone."""
    together: list[Input] = []
    for each in inputs:
        if together and not _came_with(each, together[-1]):
            yield together
            together = []
        together.append(each)
    if together:
        yield together


def _came_with(each: Input, last: Input) -> bool:
    if each.line["line"] != "delta":
        return False
    return (each.at, each.said_before, each.place) == (last.at, last.said_before, last.place + 1)


def read_tape(
    recording: Recording,
) -> tuple[list[Exchange], dict[tuple[int, str], list[Execution]], dict[str, list[Input]]]:
    """The requests with what came of them, the executions by turn and id, the decisions by the ids of their calls."""
    exchanges: list[Exchange] = []
    executions: dict[tuple[int, str], list[Execution]] = {}
    running: dict[str, Execution] = {}
    approvals: dict[str, list[Input]] = {}
    requests = iter(recording.requests)
    said, died = 0, False
    last = nobody = 0.0
    """When something was heard last; how long nobody was there in all: that is not waited for again."""
    for place, line in enumerate(recording.lines):
        at = line.get("at", last)
        if line["line"] == "resumed":
            nobody += max(at - last, 0.0)
        last = max(last, at)
        each = Input(round(at - nobody, 9), line, said, place)
        match line["line"]:
            case "request":
                request = next(requests)
                if died and exchanges and exchanges[-1].request.turn == request.turn:
                    # Its process died, and the last request came once more, with all that came of it.
                    exchanges.pop()
                    executions = {key: some for key, some in executions.items() if key[0] != request.turn}
                died = False
                exchanges.append(Exchange(request, []))
            case "delta" | "failed" if exchanges:
                exchanges[-1].inputs.append(each)
                exchanges[-1].whole = line["line"] == "failed" or line["delta"] == "ended"
            case "result" if (execution := running.get(line["call_id"])) is not None:
                execution.inputs.append(each)
                execution.whole = True
            case "approval":
                approvals.setdefault(line["call_id"], []).append(each)
            case "event" if line.get("event") in _CAUSED_BY_TOOLS:
                if (execution := running.get(line.get("call_id", ""))) is not None:
                    execution.inputs.append(each)
            case "event":
                said += 1
                if line["event"] == "call_started":
                    execution = running[line["call_id"]] = Execution(line["call_id"], [])
                    executions.setdefault((line["turn"], line["call_id"]), []).append(execution)
            case "resumed":
                if _ended_before(recording, place):
                    break  # it waited for somebody: what was answered then is another run of the loop
                died = True
            case _:
                pass
    return exchanges, executions, approvals


def _ended_before(recording: Recording, place: int) -> bool:
    """Had the run ended in any way before this line?"""
    ends = ("run_finished", "run_failed")
    return any(line["line"] == "event" and line["event"] in ends for line in recording.lines[:place])
