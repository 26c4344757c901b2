"""Large JSON texts, read and written in pieces. One call of a parser holds Python's lock from beginning to end: 30 MB
take up to 0.3 s, and no other thread runs meanwhile. A piece takes a few milliseconds.

Reading: brackets and commas are followed in small steps; wherever so much text has come by, the items up to there
are given to the parser, and what is large (a list, an object, a string) is put together from its parts. The parser
checks each piece, and what stands between pieces is checked here, so exactly that is read which the parser would read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import cast

from unbroken_wires.messages import Json
from unbroken_wires.wires.jsontext import MAX_DEPTH, Damaged, after_string, dumps, loads_faithful, too_deep

PIECE = 256 << 10
"""Bytes, about, that a parser or writer is given at once."""
_VALUE = 64
"""Bytes that a value counts for beside its text: many small ones take as long as much text."""

IN_PIECES: ContextVar[bool] = ContextVar("unbroken_json_in_pieces", default=False)
"""Set for work on a large body beside an event loop."""

_STEP = re.compile(rb'(?:[^"\[\]{},NI]++|"[^"\\]{0,999}+")*+(["\[\]{},NI]?)')
"""Up to the next bracket or comma; also to a string that is long or has escapes, and to where `NaN` or `Infinity` may
be."""
_CHARACTERS = re.compile(
    rb"(?:[^\\]++"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=.{6})(?!\\u[dD][c-fC-F]))"
    rb"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rb"|\\[^u])*+",
    re.DOTALL,
)
"""Of the inside of a string: never half an escape, and never one half of a pair of surrogates."""


class _Open:
    """A list or an object whose end has not come."""

    __slots__ = ("comma", "is_object", "marks", "placed", "start", "unread", "value")

    def __init__(self, start: int, is_object: bool) -> None:
        self.start = start
        self.is_object = is_object
        self.unread = start + 1
        """Where the text begins that was not parsed."""
        self.marks = 0
        """Brackets and commas in it."""
        self.comma = -1
        """The last one between its items."""
        self.value: list[Json] | dict[str, Json] | None = None
        """The items that were parsed; None if none was."""
        self.placed = False
        """The last of them was put together here, and no comma has come since."""


class _Reader:
    def __init__(self, data: bytes, check: Callable[[int], None], piece: int) -> None:
        self._data = data
        self._piece = piece
        self._many = piece // _VALUE
        self._check = check
        self._values = 1
        self._open: list[_Open] = []
        self._root: list[Json] = []
        self._root_end = 0

    def read(self) -> Json:
        data, at, step = self._data, 0, _STEP.match
        while (found := step(data, at)) and found[1]:
            begin, at = found.start(1), found.end()
            if found[1] == b'"':
                at = after_string(data, begin)
                if at - begin > self._piece and not self._is_key(at):
                    self._place(_string(data, begin, at, self._piece), begin, at)
            else:
                self._follow(begin)
        self._check(self._values)
        if self._open or not self._root or data[self._root_end :].strip():
            raise Damaged("brackets do not close, or something follows the end")
        return self._root[0]

    def _follow(self, at: int) -> None:
        kind = self._data[at]
        if kind != 93 and kind != 125:
            self._values += 1
            if self._values % 1024 == 0:
                self._check(self._values)
        if kind == 91 or kind == 123:
            if len(self._open) >= MAX_DEPTH:
                raise too_deep()
            self._open.append(_Open(at, kind == 123))
            return
        if kind == 73 or kind == 78:
            raise Damaged(f"at byte {at}: NaN and Infinity are not JSON numbers")
        if not self._open:
            raise Damaged(f"a bracket or a comma at byte {at} belongs to nothing")
        inner = self._open[-1]
        if kind == 44:  # a comma
            inner.marks += 1
            if inner.placed:
                self._check_blank(inner.unread, at)
                inner.placed = False
                inner.unread = at + 1
            elif at - inner.unread > self._piece or inner.marks > self._many:
                self._take(inner, at)
            inner.comma = at
        elif inner.is_object != (kind == 125):
            raise Damaged(f"the bracket at byte {at} closes one of another kind")
        else:
            self._close(inner, at + 1)

    def _close(self, inner: _Open, end: int) -> None:
        self._open.pop()
        if inner.value is None:
            if self._open and end - inner.start <= self._piece and inner.marks <= self._many:
                self._open[-1].marks += inner.marks + 1  # it stays part of the text around it
                return
            value = loads_faithful(self._data[inner.start : end])
        else:
            if inner.placed:
                self._check_blank(inner.unread, end - 1)
            else:
                self._take(inner, end - 1)
            value = cast("Json", inner.value)
        self._place(value, inner.start, end)

    def _take(self, inner: _Open, until: int) -> None:
        """Parses the items up to there."""
        text = self._data[inner.unread : until]
        read = loads_faithful(b"{" + text + b"}" if inner.is_object else b"[" + text + b"]")
        if not read:
            raise Damaged(f"there is no value before byte {until}")
        if inner.value is None:
            inner.value = cast("list[Json] | dict[str, Json]", read)
        elif isinstance(inner.value, dict):
            inner.value.update(cast("dict[str, Json]", read))
        else:
            inner.value.extend(cast("list[Json]", read))
        inner.unread, inner.marks = until + 1, 0

    def _place(self, value: Json, start: int, end: int) -> None:
        """Puts a value into its container."""
        if not self._open:
            if self._root:
                raise Damaged(f"something follows the end, at byte {start}")
            self._check_blank(0, start)
            self._root.append(value)
            self._root_end = end
            return
        outer = self._open[-1]
        if outer.placed:
            raise Damaged(f"there is no comma before byte {start}")
        if outer.comma >= outer.unread:
            self._take(outer, outer.comma)
        if outer.value is None:
            outer.value = {} if outer.is_object else []
        if isinstance(outer.value, dict):
            outer.value[self._key(outer.unread, start)] = value
        else:
            self._check_blank(outer.unread, start)
            outer.value.append(value)
        outer.unread, outer.marks, outer.placed = end, 0, True

    def _key(self, begin: int, end: int) -> str:
        text = self._data[begin:end].rstrip()
        names = loads_faithful(b"{" + text + b"0}") if text.endswith(b":") else None
        if not isinstance(names, dict) or len(cast("dict[str, Json]", names)) != 1:
            raise Damaged(f"there is no name before byte {end}")
        return next(iter(cast("dict[str, Json]", names)))

    def _is_key(self, at: int) -> bool:
        return self._data[at : at + 1000].lstrip(_BLANKS)[:1] == b":"

    def _check_blank(self, begin: int, end: int) -> None:
        if self._data[begin:end].strip(_BLANKS):
            raise Damaged(f"there is something between two values, before byte {end}")


_BLANKS = b" \t\r\n"


def _string(data: bytes, begin: int, end: int, piece: int) -> str:
    """A long string, with its quotes at `begin` and before `end`."""
    parts: list[str] = []
    at, last = begin + 1, end - 1
    while at < last:
        to = last
        if last - at > piece:
            found = _CHARACTERS.match(data, at, at + piece)
            to = found.end() if found else at
            while to > at and data[to] & 0xC0 == 0x80:  # not within a character
                to -= 1
            if to == at:
                raise Damaged(f"the string at byte {begin} has an escape that JSON does not have")
        parts.append(cast("str", loads_faithful(b'"' + data[at:to] + b'"')))
        at = to
    return "".join(parts)


def loads_in_pieces(data: bytes, check: Callable[[int], None] = lambda values: None, *, piece: int = PIECE) -> Json:
    """What `jsontext.loads_faithful` gives. `check` is called with the number of values so far, not fewer than there
    are, and may raise. Raises `Damaged`, also for `NaN` and `Infinity`, and `TooDeep`."""
    return _Reader(data, check, piece).read()


def dumps_in_pieces(value: Json, *, piece: int = PIECE) -> bytes:
    """What `jsontext.dumps` gives."""
    return b"".join(_written(value, piece))


def write_json(value: Json) -> bytes:
    """The JSON text of a value, in pieces where `IN_PIECES` is set."""
    return dumps_in_pieces(value) if IN_PIECES.get() else dumps(value)


def _written(value: Json, piece: int) -> Iterator[bytes]:
    if not value or _weight(value, piece) <= piece:
        yield dumps(value)
    elif isinstance(value, str):
        yield b'"'
        yield from _written_string(value, piece)
        yield b'"'
    elif isinstance(value, dict):
        yield from _written_fields(cast("dict[str, Json]", value), piece)
    elif isinstance(value, list | tuple):
        yield from _written_items(cast("list[Json]", value), piece)
    else:
        yield dumps(value)


def _written_items(items: Iterable[Json], piece: int) -> Iterator[bytes]:
    begin, small, weight = b"[", list[Json](), 0
    for item in items:
        each = _weight(item, piece)
        if small and weight + each > piece:
            yield begin + dumps(small)[1:-1]
            begin, small, weight = b",", [], 0
        if each > piece:
            yield begin
            yield from _written(item, piece)
            begin = b","
        else:
            small.append(item)
            weight += each
    yield begin + dumps(small)[1:] if small else b"]"


def _written_fields(fields: dict[str, Json], piece: int) -> Iterator[bytes]:
    begin, small, weight = b"{", dict[str, Json](), 0
    for name, value in fields.items():
        each = _weight(value, piece) + len(name)
        if small and weight + each > piece:
            yield begin + dumps(small)[1:-1]
            begin, small, weight = b",", {}, 0
        if each > piece:
            yield begin + dumps(name) + b":"
            yield from _written(value, piece)
            begin = b","
        else:
            small[name] = value
            weight += each
    yield begin + dumps(small)[1:] if small else b"}"


def _written_string(text: str, piece: int) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        to = at + piece
        if "\ud800" <= text[to - 1 : to] <= "\udbff":  # the first half of a pair
            to += 1
        yield dumps(text[at:to])[1:-1]
        at = to


def _weight(value: Json, piece: int) -> int:
    """Of a value, in bytes, about. What is more than a piece is not counted to its end."""
    weight, left = 0, [value]
    while left and weight <= piece:
        one = left.pop()
        weight += _VALUE
        if isinstance(one, str):
            weight += len(one)
        elif isinstance(one, dict):
            fields = cast("dict[str, Json]", one)
            weight += _VALUE * len(fields)
            if weight <= piece:
                weight += sum(map(len, fields))
                left += fields.values()
        elif isinstance(one, list | tuple):
            items = cast("list[Json]", one)
            weight += _VALUE * len(items)
            left += items if weight <= piece else ()
    return weight
