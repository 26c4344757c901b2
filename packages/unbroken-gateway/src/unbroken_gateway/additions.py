"""What the admin API adds to the configuration: models, teams, budgets. A record in the store holds them, so that all
gateways that share the store have the same.

A gateway reads the record every second (`look_every`) and adds it to what its file says (`config.added`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, cast

from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stored_keys import StoredKeyRing
from unbroken_gateway.stores import Store, StoreUnavailable
from unbroken_gateway.stores.marked import MarkedStore
from unbroken_gateway.stores.records import Record

log = logging.getLogger("unbroken.gateway")

Added: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""`{"models": {ALIAS: {"model": "openai:gpt-5"}}, "teams": {…}}`: tables as in the file, by name."""

RECORD = "config"
_ATTEMPTS = 20


class Additions:
    def __init__(self) -> None:
        self.tables: Added = {}
        self._version = 0

    async def read(self, store: Store) -> bool:
        """Returns whether it has changed. If the store is away, or the record is damaged, what was read last stays."""
        try:
            record = await store.record(RECORD, self._version)
        except StoreUnavailable:  # it has been logged
            return False
        if record is None:
            return False
        self._version = record.version
        try:
            self.tables = _read(record)
        except ValueError:
            log.error("reading what the admin API added failed, the old additions stay in force: the record is damaged")
            return False
        return True

    async def change(self, store: Store, work: Callable[[Added], Awaitable[None]]) -> None:
        """`work` changes the tables; it may be called several times. Raises `StoreUnavailable`."""
        for _ in range(_ATTEMPTS):
            record = await store.record(RECORD) or Record(0, b"")
            tables = _read(record)
            await work(tables)
            if await store.replace_record(RECORD, json.dumps(tables).encode(), record.version):
                self.tables, self._version = tables, record.version + 1
                return
        raise StoreUnavailable("the configuration in the store is being changed by many at once: try again")


def _read(record: Record) -> Added:
    tables: Any = json.loads(record.value) if record.version else {}
    if not isinstance(tables, dict) or not all(
        isinstance(each, dict) for each in cast("dict[str, Any]", tables).values()
    ):
        raise ValueError
    return cast("Added", tables)


async def follow(
    store: MarkedStore,
    ring: Callable[[], StoredKeyRing | None],
    additions: Callable[[], Additions | None],
    reload: Callable[[], Awaitable[object]],
    settings: Callable[[], GatewaySettings],
) -> None:
    """Looks for the mark of the store, and reads the keys and the additions, again and again, until it is cancelled."""
    while True:
        await asyncio.sleep(settings().look_every)
        try:
            with suppress(StoreUnavailable):  # it has been logged
                await store.look_again()
                if store.may_restore and settings().when_emptied == "restore":
                    await store.decide("restore")
            await read_once(store, ring(), additions(), reload)
        except Exception:  # otherwise no change would ever be noticed again
            log.exception("reading what is shared through the store failed")


async def read_once(
    store: Store, ring: StoredKeyRing | None, additions: Additions | None, reload: Callable[[], Awaitable[object]]
) -> None:
    if ring is not None:
        await ring.read(store)
    if additions is not None and await additions.read(store):
        await reload()
