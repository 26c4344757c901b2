"""`evaluate`: runs cases, several at the same time, scores each run, and writes down what it finds as it happens."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from unbroken.agent.agent import Agent
from unbroken.agent.result import Result
from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError, UserError
from unbroken.middleware import Middleware
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken_testing.evals.case_files import read_cases
from unbroken_testing.evals.cases import PROVIDER_FAILED, Case, Score, ScorerFailed, digest_of, short_name
from unbroken_testing.evals.results import RESULTS, CaseHead, Evaluation, Trial
from unbroken_testing.evals.scorers import call_text, made_calls, scorers_of
from unbroken_wires.validation import checked

AT_ONCE = 4
RECORDINGS = "recordings"
_ODD = re.compile(r"[^\w.-]", re.ASCII)

MakesAgent: TypeAlias = Agent[Any, Any] | Callable[[], Agent[Any, Any]]
"""An agent for all runs, or a function that makes one for each."""
OnTrial: TypeAlias = Callable[[Trial, int, int], None]
"""Called when a run has ended, with the number of runs that have, and of all."""


class TookAnotherCourse(UnbrokenError):
    """A run that answers from a recording made a call that the recording does not have."""


class Course(Middleware):
    """Middleware for one run, which adds to the trial how the run differs from an earlier one."""

    def complete(self, trial: Trial) -> Trial:
        """The trial with the differences."""
        return trial


@dataclass(frozen=True, slots=True)
class Options:
    """How cases are run."""

    repeat: int = 1
    at_once: int = AT_ONCE
    pass_rate: float = 1.0
    timeout: float | None = None
    out: Path | None = None
    on_trial: OnTrial | None = None

    def __post_init__(self) -> None:
        for name in ("repeat", "at_once"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: give a number from 1 on")
        if not 0 < self.pass_rate <= 1:
            raise UserError(f"pass_rate={self.pass_rate}: give a share above 0 and at most 1")


@checked
async def evaluate(
    agent: MakesAgent,
    cases: Iterable[Case] | str | os.PathLike[str],
    *,
    repeat: int = 1,
    at_once: int = AT_ONCE,
    pass_rate: float = 1.0,
    timeout: float | None = None,
    out: str | os.PathLike[str] | None = None,
    on_trial: Callable[..., Any] | None = None,
) -> Evaluation:
    """Runs each case `repeat` times, up to `at_once` runs at the same time, and scores them.

    - `agent`: an agent, or a function that makes a new one for each run.
    - `cases`: the cases, or the name of a file of them.
    - `pass_rate`: the share of the runs of a case that must pass.
    - `timeout`: seconds for each run, unless its case has its own.
    - `out`: a new folder for the results and the recordings. Without it nothing is written.
    - `on_trial`: called after each run with the `Trial`, the number of runs that have ended, and of all.
    """
    found = read_cases(cases) if isinstance(cases, str | os.PathLike) else list(cases)
    options = Options(repeat, at_once, pass_rate, timeout, None if out is None else Path(out), on_trial)
    return await Evaluator(agent, found, options).run()


class Evaluator:
    """One evaluation. `so_far` is its result at any time, also after it was cancelled."""

    def __init__(
        self,
        agent: MakesAgent,
        cases: Sequence[Case],
        options: Options,
        courses: Callable[[Case], Course] | None = None,
        recordings: str = "",
    ) -> None:
        refuse_duplicates(cases)
        self._shared = cast("Agent[Any, Any]", agent) if isinstance(agent, Agent) else None
        self._make = None if isinstance(agent, Agent) else agent
        self._cases = cases
        self._options = options
        self._courses = courses
        self._recordings = recordings
        self._scorers = {case.id: scorers_of(case) for case in cases}
        self._trials: list[Trial] = []
        self._began = 0.0
        self._name = self._model = ""
        self._results: IO[str] | None = None
        self._redactor = Redactor(secrets_in_environment())
        if self._shared is not None:
            self._know(self._shared)

    @property
    def total(self) -> int:
        return len(self._cases) * self._options.repeat

    def so_far(self) -> Evaluation:
        """What is known by now."""
        heads = tuple(
            CaseHead(
                case.id,
                self._redactor.text(case.question),
                tuple(case.tags),
                self._options.pass_rate if case.pass_rate is None else case.pass_rate,
                digest_of(case, self._scorers[case.id]),
            )
            for case in self._cases
        )
        return Evaluation(
            heads,
            tuple(self._trials),
            self._options.repeat,
            self._name,
            self._model,
            self._began,
            self._recordings,
            self._options.out,
        )

    async def run(self) -> Evaluation:
        self._began = current_clock().now()
        work = ((case, number) for number in range(1, self._options.repeat + 1) for case in self._cases)
        with ExitStack() as stack:
            if self._options.out is not None:
                self._results = stack.enter_context(_open(self._options.out))
            if self._shared is not None:
                async with self._shared:
                    await self._work(work)
            else:
                await self._work(work)
        return self.so_far()

    async def _work(self, work: Iterator[tuple[Case, int]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._options.at_once, self.total)):
                    group.create_task(self._worker(work))
        except BaseExceptionGroup as failed:  # the results cannot be written, or `on_trial` raised
            raise failed.exceptions[0] from None

    async def _worker(self, work: Iterator[tuple[Case, int]]) -> None:
        for case, number in work:
            trial = await self._trial(case, number)
            self._note(_masked(trial, self._redactor) if self._redactor else trial)

    def _note(self, trial: Trial) -> None:
        if self._results is not None:
            if not self._trials:  # now the agent is known, even if a function makes it
                _write(self._results, self.so_far().head_line())
            _write(self._results, trial.to_json())
        self._trials.append(trial)
        if self._options.on_trial is not None:
            self._options.on_trial(trial, len(self._trials), self.total)

    def _know(self, agent: Agent[Any, Any]) -> None:
        self._name, self._model = agent.name, agent.model.name
        secrets: Iterable[str] = getattr(agent.model, "secrets", ())
        if not self._redactor.covers(secrets):
            self._redactor = Redactor((*self._redactor.given, *secrets))

    async def _trial(self, case: Case, number: int) -> Trial:
        """Runs a case once. Never raises, except when it is cancelled."""
        name = f"{file_name(case.id)}-{number}.jsonl"
        recording = f"{RECORDINGS}/{name}" if self._options.out is not None else ""
        sinks: list[Middleware] = [Recorder(self._options.out / RECORDINGS / name)] if self._options.out else []
        course = Course() if self._courses is None else self._courses(case)
        trial = Trial(case.id, number, "failed", recording=recording)
        try:
            result = await self._run(case, sinks, course)
        except _TooLong as error:
            return replace(course.complete(trial), reason=str(error), seconds=error.seconds)
        except TookAnotherCourse as error:
            return replace(course.complete(trial), reason=str(error))
        except PROVIDER_FAILED as error:
            return replace(trial, outcome="unavailable", reason=_sentence(error))
        except Exception as error:  # noqa: BLE001 - the agent's own code runs here; the other cases continue
            return replace(trial, outcome="error", reason=f"the run failed: {_sentence(error)}")
        return await self._scored(course.complete(_with_result(trial, result)), case, result)

    async def _run(self, case: Case, sinks: list[Middleware], course: Course) -> Result[Any]:
        limit = self._options.timeout if case.timeout is None else case.timeout
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                if self._make is None:
                    return await _ask(cast("Agent[Any, Any]", self._shared), case, sinks, course)
                agent = self._make()
                if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's function
                    raise UserError(f"the function that makes the agent returned {type(agent).__name__}, not an Agent")
                self._know(agent)
                async with agent:
                    return await _ask(agent, case, sinks, course)
        except TimeoutError:
            if timer.expired() and limit is not None:
                raise _TooLong(limit) from None
            raise

    async def _scored(self, trial: Trial, case: Case, result: Result[Any]) -> Trial:
        scores: list[Score] = []
        try:
            for scorer in self._scorers[case.id]:
                scores.append(await scorer.score(case, result))
        except ScorerFailed as error:
            return replace(trial, outcome="error", reason=str(error))
        except PROVIDER_FAILED as error:
            return replace(trial, outcome="unavailable", reason=f"scoring failed: {_sentence(error)}")
        failed = [score for score in scores if not score.passed]
        reason = "; ".join(_why(score) for score in failed)
        return replace(trial, outcome="failed" if failed else "passed", scores=tuple(scores), reason=reason)


class _TooLong(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"the run took longer than {seconds:g} s")
        self.seconds = seconds


async def _ask(agent: Agent[Any, Any], case: Case, sinks: list[Middleware], course: Course) -> Result[Any]:
    agent = copy(agent)
    middleware = (*agent.settings.middleware, course)  # innermost: the checks that the agent has now see each call
    agent.settings = replace(agent.settings, middleware=middleware)
    return await agent.run(case.prompt or None, history=case.messages, limits=case.limits, sinks=sinks)


def _with_result(trial: Trial, result: Result[Any]) -> Trial:
    return replace(
        trial,
        text=result.text,
        calls=tuple(call_text(call.name, call.arguments) for call in made_calls(result)),
        stop_reason=result.stop_reason,
        rounds=result.rounds,
        requests=result.requests,
        usage=replace(result.usage, raw={}),
        cost=result.cost,
        seconds=round(result.seconds, 3),
    )


def _masked(trial: Trial, redactor: Redactor) -> Trial:
    """The trial without secrets, as in its recording."""
    text = redactor.text
    differences = [replace(each, before=text(each.before), now=text(each.now)) for each in trial.differences]
    return replace(
        trial,
        text=text(trial.text),
        reason=text(trial.reason),
        calls=tuple(map(text, trial.calls)),
        scores=tuple(replace(score, reason=text(score.reason), name=text(score.name)) for score in trial.scores),
        differences=tuple(each for each in differences if each.before != each.now),
    )


def _why(score: Score) -> str:
    name = short_name(score.name)
    value = f" ({score.value:.2f}, needs {score.threshold:.2f})" if 0 < score.value < 1 else ""
    return f"{name}{value}: {score.reason or 'no'}"


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def refuse_duplicates(cases: Sequence[Case]) -> None:
    """Raises `UserError` if there are no cases, or two with one id."""
    if not cases:
        raise UserError("there are no cases to evaluate")
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise UserError(f"two cases have the id `{case.id}`: give each case its own")
        seen.add(case.id)


def file_name(id: str) -> str:
    """The id of a case as a part of a file's name; two ids never have the same."""
    name = _ODD.sub("_", id)[:80]
    if name == id and not name.startswith("."):
        return name
    return f"case-{name}-{hashlib.sha1(id.encode('utf-8', 'replace'), usedforsecurity=False).hexdigest()[:8]}"


def _open(folder: Path) -> IO[str]:
    """The file of the results. The folder must have none yet: an earlier result is never overwritten."""
    try:
        (folder / RECORDINGS).mkdir(parents=True, exist_ok=True)
        return (folder / RESULTS).open("x", encoding="utf-8")
    except FileExistsError as error:
        if (folder / RESULTS).exists():
            raise UserError(f"{folder} has the results of an earlier evaluation: name another folder") from None
        raise UserError(f"{error.filename} is a file and no folder: name another folder") from None
    except OSError as error:
        raise UserError(f"writing results to {folder} failed: {error.strerror or error}") from None


def _write(file: IO[str], line: dict[str, Any]) -> None:
    try:
        file.write(json.dumps(line, ensure_ascii=True) + "\n")
        file.flush()
    except OSError as error:
        raise UserError(f"writing results to {file.name} failed: {error.strerror or error}") from None
