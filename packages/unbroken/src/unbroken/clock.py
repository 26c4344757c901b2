"""Time: real and virtual clocks, many time limits on one timer, and an event loop on virtual time.

Nothing else in the package reads the time. With the virtual clock, a run with time-outs and durations repeats exactly.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from itertools import count
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary, ref

from unbroken.replay_loop import ReplayLoop


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for display and records."""
        ...

    def elapsed(self) -> float:
        """Seconds since an arbitrary start, for durations; they never decrease."""
        ...


class RealClock:
    def now(self) -> float:
        """Seconds since the epoch, by the system clock, which may be changed at any time."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds that never decrease, even if the system clock is changed."""
        return time.monotonic()


class VirtualClock:
    """Starts at `start` and only moves with `advance`. It counts in nanoseconds, so that 0.1 + 0.2 is 0.3."""

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self._elapsed = 0.0

    def now(self) -> float:
        """`start` plus the elapsed seconds."""
        return self.start + self._elapsed

    def elapsed(self) -> float:
        """The sum of all advances, in seconds."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Moves the clock forward. Raises `ValueError` for a negative number of seconds."""
        if seconds < 0:
            raise ValueError(f"time cannot go back: advance({seconds})")
        self._elapsed = round(self._elapsed + seconds, 9)


_REAL = RealClock()


def current_clock() -> Clock:
    """The clock of the running loop, if it has one (a virtual loop has a `clock`), else the real clock."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _REAL
    return getattr(loop, "clock", _REAL)


# A replacement for `asyncio.timeout` that stays cheap with thousands of limits. Nearly every limit is cancelled unused
# a moment later, and nearly all have one of a few durations (30 s for a tool, 10 s for a connection). A loop timer for
# each would cost more than the work that it guards. So all deadlines of one duration share a queue, in the order in
# which they are due, and one timer watches the first of them. The timer is left running if the queue becomes empty, for
# the next deadline.


SLACK = 1e-6
"""Seconds by which a loop's timer may fire too early. Without this tolerance it would be set again and again."""


class Deadline:
    """Calls `expire` when it is due, unless it is cancelled before."""

    __slots__ = ("due", "expire")

    def __init__(self, due: float, expire: Callable[[], None]) -> None:
        self.due = due
        self.expire: Callable[[], None] | None = expire

    def cancel(self) -> None:
        self.expire = None


class _DeadlineQueue:
    """The deadlines of one duration on one loop. It does not keep the loop alive."""

    __slots__ = ("_armed", "_seconds", "_waiting")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        """Whether a timer of the loop is set. The timer itself is not stored: it would keep the loop alive."""
        self._waiting: deque[Deadline] = deque()

    def add(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> Deadline:
        waiting = self._waiting
        while waiting and waiting[0].expire is None:
            waiting.popleft()
        deadline = Deadline(loop.time() + self._seconds, expire)
        waiting.append(deadline)
        if not self._armed:
            self._armed = True
            loop.call_at(deadline.due, self._expire_due, loop)
        return deadline

    def _expire_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._armed = False
        waiting, now = self._waiting, loop.time()
        while waiting:
            first = waiting[0]
            if first.expire is not None and first.due - now > SLACK:
                self._armed = True
                loop.call_at(first.due, self._expire_due, loop)
                return
            waiting.popleft()
            if first.expire is not None:
                first.expire()


_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, _DeadlineQueue]] = WeakKeyDictionary()
_latest: tuple[Callable[[], asyncio.AbstractEventLoop | None], dict[float, _DeadlineQueue]] = (lambda: None), {}
"""The loop of the last call, and its queues: the next call nearly always comes from the same loop."""
_MOST_QUEUES = 64
"""Durations that have a shared queue. If a program uses ever new durations, the others get separate timers."""


def deadline(
    loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None], usual: bool = True
) -> Deadline:
    """Calls `expire` after so many seconds. Pass `usual=False` for a duration that will not be used again: it then gets
    a separate timer instead of a queue."""
    if not usual:
        return _DeadlineQueue(seconds).add(loop, expire)
    global _latest
    latest, queues = _latest
    if latest() is not loop:
        queues = _QUEUES.get(loop)
        if queues is None:
            queues = _QUEUES[loop] = {}
        _latest = ref(loop), queues
    queue = queues.get(seconds)
    if queue is None:
        queue = _DeadlineQueue(seconds)
        if len(queues) < _MOST_QUEUES:
            queues[seconds] = queue
    return queue.add(loop, expire)


class TimeLimit:
    """`with TimeLimit(30): await …` raises `TimeoutError` when the time is up, as `asyncio.timeout` does. None sets no
    limit; `begin` can set one later."""

    __slots__ = ("_cancelling", "_deadline", "_expired_late", "_seconds", "_task", "expired")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._deadline: Deadline | None = None
        self._expired_late = 0.0
        self.expired = False

    @property
    def late(self) -> float:
        """For how many seconds the loop was too busy to end the block."""
        if self.expired or self._deadline is None:
            return self._expired_late
        return asyncio.get_running_loop().time() - self._deadline.due

    def __enter__(self) -> TimeLimit:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("TimeLimit must be used inside a task")
        self._task = task
        self._cancelling = task.cancelling()
        if self._seconds is not None:
            self._deadline = deadline(task.get_loop(), self._seconds, self._expire)
        return self

    def begin(self, seconds: float, usual: bool = True) -> None:
        if self._task is not None and self._deadline is None:
            self._deadline = deadline(self._task.get_loop(), seconds, self._expire, usual)

    def pause(self) -> float | None:
        """Stops counting and returns the seconds that are left, with which `begin` continues; None if there is no limit
        now."""
        if self._task is None or self._deadline is None:
            return None
        left = self._deadline.due - self._task.get_loop().time()
        self._deadline.cancel()
        self._deadline = None
        return max(left, 0.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._deadline is not None:
            self._deadline.cancel()
        # Only if this time limit cancelled the task and nobody else did.
        if self.expired and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        if self._task is not None:
            self._expired_late = self.late
            self.expired = True
            self._task.cancel()


# An asyncio loop on virtual time, which never waits: when no callback is ready, the clock jumps to the next timer.
# `run(main)` is `asyncio.run(main)` in which `sleep(3600)` takes no time and every duration is exact, so a test of
# time-outs is fast and always has the same result. For the same reason, work for a thread (`run_in_executor`,
# `asyncio.to_thread`) is done at once in the loop's own thread and takes no virtual time. Sockets, processes and
# threads that you start yourself still work, in real time: the loop gives them a moment before each jump, so a test
# that depends on them is not exact.


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_GRACE = 0.002
"""Real seconds in which real I/O and threads can complete before the clock jumps."""
_THREAD_WAIT = 5.0
"""Real seconds to wait for threads if nothing else is left to wait for. They may be idle workers of a pool."""

_ASYNCIO = Path(asyncio.__file__).parent


class Deadlock(RuntimeError):
    """Every task is waiting, and nothing can ever wake one of them."""


def run(main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], start: float = 0.0) -> T:
    """Runs `main` to its end on virtual time; `start` is the initial value of `clock.now()`."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main() if callable(main) else main)


class VirtualLoop(ReplayLoop):
    """`clock` is the virtual clock of this loop; `unbroken.clock.current_clock()` returns it."""

    def __init__(self, start: float = 0.0) -> None:
        self.clock = VirtualClock(start)
        self.when_idle: Callable[[], bool] | None = None
        """Called when nothing is ready any more, before the clock jumps; returns whether it made something ready."""
        self._numbers = count()
        self._threads_before = set(threading.enumerate())
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was created."""
        return self.clock.elapsed()

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers for the same nanosecond fire in the order in which they were set."""
        return super().call_at(_Instant(round(when, 9), next(self._numbers)), callback, *args, context=context)

    def call_last_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Calls it after all other timers of the same nanosecond."""
        return super().call_at(_Instant(round(when, 9), sys.maxsize), callback)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs `func` at once in the loop's own thread, whatever the executor: it takes no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the future must carry whatever the function raises
            future.set_exception(error)
        return future

    def has_threads(self) -> bool:
        """Whether there is a thread that did not exist when the loop was created. It may still wake a task."""
        return any(thread not in self._threads_before for thread in threading.enumerate())

    def deadlock(self) -> Deadlock:
        """The error for the case that nothing can happen any more: it lists the waiting tasks and the line of each."""
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        waiting = "; ".join(f"{task.get_name()} in {_place(task)}" for task in tasks) or "no task"
        return Deadlock(f"at {self.time():g} s nothing can happen any more, and these tasks are waiting: {waiting}")


class _Instant(float):
    """The time of a timer. Two timers for the same nanosecond are ordered by which was set first."""

    number: int

    def __new__(cls, when: float, number: int) -> _Instant:
        instant = super().__new__(cls, when)
        instant.number = number
        return instant

    def __lt__(self, other: float) -> bool:
        if isinstance(other, _Instant) and float(self) == float(other):
            return self.number < other.number
        return super().__lt__(other)


class _JumpingSelector(selectors.DefaultSelector):
    """Lets the clock jump where a normal loop would wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self._loop.when_idle is not None and self._loop.when_idle():
            return []
        if timeout is None:
            return self._wait()
        if self._has_io() or self._loop.has_threads():
            events = super().select(_GRACE)
        if not events:
            self._loop.clock.advance(timeout)
        return events

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        """There is no timer: only real I/O or a thread can wake the loop."""
        if self._has_io():
            return super().select(None)
        end = time.monotonic() + _THREAD_WAIT
        while self._loop.has_threads() and time.monotonic() < end:
            if events := super().select(0.01):
                return events
        # A thread may have woken the loop just before it ended.
        if events := super().select(0):
            return events
        raise self._loop.deadlock()

    def _has_io(self) -> bool:
        return len(self.get_map()) > 1  # one is the loop's own pipe, which threads use to wake it


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost line at which a task is waiting, not counting asyncio's own code."""
    awaited: Any = task.get_coro()
    frame: FrameType | None = None
    while (inner := getattr(awaited, "cr_frame", None)) is not None:
        if frame is None or Path(inner.f_code.co_filename).parent != _ASYNCIO:
            frame = inner
        awaited = awaited.cr_await
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
