"""What the checks of a run decide about its prompt, its output and the calls of its client, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unbroken.agent.prompts import REFUSED_PROMPT
from unbroken.errors import PromptVetoed, UnbrokenError, Vetoed
from unbroken.events import Checked
from unbroken.middleware import blaming
from unbroken.tools.caller import NOT_EXECUTED, Prepared
from unbroken.tools.results import Retry, ToolFailed
from unbroken_wires.messages import User, own_call

if TYPE_CHECKING:
    from unbroken.agent.run import Run


async def check_prompt(run: Run) -> None:
    """Checks the prompt of a run that has asked nothing yet. Raises `Vetoed`."""
    check, messages = run.plan.check_input, run.transcript.messages
    asked = run.question or (messages[-1] if messages else None)
    if check is None or run.account.requests or not isinstance(asked, User):
        return
    run.prompt = asked
    try:
        accepted: User = await check(asked)
    except Vetoed as error:
        raise PromptVetoed(str(error)) from None  # also that of middleware of your own
    except UnbrokenError as error:
        _report_refusal(run, "input", error)
        raise
    run.prompt = accepted
    if accepted is asked:
        return
    if run.question is not None:
        run.question = accepted
    else:
        run.transcript.replace_prompt(accepted)
    run.emitter.emit(Checked, "input", "replaced", accepted.text)


def refuse_prompt(run: Run, error: PromptVetoed) -> None:
    """The prompt does not stay in the history, and no later request has it. Most wires need a message before the
    answer, so there is another one in its place."""
    run.emitter.emit(Checked, "input", "veto", str(error))
    instead = User.of(REFUSED_PROMPT[run.plan.language])
    if run.question is not None:
        run.question = instead
    elif run.prompt is not None:
        run.transcript.refuse_prompt(run.prompt, instead)


async def checked_output(run: Run, output: Any) -> Any:
    """The final output, as the checks leave it. Raises `Retry`, or `Vetoed`."""
    check = run.plan.check_output
    if check is None:
        return output
    try:
        accepted = await check(output)
    except Retry as error:
        run.refused = str(error)
        run.emitter.emit(Checked, "output", "retry", run.refused)
        raise
    except PromptVetoed:  # by a check beside the model
        raise
    except UnbrokenError as error:
        _report_refusal(run, "output", error)
        raise
    if accepted is output or accepted == output:
        return output
    kind = run.plan.output
    run.emitter.emit(Checked, "output", "replaced", str(accepted) if kind is None else kind.text_of(accepted))
    return accepted


async def take_output(run: Run, output: Any) -> None:
    """A typed answer that fits. `Retry` is a result that the model reads; other errors of checks end the run."""
    try:
        run.output.append(await checked_output(run, output))
    except Retry:
        raise
    except UnbrokenError as error:
        run.broken = error
        raise ToolFailed(str(error)) from None


async def check_client_calls(run: Run, calls: Iterable[Prepared]) -> None:
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


def raise_broken(run: Run) -> None:
    """Ends the run if a check has decided so in this round."""
    if run.vetoed is not None:
        run.emitter.emit(Checked, "call", "veto", str(run.vetoed))
        raise run.vetoed
    if run.broken is not None:
        raise run.broken


def _report_refusal(run: Run, value: str, error: UnbrokenError) -> None:
    run.emitter.emit(Checked, value, "veto" if isinstance(error, Vetoed) else "failed", str(error))
