"""How many calls and requests a run may make: its limits, and how often one tool may ask for a retry."""

from __future__ import annotations

from unbroken.agent.limits import StopReason
from unbroken.agent.prompts import BUDGET_EXHAUSTED, FINAL_REFUSED
from unbroken.agent.run import Run
from unbroken.agent.turns import Refuse
from unbroken.events import LimitReached
from unbroken.tools.caller import Prepared

NO_MORE_RETRIES = "not executed: `{name}` has asked for a retry {count}"


def refuse_calls(run: Run, closed: bool) -> Refuse | None:
    """Calls that the limit on calls does not allow, or the request. A typed answer is no call that counts."""
    account = run.account
    if not closed and account.calls_left is None:
        return None
    why = FINAL_REFUSED[run.plan.language] if closed else BUDGET_EXHAUSTED

    def refuse(prepared: Prepared, place: int) -> str:
        allowed = not closed and place < (account.calls_left or 0)  # other runs in the same one may have used some
        return "" if allowed or run.plan.is_answer(prepared.call) else why

    return refuse


def refuse_retries(run: Run, closed: bool) -> Refuse | None:
    """Calls of tools that have asked for as many retries as they may."""
    retries = run.state.counters.retries
    if not retries:
        return None

    def refuse(prepared: Prepared, place: int) -> str:
        name = prepared.call.name
        count = retries.get(name, 0)
        return NO_MORE_RETRIES.format(name=name, count=times(count)) if 0 < count >= most else ""

    most = run.plan.settings.policy.tool_retries
    return refuse


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def limit(run: Run) -> StopReason | None:
    """The limit that prevents another round."""
    reached = run.account.reached(run.plan.clock, run.transcript.messages)
    if reached is None:
        return None
    run.emitter.emit(LimitReached, *reached)
    return reached[0]
