"""Reads text that arrives in pieces, token by token, and reads each character only a few times.

A grammar (`dialects`) is a generator over these tokens: it runs as far as the text goes, waits at a `yield`, and
continues with the next piece. Every token is either short, or consumed as it arrives; so little has to be read again,
whatever the pieces. It repairs nothing: what does not fit is a `Mismatch`, with the reader at the beginning of the
token that does not fit, the same place at any split of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from unbroken_wires.decoding.arguments import MAX_DEPTH

LONGEST_TAG = 64
"""No closing tag that `until` is asked for is longer."""

LONGEST_WORD = 256

_BLANKS = re.compile(r"[ \t\r\n]*")
_TAIL_BLANKS = 8

_ESCAPED = re.compile(r".", re.DOTALL)
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True, slots=True)
class Syntax:
    """How nested values are written. `outside` finds, outside strings, brackets, quotes and all that cannot stand
    there: so a tag that cuts a value short is seen where it stands, not at the end of the text. `inside` finds the end
    of a string, its escapes, and what it cannot contain, for each quote."""

    outside: re.Pattern[str]
    inside: dict[str, re.Pattern[str]]


JSON = Syntax(re.compile(r"[^ \t\r\n0-9:,.+\-Eaeflnrstu]"), {'"': re.compile(r'["\\\x00-\x1f]')})
PYTHON = Syntax(re.compile(r"[^ \t\r\n0-9A-Za-z_:,.+\-=]"), {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")})


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
        return self.follows(place, "\n")

    def follows(self, place: int, character: str) -> bool:
        return (self.text[place - 1] if place else self.before) == character

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

    def closing(self, *options: str) -> Steps[str]:
        """One of the options after any white space; or the end of the text, where what was read closes by itself: the
        decoder counts such a call only if the response ended well."""
        yield from self.blanks()
        if not (yield from self.peek()):
            return ""
        return (yield from self.literal(*options))

    def until(self, tag: re.Pattern[str], first: str = "<") -> Steps[str]:
        """Any text up to a tag, which is not taken. `first` is the character that the tag begins with."""
        parts: list[str] = []
        while True:
            start = self.at
            found = tag.search(self.text, start, self.end)
            if found:
                self.at = found.start()
                parts.append(self.text[start : self.at])
                return "".join(parts)
            # A tag may have begun at one of the last characters: they stay in the window.
            begun = self.text.find(first, max(start, self.end - LONGEST_TAG), self.end)
            self.at = self.end if begun < 0 else begun
            parts.append(self.text[start : self.at])
            yield from self._wait()

    def object(self) -> Steps[str]:
        brace = yield from self.literal("{")
        return brace + (yield from self.nested(brace))

    def nested(self, opened: str, syntax: Syntax = JSON) -> Steps[str]:
        """What follows an opening bracket or quote, up to its closing one. Follows brackets and strings only: the
        caller parses it."""
        quote = opened if opened in syntax.inside else ""
        pattern = syntax.inside[quote] if quote else syntax.outside
        closers: list[str] = [] if quote else [_CLOSERS[opened]]
        parts: list[str] = []
        start = self.at
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
                pattern = syntax.inside[quote]
            elif quote and mark == quote:
                pattern, quote = syntax.outside, ""
                if not closers:
                    parts.append(self.text[start : self.at])
                    return "".join(parts)
            elif quote and mark == "\\":
                pattern = _ESCAPED
            elif not quote and mark in syntax.inside:
                pattern, quote = syntax.inside[mark], mark
            elif not quote and mark in "{[" and len(closers) < MAX_DEPTH:
                closers.append(_CLOSERS[mark])
            elif not quote and mark == closers[-1]:
                closers.pop()
                if not closers:
                    parts.append(self.text[start : self.at])
                    return "".join(parts)
            else:
                self.at = found.start()
                raise Mismatch
