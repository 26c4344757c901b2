"""When the calls of one message run: a `Batch` runs them by its `Schedule`, and each gets exactly one result.

Strategy. Calls are entries in call order. An entry starts when nothing before it blocks it: `Way` decides whether it
has to wait for an earlier one's end, for its start (PARALLEL), or for nothing. While the message is still being written
only reads may start (EAGER), and only behind a front of calls that are known and are reads too, or have another key.
`seal` is called once, when the message is complete: all calls that can start are started, all starts are reported
before the first of them runs, and each end may unblock others. The `Caller` produces the results.

If the message breaks off and is retried (`restart`), calls that have started continue as orphans. A call of the second
message with the same name and arguments adopts its orphan, running or done, unless a call before it may have changed
what it reads; orphans that are not adopted are cancelled. So nothing runs twice; and only reads start early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Protocol

from unbroken.clock import Clock
from unbroken.errors import RecordingFailed
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Wait, ask, unknown
from unbroken.tools.caller import Caller, Prepared, failure, in_words, note, quote, ran_and_failed, timed_out
from unbroken.tools.context import CallContext
from unbroken.tools.entry import GRACE, Entry, Watch
from unbroken.tools.schedule import NO_ORPHANS, Front, Orphans, Schedule, Way, find_twins

LEFT_BEHIND: set[asyncio.Task[Any]] = set()
"""Calls that did not end after their cancellation."""

NOT_EXECUTED = "not executed"
CANCELLED = "the run was cancelled"
CANCELLED_ITSELF = "the tool cancelled its own task"
NOT_ASKED_AGAIN = "the answer broke off, and when it was asked for again this call was not in it"
NOT_IN_MESSAGE = "it is not in the message"
EARLIER_FAILED = "an earlier call failed"
NOT_RECORDED = "the recording of the run cannot be written"
NOBODY_APPROVES = f"{NOT_EXECUTED}: it needs an approval, and nobody is there to give it"


class Observer(Protocol):
    """Receives what happens, in the order in which it happens."""

    def asked(self, prepared: Prepared, uncertain: bool) -> None: ...

    def restarted(self) -> None: ...

    def started(self, prepared: Prepared, early: bool) -> None: ...

    def finished(self, prepared: Prepared, result: ToolResult, seconds: float) -> None: ...

    def adopted(self, prepared: Prepared, number: int) -> None:
        """The call takes over the execution of the call with this number."""
        ...

    def dropped(self, prepared: Prepared, reason: str) -> None:
        """The call is not in a message."""
        ...


class Batch:
    """The calls of one message. Use it as an async context: leaving it ends what still runs.

    `prepare` is called again for a call whose arguments were edited. `share_all` lets identical calls of every tool
    share one execution, unless the tool forbids it.
    """

    __slots__ = (
        "_adopted",
        "_asking",
        "_busy",
        "_busy_keys",
        "_caller",
        "_clock",
        "_context",
        "_crash",
        "_ended_before",
        "_entries",
        "_first_submitted",
        "_front",
        "_halted",
        "_held_back",
        "_in_order",
        "_left",
        "_loop",
        "_observer",
        "_on_approval",
        "_orphans",
        "_prepare",
        "_refused",
        "_resting",
        "_schedule",
        "_sealed",
        "_share_all",
        "_some_wait",
        "_stop_on_failure",
        "_taken_out",
        "_tasks",
        "_timer",
        "_waiter",
        "_watch",
        "_withdrawn",
        "failed",
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
    ) -> None:
        self._schedule = schedule
        self._caller = caller
        self._prepare = prepare
        self._context = context
        self._observer = observer
        self._clock = clock
        self._on_approval = on_approval
        self._stop_on_failure = stop_on_failure
        self._share_all = share_all
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._crash: BaseException | None = None
        """An error that is not a tool's failure and ends the run."""
        self._refused: RecordingFailed | None = None
        """Nothing more may start; running calls finish first."""
        self._front = Front()
        self._entries: dict[int, Entry] = {}
        """By index; once sealed in call order, by place."""
        self._in_order: list[Entry] = []
        self._first_submitted: dict[str, Entry] = {}
        self._taken_out: dict[int, Entry] = {}
        self._withdrawn: list[Entry] = []
        self._orphans = NO_ORPHANS
        self._adopted = False
        self._held_back: dict[Entry, None] = {}
        """Reads that are complete and could not start yet, while the message is being written."""
        self._busy_keys: dict[Any, int] = {}
        """Keys of calls that run while the message is being written."""
        self._sealed = False
        self._ended_before = 0
        """How many entries at the beginning are finished."""
        self._some_wait = True
        self._asking: Entry | None = None
        self._left = False
        """Nothing may start any more, even after an end."""
        self._halted = ""
        self._busy = 0
        """Tasks whose end is still to be handled."""
        self._resting = False
        """Nothing is left to wait for."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None
        self.failed = False
        """A call that was executed failed."""
        self.out_of_time = False

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels what still runs and always waits for its end. Not an `asyncio.TaskGroup`, because one call may be
        cancelled without the others, and no exception may be wrapped in a group."""
        self._left = True
        if self._watch is not None:
            self._watch.end()
            self._watch = None  # breaks reference cycles, which only the garbage collector would free
        if self._timer is not None:
            self._timer.cancel()
        cancelled: asyncio.CancelledError | None = None
        for task in self._tasks:
            task.cancel()
        patience = self._loop.time() + GRACE
        while self._tasks and (left := patience - self._loop.time()) > 0:
            try:
                await asyncio.wait(self._tasks, timeout=left)
            except asyncio.CancelledError as once_more:
                cancelled = once_more
        LEFT_BEHIND.update(self._tasks)
        if cancelled is not None and error is None:
            raise cancelled

    # While the message is being written

    def open(self, index: int, surely_read: bool) -> None:
        """A call has begun. `surely_read`: its name alone shows that it blocks no other read."""
        self._front.open(index, surely_read)

    def submit(self, prepared: Prepared) -> None:
        """A call is complete. It may start now."""
        entry = Entry(prepared)
        self._entries[prepared.call.index] = entry
        if self._schedule.early:
            # A call that may adopt an orphan waits until all calls before it are known.
            orphan = self._orphans.find(prepared) if self._orphans else None
            self._first_submitted.setdefault(prepared.fingerprint, orphan or entry)
            if prepared.effect == "read" and not (prepared.asks or prepared.refusal):
                self._held_back[entry] = None
            moved = self._front.ready(prepared)
            if moved or self._front.reaches(prepared.call.index):
                self._start_early(list(self._held_back) if moved else [entry])

    def take_out(self, index: int, reason: str) -> None:
        """A call that had begun or even started turned out to be incomplete or not a call."""
        self._front.withdraw(index)
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
                self._finish(entry, _given(entry) or _cancelled(entry))
                entry.state = "withdrawn"
                self._withdrawn.append(entry)
            elif entry.started_at is not None:
                self._orphans.add(entry)
        self._entries, self._taken_out = {}, {}
        self._first_submitted, self._held_back = {}, {}
        self._front = Front()
        self.failed = False
        if self._halted == EARLIER_FAILED:
            self._halted = ""
        self._observer.restarted()
        return {orphan.prepared.number for orphan in self._orphans}

    def _adopt_orphans(self) -> None:
        """The calls are known now, in their order."""
        for place, orphan in self._orphans.adoptions(self._entries):
            prepared, self._entries[place] = self._entries[place].prepared, orphan
            self._adopted = True
            self._adopt(orphan, prepared)
        self._drop_orphans(NOT_ASKED_AGAIN)

    def _drop_orphans(self, reason: str) -> None:
        for orphan in self._orphans.pop_all():
            self._withdraw(orphan, f"cancelled: {reason}")  # without events: it is not a failure of this round
            if not orphan.told and orphan.result is not None:
                orphan.told = True
                self._observer.finished(orphan.prepared, orphan.result, orphan.seconds)
            self._observer.dropped(orphan.prepared, reason)

    def _adopt(self, orphan: Entry, prepared: Prepared) -> None:
        self._observer.adopted(prepared, orphan.prepared.number)
        orphan.orphaned, orphan.told = False, False
        orphan.prepared = prepared
        if orphan.context is not None:
            orphan.context.call_id, orphan.context.number = prepared.call.id, prepared.number
        given = orphan.result or _given(orphan)
        if given is not None:
            orphan.state = "running"
            self._finish(orphan, replace(given, call_id=prepared.call.id))

    def _withdraw(self, entry: Entry, reason: str) -> None:
        self._stop(entry, reason)
        self._held_back.pop(entry, None)
        if entry.started_at is not None:
            self._finish(entry, _given(entry) or failure(entry.call, reason, "cancelled"))
        entry.state = "withdrawn"
        self._withdrawn.append(entry)

    def _start_early(self, entries: Iterable[Entry]) -> None:
        starting: list[Entry] = []
        for entry in entries:
            prepared = entry.prepared
            tool = prepared.tool
            if (
                entry.state == "waiting"
                and tool is not None
                and tool.effect == "read"
                and tool.function is not None
                and not (prepared.asks or prepared.refusal or self._halted)
                and self._first_submitted[prepared.fingerprint] is entry
                and self._front.lets_pass(prepared)
                and not self._key_is_busy(prepared)
            ):
                entry.state = "running"
                self._held_back.pop(entry, None)
                if prepared.key is not None:
                    self._busy_keys[prepared.key] = self._busy_keys.get(prepared.key, 0) + 1
                starting.append(entry)
        self._start(starting)

    def _key_is_busy(self, prepared: Prepared) -> bool:
        return prepared.key is not None and self._busy_keys.get(prepared.key, 0) > 0

    # The message is complete

    async def seal(
        self, calls: Sequence[Prepared], decisions: Mapping[str, Approval | ToolResult] | None = None
    ) -> list[ToolResult | None]:
        """Takes the calls of the message and returns their results, both in call order. None stands for a call that
        waits for an outside decision, or for the end of such a call. `decisions` are outside decisions, by call id."""
        self._sealed = True
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
            self._observer.dropped(entry.prepared, NOT_IN_MESSAGE)
        if self._orphans:
            self._adopt_orphans()
        for entry in self._entries.values():
            decision = decisions.get(entry.call.id) if decisions else None
            if isinstance(decision, ToolResult):
                self._decide(entry, decision)
            elif not entry.started and entry.prepared.refusal:
                self._finish(entry, _refused(entry.prepared))
            elif decision is not None:
                self._decide(entry, decision)
        self._in_order = list(self._entries.values())
        self._some_wait = "waiting" in [entry.state for entry in self._in_order]
        if len({entry.prepared.fingerprint for entry in self._in_order}) < len(self._in_order):
            for original, sharer in find_twins(self._in_order, self._share_all):
                if original.result is not None:
                    self._share(original, sharer, original.result)
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
        self._halted = reason
        for entry in (*self._entries.values(), *self._orphans):
            if entry.state == "running":
                self._stop(entry, f"cancelled: {reason}")
            elif entry.state == "asking":
                self._stop(entry, f"{NOT_EXECUTED}: {reason}")
        if self._sealed:
            self._advance()

    def halt_after(self, seconds: float, reason: str, report: Callable[[], None]) -> None:
        """`report` is called just before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._run_out, reason, report)

    def _run_out(self, reason: str, report: Callable[[], None]) -> None:
        report()
        self.out_of_time = True
        self.halt(reason)

    def settle(
        self, calls: Sequence[ToolCall], number: Callable[[ToolCall], int], reason: str = CANCELLED
    ) -> list[ToolResult]:
        """After the end, for whatever reason: a result for each of these calls, the real one if there is one. `number`
        returns the number of a call that the batch never got."""
        results: list[ToolResult] = []
        entries = {entry.call.id: entry for entry in self._entries.values()}
        for call in calls:
            entry = entries.get(call.id) or Entry(Prepared(call, None, number(call)))
            orphan = None if entry.started else self._orphans.pop(entry.prepared)
            if orphan is not None:
                self._adopt(orphan, entry.prepared)
                entry = orphan
            if entry.result is None:
                self._finish(entry, _left(call, entry.started_at is not None, reason))
            results.append(entry.result or _left(call, False, reason))
        return results

    def abandon(self, reason: str = NOT_ASKED_AGAIN) -> None:
        """The message is not in the history, or has no calls: reports the end of calls that had started."""
        self._drop_orphans(reason)
        for entry in self._entries.values():
            if entry.started_at is not None:
                self._finish(entry, _given(entry) or _left(entry.call, True, reason))

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls that wait for an outside decision, without those that only wait for them."""
        return tuple(entry.call for entry in self._entries.values() if entry.state == "pending")

    @property
    def uncertain(self) -> tuple[str, ...]:
        """The ids of those that may have taken effect before their process died."""
        entries = self._entries.values()
        return tuple(entry.call.id for entry in entries if entry.state == "pending" and entry.prepared.waits)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the calls that have no result yet, by their ids."""
        return {entry.call.id: entry.prepared.number for entry in self._entries.values() if entry.result is None}

    @property
    def decided(self) -> dict[str, Approval]:
        """Decisions about calls that could not run yet: they stay valid when the run is resumed."""
        return {
            entry.call.id: Allow() if entry.original is None else Edit(entry.call.arguments or {})
            for entry in self._entries.values()
            if entry.approved and not entry.started
        }

    def seconds(self) -> list[float]:
        """How long the tool of each call ran, in call order."""
        return [entry.seconds for entry in self._in_order]

    def _advance(self) -> None:
        """Starts everything that can start now; sets the end if nothing is left to wait for."""
        if self._some_wait:
            self._start_what_is_free()
        if self._busy == 0:
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        """All calls are done, or the rest waits for an outside decision. That decision is requested for all of them at
        once, including calls that could not start yet."""
        if "pending" in [entry.state for entry in self._in_order]:
            for entry in self._in_order:
                prepared = entry.prepared
                if entry.state == "waiting" and entry.twin is None and prepared.tool is not None:
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
        way = Way(self._schedule)
        self._some_wait = False
        for entry in self._withdrawn:
            if entry.task in self._tasks:  # it was cancelled and has not ended yet
                way.block(entry.prepared, True)
        while self._ended_before < len(self._in_order) and self._in_order[self._ended_before].finished:
            self._ended_before += 1
        for entry in islice(self._in_order, self._ended_before, None):
            if entry.state == "waiting" and entry.twin is None and not way.bars(entry.prepared) and self._fits(entry):
                if self._halted:
                    self._finish(entry, _left(entry.call, False, self._halted))
                elif entry.prepared.tool is not None and entry.prepared.tool.function is None:
                    entry.state = "pending"
                elif entry.prepared.waits:
                    self._observer.asked(entry.prepared, True)
                    entry.state = "pending"
                elif entry.prepared.asks and not entry.approved:
                    self._ask(entry)
                else:
                    entry.state = "running"
                    entry.started_at = self._clock.elapsed()
                    starting.append(entry)
            if not entry.finished:
                self._some_wait = self._some_wait or entry.state == "waiting"
                way.block(entry.prepared, entry.started)
                if way.closed:
                    self._some_wait = self._some_wait or entry is not self._in_order[-1]
                    break
        self._start(starting)

    def _fits(self, entry: Entry) -> bool:
        """An edit may give a call the key of a later one that runs already; and a later one that was adopted runs."""
        key = entry.prepared.key
        if key is None or (entry.original is None and not self._adopted):
            return True
        return not any(other.state == "running" and other.prepared.key == key for other in self._in_order)

    # Identical calls

    def _share(self, original: Entry, sharer: Entry, result: ToolResult) -> None:
        self._finish(sharer, replace(result, call_id=sharer.call.id, duplicate_of=original.call.id))

    # Approval: one question at a time, in call order

    def _ask(self, entry: Entry) -> None:
        if self._asking is not None:
            return
        self._observer.asked(entry.prepared, False)
        if self._on_approval is None:
            self._finish(entry, failure(entry.call, NOBODY_APPROVES, "not_executed"))
            return
        entry.state = "asking"
        self._asking = entry
        self._launch(entry, ask(self._on_approval, entry.call))

    def _decide(self, entry: Entry, decision: Approval | ToolResult) -> None:
        match decision:
            case ToolResult():
                self._finish(entry, replace(decision, call_id=entry.call.id, name=entry.call.name))
            case Allow():
                entry.approved = True
            case Edit(arguments):
                entry.approved, entry.original = True, entry.prepared
                entry.prepared = self._prepare(replace(entry.call, arguments=arguments))
                entry.prepared.number = entry.original.number
                entry.prepared.uncertain = entry.original.uncertain
                if entry.prepared.refusal:
                    self._finish(entry, _refused(entry.prepared))
            case Deny(reason):
                why = f"denied: {reason}" if reason else "denied"
                if entry.prepared.uncertain:
                    self._finish(entry, unknown(entry.call, f"running it again was {why}"))
                else:
                    self._finish(entry, _left(entry.call, False, why))
            case Wait():
                entry.state = "pending"

    # Running and ending

    def _start(self, starting: Sequence[Entry]) -> None:
        contexts: list[CallContext[Any]] = []
        for entry in starting:
            entry.started_at = self._clock.elapsed()
            # The key is that of the model's own call: two calls that were edited to be equal stay two calls.
            entry.context = context = self._context(entry.original or entry.prepared)
            context.arguments = entry.prepared.arguments
            contexts.append(context)
            if context.ran_before is None:  # otherwise it only gets the result that it had
                self._observer.started(entry.prepared, not self._sealed)
        for entry, context in zip(starting, contexts, strict=True):
            self._launch(entry, self._run(entry.prepared.call, context))
            tool = entry.prepared.tool
            if tool is not None and tool.timeout is not None and tool.signature.is_async:
                self._expect_end(entry, tool.timeout * (1 + tool.retries) + GRACE)

    def _launch(self, entry: Entry, work: Any) -> None:
        self._busy += 1
        entry.task = task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, entry))

    async def _run(self, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        try:
            result = await self._caller(call, context)
        except RecordingFailed:
            raise
        except Exception as error:  # noqa: BLE001 - a foreign `Caller` may break its promise not to raise
            return failure(call, in_words(error))
        if not isinstance(result, ToolResult):  # pyright: ignore[reportUnnecessaryIsInstance] - a foreign `Caller`
            return failure(call, f"what runs the tools gave {type(result).__name__}, and no ToolResult")
        return result if result.call_id == call.id else replace(result, call_id=call.id)

    def _ended(self, entry: Entry, task: asyncio.Task[Any]) -> None:
        try:
            self._take_end(entry, task)
        except BaseException as error:
            self._crash = error  # an exception in a callback would be lost; the batch raises it
            self._rest()
            raise

    def _take_end(self, entry: Entry, task: asyncio.Task[Any]) -> None:
        LEFT_BEHIND.discard(task)
        if task not in self._tasks:
            return  # it was given up
        self._tasks.discard(task)
        self._busy -= 1
        key = entry.prepared.key
        if not self._sealed and key is not None:
            self._busy_keys[key] = self._busy_keys.get(key, 0) - 1
        if self._asking is entry:
            self._asking = None
        if entry.finished:
            pass  # it was taken out, or settled
        elif task.cancelled():
            if self._left and not entry.stopped:
                return
            self._finish(entry, _cancelled(entry))
        elif isinstance(refused := task.exception(), RecordingFailed):
            self._refused, entry.started_at = refused, None
            self._halted = self._halted or NOT_RECORDED
            self._some_wait = True
            self._finish(entry, _left(entry.call, False, NOT_RECORDED))
        elif task.exception() is not None:
            self._left = True
            self._crash = task.exception()  # the batch raises it
            self._rest()
        elif entry.state == "asking":
            entry.state = "waiting"
            self._some_wait = True
            self._decide(entry, task.result())
        else:
            result: ToolResult = task.result()
            if result.call_id != entry.call.id:  # it was adopted meanwhile
                result = replace(result, call_id=entry.call.id)
            if entry.original is not None:
                changed = quote(entry.call.arguments or {})
                result = note(result, f"[Its arguments were changed before it ran: {changed}]")
            self._finish(entry, result)
        if self._left:
            return
        if self._sealed:
            self._advance()
        elif entry.prepared.key is not None:
            self._start_early(list(self._held_back))

    def _stop(self, entry: Entry, reason: str) -> None:
        if entry.task is not None and not entry.task.done():
            entry.stopped = reason
            entry.task.cancel()
            self._expect_end(entry, GRACE)

    def _expect_end(self, entry: Entry, seconds: float) -> None:
        if self._watch is None:
            self._watch = Watch(self._loop, self._give_up_overdue)
        self._watch.expect(entry, seconds)

    def _give_up_overdue(self) -> None:
        """Answers calls that did not end after their cancellation, and leaves them behind."""
        assert self._watch is not None
        known = (*self._entries.values(), *self._orphans, *self._withdrawn)
        for entry in self._watch.overdue([entry for entry in known if entry.task in self._tasks]):
            assert entry.task is not None
            entry.task.cancel()
            self._tasks.discard(entry.task)
            LEFT_BEHIND.add(entry.task)
            self._busy -= 1
            tool = entry.prepared.tool
            timeout = tool.timeout if tool is not None else None
            late = failure(entry.call, timed_out(timeout or 0.0), "timed_out")
            self._finish(entry, _cancelled(entry) if entry.stopped else late)
        if self._sealed and not self._left:
            self._advance()

    def _finish(self, entry: Entry, result: ToolResult) -> None:
        if entry.finished:
            return
        entry.state = "done"
        if entry.result is None and entry.started_at is not None:  # an adopted one keeps its own time
            entry.seconds = round(self._clock.elapsed() - entry.started_at, 9)
            if entry.context is not None and entry.context.ran_before is not None:  # it did not run again
                entry.seconds = entry.context.ran_before
            elif result.outcome == "unknown":
                entry.seconds = 0.0
        entry.result = result
        if entry.context is not None:
            entry.context.ended = True
        ran = entry.started_at is not None
        if entry.orphaned:
            return  # reported when it is known which call it belongs to
        shared = entry.twin is not None and entry.twin.started_at is not None
        failed = ran_and_failed(result) and not entry.stopped  # a call that we cancelled did not fail
        self.failed = self.failed or (failed and (ran or shared))
        if ran and failed and self._stop_on_failure and not self._halted:
            self._halted = EARLIER_FAILED
        entry.told = True
        self._observer.finished(entry.prepared, result, entry.seconds)
        for sharer in entry.sharers:
            self._share(entry, sharer, result)


def _given(entry: Entry) -> ToolResult | None:
    """The result of its tool if the loop has not processed it yet."""
    task = entry.task
    if task is None or not task.done():
        return None
    if task.cancelled():
        return _cancelled(entry) if entry.stopped else None
    if task.exception() is not None:
        return None
    result: object = task.result()
    return result if isinstance(result, ToolResult) else None


def _refused(prepared: Prepared) -> ToolResult:
    if prepared.uncertain:
        return unknown(prepared.call, f"it cannot run now: {prepared.refusal}")
    return failure(prepared.call, prepared.refusal, "not_executed")


def _left(call: ToolCall, ran: bool, reason: str) -> ToolResult:
    """The result of a call that does not end by itself."""
    if ran:
        return failure(call, f"cancelled: {reason}", "cancelled")
    return failure(call, f"{NOT_EXECUTED}: {reason}", "not_executed")


def _cancelled(entry: Entry) -> ToolResult:
    """Its task was cancelled: by the run, or by the tool itself."""
    if entry.state == "asking":
        return failure(entry.call, entry.stopped or f"{NOT_EXECUTED}: the approval was cancelled", "not_executed")
    if entry.stopped:
        return failure(entry.call, entry.stopped, "cancelled")
    return failure(entry.call, CANCELLED_ITSELF)
