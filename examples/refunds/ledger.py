"""The ledger of the payments, a database of its own: what is in it happened, whatever became of the process that did
it. A payment has the idempotency key of its call, and no key is paid twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_TABLE = "CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, order_number INTEGER, amount INTEGER)"
_COLUMNS = "key, order_number, amount"


class Ledger:
    """At `sqlite:///ledger.db` or `postgresql://…`."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._connection() as connection:
            connection.execute(_TABLE)

    def pay(self, key: str, order: int, amount: int) -> None:
        mark = "?" if self.url.startswith("sqlite:") else "%s"
        with self._connection() as connection:
            connection.execute(
                f"INSERT INTO refunds ({_COLUMNS}) VALUES ({mark}, {mark}, {mark}) ON CONFLICT (key) DO NOTHING",
                (key, order, amount),
            )

    def find(self, key: str) -> tuple[int, int] | None:
        """The order and the amount that were paid with this key."""
        return next(((order, amount) for paid, order, amount in self.all() if paid == key), None)

    def all(self) -> list[tuple[str, int, int]]:
        with self._connection() as connection:
            return list(connection.execute(f"SELECT {_COLUMNS} FROM refunds ORDER BY order_number"))

    @contextmanager
    def _connection(self) -> Generator[Any]:
        if self.url.startswith("sqlite:"):
            connection: Any = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        else:
            import psycopg  # noqa: PLC0415 - only for PostgreSQL

            connection = psycopg.connect(self.url)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
