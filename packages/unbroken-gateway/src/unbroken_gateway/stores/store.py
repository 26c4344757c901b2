"""The protocol of a store, a circuit breaker around any store, the store in memory, and how it is detected that a store
was emptied. A store keeps small values under keys, for a limited time.

A store does not know what the values mean. `MemoryStore` is for tests, for trying things out, and for a single worker
that may forget. It belongs to one loop, so nothing is locked. A dict holds the entries in the order in which they were
written, which decides what is evicted first; a heap orders them by expiry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Protocol, TypeVar
from zlib import crc32

from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError
from unbroken_gateway.stores.records import MAX_BYTES, NO_RECORD, Record, unless_known

NOTHING: Mapping[str, bytes] = MappingProxyType({})

FORMAT = 2
"""Version of the stored data. Persistent stores save it with their entries and never mix two versions."""


ONCE, ONCE_FOR = "once:", 3600.0
"""The group that marks an addition as done, by its id, and for how many seconds."""
LIST_BYTES = 768
"""Maximum size of a value that `put` appends to. Beyond it nothing is appended."""


class StoreUnavailable(UnbrokenError):
    """The store is not available now. `retry_after` is how many seconds to wait before the next attempt."""

    retry_after = 1.0


class EntryTooLarge(StoreUnavailable):
    """A value beyond the limit of one entry. Trying again does not help."""

    retry_after = 0.0


@dataclass(frozen=True, slots=True)
class Addition:
    """Numbers to be added to the counters of one group."""

    group: str
    amounts: Mapping[str, int]
    """By the name of the counter; at most 2**62 in all."""
    ttl: float
    """The group is deleted this many seconds after the last addition to it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What some counters may reach together, such as what is spent and what is reserved."""

    counters: tuple[tuple[str, str], ...]
    """By their group and name."""
    most: int

    def has_room(self, values: Sequence[int]) -> bool:
        """`values`: of its counters. None counts for less than 0: a store that was emptied may have such a one."""
        return (sum(values) if min(values) >= 0 else sum(max(0, value) for value in values)) < self.most


@dataclass(frozen=True, slots=True)
class StoreStats:
    entries: int
    bytes: int
    """As counted for the store's limit, including overhead."""


class Store(Protocol):
    """`put` is all or nothing, and its data survives a crash of the process (except in memory). Expired and evicted
    values are None. All failures are `StoreUnavailable`."""

    @property
    def parts(self) -> int:
        """How many servers or files it has that can lose their data independently (`mark_keys`)."""
        ...

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, in one round trip."""
        ...

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        """Stores values for `ttl` seconds, replacing what these keys had. The values of `append` are added to the end
        of what their keys have, atomically also between processes, up to `LIST_BYTES`. Raises `EntryTooLarge` if one
        value is too large; then nothing is stored. A caller that is cancelled does not know whether it was done."""
        ...

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        """Adds to counters, all or none, atomically also between processes, and returns for each addition the new
        values of its counters. Counters are whole numbers, exact, and never evicted. `once`: if an addition with this
        id was made within the last hour, nothing is added. So a caller that does not know whether it was done can
        repeat it."""
        ...

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        """Adds as `add` does if each of the limits has room, otherwise nothing, atomically also between processes.
        Returns for each limit the values that its counters had before."""
        ...

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        """The counters of each group, by their names: all, or those of `names` that it has."""
        ...

    async def record(self, name: str, known: int = 0) -> Record | None:
        """A record; `NO_RECORD` if it does not exist. None if its version is still `known`."""
        ...

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        """Writes a record if it still has this version, 0 if it is new. Returns False if another process was faster.
        Raises `EntryTooLarge`."""
        ...

    async def stats(self) -> StoreStats: ...

    async def ping(self) -> None:
        """Raises `StoreUnavailable` if it cannot be used."""
        ...

    async def aclose(self) -> None:
        """Finishes what was asked before. Later calls raise `StoreUnavailable`, except another `aclose`."""
        ...


def refuse_too_large(entries: Mapping[str, bytes], limit: int) -> None:
    for key, value in entries.items():
        if len(value) > limit:
            raise EntryTooLarge(f"entry `{key[:80]}` was not stored: {len(value)} bytes, {limit} are allowed")


def wall_time() -> float:
    """The clock for expiry: processes and restarts share it."""
    return current_clock().now()


# A circuit breaker around any store: one request waits for a store that hangs, not every request.
#
# After a slow failure the store is left alone for some seconds; then one request tries it, and the others get that
# result. Quick failures are passed on each time. A store that becomes unavailable, or available again, is logged
# here.


log = logging.getLogger("unbroken.gateway")

SLOW = 1.0
"""A failure after this many seconds is a slow one."""
PAUSE = 5.0
"""Seconds in which the store is not used after a slow failure."""

T = TypeVar("T")


class CircuitBreakerStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts = store.parts
        self._hangs = ""
        """The last slow failure; empty while the store answers."""
        self._again = 0.0
        self._trying = False
        self._failing: set[str] = set()

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return await self._ask("read", lambda: self._store.get(keys)) if keys else []

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        if entries or append:
            await self._ask("written to", lambda: self._store.put(entries, ttl, append))

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        return await self._ask("written to", lambda: self._store.add(additions, once)) if additions else []

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        return await self._ask("written to", lambda: self._store.reserve(additions, limits))

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        return await self._ask("read", lambda: self._store.counters(groups, names)) if groups else []

    async def record(self, name: str, known: int = 0) -> Record | None:
        return await self._ask("read", lambda: self._store.record(name, known))

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        return await self._ask("written to", lambda: self._store.replace_record(name, value, version))

    async def stats(self) -> StoreStats:
        return await self._ask("read", self._store.stats)

    async def ping(self) -> None:
        await self._ask("written to", self._store.ping)

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _ask(self, act: str, work: Callable[[], Awaitable[T]]) -> T:
        now = asyncio.get_running_loop().time
        began = now()
        trying = bool(self._hangs)
        if trying:
            if self._trying or began < self._again:
                unavailable = StoreUnavailable(f"{self._hangs}; it is not used for some seconds")
                unavailable.retry_after = max(1.0, self._again - began)
                raise unavailable
            self._trying = True
        try:
            answer = await work()
        except EntryTooLarge:  # the store was not used
            raise
        except StoreUnavailable as error:
            waited = now() - began >= SLOW
            self._hangs = str(error) if waited else ""
            self._again = now() + PAUSE
            self._note(act, error)
            raise
        finally:
            if trying:
                self._trying = False
        self._hangs = ""
        self._note(act, None)
        return answer

    def _note(self, act: str, error: StoreUnavailable | None) -> None:
        if (error is not None) == (act in self._failing):
            return
        if error is not None:
            self._failing.add(act)
            log.warning("the store cannot be %s: %s", act, error)
        else:
            self._failing.discard(act)
            log.warning("the store can be %s again", act)


OVERHEAD = 400
"""Bytes that an entry takes besides its key and value."""
_PORTION = 64
"""Minimum number of expired entries that one `put` removes; it always removes more than it adds."""


class MemoryStore:
    parts = 1

    def __init__(
        self, *, max_bytes: int = 1 << 30, max_entry: int = 8 << 20, now: Callable[[], float] = wall_time
    ) -> None:
        self._max_bytes = max_bytes
        self._max_entry = max_entry
        self._now = now
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._expiring: list[tuple[float, str]] = []
        """A heap by expiry. Pairs of entries that were removed or replaced stay until they reach the top or become too
        many."""
        self._bytes = 0
        self._records: dict[str, Record] = {}
        self._counters: dict[str, tuple[float, dict[str, int]]] = {}
        """The groups of counters: when they expire, and their values."""
        self._counters_looked = 0.0
        self._closed = False

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        self._refuse_closed()
        now = self._now()
        found = map(self._entries.get, keys)
        return [entry[1] if entry is not None and entry[0] > now else None for entry in found]

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        self._refuse_closed()
        refuse_too_large(entries, self._max_entry)
        now = self._now()
        for key, value in entries.items():
            self._set(key, value, now + ttl)
        for key, value in append.items():
            expires, before = self._entries.get(key, (0.0, b""))
            kept = before if expires > now else b""
            self._set(key, kept if len(kept) >= LIST_BYTES else kept + value, now + ttl)
        self._expire(now, _PORTION + 2 * (len(entries) + len(append)))
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
        self._compact()

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        self._refuse_closed()
        now = self._now()
        self._expire_counters(now)
        done = f"{ONCE}{once}" in self._counters if once else False
        if once and not done:
            self._counters[f"{ONCE}{once}"] = now + ONCE_FOR, {}
        values: list[dict[str, int]] = []
        for each in additions:
            expires, counters = self._counters.get(each.group, (0.0, None))
            if counters is None or expires <= now:
                counters = {}
            if not done:
                for name, amount in each.amounts.items():
                    counters[name] = counters.get(name, 0) + amount
                self._counters[each.group] = max(expires, now + each.ttl), counters
            values.append({name: counters.get(name, 0) for name in each.amounts})
        return values

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        self._refuse_closed()
        self._expire_counters(now := self._now())
        values = [[self._value(*counter, now) for counter in limit.counters] for limit in limits]
        if all(limit.has_room(found) for limit, found in zip(limits, values, strict=True)):
            await self.add(additions)
        return values

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        self._refuse_closed()
        now = self._now()
        found = (self._counters.get(group) for group in groups)
        counted = [each[1] if each is not None and each[0] > now else {} for each in found]
        return [{name: each[name] for name in names or each if name in each} for each in counted]

    def _value(self, group: str, name: str, now: float) -> int:
        expires, counters = self._counters.get(group, (0.0, {}))
        return counters.get(name, 0) if expires > now else 0

    def _expire_counters(self, now: float) -> None:
        if now - self._counters_looked >= 1:
            self._counters_looked = now
            for group in [group for group, (expires, _) in self._counters.items() if expires <= now]:
                del self._counters[group]

    async def record(self, name: str, known: int = 0) -> Record | None:
        self._refuse_closed()
        return unless_known(self._records.get(name, NO_RECORD), known)

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        self._refuse_closed()
        refuse_too_large({name: value}, MAX_BYTES)
        if self._records.get(name, NO_RECORD).version != version:
            return False
        self._records[name] = Record(version + 1, value)
        return True

    async def stats(self) -> StoreStats:
        self._refuse_closed()
        self._expire(self._now(), 1000)
        return StoreStats(len(self._entries), self._bytes)

    async def ping(self) -> None:
        self._refuse_closed()

    async def aclose(self) -> None:
        self._closed = True
        self._entries.clear()
        self._expiring.clear()
        self._counters.clear()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("store `memory:` is closed")

    def _set(self, key: str, value: bytes, expires: float) -> None:
        self._remove(key)
        self._entries[key] = (expires, value)
        self._bytes += _size(key, value)
        heappush(self._expiring, (expires, key))

    def _remove(self, key: str) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._bytes -= _size(key, entry[1])

    def _expire(self, now: float, portion: int) -> None:
        for _ in range(portion):
            if not self._expiring or self._expiring[0][0] > now:
                return
            expires, key = heappop(self._expiring)
            entry = self._entries.get(key)
            if entry is not None and entry[0] == expires:
                self._remove(key)

    def _compact(self) -> None:
        if len(self._expiring) > 2 * len(self._entries) + 1000:
            self._expiring = [(expires, key) for key, (expires, _) in self._entries.items()]
            heapify(self._expiring)


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value) + OVERHEAD


# Detects that a store was emptied: flushed, lost its disk, or evicted its oldest entries.
#
# A client that sends no random id is identified by the text alone. As long as the store has every turn that was given,
# two equal turns are seen to be ambiguous. After it was emptied, one of them may be gone, and the other must not be
# taken for it. So the store holds a marker from the first turn on. If a gateway knows a marker that is no longer there,
# it records that in the store, for the other gateways and for those that start later.
#
# The marker is a list to which each gateway appends atomically; an entry is an identifier, the time, and whether the
# store was found emptied then.

MARK = "mark:"
"""The key in the store; in a store of several parts, the number of the part follows."""
_ENTRY = struct.Struct(">8sd?")


def part_of(key: str, parts: int) -> int:
    """The part of a store in which a key is. A turn and its hold are in the same one: the last part of their keys is
    the same. The markers are numbered by their parts."""
    if parts == 1:
        return 0
    if key.startswith(MARK):
        return int(key[len(MARK) :])
    return crc32(key[key.rfind(":") + 1 :].encode("utf-8", "surrogatepass")) % parts


class EmptiedStore:
    """`window`: for this many seconds after the store was emptied, clients may return with turns from before. `ttl` is
    how long the store keeps the marker; it is renewed long before that."""

    def __init__(self, store: Store, ttl: float, window: float, now: Callable[[], float], mark: str = MARK) -> None:
        self._store = store
        self._mark = mark
        self._ttl = ttl
        self._window = window
        self._now = now
        self._known: bytes | None = None
        """An identifier that this process has seen in the marker."""
        self._kept_until = 0.0
        """When the marker expires unless it is renewed."""
        self._doubtful_until = 0.0

    def use(self, ttl: float, window: float) -> None:
        self._ttl, self._window = ttl, window

    async def begin(self) -> None:
        """Call it before a turn is stored, so that its loss can be detected."""
        if self._known is None or self._is_old(self._now()):
            (value,) = await self._store.get([self._mark])
            await self.look(value)

    async def look(self, value: bytes | None) -> bool:
        """`value` is the marker in the store. Returns whether turns may have been lost that a client still has."""
        now = self._now()
        entries = _entries(value)
        if now >= self._kept_until:  # everything that was stored has expired
            self._known = None
        known = self._known  # other requests check too while this one waits for the store
        if known is not None and not _has(entries, known):
            (value,) = await self._store.get([self._mark])  # the value may be older than what is known
            entries = _entries(value)
        if known is None and entries:
            self._known = entries[0][0]
        elif known is None or not _has(entries, known):
            emptied, mine = known is not None, secrets.token_bytes(8)
            if emptied:
                self._doubtful_until = now + self._window
            await self._append(_ENTRY.pack(mine, now, emptied))
            self._known = mine  # not earlier: another request would expect it in the store
        if self._is_old(now):
            await self._append(b"")
        return now < self._doubtful_until or any(emptied and now < at + self._window for _, at, emptied in entries)

    def _is_old(self, now: float) -> bool:
        return now >= self._kept_until - self._ttl * 7 / 8

    async def _append(self, entry: bytes) -> None:
        await self._store.put({}, self._ttl, {self._mark: entry})
        self._kept_until = self._now() + self._ttl


def _entries(value: bytes | None) -> list[tuple[bytes, float, bool]]:
    data = value or b""
    return [*_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]


def _has(entries: list[tuple[bytes, float, bool]], id: bytes) -> bool:
    return any(id == each for each, _, _ in entries)
