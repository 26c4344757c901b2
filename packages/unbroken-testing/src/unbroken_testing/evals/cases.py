"""A case: a prompt and the scorers that judge the answer. A scorer is a function of the case and the result of its run;
it returns a score from 0 to 1."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from unbroken.agent.limits import Limits
from unbroken.agent.prompts import Prompt, to_user
from unbroken.agent.result import Result
from unbroken.errors import ProviderError, RecordingFailed, StreamError, UserError
from unbroken_wires.messages import Json, Message, Usage, User
from unbroken_wires.transcript import to_json
from unbroken_wires.validation import checked

ExpectedCall: TypeAlias = str | Mapping[str, Mapping[str, Json]]
"""The name of a tool, or its name with the arguments that the call must have: `{"book": {"seat": 3}}`. It may have
others."""

PROVIDER_FAILED = (ProviderError, StreamError, RecordingFailed)
"""Errors that say nothing about the agent: the run, or its score, could not be made."""

_ROUNDING = 1e-9
_LONGEST_NAME = 80


@checked
@dataclass(frozen=True, slots=True)
class Score:
    """From 0 to 1, and the reason for it. A scorer may return one; `name` and `threshold` are those of the scorer."""

    value: float
    reason: str = ""
    name: str = ""
    threshold: float = 1.0
    usage: Usage = field(default_factory=Usage)
    """What the scorer itself used, if it asked a model."""
    cost: float | None = None
    """What that cost. None if it is not known."""

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise UserError(f"Score({self.value}): a score is from 0 to 1")

    @property
    def passed(self) -> bool:
        """Whether the value reaches the threshold."""
        return self.value >= self.threshold - _ROUNDING


class ScorerFailed(Exception):
    """A scorer raised an error, or returned something that is not a score."""


ScoreFunction: TypeAlias = Callable[["Case", Result[Any]], Any]
"""Returns a `Score`, a number from 0 to 1, True or False, or a number and a reason; it may be async."""


@checked
class Scorer:
    """A scoring function with a name and the score from which it passes. Give it a function of yours if the function
    returns numbers between 0 and 1: `Scorer(similarity, threshold=0.8)`."""

    def __init__(self, function: Callable[..., Any], *, name: str = "", threshold: float = 1.0) -> None:
        if not 0 <= threshold <= 1:
            raise UserError(f"Scorer(threshold={threshold}): a threshold is from 0 to 1")
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.threshold = threshold

    def __repr__(self) -> str:
        return f"Scorer({self.name})"

    async def score(self, case: Case, result: Result[Any]) -> Score:
        """Calls the function; a plain one in a thread, because it may take long. The errors of
        `PROVIDER_FAILED` are passed on, every other one becomes `ScorerFailed`."""
        try:
            if inspect.iscoroutinefunction(self.function):
                given: Any = await self.function(case, result)
            else:
                given = await asyncio.to_thread(self.function, case, result)
                if inspect.isawaitable(given):
                    given = await given
            return self._score(given)
        except PROVIDER_FAILED:
            raise
        except Exception as error:
            words = str(error) if isinstance(error, ScorerFailed) else f"raised {type(error).__name__}: {error}"
            raise ScorerFailed(f"scorer `{short_name(self.name)}` {words}") from error

    def _score(self, given: Any) -> Score:
        if isinstance(given, Score):
            return replace(given, name=given.name or self.name, threshold=self.threshold)
        value, reason = cast("tuple[Any, Any]", given) if _is_pair(given) else (given, "")
        if not isinstance(value, int | float) or math.isnan(value) or not 0 <= value <= 1:
            raise ScorerFailed(f"returned {value!r}: a score is a number from 0 to 1, True, False, or a Score")
        return Score(float(value), str(reason), self.name, self.threshold)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(cast("tuple[Any, ...]", given)) == 2


@checked
@dataclass(frozen=True, slots=True)
class Case:
    """What the agent is asked, and how its answer is scored. Without `scorers` and `tools` a case passes if the run
    ends with an answer."""

    id: str
    prompt: Prompt = ""
    scorers: Sequence[Scorer | Callable[..., Any]] = ()
    messages: Sequence[Message] = ()
    """Earlier messages; the prompt follows them. Without a prompt, the last of them is what is answered."""
    tools: Sequence[ExpectedCall] = ()
    """Calls that the run must make, in this order: short for `called(…)` among the scorers."""
    tags: Sequence[str] = ()
    timeout: float | None = None
    """Seconds after which the run is cancelled and has failed."""
    limits: Limits | None = None
    """In place of the agent's limits."""
    pass_rate: float | None = None
    """The share of repeated runs that must pass, if it is not that of the evaluation."""

    def __post_init__(self) -> None:
        if not self.id.strip():
            raise UserError("a case has an empty id: give each case a short name")
        if self.pass_rate is not None and not 0 < self.pass_rate <= 1:
            raise UserError(f"case `{self.id}`: pass_rate={self.pass_rate} is not above 0 and at most 1")
        if self.timeout is not None and self.timeout <= 0:
            raise UserError(f"case `{self.id}`: timeout={self.timeout} is not a number of seconds")
        if not self.prompt and not self.messages:
            raise UserError(f"case `{self.id}` has nothing to answer: give it a prompt, or messages")

    @property
    def question(self) -> str:
        """The text of the prompt, or of the last message of the user."""
        if self.prompt:
            return to_user(self.prompt).text
        return next((message.text for message in reversed(self.messages) if isinstance(message, User)), "")


def short_name(scorer: str) -> str:
    """The name of a scorer in a reason: that of a judge is its rubric, which may be long."""
    return scorer if len(scorer) <= _LONGEST_NAME else f"{scorer[: _LONGEST_NAME - 1]}…"


def as_scorer(given: Scorer | Callable[..., Any]) -> Scorer:
    return given if isinstance(given, Scorer) else Scorer(given)


def digest_of(case: Case, scorers: Sequence[Scorer]) -> str:
    """Changes with what is asked and with the names and thresholds of the scorers: a comparison then reports that
    the case itself was changed."""
    asked = to_json([*case.messages, *([to_user(case.prompt)] if case.prompt else [])])
    told = repr((asked, [(scorer.name, scorer.threshold) for scorer in scorers]))
    return hashlib.sha1(told.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]
