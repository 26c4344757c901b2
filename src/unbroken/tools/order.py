"""Who may overtake whom among the calls of one message: while it is being written (`Front`), and once it is complete
(`Way`). Both look calls up and never compare them one by one: a message may hold a thousand. Nothing runs here."""

from __future__ import annotations

from math import inf
from typing import Any

from unbroken.tools.calling import Prepared


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
        self._writes: dict[Any, int] = {}
        """By key: the place of the first such call."""

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
        return index < self._first_write or (prepared.key is not None and index <= self._writes.get(prepared.key, inf))

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
                    self._writes.setdefault(known.key, self._place)
            elif known is False:
                break
            self._place += 1
        return self._place > before


class Way:
    """What stands in a call's way once the message is complete: the calls before it that have not finished. It waits
    for the end of those that share its key and of exclusive ones; where one of the two has no key, for the start of
    the earlier one, unless both are reads."""

    def __init__(self, serial: bool) -> None:
        self.closed = False
        """Nothing behind can start."""
        self._serial = serial
        self._any = False
        self._keys: set[Any] = set()
        self._unstarted: set[tuple[bool, bool]] = set()
        """Whether it has a key, and whether it is a read."""

    def block(self, prepared: Prepared, started: bool) -> None:
        """This one has not finished."""
        key, effect = prepared.key, prepared.effect
        self._any = True
        self.closed = self._serial or effect == "exclusive" or (not started and key is None and effect == "write")
        if not started:
            self._unstarted.add((key is not None, effect == "read"))
        if key is not None:
            self._keys.add(key)

    def bars(self, prepared: Prepared) -> bool:
        key, effect = prepared.key, prepared.effect
        if self._any and effect == "exclusive":
            return True
        if key is not None and key in self._keys:
            return True
        return bool(self._unstarted) and any(
            not (keyed and key is not None) and not (read and effect == "read") for keyed, read in self._unstarted
        )


def disturbs(write: Prepared, read: Prepared) -> bool:
    """May the one change what the other sees?"""
    return write.effect == "exclusive" or write.key is None or read.key is None or write.key == read.key
