"""The store in a file: one thread of its own does all that touches it, so that the loop never waits for a disk.

What is asked while the thread is busy is done together: all puts in one transaction, then all gets in one reading. So a
hundred at once cost little more than one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from unbroken.errors import UserError
from unbroken.gateway.stores.handoff import Handoff
from unbroken.gateway.stores.store import (
    FORMAT,
    LIST_BYTES,
    NOTHING,
    StoreStats,
    StoreUnavailable,
    refuse_too_large,
    wall_time,
)

# The SQLite file itself: opened, checked, read, written, kept small. Synchronous; `sqlite` calls it in its thread.
#
# Any number of processes may have the file open. It is in WAL mode with `synchronous=NORMAL`: what was committed
# survives the death of the process at any moment; when the machine itself loses power, the last commits may be lost,
# the file not.
#
# Rows stand in the order of their writing (`id`), so that what goes first when there is no room lies together and its
# pages become free. How much is used is read from the file's header, in no time: no sum is kept or computed.


APPLICATION = 0x756E6272
"""Stands in the header of our files (`unbr`), so that nobody else's is taken for one."""
_BUSY = 5.0
"""Seconds to wait for another process that writes."""
_SLICE = 1 << 20
"""Bytes after whose writing the size is looked at again. Several processes may be over the limit by as much, each."""
_PORTION = 500
"""Rows that are removed in one transaction: others want to write too."""
_SCHEMA = (
    "CREATE TABLE entries"
    " (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, expires REAL NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX entries_by_expiry ON entries (expires)",
)
_PUT = "INSERT OR REPLACE INTO entries (key, expires, value) VALUES (?, ?, ?)"
# Replaced rather than updated, so that its row is the newest: a list is never evicted before what it lists.
_APPEND = (
    "WITH old AS (SELECT coalesce((SELECT value FROM entries WHERE key = ?1 AND expires > ?4), x'') AS value)"
    " INSERT OR REPLACE INTO entries (key, expires, value) SELECT ?1, ?2,"
    f" CAST(CASE WHEN length(value) >= {LIST_BYTES} THEN value ELSE value || ?3 END AS BLOB) FROM old"
)
_GET = "SELECT value FROM entries WHERE key = ? AND expires > ?"
_EXPIRE = "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE expires <= ? LIMIT ?)"
_OLDEST = "SELECT id, length(key) + length(value) FROM entries ORDER BY id LIMIT ?"


Row: TypeAlias = tuple[bytes, float, bytes]


class SQLiteFile:
    """Raises `UserError` if the file cannot be used; later, whatever `sqlite3` raises."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.label = f"sqlite:{path}"
        self._slice = min(_SLICE, max_bytes // 8)
        self._room = max_bytes - self._slice
        """Beyond this, the oldest go: what is written before the next look still fits."""
        self._written = self._slice  # so that the first look comes with the first writing
        self._rows_written = 0
        self._looked = 0.0
        self._connection = _open(path, self.label)
        (self._page_size,) = self._connection.execute("PRAGMA page_size").fetchone()

    def close(self) -> None:
        self._connection.close()

    def put(self, rows: Sequence[Row], appended: Sequence[tuple[bytes, float, bytes, float]] = ()) -> None:
        """Key, time of its expiry, value: all of them, or none. What is `appended` has the present time as well."""
        with _Writing(self._connection):
            self._connection.executemany(_PUT, rows)
            if appended:
                self._connection.executemany(_APPEND, appended)
        # Pages are never full.
        self._written += sum(2 * (len(row[0]) + len(row[2])) + 100 for row in (*rows, *appended))
        self._rows_written += len(rows) + len(appended)

    def get(self, keys: Sequence[bytes], now: float) -> list[bytes | None]:
        if len(keys) == 1:
            return [self._get(keys[0], now)]
        self._connection.execute("BEGIN")  # one state of the file for all of them, locked once
        try:
            return [self._get(key, now) for key in keys]
        finally:
            _roll_back(self._connection)

    def _get(self, key: bytes, now: float) -> bytes | None:
        row = self._connection.execute(_GET, (key, now)).fetchone()
        return row[0] if row is not None else None

    def trim(self, now: float) -> None:
        """Removes some of what has expired and, if there is too much, the oldest. To be called after each writing; does
        nothing most of the time."""
        if self._written < self._slice and 0 <= now - self._looked < 1:
            return
        # More than was written in the meantime, so that it gets less if all of that expires.
        portion = _PORTION + 2 * self._rows_written
        self._looked, self._written, self._rows_written = now, 0, 0
        with _Writing(self._connection):
            self._connection.execute(_EXPIRE, (now, portion))
        while self._evict():
            pass

    def _evict(self) -> bool:
        """A portion of the oldest, if there is too much. Is there still?"""
        if self._used() <= self._room:
            return False
        with _Writing(self._connection):
            # Asked again: another process may have been here in the meantime.
            excess, last = self._used() - self._room, -1
            for id, size in self._connection.execute(_OLDEST, (_PORTION,)):
                if excess <= 0:
                    break
                excess, last = excess - size, id
            self._connection.execute("DELETE FROM entries WHERE id <= ?", (last,))
        return last >= 0

    def _used(self) -> int:
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (free,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        return (pages - free) * self._page_size

    def stats(self, now: float) -> StoreStats:
        (entries,) = self._connection.execute("SELECT count(*) FROM entries WHERE expires > ?", (now,)).fetchone()
        return StoreStats(entries, self._used())

    def check(self) -> None:
        """That it can be written to now, and its disk is not full: something is, that has expired already."""
        with _Writing(self._connection):
            self._connection.execute(_PUT, (b"check", 0.0, b""))


class _Writing:
    """One transaction that waits for its turn, and leaves no trace if it fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            _roll_back(self._connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    """What is still open; some errors end a transaction by themselves."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _open(path: str, label: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        # Made here because SQLite would let everybody read what models say.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        _prepare(connection, label)
    except (OSError, ValueError, sqlite3.Error, UserError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, UserError):
            raise
        raise _unusable(path, label, error) from None
    return connection


def _prepare(connection: sqlite3.Connection, label: str) -> None:
    connection.execute("BEGIN")  # one state of the file, while others may be laying it out
    _look_at(connection, label)  # before anything is written to what may be somebody else's
    connection.execute("COMMIT")
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    with _Writing(connection):
        version = _look_at(connection, label)  # another process may have been quicker
        if version is not None and version < FORMAT:
            LOG.warning("store `%s` was of format %d and is cleared for format %d", label, version, FORMAT)
        if version != FORMAT:
            _lay_out(connection)
        connection.execute("SELECT max(id) FROM entries").fetchone()  # a damaged file had better show it now


def _look_at(connection: sqlite3.Connection, label: str) -> int | None:
    """The format of the file, None if it is new."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return None
    if application != APPLICATION:
        raise UserError(f"store `{label}` is a database of another program: name a new file")
    if version > FORMAT:
        raise UserError(
            f"store `{label}` is of format {version}, and {FORMAT} can be read: update unbroken, or name a new file"
        )
    return version


def _lay_out(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS entries")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where several open a new file at once, this is refused without the wait that all else gets."""
    end = time.monotonic() + _BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _unusable(path: str, label: str, error: Exception) -> UserError:
    folder = os.path.dirname(path)
    if isinstance(error, FileNotFoundError):
        return UserError(f"store `{label}` cannot be opened: there is no folder {folder}; make it, or name another")
    if isinstance(error, IsADirectoryError):
        return UserError(f"store `{label}` cannot be opened: it is a folder; name a file in it")
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return UserError(f"store `{label}` cannot be opened: {error}; move the file away, or name another")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"store `{label}` cannot be opened: {why}; name a file that can be written")


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
