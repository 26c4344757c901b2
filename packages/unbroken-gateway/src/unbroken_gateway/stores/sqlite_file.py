"""The SQLite file of a store: opens, checks, reads, writes and trims it. Synchronous; `SQLiteStore` calls it in its
thread.

Any number of processes may have the file open. It is in WAL mode with `synchronous=NORMAL`: commits survive a crash of
the process at any moment. If the machine loses power, the last commits may be lost, but not the file. Rows are in the
order of writing (`id`), so the rows that are evicted first are adjacent and their pages become free. The used size
comes from the file's header, which is fast: no sum is stored or computed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken_gateway.stores.records import SQLITE_TABLE, Record, read_sqlite, replace_sqlite
from unbroken_gateway.stores.store import (
    FORMAT,
    LIST_BYTES,
    ONCE,
    ONCE_FOR,
    Addition,
    Limit,
    StoreStats,
    StoreUnavailable,
)

LOG = logging.getLogger("unbroken.gateway")

APPLICATION = 0x756E6272
"""Marks our files in the header (`unbr`), so that we never use another program's file."""
_BUSY = 5.0
"""Seconds to wait for another process that writes."""
_SLICE = 1 << 20
"""The size is checked after this many bytes are written. Each process may exceed the limit by this much."""
_SEEN_FOR = 1.0
"""Seconds after which it is checked again that the file is still there."""
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
        self._path = path
        self._connection = _open(path, self.label)
        self._identity = _identity(path)
        self._seen_at = time.monotonic()
        self._gone = False
        (self._page_size,) = self._connection.execute("PRAGMA page_size").fetchone()

    def close(self) -> None:
        self._connection.close()

    def look(self, *, now: bool = False) -> None:
        """Raises `StoreUnavailable` if the file was deleted or replaced: SQLite would write into a file that
        no other process sees and that is lost at the end of this one. Checked once a second, or `now`."""
        at = time.monotonic()
        if now or self._gone or at - self._seen_at >= _SEEN_FOR:
            self._seen_at = at
            gone = self._identity is None or _identity(self._path) != self._identity
            if gone and not self._gone:
                LOG.error("store_gone %s: %s", self.label, _GONE)
            elif self._gone and not gone:
                LOG.warning("store `%s` is back", self.label)
            self._gone = gone
        if self._gone:
            raise StoreUnavailable(f"store `{self.label}`: {_GONE}")

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

    def count(self, jobs: Sequence[Callable[[SQLiteFile], object]], now: float) -> list[object]:
        """Calls of `add` and `reserve` in one transaction."""
        with _Writing(self._connection):
            self._expire_counters(now)
            return [job(self) for job in jobs]

    def add(self, additions: Sequence[Addition], once: str, now: float) -> list[dict[str, int]]:
        """`once`: the id by which they are made only once."""
        execute = self._connection.execute
        done = bool(once) and not execute(_ONCE, (encoded(ONCE + once), now + ONCE_FOR)).rowcount
        for each in () if done else additions:
            group = encoded(each.group)
            execute(_GROUP, (group, now + each.ttl))
            rows = [(group, encoded(name), amount) for name, amount in each.amounts.items()]
            self._connection.executemany(_ADD, rows)
        return [{name: self._value(each.group, name) for name in each.amounts} for each in additions]

    def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit], now: float) -> list[list[int]]:
        values = [[self._value(*counter) for counter in limit.counters] for limit in limits]
        if all(limit.has_room(found) for limit, found in zip(limits, values, strict=True)):
            self.add(additions, "", now)
        return values

    def _value(self, group: str, name: str) -> int:
        row = self._connection.execute(_VALUE, (encoded(group), encoded(name))).fetchone()
        return row[0] if row is not None else 0

    def counters(self, groups: Sequence[str], names: Sequence[str], now: float) -> list[dict[str, int]]:
        chosen = f" AND name IN ({', '.join('?' * len(names))})" if names else ""
        wanted = [encoded(name) for name in names]
        found = (self._connection.execute(_VALUES + chosen, (encoded(group), now, *wanted)) for group in groups)
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
        """Checks that the file is there and writable and the disk is not full, by writing an entry that has already
        expired."""
        self.look(now=True)
        with _Writing(self._connection):
            self._connection.execute(_PUT, (b"check", 0.0, b""))


_GONE = "its file was deleted or replaced while it was open; restart the gateway, or put the file back"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
            LOG.warning("store `%s` had the old format %d and was cleared for format %d", label, version, FORMAT)
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


def encoded(key: str) -> bytes:
    # Ids come from models and clients, which sometimes send half a surrogate pair.
    return key.encode("utf-8", "surrogatepass")
