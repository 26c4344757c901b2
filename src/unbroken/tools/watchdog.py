"""Detects calls that do not end after their cancellation or time-out. One timer serves all calls of a batch; the batch
decides what to do about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf

from unbroken.clock import SLACK, Deadline, deadline
from unbroken.tools.entry import Entry

GRACE = 5.0
"""Seconds that a call has to end after it was cancelled: some tools clean up, some ignore it."""


class Watch:
    """`ring` is called when the first of the calls may be overdue."""

    __slots__ = ("_loop", "_next", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._next: Deadline | None = None

    def expect(self, entry: Entry, seconds: float, usual: bool = True) -> None:
        """The call has to end within this many seconds."""
        entry.overdue = self._loop.time() + seconds
        if self._next is None or entry.overdue < self._next.due:
            self.end()
            self._next = deadline(self._loop, seconds, self._ring, usual)

    def overdue(self, entries: Iterable[Entry]) -> list[Entry]:
        """The calls that are overdue; the others stay watched."""
        self._next = None
        now = self._loop.time()
        late: list[Entry] = []
        for entry in entries:
            if entry.overdue - now <= SLACK:
                late.append(entry)
            elif entry.overdue < inf:
                self.expect(entry, entry.overdue - now, usual=False)
        return late

    def end(self) -> None:
        if self._next is not None:
            self._next.cancel()
