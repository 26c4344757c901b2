"""Compares two evaluations case by case: which cases got better or worse, beyond a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.errors import UserError
from unbroken_testing.evals.results import CaseResult, Evaluation
from unbroken_wires.messages import Json
from unbroken_wires.validation import checked

TOLERANCE = 0.05

Change: TypeAlias = Literal["worse", "better", "same", "new", "gone", "unknown"]
"""`unknown`: the case was not run, then or now, or its runs could not be made."""


@dataclass(frozen=True, slots=True)
class CaseChange:
    """How a case did then and now."""

    id: str
    change: Change
    before: CaseResult | None
    now: CaseResult | None
    edited: bool = False
    """The case itself is different: its prompt, or its scorers."""

    @property
    def words(self) -> str:
        """What changed, in one line."""
        if self.before is None:
            return f"`{self.id}` is new: {_state(self.now)}"
        if self.now is None:
            return f"`{self.id}` is gone; it was {_state(self.before)}"
        edited = "; the case itself was changed" if self.edited else ""
        return f"`{self.id}`: {_state(self.before)} before, {_state(self.now)} now{edited}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cases of both evaluations; those of the later one first, in its order."""

    changes: tuple[CaseChange, ...]
    tolerance: float = TOLERANCE

    def of(self, *changes: Change) -> list[CaseChange]:
        """The cases with one of these changes."""
        return [each for each in self.changes if each.change in changes]

    @property
    def worse(self) -> list[CaseChange]:
        """The cases that got worse."""
        return self.of("worse")

    @property
    def better(self) -> list[CaseChange]:
        """The cases that got better."""
        return self.of("better")

    def to_json(self) -> dict[str, Json]:
        """The ids by their change, and each case with both scores."""
        return {
            "tolerance": self.tolerance,
            "worse": [each.id for each in self.worse],
            "better": [each.id for each in self.better],
            "cases": [
                {
                    "id": each.id,
                    "change": each.change,
                    "edited": each.edited,
                    "before": _numbers(each.before),
                    "now": _numbers(each.now),
                }
                for each in self.changes
            ],
        }


@checked
def compare(before: Evaluation, now: Evaluation, *, tolerance: float = TOLERANCE) -> Comparison:
    """A case is worse if it passed before and does not now, or if its score fell by more than `tolerance`; better if
    the opposite is true."""
    if not 0 <= tolerance <= 1:
        raise UserError(f"tolerance={tolerance}: give a difference of scores, from 0 to 1")
    earlier = {case.id: case for case in before.cases}
    found = [_changed(earlier.pop(case.id, None), case, tolerance) for case in now.cases]
    gone = [CaseChange(id, "gone", case, None) for id, case in earlier.items()]
    return Comparison((*found, *gone), tolerance)


def _changed(before: CaseResult | None, now: CaseResult, tolerance: float) -> CaseChange:
    if before is None:
        return CaseChange(now.id, "new", None, now)
    edited = before.head.digest != now.head.digest
    return CaseChange(now.id, _change(before, now, tolerance), before, now, edited)


def _change(before: CaseResult, now: CaseResult, tolerance: float) -> Change:
    outcomes = (before.outcome, now.outcome)
    if not set(outcomes) <= {"passed", "failed"}:
        return "unknown"
    if before.outcome != now.outcome:
        return "better" if now.outcome == "passed" else "worse"
    difference = round(now.score - before.score, 9)
    return "same" if abs(difference) <= tolerance else "better" if difference > 0 else "worse"


def _state(case: CaseResult | None) -> str:
    if case is None:
        return "absent"
    flaky = " (flaky)" if case.flaky else ""
    return f"{case.outcome}{flaky}, score {case.score:.2f}" if case.made else case.outcome


def _numbers(case: CaseResult | None) -> Json:
    if case is None:
        return None
    return {"outcome": case.outcome, "score": case.score, "flaky": case.flaky}
