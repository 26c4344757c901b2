"""Rounds that end because of their calls: after a failed one with `on_error="finish"`, after one in which all failed
with `Policy(on_all_failed="stop")`, and when the same call is made again and again."""

from __future__ import annotations

from unbroken.agent.limits import StopReason
from unbroken.agent.output import ANSWER
from unbroken.agent.prompts import ALL_FAILED
from unbroken.agent.rules.endings import end_with_own_text
from unbroken.agent.rules.questions import Round
from unbroken.agent.run import Ending, Run
from unbroken.tools.caller import ran_and_failed


def stop_after_failure(run: Run, done: Round) -> StopReason | None:
    """A call that cannot run is a failure too. A wrong typed answer is corrected instead."""
    unfit = any(each.unfit and each.call.name != ANSWER for each in done.calls)
    return "tool_failure" if (done.failed or unfit) and not done.out_of_time else None


def stop_if_all_failed(run: Run, done: Round) -> StopReason | None:
    failed = all(ran_and_failed(result) and result.outcome != "retry" for result in done.results)
    return "tool_failure" if failed and not done.out_of_time else None


def end_if_all_failed(run: Run, stop: StopReason) -> Ending | None:
    return end_with_own_text(run, ALL_FAILED, stop) if stop == "tool_failure" else None
