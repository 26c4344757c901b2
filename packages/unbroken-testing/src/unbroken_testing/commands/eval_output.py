"""Prints an evaluation: its progress on standard error, then a table on a terminal, or plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from unbroken.run_view import shown_cost
from unbroken_cli.exits import print_line
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean, clean_line, counted, one_line, seconds, tokens_used
from unbroken_testing.evals.comparing import Comparison
from unbroken_testing.evals.report import diff_lines
from unbroken_testing.evals.results import CaseResult, Evaluation, Trial
from unbroken_wires.messages import Usage

_STYLES = {"passed": "green", "failed": "red", "error": "red", "unavailable": "yellow", "not run": "dim"}
_MARKS = {"passed": "green", "better": "green", "worse": "red"}
_LONGEST = 500
"""Characters of a reason."""
_DIFF_LINES = 24
"""Lines of one difference; the report has the rest."""
_HEAD = ("case", "outcome", "score", "passed", "calls", "tokens", "seconds")


class Progress:
    """Which runs have ended. On a terminal: a line that changes, and one for each run that did not pass. In a pipe: one
    line for each run."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._bad = 0

    @contextmanager
    def shown(self, total: int) -> Generator[None]:
        if not is_terminal(sys.stderr):
            yield
            return
        with self._console.status(f"0 of {counted(total, 'run')}") as self._status:
            yield

    def ended(self, trial: Trial, done: int, total: int) -> None:
        """A run has ended."""
        why = f": {one_line(trial.reason, _LONGEST)}" if trial.reason else ""
        line = f"{clean_line(trial.case)}, run {trial.number}: {trial.outcome}{why}"
        self._bad += trial.outcome != "passed"
        if self._status is None:
            print_line(f"{done} of {total}: {line}")
            return
        if trial.outcome != "passed":
            self._console.print(Text(line, _STYLES[trial.outcome]), soft_wrap=True)
        bad = f" · {self._bad} did not pass" if self._bad else ""
        self._status.update(f"{done} of {counted(total, 'run')}{bad}")


def print_evaluation(evaluation: Evaluation, comparison: Comparison | None, page: Path | None) -> None:
    """On standard output: the cases, why some did not pass, what differs, and the sums."""
    cases = evaluation.cases
    if is_terminal(sys.stdout):
        Console(highlight=False).print(_table(cases))
    else:
        for row in (_HEAD, *map(_cells, cases)):
            _line("\t".join(row))
    for case in cases:
        if case.outcome != "passed" or case.flaky:
            state = f"{case.outcome}, flaky" if case.flaky else case.outcome
            _line(f"{clean_line(case.id)} ({state}): {one_line(case.reason or 'it was not run', _LONGEST)}")
    if evaluation.recordings:
        for case in cases:
            for trial in case.trials:
                _differences(trial)
    _line(_sums(evaluation, cases))
    if comparison is not None:
        _compared(comparison)
    if page is not None:
        _line(f"report: {page}")


def _line(text: str) -> None:
    typer.echo(clean(text))


def _cells(case: CaseResult) -> tuple[str, ...]:
    made = case.made
    count = len(made) or 1
    numbers = (
        f"{case.score:.2f}",
        f"{case.passed_count}/{len(case.trials)}",
        f"{sum(len(trial.calls) for trial in made) / count:.3g}",
        f"{sum(trial.usage.total_tokens for trial in made) // count:,}",
        f"{sum(trial.seconds for trial in made) / count:.2f}",
    )
    state = f"{case.outcome}, flaky" if case.flaky else case.outcome
    return clean_line(case.id), state, *(numbers if made else ("-", f"0/{len(case.trials)}", "-", "-", "-"))


def _table(cases: Sequence[CaseResult]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(_HEAD):
        right = place > 1
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold", header_style="dim")
    for case in cases:
        id, state, *numbers = _cells(case)
        style = "yellow" if case.flaky else _STYLES[case.outcome]
        table.add_row(Text(id), Text(state, style), *numbers)
    return table


def _differences(trial: Trial) -> None:
    name = f"{clean_line(trial.case)}, run {trial.number}" if trial.number > 1 else clean_line(trial.case)
    if not trial.differences:
        if trial.outcome == "passed":
            _line(f"{name}: no difference")
        return
    numbers = [each for each in trial.differences if each.what not in ("calls", "text")]
    told = ", ".join(f"{each.what} {each.before} → {each.now}" for each in numbers)
    named = [each.what for each in trial.differences if each.what in ("calls", "text")]
    verb = "differs" if named == ["text"] else "differ"
    what = f"{' and '.join(named)} {verb}" if named else "calls and text are the same"
    _line(f"{name}: {what}{f'; {told}' if told else ''}")
    for each in trial.differences:
        if each.what in ("calls", "text"):
            lines = diff_lines(each)
            for line in lines[:_DIFF_LINES]:
                _line(f"  {one_line(line, 200)}")
            if len(lines) > _DIFF_LINES:
                _line(f"  … {len(lines) - _DIFF_LINES} more lines; the report has them")


def _sums(evaluation: Evaluation, cases: Sequence[CaseResult]) -> str:
    passed = sum(case.outcome == "passed" for case in cases)
    total = sum(trial.seconds for trial in evaluation.trials)
    words = [
        f"{passed} of {counted(len(cases), 'case')} passed",
        f"score {evaluation.score:.2f}",
        counted(len(evaluation.trials), "run"),
        _tokens(evaluation.usage),
        f"cost {shown_cost(evaluation.cost)}" if evaluation.cost is not None else "",
        seconds(total),
    ]
    if flaky := [clean_line(case.id) for case in cases if case.flaky]:
        words.append(f"flaky: {', '.join(flaky)}")
    if evaluation.judge_usage.total_tokens:
        cost = f", cost {shown_cost(evaluation.judge_cost)}" if evaluation.judge_cost is not None else ""
        words.append(f"judges: {_tokens(evaluation.judge_usage)}{cost}")
    return " · ".join(filter(None, words))


def _tokens(usage: Usage) -> str:
    if not usage.total_tokens:
        return ""
    return f"{'about ' if usage.estimated else ''}{tokens_used(usage.input_tokens, usage.output_tokens)}"


def _compared(comparison: Comparison) -> None:
    worse, better = comparison.worse, comparison.better
    _line(f"compared: {len(worse)} worse, {len(better)} better, {len(comparison.of('same'))} the same")
    console = Console(highlight=False) if is_terminal(sys.stdout) else None
    for change in (*worse, *better, *comparison.of("new", "gone", "unknown")):
        text = f"{change.change}: {one_line(change.words, _LONGEST)}"
        if console is None:
            _line(text)
        else:
            console.print(Text(text, _MARKS.get(change.change, "dim")), soft_wrap=True)
