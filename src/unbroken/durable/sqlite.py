"""A journal in an SQLite file, for one machine.

A driver's lock is a locked file next to it, which the operating system frees when its process dies.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unbroken.durable.database import Database, Disconnected
from unbroken.errors import UserError
from unbroken.trajectory.jsonl_writer import lock

BUSY_SECONDS = 10
_TEMPORARY = ("database is locked", "database table is locked", "disk I/O error", "database or disk is full")


class SqliteDatabase(Database):
    def __init__(self, path: str) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path
        self._locks = Path(f"{path}-locks")
        self._files: dict[tuple[int, int], int] = {}
        self._connection: sqlite3.Connection | None = None
        self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
                made = sqlite3.connect(
                    self._path,
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=64,
                )
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = FULL")  # a call must not start before its start is on the disk
            except (sqlite3.Error, OSError) as error:
                raise UserError(
                    f"{self.url} cannot be opened: {error}; name a file in a folder that is writable"
                ) from None
            self._connection = made
        return self._connection

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Generator[None]:
        connection = self._connected()
        try:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                yield
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if str(error) in _TEMPORARY:
                raise Disconnected(str(error)) from error
            raise

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connected().execute(statement, values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        return self._connected().execute(statement, values).rowcount

    def version(self) -> int:
        """Another number after each change by another connection."""
        return int(self._connected().execute("PRAGMA data_version").fetchone()[0])

    def lock(self, run: int, token: int) -> bool:
        self._locks.mkdir(exist_ok=True)
        path = self._locks / f"{run}-{token}"
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if not lock(file):
                os.close(file)
                return False
            if _is_at(path, file):
                self._files[run, token] = file
                return True
            os.close(file)  # it was removed between the two steps

    def is_locked(self, run: int, token: int) -> bool:
        try:
            file = os.open(self._locks / f"{run}-{token}", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not lock(file)
        finally:
            os.close(file)

    def unlock(self, run: int, token: int) -> None:
        file = self._files.pop((run, token), None)
        if file is not None:
            with suppress(OSError):
                os.unlink(self._locks / f"{run}-{token}")  # before it is free, so that nobody locks a removed file
            os.close(file)

    def close(self) -> None:
        for run, token in [*self._files]:
            self.unlock(run, token)
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
