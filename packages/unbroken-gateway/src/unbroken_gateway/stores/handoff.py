"""Hands jobs from an event loop to one thread, which takes all waiting jobs at once. Independent of what the jobs do.

A thread beside a busy loop can starve. The loop releases the interpreter's lock at each poll, for about a microsecond;
the thread wakes up too late, and its wait for a forced switch (5 ms) starts over each time. A put of 0.1 ms was seen to
take 27 s that way. So if no result has arrived for a while, the loop itself waits briefly for the thread. That costs
next to nothing, because the thread can then finish undisturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

_STARVING = 0.002
"""Seconds without a result after which the loop waits."""
_MOMENT = 0.001
"""Maximum seconds of that wait. It is wasted if the thread is not starved but waits for the disk."""
_RARELY = 0.02
"""Seconds between two such waits, if the last one was wasted."""


class Job(Protocol):
    @property
    def done(self) -> asyncio.Future[Any]: ...

    @property
    def size(self) -> int: ...


J = TypeVar("J", bound=Job)
Outcome = tuple[asyncio.Future[Any], object]
"""An exception is raised where the future is awaited."""


class Handoff(Generic[J]):
    """`ask` and `stop` are for the loop (one at a time), `take` and `answer` for the thread."""

    def __init__(self, *, together: int, bytes_together: int) -> None:
        self._together = together
        self._bytes_together = bytes_together
        self._jobs: SimpleQueue[J | None] = SimpleQueue()
        """None is the end."""
        self._outcomes: SimpleQueue[Sequence[Outcome]] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._came = False
        """Has there been a result since the timer was set?"""

    def ask(self, job: J) -> None:
        if self._timer is None or job.done.get_loop() is not self._loop:
            self._loop, self._came = job.done.get_loop(), False
            self._waiting = 0
            self._watch(self._loop, _STARVING)
        self._waiting += 1
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)

    def take(self) -> list[J]:
        """All waiting jobs, or the first that arrives. Empty: the end."""
        taken: list[J] = []
        size = 0
        job = self._jobs.get()
        while job is not None:
            taken.append(job)
            size += job.size
            if len(taken) >= self._together or size >= self._bytes_together:
                return taken
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return taken
        if taken:
            self._jobs.put(None)  # puts the end back for the next call
        return taken

    def answer(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes.put(outcomes)
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the result
            outcomes[0][0].get_loop().call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with suppress(Empty):
            while True:
                self._settle(self._outcomes.get_nowait())

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        self._came = True
        for done, outcome in outcomes:
            self._waiting -= 1
            if done.done():  # the caller was cancelled
                continue
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    def _watch(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self._timer = loop.call_later(delay, self._look, loop, delay)

    def _look(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self._collect()
        if self._waiting <= 0:
            self._timer = None
        elif self._came or self._wait_a_moment():
            self._came = False
            self._watch(loop, _STARVING)
        else:
            self._watch(loop, min(2 * delay, _RARELY))

    def _wait_a_moment(self) -> bool:
        try:
            self._settle(self._outcomes.get(timeout=_MOMENT))
        except Empty:
            return False
        return True
