"""The strict reading of a call's arguments: one JSON object, exact numbers, nothing repaired.

Parsed once, when the call is complete. By the standard parser, because orjson turns integers beyond 64 bits into
floats; by orjson where the text is short and has no number so long. Returns the reason why a text is refused; it is
shown to the model and in logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import orjson

from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.wires.jsontext import strict

# Finds where the top-level JSON object of a call's arguments closes: one pass, no parsing, each byte is read once.
#
# Not a parser: it follows brackets and strings only. A text that closes here is then parsed once, strictly, in
# `parse_arguments`. "It parses" does not prove that a call is complete (`{"a": 1}` may be the start of more text; a
# number can grow), but the close of the outer object does; and anything but white space after it spoils the call.


MAX_DEPTH = 512

_MARKS = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')
_BLANK = " \t\r\n"


class Scanner:
    """Feed it the text in any pieces. `closed` turns true at the brace that ends the outer object."""

    __slots__ = ("_escaped", "_in_string", "_open", "closed", "foreign", "spoiled", "too_deep")

    def __init__(self) -> None:
        self.closed = False
        self.spoiled = False
        """Something other than white space came after the close, or a bracket closed what it did not open."""
        self.foreign = False
        """The text does not start with a brace: whatever it is, it is not an object."""
        self.too_deep = False
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> bool:
        """Returns `closed`."""
        at, end = 0, len(text)
        if self.spoiled or self.too_deep or self.foreign:
            return self.closed
        if not self._open:
            at = end - len(text.lstrip(_BLANK))
            if at == end:
                return self.closed
            if self.closed:
                self.spoiled = True
                return True
            if text[at] != "{":
                self.foreign = True
                return False
        while at < end:
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                    at += 1
                    continue
                found = _STRING_END.search(text, at)
                if found is None:
                    break
                at = found.end()
                if found.group() == "\\":
                    self._escaped = True
                else:
                    self._in_string = False
                continue
            found = _MARKS.search(text, at)
            if found is None:
                break
            at = found.end()
            if self._bracket(found.group()):
                if text[at:].strip(_BLANK):
                    self.spoiled = True
                break
        return self.closed

    def _bracket(self, mark: str) -> bool:
        """Follow one mark outside strings; true when there is nothing more to follow."""
        if mark == '"':
            self._in_string = True
        elif mark in "{[":
            self._open.append("}" if mark == "{" else "]")
            if len(self._open) > MAX_DEPTH:
                self.too_deep = True
                return True
        elif self._open.pop() != mark:
            self.spoiled = True
            return True
        elif not self._open:
            self.closed = True
            return True
        return False


CUT = "the stream ended before the arguments were complete"
NO_ARGUMENTS = "the stream ended before its arguments arrived"
NO_INPUT = "the stream ended before its input was complete"
NOT_KNOWN = "the stream broke before the call was known to be complete"
DOUBLE_ENCODED = "double-encoded"
_LONG_NUMBER = re.compile(r"[0-9]{19}")


@dataclass(slots=True)
class Parsed:
    arguments: dict[str, Json] | None
    problem: str = ""
    invalid: bool = False
    """It is not JSON at all, like a text that was cut."""
    unfinished: bool = False
    """It would be complete if more had arrived."""
    notes: tuple[str, ...] = ()


def parse_arguments(raw: str) -> Parsed:
    """Read a text that is not blank. A JSON string that holds a JSON object is parsed again, and noted."""
    if not _shallow(raw):
        return Parsed(None, f"the arguments are nested deeper than {MAX_DEPTH} levels")
    try:
        value = strict.decode(raw)
        notes: tuple[str, ...] = ()
        if isinstance(value, str) and _shallow(value):
            value = strict.decode(value)
            notes = (DOUBLE_ENCODED,)
    except (ValueError, RecursionError) as error:
        return Parsed(None, f"the arguments are not valid JSON: {error}", invalid=True)
    if not isinstance(value, dict):
        return Parsed(None, f"the arguments are not a JSON object but {_name(value)}")
    return Parsed(cast("dict[str, Json]", value), notes=notes)


def parse_ended(raw: str) -> Parsed:
    """The same for a call that its wire reports as ended, although brackets or quotes may be open."""
    parsed = parse_arguments(raw)
    if not parsed.invalid:
        return parsed
    scanner = Scanner()
    scanner.feed(raw)
    if scanner.closed or scanner.foreign or scanner.spoiled or scanner.too_deep:
        return parsed
    return Parsed(None, f"{CUT} ({parsed.problem})", unfinished=True)


def starts_object(arguments: Json) -> bool:
    return isinstance(arguments, dict) or (isinstance(arguments, str) and arguments.lstrip(_BLANK).startswith("{"))


def is_echo(done: ToolCall, arguments: Json) -> bool:
    """Are these the arguments of the call again, whatever their white space?"""
    if isinstance(arguments, str):
        return arguments == done.raw or parse_arguments(arguments).arguments == done.arguments is not None
    return arguments == done.arguments


def parse_object(text: str) -> Parsed | None:
    """A short text that is one JSON object and nothing else; None for any other, which has to be looked at closely."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = strict.decode(text) if _LONG_NUMBER.search(text) else orjson.loads(text)
    except (ValueError, RecursionError):
        return None
    return Parsed(cast("dict[str, Json]", value)) if isinstance(value, dict) else None


def _shallow(raw: str) -> bool:
    if raw.count("{") + raw.count("[") <= MAX_DEPTH:
        return True
    scanner = Scanner()
    scanner.feed(raw)
    # Text that is not an object is refused in any case: no need to know its depth, but it must not be parsed.
    return not (scanner.too_deep or scanner.foreign)


def _name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case _:
            return "an array"


# A call while its pieces arrive: what is known of it so far, and its text as it grows.
#
# Which piece belongs to it and when it is complete is decided in `calls`.


class Pending:
    """A call while its pieces arrive. `done` is the announced call, ready or spoiled."""

    __slots__ = (
        "_scanner",
        "announced_again",
        "blocks",
        "done",
        "fragments",
        "half",
        "id",
        "index",
        "kind",
        "name",
        "opened",
        "own_index",
        "waits",
        "withdrawn",
    )

    def __init__(self, index: int, own_index: bool, id: str, name: str, kind: str) -> None:
        self.index = index
        self.own_index = own_index
        """The provider gave this call an index that no other call had."""
        self.id = id
        self.name = name
        self.kind = kind
        self.opened = False
        self.fragments: list[str] = []
        """What came since the last scan."""
        self.blocks: list[str] = []
        """What was scanned, in larger pieces: a hundred thousand small strings would cost their memory."""
        self._scanner: Scanner | None = None
        self.half = ""
        self.announced_again = ""
        """Its name came again, alone, after its arguments were complete."""
        self.withdrawn = False
        self.waits = False
        """Its wire marks where calls end, and has not marked it yet."""
        self.done: ToolCall | None = None

    @property
    def scanner(self) -> Scanner:
        """Made when it is needed: nearly all calls are short and read in one step."""
        if self._scanner is None:
            self._scanner = Scanner()
        return self._scanner

    @property
    def closed(self) -> bool:
        """Its outer object has closed, or it was announced."""
        return self.done is not None or (self._scanner is not None and self._scanner.closed)

    @property
    def raw(self) -> str:
        return "".join((*self.blocks, *self.fragments))

    @raw.setter
    def raw(self, text: str) -> None:
        self.blocks = [text]
        self.fragments = []

    @property
    def empty(self) -> bool:
        return not (self.blocks or self.fragments)

    def at_the_end(self, well: bool) -> Parsed:
        """The body has ended, and the call was never known to be complete. `well`: the body ended as it should."""
        if not self.name:
            return Parsed(None, "the call has no name")
        if self.kind == "custom":
            return Parsed(None) if well else Parsed(None, NO_INPUT, unfinished=True)
        raw = self.raw
        if not raw.strip(_BLANK):
            well = well and not self.waits
            return Parsed({}) if well else Parsed(None, NO_ARGUMENTS, unfinished=True)
        parsed = parse_arguments(raw)
        if parsed.problem:
            if not parsed.invalid or self.scanner.closed:
                return parsed
            return Parsed(None, f"{CUT} ({parsed.problem})", unfinished=True)
        # The closing quote of a string ends it as surely as a brace ends an object.
        return parsed if well or DOUBLE_ENCODED in parsed.notes else Parsed(None, NOT_KNOWN, unfinished=True)
