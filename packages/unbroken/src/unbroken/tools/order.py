"""The order in which the calls of one message run, by their schedule. `execution` applies it.

`Orphans` are calls of a message that broke off: they continue until it is known whether the retried message contains
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Any

from unbroken.tools.approval import Allow, Approval, Edit
from unbroken.tools.caller import Prepared
from unbroken.tools.context import CallContext
from unbroken.tools.entry import Entry, Tasks
from unbroken.tools.results import CallWaits
from unbroken.tools.schedule import Schedule
from unbroken_wires.messages import ToolCall, ToolResult

# Which calls of one message may overtake others: while it is being written (`KnownPrefix`, `EarlyReads`), and once it
# is complete (`BlockingRules`, `Order`). Lookups instead of comparing calls pairwise, because a message may have a
# thousand. Nothing runs here.


class KnownPrefix:
    """While the message is being written: how far it is known without a gap, and which calls may not be overtaken.

    A call that may change something, and has no key to compare, ends it for good. So does a call that comes out of turn
    (providers number calls in any order, or give one number twice): where it will stand in the message is not known.
    """

    def __init__(self) -> None:
        self._known: dict[int, Prepared | bool | None] = {}
        """By index: the call, or whether its name shows that it is a read; None if it was withdrawn."""
        self._in_turn = True
        self._place = 0
        self._first_write = inf
        """The place of the first call that changes something; all of them have keys."""
        self._holders: dict[Any, int] = {}
        """By key: the place of the first call that does not start early: one that changes something, or that needs an
        approval."""

    def open(self, index: int, surely_read: bool) -> None:
        self._arrive(index)
        self._known.setdefault(index, surely_read)
        self._move()

    def ready(self, prepared: Prepared) -> bool:
        """Returns whether others may be able to start now."""
        index = prepared.call.index
        self._arrive(index)
        self._known[index] = prepared
        return self._move()

    def withdraw(self, index: int) -> None:
        self._arrive(index)
        self._known[index] = None
        self._move()

    def reaches(self, index: int) -> bool:
        return self._in_turn and index <= self._place

    def lets_pass(self, prepared: Prepared) -> bool:
        """Is every call before this one known, and a read too, or one with another key?"""
        index = prepared.call.index
        if not self.reaches(index):
            return False
        if prepared.key is None:
            return index < self._first_write
        return index <= self._holders.get(prepared.key, inf)

    def _arrive(self, index: int) -> None:
        if index not in self._known and index != len(self._known):
            self._in_turn = False

    def _move(self) -> bool:
        before = self._place
        while self._place in self._known:
            known = self._known[self._place]
            if isinstance(known, Prepared):
                if known.effect != "read":
                    if known.key is None or known.effect == "exclusive":
                        break
                    self._first_write = min(self._first_write, self._place)
                if known.key is not None and (known.effect != "read" or known.asks):
                    self._holders.setdefault(known.key, self._place)
            elif known is False:
                break
            self._place += 1
        return self._place > before


class EarlyReads:
    """The reads of a message that is being written, and which of them may start: those are returned once, and are
    running from then on."""

    __slots__ = ("_busy", "_first", "_held_back", "_prefix")

    def __init__(self) -> None:
        self._busy: dict[Any, int] = {}
        """How many calls run, by key. They continue if the message breaks off."""
        self.restart()

    def restart(self) -> None:
        """The message is written again, from its beginning."""
        self._prefix = KnownPrefix()
        self._first: dict[str, Entry] = {}
        """The first of identical calls: the others share its execution, or adopt the orphan that stands here."""
        self._held_back: dict[Entry, None] = {}
        """Reads that are complete and could not start yet."""

    def open(self, index: int, surely_read: bool) -> None:
        self._prefix.open(index, surely_read)

    def withdraw(self, index: int) -> None:
        self._prefix.withdraw(index)

    def submit(self, entry: Entry, orphan: Entry | None) -> list[Entry]:
        """The call is complete. One that may adopt an orphan waits until all calls before it are known."""
        prepared = entry.prepared
        tool = prepared.tool
        self._first.setdefault(prepared.fingerprint, orphan or entry)
        moved = self._prefix.ready(prepared)
        if not (tool is None or tool.function is None or prepared.asks or prepared.refusal) and tool.effect == "read":
            self._held_back[entry] = None
            if not moved:
                return self._startable([entry]) if self._prefix.reaches(prepared.call.index) else []
        return self.startable() if moved else []

    def ended(self, key: Any) -> None:
        """A call that had started has ended: its key is free for the next one."""
        self._busy[key] = self._busy.get(key, 0) - 1

    def startable(self) -> list[Entry]:
        return self._startable(list(self._held_back))

    def _startable(self, entries: list[Entry]) -> list[Entry]:
        found: list[Entry] = []
        for entry in entries:
            prepared = entry.prepared
            key = prepared.key
            if (
                entry.state == "waiting"
                and self._first[prepared.fingerprint] is entry
                and self._prefix.lets_pass(prepared)
                and (key is None or self._busy.get(key, 0) <= 0)
            ):
                entry.state = "running"
                del self._held_back[entry]
                if key is not None:
                    self._busy[key] = self._busy.get(key, 0) + 1
                found.append(entry)
        return found


class BlockingRules:
    """Which unfinished calls block a later one, once the message is complete.

    A call waits for the end of earlier calls that share its key and of exclusive ones. Unless both calls are reads,
    both have keys, or both tools declare `overlap`, it also waits for the earlier call: for its end if the schedule is
    `ordered`, otherwise only for its start.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.closed = False
        """No later call can start."""
        self._serial = schedule.serial
        self._ordered = schedule.ordered
        self._any = False
        self._keys: set[Any] = set()
        self._blocking: set[tuple[bool, bool, bool]] = set()
        """For each call that has to end, or to start, first: does it have a key, is it a read, may it overlap?"""

    def block(self, prepared: Prepared, started: bool) -> None:
        """This call has not finished."""
        key, effect, overlap = prepared.key, prepared.effect, prepared.overlap
        self._any = True
        waited_for = self._ordered or not started
        changes = effect == "write" and key is None and not overlap
        self.closed = self._serial or effect == "exclusive" or (waited_for and changes)
        if waited_for:
            self._blocking.add((key is not None, effect == "read", overlap))
        if key is not None:
            self._keys.add(key)

    def blocks(self, prepared: Prepared) -> bool:
        if not self._any:
            return False
        key, effect, overlap = prepared.key, prepared.effect, prepared.overlap
        if effect == "exclusive":
            return True
        if key is not None and key in self._keys:
            return True
        return bool(self._blocking) and not all(
            (keyed and key is not None) or (read and effect == "read") or (overlaps and overlap)
            for keyed, read, overlaps in self._blocking
        )


class Order:
    """The calls of a complete message in call order, and which of them may start now."""

    __slots__ = ("_finished", "_schedule", "adopted", "entries", "some_wait", "withdrawn")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._finished = 0
        """How many entries at the beginning are finished."""
        self.entries: list[Entry] = []
        self.withdrawn: list[Entry] = []
        """Calls that are not in the message, some of which were cancelled and have not ended yet."""
        self.adopted = False
        """Some call has adopted an orphan."""
        self.some_wait = False
        """Some call may start after the end of another one."""

    def fill(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        self.some_wait = "waiting" in [entry.state for entry in self.entries]

    def free(self, tasks: Tasks) -> Iterator[Entry]:
        """Yields the calls that nothing before them blocks. Their state has to be changed before the next one."""
        rules = BlockingRules(self._schedule)
        entries = self.entries
        self.some_wait = False
        for entry in self.withdrawn:
            if entry.task in tasks:  # it was cancelled and has not ended yet
                rules.block(entry.prepared, True)
        while self._finished < len(entries) and entries[self._finished].finished:
            self._finished += 1
        for entry in islice(entries, self._finished, None):
            if (
                entry.state == "waiting"
                and entry.shares_with is None
                and not rules.blocks(entry.prepared)
                and self._fits(entry)
            ):
                yield entry
            if not entry.finished:
                self.some_wait = self.some_wait or entry.state == "waiting"
                rules.block(entry.prepared, entry.started or entry.state == "running")
                if rules.closed:
                    self.some_wait = self.some_wait or entry is not entries[-1]
                    break

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls that wait for an outside decision, without those that only wait for them. In place of a call that runs
        an agent: the calls that this agent waits for."""
        calls: list[ToolCall] = []
        for entry in self.entries:
            if entry.state == "pending":
                calls += (entry.call,) if entry.waits is None else entry.waits.pending
        return tuple(calls)

    @property
    def waits(self) -> dict[str, CallWaits]:
        """What calls that run an agent wait for, by their ids."""
        return {entry.call.id: entry.waits for entry in self.entries if entry.waits is not None}

    @property
    def uncertain(self) -> tuple[str, ...]:
        """The ids of those that may have taken effect before their process died."""
        entries = self.entries
        return tuple(entry.call.id for entry in entries if entry.state == "pending" and entry.prepared.waits)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the calls that have no result yet, by their ids."""
        return {entry.call.id: entry.prepared.number for entry in self.entries if entry.result is None}

    @property
    def decided(self) -> dict[str, Approval]:
        """Decisions about calls that could not run yet: they stay valid when the run is resumed."""
        return {
            entry.call.id: Allow() if entry.original is None else Edit(entry.call.arguments or {})
            for entry in self.entries
            if entry.approved and (not entry.started or entry.waits is not None)
        }

    def seconds(self) -> list[float]:
        """How long the tool of each call ran, in call order."""
        return [entry.seconds for entry in self.entries]

    def _fits(self, entry: Entry) -> bool:
        """An edit may give a call the key of a later one that runs already; and a later one that was adopted runs."""
        key = entry.prepared.key
        if key is None or (entry.original is None and not self.adopted):
            return True
        return not any(other.state == "running" and other.prepared.key == key for other in self.entries)


def disturbs(write: Prepared, read: Prepared) -> bool:
    """May one call change what the other sees?"""
    if write.effect == "exclusive":
        return True
    if write.key is not None and read.key is not None:
        return write.key == read.key
    return not (write.overlap and read.overlap)


# Which calls of one message are identical and share one execution.


def find_duplicates(entries: Iterable[Entry], share_all: bool) -> list[tuple[Entry, Entry]]:
    """Each call that shares the execution of another, with that other: the one that has started, otherwise the
    first."""
    found: list[tuple[Entry, Entry]] = []
    first_of: dict[str, Entry] = {}
    for entry in entries:
        prepared = entry.prepared
        tool = prepared.tool
        if tool is None or prepared.refusal:
            continue
        if first_of and tool.effect != "read":
            # A read after a write may see a new state, so it does not share with one before it.
            first_of = {
                fingerprint: first
                for fingerprint, first in first_of.items()
                if first.prepared.effect != "read" or not disturbs(prepared, first.prepared)
            }
        if not (tool.shared or (share_all and tool.dedupe is None)):
            continue
        first = first_of.setdefault(prepared.fingerprint, entry)
        if first is entry:
            continue
        original, sharer = (entry, first) if entry.started and not first.started else (first, entry)
        first_of[prepared.fingerprint] = original
        if not sharer.started:
            sharer.shares_with = original
            original.sharers += (sharer,)
            found.append((original, sharer))
    return found


class EarlierCalls:
    """The results of earlier rounds, for identical calls of later ones. A read does not share the result of one before
    a call that may have changed what it reads. A call that needs an approval is never answered from here: what somebody
    approves runs."""

    __slots__ = ("_begun", "_kept", "_may_still_run")

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Prepared, ToolResult]] = {}
        self._begun: dict[str, CallContext[Any]] = {}
        """By fingerprint: the calls of this round that have started."""
        self._may_still_run: list[Prepared] = []
        """Calls that may change something at any time: in the background, or left behind when their time was over."""

    def find(self, prepared: Prepared) -> ToolResult | None:
        kept = self._kept.get(prepared.fingerprint)
        if kept is None or not _shares_rounds(prepared) or _function(kept[0]) is not _function(prepared):
            return None
        return replace(kept[1], call_id=prepared.call.id, duplicate_of=kept[1].call_id)

    def begin(self, prepared: Prepared, context: CallContext[Any]) -> None:
        """This call starts: if it runs, reads of earlier rounds that it may disturb are not shared from here on."""
        self._begun[prepared.fingerprint] = context
        if prepared.effect != "read" and context.known is None:
            self._forget_reads([prepared])

    def end_round(self, calls: Sequence[Prepared], results: Sequence[ToolResult | None]) -> None:
        """These calls have their results; None stands for one that waits."""
        changing: list[Prepared] = []
        for prepared, result in zip(calls, results, strict=True):
            if prepared.effect == "read" or (result is not None and _answered_without_tool(result)):
                continue
            changing.append(prepared)
            if result is not None and result.outcome in _MAY_STILL_RUN:
                self._may_still_run.append(prepared)
        self._forget_reads(changing)
        for prepared, result in zip(calls, results, strict=True):
            if not _shares_rounds(prepared) or _is_stale(prepared, [*changing, *self._may_still_run]):
                continue
            if result is not None and result.outcome in ("done", "cached") and not result.duplicate_of:
                context = self._begun.get(prepared.fingerprint)
                if context is not None and context.changed:
                    continue
                # Middleware gets the result that is shared, so it is kept as it was before.
                own = result if context is None or context.returned is None else context.returned
                self._kept[prepared.fingerprint] = prepared, replace(own, call_id=result.call_id)
        self._begun = {}

    def resume(self, calls: Sequence[Prepared], results: Sequence[ToolResult]) -> None:
        """The calls of the earlier part of a run that is resumed. Reads run again: what happened between is not
        known."""
        self.end_round(calls, results)
        self._kept = {mark: kept for mark, kept in self._kept.items() if kept[0].effect != "read"}

    def _forget_reads(self, changing: Sequence[Prepared]) -> None:
        self._kept = {mark: kept for mark, kept in self._kept.items() if not _is_stale(kept[0], changing)}


_MAY_STILL_RUN = frozenset({"running", "timed_out", "cancelled", "unknown"})


def _shares_rounds(prepared: Prepared) -> bool:
    tool = prepared.tool
    return tool is not None and tool.dedupe is not False and not tool.repeat and not prepared.asks


def _function(prepared: Prepared) -> object:
    """Another agent of the run may have another tool with the same name."""
    return None if prepared.tool is None else prepared.tool.function


def _is_stale(prepared: Prepared, changing: Iterable[Prepared]) -> bool:
    # The arguments of a call that was asked about may have been edited, and so may its key.
    return prepared.effect == "read" and any(each.asks or disturbs(each, prepared) for each in changing)


def _answered_without_tool(result: ToolResult) -> bool:
    return bool(result.duplicate_of) or result.outcome in ("cached", "not_executed")


class Orphans:
    """By name and arguments: the first call of each that started."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        entry.orphaned = True
        self._entries.setdefault(entry.prepared.fingerprint, entry)

    def find(self, prepared: Prepared) -> Entry | None:
        return self._entries.get(prepared.fingerprint)

    def pop(self, prepared: Prepared) -> Entry | None:
        return self._entries.pop(prepared.fingerprint, None)

    def pop_all(self) -> list[Entry]:
        orphans = list(self._entries.values())
        self._entries = {}
        return orphans

    def adoptions(self, entries: Mapping[int, Entry]) -> Iterator[tuple[int, Entry]]:
        """The places of the calls, in call order, that may adopt an orphan, each with its orphan. A call after one that
        may change what it reads has to run again, with its own key."""
        changing: list[Prepared] = []
        for place, entry in entries.items():
            prepared = entry.prepared
            if prepared.effect != "read":
                changing.append(prepared)
            elif self.find(prepared) is not None and not (entry.started or prepared.refusal or prepared.asks):
                if any(disturbs(each, prepared) for each in changing):
                    prepared.nth += 1
                else:
                    yield place, self._entries.pop(prepared.fingerprint)


NO_ORPHANS = Orphans()
"""Shared by all messages that never break off: nothing is ever added to it."""
