"""Collects the mistakes in a configuration: one line each, with the line of the file or the option. `lines_of` finds
the lines, because `tomllib` does not report them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken_gateway.setting_types import ELSEWHERE

Where: TypeAlias = tuple[str | int, ...]
"""`("models", 1, "alias")`: a name in a table, a number in an array, as `tomllib` returns them."""


class Mistakes:
    def __init__(self, file: str = "", lines: Mapping[Where, int] | None = None) -> None:
        self.file = file
        self._lines = lines or {}
        self._options: dict[Where, str] = {}
        self._found: list[tuple[int, str]] = []
        self.added: dict[Where, str] = {}
        """Tables that do not come from the file, and what they are called."""
        self.models: dict[str, Where] = {}
        """The place of each alias's model in the file; empty if it came as an option."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def written_as(self, where: Where, option: str) -> None:
        """This value came as an option, even if the file has it too."""
        self._options[where] = option

    def beside(self, setting: str | None, path: str) -> str:
        """A path in the file is relative to the file's folder."""
        is_option = not self.file or option_of(setting or "") in self._options.values()
        return path if is_option else str(Path(self.file).parent / path)

    def note(self, where: Where, words: str, *, table: bool = True) -> None:
        """Notes a mistake in a table, or something missing. `table`: put the table's name before the text."""
        line = 0 if where in self._options else self._line(where)
        place = "" if where in self._options else f"{self.file}:{line}" if line else self.file
        name = table_name(where) if table else ""
        if where[:2] in self.added:
            place, name = "", self.added[where[:2]]
        self._found.append((line, ": ".join(part for part in (place, name, words) if part)))

    def note_value(self, where: Where, words: str) -> None:
        """Notes a mistake in the value of a key, or in an item of a list; the text follows its name."""
        if option := self._options.get(where):
            self.note_option(option, words.replace(ELSEWHERE, "put it into a variable, and use --api-key-env VARIABLE"))
        else:
            key = next(step for step in reversed(where) if isinstance(step, str))
            self.note(where, f"`{key}` {words}")

    def note_option(self, option: str, words: str) -> None:
        self._found.append((0, f"{option} {words}"))

    def raise_all(self) -> None:
        """Raises all mistakes as one error, in the order of the file; options come first."""
        if self._found:
            raise UserError("\n".join(words for _, words in sorted(self._found, key=lambda found: found[0])))

    def _line(self, where: Where) -> int:
        """The line of the key, or of its table; 0 if neither is found."""
        return next((line for end in range(len(where), 0, -1) if (line := self._lines.get(where[:end]))), 0)


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def table_name(where: Where) -> str:
    match where:
        case (str(table), int(), str(inner), int(at), *_):
            return f"[[{table}.{inner}]] {at + 1}"
        case (str(table), int(at), *_):
            return f"[[{table}]] {at + 1}"
        case (table, *_):
            return f"[{table}]"
        case _:
            return ""


_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # up to two quotes may precede the closing three
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}\n#]*")


def lines_of(text: str) -> dict[Where, int]:
    """The line, from 1, of each key and of the head of each table. The text is known to parse: if the scan fails, it
    stops and returns what it has found so far."""
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
        """How many tables each array of tables has so far."""

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
        """The name of an array of tables means its last table."""
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
