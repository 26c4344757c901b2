"""The counters of what was spent and reserved. What is spent is added up in memory, and written to the store in
batches.

Nothing waits for the store except a reservation. Each batch has an id, so that a batch is repeated after a failure
until the store has confirmed it, and counts once. What releases a reservation is in the batch of what was spent
instead, so the store never shows less than both. A process that is killed loses what it has not written: at most the
last `batch` seconds while the store works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import TypeAlias

from unbroken_gateway.stores import Store, StoreUnavailable
from unbroken_gateway.stores.store import Addition, Limit

log = logging.getLogger("unbroken.gateway")

Values: TypeAlias = list[list[int]]
"""For each limit, what its counters had before."""

RESERVED = "reserved:"
"""Before the groups of counters of what is reserved."""
_SOON = 0.1
"""Seconds after which what limits a budget is written."""
_RETRY = 2.0


class Ledger:
    """`most_known`: how many values of the store are remembered for when it is away."""

    def __init__(self, store: Store, batch: float, *, most_known: int = 20_000) -> None:
        self._store = store
        self._most_known = most_known
        self._every = batch
        self._pending: dict[str, dict[str, int]] = {}
        """By group and name: what is not written yet."""
        self._ttls: dict[str, float] = {}
        self._batch: tuple[str, list[Addition]] | None = None
        """What is being written, or has to be repeated, and its id."""
        self._known: dict[tuple[str, str], int] = {}
        """By group and name: the last values from the store, for when it is away."""
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: deque[asyncio.Task[None]] = deque(maxlen=2)
        self._failing = False

    def add(self, group: str, amounts: Mapping[str, int], ttl: float) -> None:
        counters = self._pending.setdefault(group, {})
        for name, amount in amounts.items():
            counters[name] = counters.get(name, 0) + amount
        self._ttls[group] = ttl
        if self._timer is None:
            self._begin_later(self._every)

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> Values:
        """`Store.reserve`. If the caller is cancelled, what was reserved is released. Raises `StoreUnavailable`."""
        asked = asyncio.ensure_future(self._store.reserve(additions, limits))
        try:
            values = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(partial(self._release_unused, additions, limits))
            raise
        for limit, found in zip(limits, values, strict=True):
            self._know(zip(limit.counters, found, strict=True))
        return values

    def reserve_here(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> Values:
        """The same with what is known here, while the store is away."""
        values = [[self._value(*counter) for counter in limit.counters] for limit in limits]
        if all(map(Limit.has_room, limits, values)):
            for each in additions:
                self.add(each.group, each.amounts, each.ttl)
        return values

    def release(self, additions: Sequence[Addition]) -> None:
        """Takes back what is reserved; other counters stay."""
        for each in additions:
            if each.group.startswith(RESERVED):
                self.add(each.group, {name: -amount for name, amount in each.amounts.items()}, each.ttl)

    def write_soon(self) -> None:
        """Writes what was added, so that other processes know of it."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and not self._failing and self._timer.when() > loop.time() + _SOON:
            self._timer.cancel()
            self._begin_later(_SOON)

    def _release_unused(
        self, additions: Sequence[Addition], limits: Sequence[Limit], asked: asyncio.Future[Values]
    ) -> None:
        if not asked.cancelled() and asked.exception() is None and all(map(Limit.has_room, limits, asked.result())):
            self.release(additions)
            self.write_soon()

    def _value(self, group: str, name: str) -> int:
        """As last read from the store, plus what this process has not written yet."""
        value = self._pending.get(group, {}).get(name, 0) + self._known.get((group, name), 0)
        if self._batch is not None:
            value += sum(each.amounts.get(name, 0) for each in self._batch[1] if each.group == group)
        return value

    async def flush(self) -> None:
        """Writes everything that was added until now, and not what is added meanwhile: on a busy gateway that would
        never end. Raises `StoreUnavailable`; what is not written is kept for the next time."""
        async with self._lock:
            if self._batch is not None:
                await self._write()
            if self._pending:
                await self._write()

    async def aclose(self) -> None:
        """Writes the rest. What cannot be written is reported in the log."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self.flush()
        except StoreUnavailable as error:
            lost = sum(len(each.amounts) for each in self._batch[1]) if self._batch is not None else 0
            log.error("spend_lost counters=%d: the store cannot be written to: %s", lost, error)

    def _know(self, values: Iterable[tuple[tuple[str, str], int]]) -> None:
        self._known.update(values)
        while len(self._known) > self._most_known:
            del self._known[next(iter(self._known))]

    def _begin_later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._writing.append(asyncio.create_task(self._write_all(), name="unbroken-spend"))

    async def _write_all(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable:  # the store has logged it
            if not self._failing:
                log.warning("spending cannot be written to the store: it is kept in memory until the store is back")
            self._failing = True
            if self._timer is None:
                self._begin_later(_RETRY)
        else:
            self._failing = False

    async def _write(self) -> None:
        if self._batch is None:
            pending, self._pending = self._pending, {}
            self._batch = token_hex(8), [Addition(group, each, self._ttls[group]) for group, each in pending.items()]
            self._ttls = {}
        once, additions = self._batch
        values = await self._store.add(additions, once)
        self._batch = None
        for each, counted in zip(additions, values, strict=True):
            known = {(each.group, name): value for name, value in counted.items()}
            self._know((counter, value) for counter, value in known.items() if counter in self._known)
