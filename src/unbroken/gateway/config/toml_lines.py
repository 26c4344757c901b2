"""Finds the line of each table and key in a TOML text. `tomllib` has parsed the text before, but does not report lines.

Nothing is validated here: if the scan fails, it stops, and what it has found so far counts.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from typing import TypeAlias

Where: TypeAlias = tuple[str | int, ...]
"""`("models", 1, "alias")`: by name in a table, by number in an array, as in what `tomllib` gives."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # up to two quotes stand before the three that end it
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}\n#]*")


def lines_of(text: str) -> dict[Where, int]:
    """The line, from 1, of each key and of the head of each table."""
    scan = _Scan(text)
    with suppress(_Lost, RecursionError):
        scan.read()
    return scan.found


class _Lost(Exception):
    pass


class _Scan:
    def __init__(self, text: str) -> None:
        self.found: dict[Where, int] = {}
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1
        self._tables: dict[Where, int] = {}
        """How many tables each array of tables has by now."""

    def read(self) -> None:
        table: Where = ()
        self._match(_BLANK)
        while self._at < len(self._text):
            line = self._here()
            if self._take("[["):
                *before, last = self._keys()
                array = (*self._resolved(before), last)
                number = self._tables[array] = self._tables.get(array, 0) + 1
                table = (*array, number - 1)
                self._note(table, line)
                self._expect("]]")
            elif self._take("["):
                table = self._resolved(self._keys())
                self._note(table, line)
                self._expect("]")
            else:
                self._pair(table)
            self._match(_BLANK)

    def _resolved(self, keys: list[str]) -> Where:
        """A name that stands for an array of tables means the last of them."""
        path: Where = ()
        for key in keys:
            path = (*path, key)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _pair(self, table: Where) -> None:
        line = self._here()
        path: Where = (*table, *self._keys())
        self._note(path, line, len(table))
        self._expect("=")
        self._match(_SPACE)
        self._value(path)

    def _value(self, path: Where) -> None:
        if self._take("["):
            self._array(path)
        elif self._take("{"):
            self._match(_BLANK)
            while not self._take("}"):
                self._pair(path)
                self._next()
        elif not self._match(_TEXT) and not self._match(_PLAIN):
            raise _Lost

    def _array(self, path: Where) -> None:
        self._match(_BLANK)
        number = 0
        while not self._take("]"):
            self._note((*path, number), self._here())
            self._value((*path, number))
            self._next()
            number += 1

    def _next(self) -> None:
        self._match(_BLANK)
        self._take(",")
        self._match(_BLANK)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while not keys or self._take("."):
            self._match(_SPACE)
            if self._text[self._at : self._at + 1] in ('"', "'"):
                keys.append(tomllib.loads(f"key = {self._match(_TEXT)}")["key"])
            elif key := self._match(_BARE):
                keys.append(key)
            else:
                raise _Lost
            self._match(_SPACE)
        return keys

    def _note(self, path: Where, line: int, known: int = 0) -> None:
        for end in range(known + 1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise _Lost
