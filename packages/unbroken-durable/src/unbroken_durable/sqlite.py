"""A journal in an SQLite file, for one machine.

A driver's lock is a locked file in a folder next to it, which the operating system frees when its process dies. What
was stored survives every crash of a process. `?synchronous=full` in the URL makes it survive a loss of power too: then
each append waits for the disk, which takes milliseconds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from unbroken.errors import UserError
from unbroken.trajectory.jsonl_writer import lock
from unbroken_durable.database import Database, Disconnected, redirect_to_nothing
from unbroken_durable.errors import JournalUnavailable

BUSY_SECONDS = 10
CHECKPOINT = 300
"""Transactions after which the log of the database is emptied."""
_TEMPORARY = ("database is locked", "database table is locked", "disk I/O error", "database or disk is full")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name now."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# Two contexts that every append enters: as classes they take a third of the time of generators.


class _WithoutWaiting:
    __slots__ = ("_database",)

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.use(patient=False)

    def __exit__(self, *_: object) -> None:
        self._database.use(patient=True)


class _Transaction:
    __slots__ = ("_begin", "_connection")

    def __init__(self, connection: sqlite3.Connection, begin: str) -> None:
        self._connection = connection
        self._begin = begin

    def __enter__(self) -> None:
        self._execute(self._begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._execute("COMMIT")
            return
        self._roll_back()
        if isinstance(error, sqlite3.OperationalError) and str(error) in _TEMPORARY:
            raise Disconnected(str(error)) from error

    def _execute(self, statement: str) -> None:
        try:
            self._connection.execute(statement)
        except sqlite3.OperationalError as error:
            self._roll_back()
            if str(error) in _TEMPORARY:
                raise Disconnected(str(error)) from error
            raise

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")


class SqliteDatabase(Database):
    """Two connections: one waits for other processes, one does not and is used without a thread."""

    def __init__(self, path: str, synchronous: Literal["normal", "full"] = "normal") -> None:
        super().__init__(f"sqlite:///{path}")
        path = os.path.realpath(path)  # the same locks for every name of the file
        self.at_once = synchronous == "normal"
        self._path = path
        self._synchronous = synchronous
        self._locks = Path(f"{path}-locks")
        self._lock = -1
        self._patient = self._connect(BUSY_SECONDS)
        self._impatient = self._connect(0)
        self._connection = self._patient
        """The one in use."""
        self._file = _identity(path)
        self._written = 0

    def _connect(self, timeout: float) -> sqlite3.Connection:
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self._try_to_connect(timeout)
            except (sqlite3.Error, OSError) as error:
                # Of several processes that open a new file at the same moment, only one can begin its log, and SQLite
                # does not let the others wait.
                if str(error) not in _TEMPORARY or time.monotonic() > end:
                    raise UserError(
                        f"{self.url} cannot be opened: {error}; a journal has to be in a folder that is writable, also "
                        f"to be read: name such a file, or copy this one with its -wal file"
                    ) from None
                time.sleep(0.01)

    def _try_to_connect(self, timeout: float) -> sqlite3.Connection:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        made = sqlite3.connect(self._path, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            if timeout:
                # Of a new file. Most appends have 1 to 8 KB: in pages of 8,192 bytes half of the file stayed empty.
                made.execute("PRAGMA page_size = 1024")
                made.execute("PRAGMA journal_mode = WAL")
            else:
                made.execute("PRAGMA wal_autocheckpoint = 0")  # the other connection does that, in its thread
            made.execute(f"PRAGMA synchronous = {self._synchronous}")
        except BaseException:
            made.close()
            raise
        return made

    def without_waiting(self) -> _WithoutWaiting:
        return _WithoutWaiting(self)

    def transaction(self, *, writes: bool = True) -> _Transaction:
        if writes:
            self._written += 1
            if _identity(self._path) != self._file:
                raise JournalUnavailable(
                    f"{self.url} was deleted or replaced while it was open: nothing more can be stored in it"
                )
        return _Transaction(self._connection, "BEGIN IMMEDIATE" if writes else "BEGIN")

    def use(self, *, patient: bool) -> None:
        """Which of the two connections is used from now on."""
        self._connection = self._patient if patient else self._impatient

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        return self._connection.execute(statement, values).rowcount

    def has_tables(self) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name = 'unbroken_version'"))

    @property
    def needs_checkpoint(self) -> bool:
        return self._written >= CHECKPOINT

    def checkpoint(self) -> None:
        self._written = 0
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def version(self) -> int:
        """Another number after each change by another connection."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def hold_lock(self) -> None:
        if self._lock < 0:
            self._locks.mkdir(exist_ok=True)
            self._lock = os.open(self._locks / self.driver, os.O_RDWR | os.O_CREAT, 0o600)
            lock(self._lock, wait=True)

    def is_locked(self, driver: str) -> bool:
        path = self._locks / driver
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not lock(file, shared=True):  # two who look do not mistake each other for the driver
                return True
            with suppress(OSError):
                os.unlink(path)  # its process died, and nobody else will ever have this name
            return False
        finally:
            os.close(file)

    def after_fork(self) -> None:
        if self._lock >= 0:
            redirect_to_nothing(self._lock)

    def close(self) -> None:
        if self._lock >= 0:
            with suppress(OSError):
                os.unlink(self._locks / self.driver)
            os.close(self._lock)
            self._lock = -1
        self._impatient.close()
        self._patient.close()
