"""Several stores as one: each key belongs to one of them. For more turns than one server has memory for.

A key's shard follows from the key and the number of shards alone, so gateways agree without talking to each other. What
`put` stores is all or nothing in each shard, not over several; what others point to (turns, holds) is stored before the
lists that point to it. If a part of a `put` fails, all of it is reported as failed, and the client gets no answer that
depends on it. Each shard has a circuit breaker of its own and a marker of its own (`EmptiedStore`): one that hangs, or
that lost its data, says nothing about the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from unbroken_gateway.stores.records import Record
from unbroken_gateway.stores.store import (
    NOTHING,
    Addition,
    CircuitBreakerStore,
    Limit,
    Store,
    StoreStats,
    StoreUnavailable,
    part_of,
)


class ShardedStore:
    def __init__(self, shards: Sequence[Store]) -> None:
        self._shards = [CircuitBreakerStore(shard) for shard in shards]
        self.parts = len(shards)

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        places: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            places.setdefault(part_of(key, self.parts), []).append(at)
        if len(places) == 1:
            return await self._shards[next(iter(places))].get(keys)
        answers = await asyncio.gather(
            *(self._shards[shard].get([keys[at] for at in group]) for shard, group in places.items()),
            return_exceptions=True,
        )
        found: list[bytes | None] = [None] * len(keys)
        for group, values in zip(places.values(), answers, strict=True):
            if isinstance(values, BaseException):
                raise values
            for at, value in zip(group, values, strict=True):
                found[at] = value
        return found

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        by_shard: dict[int, tuple[dict[str, bytes], dict[str, bytes]]] = {}
        for key, value in entries.items():
            by_shard.setdefault(part_of(key, self.parts), ({}, {}))[0][key] = value
        for key, value in append.items():
            by_shard.setdefault(part_of(key, self.parts), ({}, {}))[1][key] = value
        # A shard that has entries also stores its part of the lists: they are one transaction there.
        await self._put_all({shard: parts for shard, parts in by_shard.items() if parts[0]}, ttl)
        await self._put_all({shard: parts for shard, parts in by_shard.items() if not parts[0]}, ttl)

    async def _put_all(self, parts: Mapping[int, tuple[dict[str, bytes], dict[str, bytes]]], ttl: float) -> None:
        done = await asyncio.gather(
            *(self._shards[shard].put(entries, ttl, append) for shard, (entries, append) in parts.items()),
            return_exceptions=True,
        )
        for error in done:
            if error is not None:
                raise error

    async def record(self, name: str, known: int = 0) -> Record | None:
        """Records are on the first server."""
        return await self._shards[0].record(name, known)

    async def replace_record(self, name: str, value: bytes, version: int) -> bool:
        return await self._shards[0].replace_record(name, value, version)

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        """All counters are in the first shard, so that additions are all or nothing."""
        return await self._shards[0].add(additions, once)

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        return await self._shards[0].reserve(additions, limits)

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        return await self._shards[0].counters(groups, names)

    async def stats(self) -> StoreStats:
        stats = await asyncio.gather(*(shard.stats() for shard in self._shards))
        return StoreStats(sum(each.entries for each in stats), sum(each.bytes for each in stats))

    async def ping(self) -> None:
        """Raises only if no shard can be used. A gateway that loses one of them still answers most requests; a gateway
        that is not ready gets none."""
        answers = await asyncio.gather(*(shard.ping() for shard in self._shards), return_exceptions=True)
        errors = [answer for answer in answers if answer is not None]
        for error in errors:
            if len(errors) == self.parts or not isinstance(error, StoreUnavailable):
                raise error

    async def aclose(self) -> None:
        for shard in self._shards:
            await shard.aclose()
