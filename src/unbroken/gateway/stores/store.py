"""The protocol of a store: small values under keys, for a limited time. A store does not know what they mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError

NOTHING: Mapping[str, bytes] = MappingProxyType({})

FORMAT = 2
"""Version of the stored data. Persistent stores save it with their entries and never mix two versions."""


LIST_BYTES = 768
"""Maximum size of a value that `put` appends to. Beyond it nothing is appended."""


class StoreUnavailable(UnbrokenError):
    """The store is not available now. `retry_after` is how many seconds to wait before the next attempt."""

    retry_after = 1.0


class EntryTooLarge(StoreUnavailable):
    """A value beyond the limit of one entry. Trying again does not help."""

    retry_after = 0.0


@dataclass(frozen=True, slots=True)
class StoreStats:
    entries: int
    bytes: int
    """As counted for the store's limit, including overhead."""


class Store(Protocol):
    """`put` is all or nothing, and its data survives a crash of the process (except in memory). Expired and evicted
    values are None. All failures are `StoreUnavailable`."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, in one round trip."""
        ...

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        """Stores values for `ttl` seconds, replacing what these keys had. The values of `append` are added to the end
        of what their keys have, atomically also between processes, up to `LIST_BYTES`. Raises `EntryTooLarge` if one
        value is too large; then nothing is stored. A caller that is cancelled does not know whether it was done."""
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
