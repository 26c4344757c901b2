"""Which database the URL of a journal names."""

from __future__ import annotations

from pathlib import Path

from unbroken.errors import UserError
from unbroken_durable.database import Database
from unbroken_durable.sqlite import SqliteDatabase


def connect(url: str) -> Database:
    """The database of this journal, without tables if it is new."""
    if url.startswith("sqlite:///"):
        path, _, query = url.removeprefix("sqlite:///").partition("?")
        if not path:
            raise UserError(f"{url!r} names no file; for example sqlite:///runs.db")
        if query not in ("", "synchronous=normal", "synchronous=full"):
            raise UserError(f"{url!r}: the only setting of a journal in SQLite is ?synchronous=full")
        return SqliteDatabase(path, "full" if query == "synchronous=full" else "normal")
    if url.startswith(("postgresql://", "postgres://")):
        from unbroken_durable.postgres import PostgresDatabase  # noqa: PLC0415 - needs an extra

        return PostgresDatabase(url)
    scheme = url.partition(":")[0]
    raise UserError(
        f"no journal can be opened at a URL of the kind `{scheme}`: use sqlite:///runs.db or postgresql://…"
    )


def refuse_missing(url: str) -> None:
    """Raises `UserError` if the file of an SQLite journal is not there: a misspelled name must not make a new one."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and path and not Path(path).is_file():
        raise UserError(f"there is no journal {path}; `unbroken runs start` and `unbroken worker` make one")
