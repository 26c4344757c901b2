"""The store in a SQLite file. A thread does all file access, so the loop never waits for a disk.

Requests that arrive while the thread is busy are done together: all puts in one transaction, then all gets in one. So a
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
from unbroken.gateway.stores.records import MAX_BYTES, SQLITE_TABLE, Record, read_sqlite, replace_sqlite
from unbroken.gateway.stores.store import (
    FORMAT,
    LIST_BYTES,
    NOTHING,
    ONCE,
    ONCE_FOR,
    Addition,
    StoreStats,
    StoreUnavailable,
    refuse_too_large,
    wall_time,
)

# The SQLite file itself: opens, checks, reads, writes and trims it. Synchronous; `SQLiteStore` calls it in its thread.
#
# Any number of processes may have the file open. It is in WAL mode with `synchronous=NORMAL`: commits survive a crash
# of the process at any moment. If the machine loses power, the last commits may be lost, but not the file. Rows are in
# the order of writing (`id`), so the rows that are evicted first are adjacent and their pages become free. The used
# size comes from the file's header, which is fast: no sum is stored or computed.


APPLICATION = 0x756E6272
"""Marks our files in the header (`unbr`), so that we never use another program's file."""
_BUSY = 5.0
"""Seconds to wait for another process that writes."""
_SLICE = 1 << 20
"""The size is checked after this many bytes are written. Each process may exceed the limit by this much."""
_PORTION = 500
"""Rows that are removed in one transaction, so that others can write in between."""
_SCHEMA = (
    "CREATE TABLE entries"
    " (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, expires REAL NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX entries_by_expiry ON entries (expires)",
)
# Not part of `FORMAT`: what was spent stays when the entries are cleared for a new format.
_COUNTERS = (
    "CREATE TABLE IF NOT EXISTS counter_groups (name BLOB PRIMARY KEY, expires REAL NOT NULL) WITHOUT ROWID",
    # A sum beyond 64 bits would become a real number, which is not exact: it fails instead.
    "CREATE TABLE IF NOT EXISTS counters (in_group BLOB NOT NULL, name BLOB NOT NULL,"
    " amount INTEGER NOT NULL CHECK (typeof(amount) = 'integer'), PRIMARY KEY (in_group, name)) WITHOUT ROWID",
)
_ONCE = "INSERT INTO counter_groups VALUES (?, ?) ON CONFLICT DO NOTHING"
_GROUP = "INSERT INTO counter_groups VALUES (?, ?) ON CONFLICT DO UPDATE SET expires = max(expires, excluded.expires)"
_ADD = "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
_VALUE = "SELECT amount FROM counters WHERE in_group = ? AND name = ?"
_VALUES = (
    "SELECT name, amount FROM counters"
    " WHERE in_group = (SELECT name FROM counter_groups WHERE name = ? AND expires > ?)"
)
_PUT = "INSERT OR REPLACE INTO entries (key, expires, value) VALUES (?, ?, ?)"
# Replaced instead of updated, so that its row is the newest: a list is never evicted before its entries.
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
        self._limit = max_bytes - self._slice
        """Beyond this, the oldest rows are removed: what is written before the next check still fits."""
        self._written = self._slice  # so that the first write checks the size
        self._rows_written = 0
        self._looked = 0.0
        self._connection = _open(path, self.label)
        (self._page_size,) = self._connection.execute("PRAGMA page_size").fetchone()

    def close(self) -> None:
        self._connection.close()

    def put(self, rows: Sequence[Row], appended: Sequence[tuple[bytes, float, bytes, float]] = ()) -> None:
        """Rows of key, expiry and value: writes all of them or none. Rows of `appended` also have the current time."""
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
        self._connection.execute("BEGIN")  # one transaction: a consistent state of the file, locked once
        try:
            return [self._get(key, now) for key in keys]
        finally:
            _roll_back(self._connection)

    def _get(self, key: bytes, now: float) -> bytes | None:
        row = self._connection.execute(_GET, (key, now)).fetchone()
        return row[0] if row is not None else None

    def add(self, jobs: Sequence[tuple[Sequence[Addition], str, float]]) -> list[list[dict[str, int]]]:
        """Additions, the id by which they are made only once, and the current time."""
        with _Writing(self._connection):
            self._expire_counters(max(now for _, _, now in jobs))
            return [self._add(*job) for job in jobs]

    def _add(self, additions: Sequence[Addition], once: str, now: float) -> list[dict[str, int]]:
        execute = self._connection.execute
        done = bool(once) and not execute(_ONCE, (_encoded(ONCE + once), now + ONCE_FOR)).rowcount
        for each in () if done else additions:
            group = _encoded(each.group)
            execute(_GROUP, (group, now + each.ttl))
            rows = [(group, _encoded(name), amount) for name, amount in each.amounts.items()]
            self._connection.executemany(_ADD, rows)
        return [{name: self._value(each.group, name) for name in each.amounts} for each in additions]

    def _value(self, group: str, name: str) -> int:
        row = self._connection.execute(_VALUE, (_encoded(group), _encoded(name))).fetchone()
        return row[0] if row is not None else 0

    def counters(self, groups: Sequence[str], names: Sequence[str], now: float) -> list[dict[str, int]]:
        chosen = f" AND name IN ({', '.join('?' * len(names))})" if names else ""
        wanted = [_encoded(name) for name in names]
        found = (self._connection.execute(_VALUES + chosen, (_encoded(group), now, *wanted)) for group in groups)
        return [{name.decode("utf-8", "surrogatepass"): amount for name, amount in each} for each in found]

    def _expire_counters(self, now: float) -> None:
        execute = self._connection.execute
        for (group,) in execute("SELECT name FROM counter_groups WHERE expires <= ?", (now,)).fetchall():
            execute("DELETE FROM counters WHERE in_group = ?", (group,))
            execute("DELETE FROM counter_groups WHERE name = ?", (group,))

    def record(self, name: str, known: int) -> Record | None:
        return read_sqlite(self._connection, name, known)

    def replace_record(self, name: str, value: bytes, version: int) -> bool:
        with _Writing(self._connection):
            return replace_sqlite(self._connection, name, value, version)

    def trim(self, now: float) -> None:
        """Removes some expired rows and, beyond the limit, the oldest ones. Call it after each write; mostly it does
        nothing."""
        if self._written < self._slice and 0 <= now - self._looked < 1:
            return
        # More than was written meanwhile, so that the file shrinks if everything expires.
        portion = _PORTION + 2 * self._rows_written
        self._looked, self._written, self._rows_written = now, 0, 0
        with _Writing(self._connection):
            self._connection.execute(_EXPIRE, (now, portion))
        while self._evict():
            pass

    def _evict(self) -> bool:
        """Removes some of the oldest rows if the file is too large. Returns whether it still is."""
        if self._used() <= self._limit:
            return False
        with _Writing(self._connection):
            # Checked again: another process may have evicted meanwhile.
            excess, last = self._used() - self._limit, -1
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
        """Checks that the file is writable and the disk is not full, by writing an entry that has already expired."""
        with _Writing(self._connection):
            self._connection.execute(_PUT, (b"check", 0.0, b""))


class _Writing:
    """One write transaction, which waits for others and is rolled back if it fails."""

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
    """Rolls back an open transaction; some errors have already ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _open(path: str, label: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        # Created here with mode 600, because SQLite would let everybody read the answers.
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
    connection.execute("BEGIN")  # one transaction, since other processes may be creating the tables
    _look_at(connection, label)  # before anything is written to what may be another program's file
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
        for statement in (*_COUNTERS, SQLITE_TABLE):
            connection.execute(statement)
        connection.execute("SELECT max(id) FROM entries").fetchone()  # finds a damaged file now


def _look_at(connection: sqlite3.Connection, label: str) -> int | None:
    """The format of the file; None if it is new."""
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
    """Retries, because SQLite does not wait for other processes here if several open a new file at once."""
    end = time.monotonic() + _BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            locked = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not locked or time.monotonic() > end:
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
    additions: Sequence[Addition]
    once: str
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
        return await self._do(_Get([_encoded(key) for key in keys], self._now(), _future()))

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        refuse_too_large(entries, self._max_entry)
        if entries or append:
            now = self._now()
            rows = [(_encoded(key), now + ttl, value) for key, value in entries.items()]
            appended = [(_encoded(key), now + ttl, value) for key, value in append.items()]
            await self._do(_Put(rows, appended, now, _future()))

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        return await self._do(_Add(additions, once, self._now(), _future())) if additions else []

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


def _encoded(key: str) -> bytes:
    # Ids come from models and clients, which sometimes send half a surrogate pair.
    return key.encode("utf-8", "surrogatepass")


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
        _attempt(file, handoff, adds, lambda: file.add([(job.additions, job.once, job.now) for job in adds]))
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
        outcomes = work()
    except Exception as error:
        if not isinstance(error, sqlite3.Error | MemoryError | OverflowError):
            LOG.error("store `%s` failed", file.label, exc_info=error)
        outcomes = [StoreUnavailable(f"store `{file.label}` failed: {error}") for _ in jobs]
    handoff.answer([(job.done, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
