"""The rules of the agent that runs now, made once for each agent of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from unbroken.agent.limits import StopReason
from unbroken.agent.response_reader import Refuse
from unbroken.agent.rules import background, budgets, endings, failures, guardrails, handoffs, nudges, typed_output
from unbroken.agent.rules.questions import Round, Rules
from unbroken.agent.run import Run
from unbroken.tools.caller import Prepared
from unbroken_wires.messages import ToolResult

T = TypeVar("T")


def rules_of(run: Run) -> Rules:
    """What this agent has no use for is in no list."""
    plan, policy = run.plan, run.plan.policy
    return _compose(
        typed=plan.output is not None,
        hands_off=bool(plan.handoffs),
        in_background=background.may_have_any(run),
        nudges_announced=policy.nudge,
        checks_input=plan.check_input is not None,
        checks_output=plan.check_output is not None,
        checks_client_calls=bool(plan.client_checks),
        may_be_vetoed=bool(plan.middleware),
        stops_after_failure=plan.on_error == "finish",
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
        remark=(_remind,),
        after_round=(
            *_when(may_be_vetoed or typed, guardrails.end_round),
            endings.wait,
            *_when(typed, typed_output.end_round),
            _stop_repeating,
            *_when(stops_after_failure, failures.stop_after_failure),
            *_when(stops_if_all_failed, failures.stop_if_all_failed),
        ),
        settle=_when(in_background, background.settle),
        ending=(
            endings.end_waiting,
            *_when(typed, typed_output.end),
            *_when(not asks_finally and not typed, endings.end_without_text),
            *_when(stops_if_all_failed, failures.end_if_all_failed),
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
    return None if run.repetition.calm else run.repetition.refuse


def _remind(run: Run, calls: Sequence[Prepared], results: list[ToolResult | None]) -> list[ToolResult | None]:
    return results if run.repetition.calm else run.repetition.remind(calls, results)


def _stop_repeating(run: Run, done: Round) -> StopReason | None:
    return None if done.out_of_time else run.repetition.stop
