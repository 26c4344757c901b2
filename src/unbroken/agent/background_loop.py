"""One background event loop for code that cannot await: `run_sync` in scripts, notebooks and threads.

One per process, because a connection belongs to one loop: so connections are reused from call to call.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, TimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from unbroken.errors import UnbrokenError, UserError
from unbroken.models.sessions import close_session

T = TypeVar("T")


class Background:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of the work. An interrupt cancels the work first and is then raised."""
        loop = self._running_loop()
        if threading.current_thread() is self._thread:
            work.close()
            raise UserError("run_sync was called from an async tool and would wait for itself; use `await agent.run`")
        stop = asyncio.Event()
        future = asyncio.run_coroutine_threadsafe(_until(stop, work), loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            # The run answers every call before it ends; a second interrupt does not wait for that.
            loop.call_soon_threadsafe(stop.set)
            with suppress(CancelledError, TimeoutError, UnbrokenError):
                future.result(timeout=10)
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="unbroken-loop", daemon=True)
                self._thread.start()
                atexit.register(self.close)
                os.register_at_fork(after_in_child=self._forget)
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_close_all(), loop).result(timeout=5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)
        loop.close()

    def _forget(self) -> None:
        """After a fork the thread no longer exists."""
        self._loop = self._thread = None
        self._lock = threading.Lock()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """A `SystemExit` in a task (`sys.exit` in a handler) is raised for its caller; the loop keeps running."""
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Cancels the task itself, not its future, which would be done before the work has ended."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not task.done():
            task.cancel()
    return await task


async def _close_all() -> None:
    await close_session()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


BACKGROUND = Background()
