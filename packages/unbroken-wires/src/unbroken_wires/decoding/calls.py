"""The calls of one response: which call a piece belongs to, when a call is complete, what its id is.

The state that guarantees that an incomplete call never runs. It never repairs and never guesses: a call is announced
ready once, when the evidence is there, and spoiled if the evidence turns out false. It knows no provider and no wire.

Strategy. There are two kinds of wires. Those that mark where a call begins and ends use `open`, `arguments`, `close`.
Others send loose fragments, and each server deviates in its own way, so `piece` decides by id first, then by index
while that call is open, then by a name after a closed object. Arguments are kept as fragments and scanned in blocks,
when a closing brace has arrived, so a fragment costs the same however long the call is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from operator import attrgetter
from typing import cast

from unbroken_wires.decoding.answer_size import CALL, size_of_values
from unbroken_wires.decoding.arguments import Parsed, Pending, is_echo, parse_ended, parse_object, starts_object
from unbroken_wires.decoding.leaked_calls import DuplicateCalls
from unbroken_wires.deltas import CallArguments, CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta
from unbroken_wires.errors import TooLarge
from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.wires.content_parts import free_text_of
from unbroken_wires.wires.json_access import MINTED, NAMESPACE, as_text
from unbroken_wires.wires.jsontext import dump_arguments, join_surrogates, without_halves

QUOTED = 200
"""How many characters of a refused text are quoted."""

LONGEST_NAME = 1000
"""Characters; no tool has a name this long, and names arrive in pieces."""

SHORT = 256
"""Texts up to this length are scanned at once, even if that may be in vain."""

BLOCK = 256
"""Fragments that are kept apart at most."""

_BLANK = " \t\r\n"
_BY_INDEX = attrgetter("index")


def too_many_calls(most: float) -> TooLarge:
    return TooLarge(f"the model made more than the {most:,} calls that one answer may have: `max_calls` sets the limit")


class Calls:
    """Reports what happens to calls in `deltas`, which belongs to the assembler.

    `turn` and `used_ids` come from the history and go into minted ids; `names` are the offered tools, if known. The
    call after the first `most` raises `TooLarge`.
    """

    def __init__(
        self,
        deltas: list[Delta],
        turn: int = 0,
        used_ids: Collection[str] = (),
        names: Collection[str] = (),
        pieces: bool = True,
        most: float = inf,
    ) -> None:
        self.halves = False
        self.unfinished = False
        """A call would be complete if more had arrived."""
        self._most = most
        self._deltas = deltas
        self._pieces = pieces
        self._turn = turn
        self._used = set(used_ids)
        self._names = frozenset(names)
        self.shortened: Mapping[str, str] = {}
        """Names of tools that the provider was sent in a shorter form, by that form."""
        self.custom: frozenset[str] = frozenset()
        """Names of tools that take free text and were offered as functions."""
        self._calls: list[Pending] = []
        self._taken: set[int] = set()
        self._next_place = 0
        self._own_indexes = 0
        self._by_index: dict[int, Pending] = {}
        self._by_id: dict[str, Pending] = {}
        self._by_key: dict[Json, Pending] = {}
        self._strays: set[Json] = set()
        self._last: Pending | None = None
        self._undecided: dict[Pending, None] = {}
        self.duplicates: DuplicateCalls | None = None
        """Set if calls may also be recovered from the text."""

    def in_order(self) -> list[ToolCall]:
        """The calls that were decided: by index where the provider gave each call its own, else by arrival."""
        calls = [call for call in self._calls if not call.withdrawn]
        if len(calls) > 1 and False not in [call.own_index for call in calls]:
            calls.sort(key=_BY_INDEX)
        return [call.done for call in calls if call.done is not None]

    @property
    def size(self) -> int:
        """The characters of all names, ids and arguments that came, and what each call counts beside them."""
        arguments = sum(sum(map(len, call.blocks)) + sum(map(len, call.fragments)) for call in self._calls)
        names = sum([CALL + len(call.name) for call in self._calls])
        return names + arguments + size_of_values([[id] for id in (*self._by_id, *self._strays)])

    @property
    def under_way(self) -> bool:
        """Has a call begun that is not complete?"""
        return bool(self._undecided)

    def native_ids(self) -> tuple[str, ...]:
        """The ids of the calls that the wire itself reported, by arrival."""
        recovered = self.duplicates.recovered if self.duplicates is not None else ()
        calls = [call for call in self._calls if not call.withdrawn and call not in recovered]
        return tuple(call.done.id for call in calls if call.done is not None)

    # Wires that mark where a call begins and ends

    def open(self, key: Json, id: str, name: str, kind: str = "function") -> None:
        if key in self._by_key:
            return
        call = self._by_key[key] = self._begin(None, id, name, kind)
        call.waits = True
        self._open(call)
        if key in self._strays:
            self._spoil(call, "a part of its arguments came before the call began")

    def arguments(self, key: Json, text: str) -> None:
        call = self._by_key.get(key)
        if not text:
            return
        if call is None:
            self._strays.add(key)
        elif call.done is not None:
            self._spoil(call, "more arguments came after the call had ended")
        else:
            self._append(call, text)

    def close(self, key: Json, whole: str | dict[str, Json] | None = None) -> None:
        call = self._by_key.get(key)
        if call is None or call.done is not None:
            return
        call.waits = False
        if isinstance(whole, dict):
            if not self._take_object(call, whole):
                return
        elif whole:
            if call.empty:
                self._append(call, whole)
            call.raw = whole
        if call.kind == "custom" or call.raw.strip(_BLANK):
            self._complete(call)
        # Empty arguments wait for the end of the stream: only that tells "none" from "cut before the first".

    def withdraw(self, key: Json) -> None:
        call = self._by_key.get(key)
        if call is not None and not call.withdrawn:
            self._take_back(call)

    def _take_back(self, call: Pending) -> None:
        call.withdrawn = True
        self._undecided.pop(call, None)
        if call.done is not None:
            self._used.discard(call.done.id)
        # Later pieces of it belong to nothing; its index is not reused.
        call.done = self._call(call, Parsed(None, "it was no call of its own"), id=call.id)
        if call.opened:
            self._deltas.append(CallWithdrawn(call.index))

    # Loose fragments

    def piece(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        if index.__class__ is not int:
            index = _as_index(index)
        call = self._by_index.get(index) if index is not None else None
        if call is None or id or name or call.done is not None:
            call = self._find(index, as_text(id), as_text(name), arguments, kind)
            if call is None:
                return
        if arguments.__class__ is not str:
            if arguments is not None:
                self._object_piece(call, arguments)
            return
        if not arguments:
            return
        if not call.opened:
            self._open(call)
        if self.halves:
            arguments, call.half = join_surrogates(call.half + arguments)
        fragments = call.fragments
        fragments.append(arguments)
        if self._pieces:
            self._deltas.append(CallArguments(call.index, arguments))
        if "}" in arguments or len(fragments) > BLOCK:
            self._scan(call)

    def more(self, index: Json, arguments: str) -> bool:
        """The fast path of `piece`, for nearly all pieces."""
        call = self._by_index.get(index) if index.__class__ is int else None
        if call is None or call.done is not None or self.halves or not arguments:
            return False
        if not call.opened:
            self._open(call)
        call.fragments.append(arguments)
        if self._pieces:
            self._deltas.append(CallArguments(call.index, arguments))
        if "}" in arguments or len(call.fragments) > BLOCK:
            self._scan(call)
        return True

    def entry(self, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A complete call in a list: its position there is its identity, whatever its id and index are."""
        call = self._begin(None, as_text(id), as_text(name), kind)
        self._open(call)
        if isinstance(arguments, str):
            if arguments:
                self._append(call, arguments)
                self._scan(call)
        elif arguments is not None:
            self._object_piece(call, arguments)

    def again(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        """A second piece with a name and the same index and id in one list: the same call only if that one is still
        open."""
        call = self._by_id.get(as_text(id)) or self._by_index.get(_as_index(index) or 0)
        under_way = call is not None and call.done is None and not call.empty and call.name == name
        if under_way and not starts_object(arguments):
            self.piece(index, id, name, arguments, kind)
        else:
            self.entry(id, name, arguments, kind)

    def loose(self, position: int, arguments: Json) -> None:
        """A piece that only its position in a list identifies: this counts only while the call there is open."""
        call = self._by_index.get(position)
        self.piece(position if call is not None and call.done is None else None, None, None, arguments)

    def _find(self, index: int | None, id: str, name: str, arguments: Json, kind: str) -> Pending | None:
        """The open call that a piece belongs to, made if the piece starts one; None if there is nothing to add."""
        blank = arguments is None or (isinstance(arguments, str) and not arguments.strip(_BLANK))
        here = self._by_index.get(index) if index is not None else self._last
        call = here if here is not None and id == here.id else self._by_id.get(id)
        if id and call is not None:
            if not self._is_same(call, index, name, arguments, blank):
                call = None
        else:
            call = here if here is not None and self._continues(here, index, id, name, arguments, blank) else None
        if call is None:
            return self._begin(index, id, name, kind) if name or id or not blank else None
        self._last = call
        if id and not call.id:
            call.id = id
        if id:
            self._by_id[id] = call
        if name and name != call.name and (call.empty or not call.name) and len(call.name) < LONGEST_NAME:
            call.name += name  # a name in pieces; once arguments have arrived the first value is kept
        if call.done is None:
            return call
        if blank:
            call.announced_again = name
        elif call.announced_again and starts_object(arguments) and not (id and is_echo(call.done, arguments)):
            # The name came again, alone, after the close: what follows shows whether it is an echo or another call.
            return self._begin(index, "", call.announced_again, kind)
        else:
            self._after_the_end(call, arguments)
        return None

    def _is_same(self, call: Pending, index: int | None, name: str, arguments: Json, blank: bool) -> bool:
        """Is a piece with a known id the same call, or has the provider given one id to several?"""
        if not name:
            return True
        if index is not None and call.own_index and index != call.index:
            return False
        if call.done is None:
            return not self._are_two_names(call.name, name)
        if name != call.name:
            return False
        # Closed, and the same name again: an echo of this call, or another call.
        return blank or not starts_object(arguments) or is_echo(call.done, arguments)

    def _continues(self, call: Pending, index: int | None, id: str, name: str, arguments: Json, blank: bool) -> bool:
        """Does a piece without a known id belong to the call at its position?"""
        closed = call.closed
        if id and call.id:
            # A new id at the same place is a new call (ollama sends every call at index 0), unless it comes without a
            # name while the call is still open: some servers make up an id for each piece.
            return not name and not closed
        if not name:
            return True
        if closed:
            if name != call.name:
                return False
            if blank or not starts_object(arguments):
                return True
            # Where each call has an index of its own, the very same call at the same index is an echo.
            return call.done is not None and self._own_indexes > 1 and is_echo(call.done, arguments)
        if call.name and index is None:
            return name == call.name  # without index and id only the name tells calls apart
        return not self._are_two_names(call.name, name)

    def _are_two_names(self, name: str, other: str) -> bool:
        return name != other and name in self._names and other in self._names

    def _after_the_end(self, call: Pending, arguments: Json) -> None:
        done = call.done
        if done is None or done.problem or is_echo(done, arguments):
            return  # some servers repeat the complete call with the finish
        self._spoil(call, "more text came after the arguments had closed")

    def _object_piece(self, call: Pending, arguments: Json) -> None:
        self._open(call)
        if isinstance(arguments, dict) and call.empty:
            if self._take_object(call, cast("dict[str, Json]", arguments)):
                self._complete(call)
        else:
            self._spoil(
                call, f"the arguments are neither text nor one object: {str(cast('object', arguments))[:QUOTED]}"
            )

    # The life of a call

    def _begin(self, index: int | None, id: str, name: str, kind: str) -> Pending:
        if self.duplicates is not None:
            self.duplicates.settle()
        if len(self._calls) >= self._most:
            raise too_many_calls(self._most)
        own_index = index is not None and index not in self._taken
        if own_index and index is not None:
            place = index
        else:
            place = max(self._next_place, len(self._calls))
            while place in self._taken:
                place += 1
            self._next_place = place + 1
        self._taken.add(place)
        self._own_indexes += own_index
        if self._last is not None and self._last.name:
            self._open(self._last)  # calls are reported in the order in which they began
        call = Pending(place, own_index, id, name, kind)
        self._calls.append(call)
        self._undecided[call] = None
        # A call without an index may be continued by its position.
        self._by_index[place if index is None else index] = call
        if id:
            self._by_id[id] = call
        self._last = call
        return call

    def _open(self, call: Pending) -> None:
        if not call.opened:
            call.opened = True
            name = self.shortened.get(call.name, call.name)
            self._deltas.append(CallOpened(call.index, name.rpartition(NAMESPACE)[2], call.id))

    def _append(self, call: Pending, text: str) -> None:
        if self.halves:
            text, call.half = join_surrogates(call.half + text)
        call.fragments.append(text)
        if self._pieces:
            self._deltas.append(CallArguments(call.index, text))

    def _take_object(self, call: Pending, arguments: dict[str, Json]) -> bool:
        raw = dump_arguments(arguments)
        if raw is None:
            self._spoil(call, "the arguments hold what JSON cannot say (NaN, Infinity), or are nested too deep")
            return False
        call.raw = raw
        if self._pieces:
            self._deltas.append(CallArguments(call.index, raw))
        return True

    def _scan(self, call: Pending) -> None:
        text = "".join(call.fragments)
        call.fragments.clear()
        if not call.blocks and len(text) <= SHORT and call.name and call.kind != "custom":
            # Fast path for short arguments, which saves 10 µs for each call: a text that parses as an object from its
            # first brace to its last has closed there, so no scan is needed.
            parsed = parse_object(text)
            if parsed is not None:
                call.blocks.append(text)
                self._conclude(call, parsed)
                return
        call.blocks.append(text)
        if call.kind != "custom" and call.scanner.feed(text):
            if call.scanner.spoiled:
                self._spoil(call, "more text came after the arguments had closed")
            elif call.name:
                self._complete(call)

    def _complete(self, call: Pending) -> None:
        """The call is complete: parse the arguments strictly, once, and report it."""
        if not call.name:
            self._spoil(call, "the call has no name")
        elif call.kind == "custom":
            self._conclude(call, Parsed(None))
        else:
            self._conclude(call, parse_ended(call.raw))

    def _spoil(self, call: Pending, problem: str) -> None:
        if call.done is None or not call.done.problem:
            self._conclude(call, Parsed(None, problem))

    def _conclude(self, call: Pending, parsed: Parsed) -> None:
        if self.duplicates is not None:
            self.duplicates.settle()
        self._undecided.pop(call, None)
        if self.duplicates is not None and parsed.arguments is not None:
            other = self.duplicates.find_recovered(call, parsed.arguments)
            if other is not None:
                self._take_back(other)
        call.done = self._call(call, parsed, id=call.done.id if call.done else None)
        if parsed.unfinished:
            self.unfinished = True
        self._deltas.append(CallSpoiled(call.done) if parsed.problem else CallReady(call.done))

    def _call(self, call: Pending, parsed: Parsed, id: str | None = None) -> ToolCall:
        notes = parsed.notes
        if id is None:
            id = without_halves(call.id)  # as it is written: two of them must not become one
            if not id or id in self._used:
                id = self._mint(call.index)
                notes = (*notes, MINTED if not call.id else f"id {call.id} was used before")
            self._used.add(id)
        full = self.shortened.get(call.name, call.name)
        namespace, _, name = full.rpartition(NAMESPACE)
        arguments, raw, kind = parsed.arguments, call.raw, call.kind
        if kind == "function" and arguments is not None and full in self.custom:
            arguments, raw, kind = None, free_text_of(arguments, raw), "custom"
        return ToolCall(
            id=id,
            name=name,
            arguments=arguments,
            raw=raw,
            index=call.index,
            complete=arguments is not None,
            kind=kind,
            problem=parsed.problem,
            notes=notes,
            namespace=namespace,
        )

    def _mint(self, index: int) -> str:
        base = id = f"call_{self._turn}_{index}"
        letter = ord("a")
        while id in self._used:
            id = f"{base}{chr(letter)}" if letter <= ord("z") else f"{base}z{letter}"
            letter += 1
        return id

    # Outside the wires

    def recovered(self, name: str, arguments: str) -> None:
        """A complete call found in the text. Some servers parse a call and leave its text too: that is one call."""
        assert self.duplicates is not None
        if self.duplicates.was_reported(name, arguments):
            return
        call = self._begin(None, "", name, "function")
        self.duplicates.add_recovered(call, arguments)
        self._open(call)
        self._append(call, arguments)
        self._complete(call)

    @property
    def recovered_any(self) -> bool:
        return self.duplicates is not None and bool(self.duplicates.recovered)

    def damage(self) -> None:
        """An event could not be read: what it held is unknown, so no call that is open may ever count as complete."""
        for call in list(self._undecided):
            self._open(call)
            self._spoil(call, "a part of the stream was damaged while the call was open")

    def flush(self, well: bool) -> None:
        """The body has ended: decide the calls that are still open. `well`: it ended as it should."""
        for call in self._calls:
            if call.done is None:
                if call.half:
                    call.fragments.append("\ufffd")
                self._open(call)
                self._conclude(call, call.at_the_end(well))


def _as_index(index: Json) -> int | None:
    if isinstance(index, str) and index.isdecimal() and len(index) < 10:
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None
