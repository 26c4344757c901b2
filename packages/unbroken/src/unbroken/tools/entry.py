"""One call of a batch: its state (`Entry`), its task (`Tasks`), and its one result (`Answers`).

`execution` decides when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Literal, Protocol, TypeAlias

from unbroken.clock import SLACK, Clock, Deadline, deadline
from unbroken.tools.caller import Prepared, failure, not_executed, ran_and_failed
from unbroken.tools.context import CallContext
from unbroken.tools.results import CallWaits
from unbroken_wires.messages import ToolCall, ToolResult

State: TypeAlias = Literal["waiting", "asking", "running", "pending", "done", "withdrawn"]

EARLIER_FAILED = "an earlier call failed"
CANCELLED_ITSELF = "the tool cancelled its own task"


@dataclass(slots=True, eq=False)
class Entry:
    """`state` is `asking` while the approver is asked, `pending` while an outside decision is awaited."""

    prepared: Prepared
    state: State = "waiting"
    approved: bool = False
    original: Prepared | None = None
    """The call as the model made it, if its arguments were edited."""
    task: asyncio.Task[Any] | None = None
    started_at: float | None = None
    seconds: float = 0.0
    shares_with: Entry | None = None
    """The identical call whose execution this one shares."""
    sharers: tuple[Entry, ...] = ()
    result: ToolResult | None = None
    stopped: str = ""
    """Why it was cancelled, for the model to read."""
    context: CallContext[Any] | None = None
    overdue: float = inf
    """When it is given up if it does not end after its cancellation."""
    orphaned: bool = False
    """Its message broke off. It continues without events until it is known whether the retried message contains it."""
    told: bool = False
    """Its end was reported."""
    waits: CallWaits | None = None
    """It has started, and waits for decisions about calls of an agent that runs as its tool."""

    @property
    def call(self) -> ToolCall:
        return self.prepared.call

    @property
    def started(self) -> bool:
        return self.started_at is not None or self.finished

    @property
    def finished(self) -> bool:
        return self.state in ("done", "withdrawn")

    def given(self) -> ToolResult | None:
        """The result of its task if the batch has not processed it yet."""
        task = self.task
        if task is None or not task.done():
            return None
        if task.cancelled():
            return self.cancelled() if self.stopped else None
        if task.exception() is not None:
            return None
        result: object = task.result()
        return result if isinstance(result, ToolResult) else None

    def cancelled(self) -> ToolResult:
        """The result if its task was cancelled: by the run, or by the tool itself."""
        if self.state == "asking":
            if not self.stopped:
                return not_executed(self.call, "the approval was cancelled")
            return failure(self.call, self.stopped, "not_executed")
        if self.stopped:
            return failure(self.call, self.stopped, "cancelled")
        return failure(self.call, CANCELLED_ITSELF)


GRACE = 5.0
"""Seconds that a call has to end after it was cancelled: some tools clean up, some ignore it."""

LEFT_BEHIND: set[asyncio.Task[Any]] = set()
"""Calls that did not end after their cancellation."""


class Tasks:
    """The tasks of one batch. Not an `asyncio.TaskGroup`, because one call may be cancelled without the others, and no
    exception may be wrapped in a group. One timer serves all calls that may not end after their cancellation or
    time-out. It keeps no callback, because only the garbage collector could then free its batch."""

    __slots__ = ("_entries", "_loop", "_next", "busy")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entries: dict[asyncio.Task[Any], Entry] = {}
        self._next: Deadline | None = None
        """When the first of the calls may be overdue."""
        self.busy = 0
        """Tasks whose end is still to be handled."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, task: object) -> bool:
        return task in self._entries

    def launch(
        self, entry: Entry, work: Coroutine[Any, Any, Any], on_end: Callable[[Entry, asyncio.Task[Any]], None]
    ) -> None:
        entry.task = task = self._loop.create_task(work)
        self.busy += 1
        self._entries[task] = entry
        task.add_done_callback(partial(on_end, entry))

    def take_end(self, task: asyncio.Task[Any]) -> bool:
        """Forgets a task that has ended. Returns false if it was given up before."""
        LEFT_BEHIND.discard(task)
        if self._entries.pop(task, None) is None:
            return False
        self.busy -= 1
        return True

    def expect_end(self, entry: Entry, seconds: float, ring: Callable[[], None], usual: bool = True) -> None:
        """The call has to end within this many seconds. `ring` is called when the first call may be overdue."""
        entry.overdue = self._loop.time() + seconds
        if self._next is None or entry.overdue < self._next.due:
            self.end_watch()
            self._next = deadline(self._loop, seconds, ring, usual)

    def give_up_overdue(self, ring: Callable[[], None]) -> list[Entry]:
        """Cancels the calls that are overdue, leaves them behind and returns them; the others stay watched."""
        self._next = None
        now = self._loop.time()
        late: list[Entry] = []
        for task, entry in [*self._entries.items()]:
            if entry.overdue - now <= SLACK:
                context = entry.context
                if context is not None and (context.elsewhere or context.asked) and not entry.stopped:
                    entry.overdue = inf  # its time-out does not count while it waits in a queue, or for a person
                    continue
                task.cancel()
                del self._entries[task]
                LEFT_BEHIND.add(task)
                self.busy -= 1
                late.append(entry)
            elif entry.overdue < inf:
                self.expect_end(entry, entry.overdue - now, ring, usual=False)
        return late

    def end_watch(self) -> None:
        if self._next is not None:
            self._next.cancel()

    async def end_all(self) -> asyncio.CancelledError | None:
        """Cancels what still runs and waits for its end, even if the waiting itself is cancelled: then it returns that
        cancellation."""
        cancelled: asyncio.CancelledError | None = None
        for task in self._entries:
            task.cancel()
        patience = self._loop.time() + GRACE
        while self._entries and (left := patience - self._loop.time()) > 0:
            try:
                await asyncio.wait(self._entries, timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
        LEFT_BEHIND.update(self._entries)
        return cancelled


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


class Answers:
    """Gives every call exactly one result, and reports it. With `stop_on_failure`, a tool that fails halts the rest."""

    __slots__ = ("_clock", "_halted_by_failure", "_observer", "_stop_on_failure", "failed", "halted")

    def __init__(self, observer: Observer, clock: Clock, stop_on_failure: bool) -> None:
        self._observer = observer
        self._clock = clock
        self._stop_on_failure = stop_on_failure
        self.failed = False
        """A call that was executed failed."""
        self.halted = ""
        """Why nothing more may start, for the model to read."""
        self._halted_by_failure = False

    def halt(self, reason: str) -> None:
        self.halted, self._halted_by_failure = reason, False

    def restart(self) -> None:
        """The message broke off: what failed in it does not count."""
        self.failed = False
        if self._halted_by_failure:
            self.halted, self._halted_by_failure = "", False
        self._observer.restarted()

    def finish(self, entry: Entry, result: ToolResult) -> None:
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
        if entry.context is not None and result.outcome != "running":
            entry.context.ended = True
        if entry.orphaned:
            return  # reported when it is known which call it belongs to
        ran = entry.started_at is not None
        shared = entry.shares_with is not None and entry.shares_with.started_at is not None
        failed = ran_and_failed(result) and not entry.stopped  # a call that we cancelled did not fail
        self.failed = self.failed or (failed and (ran or shared))
        if ran and failed and self._stop_on_failure and not self.halted:
            self.halted, self._halted_by_failure = EARLIER_FAILED, True
        entry.told = True
        self._observer.finished(entry.prepared, result, entry.seconds)
        for sharer in entry.sharers:
            self.share(entry, sharer, result)

    def share(self, original: Entry, sharer: Entry, result: ToolResult) -> None:
        """An identical call gets the result too."""
        self.finish(sharer, replace(result, call_id=sharer.call.id, duplicate_of=original.call.id))

    def adopt(self, orphan: Entry, prepared: Prepared) -> None:
        """The retried message contains the orphan's call again, as this one: it takes over the execution."""
        self._observer.adopted(prepared, orphan.prepared.number)
        orphan.orphaned, orphan.told = False, False
        orphan.prepared = prepared
        if orphan.context is not None:
            orphan.context.call_id, orphan.context.number = prepared.call.id, prepared.number
        given = orphan.result or orphan.given()
        if given is not None:
            orphan.state = "running"
            self.finish(orphan, replace(given, call_id=prepared.call.id))

    def drop(self, entry: Entry, reason: str) -> None:
        """The call was withdrawn: no message contains it. The end of an orphan is reported here."""
        if entry.orphaned and not entry.told and entry.result is not None:
            entry.told = True
            self._observer.finished(entry.prepared, entry.result, entry.seconds)
        self._observer.dropped(entry.prepared, reason)
