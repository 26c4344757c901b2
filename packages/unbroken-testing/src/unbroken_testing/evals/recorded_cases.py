"""Recordings as cases: the prompts of recorded runs are run again with a changed agent. Tools answer from the
recording where the same call was made; what differs between the two runs is kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from unbroken.agent.output import ANSWER
from unbroken.agent.result import Result
from unbroken.errors import UserError
from unbroken.events import Event
from unbroken.middleware import Ask
from unbroken.run_view import CallView, RunView
from unbroken.tools.approval import Allow, Approval, OnApproval
from unbroken.tools.caller import Caller, failure, fingerprint
from unbroken.tools.context import CallContext
from unbroken.tools.todo import todo_write
from unbroken.trajectory.recording import Recording, list_recordings, read_recording
from unbroken_testing.evals.cases import Case, Score, Scorer
from unbroken_testing.evals.evaluator import AT_ONCE, Course, Evaluator, MakesAgent, Options, TookAnotherCourse
from unbroken_testing.evals.results import Difference, Evaluation, Trial
from unbroken_testing.evals.scorers import call_text, made_calls
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.transcript import from_json
from unbroken_wires.validation import checked

_OWN_TOOLS = (ANSWER, todo_write.name)
"""Tools of this library that change nothing outside of the run: they run, whatever was recorded."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run, read as far as it is needed to ask its prompt again."""

    case: Case
    view: RunView
    results: dict[str, tuple[ToolResult, ...]]
    """By the fingerprint of their call, in call order."""


@checked
async def evaluate_recordings(
    agent: MakesAgent,
    folder: str | os.PathLike[str],
    *,
    live_tools: bool = False,
    repeat: int = 1,
    at_once: int = AT_ONCE,
    timeout: float | None = None,
    out: str | os.PathLike[str] | None = None,
    on_trial: Callable[..., Any] | None = None,
) -> Evaluation:
    """Asks the prompts of the recordings in a folder again. A run passes if it makes the same calls; the `differences`
    of each `Trial` have the rest: the text, tokens, rounds.

    A run that makes a call that its recording does not have ends there, because nothing could answer the call. With
    `live_tools` such a call runs, and the run passes in any case.
    """
    runs, _ = read_runs(folder)
    options = Options(repeat, at_once, timeout=timeout, out=None if out is None else Path(out), on_trial=on_trial)
    return await recordings_evaluator(agent, runs, options, str(folder), live_tools).run()


def recordings_evaluator(
    agent: MakesAgent, runs: Sequence[RecordedRun], options: Options, folder: str, live_tools: bool
) -> Evaluator:
    """An evaluator whose cases are these runs."""
    by_id = {run.case.id: run for run in runs}
    cases = [replace(run.case, scorers=[_same_calls(run.view, live_tools)]) for run in runs]
    return Evaluator(agent, cases, options, lambda case: _Again(by_id[case.id], live_tools), folder)


def read_runs(folder: str | os.PathLike[str]) -> tuple[list[RecordedRun], list[str]]:
    """The recorded runs of a folder, the earliest first, and the reasons why others are left out. The id of a case is
    the name of its file. Raises `UserError` if there are none."""
    summaries = sorted(list_recordings(folder), key=lambda each: (each.time, each.path.name))
    found = [(each.path.stem, partial(read_recording, each.path)) for each in summaries]
    return _readable(str(folder), found, "Agent(record=…) and `unbroken run --record` write them")


def read_journal(url: str) -> tuple[list[RecordedRun], list[str]]:
    """The same for the runs of a journal, or for one of them (`URL#ID`). The id of a case is that of its run."""
    from unbroken_durable.recorded_runs import RecordedRuns  # noqa: PLC0415 - start-up time

    with RecordedRuns(url) as journal:
        found = [(run.run_id, run.read) for run in reversed(journal.runs())]
        return _readable(journal.url, found, "`unbroken runs start` adds a run")


def _readable(
    place: str, found: Iterable[tuple[str, Callable[[], Recording]]], instead: str
) -> tuple[list[RecordedRun], list[str]]:
    runs: list[RecordedRun] = []
    left_out: list[str] = []
    for id, read in found:
        try:
            runs.append(_run(id, read()))
        except UserError as error:
            left_out.append(str(error))
    if not runs:
        why = f": {left_out[0]}" if left_out else f"; {instead}"
        raise UserError(f"there is no recording in {place} that could be run again{why}")
    return runs, left_out


def _run(id: str, recording: Recording) -> RecordedRun:
    messages = from_json(list(recording.head.get("messages") or []))
    asked = from_json([recording.head["question"]]) if recording.head.get("question") else ()
    question = next((message for message in asked if isinstance(message, User)), None)
    if not messages and question is None:
        raise UserError(f"{recording.path} has no prompt that could be run again: it was not made by an agent")
    view = RunView.of(recording.events)
    case = Case(id, question or "", messages=messages)
    return RecordedRun(case, view, _results(recording, view))


def _results(recording: Recording, view: RunView) -> dict[str, tuple[ToolResult, ...]]:
    if view.finished is not None:
        saved = view.finished.messages
    else:
        saved = list(recording.requests[-1].messages) if recording.requests else []
    by_id = {
        result.call_id: result
        for message in from_json(list(saved))
        if isinstance(message, ToolMessage)
        for result in message.results
    }
    found: dict[str, tuple[ToolResult, ...]] = {}
    for call in view.calls:
        if call.outcome is not None and call.arguments is not None:
            text = Text(call.text or "")
            result = by_id.get(call.id, ToolResult(call.id, (text,), error=call.error, name=call.name))
            mark = _mark(call)
            found[mark] = (*found.get(mark, ()), replace(result, duplicate_of="", native=None, cache=""))
    return found


def _mark(call: CallView) -> str:
    return fingerprint(ToolCall("", call.name, call.arguments))


def _same_calls(before: RunView, live_tools: bool) -> Scorer:
    recorded = [_mark(call) for call in before.calls if call.name != ANSWER]
    texts = calls_of(before)

    async def score(case: Case, result: Result[Any]) -> Score:
        calls = [*(call.call for call in made_calls(result)), *result.pending]
        now = [fingerprint(ToolCall("", call.name, call.arguments)) for call in calls]
        if now == recorded:
            return Score(1.0)
        made = [call_text(call.name, call.arguments or {}) for call in calls]
        ratio = SequenceMatcher(None, recorded, now, autojunk=False).ratio()
        return Score(min(ratio, 0.99), _what_changed(texts, made))

    return Scorer(score, name="same calls", threshold=0.0 if live_tools else 1.0)


def _what_changed(before: Sequence[str], now: Sequence[str]) -> str:
    missing = [call for call in before if call not in now]
    added = [call for call in now if call not in before]
    words: list[str] = []
    if missing:
        words.append(f"not called any more: {', '.join(missing)}")
    if added:
        words.append(f"called now: {', '.join(added)}")
    return "; ".join(words) or "the same calls, in another order or number"


def calls_of(view: RunView) -> list[str]:
    return [call_text(call.name, call.arguments or {}) for call in view.calls if call.name != ANSWER]


class _Again(Course):
    """Answers tool calls from the recording, and raises where the run diverges from it."""

    mutates = False
    edits_answers = False

    def __init__(self, recorded: RecordedRun, live_tools: bool) -> None:
        self._recorded = recorded
        self._live = live_tools
        self._left = {mark: deque(results) for mark, results in recorded.results.items()}
        self._now = RunView()
        self._unrecorded: ToolCall | None = None

    def on_event(self, event: Event) -> None:
        self._now.feed(event)

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        return on_approval if self._live else _allow

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        if (call := self._unrecorded) is not None:
            made = call_text(call.name, call.arguments or {})
            raise TookAnotherCourse(f"the run diverged: `{made}` is not in the recording, so it was not run")
        return call_next(request)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        left = self._left.get(context.fingerprint)  # as the model made it: a check may have changed its arguments
        if left and call.name != ANSWER:
            result = left.popleft() if len(left) > 1 else left[0]
            return replace(result, call_id=call.id, name=call.name)
        if self._live or call.name in _OWN_TOOLS:
            return await call_next(call, context)
        self._unrecorded = self._unrecorded or call
        return failure(call, "not executed: the recording has no such call", "not_executed")

    def complete(self, trial: Trial) -> Trial:
        """The trial with the differences, and with its calls if the run did not end."""
        before, now = _comparable(self._recorded.view), _comparable(self._now)
        differences = tuple(
            Difference(what, before[what], now[what])
            for what in before
            if before[what] != now[what] and (what == "calls" or self._now.finished is not None)
        )
        return replace(trial, differences=differences, calls=trial.calls or tuple(calls_of(self._now)))


def _comparable(view: RunView) -> dict[Any, str]:
    """By what it is, as a `Difference` names it."""
    return {
        "calls": "\n".join(calls_of(view)),
        "text": view.text,
        "ended": view.stop_reason or "failed",
        "rounds": str(view.rounds),
        "requests": str(view.requests),
        "tokens in": str(view.usage.input_tokens),
        "tokens out": str(view.usage.output_tokens),
    }


def _allow(call: ToolCall) -> Approval:
    return Allow()  # the recording answers the call, so nothing runs
