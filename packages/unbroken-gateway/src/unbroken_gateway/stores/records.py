"""Records of a store: small documents that all gateways share, such as the keys. They are never evicted, they do not
expire, and they are changed by compare-and-set, so that two changes at the same time are both made.

The stores implement `record` and `replace_record`; here is what they have in common.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 16 << 20
"""Maximum size of a record: 30,000 keys are about 10 MB."""

REDIS = b"unbroken:record:"
"""Before the names of records on a server of the Redis protocol, which are hashes. Not part of `FORMAT`."""
_REDIS_REPLACE = """
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'value', ARGV[3])
return 1
"""

SQLITE_TABLE = (
    "CREATE TABLE IF NOT EXISTS records (name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)"
    " WITHOUT ROWID"
)
"""Not part of `FORMAT`: records stay when the entries are cleared for a new format."""
_SQLITE_INSERT = "INSERT INTO records VALUES (?, 1, ?) ON CONFLICT DO NOTHING"
_SQLITE_UPDATE = "UPDATE records SET version = version + 1, value = ? WHERE name = ? AND version = ?"


@dataclass(frozen=True, slots=True)
class Record:
    version: int
    """From 1; each change adds 1. 0: there is no such record."""
    value: bytes


NO_RECORD = Record(0, b"")


def unless_known(record: Record, known: int) -> Record | None:
    return None if record.version == known else record


def read_sqlite(connection: sqlite3.Connection, name: str, known: int) -> Record | None:
    row = connection.execute("SELECT version FROM records WHERE name = ?", (name,)).fetchone()
    if row is None or row[0] == known:
        return unless_known(Record(row[0], b"") if row is not None else NO_RECORD, known)
    return Record(*connection.execute("SELECT version, value FROM records WHERE name = ?", (name,)).fetchone())


def replace_sqlite(connection: sqlite3.Connection, name: str, value: bytes, version: int) -> bool:
    """In a transaction of the caller."""
    if version:
        return connection.execute(_SQLITE_UPDATE, (value, name, version)).rowcount == 1
    return connection.execute(_SQLITE_INSERT, (name, value)).rowcount == 1


async def read_redis(client: Any, name: str, known: int) -> Record | None:
    version = int(await client.hget(REDIS + name.encode(), "version") or 0)
    if not version or version == known:
        return unless_known(Record(version, b""), known)
    found, value = await client.hmget(REDIS + name.encode(), "version", "value")
    return Record(int(found or 0), value or b"")


async def replace_redis(client: Any, name: str, value: bytes, version: int) -> bool:
    return bool(await client.eval(_REDIS_REPLACE, 1, REDIS + name.encode(), version, version + 1, value))
