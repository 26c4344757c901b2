"""When the calls of one message run: a `Batch` runs them by its `Schedule`, and each gets exactly one result.

Strategy. Calls are entries in call order. An entry starts when nothing before it blocks it: `BlockingRules` decides
whether it has to wait for an earlier one's end, for its start (PARALLEL), or for nothing. While the message is still
being written only reads may start (EAGER), and only behind a prefix of calls that are known and are reads too, or have
another key.
`seal` is called once, when the message is complete: all calls that can start are started, all starts are reported
before the first of them runs, and each end may unblock others. The `Caller` produces the results.

If the message breaks off and is retried (`restart`), calls that have started continue as orphans. A call of the second
message with the same name and arguments adopts its orphan, running or done, unless a call before it may have changed
what it reads; orphans that are not adopted are cancelled. So nothing runs twice; and only reads start early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from unbroken.clock import Clock
from unbroken.errors import RecordingFailed, Vetoed
from unbroken.tools.approval import NOBODY_APPROVES, Approval, OnApproval, ask, decide, refused
from unbroken.tools.caller import (
    NOT_EXECUTED,
    Caller,
    Prepared,
    failure,
    not_executed,
    run_safely,
    timed_out,
    with_changed_arguments,
)
from unbroken.tools.context import CallContext
from unbroken.tools.entry import GRACE, Answers, Entry, Observer, Tasks
from unbroken.tools.futures import Futures
from unbroken.tools.order import NO_ORPHANS, EarlyReads, Order, Orphans, find_duplicates
from unbroken.tools.results import CallWaits
from unbroken.tools.schedule import Schedule
from unbroken_wires.messages import ToolCall, ToolResult

CANCELLED = "the run was cancelled"
LEFT = "the run is no longer driven here"
"""The message with which a driver cancels its part of a durable run; the run itself may continue elsewhere."""
NOT_ASKED_AGAIN = "the answer broke off, and when it was asked for again this call was not in it"
NOT_IN_MESSAGE = "it is not in the message"
NOT_RECORDED = "the recording of the run cannot be written"


class Batch:
    """The calls of one message. Use it as an async context: leaving it ends what still runs.

    `prepare` is called again for a call whose arguments were edited. `share_all` lets identical calls of every tool
    share one execution, unless the tool forbids it. `futures` runs the calls that may go to the background.
    """

    __slots__ = (
        "_answers",
        "_asking",
        "_caller",
        "_clock",
        "_context",
        "_crash",
        "_early",
        "_entries",
        "_futures",
        "_left",
        "_loop",
        "_observer",
        "_on_approval",
        "_orphans",
        "_prepare",
        "_refused",
        "_resting",
        "_sealed",
        "_share_all",
        "_taken_out",
        "_tasks",
        "_timer",
        "_waiter",
        "order",
        "out_of_time",
    )

    def __init__(
        self,
        schedule: Schedule,
        caller: Caller,
        prepare: Callable[[ToolCall], Prepared],
        context: Callable[[Prepared], CallContext[Any]],
        observer: Observer,
        clock: Clock,
        *,
        on_approval: OnApproval | None = None,
        stop_on_failure: bool = False,
        share_all: bool = False,
        futures: Futures | None = None,
    ) -> None:
        self._futures = futures
        if futures is not None:
            futures.sealed.clear()
        self._caller = caller
        self._prepare = prepare
        self._context = context
        self._observer = observer
        self._clock = clock
        self._on_approval = on_approval
        self._share_all = share_all
        self._answers = Answers(observer, clock, stop_on_failure)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop)
        self._early = EarlyReads() if schedule.early else None
        self._crash: BaseException | None = None
        """An error that is not a tool's failure and ends the run."""
        self._refused: RecordingFailed | None = None
        """Nothing more may start; running calls finish first."""
        self._entries: dict[int, Entry] = {}
        """By index; once sealed in call order, by place."""
        self._taken_out: dict[int, Entry] = {}
        self._orphans = NO_ORPHANS
        self.order = Order(schedule)
        self._sealed = False
        self._asking: Entry | None = None
        self._left = False
        """Nothing may start any more, even after an end."""
        self._resting = False
        """Nothing is left to wait for."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.out_of_time = False

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels what still runs and always waits for its end."""
        self._left = True
        self._tasks.end_watch()
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            cancelled = await self._tasks.end_all()
            if cancelled is not None and error is None:
                raise cancelled

    # While the message is being written

    def open(self, index: int, surely_read: bool) -> None:
        """A call has begun. `surely_read`: its name alone shows that it blocks no other read."""
        if self._early is not None:
            self._early.open(index, surely_read)

    def submit(self, prepared: Prepared) -> None:
        """A call is complete. It may start now."""
        entry = Entry(prepared)
        self._entries[prepared.call.index] = entry
        if self._early is not None and not self._answers.halted:
            orphan = self._orphans.find(prepared) if self._orphans else None
            self._start(self._early.submit(entry, orphan))

    def take_out(self, index: int, reason: str) -> None:
        """A call that had begun or even started turned out to be incomplete or not a call."""
        if self._early is not None:
            self._early.withdraw(index)
        entry = self._entries.pop(index, None)
        if entry is not None:
            self._withdraw(entry, reason)
            self._taken_out[index] = entry

    def restart(self) -> set[int]:
        """The message broke off and is retried from its beginning, where calls that have started may be adopted.
        Returns the numbers of those calls."""
        if self._orphans is NO_ORPHANS:
            self._orphans = Orphans()
        for entry in self._entries.values():
            if entry.stopped:
                self._answers.finish(entry, entry.given() or entry.cancelled())
                entry.state = "withdrawn"
                self.order.withdrawn.append(entry)
            elif entry.started_at is not None:
                self._orphans.add(entry)
        self._entries, self._taken_out = {}, {}
        if self._early is not None:
            self._early.restart()
        self._answers.restart()
        return {orphan.prepared.number for orphan in self._orphans}

    def _adopt_orphans(self) -> None:
        """The calls are known now, in their order."""
        for place, orphan in self._orphans.adoptions(self._entries):
            prepared, self._entries[place] = self._entries[place].prepared, orphan
            self.order.adopted = True
            self._answers.adopt(orphan, prepared)
        self._drop_orphans(NOT_ASKED_AGAIN)

    def _drop_orphans(self, reason: str) -> None:
        for orphan in self._orphans.pop_all():
            self._withdraw(orphan, f"cancelled: {reason}")  # without events: it is not a failure of this round
            self._answers.drop(orphan, reason)

    def _withdraw(self, entry: Entry, reason: str) -> None:
        self._stop(entry, reason)
        if entry.started_at is not None:
            self._answers.finish(entry, entry.given() or failure(entry.call, reason, "cancelled"))
        entry.state = "withdrawn"
        self.order.withdrawn.append(entry)

    # The message is complete

    async def seal(
        self, calls: Sequence[Prepared], decisions: Mapping[str, Approval | ToolResult] | None = None
    ) -> list[ToolResult | None]:
        """Takes the calls of the message and returns their results, both in call order. None stands for a call that
        waits for an outside decision, or for the end of such a call. `decisions` are outside decisions, by call id."""
        self._sealed = True
        if self._futures is not None:
            self._futures.sealed.set()
        begun, self._entries = self._entries, {}
        for place, prepared in enumerate(calls):
            entry = begun.pop(prepared.call.index, None)
            if entry is None:
                entry = Entry(prepared)
                told = self._taken_out.get(prepared.call.index)
                if told is not None and told.result is not None and prepared.refusal:
                    # It started, was spoiled, and its end is reported already.
                    entry.state, entry.seconds = "done", told.seconds
                    entry.result = failure(prepared.call, prepared.refusal, told.result.outcome)
            elif entry.state == "waiting":
                entry.prepared = prepared
            self._entries[place] = entry
        for entry in begun.values():
            self._withdraw(entry, NOT_IN_MESSAGE)
            self._answers.drop(entry, NOT_IN_MESSAGE)
        if self._orphans:
            self._adopt_orphans()
        for entry in self._entries.values():
            decision = decisions.get(entry.call.id) if decisions else None
            if not (isinstance(decision, ToolResult) or entry.started) and entry.prepared.refusal:
                self._answers.finish(entry, refused(entry.prepared))
            elif decision is not None:
                self._decide(entry, decision)
        self.order.fill(self._entries.values())
        if len({entry.prepared.fingerprint for entry in self.order.entries}) < len(self._entries):
            for original, sharer in find_duplicates(self.order.entries, self._share_all):
                if original.result is not None:
                    self._answers.share(original, sharer, original.result)
        self._advance()
        if not self._resting:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._crash is not None:
            raise self._crash
        if self._refused is not None:
            raise self._refused
        return [entry.result for entry in self._entries.values()]

    def halt(self, reason: str) -> None:
        """Time is up: running calls are cancelled, the others never start; each is answered with the reason."""
        self._answers.halt(reason)
        for entry in (*self._entries.values(), *self._orphans):
            if entry.state == "running":
                self._stop(entry, f"cancelled: {reason}")
            elif entry.state == "asking":
                self._stop(entry, f"{NOT_EXECUTED}: {reason}")
        if self._sealed:
            self._advance()

    def halt_after(self, seconds: float, reason: str, report: Callable[[], None]) -> None:
        """`report` is called just before."""
        self._timer = self._loop.call_later(seconds, self._run_out, reason, report)

    def _run_out(self, reason: str, report: Callable[[], None]) -> None:
        self.out_of_time = True
        try:
            report()
        finally:
            self.halt(reason)

    def settle(
        self, calls: Sequence[ToolCall], number: Callable[[ToolCall], int], error: BaseException | None = None
    ) -> list[ToolResult]:
        """After the end, for whatever reason: a result for each of these calls, the real one if there is one. `number`
        returns the number of a call that the batch never got. `error`: what ended it."""
        reason = LEFT if error is not None and error.args == (LEFT,) else CANCELLED
        if isinstance(error, Vetoed):
            reason = str(error)
        results: list[ToolResult] = []
        entries = {entry.call.id: entry for entry in self._entries.values()}
        for call in calls:
            entry = entries.get(call.id) or Entry(Prepared(call, None, number(call)))
            orphan = None if entry.started else self._orphans.pop(entry.prepared)
            if orphan is not None:
                self._answers.adopt(orphan, entry.prepared)
                entry = orphan
            if entry.result is None:
                left = not_executed if entry.started_at is None else _cancelled
                self._answers.finish(entry, left(call, reason))
            results.append(entry.result or not_executed(call, reason))
        return results

    def abandon(self, reason: str = NOT_ASKED_AGAIN) -> None:
        """The message is not in the history, or has no calls: reports the end of calls that had started."""
        self._drop_orphans(reason)
        for entry in self._entries.values():
            if entry.started_at is not None:
                self._answers.finish(entry, entry.given() or _cancelled(entry.call, reason))

    @property
    def failed(self) -> bool:
        """A call that was executed failed."""
        return self._answers.failed

    def _advance(self) -> None:
        """Starts everything that can start now; sets the end if nothing is left to wait for."""
        if self.order.some_wait:
            self._start_what_is_free()
        if self._tasks.busy == 0:
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        """All calls are done, or the rest waits for an outside decision. That decision is requested for all of them at
        once, including calls that could not start yet."""
        entries = self.order.entries
        if "pending" in [entry.state for entry in entries]:
            for entry in entries:
                prepared = entry.prepared
                if entry.state == "waiting" and entry.shares_with is None and prepared.tool is not None:
                    if prepared.waits or (prepared.asks and not entry.approved):
                        self._observer.asked(prepared, prepared.waits)
                        entry.state = "pending"
                    elif prepared.tool.function is None:
                        entry.state = "pending"
        self._rest()

    def _rest(self) -> None:
        self._resting = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _start_what_is_free(self) -> None:
        starting: list[Entry] = []
        for entry in self.order.free(self._tasks):
            prepared = entry.prepared
            if self._answers.halted:
                self._answers.finish(entry, not_executed(entry.call, self._answers.halted))
            elif prepared.tool is not None and prepared.tool.function is None:
                entry.state = "pending"
            elif prepared.waits:
                self._observer.asked(prepared, True)
                entry.state = "pending"
            elif prepared.asks and not entry.approved:
                self._ask(entry)
            else:
                entry.state = "running"
                starting.append(entry)
        self._start(starting)

    # Approval: one question at a time, in call order

    def _ask(self, entry: Entry) -> None:
        if self._asking is not None:
            return
        self._observer.asked(entry.prepared, False)
        if self._on_approval is None:
            self._answers.finish(entry, failure(entry.call, NOBODY_APPROVES, "not_executed"))
            return
        entry.state = "asking"
        self._asking = entry
        self._tasks.launch(entry, ask(self._on_approval, entry.call), self._ended)

    def _decide(self, entry: Entry, decision: Approval | ToolResult) -> None:
        result = decide(entry, decision, self._prepare)
        if result is not None:
            self._answers.finish(entry, result)

    # Running and ending

    def _start(self, starting: Sequence[Entry]) -> None:
        if not starting:
            return
        contexts: list[CallContext[Any]] = []
        held_back: set[Entry] = set()
        for entry in starting:
            entry.started_at = self._clock.elapsed()
            # The key is that of the model's own call: two calls that were edited to be equal stay two calls.
            entry.context = context = self._context(entry.original or entry.prepared)
            context.arguments = entry.prepared.arguments
            if entry.approved:
                context.approved = True
            contexts.append(context)
            if self._futures is not None and self._futures.holds_back(entry.prepared):
                held_back.add(entry)
            elif context.ran_before is None:  # otherwise it only gets the result that it had
                self._observer.started(entry.prepared, not self._sealed)
        for entry, context in zip(starting, contexts, strict=True):
            futures = self._futures
            if futures is not None and futures.takes(entry.prepared):
                early, reported = not self._sealed, entry not in held_back
                work = futures.run(entry, context, self._caller, self._prepare, early=early, reported=reported)
                self._tasks.launch(entry, work, self._ended)
                continue
            self._tasks.launch(entry, run_safely(self._caller, entry.prepared.call, context), self._ended)
            tool = entry.prepared.tool
            if tool is not None and tool.timeout is not None and tool.signature.is_async:
                limit = tool.timeout * (1 + tool.retries) + GRACE
                self._tasks.expect_end(entry, limit, self._give_up_overdue)

    def _ended(self, entry: Entry, task: asyncio.Task[Any]) -> None:
        try:
            self._take_end(entry, task)
        except BaseException as error:
            self._crash = error  # an exception in a callback would be lost; the batch raises it
            self._rest()
            raise

    def _take_end(self, entry: Entry, task: asyncio.Task[Any]) -> None:
        if not self._tasks.take_end(task):
            return  # it was given up
        key, early = entry.prepared.key, None if self._sealed else self._early
        if early is not None and key is not None:
            early.ended(key)
        if self._asking is entry:
            self._asking = None
        if entry.finished:
            pass  # it was taken out, or settled
        elif task.cancelled():
            if self._left and not entry.stopped:
                return
            self._answers.finish(entry, entry.cancelled())
        elif isinstance(not_recorded := task.exception(), RecordingFailed):
            self._refused, entry.started_at = not_recorded, None
            if not self._answers.halted:
                self._answers.halt(NOT_RECORDED)
            self.order.some_wait = True
            self._answers.finish(entry, not_executed(entry.call, NOT_RECORDED))
        elif (error := task.exception()) is not None:
            if isinstance(error, CallWaits):
                entry.state, entry.waits = "pending", error
            else:
                self._left = True
                self._crash = error  # the batch raises it
                self._rest()
        elif entry.state == "asking":
            entry.state = "waiting"
            self.order.some_wait = True
            self._decide(entry, task.result())
        else:
            result: ToolResult = task.result()
            if result.call_id != entry.call.id:  # it was adopted meanwhile
                result = replace(result, call_id=entry.call.id)
            if entry.original is not None:
                result = with_changed_arguments(result, entry.call)
            self._answers.finish(entry, result)
        if self._left:
            return
        if self._sealed:
            self._advance()
        elif early is not None and key is not None and not self._answers.halted:
            self._start(early.startable())

    def _stop(self, entry: Entry, reason: str) -> None:
        if entry.task is not None and not entry.task.done():
            entry.stopped = reason
            entry.task.cancel()
            self._tasks.expect_end(entry, GRACE, self._give_up_overdue)

    def _give_up_overdue(self) -> None:
        """Answers calls that did not end after their cancellation, and leaves them behind."""
        for entry in self._tasks.give_up_overdue(self._give_up_overdue):
            tool = entry.prepared.tool
            timeout = tool.timeout if tool is not None else None
            late = failure(entry.call, timed_out(timeout or 0.0), "timed_out")
            self._answers.finish(entry, entry.cancelled() if entry.stopped else late)
        if self._sealed and not self._left:
            self._advance()


def _cancelled(call: ToolCall, reason: str) -> ToolResult:
    return failure(call, f"cancelled: {reason}", "cancelled")
