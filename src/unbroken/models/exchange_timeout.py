"""Time-outs of one exchange, from the connection to the last byte, with a single timer. It cancels the task that sends
the request or the read of its answer; it does not see what is sent or read."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Literal, TypeAlias

from aiohttp import StreamReader

from unbroken.clock import SLACK, Deadline, deadline

Waiting: TypeAlias = Literal["connect", "first_byte", "idle", "total", ""]
"""What was being waited for when the time was up."""


class Patience:
    """Ends what has waited too long: the task, while it waits for the head of the answer, or a read of the body. One
    timer serves the whole exchange; when it fires, it checks whether anything has waited that long, and is set again if
    not. A timer for each read would cost more than the read.
    """

    __slots__ = (
        "_at",
        "_cancelling",
        "_content",
        "_deadline",
        "_limit",
        "_loop",
        "_task",
        "_total",
        "expired",
        "for_what",
        "since",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: float | None, total: float, soonest: float) -> None:
        """`total` is a time of the loop's clock; `soonest` is the shortest of the limits, which sets the timer."""
        self._loop = loop
        self._total = total
        self._content: StreamReader | None = None
        self._task: asyncio.Task[object] | None = asyncio.current_task(loop)
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self.for_what: Waiting = "connect"
        self.expired: Waiting = ""
        self.since = loop.time()
        """When the current wait began; infinite while nothing waits."""
        self._limit = inf if connect is None else connect
        self._deadline: Deadline | None = None
        seconds = min(self._limit, soonest)
        self._at = self.since + seconds
        if self._at > total:
            self._look_at(total)
        elif seconds < inf:
            self._deadline = deadline(loop, seconds, self._look)

    def connected(self, first_byte: float | None) -> None:
        """The connection is open: the wait for the first byte begins."""
        self.for_what = "first_byte"
        self.since = now = self._loop.time()
        self._allow(first_byte, now)

    def reads(self, content: StreamReader) -> None:
        """The head has arrived; from now on the body is read."""
        self._task, self._content = None, content
        if self.expired:  # if the task that waited for the head was done already
            content.set_exception(TimeoutError())

    def allow(self, seconds: float | None) -> None:
        """Sets how long a read may wait from now on."""
        self.for_what = "idle"
        self._allow(seconds, self._loop.time())

    def _allow(self, seconds: float | None, now: float) -> None:
        self._limit = inf if seconds is None else seconds
        at = min(now + self._limit, self._total)
        if at < self._at:
            self._look_at(at)

    def end(self) -> None:
        self._task = self._content = None
        if self._deadline is not None:
            self._deadline.cancel()

    def cancelled_it(self) -> bool:
        """If the task was cancelled while it waited for the head: was it only by us?"""
        task, self._task = self._task, None
        return bool(self.expired) and task is not None and task.uncancel() <= self._cancelling

    def _look_at(self, when: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._at = when
        self._deadline = None
        if when < inf:
            self._deadline = deadline(self._loop, max(when - self._loop.time(), 0.0), self._look, usual=False)

    def _look(self) -> None:
        now = self._loop.time()
        if self.since == inf and now < self._total:
            self._look_at(now + min(max(self._limit, 0.01), 1.0))
            return
        due = min(self.since + self._limit, self._total)
        if due - now > SLACK:
            self._look_at(due)
            return
        self.expired = "total" if due == self._total else self.for_what
        if self._content is not None:
            self._content.set_exception(TimeoutError())
        elif self._task is not None:
            self._task.cancel()
