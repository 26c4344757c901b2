"""What the gateway remembers of models' answers: turns found again in a client's history, holds, whole conversations.

Between the pure parts (`turns`, `serial`) and a store. A store that is away, or full, costs no answers: what cannot be
stored is kept in memory for as long as there is room, so that at least this process can go on, and it is logged.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from unbroken.errors import UserError
from unbroken.gateway.stores.memory import MemoryStore
from unbroken.gateway.stores.store import EntryTooLarge, Store, StoreUnavailable
from unbroken.gateway.turns import (
    VERSION,
    Hold,
    Turn,
    call_key,
    chains,
    hold_key,
    is_telling,
    read_hold,
    read_turn,
    read_value,
    response_key,
    said_key,
    write_hold,
    write_turn,
    write_value,
)
from unbroken.messages import Assistant, Message, ToolCall
from unbroken.transcript import from_json, to_json

log = logging.getLogger("unbroken.gateway")

AT_HAND = 2 << 20
"""Bytes, about, of turns that are kept at hand, so that a long history costs no reads."""
SPARE = 32 << 20
"""Bytes that are kept in memory while the store cannot be written to."""
LONGEST_LINE = 1000
"""Responses that are read to go on by `previous_response_id`. (There are never so many: see `answering`.)"""

T = TypeVar("T")


class Kept:
    """`ttl` and `hold_timeout` in seconds; `now` is wall time, which replicas and restarts share."""

    def __init__(self, store: Store, ttl: float, hold_timeout: float, now: Callable[[], float]) -> None:
        self.store = store
        self._ttl = ttl
        self._hold_timeout = hold_timeout
        self._now = now
        self._at_hand = _AtHand(AT_HAND)
        self._spare = MemoryStore(max_bytes=SPARE, max_entry=SPARE // 2, now=now)
        self._spares = False
        """Something is in it."""
        self._away = False
        """The store could not be read: what was not found may be there all the same."""

    async def find(self, scope: str, messages: Sequence[Message]) -> dict[int, Turn]:
        """For each position at which a turn that is kept may begin, that turn."""
        spoken = [at for at, message in enumerate(messages) if isinstance(message, Assistant)]
        if not spoken:
            return {}
        by_id = {at: key for at in spoken if (key := _telling_key(scope, messages[at]))}
        digests = chains(messages)
        by_words = {at: said_key(scope, digests[at]) for at in spoken}
        # Two answers may begin alike and go on otherwise. Without an id to tell them apart, only what is stored now
        # will do.
        alike = {at: key for at, key in by_words.items() if at not in by_id and _calls(messages[at])}
        sure = {at: key for at, key in by_words.items() if at not in alike}
        said = await self._pointed_at(alike, remembered=False) | await self._pointed_at(sure, remembered=True)
        named = await self._pointed_at(by_id, remembered=True)
        # Found by both, and not the same: somebody repeats ids. Then the turn of just this history counts.
        return named | {at: turn for at, turn in said.items() if at not in named or _has_ids(turn, messages[at])}

    async def _pointed_at(self, keys: Mapping[int, str], remembered: bool) -> dict[int, Turn]:
        if not keys:
            return {}
        pointers = await self._read(list(keys.values()), lambda _, data: data.decode(), remembered)
        turns = await self._turns([key for key in pointers.values() if key])
        return {at: turn for at, key in keys.items() if (turn := turns.get(pointers.get(key) or "")) is not None}

    async def holds(self, turns: Iterable[Turn]) -> dict[str, Hold | None]:
        keys = list(dict.fromkeys(turn.key for turn in turns))
        if not keys:
            return {}
        values = await self._get([hold_key(key) for key in keys])
        return {key: read_hold(value) for key, value in zip(keys, values, strict=False)}

    async def keep(self, scope: str, turn: Turn, chain: bytes, asked: str = "", retry_window: float = 0.0) -> bool:
        """Before the client has the end of the answer: from then on it may ask for more. `chain` is the digest of all
        that was said, with this; `asked` a key for the request, if it comes once more within `retry_window`."""
        turn = replace(turn, kept_until=self._now() + self._ttl)
        entries = {turn.key: write_turn(turn), said_key(scope, chain): turn.key.encode()}
        for id, call in zip(turn.ids, turn.message.calls, strict=True):
            if is_telling(call.id, call.name):  # the model's own: one that was fitted to a wire looks like more
                entries[call_key(scope, id)] = turn.key.encode()
        if turn.held:
            entries[hold_key(turn.key)] = self._new_hold()
        if not await self._put(entries, self._ttl):
            return False
        for key in entries:
            self._at_hand.forget(key)
        self._at_hand.add(turn.key, turn, len(entries[turn.key]))
        if asked and retry_window > 0:
            await self._put({asked: turn.key.encode()}, retry_window)
        return True

    async def asked_before(self, asked: str) -> Turn | None:
        """The held turn that this very request was answered with a moment ago."""
        value = (await self._get([asked]))[0]
        if value is None:
            return None
        key = value.decode()
        return (await self._turns([key])).get(key)

    async def touch(self, turn: Turn, hold: Hold | None) -> None:
        """A call was handed out: it is waited for from now on."""
        await self._put({hold_key(turn.key): self._new_hold(closed=hold is not None and hold.closed)}, self._ttl)

    async def close(self, turns: Iterable[Turn], holds: Mapping[str, Hold | None]) -> None:
        """Their rest is answered "not run" in this history; in another branch it may still be handed out."""
        closed = {turn.key: hold for turn in turns if (hold := holds.get(turn.key)) is not None}
        if closed:
            entries = {hold_key(key): write_hold(replace(hold, closed=True)) for key, hold in closed.items()}
            await self._put(entries, self._ttl)

    async def keep_response(self, scope: str, id: str, parent: str, depth: int, messages: Sequence[Message]) -> None:
        """What was said from `parent` on, for who goes on by `previous_response_id`; it is number `depth` of its
        line."""
        saved = {"v": VERSION, "parent": parent, "depth": depth, "messages": to_json(messages)}
        await self._put({response_key(scope, id): write_value(saved)}, self._ttl)

    async def conversation(self, scope: str, id: str) -> tuple[tuple[Message, ...] | None, int]:
        """All that was said up to the end of this response, and its number in its line; None if it, or one before it,
        is not kept."""
        parts: list[tuple[Message, ...]] = []
        depth = 0
        while id:
            saved = read_value((await self._get([response_key(scope, id)]))[0])
            if saved is None and self._away:
                raise StoreUnavailable("what was said before cannot be read")
            if saved is None or len(parts) > LONGEST_LINE:
                return None, 0
            try:
                parts.append(from_json(saved["messages"]))
            except UserError:
                return None, 0
            depth = depth or saved.get("depth", 0)
            id = saved["parent"]
        return tuple(message for part in reversed(parts) for message in part), depth

    def _new_hold(self, closed: bool = False) -> bytes:
        return write_hold(Hold(self._now() + self._hold_timeout, closed))

    async def _turns(self, keys: Sequence[str]) -> dict[str, Turn]:
        now = self._now()
        turns = await self._read(keys, read_turn, remembered=True)
        return {key: turn for key, turn in turns.items() if turn is not None and turn.kept_until > now}

    async def _read(
        self, keys: Sequence[str], read: Callable[[str, bytes], T | None], remembered: bool
    ) -> dict[str, T | None]:
        """`remembered`: what was read once need not be read again. That holds for what is not there too: an answer is
        kept before its client has it."""
        values: dict[str, T | None] = {}
        unknown: list[str] = []
        for key in dict.fromkeys(keys):
            known, value = self._at_hand.get(key) if remembered else (False, None)
            if known:
                values[key] = cast("T | None", value)
            else:
                unknown.append(key)
        if unknown:
            for key, data in zip(unknown, await self._get(unknown), strict=True):
                values[key] = value = None if data is None else read(key, data)
                if remembered and not self._away:
                    self._at_hand.add(key, value, len(data or b""))
        return values

    async def _get(self, keys: Sequence[str]) -> list[bytes | None]:
        try:
            values = await self.store.get(keys)
            self._away = False
        except StoreUnavailable as error:
            log.debug("the store cannot be read, going on without: %s", error)  # the store says when that begins
            values, self._away = list[bytes | None]([None] * len(keys)), True
        if not self._spares:
            return values
        spare = await self._spare.get(keys)
        return [other if other is not None else value for value, other in zip(values, spare, strict=True)]

    async def _put(self, entries: Mapping[str, bytes], ttl: float) -> bool:
        try:
            await self.store.put(entries, ttl)
            if not self._spares:
                return True
            stored = True
        except StoreUnavailable as error:
            level = logging.WARNING if isinstance(error, EntryTooLarge) else logging.DEBUG
            log.log(level, "the store cannot be written to, keeping it in memory: %s", error)
            stored = False
        try:
            await self._spare.put(entries, ttl)  # also what was stored: it may be newer than what is there
        except StoreUnavailable as error:
            if not stored:
                log.warning("and there is no room for it: %s", error)
            return stored
        self._spares = True
        return True


class _AtHand:
    """The values that were used last, up to so many bytes. None is a value too."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._values: OrderedDict[str, tuple[int, object]] = OrderedDict()

    def get(self, key: str) -> tuple[bool, object]:
        if key not in self._values:
            return False, None
        self._values.move_to_end(key)
        return True, self._values[key][1]

    def forget(self, key: str) -> None:
        self._bytes -= self._values.pop(key, (0, None))[0]

    def add(self, key: str, value: object, size: int) -> None:
        size = 5 * size + 400  # as objects they take so much more, with the key and what keeps it
        old = self._values.pop(key, None)
        self._bytes += size - (old[0] if old else 0)
        self._values[key] = (size, value)
        while self._bytes > self._most:
            _, (gone, _) = self._values.popitem(last=False)
            self._bytes -= gone


def _calls(message: Message) -> tuple[ToolCall, ...]:
    return message.calls if isinstance(message, Assistant) else ()


def _telling_key(scope: str, message: Message) -> str:
    return next((call_key(scope, call.id) for call in _calls(message) if is_telling(call.id, call.name)), "")


def _has_ids(turn: Turn, message: Message) -> bool:
    return all(call.id in turn.ids for call in _calls(message))
