"""Detects that a store was emptied: flushed, lost its disk, or evicted its oldest entries.

A client that sends no random id is identified by the text alone. As long as the store has every turn that was given,
two equal turns are seen to be ambiguous. After it was emptied, one of them may be gone, and the other must not be taken
for it. So the store holds a marker from the first turn on. If a gateway knows a marker that is no longer there, it
records that in the store, for the other gateways and for those that start later.

The marker is a list to which each gateway appends atomically; an entry is an identifier, the time, and whether the
store was found emptied then.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable

from unbroken.gateway.stores.store import Store

MARK = "mark:"
"""The key in the store."""
_ENTRY = struct.Struct(">8sd?")


class EmptiedStore:
    """`window`: for this many seconds after the store was emptied, clients may return with turns from before. `ttl` is
    how long the store keeps the marker; it is renewed long before that."""

    def __init__(self, store: Store, ttl: float, window: float, now: Callable[[], float]) -> None:
        self._store = store
        self._ttl = ttl
        self._window = window
        self._now = now
        self._known: bytes | None = None
        """An identifier that this process has seen in the marker."""
        self._kept_until = 0.0
        """When the marker expires unless it is renewed."""
        self._doubtful_until = 0.0

    async def begin(self) -> None:
        """Call it before a turn is stored, so that its loss can be detected."""
        if self._known is None or self._is_old(self._now()):
            (value,) = await self._store.get([MARK])
            await self.look(value)

    async def look(self, value: bytes | None) -> bool:
        """`value` is the marker in the store. Returns whether turns may have been lost that a client still has."""
        now = self._now()
        entries = _entries(value)
        if now >= self._kept_until:  # everything that was stored has expired
            self._known = None
        known = self._known  # other requests check too while this one waits for the store
        if known is not None and not _has(entries, known):
            (value,) = await self._store.get([MARK])  # the value may be older than what is known
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
        await self._store.put({}, self._ttl, {MARK: entry})
        self._kept_until = self._now() + self._ttl


def _entries(value: bytes | None) -> list[tuple[bytes, float, bool]]:
    data = value or b""
    return [*_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]


def _has(entries: list[tuple[bytes, float, bool]], id: bytes) -> bool:
    return any(id == each for each, _, _ in entries)
