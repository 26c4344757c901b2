"""The text of a program, positions in it, and what can be wrong at a position.

A problem shows the line with a caret. `InvalidProgram` is raised for a program that cannot be read, `ProgramFailed` for
one that stopped while it ran.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unbroken.errors import UnbrokenError, UserError
from unbroken.messages import Usage


@dataclass(frozen=True, slots=True)
class Position:
    """Where something stands: line and column count from 1, and columns count characters."""

    file: str
    line: int
    column: int
    text: str = ""
    """The line itself."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def drawn(self, says: str = "") -> str:
        """The line with a caret below the place, and a word beside the caret."""
        text, column = self.text.translate(_VISIBLE), self.column - 1
        if len(text) > WIDEST:
            start = max(0, column - WIDEST // 2)
            text = f"{'…' if start else ''}{text[start : start + WIDEST]}…"
            column -= start - (1 if start else 0)
        below = "".join(_blank(character) for character in text[:column])
        return f"{self.line:>4} | {text}\n     | {below}^{f' {says}' if says else ''}"


WIDEST = 160
"""Characters that are shown of a long line."""
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) != "\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)
"""What a program says to a terminal is shown, and not done."""


def _blank(character: str) -> str:
    """As wide as the character, so that the caret stands where the eye looks for it."""
    if character == "\t":
        return "\t"
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return ""  # it has no width of its own
    return "  " if unicodedata.east_asian_width(character) in "WF" else " "


@dataclass(frozen=True, slots=True)
class Source:
    """A program as it was read. `name` is what errors call it, `path` where it lies, if it lies anywhere: programs
    that it calls are looked for beside it."""

    text: str
    name: str = "<program>"
    path: Path | None = None
    _starts: list[int] = field(default_factory=list[int], repr=False, compare=False)
    _lines: list[str] = field(default_factory=list[str], repr=False, compare=False)
    """All places in a line share its text."""

    def __post_init__(self) -> None:
        start = 0
        for line in self.text.split("\n"):
            self._starts.append(start)
            self._lines.append(line)
            start += len(line) + 1

    def place(self, at: int) -> Position:
        """Where a character stands, by its number from 0; beyond either end, the end is meant."""
        at = min(max(at, 0), len(self.text))
        line = bisect_right(self._starts, at)
        return Position(self.name, line, at - self._starts[line - 1] + 1, self._lines[line - 1])


TOLD = 20
"""Problems that an error tells; it has them all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong at one place. A warning leaves a program that can run, though hardly as it was meant."""

    place: Position
    message: str
    expected: str = ""
    kind: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}\n{self.place.drawn(self.expected)}"

    def to_json(self) -> dict[str, Any]:
        """For editors and CI: file, line and column apart; `text` is the whole line."""
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
    """A program that is not run: it cannot be read, or asks for what there is not. `problems` has them all, `warnings`
    what was found beside them and may explain them."""

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        more = f"\n… and {len(problems) - TOLD} more" if len(problems) > TOLD else ""
        super().__init__("\n".join(map(str, problems[:TOLD])) + more)
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)


class ProgramFailed(UnbrokenError):
    """A program stopped at one of its statements. `place` says where, `variables` what was set until then."""

    def __init__(self, place: Position, message: str, calls: Sequence[Position] = ()) -> None:
        trail = "".join(f"\n  called at {call}" for call in calls)
        super().__init__(f"{place}: {message}\n{place.drawn()}{trail}")
        self.place = place
        self.message = message
        self.calls = tuple(calls)
        """If it happened in a program that another called: from where, the innermost first."""
        self.variables: dict[str, Any] = {}
        """What was set until then."""
        self.usage = Usage()
        self.requests = 0
        """What was spent until then."""
