"""When the calls of one message run: `Schedule` says how, `Batch` does it, and every call gets exactly one result.

Strategy. Calls are entries in call order. An entry starts when nothing before it stands in its way: `Way` says whether
it has to wait for an earlier one's end, for its start, or for nothing. While the message is still being written only
reads may start (EAGER), and only behind a front of calls that are known and are reads too, or have another key. `seal`
is called once, with the message complete: what can start then starts, all starts are said before the first of them
runs, and each end lets others go. What a call gives is the business of the `Caller`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from unbroken.clock import Clock
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.approval import Allow, Approval, Deny, Edit, OnApproval, Wait
from unbroken.tools.calling import Caller, Prepared, failure, in_words, note, quote
from unbroken.tools.context import CallContext

State: TypeAlias = Literal["waiting", "asking", "running", "pending", "done", "withdrawn"]

NOT_EXECUTED = "not executed"
CANCELLED = "the run was cancelled"
CANCELLED_ITSELF = "the tool cancelled its own task"
EARLIER_FAILED = "an earlier call failed"
NOBODY_APPROVES = f"{NOT_EXECUTED}: it needs an approval, and nobody is there to give it"


class Schedule(Enum):
    """How the calls of one message run."""

    SEQUENTIAL = "sequential"
    """One after another, in call order."""
    PARALLEL = "parallel"
    """All together, when the response has ended."""
    EAGER = "eager"
    """As PARALLEL, but reads start as soon as they are complete, while the response is still being written."""

    @property
    def early(self) -> bool:
        return self is Schedule.EAGER

    @property
    def serial(self) -> bool:
        return self is Schedule.SEQUENTIAL


class Observer(Protocol):
    """Told what happens, in the order in which it happens."""

    def asked(self, call: ToolCall) -> None: ...

    def started(self, prepared: Prepared, early: bool) -> None: ...

    def finished(self, call: ToolCall, result: ToolResult, seconds: float, executed: bool) -> None: ...


@dataclass(slots=True, eq=False)
class Entry:
    prepared: Prepared
    state: State = "waiting"
    approved: bool = False
    original: Prepared | None = None
    """The call as the model made it, if its arguments were edited."""
    task: asyncio.Task[Any] | None = None
    started_at: float | None = None
    seconds: float = 0.0
    twin: Entry | None = None
    """The identical call whose execution this one shares."""
    sharers: list[Entry] = field(default_factory=list["Entry"])
    result: ToolResult | None = None
    stopped: str = ""
    """Why it was cancelled, for the model to read."""

    @property
    def call(self) -> ToolCall:
        return self.prepared.call

    @property
    def started(self) -> bool:
        return self.started_at is not None or self.finished

    @property
    def finished(self) -> bool:
        return self.state in ("done", "withdrawn")


class Batch:
    """The calls of one message. Use it as an async context: leaving it ends what still runs.

    `prepare` is asked again for a call whose arguments were edited. `share_all` lets identical calls of every tool
    share one execution, unless the tool says no.
    """

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
        self._create_task = asyncio.get_running_loop().create_task
        self._front = Front()
        self._entries: dict[int, Entry] = {}
        """By index; in call order once sealed."""
        self._in_order: list[Entry] = []
        self._first_submitted: dict[str, Entry] = {}
        self._sealed = False
        self._ended_before = 0
        """So many entries at the beginning are finished."""
        self._some_wait = True
        self._asking: Entry | None = None
        self._left = False
        """Nothing may start any more: what ends now lets nobody go."""
        self._halted = ""
        self._busy = 0
        """Tasks that will still say something."""
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.failed = False
        """A call that was executed failed."""

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels what still runs, and waits for its end in any case: a task group of its own kind, because one call
        may be cancelled without the others, and nothing that happens here may be wrapped in a group of exceptions."""
        self._left = True
        if self._timer is not None:
            self._timer.cancel()
        cancelled: asyncio.CancelledError | None = None
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as once_more:
                cancelled = once_more
        if cancelled is not None and error is None:
            raise cancelled

    # While the message is being written

    def open(self, index: int, surely_read: bool) -> None:
        """A call has begun. `surely_read`: its name alone says that it stands in no other read's way."""
        self._front.open(index, surely_read)

    def submit(self, prepared: Prepared) -> None:
        """A call is complete. It may start now."""
        entry = Entry(prepared)
        self._entries[prepared.call.index] = entry
        if self._schedule.early:
            self._first_submitted.setdefault(prepared.fingerprint, entry)
            moved = self._front.ready(prepared)
            if moved or self._front.reaches(prepared.call.index):
                self._start_early(self._entries.values() if moved else [entry])

    def take_out(self, index: int, reason: str) -> None:
        """A call that was begun, or even started, turned out to be none, or not to be whole."""
        self._front.withdraw(index)
        entry = self._entries.pop(index, None)
        if entry is not None:
            self._stop(entry, reason)
            entry.state = "withdrawn"

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
                starting.append(entry)
        self._start(starting)

    def _key_is_busy(self, prepared: Prepared) -> bool:
        if prepared.key is None:
            return False
        return any(
            other.prepared.key == prepared.key and other.call.index < prepared.call.index and not other.finished
            for other in self._entries.values()
        )

    # The message is complete

    async def seal(
        self, calls: Sequence[Prepared], decisions: Mapping[str, Approval | ToolResult] | None = None
    ) -> list[ToolResult | None]:
        """The calls of the message in call order; gives their results in the same order. None stands for a call that
        waits for somebody outside, or for such a call's end. `decisions` are what was said outside, by call id."""
        self._sealed = True
        begun, self._entries = self._entries, {}
        for prepared in calls:
            entry = begun.pop(prepared.call.index, None)
            if entry is None:
                entry = Entry(prepared)
            elif entry.state == "waiting":
                entry.prepared = prepared
            self._entries[prepared.call.index] = entry
        for entry in begun.values():
            self._stop(entry, "it is not in the message")
            entry.state = "withdrawn"
        for entry in self._entries.values():
            if not entry.started and entry.prepared.refusal:
                self._finish(entry, failure(entry.call, entry.prepared.refusal))
            elif decisions and (decision := decisions.get(entry.call.id)) is not None:
                self._decide(entry, decision)
        self._find_twins()
        self._in_order = list(self._entries.values())
        self._advance()
        await self._idle.wait()
        return [entry.result for entry in self._entries.values()]

    def halt(self, reason: str) -> None:
        """Time is up: running calls are cancelled, the others never start; each is answered with the reason."""
        self._halted = reason
        for entry in self._entries.values():
            if entry.state in ("running", "asking"):
                self._stop(entry, f"cancelled: {reason}")
        if self._sealed:
            self._advance()

    def halt_after(self, seconds: float, reason: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.halt, reason)

    def settle(self, calls: Sequence[ToolCall], reason: str = CANCELLED) -> list[ToolResult]:
        """After the end, however it came: a result for each of these calls, real where there is one."""
        results: list[ToolResult] = []
        for call in calls:
            entry = self._entries.get(call.index) or Entry(Prepared(call, None))
            if entry.result is None:
                ran = entry.started_at is not None
                self._finish(entry, failure(call, f"{'cancelled' if ran else NOT_EXECUTED}: {reason}"))
            results.append(entry.result or failure(call, reason))
        return results

    def abandon(self, reason: str) -> None:
        """After the end: the message is in no history, but what had started is told to have ended."""
        for entry in self._entries.values():
            if entry.started_at is not None:
                self._finish(entry, failure(entry.call, f"cancelled: {reason}"))

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls that wait for somebody outside, without those that only wait for them."""
        return tuple(entry.call for entry in self._entries.values() if entry.state == "pending")

    def seconds(self, index: int) -> float:
        """How long the tool of this call ran."""
        return self._entries[index].seconds

    def _advance(self) -> None:
        """Start all that can start now; if nothing is left that could let others go, say so."""
        if self._some_wait:
            self._start_what_is_free()
        if self._busy == 0:
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        """Done, or what is left waits for somebody outside. Whoever is asked there is asked about all of it at once:
        also about calls that could not start yet."""
        if any(entry.state == "pending" for entry in self._in_order):
            for entry in self._in_order:
                prepared = entry.prepared
                if entry.state == "waiting" and entry.twin is None and prepared.tool is not None:
                    if prepared.asks and not entry.approved:
                        self._observer.asked(entry.call)
                        entry.state = "pending"
                    elif prepared.tool.function is None:
                        entry.state = "pending"
        self._idle.set()

    def _start_what_is_free(self) -> None:
        starting: list[Entry] = []
        way = Way(self._schedule.serial)
        self._some_wait = False
        while self._ended_before < len(self._in_order) and self._in_order[self._ended_before].finished:
            self._ended_before += 1
        for entry in islice(self._in_order, self._ended_before, None):
            if entry.state == "waiting" and entry.twin is None and not way.bars(entry.prepared):
                if self._halted:
                    self._finish(entry, failure(entry.call, f"{NOT_EXECUTED}: {self._halted}"))
                elif entry.prepared.tool is not None and entry.prepared.tool.function is None:
                    entry.state = "pending"
                elif entry.prepared.asks and not entry.approved:
                    self._ask(entry)
                else:
                    entry.state = "running"
                    entry.started_at = self._clock.elapsed()
                    starting.append(entry)
            if not entry.finished:
                self._some_wait = self._some_wait or entry.state == "waiting"
                way.block(entry)
                if way.closed:
                    self._some_wait = True
                    break
        self._start(starting)

    # Identical calls

    def _find_twins(self) -> None:
        """Identical calls share one execution: that of the one which has started, else of the first."""
        first_of: dict[str, Entry] = {}
        for entry in self._entries.values():
            prepared = entry.prepared
            tool = prepared.tool
            if tool is None or prepared.refusal:
                continue
            if tool.effect != "read":
                # A read after a write may see something new, so it does not share with one before it.
                first_of = {
                    fingerprint: first
                    for fingerprint, first in first_of.items()
                    if first.prepared.effect != "read" or not _disturbs(prepared, first.prepared)
                }
            if not (tool.shared or (self._share_all and tool.dedupe is None)):
                continue
            first = first_of.setdefault(prepared.fingerprint, entry)
            if first is entry:
                continue
            original, sharer = (entry, first) if entry.started and not first.started else (first, entry)
            first_of[prepared.fingerprint] = original
            if not sharer.started:
                sharer.twin = original
                original.sharers.append(sharer)
                if original.result is not None:
                    self._share(original, sharer, original.result)

    def _share(self, original: Entry, sharer: Entry, result: ToolResult) -> None:
        self._finish(sharer, replace(result, call_id=sharer.call.id, duplicate_of=original.call.id))

    # Approval: one question at a time, in call order

    def _ask(self, entry: Entry) -> None:
        if self._asking is not None:
            return
        self._observer.asked(entry.call)
        if self._on_approval is None:
            self._finish(entry, failure(entry.call, NOBODY_APPROVES))
            return
        entry.state = "asking"
        self._asking = entry
        self._launch(entry, _approval(self._on_approval, entry.call))

    def _decide(self, entry: Entry, decision: Approval | ToolResult) -> None:
        match decision:
            case ToolResult():
                self._finish(entry, decision)
            case Allow():
                entry.approved = True
            case Edit(arguments):
                entry.approved, entry.original = True, entry.prepared
                entry.prepared = self._prepare(replace(entry.call, arguments=arguments))
                if entry.prepared.refusal:
                    self._finish(entry, failure(entry.call, entry.prepared.refusal))
            case Deny(reason):
                why = f"denied: {reason}" if reason else "denied"
                self._finish(entry, failure(entry.call, f"{NOT_EXECUTED}: {why}"))
            case Wait():
                entry.state = "pending"

    # Running and ending

    def _start(self, starting: Sequence[Entry]) -> None:
        for entry in starting:
            entry.started_at = self._clock.elapsed()
            self._observer.started(entry.prepared, not self._sealed)
        for entry in starting:
            # Its key is that of the model's own call: two calls that are edited to be alike are still two.
            context = self._context(entry.original or entry.prepared)
            context.arguments = entry.prepared.arguments
            self._launch(entry, self._run(entry.prepared.call, context))

    def _launch(self, entry: Entry, work: Any) -> None:
        self._busy += 1
        entry.task = task = self._create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, entry))

    async def _run(self, call: ToolCall, context: CallContext[Any]) -> ToolResult:
        try:
            return await self._caller(call, context)
        except Exception as error:  # noqa: BLE001 - a foreign `Caller` may break its promise not to raise
            return failure(call, in_words(error))

    def _ended(self, entry: Entry, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._busy -= 1
        if self._asking is entry:
            self._asking = None
        if entry.finished:
            pass  # it was taken out, or settled
        elif task.cancelled():
            if self._left and not entry.stopped:
                return
            alone = f"{NOT_EXECUTED}: the approval was cancelled" if entry.state == "asking" else CANCELLED_ITSELF
            self._finish(entry, failure(entry.call, entry.stopped or alone))
        elif task.exception() is not None:
            self._left = True  # somebody wants the program to end (KeyboardInterrupt): the loop lets it through
        elif entry.state == "asking":
            entry.state = "waiting"
            self._some_wait = True
            self._decide(entry, task.result())
        else:
            result: ToolResult = task.result()
            if entry.original is not None:
                changed = quote(entry.call.arguments or {})
                result = note(result, f"[Its arguments were changed before it ran: {changed}]")
            self._finish(entry, result)
        if self._left:
            return
        if self._sealed:
            self._advance()
        elif entry.prepared.key is not None:
            self._start_early(self._entries.values())

    def _stop(self, entry: Entry, reason: str) -> None:
        if entry.task is not None and not entry.task.done():
            entry.stopped = reason
            entry.task.cancel()

    def _finish(self, entry: Entry, result: ToolResult) -> None:
        if entry.finished:
            return
        entry.state = "done"
        entry.result = result
        ran = entry.started_at is not None
        if entry.started_at is not None:
            entry.seconds = round(self._clock.elapsed() - entry.started_at, 9)
        shared = entry.twin is not None and entry.twin.started_at is not None
        self.failed = self.failed or (result.error and (ran or shared))
        if ran and result.error and self._stop_on_failure and not self._halted:
            self._halted = EARLIER_FAILED
        self._observer.finished(entry.call, result, entry.seconds, ran or shared)
        for sharer in entry.sharers:
            self._share(entry, sharer, result)


class Way:
    """What stands in a call's way once the message is complete: the calls before it that have not finished. It waits
    for the end of those that share its key and of exclusive ones; where one of the two has no key, for the start of
    the earlier one, unless both are reads. Looked up and not compared one by one: a message may hold a thousand calls.
    """

    def __init__(self, serial: bool) -> None:
        self.closed = False
        """Nothing behind can start."""
        self._serial = serial
        self._any = False
        self._keys: set[Any] = set()
        self._odd_keys: list[Any] = []
        """Those that cannot be hashed."""
        self._unstarted: set[tuple[bool, bool]] = set()
        """Whether it has a key, and whether it is a read."""

    def block(self, entry: Entry) -> None:
        prepared = entry.prepared
        key, effect = prepared.key, prepared.effect
        self._any = True
        waits = not entry.started
        self.closed = self._serial or effect == "exclusive" or (waits and key is None and effect == "write")
        if waits:
            self._unstarted.add((key is not None, effect == "read"))
        if key is not None:
            try:
                self._keys.add(key)
            except TypeError:
                self._odd_keys.append(key)

    def bars(self, prepared: Prepared) -> bool:
        key, effect = prepared.key, prepared.effect
        if self._any and effect == "exclusive":
            return True
        if key is not None and self._holds(key):
            return True
        return any(
            not (keyed and key is not None) and not (read and effect == "read") for keyed, read in self._unstarted
        )

    def _holds(self, key: Any) -> bool:
        try:
            if key in self._keys:
                return True
        except TypeError:
            pass
        return key in self._odd_keys


class Front:
    """How far the message is known without a gap, while it is being written, and what may not be overtaken there.

    Providers may number calls in any order, so a gap means that a call before the others may still come. A call that
    may change something, and has no key to compare, ends it for good.
    """

    def __init__(self) -> None:
        self._known: dict[int, Prepared | bool | None] = {}
        """By index: the call, or whether its name says that it is a read; None if it was withdrawn."""
        self._place = 0
        self._keyed_writes: list[Prepared] = []

    def open(self, index: int, surely_read: bool) -> None:
        self._known.setdefault(index, surely_read)
        self._move()

    def ready(self, prepared: Prepared) -> bool:
        """Gives whether others may be free to start now."""
        self._known[prepared.call.index] = prepared
        return self._move()

    def withdraw(self, index: int) -> None:
        self._known[index] = None
        self._move()

    def reaches(self, index: int) -> bool:
        return index <= self._place

    def lets_pass(self, prepared: Prepared) -> bool:
        """Is every call before this one known, and a read too, or one with another key?"""
        index = prepared.call.index
        return self.reaches(index) and not any(
            write.call.index < index and _disturbs(write, prepared) for write in self._keyed_writes
        )

    def _move(self) -> bool:
        before = self._place
        while self._place in self._known:
            known = self._known[self._place]
            if isinstance(known, Prepared):
                if known.effect != "read":
                    if known.key is None or known.effect == "exclusive":
                        break
                    self._keyed_writes.append(known)
            elif known is False:
                break
            self._place += 1
        return self._place > before


def _disturbs(write: Prepared, read: Prepared) -> bool:
    return write.effect == "exclusive" or write.key is None or read.key is None or write.key == read.key


async def _approval(on_approval: OnApproval, call: ToolCall) -> Approval:
    try:
        decision = on_approval(call)
        if inspect.isawaitable(decision):
            decision = await decision
        if isinstance(decision, Allow | Deny | Edit | Wait):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a caller's value
            return decision
        return Deny(f"the approval failed: on_approval gave {decision!r}, and not Allow, Deny, Edit or Wait")
    except Exception as error:  # noqa: BLE001 - a foreign handler runs here; who cannot decide does not allow
        return Deny(f"the approval failed: {in_words(error)}")
