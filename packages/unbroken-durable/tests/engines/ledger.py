"""What the tools of these tests really did, in an SQLite file of their own: one row for each execution."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any


class Ledger:
    def __init__(self, path: str | Path) -> None:
        self.folder = Path(path).parent
        self._path = str(path)
        with self._connected() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS done (id INTEGER PRIMARY KEY, tool TEXT, key TEXT, tenant TEXT, "
                "process INTEGER, began REAL, ended REAL, stopped INTEGER NOT NULL DEFAULT 0)"
            )

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            yield connection

    @contextmanager
    def execution(self, tool: str, key: str, tenant: str = "") -> Generator[None]:
        """One execution of a tool, from here to the end of the block."""
        with self._connected() as connection:
            row = connection.execute(
                "INSERT INTO done (tool, key, tenant, process, began) VALUES (?, ?, ?, ?, ?)",
                (tool, key, tenant, os.getpid(), time.time()),
            ).lastrowid
        try:
            yield
        except BaseException:
            with self._connected() as connection:
                connection.execute("UPDATE done SET stopped = 1, ended = ? WHERE id = ?", (time.time(), row))
            raise
        with self._connected() as connection:
            connection.execute("UPDATE done SET ended = ? WHERE id = ?", (time.time(), row))

    def rows(self, columns: str = "key", where: str = "1") -> list[Any]:
        with self._connected() as connection:
            return connection.execute(f"SELECT {columns} FROM done WHERE {where} ORDER BY id").fetchall()

    def executions(self, tool: str = "") -> Counter[str]:
        """How often each call was executed, by its idempotency key."""
        return Counter(key for (key,) in self.rows("key", f"tool = '{tool}'" if tool else "1"))

    def processes(self) -> set[int]:
        return {process for (process,) in self.rows("process")}

    def most_at_once(self, where: str = "1") -> int:
        """How many executions overlapped at most."""
        rows = self.rows("began, ended", where)
        times = sorted([(began, 1) for began, _ in rows] + [(ended, -1) for _, ended in rows])
        running = most = 0
        for _, change in times:
            running += change
            most = max(most, running)
        return most
