"""What a store is to the gateway: small values under keys, for a time. Nothing is known here of what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError

FORMAT = 1
"""Of what is stored. Stores that outlive the process keep it with their entries, and never mix two."""


class StoreUnavailable(UnbrokenError):
    """The store cannot do this now. What it holds makes an answer better, none depends on it: go on without."""


class EntryTooLarge(StoreUnavailable):
    """A value beyond the limit of one entry. It is a `StoreUnavailable` because it means the same to who asked."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    entries: int
    bytes: int
    """As the store counts them for its limit: what is around the values is part of it."""


class Store(Protocol):
    """`put` is all or nothing, and what it has put survives the death of the process (except in memory). A value that
    is older than its time, or that made room for newer ones, is None. Whatever fails is a `StoreUnavailable`."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, in one round trip."""
        ...

    async def put(self, entries: Mapping[str, bytes], ttl: float) -> None:
        """Values for `ttl` seconds; what stood under these keys is replaced. Raises `EntryTooLarge` if one of them is,
        and has put none of them then. Who is cancelled while waiting does not know whether it was done."""
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
    """What tells when an entry expires: processes and restarts share it."""
    return current_clock().now()
