"""The inputs of a recorded run, in order, and how they are replayed.

An input is delivered when its time has come, when all before it were delivered, and when the run has emitted all events
that it had emitted by then; and then at once, before the run does anything else. So its place among the events is the
recorded one, however many things happen in one instant. This module knows nothing about models and tools: `replay`
connects them to the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from unbroken.clock import VirtualLoop
from unbroken.events import NAMES
from unbroken.trajectory.lines import CAUSED_BY_TOOLS, Line
from unbroken.trajectory.recording import RecordedRequest, Recording

_CAUSED_BY_TOOLS = [NAMES[kind] for kind in CAUSED_BY_TOOLS]
_NEAR = 1e-9
AFTER = 60.0
"""Seconds that a run has after its last input to end what it no longer waits for."""
PATIENCE = 0.25
"""Seconds of real time after which an input is delivered although fewer events came before it than in the recording."""


@dataclass(slots=True)
class Input:
    """Something that went into the run."""

    at: float
    line: Line
    said_before: int
    """How many events the run had emitted by then."""
    place: int = 0


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    request: RecordedRequest
    inputs: list[Input]
    whole: bool = False
    """The answer is complete: it has an end, or an error."""


@dataclass(slots=True)
class Execution:
    """A tool that ran: what it reported, and its result."""

    call: int
    """The number of the call that started it."""
    inputs: list[Input]
    started: bool = True
    """False if its result was known before it ran."""


class InputQueue:
    """Delivers inputs in order, each at its time."""

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
        self._waking: asyncio.Future[None] | None = None
        """The taker of an input that has not continued yet: nobody overtakes it."""
        self.over = False
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
            self._loop.enters_first = True

    def end(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._loop, VirtualLoop):
            self._loop.when_idle = None
            self._loop.enters_first = False

    def said(self) -> None:
        """The run has emitted an event: inputs that waited for it may follow."""
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
        at_once = each.place == self._next and not self._waking and self._may(each)
        entering = isinstance(self._loop, VirtualLoop) and self._loop.entering
        if at_once and not entering:
            self._next += 1
            self._give()
            return
        self._waiting[each.place] = future = self._loop.create_future()
        if at_once and isinstance(self._loop, VirtualLoop):
            self._loop.call_first(self._give)  # tools that the run has started must begin before this input arrives
        else:
            self._give()
        try:
            await future
        finally:
            self._waiting.pop(each.place, None)
            if future is self._waking:
                self._waking = None
                self._give()

    async def take_despite_cancel(self, each: Input) -> None:
        """The tool was cancelled and did more before it ended: that is replayed, too."""
        while True:
            try:
                await self.take(each)
                return
            except asyncio.CancelledError:
                if self.over:
                    raise
                if each.place < self._next:  # it was delivered just before the cancellation
                    return

    async def until_its_end(self) -> None:
        """Until nothing more can come."""
        assert self._loop is not None
        last = max((each.at for each in self._inputs), default=0.0)
        await self._wait_until(self._began + last / self._speed + AFTER)

    def skip(self, each: Input) -> None:
        """Marks the input as taken; nobody waits for it."""
        if each.place == self._next:
            self._next += 1
            self._give()

    async def _wait_until(self, due: float) -> None:
        assert self._loop is not None
        # Nothing to wait for, but other tasks must run between two pieces of a stream.
        await asyncio.sleep(max(due - self._loop.time(), 0.0))

    def _due(self, each: Input) -> float:
        return round(self._began + each.at / self._speed, 9)

    def _is_due(self, each: Input) -> bool:
        assert self._loop is not None
        return self._due(each) - self._loop.time() < _NEAR

    def _may(self, each: Input) -> bool:
        return self._said >= each.said_before and self._is_due(each)

    def _give(self) -> None:
        """The task that waits for the next input continues with it before anything else happens. One at a time: the
        next follows when this one has been taken."""
        if self._waking is not None or not self._waiting:
            return
        future = self._waiting.get(self._next)
        each = self._inputs[self._next if future is not None else min(self._waiting)]
        if future is None or not self._may(each):
            self._look_at(each)
            return
        if future.done():  # its taker was cancelled just now, and takes it when it continues, or never
            return
        self._next += 1
        self._waking = future
        if isinstance(self._loop, VirtualLoop):
            self._loop.wake_first(future)
        else:
            future.set_result(None)

    def _look_at(self, each: Input) -> None:
        """Look again when its time has come."""
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_due(each):
            self._timer = self._call_at(self._due(each))
        elif not isinstance(self._loop, VirtualLoop):  # a virtual loop reports when nothing else will happen
            self._timer = self._loop.call_later(PATIENCE, self._unblock)

    def _call_at(self, due: float) -> asyncio.TimerHandle:
        """After the run's own timers of that instant, as in the recording: a task that waits for a timer continues when
        all of them have fired."""
        assert self._loop is not None
        if isinstance(self._loop, VirtualLoop):
            return self._loop.call_last_at(due, self._give)
        return self._loop.call_at(due, self._give)

    def _unblock(self) -> bool:
        """Nothing else will happen now. The task that waits for the next input gets it, although fewer events came
        before it; an input that nobody waits for is skipped."""
        if not self._waiting:
            return False
        each = self._inputs[min(self._waiting)]
        if not self._is_due(each):
            self._look_at(each)
            return False
        self._next, self._said = each.place, max(self._said, each.said_before)
        self._give()
        return True


def group_arrivals(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """The pieces of one answer, grouped: pieces in one list arrived before the run acted on any of them, so they have
    the same time and nothing happened in between. An error is a group of its own."""
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
    name = each.line["delta"]
    if name in ("text", "reasoning") and name == last.line.get("delta") and not each.line.get("joined"):
        return False  # it arrived later, in the same instant
    return (each.at, each.said_before, each.place) == (last.at, last.said_before, last.place + 1)


@dataclass(slots=True)
class Inputs:
    """All inputs of a run, by who takes them."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    executions: dict[tuple[int, str], list[Execution]] = field(default_factory=dict[tuple[int, str], list[Execution]])
    """By turn and id of the call, in the order of their starts."""
    approvals: dict[str, list[Input]] = field(default_factory=dict[str, list[Input]])
    """Decisions by the id of the call, in their order."""
    waits: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that were running when their process died and then waited for a person, by turn and id."""
    by_call: dict[int, Execution] = field(default_factory=dict[int, Execution])
    """By the number of the call that started it, and of the call that adopted it."""
    background: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that went to the background, by turn and id."""
    arrivals: dict[int, dict[str, None]] = field(default_factory=dict[int, dict[str, None]])
    """By turn: the handles of the background calls whose results the history got after it."""
    turns: dict[int, int] = field(default_factory=dict[int, int])
    """The turns of calls, by their numbers: one in the background may start in a later turn."""

    def add(self, each: Input) -> None:
        line = each.line
        match line["line"]:
            case "delta" | "failed" | "closed" if self.exchanges:
                exchange = self.exchanges[-1]
                exchange.inputs.append(each)
                exchange.whole = exchange.whole or line["line"] == "failed" or line.get("delta") == "ended"
            case "approval" | "cancelled" if line["line"] == "approval" or line.get("approval"):
                self.approvals.setdefault(line["call_id"], []).append(each)
            case "event" if line["event"] == "call_written":
                self.turns[line["call"]] = line["turn"]
            case "event" if line["event"] == "call_backgrounded":
                self.background.add((line["turn"], line["call_id"]))
            case "event" if line["event"] == "result_arrived":
                self.arrivals.setdefault(line["turn"], {})[line["handle"]] = None
            case "event" if line["event"] == "call_started":
                self._begin_execution(line)
            case "event" if line["event"] == "approval_asked" and line.get("uncertain"):
                self.waits.add((line["turn"], line["call_id"]))
                self.executions.pop((line["turn"], line["call_id"]), None)  # the execution that its process died in
            case "event" if line["event"] == "call_adopted":
                running = self.by_call.get(line["adopted"])
                if running is not None:
                    self.by_call[line["call"]] = running
                else:  # its process had died: it returns its recorded result
                    self._begin_execution(line)
            case "event" | "result" | "cancelled" | "waits":
                is_input = line["line"] != "event" or line["event"] in _CAUSED_BY_TOOLS
                execution = self.by_call.get(line.get("call", -1)) if is_input else None
                if execution is None and line["line"] == "result" and _was_known(line["result"]):
                    execution = self._begin_execution(line, started=False)
                if execution is not None:
                    execution.inputs.append(each)
            case _:
                pass

    def _begin_execution(self, line: Line, started: bool = True) -> Execution:
        if line["call"] not in self.by_call:
            self.by_call[line["call"]] = execution = Execution(line["call"], [], started)
            turn = self.turns[line["call"]] if line["call"] in self.turns else line["turn"]
            self.executions.setdefault((turn, line["call_id"]), []).append(execution)
        return self.by_call[line["call"]]

    def begin_exchange(self, request: RecordedRequest, again: bool) -> None:
        """`again`: the process died, and the last request was recorded a second time, with its answer."""
        if again and self.exchanges and self.exchanges[-1].request.turn == request.turn:
            self.exchanges.pop()
            self.executions = {key: some for key, some in self.executions.items() if key[0] != request.turn}
            self.by_call = {one.call: one for some in self.executions.values() for one in some}
        self.exchanges.append(Exchange(request, []))


def read_inputs(recording: Recording) -> Inputs:
    inputs = Inputs()
    requests = iter(recording.requests)
    said, died = 0, False
    last = nobody = 0.0
    """The time of the last line, and the total time between crashes and resumes, which is not replayed."""
    for place, line in enumerate(recording.lines):
        at = line.get("at", last)
        if line["line"] == "resumed":
            if _ended_before(recording, place):
                break  # it waited for somebody: the answers belong to another run of the loop
            nobody += max(at - last, 0.0)
            died = True
        elif line["line"] == "request":
            inputs.begin_exchange(next(requests), again=died)
            died = False
        last = max(last, at)
        inputs.add(Input(round(at - nobody, 9), line, said, place))
        said += line["line"] == "time_up" or (line["line"] == "event" and line["event"] not in _CAUSED_BY_TOOLS)
    return inputs


def _ended_before(recording: Recording, place: int) -> bool:
    """Had the run ended before this line?"""
    ends = ("run_finished", "run_failed")
    return any(line["line"] == "event" and line["event"] in ends for line in recording.lines[:place])


def _was_known(result: Line) -> bool:
    """Was it the result of an identical call, so that no tool ran?"""
    return bool(result.get("duplicate_of")) or result.get("outcome") == "cached"
