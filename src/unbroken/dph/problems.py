"""What can be wrong with a program: said with its place, the line itself and a caret. Errors of a program that cannot
be read (`InvalidProgram`) and of one that was stopped while it ran (`ProgramFailed`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unbroken.dph.source import Position
from unbroken.errors import UnbrokenError, UserError
from unbroken.messages import Usage

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
