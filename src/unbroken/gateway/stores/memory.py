"""A store in the memory of this process: for tests, for trying things out, and for a single worker that may forget.

It belongs to one loop, so nothing is locked. A dict holds the entries in the order in which they were written, which
decides what is evicted first; a heap orders them by expiry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from unbroken.gateway.stores.store import (
    LIST_BYTES,
    NOTHING,
    StoreStats,
    StoreUnavailable,
    refuse_too_large,
    wall_time,
)

OVERHEAD = 400
"""Bytes that an entry takes besides its key and value."""
_PORTION = 64
"""Minimum number of expired entries that one `put` removes; it always removes more than it adds."""


class MemoryStore:
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
