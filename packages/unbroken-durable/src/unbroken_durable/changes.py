"""Reports changes of a journal: to readers of events, to workers, and to drivers that were superseded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from unbroken_durable.database import Database, Disconnected
from unbroken_durable.records import State
from unbroken_durable.sqlite import SqliteDatabase

POLL = 0.1
"""Seconds between two looks at an SQLite file that somebody watches."""
GUARD = 0.5
"""Seconds between two looks whether a driver was superseded."""
RECONNECT = 1.0


class _InThread(Protocol):
    def __call__(self, work: Callable[[], Any], /) -> Awaitable[Any]: ...


class _Now(Protocol):
    """Raises `Disconnected` if it would have to wait."""

    def __call__(self, work: Callable[[Database], Any], /) -> Any: ...


class Waiter:
    """`wait` returns at the first change since this was made."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def ring(self) -> None:
        self._changed.set()

    async def wait(self, timeout: float | None = None) -> None:
        if timeout is None:
            await self._changed.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()


class Changes:
    """Looks for changes only while somebody waits for them."""

    def __init__(self, url: str, in_thread: _InThread, now: _Now) -> None:
        self.database: Database | None = None
        self._url = url
        self._in_thread = in_thread
        self._now = now
        self._waiters: set[Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._watched: dict[tuple[int, int], Callable[[], object]] = {}
        """By run and token."""
        self._guarding: asyncio.Task[None] | None = None
        self._guard_timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Something has changed."""
        for waiter in self._waiters:
            waiter.ring()

    @contextmanager
    def listening(self) -> Generator[Waiter]:
        """Everything that changes inside of this block is noticed."""
        waiter = Waiter()
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)
            if not self._waiters:
                asyncio.get_running_loop().call_later(RECONNECT, self._stop_looking)

    def _stop_looking(self) -> None:
        if not self._waiters and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        database = self.database
        while self._waiters:
            try:
                if isinstance(database, SqliteDatabase):
                    await self._poll(database)
                else:
                    await self._listen()
            except Disconnected:
                await asyncio.sleep(RECONNECT)
                self.ring()

    async def _poll(self, database: SqliteDatabase) -> None:
        before = None
        while self._waiters:
            version = await self._in_thread(database.version)
            if version != before:
                before = version
                self.ring()
            await asyncio.sleep(POLL)

    async def _listen(self) -> None:
        from unbroken_durable.postgres import changes  # noqa: PLC0415 - needs an extra

        async for _ in changes(self._url):
            self.ring()
            if not self._waiters:
                return

    # Drivers

    def watch(self, run: int, token: int, on_lost: Callable[[], object]) -> None:
        self._watched[run, token] = on_lost
        if self._guard_timer is None and self._guarding is None:
            self._guard_later()

    def unwatch(self, run: int, token: int) -> None:
        self._watched.pop((run, token), None)
        if not self._watched and self._guard_timer is not None:
            self._guard_timer.cancel()
            self._guard_timer = None

    def _guard_later(self) -> None:
        self._guard_timer = asyncio.get_running_loop().call_later(GUARD, self._start_guard)

    def _start_guard(self) -> None:
        self._guard_timer = None
        if not self._watched or self.database is None:
            return
        runs = [run for run, _ in self._watched]
        try:
            self._compare(self._now(lambda database: database.progress(runs)))
        except Disconnected:
            self._guarding = asyncio.create_task(self._guard(self.database, runs))
        else:
            if self._watched:
                self._guard_later()

    async def _guard(self, database: Database, runs: list[int]) -> None:
        try:
            with suppress(Disconnected):
                self._compare(await self._in_thread(lambda: database.progress(runs)))
        finally:
            self._guarding = None
            if self._watched:
                self._guard_later()

    def _compare(self, found: dict[int, tuple[int, int, State]]) -> None:
        """Looks for drivers whose run has a higher token."""
        for (run, token), on_lost in [*self._watched.items()]:
            if run in found and found[run][0] > token:
                on_lost()

    async def close(self) -> None:
        self._watched.clear()
        self.ring()
        if self._guard_timer is not None:
            self._guard_timer.cancel()
        for task in (self._looking, self._guarding):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, Disconnected):
                    await task
