"""Threads for synchronous tools: 64 that belong to the process, so that no tool ever blocks the loop. A tool that runs
an agent with synchronous tools (`run_sync`) lends its place to them while it waits: nested runs always make progress.

Not `ThreadPoolExecutor`: that one waits for its threads when the interpreter ends, so one tool that hangs would hang
the program, and each hanging tool would take one place for ever. Here threads are daemons, and a late one gives its
place back.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import Any, TypeVar

T = TypeVar("T")

SIZE = 64


DEEPEST = 32
"""How deep synchronous tools may run agents that have synchronous tools: each level needs its own threads."""


class Threads(Executor):
    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._jobs: PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]] = PriorityQueue()
        """The deepest first, because jobs that wait for a nested job hold a thread."""
        self._numbers = count()
        self._lock = threading.Lock()
        self._count = 0
        self._unfinished = 0
        """Jobs that run or wait for a thread."""
        self._late = 0

    @property
    def late(self) -> int:
        """Threads whose tool outlived its time-out and still runs."""
        return self._late

    @property
    def crowded(self) -> bool:
        """Would a new job have to wait for a thread?"""
        return self._unfinished >= self._size

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        job = fn if isinstance(fn, Job) else None
        depth = 0 if job is None else job.depth
        with self._lock:
            self._unfinished += 1
            if job is not None and job.parent is not None:
                self._lend(job.parent)
        self._jobs.put((-depth, next(self._numbers), future, partial(fn, *args, **kwargs)))
        self._grow()
        if job is not None and job.parent is not None:
            future.add_done_callback(partial(self._take_back, job.parent))
        return future

    def _lend(self, parent: Job) -> None:
        """While a job runs an agent whose tools need threads, it only waits, so they get its place."""
        parent.nested += 1
        if parent.running and not parent.lends:
            parent.lends = True
            self._size += 1

    def _take_back(self, parent: Job, future: Future[Any]) -> None:
        with self._lock:
            parent.nested -= 1
            if parent.lends and not parent.nested:
                parent.lends = False
                self._size -= 1

    def give_up(self, job: Job) -> int:
        """Gives up waiting for this job. Returns how many threads are late now."""
        with self._lock:
            if job.running and not job.late:
                job.late = True
                self._late += 1
                self._size += 1
        self._grow()
        return self._late

    def end(self, job: Job) -> None:
        with self._lock:
            job.running = False
            if job.late:
                self._late -= 1
                self._size -= 1
            if job.lends:
                job.lends = False
                self._size -= 1

    def _grow(self) -> None:
        with self._lock:
            if self._count >= self._size or self._count >= self._unfinished:
                return
            self._count += 1
            number = self._count
        threading.Thread(target=self._work, name=f"unbroken-tool-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            _, _, future, job = self._jobs.get()
            if future.set_running_or_notify_cancel():
                future.set_result(job())
            del future, job  # an idle thread keeps nothing alive
            with self._lock:
                self._unfinished -= 1
                if self._count > self._size:
                    self._count -= 1
                    return

    def forget(self) -> None:
        """After a fork: the threads stayed with the parent."""
        self.__init__(SIZE)


_CURRENT: contextvars.ContextVar[Job | None] = contextvars.ContextVar("unbroken-job", default=None)
"""The job whose tool runs here, also in tasks that the tool starts."""

THREADS = Threads()
os.register_at_fork(after_in_child=THREADS.forget)


async def call_anywhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """Awaits an async function; runs any other function in a thread, because it may take long."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    job = Job(partial(function, *arguments))
    try:
        value, error = await asyncio.get_running_loop().run_in_executor(THREADS, job)
    except asyncio.CancelledError:
        THREADS.give_up(job)
        raise
    if error is not None:
        raise error
    return await value if inspect.isawaitable(value) else value


class Job:
    """A synchronous function and its state. Called in a thread, it returns its value and its error, and never raises: a
    future cannot carry every exception that a tool can raise (StopIteration, SystemExit)."""

    def __init__(self, function: Callable[[], Any], threads: Threads = THREADS) -> None:
        self.parent = _CURRENT.get()
        """The job whose tool runs the agent that has this one."""
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1
        self.nested = 0
        """Jobs that it waits for."""
        self.lends = False
        self._context = contextvars.copy_context()
        self._function = function
        self._threads = threads
        self.running = False
        self.late = False
        self.on_start: Callable[[], object] | None = None
        """Called in the thread when it begins."""

    def _work(self) -> Any:
        if self.depth > DEEPEST:
            raise RuntimeError(f"tools that run agents are nested more than {DEEPEST} deep; make them async")
        _CURRENT.set(self)
        return self._function()

    def __call__(self) -> tuple[Any, BaseException | None]:
        self.running = True
        try:
            if self.on_start is not None:
                self.on_start()
            return self._context.run(self._work), None
        except BaseException as error:  # noqa: BLE001 - a foreign tool runs here; whatever it raises is its failure
            return None, error
        finally:
            self._threads.end(self)


async def in_thread(work: Callable[[], T]) -> T:
    """Runs the work in one of the threads and returns its result."""
    job = Job(work)
    try:
        value, error = await asyncio.get_running_loop().run_in_executor(THREADS, job)
    finally:
        if job.running:  # it was cancelled
            THREADS.give_up(job)
    if error is not None:
        raise error
    return value
