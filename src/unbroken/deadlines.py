"""Time limits by the thousand: `asyncio.timeout`, where many wait equally long.

Nearly every limit is set, and taken back unused a moment later; and nearly all are of a few lengths (30 s for a tool,
10 s for a connection). A timer of the loop for each costs more than what it guards. So those of one length stand in a
line, in the order in which they are due, and one timer looks at the first of them. It is left to run when the line is
empty: the next one is glad of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from weakref import WeakKeyDictionary, ref

SLACK = 1e-6
"""Seconds: a loop's timer may ring so much too early, and would do so for ever if it were set again."""


class Deadline:
    """Calls `expire` when it is due, unless it is cancelled before."""

    __slots__ = ("due", "expire")

    def __init__(self, due: float, expire: Callable[[], None]) -> None:
        self.due = due
        self.expire: Callable[[], None] | None = expire

    def cancel(self) -> None:
        self.expire = None


class _Line:
    """The deadlines of one length on one loop, which it does not keep alive."""

    __slots__ = ("_armed", "_seconds", "_waiting")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        """A timer of the loop is set. (Not the timer itself: it would keep the loop.)"""
        self._waiting: deque[Deadline] = deque()

    def add(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> Deadline:
        waiting = self._waiting
        while waiting and waiting[0].expire is None:
            waiting.popleft()
        deadline = Deadline(loop.time() + self._seconds, expire)
        waiting.append(deadline)
        if not self._armed:
            self._armed = True
            loop.call_at(deadline.due, self._look, loop)
        return deadline

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._armed = False
        waiting, now = self._waiting, loop.time()
        while waiting:
            first = waiting[0]
            if first.expire is not None and first.due - now > SLACK:
                self._armed = True
                loop.call_at(first.due, self._look, loop)
                return
            waiting.popleft()
            if first.expire is not None:
                first.expire()


_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, _Line]] = WeakKeyDictionary()
_latest: tuple[Callable[[], asyncio.AbstractEventLoop | None], dict[float, _Line]] = (lambda: None), {}
"""The loop that asked last, and its lines: nearly always the one that asks next."""
_MOST = 64
"""Lengths that have a line. A program that asks for ever other ones gets timers for the rest."""


def deadline(
    loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None], usual: bool = True
) -> Deadline:
    """`expire` is called after so many seconds. An unusual length, which nobody else will ask for, gets no line."""
    if not usual:
        return _Line(seconds).add(loop, expire)
    global _latest
    latest, lines = _latest
    if latest() is not loop:
        lines = _LINES.get(loop)
        if lines is None:
            lines = _LINES[loop] = {}
        _latest = ref(loop), lines
    line = lines.get(seconds)
    if line is None:
        line = _Line(seconds)
        if len(lines) < _MOST:
            lines[seconds] = line
    return line.add(loop, expire)


class TimeLimit:
    """`with TimeLimit(30): await …` raises `TimeoutError` when the time is over, as `asyncio.timeout` does. None waits
    for ever; `begin` sets a limit later."""

    __slots__ = ("_cancelling", "_deadline", "_seconds", "_task", "expired")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._deadline: Deadline | None = None
        self.expired = False

    def __enter__(self) -> TimeLimit:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task that it can end")
        self._task = task
        self._cancelling = task.cancelling()
        if self._seconds is not None:
            self._deadline = deadline(task.get_loop(), self._seconds, self._expire)
        return self

    def begin(self, seconds: float) -> None:
        if self._task is not None and self._deadline is None:
            self._deadline = deadline(self._task.get_loop(), seconds, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._deadline is not None:
            self._deadline.cancel()
        # Cancelled by us, and by nobody else.
        if self.expired and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        if self._task is not None:
            self.expired = True
            self._task.cancel()
