"""The SQLite file itself: opened, checked, read, written, kept small. Synchronous; `sqlite` calls it in its thread.

Any number of processes may have the file open. It is in WAL mode with `synchronous=NORMAL`: what was committed survives
the death of the process at any moment; when the machine itself loses power, the last commits may be lost, the file not.

Rows stand in the order of their writing (`id`), so that what goes first when there is no room lies together and its
pages become free. How much is used is read from the file's header, in no time: no sum is kept or computed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken.gateway.stores.store import FORMAT, LIST_BYTES, StoreStats

LOG = logging.getLogger("unbroken.gateway")

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
