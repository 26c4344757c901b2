"""How long a read may wait: one timer for a whole stream. It knows of time and of the reader that it ends, not of what
is read."""

from __future__ import annotations

import asyncio
from math import inf

from aiohttp import StreamReader


class Patience:
    """Ends a read that has waited too long: one timer for a whole stream, which looks when it is due whether anybody
    has been waiting that long. A timer for each read would cost more than the read."""

    __slots__ = ("_at", "_content", "_limit", "_loop", "_timer", "deadline", "expired", "since")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        content: StreamReader,
        due: float,
        deadline: float,
        next_limit: float | None,
    ) -> None:
        self._loop = loop
        self._content = content
        self.since = loop.time()
        """When the read that is waiting began; infinite while none is."""
        self.deadline = deadline
        self.expired = ""
        self._limit = due - self.since
        self._timer: asyncio.TimerHandle | None = None
        # Looked at as early as the limit that comes after this one wants it: then that one needs no timer of its own.
        self._look_at(min(due, deadline, inf if next_limit is None else self.since + next_limit))

    def allow(self, seconds: float | None) -> None:
        """From now on a read may wait this long."""
        limit = inf if seconds is None else seconds
        if limit != self._limit:
            self._limit = limit
            at = min(self._loop.time() + limit, self.deadline)
            if at < self._at:
                self._look_at(at)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = when
        self._timer = None if when == inf else self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self.since == inf:
            self._look_at(now + min(max(self._limit, 0.01), 1.0))
            return
        due = min(self.since + self._limit, self.deadline)
        if now < due:
            self._look_at(due)
            return
        self.expired = "total" if now >= self.deadline else "idle"
        self._content.set_exception(TimeoutError())
