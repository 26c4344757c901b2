"""What the checks of a run decide about its prompt, its output and the calls of its client, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unbroken.agent.limits import StopReason
from unbroken.agent.prompts import REFUSED_PROMPT
from unbroken.agent.run import Run
from unbroken.agent.turns import Again, Round, Turn
from unbroken.errors import AnswerInvalid, PromptVetoed, UnbrokenError, Vetoed
from unbroken.events import Checked, TextFinished, TextReplaced
from unbroken.middleware import blaming
from unbroken.tools.caller import NOT_EXECUTED, Prepared
from unbroken.tools.results import Retry
from unbroken_wires.messages import Assistant, User, own_call

UNACCEPTED = "the run ended ({stop}) without an answer that its checks accept: {why}"


async def check_prompt(run: Run) -> None:
    """Checks the prompt of a run that has asked nothing yet. Raises `Vetoed`."""
    check, messages = run.plan.check_input, run.transcript.messages
    asked = run.state.question or (messages[-1] if messages else None)
    if check is None or run.state.used.requests or not isinstance(asked, User):
        return
    run.judged.prompt = asked
    try:
        accepted: User = await check(asked)
    except Vetoed as error:
        raise PromptVetoed(str(error)) from None  # also that of middleware of your own
    except UnbrokenError as error:
        _report_refusal(run, "input", error)
        raise
    run.judged.prompt = accepted
    if accepted is asked:
        return
    if run.state.question is not None:
        run.state.question = accepted
    else:
        run.transcript.replace_prompt(accepted)
    run.emitter.emit(Checked, "input", "replaced", accepted.text)


def refuse_prompt(run: Run, error: PromptVetoed) -> None:
    """The prompt does not stay in the history, and no later request has it. Most wires need a message before the
    answer, so there is another one in its place."""
    run.emitter.emit(Checked, "input", "veto", str(error))
    instead = User.of(REFUSED_PROMPT[run.plan.language])
    if run.state.question is not None:
        run.state.question = instead
    elif run.judged.prompt is not None:
        run.transcript.refuse_prompt(run.judged.prompt, instead)


async def check_client_calls(run: Run, calls: Sequence[Prepared]) -> None:
    """Checks calls that are given to the client: no caller runs them, so no middleware sees them otherwise."""
    for each in calls:
        if each.tool is None or each.tool.function is not None or each.refusal:
            continue
        for middleware in run.plan.client_checks:
            with blaming(middleware, "check_client_call"):
                reason = await middleware.check_client_call(own_call(each.call))
            if reason:
                each.refusal = f"{NOT_EXECUTED}: {reason}"
                break


def end_round(run: Run, done: Round) -> None:
    """Ends the run if a check has decided so in this round."""
    _raise_veto(run)
    if run.judged.broken is not None:
        raise run.judged.broken


def end_without_call(run: Run, turn: Turn) -> None:
    """A check of a call has ended the run, and after a restart the answer does not have that call."""
    if run.judged.vetoed is not None:
        run.voided = bool(turn.message.text)
        _raise_veto(run)


def _raise_veto(run: Run) -> None:
    if run.judged.vetoed is not None:
        run.emitter.emit(Checked, "call", "veto", str(run.judged.vetoed))
        raise run.judged.vetoed


async def checked_output(run: Run, output: Any) -> Any:
    """The final output, as the checks leave it. Raises `Retry`, or `Vetoed`."""
    check = run.plan.check_output
    if check is None:
        return output
    try:
        accepted = await check(output)
    except Retry as error:
        run.judged.refused = str(error)
        run.emitter.emit(Checked, "output", "retry", run.judged.refused)
        raise
    except PromptVetoed:  # by a check beside the model
        raise
    except UnbrokenError as error:
        _report_refusal(run, "output", error)
        raise
    if accepted is output or accepted == output:
        return output
    run.emitter.emit(Checked, "output", "replaced", run.plan.text_of(accepted))
    return accepted


async def check_answer(run: Run, turn: Turn) -> Again | None:
    """An answer that is not accepted is asked for again, with the reason."""
    try:
        if turn.value:
            turn.value = (await _checked_last(run, turn.value[0]),)
        else:
            text = await _checked_text(run, turn.message.text)
            if text is not turn.message.text:
                turn.message = Assistant(text, reasoning=turn.message.reasoning)
    except Retry as error:
        return Again("refused", str(error))
    return None


async def leave_accepted(run: Run, stop: StopReason, text: str) -> str:
    if run.judged.refused:
        raise AnswerInvalid(UNACCEPTED.format(stop=stop, why=run.judged.refused))
    return text


async def leave_checked(run: Run, stop: StopReason, text: str) -> str:
    """The text of a run that has reached a limit, as its checks leave it."""
    if run.cut_off_last:
        run.transcript.take_back()
    try:
        return await _checked_text(run, text) if text else ""
    except Retry as error:
        raise AnswerInvalid(UNACCEPTED.format(stop=stop, why=error)) from None


async def _checked_text(run: Run, text: str) -> str:
    accepted: str = await _checked_last(run, text)
    if accepted is not text:
        run.emitter.emit(TextReplaced, accepted)
        run.emitter.emit(TextFinished, accepted, True, run.account.request_cost)
    return accepted


async def _checked_last(run: Run, output: Any) -> Any:
    """The output of a run that ends with it. If it is vetoed, what listeners have of it is void."""
    try:
        return await checked_output(run, output)
    except Vetoed:
        run.voided = True
        raise


def _report_refusal(run: Run, value: str, error: UnbrokenError) -> None:
    run.emitter.emit(Checked, value, "veto" if isinstance(error, Vetoed) else "failed", str(error))
