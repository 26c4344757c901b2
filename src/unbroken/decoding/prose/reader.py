"""Reads text that arrives in pieces, token by token, and reads each character only a few times.

A grammar (`dialects`) is a generator over these tokens: it runs as far as the text goes, waits at a `yield`, and
continues with the next piece. Every token is either short, or consumed as it arrives; so little has to be read again,
whatever the pieces. It repairs nothing: what does not fit is a `Mismatch`, with the reader at the beginning of the
token that does not fit, the same place at any split of the text.

Also what the dialects share: a call written as one JSON object, and arguments written as keys and values. Both are
strict: an offered name, one JSON object, no key twice, nothing beside them. The text of JSON arguments is kept, so that
numbers stay as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from unbroken.decoding.arguments import MAX_DEPTH, parse_arguments
from unbroken.messages import Json
from unbroken.wires.jsontext import shallow, strict

LONGEST_TAG = 64
"""No closing tag that `until` is asked for is longer."""

LONGEST_WORD = 256

_BLANKS = re.compile(r"[ \t\r\n]*")
_TAIL_BLANKS = 8

# Outside strings: all that JSON cannot have there, besides its brackets and quotes. So a tag that cuts an object short
# is seen where it stands, not at the end of the text.
_OUTSIDE = re.compile(r"[^ \t\r\n0-9:,.+\-Eaeflnrstu]")
_INSIDE = re.compile(r'["\\\x00-\x1f]')
_ESCAPED = re.compile(r".", re.DOTALL)


class Mismatch(Exception):
    """The text is not of the form that was being read. Does not leave `prose`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A call that a grammar has read. `end`: how far into the form its own text goes, where a form holds several."""

    name: str
    arguments: str
    end: int = 0


T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Found, ...], None, T]
"""A grammar or a token of one. Yields nothing (an empty tuple) to wait for more text, or the calls it has found."""


class Reader:
    """The window of text that still matters, and the open form's text that has left it.

    `at` is where reading continues, `begin` where the text begins that has not been passed on yet, `end` where reading
    must stop: at the end of the window, or where the open form has become too long to be held.
    """

    __slots__ = ("_kept", "_kept_size", "_max_held", "at", "before", "begin", "end", "ended", "text")

    def __init__(self, max_held: int) -> None:
        self.text = ""
        self.at: int = 0
        self.begin: int = 0
        self.end: int = 0
        self.ended = False
        self.before = "\n"
        """The character before the window: a text begins like a line."""
        self._max_held = max_held
        self._kept: list[str] = []
        self._kept_size: int = 0

    # The window

    def add(self, piece: str) -> None:
        if self.at:
            self.before = self.text[self.at - 1]
            if self.at > self.begin:
                self._kept.append(self.text[self.begin : self.at])
                self._kept_size += self.at - self.begin
        self.text = self.text[self.at :] + piece
        self.at = self.begin = 0
        self._bound()

    def take(self, to: int) -> list[str]:
        """The text that has not been passed on yet, up to `to`, in pieces."""
        taken = self._kept
        if to > self.begin:
            taken.append(self.text[self.begin : to])
        self._kept = []
        self._kept_size = 0
        self.begin = to
        self._bound()
        return taken

    @property
    def offset(self) -> int:
        """How much of the open form has been read."""
        return self._kept_size + self.at - self.begin

    @property
    def unread(self) -> int:
        """Characters that will be read again with the next piece."""
        return len(self.text) - self.at

    def at_line_start(self, place: int) -> bool:
        return (self.text[place - 1] if place else self.before) == "\n"

    def _bound(self) -> None:
        self.end = min(len(self.text), self.begin + self._max_held - self._kept_size)

    @property
    def _full(self) -> bool:
        return self._kept_size + self.end - self.begin >= self._max_held

    def _wait(self) -> Steps[None]:
        if self.ended or self._full:
            raise Mismatch
        yield ()

    # Tokens

    def blanks(self) -> Steps[str]:
        """White space, maybe none. Stops before the next character, or at the end of the text."""
        parts: list[str] = []
        while True:
            start = self.at
            found = _BLANKS.match(self.text, start, self.end)
            self.at = found.end() if found else start
            parts.append(self.text[start : self.at])
            if self.at < self.end or (self.ended and not self._full):
                return "".join(parts)
            yield from self._wait()

    def peek(self) -> Steps[str]:
        """The next character, not taken; empty at the end of the text."""
        while self.at >= self.end:
            if self.ended and not self._full:
                return ""
            yield from self._wait()
        return self.text[self.at]

    def literal(self, *options: str) -> Steps[str]:
        """One of the options, none of which begins another."""
        while True:
            left = self.end - self.at
            partial = False
            for option in options:
                if self.text.startswith(option, self.at, self.end):
                    self.at += len(option)
                    return option
                partial = partial or (left < len(option) and option.startswith(self.text[self.at : self.end]))
            if not partial:
                raise Mismatch
            yield from self._wait()

    def tail(self, *options: str) -> Steps[str]:
        """One of the options after a little white space, or nothing at all, and then nothing is taken."""
        limit = _TAIL_BLANKS + max(len(option) for option in options)
        while True:
            ahead = self.text[self.at : min(self.end, self.at + limit)]
            word = ahead.lstrip(" \t\r\n")
            for option in options:
                if word.startswith(option):
                    self.at += len(ahead) - len(word) + len(option)
                    return option
            possible = len(ahead) < limit and any(option.startswith(word) for option in options)
            if not possible or self.ended or self._full:
                return ""
            yield from self._wait()

    def word(self, stop: re.Pattern[str], options: Collection[str] | None = None) -> Steps[str]:
        """A short text up to `stop`, which is not taken; white space aside one of the options, if there are any."""
        limit = LONGEST_WORD if options is None else max(map(len, options), default=0) + _TAIL_BLANKS
        while True:
            found = stop.search(self.text, self.at, min(self.end, self.at + limit + 1))
            word = self.text[self.at : found.start() if found else min(self.end, self.at + limit + 1)]
            if found:
                if options is not None and word.strip() not in options:
                    raise Mismatch
                self.at = found.start()
                return word
            if len(word) > limit:
                raise Mismatch
            if options is not None and not any(option.startswith(word.strip()) for option in options):
                raise Mismatch
            yield from self._wait()

    def until(self, tag: re.Pattern[str]) -> Steps[str]:
        """Any text up to a tag (that begins with `<`), which is not taken."""
        parts: list[str] = []
        while True:
            start = self.at
            found = tag.search(self.text, start, self.end)
            if found:
                self.at = found.start()
                parts.append(self.text[start : self.at])
                return "".join(parts)
            # A tag may have begun at the last "<": that one stays in the window.
            begun = self.text.rfind("<", max(start, self.end - LONGEST_TAG), self.end)
            self.at = self.end if begun < 0 else begun
            parts.append(self.text[start : self.at])
            yield from self._wait()

    def object(self) -> Steps[str]:
        brace = yield from self.literal("{")
        return brace + (yield from self.rest_of_object())

    def rest_of_object(self) -> Steps[str]:
        """What follows the opening brace of a JSON object, up to its closing one. Follows brackets and strings only:
        the caller parses it."""
        closers = ["}"]
        parts: list[str] = []
        start = self.at
        pattern = _OUTSIDE
        while True:
            found = pattern.search(self.text, self.at, self.end)
            if found is None:
                self.at = self.end
                parts.append(self.text[start : self.at])
                yield from self._wait()
                start = self.at
                continue
            self.at = found.end()
            mark = found.group()
            if pattern is _ESCAPED:
                pattern = _INSIDE
            elif mark == '"':
                pattern = _INSIDE if pattern is _OUTSIDE else _OUTSIDE
            elif pattern is _INSIDE and mark == "\\":
                pattern = _ESCAPED
            elif pattern is _OUTSIDE and mark in "{[" and len(closers) < MAX_DEPTH:
                closers.append("}" if mark == "{" else "]")
            elif pattern is _OUTSIDE and mark == closers[-1]:
                closers.pop()
                if not closers:
                    parts.append(self.text[start : self.at])
                    return "".join(parts)
            else:
                self.at = found.start()
                raise Mismatch


Names = frozenset[str]

# Calls written as JSON

_KEYS = ('"name"', '"arguments"', '"parameters"', '"type"', '"id"')
QUOTE = re.compile('"')
_NOT_A_STRING = tuple("{[-0123456789tfn")


def call_object(reader: Reader, names: Names, opened: bool = False) -> Steps[Found]:
    """`{"name": …, "arguments": {…}}`. What cannot become one is seen at its first key or at its name, so that other
    JSON is not held back."""
    if not opened:
        yield from reader.literal("{")
    head = ["{", (yield from reader.blanks()), (yield from reader.literal(*_KEYS))]
    if head[-1] == '"name"':
        head += [(yield from reader.blanks()), (yield from reader.literal(":")), (yield from reader.blanks())]
        head += [(yield from reader.literal('"')), (yield from reader.word(QUOTE, names))]
        head += [(yield from reader.literal('"'))]
    rest = yield from reader.rest_of_object()
    name, arguments = _name_and_arguments("".join(head) + rest, names)
    return Found(name, arguments, reader.offset)


def call_objects(reader: Reader, names: Names) -> Steps[tuple[Found, ...]]:
    """One call object, or a list of them: all or none."""
    if (yield from reader.peek()) != "[":
        return ((yield from call_object(reader, names)),)
    yield from reader.literal("[")
    found: list[Found] = []
    separator = ","
    while separator == ",":
        yield from reader.blanks()
        found.append((yield from call_object(reader, names)))
        yield from reader.blanks()
        separator = yield from reader.literal(",", "]")
    return tuple(found)


def _name_and_arguments(text: str, names: Names) -> tuple[str, str]:
    members = _members(text)
    name, _ = members.pop("name", (None, ""))
    kind, _ = members.pop("type", ("function", ""))
    members.pop("id", None)
    if not isinstance(name, str) or name not in names or kind != "function" or len(members) != 1:
        raise Mismatch
    value, arguments = members.get("arguments") or members.get("parameters") or (None, "")
    return name, strict_object(value if isinstance(value, str) else arguments)


def _members(text: str) -> dict[str, tuple[Json, str]]:
    """The members of one JSON object, each with its value and the text of it."""
    members: dict[str, tuple[Json, str]] = {}
    at, separator = 1, ","
    try:
        while separator == ",":
            key, at = strict.raw_decode(text, _skip(text, at))
            at = _skip(text, at)
            start = _skip(text, at + 1)
            value, end = strict.raw_decode(text, start)
            if not isinstance(key, str) or text[at] != ":" or key in members:
                raise Mismatch
            members[key] = (value, text[start:end])
            at = _skip(text, end)
            separator = text[at]
            at += 1
    except (ValueError, IndexError, RecursionError):
        raise Mismatch from None
    if separator != "}" or at != len(text):
        raise Mismatch
    return members


def strict_object(text: str) -> str:
    parsed = parse_arguments(text) if text else None
    if parsed is None or parsed.arguments is None or parsed.notes:
        raise Mismatch
    return text


_NOT_BLANK = re.compile(r"[^ \t\r\n]|$")


def _skip(text: str, at: int) -> int:
    found = _NOT_BLANK.search(text, at)
    return found.start() if found else len(text)


# Calls written as keys and values


def write_arguments(pairs: dict[str, str]) -> str:
    """The text of an object, from its keys and the JSON texts of its values."""
    members = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in pairs.items())
    return strict_object("{" + ", ".join(members) + "}")


def add_pair(pairs: dict[str, str], key: str, value: str) -> None:
    if not key or key in pairs:
        raise Mismatch
    pairs[key] = value


def untyped(value: str) -> str:
    """The JSON text of a value whose form does not show its type.

    The templates write objects, lists, numbers, booleans and null as JSON and strings bare; servers look it up in the
    tool's schema. Here only names are known, so strict JSON of those kinds is parsed, and everything else is a string,
    also a text in quotes: a template would not have quoted it.
    """
    text = value.strip()
    if text[:1] in _NOT_A_STRING and _is_json(text):
        return text
    return json.dumps(value, ensure_ascii=False)


def typed(value: str, is_string: bool) -> str:
    """The JSON text of a value whose form shows whether it is a bare string or JSON."""
    if is_string:
        return json.dumps(value, ensure_ascii=False)
    if not _is_json(value.strip()):
        raise Mismatch
    return value.strip()


def _is_json(text: str) -> bool:
    if not shallow(text.encode("utf-8", "replace")):
        return False
    try:
        strict.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
