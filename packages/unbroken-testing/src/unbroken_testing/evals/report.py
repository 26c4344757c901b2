"""The report of an evaluation as one HTML page that needs nothing else: no script, and only its own style, by its
hash."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import unified_diff
from html import escape
from pathlib import Path
from urllib.parse import quote

from unbroken.errors import UserError
from unbroken.run_view import counted, shown_cost
from unbroken_testing.evals.cases import Score
from unbroken_testing.evals.comparing import CaseChange, Comparison
from unbroken_testing.evals.evaluator import RECORDINGS
from unbroken_testing.evals.results import CaseResult, Difference, Evaluation, Trial
from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import PALETTE, inline_hash, whole_page
from unbroken_wires.messages import Usage

REPORT = "report.html"
RUNS = "recordings.html"
_LONGEST = 20_000
"""Characters of an answer on the page; the recording has the rest."""
_FITS = 60
"""Characters of a prompt that its row shows."""
_NAMED = re.compile(r"`([^`\n]+)`")
_COLOURS = {"passed": "good", "failed": "bad", "error": "bad", "unavailable": "warn", "not run": "quiet"}
_CHANGES = {"worse": "bad", "better": "good"}

_TEMPLATE = (
    Path(__file__)
    .with_name(REPORT)
    .read_text("utf-8")
    .replace("/*palette*/", PALETTE)
    .replace("/*widths*/", "\n".join(f".w{share} {{ width: {share}%; }}" for share in range(101)))
)
_POLICY = f"default-src 'none'; style-src {inline_hash(_TEMPLATE, 'style')}; base-uri 'none'; form-action 'none'"


def write_report(evaluation: Evaluation, comparison: Comparison | None = None) -> Path | None:
    """Writes the page into the folder of the evaluation, and beside it one with all its recordings. None if the
    evaluation is not saved."""
    folder = evaluation.folder
    if folder is None:
        return None
    try:
        if any(trial.recording for trial in evaluation.trials):
            page, _ = whole_page(Shelf(folder / RECORDINGS))
            (folder / RUNS).write_bytes(page)
        (folder / REPORT).write_bytes(report_page(evaluation, comparison))
    except OSError as error:
        raise UserError(f"writing the report to {folder} failed: {error.strerror or error}") from None
    return folder / REPORT


def report_page(evaluation: Evaluation, comparison: Comparison | None = None) -> bytes:
    """The page: a table of the cases, each with its runs, their scores, and links to their recordings."""
    what = "Recordings run again" if evaluation.recordings else "Evaluation"
    title = f"{what}: {evaluation.agent or 'agent'}"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    parts = _Page(evaluation, comparison).parts()
    page = _TEMPLATE.replace("<!--policy-->", policy, 1).replace("<!--title-->", escape(title), 1)
    top, _, bottom = page.partition("<!--body-->")  # last, because the texts of models go in here
    return f"{top}{''.join(parts)}{bottom}".encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Page:
    evaluation: Evaluation
    comparison: Comparison | None

    def parts(self) -> list[str]:
        cases = self.evaluation.cases
        changes = {change.id: change for change in self.comparison.changes} if self.comparison else {}
        head = "".join(
            f"<span{' class=number' if number else ''}>{name}</span>"
            for name, number in (
                ("outcome", 0),
                ("case", 0),
                ("score", 0),
                ("runs", 0),
                ("calls", 1),
                ("tokens", 1),
                ("seconds", 1),
            )
        )
        rows = [self._case(case, changes.get(case.id)) for case in cases]
        return [
            self._header(cases),
            self._facts(cases),
            self._notes(),
            _filters(cases, bool(changes)),
            f'<main class="cases"><div class="row head" aria-hidden="true">{head}</div>',
            *(rows or ['<p class="empty">There are no cases.</p>']),
            "</main>",
            "<footer>A case opens with a click: its runs, their scores, answers and recordings.</footer>",
        ]

    def _header(self, cases: Sequence[CaseResult]) -> str:
        passed = sum(case.outcome == "passed" for case in cases)
        words = f"{passed} of {counted(len(cases), 'case')} passed"
        colour = "good" if self.evaluation.passed else "bad"
        title = "Recordings run again" if self.evaluation.recordings else "Evaluation"
        return f'<header><h1>{title}</h1><span class="chip {colour}">{words}</span></header>'

    def _facts(self, cases: Sequence[CaseResult]) -> str:
        found, flaky = self.evaluation, sum(case.flaky for case in cases)
        facts = [
            ("agent", found.agent),
            ("model", found.model),
            ("began", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.time))),
            ("recordings", found.recordings),
            ("score", f"{found.score:.2f}"),
            ("runs", f"{len(found.trials):,}" + (f" ({found.repeat} of each case)" if found.repeat > 1 else "")),
            ("flaky", counted(flaky, "case") if flaky else ""),
            ("tokens", _in_and_out(found.usage)),
            ("cost", "" if found.cost is None else shown_cost(found.cost)),
            ("tokens of judges", _in_and_out(found.judge_usage)),
            ("cost of judges", "" if found.judge_cost is None else shown_cost(found.judge_cost)),
        ]
        shown = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts if value)
        return f'<dl class="facts">{shown}</dl>'

    def _notes(self) -> str:
        notes: list[str] = []
        if not self.evaluation.complete:
            done, all_runs = len(self.evaluation.trials), len(self.evaluation.heads) * self.evaluation.repeat
            notes.append(f"<p>It was interrupted: {done} of {counted(all_runs, 'run')} ended.</p>")
        if self.comparison is not None:
            worse, better = self.comparison.worse, self.comparison.better
            told = f"<p>Compared with the earlier result: {len(worse)} worse, {len(better)} better.</p>"
            gone = self.comparison.of("gone")
            listed = "".join(f"<li>{each.change}: {_words(each.words)}</li>" for each in (*worse, *better, *gone))
            notes.append(f"{told}<ul>{listed}</ul>" if listed else told)
        return "".join(f'<div class="note">{note}</div>' for note in notes)

    def _case(self, case: CaseResult, change: CaseChange | None) -> str:
        moved = change is not None and change.change in _CHANGES
        classes = ["case", case.outcome.replace(" ", "-"), *(["flaky"] if case.flaky else [])]
        if moved:
            classes.append("changed")
        if any(trial.differences for trial in case.trials):
            classes.append("differs")
        trials = "".join(_trial(trial) for trial in case.trials)
        body = trials or '<p class="empty">It was not run.</p>'
        opened = " open" if case.outcome != "passed" and len(self.evaluation.heads) == 1 else ""
        return (
            f'<details class="{" ".join(classes)}"{opened}><summary class="row">{_summary(case, change)}</summary>'
            f'<div class="trials">{_question(case)}{body}</div></details>'
        )


def _summary(case: CaseResult, change: CaseChange | None) -> str:
    chips = _chip(case.outcome, _COLOURS[case.outcome])
    if case.flaky:
        chips += _chip("flaky", "warn")
    if change is not None and change.change in _CHANGES:
        chips += _chip(change.change, _CHANGES[change.change])
    tags = "".join(f' <span class="tag">{escape(tag)}</span>' for tag in case.head.tags)
    below = f'<span class="why">{_words(case.reason)}</span>' if case.reason else ""
    asked = f'<span class="asked">{escape(case.head.question)}</span>'
    dots = "".join(
        f'<i class="{trial.outcome}" title="run {trial.number}: {trial.outcome}"></i>' for trial in case.trials
    )
    runs = f'<span class="dots" role="img" aria-label="{case.passed_count} of {len(case.trials)} passed">{dots}</span>'
    score = f'<span class="bar"><i class="w{round(100 * case.score)}"></i></span>{case.score:.2f}' if case.made else "-"
    count = len(case.made) or 1
    numbers = (
        f"{sum(len(trial.calls) for trial in case.made) / count:.3g}",
        f"{sum(trial.usage.total_tokens for trial in case.made) // count:,}",
        f"{sum(trial.seconds for trial in case.made) / count:.2f}",
    )
    cells = "".join(f'<span class="number">{number if case.made else "-"}</span>' for number in numbers)
    if any(trial.differences for trial in case.trials):
        chips += _chip("differs", "quiet")
    return (
        f'<span class="chips">{chips}</span><span><span class="id">{escape(case.id)}</span>{tags}{asked}{below}</span>'
        f'<span class="meter">{score}</span>{runs}{cells}'
    )


def _question(case: CaseResult) -> str:
    """Only where the row of the case may have cut it."""
    asked = case.head.question
    return f"<h3>prompt</h3><pre>{escape(_cut(asked))}</pre>" if len(asked) > _FITS or "\n" in asked else ""


def _trial(trial: Trial) -> str:
    about = [
        trial.stop_reason.replace("_", " "),
        counted(trial.rounds, "round") if trial.stop_reason else "",
        _in_and_out(trial.usage, " tokens"),
        f"{trial.seconds:.2f} s" if trial.seconds else "",
    ]
    links = ""
    if trial.recording:
        name = trial.recording.rpartition("/")[2]
        shown, raw = f"{RUNS}#{quote(name, safe='')}", quote(trial.recording)
        links = f'<span><a href="{shown}">recording</a> · <a href="{raw}">file</a></span>'
    parts = [
        f"<h2>{_chip(trial.outcome, _COLOURS[trial.outcome])}run {trial.number}"
        f'<span class="soft">{escape(" · ".join(filter(None, about)))}</span>{links}</h2>'
    ]
    if trial.reason and not trial.scores:
        parts.append(f'<p class="bad">{_words(trial.reason)}</p>')
    if trial.scores:
        rows = "".join(_score(score) for score in trial.scores)
        head = "<tr><th>scorer</th><th>score</th><th>reason</th></tr>"
        parts.append(f'<h3>scores</h3><div class="scroll"><table>{head}{rows}</table></div>')
    long = {each.what: each for each in trial.differences if each.what in ("calls", "text")}
    parts += map(_difference, long.values())
    if others := [each for each in trial.differences if each.what not in long]:
        rows = "".join(
            f"<tr><td>{each.what}</td><td>{escape(each.before)}</td><td>{escape(each.now)}</td></tr>" for each in others
        )
        head = "<tr><th></th><th>recorded</th><th>now</th></tr>"
        parts.append(f'<h3>numbers that differ</h3><div class="scroll"><table>{head}{rows}</table></div>')
    if trial.calls and "calls" not in long:
        parts.append(f"<h3>calls</h3><pre>{escape(_cut(chr(10).join(trial.calls)))}</pre>")
    if trial.text and "text" not in long:
        parts.append(f"<h3>answer</h3><pre>{escape(_cut(trial.text))}</pre>")
    return f'<section class="trial {trial.outcome}">{"".join(parts)}</section>'


def _score(score: Score) -> str:
    needed = f' <span class="soft">needs {score.threshold:.2f}</span>' if score.threshold not in (0.0, 1.0) else ""
    value = f'<span class="{"good" if score.passed else "bad"}">{score.value:.2f}</span>{needed}'
    return f"<tr><td>{_words(score.name)}</td><td>{value}</td><td>{_words(score.reason) or '-'}</td></tr>"


def _difference(difference: Difference) -> str:
    lines: list[str] = []
    for line in diff_lines(difference):
        tag = {"+": "ins", "-": "del"}.get(line[0], "span")
        lines.append(f"<{tag}>{escape(line)}</{tag}>")
    return f"<h3>{difference.what}: recorded (-) and now (+)</h3><pre>{''.join(lines)}</pre>"


def diff_lines(difference: Difference) -> list[str]:
    """The calls or the text of both runs, line by line: `-` was recorded, `+` is now."""
    before, now = (_cut(text).splitlines() for text in (difference.before, difference.now))
    lines = list(unified_diff(before, now, lineterm="", n=3))[2:]
    return [line for line in lines if not line.startswith("@@")] or ["  (they differ in line ends alone)"]


def _filters(cases: Sequence[CaseResult], compared: bool) -> str:
    failed = sum(case.outcome != "passed" for case in cases)
    flaky = sum(case.flaky for case in cases)
    choices = [("all", f"All {len(cases)}"), ("failed", f"Not passed {failed}")]
    choices += [("flaky", f"Flaky {flaky}")] if flaky else []
    choices += [("changed", "Changed")] if compared else []
    if differ := sum(any(trial.differences for trial in case.trials) for case in cases):
        choices.append(("differs", f"Different {differ}"))
    labels = "".join(
        f'<label><input type="radio" name="show" id="show-{id}"{" checked" if id == "all" else ""}>{words}</label>'
        for id, words in choices
    )
    return f"<fieldset><legend>Show</legend>{labels}</fieldset>"


def _words(text: str) -> str:
    """A sentence of ours, in which names stand in backticks."""
    return _NAMED.sub(r"<code>\1</code>", escape(text))


def _chip(words: str, colour: str) -> str:
    return f'<span class="chip {colour}">{words}</span>'


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… cut here; the recording has all of it"


def _in_and_out(usage: Usage, what: str = "") -> str:
    if not usage.total_tokens:
        return ""
    about = "about " if usage.estimated else ""
    return f"{about}{usage.input_tokens:,}{what} in, {usage.output_tokens:,} out"
