"""The store in a file: one thread of its own does all that touches it, so that the loop never waits for a disk.

What is asked while the thread is busy is done together: all puts in one transaction, then all gets in one reading. So a
hundred at once cost little more than one.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from unbroken.gateway.stores.handoff import Handoff
from unbroken.gateway.stores.sqlite_file import Row, SQLiteFile
from unbroken.gateway.stores.store import NOTHING, StoreStats, StoreUnavailable, refuse_too_large, wall_time

LOG = logging.getLogger("unbroken.gateway")

_TOGETHER = 256
_BYTES_TOGETHER = 16 << 20
"""The most that is done in one transaction."""


@dataclass(slots=True, eq=False)
class _Put:
    rows: list[Row]
    appended: list[Row]
    now: float
    done: asyncio.Future[Any]

    @property
    def size(self) -> int:
        return sum(len(value) for _, _, value in self.rows)


@dataclass(slots=True, eq=False)
class _Get:
    keys: list[bytes]
    now: float
    done: asyncio.Future[Any]
    size: int = 0


@dataclass(slots=True, eq=False)
class _Ask:
    """Anything else, done by itself."""

    work: Callable[[SQLiteFile], object]
    done: asyncio.Future[Any]
    size: int = 0


_Job: TypeAlias = _Put | _Get | _Ask
_Handoff: TypeAlias = "Handoff[_Job]"


class SQLiteStore:
    """Raises `UserError` if the file at `path` cannot be used."""

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int = 1 << 30,
        max_entry: int = 8 << 20,
        now: Callable[[], float] = wall_time,
    ) -> None:
        self._max_entry = max_entry
        self._now = now
        file = SQLiteFile(path, max_bytes)
        self._label = file.label
        self._handoff: _Handoff = Handoff(together=_TOGETHER, bytes_together=_BYTES_TOGETHER)
        # The thread knows nothing of the store, so that a store nobody closed can still go, and its thread with it.
        self._thread = threading.Thread(target=_serve, args=(file, self._handoff), name="unbroken-store", daemon=True)
        self._stop = weakref.finalize(self, self._handoff.stop)
        self._thread.start()

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        if not keys:
            return []
        return await self._do(_Get([_encoded(key) for key in keys], self._now(), _future()))

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        refuse_too_large(entries, self._max_entry)
        if entries or append:
            now = self._now()
            rows = [(_encoded(key), now + ttl, value) for key, value in entries.items()]
            appended = [(_encoded(key), now + ttl, value) for key, value in append.items()]
            await self._do(_Put(rows, appended, now, _future()))

    async def stats(self) -> StoreStats:
        now = self._now()
        return await self._do(_Ask(lambda file: file.stats(now), _future()))

    async def ping(self) -> None:
        await self._do(_Ask(SQLiteFile.check, _future()))

    async def aclose(self) -> None:
        if self._stop.alive:
            done = _future()
            self._handoff.ask(_Ask(SQLiteFile.close, done))
            self._stop()
            await done
        self._thread.join()

    async def _do(self, job: _Job) -> Any:
        if not self._stop.alive:
            raise StoreUnavailable(f"store `{self._label}` is closed")
        self._handoff.ask(job)
        return await job.done


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _encoded(key: str) -> bytes:
    # Ids come from models and clients, and half a surrogate pair is one of the things that they send.
    return key.encode("utf-8", "surrogatepass")


def _serve(file: SQLiteFile, handoff: _Handoff) -> None:
    """The life of the thread."""
    try:
        while jobs := handoff.take():
            _do_together(file, handoff, jobs)
    finally:
        file.close()


def _do_together(file: SQLiteFile, handoff: _Handoff, jobs: Sequence[_Job]) -> None:
    puts = [job for job in jobs if isinstance(job, _Put)]
    gets = [job for job in jobs if isinstance(job, _Get)]
    if puts:
        _attempt(file, handoff, puts, lambda: _put(file, puts))
    if gets:
        _attempt(file, handoff, gets, lambda: _get(file, gets))
    if puts:
        try:
            file.trim(max(job.now for job in puts))
        except sqlite3.Error as error:
            LOG.warning("store `%s` could not be trimmed: %s", file.label, error)
    for job in jobs:
        if isinstance(job, _Ask):
            _attempt(file, handoff, [job], lambda work=job.work: [work(file)])


def _put(file: SQLiteFile, puts: Sequence[_Put]) -> list[None]:
    appended = [(*row, job.now) for job in puts for row in job.appended]
    file.put([row for job in puts for row in job.rows], appended)
    return [None] * len(puts)


def _get(file: SQLiteFile, gets: Sequence[_Get]) -> list[list[bytes | None]]:
    values = iter(file.get([key for job in gets for key in job.keys], max(job.now for job in gets)))
    return [[next(values) for _ in job.keys] for job in gets]


def _attempt(file: SQLiteFile, handoff: _Handoff, jobs: Sequence[_Job], work: Callable[[], Sequence[object]]) -> None:
    outcomes: Sequence[object]
    try:
        outcomes = work()
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        outcomes = [StoreUnavailable(f"store `{file.label}` failed: {error}") for _ in jobs]
    handoff.answer([(job.done, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
