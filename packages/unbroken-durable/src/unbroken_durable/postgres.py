"""A journal in PostgreSQL, for many machines.

A driver's lock is an advisory lock of its connection: the server frees it when the connection ends, however it ends.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from unbroken.errors import UserError, needs_extra
from unbroken_durable.database import Database, Disconnected, redirect_to_nothing

try:
    import psycopg
except ImportError:
    raise needs_extra("a journal in PostgreSQL", "the package psycopg", "postgres") from None

LOG = logging.getLogger("unbroken.durable")

CHANNEL = "unbroken_runs"
"""Where changed runs are announced."""
_NETWORK: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""A lost network is noticed after a quarter of a minute."""


class PostgresDatabase(Database):
    serial = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    bytes_type = "BYTEA"
    without_rowid = ""
    for_update = " FOR UPDATE"

    def __init__(self, url: str) -> None:
        super().__init__(shown(url))
        self._url = url
        self._locked = False
        self._connection: psycopg.Connection[Any] | None = None
        self._process = 0
        """The server's process of the connection."""
        try:
            self._connected()
        except Disconnected as error:
            raise UserError(f"{self.url} cannot be opened: {error}") from None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            try:
                made = psycopg.connect(self._url, autocommit=True, **_given(self._url))
            except psycopg.OperationalError as error:
                raise Disconnected(_words(error)) from error
            except psycopg.Error as error:
                raise UserError(f"{self.url} cannot be opened: {_words(error)}") from None
            if self._process:
                try:
                    self._lock_again(made, self._process)
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    made.close()
                    raise Disconnected(_words(error)) from error
            self._connection, self._process = made, made.info.backend_pid
        return self._connection

    def _lock_again(self, connection: psycopg.Connection[Any], before: int) -> None:
        """The connection was lost, and its lock with it; unless the server has not noticed yet."""
        LOG.warning("%s: connected again", self.url)
        with suppress(psycopg.Error):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND application_name = %s "
                "AND pid <> pg_backend_pid()",
                (before, _APPLICATION),
            )
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_key(self.driver),)).fetchone()
        self._locked = row is not None and bool(row[0])

    @contextmanager
    def transaction(self, *, writes: bool = True) -> Generator[None]:
        connection = self._connected()
        try:
            with connection.transaction():
                yield
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            with suppress(psycopg.Error):
                connection.close()
            raise Disconnected(_words(error)) from error

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connected().execute(_marked(statement), values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        return self._connected().execute(_marked(statement), values or None).rowcount

    def has_tables(self) -> bool:
        return self.query("SELECT to_regclass('unbroken_version')")[0][0] is not None

    def hold_lock(self) -> None:
        if not self._locked:
            self._locked = bool(self.query("SELECT pg_try_advisory_lock(?)", _key(self.driver))[0][0])

    def is_locked(self, driver: str) -> bool:
        if not self.query("SELECT pg_try_advisory_lock_shared(?)", _key(driver))[0][0]:
            return True
        self.query("SELECT pg_advisory_unlock_shared(?)", _key(driver))
        return False

    def notify(self, runs: Iterable[int]) -> None:
        for run in runs:
            self.query("SELECT pg_notify(?, ?)", CHANNEL, str(run))

    def serialize(self, name: str) -> None:
        self.query("SELECT pg_advisory_xact_lock(?)", _key(name))

    def after_fork(self) -> None:
        if self._connection is not None and not self._connection.closed:
            redirect_to_nothing(self._connection.fileno())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def changes(url: str) -> AsyncIterator[None]:
    """Yields once the connection stands, and after each change of a run. Raises `Disconnected` when it is lost."""
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, **_given(url)) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield
            async for _ in connection.notifies():
                yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise Disconnected(_words(error)) from error


_APPLICATION = "unbroken"


def _given(url: str) -> dict[str, Any]:
    """Settings of the connection; those in the URL win."""
    named = urlsplit(url).query
    return {name: value for name, value in {"application_name": _APPLICATION, **_NETWORK}.items() if name not in named}


def _key(name: str) -> int:
    digest = hashlib.sha256(f"unbroken:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _marked(statement: str) -> Any:
    return statement.replace("?", "%s")


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def shown(url: str) -> str:
    """The URL without its password, which may also be in its query."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{login.partition(':')[0]}{at}{host}", parts.path, "", ""))
