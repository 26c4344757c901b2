"""The protocol of a store: small values under keys, for a limited time. What they mean is not known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError

NOTHING: Mapping[str, bytes] = MappingProxyType({})

FORMAT = 2
"""Of what is stored. Stores that outlive the process keep it with their entries, and never mix two."""


LIST_BYTES = 768
"""How long a value that `put` appends to may get. What is appended beyond it is left out."""


class StoreUnavailable(UnbrokenError):
    """The store cannot do this now. `retry_after` is how many seconds to wait before the next attempt."""

    retry_after = 1.0


class EntryTooLarge(StoreUnavailable):
    """A value beyond the limit of one entry. Trying again does not help."""

    retry_after = 0.0


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
    """What tells when an entry expires: processes and restarts share it."""
    return current_clock().now()
