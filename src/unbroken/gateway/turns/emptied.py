"""Notices that a store was emptied: flushed, lost its disk, or evicted what was written first.

A client that shows no id made by chance is known by its words alone. As long as the store has every turn that was
given, two that agree are seen to be two. After it was emptied one of them may be gone, and the other must not be taken
for it. So the store carries a mark from the first turn on. Where a gateway knows of a mark that is no longer there, it
says so in the store, for the other gateways and for those that start later.

The mark is a list to which each gateway may append, atomically; an entry is an identifier, the time, and whether the
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
    """`window`: for so many seconds after the store was emptied, clients may come back with what they were given before
    it. `ttl` is how long the store keeps the mark; it is written again long before."""

    def __init__(self, store: Store, ttl: float, window: float, now: Callable[[], float]) -> None:
        self._store = store
        self._ttl = ttl
        self._window = window
        self._now = now
        self._known: bytes | None = None
        """An identifier that stands in the mark, if this process has seen it there."""
        self._kept_until = 0.0
        """When the store drops the mark, if nobody writes it again."""
        self._doubtful_until = 0.0

    async def begin(self) -> None:
        """Before a turn is stored: from now on its loss can be noticed."""
        if self._known is None or self._is_old(self._now()):
            (value,) = await self._store.get([MARK])
            await self.look(value)

    async def look(self, value: bytes | None) -> bool:
        """`value` is what the store has of the mark. May turns have been lost that a client still has?"""
        now = self._now()
        entries = _entries(value)
        if now >= self._kept_until:  # nothing was stored for as long as anything is kept
            self._known = None
        known = self._known  # other requests look too, while this one waits for the store
        if known is not None and not _has(entries, known):
            (value,) = await self._store.get([MARK])  # what was looked at may be older than what is known
            entries = _entries(value)
        if known is None and entries:
            self._known = entries[0][0]
        elif known is None or not _has(entries, known):
            emptied, mine = known is not None, secrets.token_bytes(8)
            if emptied:
                self._doubtful_until = now + self._window
            await self._append(_ENTRY.pack(mine, now, emptied))
            self._known = mine  # not before: another request would look for it in the store
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
