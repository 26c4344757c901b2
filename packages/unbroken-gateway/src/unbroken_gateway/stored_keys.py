"""Gateway keys in the store, so that all machines have the same, and one way to change keys wherever they are.

The record in the store has the content of a keys file. A running gateway reads it every second. If the store is away,
the last known keys stay valid for a while; then every request is refused. A store that was emptied is not away
(`stores.marked`): the keys stay valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from unbroken.clock import Clock, RealClock
from unbroken.errors import UserError
from unbroken_gateway.keys import GatewayKey, KeyRing, change_keys, list_keys, read_keys, write_keys
from unbroken_gateway.stores import Store, StoreUnavailable
from unbroken_gateway.stores.marked import StoreEmptied

log = logging.getLogger("unbroken.gateway")

T = TypeVar("T")

RECORD = "keys"
WHERE = "the store"
_ATTEMPTS = 20
"""How often a change is tried if others change the keys at the same time."""


class KeyPlace(Protocol):
    """Where keys are kept."""

    @property
    def where(self) -> str:
        """Its name, for people."""
        ...

    async def list(self) -> tuple[GatewayKey, ...]: ...

    async def change(self, work: Callable[[dict[str, GatewayKey]], T]) -> T:
        """`work` changes the keys, which it gets by their hashes. It may be called several times. Raises `UserError`,
        and `StoreUnavailable`."""
        ...


class FileKeys:
    def __init__(self, path: str | Path) -> None:
        self.where = str(path)
        self._path = path

    async def list(self) -> tuple[GatewayKey, ...]:
        return await asyncio.to_thread(list_keys, self._path)

    async def change(self, work: Callable[[dict[str, GatewayKey]], T]) -> T:
        return await asyncio.to_thread(change_keys, self._path, work)


class StoredKeys:
    where = WHERE

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> tuple[GatewayKey, ...]:
        record = await self._store.record(RECORD)
        return () if record is None else tuple(_keys_in(record.value).values())

    async def change(self, work: Callable[[dict[str, GatewayKey]], T]) -> T:
        for _ in range(_ATTEMPTS):
            record = await self._store.record(RECORD)
            keys = {} if record is None else read_keys(record.value, WHERE)
            done = work(keys)
            if await self._store.replace_record(
                RECORD, write_keys(keys).encode(), 0 if record is None else record.version
            ):
                return done
        raise StoreUnavailable("the keys in the store are being changed by many at once: try again")


class StoredKeyRing(KeyRing):
    """The keys of the store, as they were when it was last read. `keep`: seconds for which they stay valid if it cannot
    be read."""

    def __init__(self, keep: float, clock: Clock | None = None) -> None:
        self.keep = keep
        self._clock = clock or RealClock()
        self._keys = {}
        self._version = 0
        self._read_at: float | None = None
        self._problem, self._error = "it was not read yet", StoreUnavailable

    def find(self, secret: str) -> GatewayKey | None:
        if self._read_at is None or self._clock.elapsed() - self._read_at > self.keep:
            raise self._error(f"no key can be checked, because the keys are in the store: {self._problem}")
        return self._find(secret)

    async def read(self, store: Store) -> None:
        """Reads the record if it has changed. A damaged one counts as a store that is away. If the store was emptied,
        nothing can have changed, and the keys stay valid until that is decided."""
        try:
            record = await store.record(RECORD, self._version)
            if record is not None:
                self._keys, self._version = _keys_in(record.value), record.version
                log.info("gateway keys read again: %d in %s", len(self._keys), WHERE)
        except StoreEmptied as error:
            self._read_at = None if self._read_at is None else self._clock.elapsed()
            self._problem, self._error = str(error), StoreEmptied
        except (StoreUnavailable, UserError) as error:
            if not self._problem:
                log.error("reading the gateway keys failed, the old ones stay valid for %g s: %s", self.keep, error)
            self._problem, self._error = str(error), StoreUnavailable
        else:
            self._read_at, self._problem = self._clock.elapsed(), ""


def _keys_in(value: bytes) -> dict[str, GatewayKey]:
    return read_keys(value, WHERE) if value else {}
