"""What the gateway remembers of models' answers: turns found again in a client's history, and holds.

It connects the pure parts (`turn`, `serial`) with a store. What a client needs to get all of its calls is read from the
store and confirmed by it, or the request fails (`StoreUnavailable`): an answer must not get shorter because a store is
briefly unavailable. What only improves an answer (reasoning that a client dropped) is kept in memory meanwhile.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from unbroken_gateway.stores.store import (
    MARK,
    NOTHING,
    EmptiedStore,
    EntryTooLarge,
    MemoryStore,
    Store,
    StoreUnavailable,
    part_of,
)
from unbroken_gateway.turns.call_ids import agrees, is_ours, is_random
from unbroken_gateway.turns.retries import SavedAnswer
from unbroken_gateway.turns.serial import Found
from unbroken_gateway.turns.turn import (
    VERSION,
    Hold,
    Listed,
    Turn,
    call_key,
    chains,
    hold_key,
    read_hold,
    read_turn,
    read_value,
    said_key,
    same_answer,
    unpack,
    write_hold,
    write_turn,
    write_value,
)
from unbroken_wires.messages import Assistant, Message, Native, ToolCall
from unbroken_wires.wires.json_access import as_text

log = logging.getLogger("unbroken.gateway")

CACHE_BYTES = 2 << 20
"""Approximate bytes of turns in the cache, so that a long history needs no reads."""
EMPTY = 60.0
"""Seconds for which an empty list is cached."""
MOST_EMPTY = 20_000
"""Maximum number of cached empty lists."""
SPARE = 32 << 20
"""Maximum bytes in memory while the store cannot be written to."""
_NOTHING_LISTED: tuple[list[Listed], bool] = ([], True)
_NOTHING_KNOWN: tuple[list[Listed], bool] = ([], False)


class TurnStore:
    """`ttl` and `hold_timeout` in seconds; `now` is wall time, which replicas and restarts share."""

    def __init__(self, store: Store, ttl: float, hold_timeout: float, now: Callable[[], float]) -> None:
        self.store = store
        self._ttl = ttl
        self._hold_timeout = hold_timeout
        self._now = now
        self._cache = _TurnCache(CACHE_BYTES)
        self._empty = _EmptyLists(now)
        marks = [MARK] if store.parts == 1 else [f"{MARK}{part}" for part in range(store.parts)]
        self._emptied = {mark: EmptiedStore(store, ttl, hold_timeout, now, mark) for mark in marks}
        """For each part of the store, by the key of its marker."""
        self._spare = MemoryStore(max_bytes=SPARE, max_entry=SPARE // 2, now=now)
        self._has_spares = False
        """Whether the spare store has data."""

    def use(self, ttl: float, hold_timeout: float) -> None:
        """From now on, new turns are stored for this long. What is stored and cached stays."""
        self._ttl, self._hold_timeout = ttl, hold_timeout
        for emptied in self._emptied.values():
            emptied.use(ttl, hold_timeout)

    async def find(self, scope: str, messages: Sequence[Message], context: bytes, *, required: bool) -> Found:
        """The turns that match messages of this history. `required`: raise `StoreUnavailable` if the store cannot be
        read, instead of finding nothing."""
        calls = {at: message.calls for at, message in enumerate(messages) if isinstance(message, Assistant)}
        if not calls:
            return Found()
        found = Found()
        wanted = await self._proven(scope, calls, required)
        proven = found.proven = frozenset(wanted)
        if len(proven) < len(calls):
            digests = chains(messages)
            said = {at: said_key(scope, digests[at]) for at in calls if at not in proven}
            lists = await self._listed(list(said.values()), required, remember_found=False)
            for at, key in said.items():
                if (listed := lists[key]) != _NOTHING_LISTED:
                    wanted[at] = _agreeing(found, at, *listed, context)
        if not wanted:
            return found
        turns = await self._turns([key for keys in wanted.values() for key in keys], required)
        for at, keys in wanted.items():
            there = [turn for key in keys if (turn := turns.get(key)) is not None]
            possible = there if at in proven else [turn for turn in there if agrees(turn, calls[at])]
            if len(there) < len(keys):  # a turn that is gone may be the right one
                found.doubts[at] = "ambiguous" if there else "forgotten"
            elif possible:
                found.turns[at] = tuple(_distinct(possible))
                if any(_lacks_reasoning(turn, possible) for turn in found.turns[at]):
                    found.doubts[at] = "ambiguous"
            elif there:
                found.doubts[at] = "unmatched"
        return found

    async def _proven(
        self, scope: str, calls: Mapping[int, Sequence[ToolCall]], required: bool
    ) -> dict[int, list[str]]:
        """The turns that a random id proves: one for each message."""
        keys: dict[int, list[str]] = {}
        ours: list[str] = []
        theirs: list[str] = []
        for at, shown in calls.items():
            for call in shown:
                if is_random(call.id, call.name):
                    key = call_key(scope, call.id)
                    keys.setdefault(at, []).append(key)
                    (ours if is_ours(call.id) else theirs).append(key)
        lists = await self._listed(ours, required, remember_found=True, marked=False) if ours else {}
        if theirs:  # another client may have received the same meanwhile
            lists |= await self._listed(theirs, required, remember_found=False, marked=False)
        listed = {at: {one.key: None for key in group for one in lists[key][0]} for at, group in keys.items()}
        return {at: list(found) for at, found in listed.items() if len(found) == 1}

    async def _listed(
        self, keys: Sequence[str], required: bool, *, remember_found: bool, marked: bool = True
    ) -> dict[str, tuple[list[Listed], bool]]:
        """The entries of these lists, and whether each is complete: a full list may lack entries, and so may one of an
        emptied store (`marked`). A list may have grown since it was read, unless its key is an id that no other turn
        can have (`remember_found`). Empty lists are cached for a while, and the cache is used unless `required`:
        another replica may meanwhile list a turn for a client with the same conversation."""
        use_memory = remember_found or not required
        lists: dict[str, tuple[list[Listed], bool]] = {}
        unknown: Sequence[str] = list(dict.fromkeys(keys))
        if use_memory:
            unknown = self._empty.without(unknown)
            lists = dict.fromkeys(keys, _NOTHING_LISTED)
        if remember_found and unknown:
            known, unknown = self._cache.split(unknown)
            lists |= cast("dict[str, tuple[list[Listed], bool]]", known)
        if unknown:
            marks = self._marks(unknown) if marked else ()
            values, all_there = await self._get([*unknown, *marks], required)
            for mark in reversed(marks):
                value = values.pop()
                all_there = all_there and not await self._was_emptied(mark, value, required)
            if all_there and use_memory:
                self._empty.add([key for key, data in zip(unknown, values, strict=True) if not data])
            nothing = _NOTHING_LISTED if all_there else _NOTHING_KNOWN
            for key, data in zip(unknown, values, strict=True):
                if not data:
                    lists[key] = nothing
                    continue
                listed, complete = unpack(data)
                lists[key] = listed, complete and all_there
                if all_there and remember_found:
                    self._cache.add(key, lists[key], len(data))
        return lists

    def _marks(self, keys: Iterable[str]) -> Sequence[str]:
        """The markers of the parts of the store in which these keys are."""
        parts = self.store.parts
        return (MARK,) if parts == 1 else [f"{MARK}{part}" for part in {part_of(key, parts) for key in keys}]

    async def _begin(self, keys: Iterable[str]) -> None:
        for mark in self._marks(keys):
            await self._emptied[mark].begin()

    async def _was_emptied(self, mark: str, value: bytes | None, required: bool) -> bool:
        try:
            return await self._emptied[mark].look(value)
        except StoreUnavailable:
            if required:
                raise
            return True

    async def holds(self, turns: Iterable[Turn], *, required: bool = True) -> dict[str, Hold | None]:
        keys = list(dict.fromkeys(turn.key for turn in turns))
        if not keys:
            return {}
        values, _ = await self._get([hold_key(key) for key in keys], required)
        return {key: read_hold(value) for key, value in zip(keys, values, strict=False)}

    async def keep(self, scope: str, turn: Turn, chain: bytes, context: bytes, *, required: bool) -> bool:
        """Stores a turn. Call it before the client gets the end of the answer, because then it may continue. `chain` is
        the digest of the conversation including this turn. `required`: raise `StoreUnavailable` unless the store has
        confirmed it."""
        until = self._now() + self._ttl
        turn = Turn(turn.key, turn.message, turn.ids, turn.held, turn.shown, until)
        entries = {turn.key: write_turn(turn)}
        listed = Listed(turn.key, context).packed()
        lists = {said_key(scope, chain): listed}
        for id, call in zip(turn.ids, turn.message.calls, strict=True):
            if is_random(id, call.name) and (is_ours(id) or is_random(call.id, call.name)):
                lists[call_key(scope, id)] = listed  # an id that was adapted to a wire looks more random than it is
        if turn.held:
            entries[hold_key(turn.key)] = self._new_hold()
        if required:
            await self._begin((*entries, *lists))
            await self.store.put(entries, self._ttl, lists)
        elif not await self._put(entries, self._ttl, lists):
            return False
        for key in lists:
            self._cache.forget(key)
            self._empty.forget(key)
        self._cache.add(turn.key, turn, len(entries[turn.key]))
        return True

    async def keep_answered(self, key: str, answer: SavedAnswer, seconds: float) -> None:
        """Stores an answer for retries: a request with this key within this many seconds may be a retry."""
        await self._put(
            {
                key: write_value(
                    {"v": VERSION, "turn": answer.turn, "body": answer.body, "lost": answer.lost, "text": answer.text}
                )
            },
            seconds,
        )

    async def answered(self, key: str) -> tuple[Turn | None, SavedAnswer | None]:
        """The recent answer to a request: its turn if it has calls, and the saved answer."""
        (value,), _ = await self._get([key], required=True)
        saved = read_value(value)
        if saved is None:
            return None, None
        answer = SavedAnswer(*(as_text(saved.get(name)) for name in ("turn", "body", "lost", "text")))
        if not answer.turn:
            return None, answer
        return (await self._turns([answer.turn], required=True)).get(answer.turn), answer

    async def note_first_attempt(self, key: str, seconds: float) -> None:
        """Notes a first attempt at the request with this key; a retry within this many seconds may belong to it."""
        with suppress(StoreUnavailable):  # then `first_attempts` does not count it
            await self.store.put({}, seconds, {_FIRST + key: b"."})

    async def first_attempts(self, key: str) -> int:
        """How many first attempts at the same request are known: several clients may send the same bytes."""
        (noted,), _ = await self._get([_FIRST + key], required=True)
        return len(noted or b"")

    async def touch(self, turn: Turn, hold: Hold | None) -> None:
        """A call is released: restarts the wait for its result. Raises `StoreUnavailable` if that cannot be stored."""
        closed = hold is not None and hold.closed
        await self.store.put({hold_key(turn.key): self._new_hold(closed=closed)}, self._ttl)

    async def drop(self, turn: str) -> None:
        """Ends the wait for the result of its released call now: the other calls are not released."""
        await self.store.put({hold_key(turn): write_hold(Hold(self._now() - 1.0))}, self._ttl)

    async def report_expired(self, turn: str) -> bool:
        """Has the time of this held turn run out, with nobody having reported it so far? Then it is noted as
        reported."""
        (value, noted), _ = await self._get([hold_key(turn), _EXPIRED + turn], required=True)
        hold = read_hold(value)
        if hold is None or hold.closed or hold.until >= self._now() or noted is not None:
            return False
        await self.store.put({_EXPIRED + turn: b"."}, self._ttl)  # a key of its own: the hold may be renewed meanwhile
        return True

    async def close(self, turns: Iterable[Turn], holds: Mapping[str, Hold | None]) -> None:
        """The remaining calls are answered "not run" in this history; in another branch they may still be released."""
        closed = {turn.key: hold for turn in turns if (hold := holds.get(turn.key)) is not None}
        if closed:
            entries = {hold_key(key): write_hold(replace(hold, closed=True)) for key, hold in closed.items()}
            with suppress(StoreUnavailable):  # the next request of this history closes them again
                await self.store.put(entries, self._ttl)

    def _new_hold(self, closed: bool = False) -> bytes:
        return write_hold(Hold(self._now() + self._hold_timeout, closed))

    async def _turns(self, keys: Sequence[str], required: bool) -> dict[str, Turn]:
        """The turns that are still stored. A turn never changes, so it is read only once."""
        known, unknown = self._cache.split(keys)
        turns = cast("dict[str, Turn]", known)
        if unknown:
            values, _ = await self._get(unknown, required)
            for key, data in zip(unknown, values, strict=True):
                if data is not None and (turn := read_turn(key, data)) is not None:
                    turns[key] = turn
                    self._cache.add(key, turn, len(data))
        now = self._now()
        return {key: turn for key, turn in turns.items() if turn.kept_until > now}

    async def _get(self, keys: Sequence[str], required: bool = False) -> tuple[list[bytes | None], bool]:
        """The values, and whether the store has confirmed them. `required`: raises if it has not."""
        confirmed = True
        try:
            values = await self.store.get(keys)
        except StoreUnavailable as error:
            log.debug("the store cannot be read, continuing without it: %s", error)  # the store logs when that begins
            values, confirmed, reason = list[bytes | None]([None] * len(keys)), False, error
        else:
            reason = None
        if self._has_spares:
            spare = await self._spare.get(keys)
            values = [_joined(*pair) for pair in zip(keys, values, spare, strict=True)]
        if required and reason is not None and any(map(_may_have_more, keys, values)):
            raise reason
        return values, confirmed

    async def _put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> bool:
        try:
            await self._begin((*entries, *append))
            await self.store.put(entries, ttl, append)
            if not self._has_spares:
                return True
            stored = True
        except StoreUnavailable as error:
            level = logging.WARNING if isinstance(error, EntryTooLarge) else logging.DEBUG
            log.log(level, "the store cannot be written to, keeping it in memory: %s", error)
            stored = False
        try:
            await self._spare.put(entries, ttl, append)  # also what was stored: it may be newer
        except StoreUnavailable as error:
            if not stored:
                log.warning("a turn is lost: the store cannot be written to, and memory has no room for it: %s", error)
            return stored
        self._has_spares = True
        return True


class _TurnCache:
    """The most recently used values, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._values: OrderedDict[str, tuple[int, object]] = OrderedDict()

    def split(self, keys: Iterable[str]) -> tuple[dict[str, object], list[str]]:
        """The cached values of these keys, and the keys without one."""
        known: dict[str, object] = {}
        unknown: list[str] = []
        for key in dict.fromkeys(keys):
            if (entry := self._values.get(key)) is None:
                unknown.append(key)
            else:
                self._values.move_to_end(key)
                known[key] = entry[1]
        return known, unknown

    def forget(self, key: str) -> None:
        self._bytes -= self._values.pop(key, (0, None))[0]

    def add(self, key: str, value: object, size: int) -> None:
        size = 5 * size + 400  # as objects they take this much more, including the key and the entry
        self.forget(key)
        self._bytes += size
        self._values[key] = (size, value)
        while self._bytes > self._most:
            self.forget(next(iter(self._values)))


class _EmptyLists:
    """Keys whose lists were empty when they were last read, for `EMPTY` seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def without(self, keys: Sequence[str]) -> list[str]:
        """The keys whose lists may have entries."""
        if not self._until:
            return [*keys]
        now, until = self._now(), self._until
        return [key for key in keys if until.get(key, 0.0) <= now]

    def add(self, keys: Sequence[str]) -> None:
        if len(self._until) > MOST_EMPTY:
            self._until.clear()
        self._until |= dict.fromkeys(keys, self._now() + EMPTY)

    def forget(self, key: str) -> None:
        self._until.pop(key, None)


def _reasoning(message: Assistant) -> tuple[str, Native | None]:
    return message.reasoning, message.native


def _agreeing(found: Found, at: int, listed: Sequence[Listed], complete: bool, context: bytes) -> list[str]:
    """The turns with the same context (`context_of`)."""
    if not complete:
        found.doubts[at] = "ambiguous" if listed else "forgotten"
        return []
    agreeing = [entry.key for entry in listed if entry.context == context]
    if not agreeing:
        found.doubts[at] = "unmatched"
    return agreeing


def _lacks_reasoning(turn: Turn, originals: Sequence[Turn]) -> bool:
    """Was its reasoning left out because other turns with the same answer have different reasoning?"""
    return turn not in originals


_LISTS = ("said:", "call:")
_FIRST = "first:"
_EXPIRED = "expired:"


def _joined(key: str, stored: bytes | None, spare: bytes | None) -> bytes | None:
    """Combines the value in the store with the one in memory. Each may have a part of a list."""
    if stored is None or spare is None:
        return stored if spare is None else spare
    return stored + spare if key.startswith(_LISTS) else stored


def _may_have_more(key: str, value: bytes | None) -> bool:
    """Could the store have more than this value? Only if it is missing, or a list."""
    return value is None or key.startswith(_LISTS)


def _distinct(turns: Sequence[Turn]) -> list[Turn]:
    """Keeps one of several turns with the same answer. If their reasoning differs, it is left out, because nobody knows
    which one the client got."""
    different: list[Turn] = []
    for turn in turns:
        at = next((at for at, other in enumerate(different) if same_answer(turn, other)), None)
        if at is None:
            different.append(turn)
        elif _reasoning(different[at].message) != _reasoning(turn.message):
            bare = replace(different[at].message, reasoning="", native=None)
            different[at] = replace(different[at], message=bare)
    return different
