"""Stores that keep a model's answer until the client has received all of it: in memory, in a file, on a server.

`open_store` opens the one at an address. `redis` is an extra, which is loaded only if an address needs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from unbroken.errors import UserError, needs_extra
from unbroken_gateway.stores.sqlite import SQLiteStore
from unbroken_gateway.stores.store import (
    EntryTooLarge,
    MemoryStore,
    Store,
    StoreStats,
    StoreUnavailable,
    wall_time,
)

__all__ = [
    "SCHEMES",
    "EntryTooLarge",
    "MemoryStore",
    "Store",
    "StoreStats",
    "StoreUnavailable",
    "open_store",
    "store_url",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)  # one letter is a drive
_SQLITE = b"SQLite format 3\0"
SCHEMES = ("memory", "sqlite", "redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster")
"""How the address of a store begins."""
_KNOWN = "`memory:`, `sqlite:PATH` or `redis://HOST:PORT/DB`"
_SERVERS = ("redis", "rediss", "valkey", "valkeys")


def open_store(
    url: str, *, max_bytes: int = 1 << 30, max_entry: int = 8 << 20, now: Callable[[], float] = wall_time
) -> Store:
    """`memory:`, `sqlite:PATH` (or just a path), `redis://`, `rediss://`, `valkey://`, `valkeys://`; or several of the
    last four with spaces between them, which share the entries (`ShardedStore`). `redis+cluster://` and
    `rediss+cluster://` are a Redis Cluster, by the address of one of its nodes.

    Beyond `max_bytes` the oldest entries are removed; Redis has its own limit (`maxmemory`). `max_entry` is the maximum
    size of one value. Raises `UserError` if the address is not valid or its file cannot be used. A server is contacted
    at the first use, or with `ping`.
    """
    scheme, rest = _split(url)
    if scheme in _SERVERS and len(servers := url.split()) > 1:
        return _open_servers(servers, max_entry)
    # One entry must not evict all others.
    own_limit = min(max_entry, max_bytes // 2)
    match scheme:
        case "memory" if rest in ("", "//"):
            return MemoryStore(max_bytes=max_bytes, max_entry=own_limit, now=now)
        case "sqlite":
            return SQLiteStore(_path(rest), max_bytes=max_bytes, max_entry=own_limit, now=now)
        case "redis+cluster" | "rediss+cluster":
            return _open_redis(f"{scheme.removesuffix('+cluster')}:{rest}", max_entry, is_cluster=True)
        case _ if scheme in _SERVERS:
            return _open_redis(f"{scheme.replace('valkey', 'redis')}:{rest}", max_entry)
        case _:  # the rest of it may hold a password
            raise UserError(f"store `{scheme}:` is of an unknown kind: give {_KNOWN}")


def store_url(setting: str) -> str:
    """The store's address: the setting itself, or the value of the variable that it names."""
    return _from_variable(setting, "store", ", or name another store")


def journal_url(setting: str) -> str:
    """The same for the journal of durable runs."""
    return _from_variable(setting, "journal")


def _from_variable(setting: str, whose: str, way_out: str = "") -> str:
    name = setting.removeprefix("env:")
    if name == setting:
        return setting
    if url := os.environ.get(name, "").strip():
        return url
    raise UserError(f"the {whose}'s address is missing: variable {name} is not set; export it{way_out}")


def check_store(url: str) -> None:
    """Checks a store without opening it; raises `UserError` if it cannot be used. A server is not contacted."""
    scheme, rest = _split(url)
    if scheme != "sqlite":
        open_store(url)  # does not contact the server yet
        return
    path = Path(_path(rest))
    where = f"store `sqlite:{rest}` cannot be used"
    if path.is_dir():
        raise UserError(f"{where}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"{where}: there is no folder {path.parent}; make it first")
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    if head and head != _SQLITE:
        raise UserError(f"{where}: it is a file of another kind; name another, or move it away")


def _split(url: str) -> tuple[str, str]:
    if not url.strip():
        raise UserError(f"the store has no address: give {_KNOWN}")
    if url == "memory":
        return "memory", ""
    if (match := _SCHEME.fullmatch(url)) is None:
        return "sqlite", url
    return match[1].lower(), match[2]


def _path(rest: str) -> str:
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise UserError(f"store `sqlite:{rest}` names a machine: give `sqlite:PATH` or `sqlite:///PATH`")
        rest = "/" + rest.lstrip("/")
    if rest in ("", "/", ":memory:"):
        raise UserError(f"store `sqlite:{rest}` names no file: give `sqlite:PATH`, or `memory:` for none")
    return os.path.abspath(os.path.expanduser(rest))


def _open_servers(urls: list[str], max_entry: int) -> Store:
    from unbroken_gateway.stores.sharded import ShardedStore  # noqa: PLC0415 - start-up: few gateways need it

    kinds = [_split(url) for url in urls]
    if any(scheme not in _SERVERS for scheme, _ in kinds):
        raise UserError("several stores are used together only if all are servers: give `redis://HOST:PORT/DB` of each")
    if len(set(urls)) < len(urls):
        raise UserError("a server is listed twice in the store's address: list each once")
    return ShardedStore([_open_redis(f"{kind.replace('valkey', 'redis')}:{rest}", max_entry) for kind, rest in kinds])


def _open_redis(url: str, max_entry: int, *, is_cluster: bool = False) -> Store:
    try:
        from unbroken_gateway.stores.redis import ClusterStore, RedisStore  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "redis":
            raise
        raise needs_extra("a store on Redis or Valkey", "the package redis", "redis") from None
    return ClusterStore(url, max_entry=max_entry) if is_cluster else RedisStore(url, max_entry=max_entry)
