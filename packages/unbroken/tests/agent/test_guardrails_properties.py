"""What is true for checks in any run: random answers, chunks, orders, breaks, restarts, schedules and wires, on virtual
time. A vetoed call never runs."""

from __future__ import annotations

import asyncio
from typing import Any

from broken_runs import Played, play, schedules, scripts, wires
from hypothesis import given
from hypothesis import strategies as st
from strategies import costly

from unbroken import Limits, Schedule
from unbroken.clock import current_clock
from unbroken.events import CallFinished, CallStarted, RunFailed
from unbroken.guardrails import Retry, Veto, check_answers, check_calls, check_input
from unbroken_testing import Answer, run_virtual
from unbroken_wires.messages import Assistant, ToolCall, ToolMessage

DELAYS = st.sampled_from([0.0, 0.0, 0.05, 0.4, 2.0])
BAD = st.sets(st.sampled_from("abc"))
WAYS = st.sampled_from(["model", "user", "retry", "error", "cancel", "edit"])
SECONDS = st.sampled_from([None, None, 0.2, 1.5])


def refuse(way: str) -> Any:
    """How a check can end without letting the value pass."""
    match way:
        case "retry":
            raise Retry("not that")
        case "error":
            raise KeyError("broken")
        case "cancel":
            raise asyncio.CancelledError
        case "edit":
            return {"path": "other"}
        case _:
            raise Veto("not that", to="user" if way == "user" else "model")


def assert_answered_once(played: Played) -> None:
    for at, message in enumerate(played.messages):
        if isinstance(message, Assistant) and message.calls:
            following = played.messages[at + 1]
            assert isinstance(following, ToolMessage)
            assert [result.call_id for result in following.results] == [call.id for call in message.calls]


@costly
@given(scripts, schedules, wires, BAD, DELAYS, WAYS, SECONDS, st.booleans())
def test_a_vetoed_call_never_runs_whatever_breaks(
    script: list[Answer],
    schedule: Schedule,
    wire: str,
    bad: set[str],
    delay: float,
    way: str,
    seconds: float | None,
    several: bool,
) -> None:
    async def not_bad(call: ToolCall) -> Any:
        await asyncio.sleep(delay)
        return refuse(way) if (call.arguments or {}).get("path") in bad else None

    limits = Limits(rounds=8, seconds=seconds, final_seconds=0.3)
    settings: dict[str, Any] = {"middleware": [check_calls(not_bad)], "limits": limits, "several_calls": several}
    played = run_virtual(play(script, schedule, wire, **settings))
    assert bad.isdisjoint(each.path for each in played.world.executions)
    assert_answered_once(played)
    if way == "user" and (result := played.result) is not None and result.stop_reason == "vetoed":
        assert result.text == "not that"


@costly
@given(scripts, schedules, wires, DELAYS, st.booleans(), SECONDS)
def test_beside_a_parallel_check_nothing_runs_before_it_has_passed(
    script: list[Answer], schedule: Schedule, wire: str, delay: float, evil: bool, seconds: float | None
) -> None:
    passed: list[float] = []

    async def look(text: str) -> None:
        await asyncio.sleep(delay)
        if evil:
            raise Veto("No.")
        passed.append(current_clock().now())

    middleware = [check_input(look, parallel=True)]
    limits = Limits(rounds=8, seconds=seconds, final_seconds=0.3)
    played = run_virtual(play(script, schedule, wire, middleware=middleware, limits=limits))
    assert not any(isinstance(event, RunFailed) and event.error == "UserError" for event in played.events)
    started = [event.time for event in played.events if isinstance(event, CallStarted)]
    if evil:
        assert (played.world.executions, started) == ([], [])
        text = "No." if played.result is None else played.result.text
        assert text == "No." or text.startswith("The run ended (time_limit) before")  # nothing that the model said
    else:
        assert not played.result or played.result.stop_reason != "vetoed"
        assert all(passed and time >= passed[0] for time in started)
    assert_answered_once(played)


@costly
@given(scripts, schedules, wires, BAD, DELAYS)
def test_no_call_of_a_refused_answer_runs(
    script: list[Answer], schedule: Schedule, wire: str, bad: set[str], delay: float
) -> None:
    async def not_bad(answer: Assistant) -> None:
        await asyncio.sleep(delay)
        if any((call.arguments or {}).get("path") in bad for call in answer.calls):
            raise Retry("not that")

    played = run_virtual(play(script, schedule, wire, middleware=[check_answers(not_bad, retries=3)]))
    assert bad.isdisjoint(each.path for each in played.world.executions)
    assert not any(isinstance(event, CallFinished) and event.outcome == "cancelled" for event in played.events)
