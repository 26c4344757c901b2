"""The store in a SQLite file. A thread does all file access, so the loop never waits for a disk.

Requests that arrive while the thread is busy are done together: all puts in one transaction, then all gets in one. So a
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

from unbroken_gateway.stores.handoff import Handoff
from unbroken_gateway.stores.records import MAX_BYTES, Record
from unbroken_gateway.stores.sqlite_file import Row, SQLiteFile, encoded
from unbroken_gateway.stores.store import (
    NOTHING,
    Addition,
    Limit,
    StoreStats,
    StoreUnavailable,
    refuse_too_large,
    wall_time,
)

LOG = logging.getLogger("unbroken.gateway")

_TOGETHER = 256
_BYTES_TOGETHER = 16 << 20
"""Maximum size of one transaction."""


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
class _Add:
    work: Callable[[SQLiteFile], object]
    """Done in one transaction with others."""
    now: float
    done: asyncio.Future[Any]
    size: int = 0


@dataclass(slots=True, eq=False)
class _Ask:
    """Any other job, done on its own."""

    work: Callable[[SQLiteFile], object]
    done: asyncio.Future[Any]
    size: int = 0


_Job: TypeAlias = _Put | _Get | _Add | _Ask
_Handoff: TypeAlias = "Handoff[_Job]"


class SQLiteStore:
    """Raises `UserError` if the file at `path` cannot be used."""

    parts = 1

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
        # The thread has no reference to the store, so that a store that was never closed is collected, and its thread
        # ends.
        self._thread = threading.Thread(target=_serve, args=(file, self._handoff), name="unbroken-store", daemon=True)
        self._stop = weakref.finalize(self, self._handoff.stop)
        self._thread.start()

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        if not keys:
            return []
        return await self._do(_Get([encoded(key) for key in keys], self._now(), _future()))

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        refuse_too_large(entries, self._max_entry)
        if entries or append:
            now = self._now()
            rows = [(encoded(key), now + ttl, value) for key, value in entries.items()]
            appended = [(encoded(key), now + ttl, value) for key, value in append.items()]
            await self._do(_Put(rows, appended, now, _future()))

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        now = self._now()
        return await self._do(_Add(lambda file: file.add(additions, once, now), now, _future())) if additions else []

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        now = self._now()
        return await self._do(_Add(lambda file: file.reserve(additions, limits, now), now, _future()))

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        now = self._now()
        return await self._do(_Ask(lambda file: file.counters(groups, names, now), _future())) if groups else []

    async def record(self, name: str, known: int = 0) -> Record | None:
        return await self._do(_Ask(lambda file: file.record(name, known), _future()))

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        refuse_too_large({name: value}, MAX_BYTES)
        return await self._do(_Ask(lambda file: file.replace_record(name, value, version), _future()))

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


def _serve(file: SQLiteFile, handoff: _Handoff) -> None:
    """The thread's main function."""
    try:
        while jobs := handoff.take():
            _do_together(file, handoff, jobs)
    finally:
        file.close()


def _do_together(file: SQLiteFile, handoff: _Handoff, jobs: Sequence[_Job]) -> None:
    puts = [job for job in jobs if isinstance(job, _Put)]
    gets = [job for job in jobs if isinstance(job, _Get)]
    adds = [job for job in jobs if isinstance(job, _Add)]
    if puts:
        _attempt(file, handoff, puts, lambda: _put(file, puts))
    if gets:
        _attempt(file, handoff, gets, lambda: _get(file, gets))
    if adds:
        _attempt(file, handoff, adds, lambda: file.count([job.work for job in adds], max(job.now for job in adds)))
    if puts:
        try:
            file.trim(max(job.now for job in puts))
        except Exception as error:  # noqa: BLE001 - as in `_attempt`
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
        if not any(isinstance(job, _Ask) and job.work == SQLiteFile.close for job in jobs):
            file.look()
        outcomes = work()
    except StoreUnavailable as error:
        outcomes = [StoreUnavailable(str(error)) for _ in jobs]
    except Exception as error:
        if not isinstance(error, sqlite3.Error | MemoryError | OverflowError):
            LOG.error("store `%s` failed", file.label, exc_info=error)
        outcomes = [StoreUnavailable(f"store `{file.label}` failed: {error}") for _ in jobs]
    handoff.answer([(job.done, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
