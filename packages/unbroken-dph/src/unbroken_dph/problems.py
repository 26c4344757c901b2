"""The text of a program, positions in it, and the problems found at a position.

A problem shows the line with a caret. `InvalidProgram` is raised for a program that cannot be parsed or checked,
`ProgramFailed` for one that stopped while it ran.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unbroken.errors import UnbrokenError, UserError
from unbroken_wires.messages import Usage


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a program: line and column count from 1; columns count characters."""

    file: str
    line: int
    column: int
    text: str = ""
    """The line itself."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def drawn(self, note: str = "") -> str:
        """The line with a caret below the column, and a note beside the caret."""
        text, column = self.text.translate(_VISIBLE), self.column - 1
        if len(text) > WIDEST:
            start = max(0, column - WIDEST // 2)
            text = f"{'…' if start else ''}{text[start : start + WIDEST]}…"
            column -= start - (1 if start else 0)
        below = "".join(_blank(character) for character in text[:column])
        return f"{self.line:>4} | {text}\n     | {below}^{f' {note}' if note else ''}"


WIDEST = 160
"""Characters of a long line that are shown."""
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) != "\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)
"""Makes control characters visible, so that they cannot control the terminal."""


def _blank(character: str) -> str:
    """Spaces as wide as the character, so that the caret is in the right column."""
    if character == "\t":
        return "\t"
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return ""  # it has no width
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a program. `name` is used in errors; `path` is its file, if it has one: programs that it calls are
    searched in the same folder."""

    text: str
    name: str = "<program>"
    path: Path | None = None
    _starts: list[int] = field(default_factory=list[int], repr=False, compare=False)
    _lines: list[str] = field(default_factory=list[str], repr=False, compare=False)
    """All positions in a line share its text."""

    def __post_init__(self) -> None:
        start = 0
        for line in self.text.split("\n"):
            self._starts.append(start)
            self._lines.append(line)
            start += len(line) + 1

    def place(self, at: int) -> Position:
        """The position of a character, counted from 0; values beyond the text are clamped."""
        at = min(max(at, 0), len(self.text))
        line = bisect_right(self._starts, at)
        return Position(self.name, line, at - self._starts[line - 1] + 1, self._lines[line - 1])


SHOWN = 20
"""Problems that the message of an error lists; `problems` has them all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem at one position. A program with only warnings can run, but probably not as intended."""

    place: Position
    message: str
    expected: str = ""
    kind: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}\n{self.place.drawn(self.expected)}"

    def to_json(self) -> dict[str, Any]:
        """For editors and CI: file, line and column as separate fields; `text` is the complete line."""
        return {
            "kind": self.kind,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "message": self.message,
            "expected": self.expected,
            "text": self.place.text,
        }


class InvalidProgram(UserError):
    """A program that is not run: it cannot be parsed, or uses something that does not exist. `problems` has all
    problems, `warnings` what was found besides and may explain them."""

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        more = f"\n… and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        super().__init__("\n".join(map(str, problems[:SHOWN])) + more)
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)


class ProgramFailed(UnbrokenError):
    """A program stopped at one of its statements: `place` is the position, `variables` what was set so far."""

    def __init__(self, place: Position, message: str, calls: Sequence[Position] = ()) -> None:
        trail = "".join(f"\n  called at {call}" for call in calls)
        super().__init__(f"{place}: {message}\n{place.drawn()}{trail}")
        self.place = place
        self.message = message
        self.calls = tuple(calls)
        """If it happened in a program that was called by another: the positions of the calls, the innermost first."""
        self.variables: dict[str, Any] = {}
        """The variables that were set so far."""
        self.usage = Usage()
        self.requests = 0
        """The requests made so far; `usage` has their tokens."""
