"""The rules of the agent that runs now, made once for each agent of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from unbroken.agent.limits import StopReason
from unbroken.agent.rules import background, budgets, endings, guardrails, handoffs, nudges, typed_output
from unbroken.agent.run import Run
from unbroken.agent.turns import Again, Ending, Instead, Refuse, Round, Turn, Unfinished
from unbroken.tools.caller import Prepared
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an agent, by what they are asked. Each list is in the order in which it is asked."""

    # May this call run?

    may_run: tuple[Callable[[Run, bool], Refuse | None], ...]
    """Asked for each message: which of its calls are refused, if any. A call that is allowed while the message is
    being written is not refused when it is complete. True: no calls were allowed in this response."""
    in_message: tuple[Callable[[Run, Prepared, Sequence[Prepared]], str], ...]
    """Why a call may not run beside those before it in its message. Such a call must not start earlier."""
    bind: tuple[Callable[[Run, dict[int, Prepared], Toolbox], Awaitable[None]], ...]
    """The message is complete: waits for what its calls refer to."""
    check_calls: tuple[Callable[[Run, Sequence[Prepared]], Awaitable[None]], ...]
    """Refuses calls by code of the user."""

    # Is this the answer?

    unfinished: tuple[Callable[[Run, Turn, Toolbox], Unfinished], ...]
    """Will the model be asked again, whatever this text says?"""
    heard: tuple[Callable[[Run, Turn], None], ...]
    """A response without calls is complete. Raises if the run ends with it."""
    hold: tuple[Callable[[Run, Turn], Awaitable[bool]], ...]
    """Does something come before any answer? Then it has come when this returns."""
    judge: tuple[Callable[[Run, Turn], Again | Instead | None], ...]
    """The first that is not None decides. Raises if the run ends with an error."""
    check_answer: tuple[Callable[[Run, Turn], Awaitable[Again | None]], ...]
    """The same by code of the user, which may replace the answer."""

    # What comes between rounds?

    begin: tuple[Callable[[Run], Awaitable[None]], ...]
    """Nothing has been asked yet."""
    offer: tuple[Callable[[Run], Sequence[Tool]], ...]
    """Tools beside those of the agent."""
    prepare: tuple[Callable[[Run, Toolbox], None], ...]
    """These are the tools of the next round."""
    recall: tuple[Callable[[Run, Sequence[Prepared]], Awaitable[None]], ...]
    """The run continues with the last message of its history, which has these calls."""
    change: tuple[Callable[[Run, StopReason | None], Awaitable[StopReason | None]], ...]
    """A round is over. Afterwards the run may have another agent, and other rules."""
    deliver: tuple[Callable[[Run], Awaitable[StopReason | None]], ...]
    """The history gets what came meanwhile. The first that is not None prevents the next round."""

    # May the run go on?

    limit: tuple[Callable[[Run], StopReason | None], ...]
    """The first that is not None prevents the next round."""
    end_round: tuple[Callable[[Run, Round], StopReason | None], ...]
    """The first that is not None ends the rounds. Raises if the run ends with an error."""
    go_on: tuple[Callable[[Run, Round], StopReason | None], ...]
    """The same, asked after those; not if the time limit was reached meanwhile, which is found before the next
    request."""

    # How does it end without an answer?

    settle: tuple[Callable[[Run, StopReason], Awaitable[None]], ...]
    """No more calls are allowed."""
    ending: tuple[Callable[[Run, StopReason], Ending | None], ...]
    """The first that is not None ends the run; otherwise one more request asks for an answer."""
    leave: tuple[Callable[[Run, StopReason, str], Awaitable[str]], ...]
    """A limit leaves this text as the answer, or none: the text as it may be. Raises if there has to be another."""
    close: tuple[Callable[[Run, BaseException | None], Awaitable[None]], ...]
    """The run is over; the error is what ended it."""


def rules_of(run: Run) -> Rules:
    """What this agent has no use for is in no list."""
    plan, policy = run.plan, run.plan.settings.policy
    return _compose(
        typed=plan.output is not None,
        hands_off=bool(plan.settings.handoffs),
        in_background=background.may_have_any(run),
        nudges_announced=policy.nudge,
        checks_input=plan.check_input is not None,
        checks_output=plan.check_output is not None,
        checks_client_calls=bool(plan.client_checks),
        may_be_vetoed=bool(plan.middleware),
        stops_after_failure=plan.settings.on_error == "finish",
        stops_if_all_failed=policy.on_all_failed == "stop",
        asks_finally=policy.final_answer,
    )


@cache
def _compose(
    *,
    typed: bool,
    hands_off: bool,
    in_background: bool,
    nudges_announced: bool,
    checks_input: bool,
    checks_output: bool,
    checks_client_calls: bool,
    may_be_vetoed: bool,
    stops_after_failure: bool,
    stops_if_all_failed: bool,
    asks_finally: bool,
) -> Rules:
    """The order in a list is that in which the rules are asked."""
    return Rules(
        may_run=(budgets.refuse_calls, _refuse_repeated, budgets.refuse_retries),
        in_message=_when(hands_off, handoffs.refuse),
        bind=_when(in_background, background.bind),
        check_calls=_when(checks_client_calls, guardrails.check_client_calls),
        unfinished=_when(nudges_announced, nudges.find_announcement) + _when(in_background, background.awaited),
        heard=_when(may_be_vetoed, guardrails.end_without_call) + _when(typed, typed_output.raise_refusal),
        hold=_when(in_background, background.wait_for_first),
        judge=(
            nudges.continue_paused,
            nudges.ask_silent,
            *_when(nudges_announced, nudges.ask_for_announced),
            *_when(typed, typed_output.read),
        ),
        check_answer=_when(checks_output, guardrails.check_answer),
        begin=_when(checks_input, guardrails.check_prompt),
        offer=_when(hands_off, handoffs.offer) + _when(typed, typed_output.offer),
        prepare=_when(in_background, background.open_futures),
        recall=_when(typed, typed_output.recall),
        change=_when(hands_off, handoffs.change_agent),
        deliver=_when(in_background, background.deliver),
        limit=(budgets.limit,),
        end_round=(
            *_when(may_be_vetoed or typed, guardrails.end_round),
            endings.wait,
            *_when(typed, typed_output.end_round),
        ),
        go_on=(
            _stop_repeating,
            *_when(stops_after_failure, endings.stop_after_failure),
            *_when(stops_if_all_failed, endings.stop_if_all_failed),
        ),
        settle=_when(in_background, background.settle),
        ending=(
            endings.end_waiting,
            *_when(typed, typed_output.end),
            *_when(not asks_finally and not typed, endings.end_without_text),
            *_when(stops_if_all_failed, endings.end_if_all_failed),
        ),
        leave=(
            *_when(checks_output, guardrails.leave_accepted),
            *_when(typed, typed_output.leave),
            *_when(checks_output, guardrails.leave_checked),
        ),
        close=_when(in_background, background.end),
    )


def _when(used: bool, rule: T) -> tuple[T, ...]:
    return (rule,) if used else ()


def _refuse_repeated(run: Run, closed: bool) -> Refuse | None:
    return None if run.state.repetition.calm else run.state.repetition.refuse


def _stop_repeating(run: Run, done: Round) -> StopReason | None:
    return run.state.repetition.stop
