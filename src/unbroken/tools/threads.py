"""Threads for synchronous tools: 64 that belong to the process, so that no tool ever blocks the loop.

Not `ThreadPoolExecutor`: that one waits for its threads when the interpreter ends, so one tool that hangs would hang
the program, and each hanging tool would take one place for ever. Here threads are daemons, and a late one gives its
place back.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

SIZE = 64


class Threads(Executor):
    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
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
        with self._lock:
            self._unfinished += 1
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        self._grow()
        return future

    def give_up(self, job: Job) -> int:
        """Nobody waits for this job any more. Gives how many threads are late now."""
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

    def _grow(self) -> None:
        with self._lock:
            if self._count >= self._size or self._count >= self._unfinished:
                return
            self._count += 1
            number = self._count
        threading.Thread(target=self._work, name=f"unbroken-tool-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            future, job = self._jobs.get()
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


THREADS = Threads()
os.register_at_fork(after_in_child=THREADS.forget)


class Job:
    """A synchronous function and how far it is. Called in a thread, it gives its value and its error, and never raises:
    a future cannot carry every exception that a tool can raise (StopIteration, SystemExit)."""

    def __init__(self, function: Callable[[], Any], threads: Threads = THREADS) -> None:
        self._run = partial(contextvars.copy_context().run, function)
        self._threads = threads
        self.running = False
        self.late = False
        self.on_start: Callable[[], object] | None = None
        """Called in the thread when it begins."""

    def __call__(self) -> tuple[Any, BaseException | None]:
        self.running = True
        try:
            if self.on_start is not None:
                self.on_start()
            return self._run(), None
        except BaseException as error:  # noqa: BLE001 - a foreign tool runs here; whatever it raises is its failure
            return None, error
        finally:
            self._threads.end(self)
