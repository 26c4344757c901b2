"""Time: real and virtual clocks, many time limits on one timer, and an event loop on virtual time.

Nothing else in the package reads the time. The virtual clock is what makes a run with time-outs and durations repeat
to the byte.
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
from itertools import count, takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakKeyDictionary, ref


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for people and for records."""
        ...

    def elapsed(self) -> float:
        """Seconds from an arbitrary start that never go back, for durations."""
        ...


class RealClock:
    def now(self) -> float:
        """Seconds since the epoch, by the clock of the system, which somebody may set."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds that never go back, whoever sets the clock."""
        return time.monotonic()


class VirtualClock:
    """Starts at `start` and stands still until `advance`. It counts whole nanoseconds, so that 0.1 and 0.2 make 0.3."""

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self._elapsed = 0.0

    def now(self) -> float:
        """`start`, and the seconds since."""
        return self.start + self._elapsed

    def elapsed(self) -> float:
        """All that it was advanced, in seconds."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """So many seconds pass, at once. `ValueError` if they are less than 0."""
        if seconds < 0:
            raise ValueError(f"time cannot go back: advance({seconds})")
        self._elapsed = round(self._elapsed + seconds, 9)


_REAL = RealClock()


def current_clock() -> Clock:
    """The clock of the running loop, if it brings one (a virtual loop has its own `clock`); else the real one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _REAL
    return getattr(loop, "clock", _REAL)


# Time limits by the thousand: `asyncio.timeout`, where many wait equally long.
#
# Nearly every limit is set, and taken back unused a moment later; and nearly all are of a few lengths (30 s for a
# tool, 10 s for a connection). A timer of the loop for each costs more than what it guards. So those of one length
# stand in a line, in the order in which they are due, and one timer looks at the first of them. It is left to run
# when the line is empty: the next one is glad of it.


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


# An asyncio loop on virtual time: nothing waits. When no callback is ready, the clock jumps to the next timer.
# `run(main)` is `asyncio.run(main)` in which `sleep(3600)` takes no time and each duration comes out exact: a test of
# time-outs is quick and says the same each time. Work for a thread (`run_in_executor`, `asyncio.to_thread`) is done at
# once, in the loop's own thread, for the same reason: it takes no virtual time. Sockets, processes and threads of one's
# own still work, on real time: before each jump they are given a moment to speak, so a test that depends on them is not
# exact.


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_GRACE = 0.002
"""Real seconds for real I/O and threads to come in before the clock jumps."""
_PATIENCE = 5.0
"""Real seconds to wait for threads when there is nothing else to wait for: they may be idle workers of a pool."""

_ASYNCIO = Path(asyncio.__file__).parent


class Deadlock(RuntimeError):
    """Every task waits, and nothing that could wake one of them will ever happen."""


def run(main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], start: float = 0.0) -> T:
    """Run to the end on virtual time; `start` is what `clock.now()` says at the beginning."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        return runner.run(main() if callable(main) else main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """`clock` is the time of this loop: `unbroken.clock.current_clock()` finds it here."""

    def __init__(self, start: float = 0.0) -> None:
        self.clock = VirtualClock(start)
        self.when_idle: Callable[[], bool] | None = None
        """Asked when nothing is ready any more, before the clock jumps: has it made something ready?"""
        self.enters_first = False
        """A new task takes its first step before all that is ready already."""
        self._entering: list[asyncio.Handle] = []
        """First steps that were put before the rest."""
        self._numbers = count()
        self._threads_before = set(threading.enumerate())
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since it was made."""
        return self.clock.elapsed()

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Of timers at the same nanosecond, the one that was set first comes first."""
        return super().call_at(_Instant(round(when, 9), next(self._numbers)), callback, *args, context=context)

    def call_last_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """After all other timers of its nanosecond."""
        return super().call_at(_Instant(round(when, 9), sys.maxsize), callback)

    def wake_first(self, future: asyncio.Future[None]) -> None:
        """The task that waits for it continues as soon as the current callback returns, before everything that is ready
        except the first steps of new tasks."""
        future.set_result(None)
        self._put_last_first(enters=False)

    def call_first(self, callback: Callable[[], object]) -> None:
        """At the same place."""
        self.call_soon(callback)
        self._put_last_first(enters=False)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        if self.enters_first:
            self._put_last_first(enters=True)
        return task

    @property
    def entering(self) -> bool:
        """A task that `enters_first` has not taken its first step."""
        ready: deque[asyncio.Handle] = cast("Any", self)._ready
        return bool(ready) and ready[0] in self._entering

    def _put_last_first(self, enters: bool) -> None:
        """What was made ready last runs next, behind first steps that were put there before."""
        ready: deque[asyncio.Handle] = cast("Any", self)._ready
        last = ready.pop()
        leading = list(takewhile(self._entering.__contains__, ready))
        ready.insert(len(leading), last)
        self._entering = [*leading, last] if enters else leading

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Done at once, in the loop's own thread, whatever the executor: it takes no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the future's
            future.set_exception(error)
        return future

    def has_threads(self) -> bool:
        """Is there a thread that was not there when the loop was made? It may wake a task yet."""
        return any(thread not in self._threads_before for thread in threading.enumerate())

    def deadlock(self) -> Deadlock:
        """The error for when nothing can happen any more: which tasks wait, and at which line each."""
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        waiting = "; ".join(f"{task.get_name()} in {_place(task)}" for task in tasks) or "no task"
        return Deadlock(f"at {self.time():g} s nothing will ever happen again, and these wait: {waiting}")


class _Instant(float):
    """The time of a timer. Of two at the same nanosecond, the one that was set first comes first."""

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
    """Where a loop would wait, the clock jumps instead."""

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
        """There is no timer: only the world outside can wake the loop."""
        if self._has_io():
            return super().select(None)
        end = time.monotonic() + _PATIENCE
        while self._loop.has_threads() and time.monotonic() < end:
            if events := super().select(0.01):
                return events
        # A thread may have spoken just before it ended.
        if events := super().select(0):
            return events
        raise self._loop.deadlock()

    def _has_io(self) -> bool:
        return len(self.get_map()) > 1  # one is the loop's own pipe, by which threads wake it


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost line at which a task waits, asyncio's own left out."""
    awaited: Any = task.get_coro()
    frame: FrameType | None = None
    while (inner := getattr(awaited, "cr_frame", None)) is not None:
        if frame is None or Path(inner.f_code.co_filename).parent != _ASYNCIO:
            frame = inner
        awaited = awaited.cr_await
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
