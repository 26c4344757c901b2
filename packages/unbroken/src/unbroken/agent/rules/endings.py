"""How a run ends without an answer of its model: it waits, it was vetoed, calls failed, a limit leaves the text so far,
or there is nothing but a text of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from unbroken.agent.limits import StopReason
from unbroken.agent.output import ANSWER
from unbroken.agent.prompts import ALL_FAILED, NO_ANSWER
from unbroken.agent.rules.guardrails import refuse_prompt
from unbroken.agent.run import Run
from unbroken.agent.turns import Ending, Round
from unbroken.errors import PromptVetoed, Vetoed
from unbroken.events import TextAdded, TextFinished, TextReplaced
from unbroken.tools.caller import not_executed, ran_and_failed
from unbroken_wires.messages import Assistant


def wait(run: Run, done: Round) -> StopReason | None:
    """Some calls need a decision from outside."""
    if all(done.given):
        return None
    run.state.wait_for(done.batch.order)
    return "waiting"


def end_waiting(run: Run, stop: StopReason) -> Ending | None:
    return Ending("", stop, pending=run.state.waiting.pending) if stop == "waiting" else None


def stop_after_failure(run: Run, done: Round) -> StopReason | None:
    """A call that cannot run is a failure too. A wrong typed answer is corrected instead."""
    failed = done.batch.failed or any(map(ran_and_failed, done.earlier))
    unfit = any(each.unfit and each.call.name != ANSWER for each in done.calls)
    return "tool_failure" if failed or unfit else None


def stop_if_all_failed(run: Run, done: Round) -> StopReason | None:
    failed = all(ran_and_failed(result) and result.outcome != "retry" for result in done.results)
    return "tool_failure" if failed else None


def end_if_all_failed(run: Run, stop: StopReason) -> Ending | None:
    return end_with_own_text(run, ALL_FAILED, stop) if stop == "tool_failure" else None


def end_without_text(run: Run, stop: StopReason) -> Ending:
    return Ending("", stop, cut_off=True)


def end_vetoed(run: Run, error: Vetoed) -> Ending:
    for call in run.transcript.open:  # of a history whose prompt was refused
        run.transcript.answer(not_executed(call, str(error)))
    if isinstance(error, PromptVetoed):
        refuse_prompt(run, error)
    run.state.add_question()
    return end_with_own_text(run, str(error), "vetoed")


async def end_with_text(
    run: Run,
    stop: StopReason,
    said: str,
    leave: Iterable[Callable[[Run, StopReason, str], Awaitable[str]]],
) -> Ending:
    """A limit is reached. The text so far is the answer, if the rules leave it; if there is none, a message of ours
    is."""
    text = run.cut_off if run.cut_off_last else said or run.cut_off
    for rule in leave:
        text = await rule(run, stop, text)
    if not text:
        return end_with_own_text(run, NO_ANSWER[run.plan.language].format(reason=stop), stop)
    if not run.cut_off_last:
        run.transcript.add(Assistant(text))
    if run.plan.output is not None:
        run.judged.output.append(text)
    return Ending(text, stop, cut_off=True)


def end_with_own_text(run: Run, text: str, stop: StopReason) -> Ending:
    run.transcript.add(Assistant(text))
    if text:
        run.emitter.emit(TextReplaced if run.voided else TextAdded, text)
        run.emitter.emit(TextFinished, text, True, run.account.request_cost)
    return Ending(text, stop, cut_off=True)
