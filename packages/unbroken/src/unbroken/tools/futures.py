"""Background calls: a slow call is answered with a handle, continues, and has its result later.

Strategy. A `Batch` hands a call that may go to the background, or that has to wait, to `Futures.run`. The call runs in
a task of its own. If it ends within its `background` seconds, its result is the result of the call, as always.
Otherwise the batch gets a handle, and the task stays here until it ends, or until `end` cancels it: one object owns the
tasks of all turns of a run. No call goes to the background before its message is complete: until then it may be
dropped.

A call waits, before it starts, for the background calls whose handles are in its arguments, and for those that it must
not overtake (`overtakes`). It only ever waits for calls that went to the background before it, so there is no cycle.
While it waits it is not started: nothing is reported, and after a crash it simply runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from unbroken.clock import Clock
from unbroken.errors import RecordingFailed
from unbroken.tools.caller import (
    Caller,
    Prepared,
    ToolErrors,
    failure,
    fingerprint,
    not_executed,
    prepare,
    run_safely,
    timed_out,
)
from unbroken.tools.context import CallContext
from unbroken.tools.entry import GRACE, Entry, Tasks
from unbroken.tools.handles import BackgroundCall, fill_in, find_handles, running
from unbroken.tools.order import BlockingRules
from unbroken.tools.schedule import Schedule
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken_wires.messages import ToolCall, ToolResult

Prepare: TypeAlias = Callable[[ToolCall], Prepared]

NOT_RECORDED = "the recording of the run cannot be written"


class Reports(Protocol):
    """Receives what happens to calls in the background."""

    def started(self, prepared: Prepared, early: bool) -> None: ...

    def finished(self, prepared: Prepared, result: ToolResult, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Start:
    """How a call is started. `reported`: its start was reported already."""

    caller: Caller
    prepare: Prepare
    early: bool
    reported: bool


@dataclass(slots=True, eq=False)
class Future:
    """A call that runs here: in the foreground as long as it has no handle."""

    entry: Entry
    """It has the task. The batch has an entry of its own for the call, which ends with the handle."""
    call: ToolCall
    """As the model wrote it."""
    turn: int
    nth: int
    ended: asyncio.Future[None]
    waits_for: tuple[Future, ...] = ()
    start: Start | None = None
    """Set while it waits for those."""
    references: tuple[str, ...] = ()
    handle: str = ""
    outcome: ToolResult | BaseException | None = None
    """A result, or what its task raised."""
    leaves: asyncio.Future[None] | None = None
    """Done when its tool asks for the background. None if the tool never does."""
    delivered: bool = False
    answered: list[tuple[Prepared, str]] = field(default_factory=list[tuple[Prepared, str]])
    """The calls that were answered with the handle: itself, and identical calls of its message, each with the id of the
    call whose execution it shares. Their ends are reported after that."""

    @property
    def result(self) -> ToolResult | None:
        return self.outcome if isinstance(self.outcome, ToolResult) else None

    def saved(self) -> BackgroundCall:
        return BackgroundCall(
            self.handle,
            self.call,
            self.turn,
            self.entry.prepared.number,
            self.result,
            self.delivered,
            self.entry.seconds,
            self.nth,
            shared_by=tuple((prepared.number, prepared.call) for prepared, shares in self.answered if shares),
        )


class Futures:
    """The calls of one run that run in the background, or wait for some that do.

    `seconds` is the agent's own setting, for tools that have none. `foreground` is the name of a tool whose calls never
    go to the background. `place` numbers a call of the current message: its handle is made of that number. `decided`
    returns whether a call went to the background in the run that is replayed, and None in any other run.
    """

    def __init__(
        self,
        schedule: Schedule,
        clock: Clock,
        reports: Reports,
        place: Callable[[ToolCall], int],
        *,
        seconds: float | None = None,
        foreground: str = "",
        errors: ToolErrors = "full",
        decided: Callable[[int, str], bool | None] = lambda turn, id: None,
    ) -> None:
        self._clock = clock
        self._reports = reports
        self._place = place
        self._decided = decided
        self.configure(schedule, seconds, foreground, errors)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop)
        self._futures: dict[str, Future] = {}
        """The calls that went to the background, by handle."""
        self._active: dict[Entry, Future] = {}
        self.sealed = asyncio.Event()
        """The current message is complete: its calls may go to the background."""
        self.refused: RecordingFailed | None = None
        """A call could not start because the run cannot be recorded: the run ends with this error."""

    def configure(self, schedule: Schedule, seconds: float | None, foreground: str, errors: ToolErrors) -> None:
        """Sets what an agent that takes over brings. Calls that are in the background stay there."""
        self._schedule = schedule
        self._default = seconds
        self._foreground = foreground
        self._errors: ToolErrors = errors

    # Before a call starts

    def prepare(self, call: ToolCall, toolbox: Toolbox) -> Prepared | None:
        """A call whose arguments contain handles; None for any other, which is prepared as always.

        Arguments are bound once all results are there. A call that may need an approval is bound only then too: until
        that, `awaited` returns what it waits for."""
        tool, handles = toolbox.get(call.name), find_handles(call.arguments)
        if tool is None or not handles or call.arguments is None:
            return None
        prepared = Prepared(call, tool, fingerprint=fingerprint(call), references=handles)
        if unknown := [each for each in handles if each not in self._futures]:
            prepared.refusal = f"not executed: {self._unknown(unknown[0])}"
        elif tool.approve:
            if all(self._futures[each].outcome is not None for each in handles):
                return self._resolved(call, tool, handles, partial(prepare, toolbox=toolbox, errors=self._errors))
            prepared.asks = True
        return prepared

    def awaited(self, calls: Iterable[Prepared]) -> list[Future]:
        """What has to end before these calls can be shown to an approver."""
        handles = {handle for each in calls if each.asks for handle in each.references}
        return [future for future in self.open() if future.handle in handles]

    def _unknown(self, handle: str) -> str:
        known = ", ".join(f"{each.handle} (`{each.call.name}`)" for each in self._futures.values()) or "none"
        return (
            f"there is no background call {handle}; there are: {known} (a call of this same message has no handle yet)"
        )

    def _resolved(self, call: ToolCall, tool: Tool, handles: Iterable[str], prepare: Prepare) -> Prepared:
        """The call with results in place of handles."""
        results: dict[str, ToolResult] = {}
        for handle in handles:
            result = self._futures[handle].result
            assert result is not None
            problem = _unusable(handle, result)
            if problem:
                return Prepared(call, tool, fingerprint=fingerprint(call), refusal=problem)
            results[handle] = result
        return prepare(replace(call, arguments=fill_in(call.arguments or {}, results, tool.spec.parameters)))

    def takes(self, prepared: Prepared) -> bool:
        """Has `run` to run this call? Otherwise it runs in the batch alone."""
        return self._seconds(prepared) is not None or self._may_leave(prepared) or self.holds_back(prepared)

    def _may_leave(self, prepared: Prepared) -> bool:
        """May its tool ask for the background?"""
        return prepared.tool is not None and prepared.tool.role == "task"

    def holds_back(self, prepared: Prepared) -> bool:
        """Does the call have to wait for calls in the background?"""
        return bool(prepared.references) or any(self._before(prepared))

    def _before(self, prepared: Prepared) -> Iterable[Future]:
        """The background calls that have to end before this one may start."""
        for future in self._futures.values():
            if future.outcome is None and (
                future.handle in prepared.references or overtakes(future.entry.prepared, prepared, self._schedule)
            ):
                yield future

    def _seconds(self, prepared: Prepared) -> float | None:
        tool = prepared.tool
        if tool is None or tool.name == self._foreground or tool.role in ("agent", "handoff"):
            return None  # an agent may have to wait for somebody: then the run does
        if tool.background is not None:
            return tool.background
        return None if tool.effect == "exclusive" or tool.crash_policy == "wait" else self._default

    # Running

    async def run(
        self,
        entry: Entry,
        context: CallContext[Any],
        caller: Caller,
        prepare: Prepare,
        *,
        early: bool,
        reported: bool,
    ) -> ToolResult:
        """The result of the call; or, if it takes longer than it may, a handle. `reported`: its start was reported."""
        future = self._future(entry.prepared, context)
        if self._may_leave(entry.prepared):
            future.leaves = self._loop.create_future()
            context.to_background = partial(_set, future.leaves)
        self._launch(future, Start(caller, prepare, early, reported))
        seconds = self._seconds(entry.prepared)
        decided = self._decided(context.turn, entry.call.id)
        if decided is not None:
            seconds = (seconds or 0.0) if decided else None
        try:
            ends = [future.ended] if future.leaves is None else [future.ended, future.leaves]
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not future.ended.done() and not self.sealed.is_set():
                await self._until_sealed(future)
        except asyncio.CancelledError:
            future.entry.stopped = entry.stopped
            self._stop(future, entry.stopped)
            await asyncio.wait([future.ended])
            if future.result is None or future.result.outcome == "cancelled":
                raise
        if future.outcome is None or (decided and future.result is not None):
            return self._go_to_background(future, entry)
        entry.started_at = future.entry.started_at  # the time in which it waited does not count
        if isinstance(future.outcome, BaseException):
            raise future.outcome
        return future.outcome

    def restore(self, saved: BackgroundCall, prepared: Prepared, context: CallContext[Any]) -> Future:
        """A background call of an earlier part of the run. If it has no result, `resume` runs it."""
        future = self._future(prepared, context)
        future.call, future.turn, future.nth = saved.call, saved.turn, saved.nth
        future.handle, future.delivered = saved.handle, saved.delivered
        self._futures[future.handle] = future
        shared = [(Prepared(call, prepared.tool, number), saved.call.id) for number, call in saved.shared_by]
        future.answered = [(prepared, ""), *shared]
        if saved.result is not None:
            future.outcome, future.entry.seconds = saved.result, saved.seconds
            future.ended.set_result(None)
        return future

    def resume(self, future: Future, caller: Caller, prepare: Prepare) -> None:
        """Runs a restored call, again or for the first time."""
        self._launch(future, Start(caller, prepare, early=False, reported=False))

    def _future(self, prepared: Prepared, context: CallContext[Any]) -> Future:
        entry = Entry(prepared, state="running", context=context)
        future = Future(entry, prepared.call, context.turn, context.nth, self._loop.create_future())
        future.references, future.waits_for = prepared.references, tuple(self._before(prepared))
        return future

    def _launch(self, future: Future, start: Start) -> None:
        """Starts the call, now or when the calls that it waits for have ended."""
        future.start = start
        self._active[future.entry] = future
        if not _waits(future):
            self._begin(future, start)

    def _begin(self, future: Future, start: Start) -> None:
        entry, context, tool = future.entry, future.entry.context, future.entry.prepared.tool
        assert context is not None
        assert tool is not None
        future.start = None
        if future.references:
            resolved = self._resolved(entry.call, tool, future.references, start.prepare)
            if resolved.refusal:
                self.finish(future, failure(entry.call, resolved.refusal, "not_executed"))
                return
            context.arguments = resolved.arguments
            entry.prepared = replace(entry.prepared, call=resolved.call, key=resolved.key, references=())
        entry.started_at = self._clock.elapsed()
        if not start.reported and context.ran_before is None:
            self._reports.started(replace(entry.prepared, number=context.number), start.early)
        work = run_safely(start.caller, entry.prepared.call, context)
        self._tasks.launch(entry, work, partial(self._ended, future))
        if tool.timeout is not None and tool.signature.is_async:
            limit = tool.timeout * (1 + tool.retries) + GRACE
            self._tasks.expect_end(entry, limit, self._give_up_overdue)

    async def _until_sealed(self, future: Future) -> None:
        sealed = self._loop.create_task(self.sealed.wait())
        try:
            await asyncio.wait([sealed, future.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sealed.cancel()

    def _go_to_background(self, future: Future, entry: Entry) -> ToolResult:
        call = (entry.original or entry.prepared).call
        number = self._place(call)
        while (handle := f"$call_{number}") in self._futures:  # a history that was shortened has fewer calls
            number += 1
        future.handle, future.call = handle, call
        future.entry.prepared = replace(
            future.entry.prepared, number=entry.prepared.number, call=replace(future.entry.call, id=call.id)
        )
        self._futures[handle] = future
        return running(call, handle)

    def handle_of(self, result: ToolResult) -> str:
        """The handle in a result of a call that went to the background, or that shares the execution of one."""
        id = result.duplicate_of or result.call_id
        return next(each.handle for each in reversed(self._futures.values()) if each.call.id == id)

    def answered(self, prepared: Prepared, shares: str, handle: str) -> None:
        """It was reported that this call has the handle as its result, so its end may be reported too."""
        future = self._futures[handle]
        future.answered.append((prepared, shares))
        if future.result is not None:
            self._report_end(future, prepared, shares, future.result)

    # Ending

    def _ended(self, future: Future, entry: Entry, task: asyncio.Task[Any]) -> None:
        if not self._tasks.take_end(task) or future.outcome is not None:
            return
        if task.cancelled():
            if future.handle:
                self.finish(future, entry.cancelled())
            else:
                self._close(future, asyncio.CancelledError())
            return
        error = task.exception()
        if error is None:
            result: ToolResult = task.result()
            self.finish(future, replace(result, call_id=future.call.id) if future.handle else result)
        elif not future.handle:
            self._close(future, error)
        elif isinstance(error, RecordingFailed):
            self.refused, entry.started_at = error, None
            self.finish(future, not_executed(future.call, NOT_RECORDED))
        else:
            self.finish(future, failure(future.call, str(error) or type(error).__name__))

    def finish(self, future: Future, result: ToolResult) -> None:
        """The call has its result."""
        entry = future.entry
        if entry.started_at is not None and result.outcome != "unknown":
            entry.seconds = round(self._clock.elapsed() - entry.started_at, 9)
            if entry.context is not None and entry.context.ran_before is not None:
                entry.seconds = entry.context.ran_before
        future.outcome = result
        if future.handle:
            if entry.context is not None:
                entry.context.ended = True
            for prepared, shares in future.answered:
                self._report_end(future, prepared, shares, result)
        self._close(future, result)

    def _report_end(self, future: Future, prepared: Prepared, shares: str, result: ToolResult) -> None:
        given = replace(result, call_id=prepared.call.id, duplicate_of=shares)
        self._reports.finished(prepared, given, future.entry.seconds)

    def _close(self, future: Future, outcome: ToolResult | BaseException) -> None:
        future.outcome = outcome
        future.entry.state = "done"
        self._active.pop(future.entry, None)
        if not future.ended.done():
            future.ended.set_result(None)
        for each in [*self._active.values()]:
            if each.start is not None and future in each.waits_for and not _waits(each):
                self._begin(each, each.start)

    def _stop(self, future: Future, reason: str) -> None:
        task, future.entry.stopped = future.entry.task, reason
        if future.start is not None:  # it has not begun
            future.start = None
            if future.handle:
                self.finish(future, future.entry.cancelled())
            else:
                self._close(future, asyncio.CancelledError())
        elif task is not None and not task.done():
            task.cancel()
            self._tasks.expect_end(future.entry, GRACE, self._give_up_overdue)

    def _give_up_overdue(self) -> None:
        for entry in self._tasks.give_up_overdue(self._give_up_overdue):
            future, tool = self._active[entry], entry.prepared.tool
            seconds = tool.timeout if tool is not None else None
            overdue = failure(future.call, timed_out(seconds or 0.0), "timed_out")
            self.finish(future, entry.cancelled() if entry.stopped else overdue)

    # All of them

    @property
    def calls(self) -> tuple[BackgroundCall, ...]:
        """In the order of their calls."""
        return tuple(sorted((future.saved() for future in self._futures.values()), key=lambda call: call.place))

    def undelivered(self) -> list[Future]:
        """In the order of their calls, whichever of them went to the background first."""
        waiting = [future for future in self._futures.values() if not future.delivered]
        return sorted(waiting, key=lambda future: int(future.handle.rpartition("_")[2]))

    def open(self) -> list[Future]:
        """The calls that are still running or waiting."""
        return [future for future in self._futures.values() if future.outcome is None]

    def halt(self, reason: str) -> None:
        """Cancels the calls in the background; each gets its result when its tool has ended."""
        for future in reversed(self.open()):  # the last first: nothing starts because another one was cancelled
            self._stop(future, reason)

    async def end(self, reason: str) -> asyncio.CancelledError | None:
        """Cancels what still runs and waits for its end. Returns a cancellation that came meanwhile."""
        for future in reversed([*self._active.values()]):
            if future.start is not None:
                self._stop(future, reason)
            future.entry.stopped = future.entry.stopped or reason
        cancelled = await self._tasks.end_all() if self._tasks else None
        self._tasks.end_watch()
        for future in self.open():
            self.finish(future, future.entry.cancelled())
        return cancelled


def _set(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


def _waits(future: Future) -> bool:
    return any(each.outcome is None for each in future.waits_for)


def overtakes(earlier: Prepared, later: Prepared, schedule: Schedule) -> bool:
    """Must the later call wait for the end of the earlier one, which runs in the background?

    A tool that declares `background` lets later calls run beside its own; all others are as strict as the schedule."""
    if _may_share_key(earlier, later):
        return True
    if earlier.tool is not None and earlier.tool.background is not None and not schedule.serial:
        return "exclusive" in (earlier.effect, later.effect)
    rules = BlockingRules(schedule)
    rules.block(earlier, True)
    return rules.closed or rules.blocks(later)


def _may_share_key(earlier: Prepared, later: Prepared) -> bool:
    """A key is not known as long as the arguments contain handles."""
    if earlier.tool is None or later.tool is None or earlier.tool.key is None or later.tool.key is None:
        return False
    if earlier.references or later.references:
        return True
    return earlier.key is not None and earlier.key == later.key


def _unusable(handle: str, result: ToolResult) -> str:
    if result.error:
        return f"not executed: it needs the result of {handle} (`{result.name}`), which has none: {result.text}"
    if not result.text and result.content:
        return f"not executed: the result of {handle} (`{result.name}`) has no text that could be an argument"
    return ""
