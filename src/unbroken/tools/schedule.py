"""How the calls of one message run: a value that users choose. What it means is done in `execution`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import inf
from typing import Any

from unbroken.tools.caller import Prepared
from unbroken.tools.entry import Entry


class Schedule(Enum):
    """How the calls of one message run."""

    SEQUENTIAL = "sequential"
    """One after another, in call order."""
    PARALLEL = "parallel"
    """All together, when the response has ended; only equal keys and exclusive calls wait."""
    EAGER = "eager"
    """Reads run together and start as soon as they are complete, while the response is still being written. Everything
    else runs in call order, unless the tools declare that their calls may overlap."""

    @property
    def early(self) -> bool:
        return self is Schedule.EAGER

    @property
    def ordered(self) -> bool:
        """Does a write wait for the end of the calls before it?"""
        return self is not Schedule.PARALLEL

    @property
    def serial(self) -> bool:
        return self is Schedule.SEQUENTIAL


# Who may overtake whom among the calls of one message: while it is being written (`Front`), and once it is complete
# (`Way`). Both look calls up and never compare them one by one: a message may hold a thousand. Nothing runs here.


class Front:
    """How far the message is known without a gap, while it is being written, and what may not be overtaken there.

    A call that may change something, and has no key to compare, ends it for good. So does a call that comes out of turn
    (providers number calls in any order, or give one number twice): where it will stand in the message is not known.
    """

    def __init__(self) -> None:
        self._known: dict[int, Prepared | bool | None] = {}
        """By index: the call, or whether its name says that it is a read; None if it was withdrawn."""
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
        """Gives whether others may be free to start now."""
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


class Way:
    """Which unfinished calls bar a later one, once the message is complete.

    A call waits for the end of earlier calls that share its key and of exclusive ones. Where neither both calls are
    reads, nor both have keys, nor both tools declare `overlap`, it waits for the end of the earlier call too if the
    schedule is `ordered`, else only for its start.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.closed = False
        """Nothing behind can start."""
        self._serial = schedule.serial
        self._ordered = schedule.ordered
        self._any = False
        self._keys: set[Any] = set()
        self._in_the_way: set[tuple[bool, bool, bool]] = set()
        """Of each call that has to end, or to start, first: does it have a key, is it a read, may it overlap?"""

    def block(self, prepared: Prepared, started: bool) -> None:
        """This call has not finished."""
        key, effect = prepared.key, prepared.effect
        self._any = True
        waited_for = self._ordered or not started
        changes = effect == "write" and key is None and not prepared.overlap
        self.closed = self._serial or effect == "exclusive" or (waited_for and changes)
        if waited_for:
            self._in_the_way.add((key is not None, effect == "read", prepared.overlap))
        if key is not None:
            self._keys.add(key)

    def bars(self, prepared: Prepared) -> bool:
        key, effect, overlap = prepared.key, prepared.effect, prepared.overlap
        if self._any and effect == "exclusive":
            return True
        if key is not None and key in self._keys:
            return True
        return bool(self._in_the_way) and not all(
            (keyed and key is not None) or (read and effect == "read") or (overlaps and overlap)
            for keyed, read, overlaps in self._in_the_way
        )


def disturbs(write: Prepared, read: Prepared) -> bool:
    """May the one change what the other sees?"""
    if write.effect == "exclusive":
        return True
    if write.key is not None and read.key is not None:
        return write.key == read.key
    return not (write.overlap and read.overlap)


# Which calls of one message are identical and share one execution.


def find_twins(entries: Iterable[Entry], share_all: bool) -> list[tuple[Entry, Entry]]:
    """Each call that shares the execution of another, with that other: the one which has started, else the first."""
    found: list[tuple[Entry, Entry]] = []
    first_of: dict[str, Entry] = {}
    for entry in entries:
        prepared = entry.prepared
        tool = prepared.tool
        if tool is None or prepared.refusal:
            continue
        if first_of and tool.effect != "read":
            # A read after a write may see something new, so it does not share with one before it.
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
            sharer.twin = original
            original.sharers += (sharer,)
            found.append((original, sharer))
    return found
