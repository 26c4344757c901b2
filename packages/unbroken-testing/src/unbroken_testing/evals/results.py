"""What an evaluation found: each run of each case (`Trial`), all runs of one case (`CaseResult`), and all cases
(`Evaluation`). They are saved as JSON Lines and read again, for a comparison."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias, cast

from unbroken.errors import UserError
from unbroken_testing.evals.cases import Score
from unbroken_wires.messages import Json, Usage

RESULTS = "results.jsonl"
SCHEMA = 1

TrialOutcome: TypeAlias = Literal["passed", "failed", "error", "unavailable"]
"""`error`: the agent or a scorer raised. `unavailable`: the run could not be made, because the provider failed."""
CaseOutcome: TypeAlias = Literal["passed", "failed", "unavailable", "not run"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a run differs from the recorded one."""

    what: Literal["calls", "text", "ended", "rounds", "requests", "tokens in", "tokens out"]
    before: str
    now: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a case."""

    case: str
    number: int
    """Counted from 1."""
    outcome: TrialOutcome
    scores: tuple[Score, ...] = ()
    reason: str = ""
    """Why it did not pass, in one sentence."""
    text: str = ""
    """The answer."""
    calls: tuple[str, ...] = ()
    """As text: `book(seat=3)`."""
    stop_reason: str = ""
    rounds: int = 0
    requests: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    """None if it is not known."""
    seconds: float = 0.0
    recording: str = ""
    """The file of its recording, in the folder of the evaluation."""
    differences: tuple[Difference, ...] = ()
    """If a recording was run again: how the run differs from it."""

    @property
    def score(self) -> float:
        """The mean of its scores; 0 if there are none, because the run or a scorer failed."""
        return fmean(score.value for score in self.scores) if self.scores else 0.0

    def to_json(self) -> dict[str, Json]:
        """One line of the results."""
        scores: list[Json] = [
            {**asdict(score), "usage": score.usage.to_json(), "passed": score.passed} for score in self.scores
        ]
        return {
            "line": "trial",
            **{name: getattr(self, name) for name in _PLAIN},
            "score": self.score,
            "calls": list(self.calls),
            "usage": self.usage.to_json(),
            "scores": scores,
            "differences": [asdict(difference) for difference in self.differences],
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Trial:
        """Reads what `to_json` returned."""
        return cls(
            **{name: saved[name] for name in _PLAIN},
            calls=tuple(saved["calls"]),
            usage=Usage(**saved["usage"]),
            scores=tuple(_read_score(each) for each in saved["scores"]),
            differences=tuple(Difference(**each) for each in saved["differences"]),
        )


def _read_score(saved: Mapping[str, Any]) -> Score:
    value, reason, name, threshold = (saved[each] for each in ("value", "reason", "name", "threshold"))
    return Score(value, reason, name, threshold, Usage(**saved["usage"]), saved["cost"])


_PLAIN = (
    "case",
    "number",
    "outcome",
    "reason",
    "text",
    "stop_reason",
    "rounds",
    "requests",
    "cost",
    "seconds",
    "recording",
)


@dataclass(frozen=True, slots=True)
class CaseHead:
    """What a result keeps of the case itself."""

    id: str
    question: str
    tags: tuple[str, ...] = ()
    pass_rate: float = 1.0
    digest: str = ""
    """Changes if the case does."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case and its runs."""

    head: CaseHead
    trials: tuple[Trial, ...]

    @property
    def id(self) -> str:
        """As the case has it."""
        return self.head.id

    @property
    def made(self) -> tuple[Trial, ...]:
        """The runs that could be made: the provider answered."""
        return tuple(trial for trial in self.trials if trial.outcome != "unavailable")

    @property
    def passed_count(self) -> int:
        """How many runs passed."""
        return sum(trial.outcome == "passed" for trial in self.trials)

    @property
    def outcome(self) -> CaseOutcome:
        """`passed` if enough runs passed, as `pass_rate` asks for. `unavailable` if a run could not be made, and those
        that were made passed."""
        if not self.trials:
            return "not run"
        if self.made and self.passed_count < self.head.pass_rate * len(self.made) - 1e-9:
            return "failed"
        return "passed" if len(self.made) == len(self.trials) else "unavailable"

    @property
    def flaky(self) -> bool:
        """Some of its runs passed and others did not."""
        return 0 < self.passed_count < len(self.made)

    @property
    def score(self) -> float:
        """The mean over the runs that were made."""
        return fmean(trial.score for trial in self.made) if self.made else 0.0

    @property
    def reason(self) -> str:
        """Why the first of its runs that did not pass did not."""
        return next((trial.reason for trial in self.trials if trial.outcome != "passed"), "")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All cases with their runs, in the order of the cases."""

    heads: tuple[CaseHead, ...]
    trials: tuple[Trial, ...]
    """In the order in which they ended."""
    repeat: int = 1
    agent: str = ""
    model: str = ""
    time: float = 0.0
    """When it began, in seconds since the epoch."""
    recordings: str = ""
    """The folder of recordings that were run again; empty if cases were evaluated."""
    folder: Path | None = None
    """Where it is saved."""

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        """One for each case, with its runs by number."""
        found: dict[str, list[Trial]] = {head.id: [] for head in self.heads}
        for trial in self.trials:
            found[trial.case].append(trial)
        by_number = {id: tuple(sorted(trials, key=lambda trial: trial.number)) for id, trials in found.items()}
        return tuple(CaseResult(head, by_number[head.id]) for head in self.heads)

    @property
    def passed(self) -> bool:
        """Whether every case was run and passed."""
        return self.complete and all(case.outcome == "passed" for case in self.cases)

    @property
    def complete(self) -> bool:
        """Whether all runs have ended: it was not interrupted."""
        return len(self.trials) == len(self.heads) * self.repeat

    @property
    def score(self) -> float:
        """The mean score of the cases that were run."""
        scored = [case.score for case in self.cases if case.made]
        return fmean(scored) if scored else 0.0

    @property
    def usage(self) -> Usage:
        """Tokens of all runs, without those of judges."""
        return _sum([trial.usage for trial in self.trials])

    @property
    def cost(self) -> float | None:
        """Of all runs, without that of judges. None if it is not known of one of them."""
        return _sum([replace(trial.usage, cost=trial.cost) for trial in self.trials]).cost

    @property
    def judge_usage(self) -> Usage:
        """Tokens that scorers used."""
        return _sum([score.usage for trial in self.trials for score in trial.scores])

    @property
    def judge_cost(self) -> float | None:
        """What the judges cost. None if it is not known of one of them."""
        return _sum([replace(score.usage, cost=score.cost) for trial in self.trials for score in trial.scores]).cost

    def to_json(self) -> dict[str, Json]:
        """Everything, with the cases and their outcomes."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _OF_EVALUATION},
            "passed": self.passed,
            "complete": self.complete,
            "score": self.score,
            "usage": self.usage.to_json(),
            "cost": self.cost,
            "judge_usage": self.judge_usage.to_json(),
            "judge_cost": self.judge_cost,
            "folder": None if self.folder is None else str(self.folder),
            "cases": [
                {
                    **asdict(case.head),
                    "outcome": case.outcome,
                    "flaky": case.flaky,
                    "score": case.score,
                    "passed": case.passed_count,
                    "reason": case.reason,
                    "trials": [
                        {name: value for name, value in trial.to_json().items() if name not in ("line", "case")}
                        for trial in case.trials
                    ],
                }
                for case in self.cases
            ],
        }

    def head_line(self) -> dict[str, Json]:
        """The first line of the results; one for each run follows."""
        return {
            "line": "evaluation",
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _OF_EVALUATION},
            "cases": [asdict(head) for head in self.heads],
        }


_OF_EVALUATION = ("agent", "model", "time", "repeat", "recordings")
"""The fields of an `Evaluation` that are saved as they are."""


def _sum(usages: Sequence[Usage]) -> Usage:
    return reduce(lambda one, other: one + other, usages, Usage())


def read_evaluation(folder: str | os.PathLike[str]) -> Evaluation:
    """Reads the results in a folder that an evaluation wrote (`--out`), even if it was interrupted."""
    path = Path(folder)
    file = path if path.is_file() else path / RESULTS
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        why = "it has no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise UserError(f"{path} cannot be read as the result of an evaluation ({RESULTS}): {why}") from None
    head: dict[str, Any] | None = None
    trials: list[Trial] = []
    for number, raw in enumerate(lines, 1):
        try:
            line = cast("dict[str, Any]", json.loads(raw))
            if head is None:
                head = _read_head(line)
            else:
                trials.append(Trial.from_json(line))
        except UserError as error:
            raise UserError(f"{file}, line {number}: {error}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines) and head is not None:
                break  # the process died while it wrote this line
            raise UserError(f"{file}, line {number} is not one that an evaluation writes: {error!r}") from None
    if head is None:
        raise UserError(f"{file} is empty: the evaluation did not begin")
    known = {each["id"] for each in head["cases"]}
    return Evaluation(
        tuple(
            CaseHead(each["id"], each["question"], tuple(each["tags"]), each["pass_rate"], each["digest"])
            for each in head["cases"]
        ),
        tuple(trial for trial in trials if trial.case in known),
        **{name: head[name] for name in _OF_EVALUATION},
        folder=file.parent,
    )


def _read_head(line: dict[str, Any]) -> dict[str, Any]:
    if line["line"] != "evaluation":
        raise ValueError("the first line is not that of an evaluation")
    if line["schema"] > SCHEMA:
        raise UserError(f"it was written by a newer version (schema {line['schema']}): update unbroken")
    return line
