"""Typed answers: the model gives them as text or by a call, and is asked once to correct one that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from unbroken.agent.limits import StopReason
from unbroken.agent.output import ANSWER, CUT_OFF, Output, invalid
from unbroken.agent.rules.guardrails import checked_output
from unbroken.agent.run import Run
from unbroken.agent.turns import Again, Ending, Round, Turn
from unbroken.errors import AnswerInvalid, UnbrokenError
from unbroken.tools.caller import Prepared
from unbroken.tools.results import Retry, ToolFailed
from unbroken.tools.schema import ArgumentsDoNotFit
from unbroken.tools.tool import Tool
from unbroken_wires.deltas import Verdict


def _kind(run: Run) -> Output[Any]:
    assert run.plan.output is not None, "these rules are those of an agent with a type"
    return run.plan.output


def offer(run: Run) -> list[Tool]:
    kind = _kind(run)
    return [kind.tool(partial(_take, run))] if kind.has_tool else []


async def _take(run: Run, output: Any) -> None:
    """A typed answer that fits. `Retry` is a result that the model reads; other errors of checks end the run."""
    try:
        run.judged.output.append(await checked_output(run, output))
    except Retry:
        raise
    except UnbrokenError as error:
        run.judged.broken = error
        raise ToolFailed(str(error)) from None


async def recall(run: Run, calls: Sequence[Prepared]) -> None:
    """A typed answer that was accepted beside waiting calls is still valid."""
    accepted = {result.call_id for result in run.transcript.answered if not result.error}
    for each in calls:
        if each.call.name == ANSWER and each.call.id in accepted:
            run.judged.output.append(await checked_output(run, _kind(run).read(each.call.arguments or {})))


def end_round(run: Run, done: Round) -> StopReason | None:
    if run.judged.output:
        return "answered"
    wrong = [result for result in done.results if result.error and result.name == ANSWER]
    if wrong and not run.judged.refused:
        cut = any(each.call.name == ANSWER and each.call.arguments is None for each in done.calls)
        why = wrong[-1].text.removeprefix("Error: ")
        _refuse_second(run, why, done.verdict if cut else None, wrong[-1].exception)
        run.state.counters.corrections += 1
    return None


def read(run: Run, turn: Turn) -> Again | None:
    try:
        turn.value = (_kind(run).read_text(turn.message.text),)
    except ArgumentsDoNotFit as error:
        _refuse_second(run, str(error), turn.verdict, error.__cause__)
        why = CUT_OFF if turn.verdict.meaning == "length" else str(error)
        return Again("misfit", _kind(run).correction(why))
    return None


def _refuse_second(run: Run, why: str, verdict: Verdict | None, cause: BaseException | None) -> None:
    """The typed answer does not fit. Raises if a correction was requested before."""
    if not run.state.counters.corrections:
        return
    if verdict is not None and verdict.meaning == "length":
        most = run.plan.settings.sampling.max_tokens
        limit = "" if most is None else f" of {most} tokens"
        why = f"it was cut off at its length limit{limit}; raise `max_tokens`, or ask for a shorter answer"
    raise AnswerInvalid(invalid(run.plan.model.name, why)) from cause


def raise_refusal(run: Run, turn: Turn) -> None:
    """A model that refuses gives no answer of the requested type, and asking for a correction does not change it."""
    message, verdict = turn.message, turn.verdict
    if _kind(run).free_text or verdict.meaning != "refused" or run.awaits_results:
        return
    text = message.text.strip()
    if text:
        run.transcript.add(message)
    words = text or verdict.reason or f"it gave no text (finish reason {verdict.finish!r})"
    raise AnswerInvalid(f"`{run.plan.model.name}` refused to answer: {words}")


def end(run: Run, stop: StopReason) -> Ending | None:
    return Ending(run.plan.text_of(run.judged.output[0]), stop) if run.judged.output else None


async def leave(run: Run, stop: StopReason, text: str) -> str:
    if not (_kind(run).free_text and text):
        raise AnswerInvalid(f"the run ended ({stop}) without an answer of the requested type")
    return text
