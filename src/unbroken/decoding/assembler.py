"""Puts the pieces of a response together: which call a piece belongs to, when a call is complete, what its id is.

The one place with state while a response arrives. A wire tells it what it reads (`wires.wire.Receiver`); it answers
with deltas. It does no I/O, knows no provider, and never repairs: a call is announced ready once, when the evidence is
there, and spoiled if the evidence turns out false.

Strategy. Two kinds of wires meet here. Those that say where a call begins and ends use `open`, `arguments`, `close`.
openai-chat sends loose pieces and every server bends them in its own way, so `piece` decides by id first, then by
index while that call is open, then by a name after a closed object (DESIGN: "which call is it"). Arguments are kept as
a list of fragments and scanned only when a closing brace has arrived, so a fragment costs the same however long
the call is.
"""

from __future__ import annotations

from collections.abc import Collection

from unbroken.decoding.arguments import Parsed, parse_arguments
from unbroken.decoding.prose import Prose, ProseCall
from unbroken.decoding.scanner import Scanner
from unbroken.deltas import (
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    Delta,
    Meaning,
    ReasoningDelta,
    ServerCallSeen,
    TextDelta,
    UsageReported,
)
from unbroken.messages import Json, ServerCall, ToolCall, Usage
from unbroken.wires.jsontext import dump_arguments

QUOTED = 200
"""How many characters of a refused call's raw text are quoted to the model."""

_BLANK = " \t\r\n"


class _Pending:
    """A call while its pieces arrive. `done` is the announced call, ready or spoiled."""

    __slots__ = (
        "announced",
        "ask",
        "done",
        "fragments",
        "half",
        "id",
        "index",
        "kind",
        "name",
        "object",
        "own_index",
        "own_end",
        "scanned",
        "scanner",
    )

    def __init__(self, index: int, own_index: bool, id: str, name: str, kind: str, own_end: bool) -> None:
        self.index = index
        self.own_index = own_index
        self.id = id
        self.name = name
        self.kind = kind
        self.own_end = own_end
        self.fragments: list[str] = []
        self.scanned = 0
        self.scanner = Scanner()
        self.object: dict[str, Json] | None = None
        self.announced = False
        self.done: ToolCall | None = None
        self.half = ""

    @property
    def raw(self) -> str:
        if len(self.fragments) > 1:
            self.fragments = ["".join(self.fragments)]
            self.scanned = min(self.scanned, 1)
        return self.fragments[0] if self.fragments else ""


class Assembler:
    def __init__(self, turn: int = 0, used_ids: Collection[str] = (), prose: Prose | None = None) -> None:
        self.deltas: list[Delta] = []
        self.server_calls: list[ServerCall] = []
        self.finish_reason: str | None = None
        self.meaning: Meaning = "done"
        self.terminal = False
        self.failure: Json = None
        self.last_usage: Usage | None = None
        self.halves = False
        """Set by the decoder once an event had to be read by the slow parser: only then can half a character come."""
        self._turn = turn
        self._used = set(used_ids)
        self._prose = prose
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_half = ""
        self._reasoning_half = ""
        self._calls: list[_Pending] = []
        self._by_index: dict[int, _Pending] = {}
        self._taken: set[int] = set()
        self._by_id: dict[str, _Pending] = {}
        self._by_key: dict[Json, _Pending] = {}
        self._last: _Pending | None = None

    # What was received so far

    @property
    def text_so_far(self) -> str:
        return "".join(self._text)

    @property
    def reasoning_so_far(self) -> str:
        return "".join(self._reasoning)

    def calls(self) -> list[ToolCall]:
        """The announced calls, in call order: by index where the provider gave each call its own, else by arrival."""
        calls = self._calls
        if all(call.own_index for call in calls):
            calls = sorted(calls, key=lambda call: call.index)
        return [call.done for call in calls if call.done is not None]

    def ids_by_arrival(self) -> tuple[str, ...]:
        return tuple(call.done.id for call in self._calls if call.done is not None)

    # Receiver: text and the rest

    def text(self, text: str) -> None:
        if self.halves:
            text, self._text_half = _join_halves(self._text_half + text)
        if not text:
            return
        if self._prose is None:
            self._text.append(text)
            self.deltas.append(TextDelta(text))
        else:
            self._said(self._prose.feed(text))

    def reasoning(self, text: str) -> None:
        if self.halves:
            text, self._reasoning_half = _join_halves(self._reasoning_half + text)
        if text:
            self._reasoning.append(text)
            self.deltas.append(ReasoningDelta(text))

    def server_call(self, call: ServerCall) -> None:
        self.server_calls.append(call)
        self.deltas.append(ServerCallSeen(call))

    def usage(self, usage: Usage) -> None:
        self.last_usage = usage
        self.deltas.append(UsageReported(usage))

    def finish(self, reason: str, meaning: Meaning = "done") -> None:
        # The first reason counts: Together and OpenRouter repeat it in the chunk that carries the usage.
        self.terminal = True
        if self.finish_reason is None:
            self.finish_reason = reason
            self.meaning = meaning

    def ended(self) -> None:
        self.terminal = True

    def error(self, error: Json) -> None:
        if self.failure is None:
            self.failure = error

    # Receiver: calls on wires that say where a call begins and ends

    def open(self, key: Json, id: str, name: str, kind: str = "function") -> None:
        if key in self._by_key:
            return
        self._by_key[key] = self._begin(None, id, name, kind, own_end=True)
        self._announce(self._by_key[key])

    def arguments(self, key: Json, text: str) -> None:
        call = self._by_key.get(key)
        if call is None or not text:
            return
        if call.done is not None:
            self._spoil(call, "more arguments came after the call had ended")
        else:
            self._append(call, text)

    def close(self, key: Json, whole: str | dict[str, Json] | None = None) -> None:
        call = self._by_key.get(key)
        if call is None or call.done is not None:
            return
        if isinstance(whole, dict):
            self._take_object(call, whole)
        elif whole:
            if not call.fragments:
                self._append(call, whole)
            call.fragments = [whole]
        if call.kind == "custom" or call.raw.strip(_BLANK):
            self._complete(call)
        # Empty arguments wait for the end of the stream: only that tells "none" from "cut before the first".

    # Receiver: loose pieces of openai-chat

    def piece(self, index: Json, id: Json, name: Json, arguments: Json, kind: str = "function") -> None:
        if index.__class__ is not int:
            index = _as_index(index)
        call = self._by_index.get(index) if index is not None else None
        if call is None or id or name or call.done is not None:
            call = self._find(
                index, id if isinstance(id, str) else "", name if isinstance(name, str) else "", arguments, kind
            )
            if call is None:
                return
        if not arguments:
            return
        if arguments.__class__ is not str:
            if isinstance(arguments, dict) and not call.fragments:
                self._announce(call)
                self._take_object(call, arguments)  # pyright: ignore[reportUnknownArgumentType] - JSON of a provider
                self._complete(call)
            return
        if not call.announced:
            self._announce(call)
        if self.halves:
            arguments, call.half = _join_halves(call.half + arguments)
        call.fragments.append(arguments)
        self.deltas.append(CallArguments(call.index, arguments))
        if "}" in arguments:
            self._scan(call)

    def _find(self, index: int | None, id: str, name: str, arguments: Json, kind: str) -> _Pending | None:
        """The call that a piece belongs to, made if the piece starts one; None if the piece adds nothing."""
        blank = not arguments or (isinstance(arguments, str) and not arguments.strip(_BLANK))
        call = self._by_id.get(id) if id else None
        if call is not None:
            if index is not None and call.own_index and index != call.index and name:
                call = None  # one id for several calls, told apart by their indexes
            elif call.done is not None and self._starts_anew(call, name, arguments, blank):
                call = None
        else:
            call = self._by_index.get(index) if index is not None else self._last
            if call is not None and not self._goes_on(call, index, id, name, blank):
                call = None
        if call is None:
            if not (name or id) and blank:
                return None
            call = self._begin(index, id, name, kind, own_end=False)
            return call
        if id and not call.id:
            call.id = id
            self._by_id.setdefault(id, call)
        if name and name != call.name and not call.announced:
            call.name += name  # a name in pieces; once arguments have come the first value stands
        self._last = call
        if call.done is not None:
            if not blank:
                self._after_the_end(call, arguments)
            return None
        return call

    def _goes_on(self, call: _Pending, index: int | None, id: str, name: str, blank: bool) -> bool:
        """Does a piece without a known id belong to the call at its place?"""
        if id and call.id:
            return False  # a new id at the same place: ollama sends every call at index 0
        if call.done is not None:
            return not name or (blank and name == call.name)
        if name and call.name and index is None:
            return False  # without index and id only the name tells calls apart
        return True

    def _starts_anew(self, call: _Pending, name: str, arguments: Json, blank: bool) -> bool:
        """After the close: is a piece with the same id another call, or an echo of this one?"""
        if not name or blank:
            return False
        if name != call.name:
            return True
        return arguments != call.raw and isinstance(arguments, str) and arguments.lstrip(_BLANK).startswith("{")

    def _after_the_end(self, call: _Pending, arguments: Json) -> None:
        if isinstance(arguments, str) and arguments == call.raw:
            return  # some servers send the whole call once more with the finish
        if isinstance(arguments, dict) and arguments == (call.done.arguments if call.done else None):
            return
        if isinstance(arguments, str):
            call.fragments.append(arguments)
            self.deltas.append(CallArguments(call.index, arguments))
        self._spoil(call, "more text came after the arguments had closed")

    # The life of a call

    def _begin(self, index: int | None, id: str, name: str, kind: str, own_end: bool) -> _Pending:
        own_index = index is not None and index not in self._taken
        if own_index and index is not None:
            place = index
        else:
            place = len(self._calls)
            while place in self._taken:
                place += 1
        self._taken.add(place)
        call = _Pending(place, own_index, id, name, kind, own_end)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id.setdefault(id, call)
        self._last = call
        return call

    def _announce(self, call: _Pending) -> None:
        if not call.announced:
            call.announced = True
            self.deltas.append(CallOpened(call.index, call.name, call.id))

    def _append(self, call: _Pending, text: str) -> None:
        if self.halves:
            text, call.half = _join_halves(call.half + text)
        call.fragments.append(text)
        self.deltas.append(CallArguments(call.index, text))

    def _take_object(self, call: _Pending, arguments: dict[str, Json]) -> None:
        raw = dump_arguments(arguments)
        if raw is None:
            call.fragments = [repr(arguments)]
            return
        call.object = arguments
        call.fragments = [raw]
        self.deltas.append(CallArguments(call.index, raw))

    def _scan(self, call: _Pending) -> None:
        scanner = call.scanner
        text = "".join(call.fragments[call.scanned :])
        call.scanned = len(call.fragments)
        if call.kind != "custom" and scanner.feed(text):
            if scanner.spoiled:
                self._spoil(call, "more text came after the arguments had closed")
            else:
                self._complete(call)

    def _complete(self, call: _Pending) -> None:
        """The evidence is there: read the arguments strictly, once, and say so."""
        if call.kind == "custom":
            call.done = self._call(call, Parsed(None))
            self.deltas.append(CallReady(call.done))
            return
        parsed = parse_arguments(call.raw)
        call.done = self._call(call, parsed)
        self.deltas.append(CallReady(call.done) if call.done.complete else CallSpoiled(call.done))

    def _spoil(self, call: _Pending, problem: str) -> None:
        if call.done is not None and not call.done.complete and call.done.kind != "custom":
            return
        call.done = self._call(call, Parsed(None, problem), id=call.done.id if call.done else None)
        self.deltas.append(CallSpoiled(call.done))

    def _call(self, call: _Pending, parsed: Parsed, id: str | None = None) -> ToolCall:
        notes = parsed.notes
        if id is None:
            id = call.id
            if not id or id in self._used:
                id = self._mint(call.index)
                notes = (*notes, "minted id" if not call.id else f"id {call.id} was used before")
            self._used.add(id)
        return ToolCall(
            id=id,
            name=call.name,
            arguments=parsed.arguments,
            raw=call.raw,
            index=call.index,
            complete=parsed.arguments is not None,
            kind=call.kind,
            problem=parsed.problem,
            notes=notes,
        )

    def _mint(self, index: int) -> str:
        base = id = f"call_{self._turn}_{index}"
        letter = ord("a")
        while id in self._used:
            id = f"{base}{chr(letter)}" if letter <= ord("z") else f"{base}z{letter}"
            letter += 1
        return id

    # The end

    def damage(self) -> None:
        """An event could not be read: what it held is unknown, so no call that is open may ever count as complete."""
        for call in self._calls:
            if call.done is None:
                self._announce(call)
                self._spoil(call, "a part of the stream was damaged while the call was open")

    def flush(self) -> list[str]:
        """The body has ended. Decides the calls that are still open; gives the names of those that were cut."""
        if self._prose is not None:
            self._said(self._prose.end())
        self._flush_halves()
        well = self.terminal and self.failure is None and self.meaning in ("done", "paused")
        for call in self._calls:
            if call.done is not None:
                continue
            self._announce(call)
            if not call.name:
                self._spoil(call, "the call has no name")
            elif call.kind == "custom" and well:
                self._complete(call)
            elif call.raw.strip(_BLANK):
                # What is left has no evidence of completeness but the end itself.
                parsed = parse_arguments(call.raw)
                if parsed.arguments is None or not well:
                    parsed = Parsed(None, _cut_words(call.scanner, parsed))
                call.done = self._call(call, parsed)
                self.deltas.append(CallReady(call.done) if call.done.complete else CallSpoiled(call.done))
            elif well:
                call.done = self._call(call, Parsed({}))
                self.deltas.append(CallReady(call.done))
            else:
                self._spoil(call, "the stream ended before its arguments arrived")
        return [call.done.name for call in self._calls if call.done is not None and call.done.problem]

    def _flush_halves(self) -> None:
        for half, say in ((self._text_half, self.text), (self._reasoning_half, self.reasoning)):
            if half:
                say("\ufffd")
        self._text_half = self._reasoning_half = ""
        for call in self._calls:
            if call.half:
                call.half = ""
                if call.done is None:
                    call.fragments.append("\ufffd")

    def _said(self, found: list[str | ProseCall]) -> None:
        for item in found:
            if isinstance(item, str):
                self._text.append(item)
                self.deltas.append(TextDelta(item))
            else:
                call = self._begin(None, "", item.name, "function", own_end=True)
                self._announce(call)
                self._append(call, item.arguments)
                self._complete(call)


def _as_index(index: Json) -> int | None:
    if isinstance(index, str) and index.isdecimal() and len(index) < 10:
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _join_halves(text: str) -> tuple[str, str]:
    """Join the halves of surrogate pairs; a half at the end waits for the next piece, a lone one becomes U+FFFD."""
    half = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, half = text[:-1], text[-1]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


def _cut_words(scanner: Scanner, parsed: Parsed) -> str:
    if parsed.arguments is not None:
        return "the stream broke before the call was known to be complete"
    return f"the stream ended before the arguments were complete ({parsed.problem})"
