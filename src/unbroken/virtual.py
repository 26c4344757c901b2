"""An asyncio loop on virtual time: nothing waits. When no callback is ready, the clock jumps to the next timer.

`run(main)` is `asyncio.run(main)` in which `sleep(3600)` takes no time and each duration comes out exact: a test of
time-outs is quick and says the same each time. Work for a thread (`run_in_executor`, `asyncio.to_thread`) is done at
once, in the loop's own thread, for the same reason: it takes no virtual time. Sockets, processes and threads of one's
own still work, on real time: before each jump they are given a moment to speak, so a test that depends on them is not
exact.
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
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from unbroken.clock import VirtualClock

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
        """Whoever waits for it continues as soon as the current callback returns, before all that is ready already but
        the first steps of new tasks."""
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
