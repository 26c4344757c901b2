"""The state of a run as its recording keeps it with each request: another process continues from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unbroken.agent.aside import estimate
from unbroken.agent.limits import NOTHING_USED
from unbroken.trajectory.lines import read_delta, read_usage
from unbroken.trajectory.run_state import RunState
from unbroken_wires.deltas import AttemptFailed, PartialResponse, UsageReported
from unbroken_wires.messages import Json, Usage
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.shorten import characters

if TYPE_CHECKING:
    from unbroken.agent.run import Run


def saved_state(run: Run) -> dict[str, Json]:
    """What another process needs besides the history to continue from here. Values that have not changed since the
    start are left out, except for the counters."""
    account = run.account
    state: dict[str, Json] = {
        "rounds": account.rounds,
        "requests": account.requests,
        "calls": account.calls,
        "usage": account.usage.to_json(),
        "attempts": run.attempts,
    }
    if account.usage.cost is not None:
        state["cost"] = account.usage.cost
    if account.usage.cache_saving is not None:
        state["cache_saving"] = account.usage.cache_saving
    if run.fallback_used:
        state["fallback_used"] = True
    if run.nudge:
        state["nudge"] = True
    if run.nudges:
        state["nudges"] = run.nudges
    if run.empty_answers:
        state["empty_answers"] = run.empty_answers
    if run.pauses:
        state["pauses"] = run.pauses
    if run.corrections:
        state["corrections"] = run.corrections
    if run.retries:
        state["retries"] = dict(run.retries)
    if streaks := run.repetition.streaks:
        state["streaks"] = streaks
    if run.stop is not None:
        state["stop"] = run.stop
    if run.emitter.next_call:
        state["next_call"] = run.emitter.next_call
    if run.plan.preparing:
        state["tokens"] = run.tokens
        if run.aside:
            state["aside"] = True
        if run.notes:
            state["notes"] = dict(run.notes)
    if run.changing is not None and run.changing.taken:
        state["handoffs"] = [asdict(each) for each in run.changing.taken]
    return state


def lost_usage(cut: RunState) -> Usage:
    """What the last request has used, or may have, if its answer was cut off: as reported, or else estimated by its
    characters. An attempt that failed before anything arrived has used nothing."""
    if cut.request is None or cut.lost is None:
        return NOTHING_USED
    sent, failed = sum(map(characters, from_json([*cut.request.messages]))), False
    total, reported, response = NOTHING_USED, None, PartialResponse()
    for line in cut.lost:
        delta = None if line["line"] == "failed" else read_delta(line, response)
        failed = delta is None or isinstance(delta, AttemptFailed)
        if failed:
            if reported is not None or not response.is_empty:
                total += reported or estimate(sent, response.message)
            reported, response = None, PartialResponse()
        elif isinstance(delta, UsageReported):
            reported = delta.usage if delta.usage.total_tokens else reported
        elif delta is not None:
            response.feed(delta)
    return total if failed else total + (reported or estimate(sent, response.message))


def recall(run: Run, state: Mapping[str, Any]) -> None:
    """Restores the state from before the last request, which is sent again."""
    account = run.account
    account.rounds, account.calls = state.get("rounds", 0), state.get("calls", 0)
    account.requests = max(state.get("requests", 1) - 1, 0)
    account.usage = read_usage(state.get("usage"), state.get("cost"), state.get("cache_saving")) or NOTHING_USED
    run.attempts, run.fallback_used = max(state.get("attempts", 1) - 1, 0), state.get("fallback_used", False)
    run.nudge, run.nudges = state.get("nudge", False), state.get("nudges", 0)
    run.empty_answers = state.get("empty_answers", 0)
    run.pauses, run.corrections = state.get("pauses", 0), state.get("corrections", 0)
    run.stop = state.get("stop")
    run.retries = dict(state.get("retries", {}))
    run.repetition.recall(state.get("streaks", {}))
    run.tokens, run.notes = state.get("tokens", 0), dict(state.get("notes", {}))
