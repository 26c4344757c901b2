"""The counters of what was spent: added up in memory, and written to the store in batches.

Nothing waits for the store except the reading of a budget. Each batch has an id, so that a batch is repeated after a
failure until the store has confirmed it, and counts once. A process that is killed loses what it has not written: at
most the last `batch` seconds while the store works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex

from unbroken.gateway.stores import Store, StoreUnavailable
from unbroken.gateway.stores.store import Addition

log = logging.getLogger("unbroken.gateway")

FRESH = 1.0
"""Seconds for which a value that was read from the store is used."""
_MOST_KNOWN = 20_000
_RETRY = 2.0


@dataclass(slots=True)
class _Known:
    value: int
    at: float


class Ledger:
    def __init__(self, store: Store, batch: float) -> None:
        self._store = store
        self._every = batch
        self._pending: dict[str, dict[str, int]] = {}
        """By group and name: what is not written yet."""
        self._ttls: dict[str, float] = {}
        self._batch: tuple[str, list[Addition]] | None = None
        """What is being written, or has to be repeated, and its id."""
        self._known: dict[tuple[str, str], _Known] = {}
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

    def value(self, group: str, name: str) -> int:
        """As last read from the store, plus what this process has not written yet."""
        known = self._known.get((group, name))
        value = self._pending.get(group, {}).get(name, 0) + (known.value if known is not None else 0)
        if self._batch is not None:
            value += sum(each.amounts.get(name, 0) for each in self._batch[1] if each.group == group)
        return value

    async def refresh(self, counters: Sequence[tuple[str, str]]) -> None:
        """Reads those of these counters, by group and name, that were not read within the last second. Raises
        `StoreUnavailable`."""
        if not self._stale(counters):
            return
        async with self._lock:
            stale = self._stale(counters)
            if not stale:
                return
            if self._batch is not None:
                await self._write()
            groups = list(dict.fromkeys(group for group, _ in stale))
            names = list(dict.fromkeys(name for _, name in stale))
            found = dict(zip(groups, await self._store.counters(groups, names), strict=True))
            for group, name in stale:
                self._know(group, name, found[group].get(name, 0))

    async def flush(self) -> None:
        """Writes everything. Raises `StoreUnavailable`; what is not written is kept for the next time."""
        async with self._lock:
            while self._batch is not None or self._pending:
                await self._write()

    def forget(self) -> None:
        """Reads everything anew when it is needed next."""
        self._known.clear()

    async def aclose(self) -> None:
        """Writes the rest. What cannot be written is reported in the log."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self.flush()
        except StoreUnavailable as error:
            lost = sum(len(each.amounts) for each in self._batch[1]) if self._batch is not None else 0
            log.error("spend_lost counters=%d: the store cannot be written to: %s", lost, error)

    def _stale(self, counters: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        over = asyncio.get_running_loop().time() - FRESH
        known = self._known
        return [each for each in counters if (found := known.get(each)) is None or found.at < over]

    def _know(self, group: str, name: str, value: int) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._known) >= _MOST_KNOWN:  # not those that a request has just read: it would find nothing spent
            self._known = {each: known for each, known in self._known.items() if known.at >= now - FRESH}
        self._known[group, name] = _Known(value, now)

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
            for name, value in counted.items():
                if (each.group, name) in self._known:
                    self._know(each.group, name, value)
