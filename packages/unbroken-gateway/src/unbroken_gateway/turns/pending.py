"""Held turns whose calls wait for their client, as this process knows them: what waits, since when and until when.

A turn is known to the process that released its last call. When the time of a turn is over, that process reports it
once, in the log and as a metric. Before that it asks the store, because another process may have released the next call
meanwhile, and it leaves a note there, so that the turn is not counted again when its client returns after all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from unbroken_gateway.stores.store import StoreUnavailable
from unbroken_gateway.turns.turn_store import TurnStore

log = logging.getLogger("unbroken.gateway")

MOST_HELD = 10_000
MOST_NAMED, LONGEST = 20, 200
"""How many of the waiting calls are named, and characters of a name, since a model chose it."""
GRACE = 2.0
"""Seconds after its time before a turn is reported: a request that came in time may still be answered."""


@dataclass(frozen=True, slots=True)
class HeldTurn:
    """A turn with calls that wait to be released."""

    session: str
    """As in the log."""
    alias: str
    waiting: int
    """How many of its calls wait."""
    since: float
    key: str = ""
    """The name of the gateway key."""
    client: str = ""
    expires: float = 0.0
    """When the wait for the result of the released call ends; each further call starts it again."""
    released: str = ""
    """The tool of the call that the client has, whose result is awaited."""
    calls: tuple[str, ...] = ()
    """The tools of the calls that wait, in their order."""


@dataclass(frozen=True, slots=True)
class _Entry:
    scope: str
    turn: HeldTurn


class PendingTurns:
    """`now` is wall time. Its methods may be called from any thread."""

    def __init__(self, hold_timeout: float, now: Callable[[], float]) -> None:
        self.hold_timeout = hold_timeout
        self._now = now
        self._lock = Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By the turn's key. The one whose call was released first is the first."""

    def hold(
        self,
        turn: str,
        waiting: int,
        alias: str = "",
        scope: str = "",
        key: str = "",
        client: str = "",
        names: tuple[str, ...] = (),
    ) -> None:
        """This number of calls of the turn wait to be released. `names`: the tools of the call that was released and of
        those that wait."""
        now = self._now()
        released, *calls = [name[:LONGEST] for name in names[: MOST_NAMED + 1]] or [""]
        with self._lock:
            before = self._entries.pop(turn, None)
            since = now if before is None else before.turn.since
            expires = now + self.hold_timeout
            held = HeldTurn(turn[-8:], alias, waiting, since, key, client, expires, released, tuple(calls))
            self._entries[turn] = _Entry(scope, held)
            while len(self._entries) > MOST_HELD:
                self._entries.popitem(last=False)

    def release(self, turn: str) -> None:
        """No call of the turn waits any more."""
        with self._lock:
            self._entries.pop(turn, None)

    def keys_of(self, session: str) -> list[str]:
        """The keys of the turns that are shown under this name."""
        with self._lock:
            return [key for key, entry in self._entries.items() if entry.turn.session == session]

    def listed(self, scope: str | None = None) -> tuple[HeldTurn, ...]:
        """The turns that wait, of all callers or of one, the oldest first."""
        now = self._now()
        with self._lock:
            entries = [*self._entries.values()]
        turns = (each.turn for each in entries if scope is None or each.scope == scope)
        return tuple(sorted((turn for turn in turns if turn.expires >= now), key=lambda turn: turn.since))

    def take_expired(self) -> dict[str, HeldTurn]:
        """Removes the turns whose time is over, and returns them by their keys."""
        over = self._now() - GRACE
        with self._lock:
            expired = {key: entry.turn for key, entry in self._entries.items() if entry.turn.expires < over}
            for key in expired:
                del self._entries[key]
        return expired


class ExpiryWatch:
    """Reports turns that expired before their client returned. `count` is called with the alias of each."""

    def __init__(
        self, pending: PendingTurns, turn_store: TurnStore, hold_timeout: float, count: Callable[[str], None]
    ) -> None:
        self._pending = pending
        self._turn_store = turn_store
        self._every = min(10.0, max(0.05, hold_timeout / 10))
        self._count = count

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> None:
        for key, turn in self._pending.take_expired().items():
            try:
                expired = await self._turn_store.report_expired(key)
            except StoreUnavailable:
                expired = True  # its calls cannot be released without the store either
            if expired:
                self._count(turn.alias)
                log.warning(
                    "serial_expired session=%s calls=%d alias=%s key=%s",
                    turn.session,
                    turn.waiting,
                    turn.alias or "-",
                    turn.key or "-",
                )
