"""The store on a server of the Redis protocol (Redis, Valkey): for gateways on many machines.

Requests that arrive during an exchange are sent together in the next one: one MULTI for all puts, one MGET for all
gets. A command costs the client library ten times as much as the server. The server limits the total size: set
`maxmemory` with the policy `noeviction`. A full server then refuses writes, which clients see; a server that evicts
loses turns silently. For more than one server has memory for, give several servers (`ShardedStore`) or a cluster
(`ClusterStore`).

A caller waits for two exchanges at most. The next command reopens connections that the server closed.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisClusterException

from unbroken.errors import UserError
from unbroken_gateway.stores.records import MAX_BYTES, Record, read_redis, replace_redis
from unbroken_gateway.stores.sharded import ShardedStore
from unbroken_gateway.stores.store import (
    FORMAT,
    LIST_BYTES,
    NOTHING,
    ONCE,
    ONCE_FOR,
    Addition,
    Limit,
    StoreStats,
    StoreUnavailable,
    refuse_too_large,
)

PREFIX = f"unbroken:{FORMAT}:".encode()
_CONNECTING = 2.0
"""Seconds for a connection."""
_GRACES = 10
"""How often the server gets more time because this process is busy."""
_TOGETHER = 256
_BYTES_TOGETHER = 16 << 20
"""Maximum size of one exchange."""
_APPEND = """
if redis.call('STRLEN', KEYS[1]) < tonumber(ARGV[2]) then redis.call('APPEND', KEYS[1], ARGV[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
COUNTERS = b"unbroken:counters:"
"""Before the names of groups of counters, which are hashes. Without the format: counts stay when it changes."""
# The keys are the mark of the id, those of the counters of each limit, and those of the additions. Numbers of Lua are
# not exact beyond 2**53, so it only passes the texts on to HINCRBY; no limit is higher than that.
_ADD = """
local at, key, found, full = 3, 2, {}, false
for limit = 1, tonumber(ARGV[2]) do
  local sum, counters = 0, tonumber(ARGV[at + 1])
  for counter = 1, counters do
    local value = redis.call('HGET', KEYS[key], ARGV[at + 1 + counter]) or '0'
    sum, key = sum + math.max(0, tonumber(value)), key + 1
    found[#found + 1] = value
  end
  full = full or sum >= tonumber(ARGV[at])
  at = at + 2 + counters
end
if full or ARGV[1] ~= '0' and not redis.call('SET', KEYS[1], '', 'NX', 'PX', ARGV[1]) then return found end
for each = key, #KEYS do
  local ttl, amounts = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  for pair = 1, amounts do
    redis.call('HINCRBY', KEYS[each], ARGV[at + 2 * pair], ARGV[at + 2 * pair + 1])
  end
  if redis.call('PTTL', KEYS[each]) < ttl then redis.call('PEXPIRE', KEYS[each], ttl) end
  at = at + 2 + 2 * amounts
end
return found
"""
_LONGEST = 100 * 365 * 24 * 3600.0
"""Maximum seconds: a server may not accept more milliseconds than this."""


@dataclass(slots=True, eq=False)
class _Put:
    entries: list[tuple[bytes, bytes]]
    appended: list[tuple[bytes, bytes]]
    milliseconds: int
    done: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Get:
    keys: list[bytes]
    done: asyncio.Future[list[bytes | None]]


@dataclass(slots=True, eq=False)
class _Add:
    additions: Sequence[Addition]
    once: str
    limits: Sequence[Limit]
    is_reserving: bool
    done: asyncio.Future[Any]


_Job = TypeVar("_Job", _Put, _Get, _Add)


class _Hangs(StoreUnavailable):
    """The server did not answer in time."""


class RedisStore:
    """Raises `UserError` if the address cannot be read. Belongs to the loop in which it is first used. `patience`:
    seconds for a complete exchange."""

    parts = 1

    def __init__(
        self, url: str, *, max_entry: int = 8 << 20, client: Any = None, tag: bytes = b"", patience: float = 3.0
    ) -> None:
        self._max_entry = max_entry
        self._patience = patience
        self._label, self._password = _read(url)
        self._client: Any = client or _connect(url)  # its types are incomplete and change between versions
        self._is_shared = client is not None
        self._prefix, self._counters = PREFIX + tag, COUNTERS + tag
        self._limit = lru_cache(4096)(self._limit_now)
        self._puts: deque[_Put] = deque()
        self._gets: deque[_Get] = deque()
        self._adds: deque[_Add] = deque()
        self._exchanging: asyncio.Task[None] | None = None
        """Runs while requests wait; awaited by `aclose`."""
        self._closed = False

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        self._refuse_closed()
        if not keys:
            return []
        job = _Get([self._encoded(key) for key in keys], asyncio.get_running_loop().create_future())
        self._gets.append(job)
        self._exchange()
        return await job.done

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        self._refuse_closed()
        refuse_too_large(entries, self._max_entry)
        if not entries and not append:
            return
        rows = [(self._encoded(key), value) for key, value in entries.items()]
        added = [(self._encoded(key), value) for key, value in append.items()]
        job = _Put(rows, added, max(1, int(min(ttl, _LONGEST) * 1000)), asyncio.get_running_loop().create_future())
        self._puts.append(job)
        self._exchange()
        await job.done

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        self._refuse_closed()
        return await self._count(additions, once) if additions else []

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        self._refuse_closed()
        return await self._count(additions, limits=limits)

    async def _count(self, additions: Sequence[Addition], once: str = "", limits: Sequence[Limit] | None = None) -> Any:
        done = asyncio.get_running_loop().create_future()
        self._adds.append(_Add(additions, once, limits or (), limits is not None, done))
        self._exchange()
        return await done

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        self._refuse_closed()
        async with self.asking():
            async with self._client.pipeline(transaction=False) as pipeline:
                for group in groups:
                    if names:
                        pipeline.hmget(self._counter(group), [_bytes(name) for name in names])
                    else:
                        pipeline.hgetall(self._counter(group))
                found = await pipeline.execute()
            if names:
                pairs = (zip(names, values, strict=True) for values in found)
                return [{name: int(value) for name, value in each if value is not None} for each in pairs]
            return [
                {name.decode("utf-8", "surrogatepass"): int(value) for name, value in each.items()} for each in found
            ]

    async def record(self, name: str, known: int = 0) -> Record | None:
        self._refuse_closed()
        async with self.asking():
            return await read_redis(self._client, name, known)

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        self._refuse_closed()
        refuse_too_large({name: value}, MAX_BYTES)
        async with self.asking():
            return await replace_redis(self._client, name, value, version)

    async def stats(self) -> StoreStats:
        """Counts the server's whole database, which may hold other data: counting ours would need a scan."""
        self._refuse_closed()
        async with self.asking():
            async with self._client.pipeline(transaction=False) as pipeline:
                pipeline.dbsize()
                pipeline.info("memory")
                entries, memory = await pipeline.execute()
            return StoreStats(entries, memory["used_memory"])

    async def ping(self) -> None:
        self._refuse_closed()
        async with self.asking():
            # Writes something, because a full server still answers a PING.
            await self._client.set(self._encoded("ping"), b"", px=1000)

    async def aclose(self) -> None:
        self._closed = True
        if self._exchanging is not None:
            await self._exchanging
        if not self._is_shared:
            await self._client.aclose()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"store `{self._label}` is closed")

    def _exchange(self) -> None:
        if self._exchanging is None or self._exchanging.done():
            self._exchanging = asyncio.create_task(self._exchange_all(), name="unbroken-store")

    async def _exchange_all(self) -> None:
        while self._puts or self._gets or self._adds:
            puts, gets, adds = _take_puts(self._puts), _take(self._gets), _take(self._adds)
            try:
                if puts:
                    await self._attempt(puts, self._put)
                if gets:
                    await self._attempt(gets, self._get)
                if adds:
                    await self._attempt(adds, self._add)
            except _Hangs as error:  # otherwise they would all wait, one exchange after the other
                for job in (*gets, *adds, *self._puts, *self._gets, *self._adds):
                    _fail(job, error)
                self._puts.clear()
                self._gets.clear()
                self._adds.clear()

    async def _attempt(self, jobs: list[_Job], work: Callable[[list[_Job]], Awaitable[list[Any]]]) -> None:
        try:
            async with self.asking():
                outcomes = await work(jobs)
        except StoreUnavailable as error:
            for job in jobs:
                _fail(job, error)
            if isinstance(error, _Hangs):
                raise
        else:
            for job, outcome in zip(jobs, outcomes, strict=True):
                if not job.done.done():  # otherwise the caller was cancelled
                    job.done.set_result(outcome)

    async def _put(self, puts: list[_Put]) -> list[None]:
        rows = [(key, value, job.milliseconds) for job in puts for key, value in job.entries]
        appended = [(key, value, job.milliseconds) for job in puts for key, value in job.appended]
        if len(rows) == 1 and not appended:  # half the cost of a transaction
            key, value, milliseconds = rows[0]
            await self._client.set(key, value, px=milliseconds)
        else:
            async with self._client.pipeline(transaction=True) as pipeline:
                for key, value, milliseconds in rows:
                    pipeline.set(key, value, px=milliseconds)
                for key, value, milliseconds in appended:
                    pipeline.eval(_APPEND, 1, key, value, LIST_BYTES, milliseconds)
                await pipeline.execute()
        return [None] * len(puts)

    async def _get(self, gets: list[_Get]) -> list[list[bytes | None]]:
        values: Iterator[bytes | None] = iter(await self._client.mget([key for job in gets for key in job.keys]))
        return [[next(values) for _ in job.keys] for job in gets]

    async def _add(self, adds: list[_Add]) -> list[list[Any]]:
        # What reserves is one command, which is a transaction by itself.
        async with self._client.pipeline(transaction=not all(job.is_reserving for job in adds)) as pipeline:
            for job in adds:
                limits = [self._limit(limit) for limit in job.limits]
                keys = [self._counter(f"{ONCE}{job.once}"), *chain.from_iterable(keys for keys, _ in limits)]
                keys += [self._counter(one.group) for one in job.additions]
                kept = int(ONCE_FOR * 1000) if job.once else 0
                limited = chain.from_iterable(arguments for _, arguments in limits)
                pipeline.eval(_ADD, len(keys), *keys, kept, len(limits), *limited, *_arguments(job.additions))
                for one in () if job.is_reserving else job.additions:
                    pipeline.hmget(self._counter(one.group), [_bytes(name) for name in one.amounts])
            found = iter(await pipeline.execute())
        values: list[list[Any]] = []
        for job in adds:
            before = map(int, next(found))
            if job.is_reserving:
                values.append([[*islice(before, len(limit.counters))] for limit in job.limits])
                continue
            values.append(
                [dict(zip(one.amounts, (int(each or 0) for each in next(found)), strict=True)) for one in job.additions]
            )
        return values

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[None]:
        """Turns every failure into `StoreUnavailable`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                due = loop.time() + self._patience
                timer = loop.call_at(due, _expire, loop, limit, due, self._patience / 3, _GRACES)
                try:
                    yield
                finally:
                    timer.cancel()
        except TimeoutError:
            raise _Hangs(f"store `{self._label}` did not answer within {self._patience:g} s") from None
        except Exception as error:  # noqa: BLE001 - whatever the library raises, the callers need an answer
            raise StoreUnavailable(
                f"store `{self._label}` failed: {self._without_password(str(error) or type(error).__name__)}"
            ) from None

    def _encoded(self, key: str) -> bytes:
        return self._prefix + _bytes(key)

    def _limit_now(self, limit: Limit) -> tuple[list[bytes], list[bytes]]:
        """Its keys and its arguments. Cached: requests have the same for a minute."""
        names = [_bytes(name) for _, name in limit.counters]
        return [self._counter(group) for group, _ in limit.counters], [b"%d" % limit.most, b"%d" % len(names), *names]

    def _counter(self, group: str) -> bytes:
        return self._counters + _bytes(group)

    def _without_password(self, text: str) -> str:
        return text.replace(self._password, "***") if self._password else text


# A cluster refuses commands whose keys are on several of its nodes, and the keys of a turn have nothing in common by
# which they could be kept together. So the keys are divided into parts, each with a tag that puts all of its keys into
# one of the cluster's slots: a part is a store by itself, wherever the cluster has it.

CLUSTER_PARTS = 32
"""The parts that a cluster is divided into. Changing it loses what is stored."""


class ClusterStore(ShardedStore):
    def __init__(self, url: str, *, max_entry: int = 8 << 20) -> None:
        self._client = _connect_to_cluster(url)
        tags = [b"{%d}:" % part for part in range(CLUSTER_PARTS)]
        self._first = RedisStore(url, max_entry=max_entry, client=self._client, tag=tags[0])
        others = [RedisStore(url, max_entry=max_entry, client=self._client, tag=tag) for tag in tags[1:]]
        super().__init__([self._first, *others])

    async def stats(self) -> StoreStats:
        """Counts all that the cluster has, as `RedisStore` does."""
        async with self._first.asking():
            primaries = self._client.PRIMARIES
            entries = await self._client.dbsize(target_nodes=primaries)
            memory = await self._client.info("memory", target_nodes=primaries)
        nodes: list[Any] = [memory] if "used_memory" in memory else list(memory.values())
        return StoreStats(entries, sum(node["used_memory"] for node in nodes))

    async def aclose(self) -> None:
        await super().aclose()
        await self._client.aclose()


def _connect_to_cluster(url: str) -> Any:
    factory: Any = RedisCluster
    try:
        return factory.from_url(url, socket_connect_timeout=_CONNECTING, socket_timeout=None)
    except (TypeError, ValueError, RedisClusterException):
        raise _unreadable() from None


def _expire(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout, due: float, grace: float, graces: int) -> None:
    """Ends an exchange, unless this process was too busy to read the answer in time: then it may be there, and gets
    `grace` more seconds, for as long as the process stays busy. A timer that is late is called before what has arrived
    meanwhile is read."""
    now = loop.time()
    if graces and now - due > grace / 10:
        loop.call_at(now + grace, _expire, loop, limit, now + grace, grace, graces - 1)
        return
    with suppress(RuntimeError):  # the exchange is over
        limit.reschedule(now)


def _fail(job: _Put | _Get | _Add, error: StoreUnavailable) -> None:
    if not job.done.done():  # otherwise the caller was cancelled
        job.done.set_exception(StoreUnavailable(str(error)))


_Small = TypeVar("_Small", _Get, _Add)


def _take(waiting: deque[_Small]) -> list[_Small]:
    return [waiting.popleft() for _ in range(min(len(waiting), _TOGETHER))]


def _take_puts(waiting: deque[_Put]) -> list[_Put]:
    taken: list[_Put] = []
    size = 0
    while waiting and len(taken) < _TOGETHER and size < _BYTES_TOGETHER:
        taken.append(waiting.popleft())
        size += sum(len(value) for _, value in (*taken[-1].entries, *taken[-1].appended))
    return taken


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _arguments(additions: Sequence[Addition]) -> Iterator[bytes | int]:
    for each in additions:
        yield max(1, int(min(each.ttl, _LONGEST) * 1000))
        yield len(each.amounts)
        for name, amount in each.amounts.items():
            yield _bytes(name)
            yield amount


def _read(url: str) -> tuple[str, str]:
    """The part of an address that may be shown, and its password. An address that cannot be parsed is not shown at all:
    what looks like its port may be part of a password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 6379
    except ValueError:
        host, port, parts = "", 0, urlsplit("")
    if not host or not re.fullmatch(r"/?\d*", parts.path) or parts.fragment:
        raise _unreadable()
    return f"{parts.scheme}://{host}:{port}/{parts.path.strip('/') or 0}", unquote(parts.password or "")


def _connect(url: str) -> Any:
    factory: Any = Redis
    try:
        client = factory.from_url(
            url,
            socket_connect_timeout=_CONNECTING,
            socket_timeout=None,  # `asking` has a limit
            retry=Retry(NoBackoff(), 1),  # a closed connection is noticed only when it is used
            retry_on_error=[ReadOnlyError],  # another server has become the primary
        )
        client.connection_pool.make_connection()  # parses the options in the address
    except (TypeError, ValueError):
        raise _unreadable() from None
    return client


def _unreadable() -> UserError:
    return UserError(
        "the address of the store on Redis cannot be read: give `redis://[USER:PASSWORD@]HOST:PORT/DB`,"
        " special characters of the password percent-encoded"
    )
