"""Rows 24 to 26 of the fault list: whatever limit is reached, a run ends with a real answer and its stop reason, and in
the final turn no tool runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from scenes import (
    Desk,
    accepted,
    can_go_on,
    on_every_wire,
    only,
    play,
    play_aloud,
    texts,
    under_every_schedule,
)

from unbroken import Agent, Limits, Prices, Schedule, ScriptedModel
from unbroken.events import LimitReached
from unbroken_testing import Call, Pause, Say, Uses

# Row 24: the limit is reached


def never_ends(model_says: Callable[[int], list[Any]]) -> Callable[[Any], list[Any]]:
    """A model that calls something new each time, until calls are no longer possible."""
    asked = iter(range(1000))
    return lambda request: [Say("This is what I have."), Uses(10, 5)] if request.final else model_says(next(asked))


LIMITS = [
    pytest.param(Limits(rounds=2), "round_limit", 2, id="rounds"),
    pytest.param(Limits(calls=4), "call_limit", 2, id="calls"),
    pytest.param(Limits(tokens=300), "token_limit", 3, id="tokens"),
    pytest.param(Limits(seconds=2.5), "time_limit", 3, id="seconds"),
    pytest.param(Limits(cost=0.3, prices=Prices(input=1000, output=1000)), "cost_limit", 3, id="cost"),
]


@pytest.mark.parametrize(("limits", "stop_reason", "rounds"), LIMITS)
@on_every_wire
def test_a_limit_still_leads_to_a_real_answer(wire: str, limits: Limits, stop_reason: str, rounds: int) -> None:
    """Rows 24 and 25: each round uses 100 tokens, 2 calls and 1 second."""
    desk = Desk()
    say = never_ends(lambda n: [Call("look", at=n), Call("look", at=-n - 1), Uses(60, 40)])
    model = ScriptedModel(say, wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("look", seconds=1.0, overlap=True), limits=limits))
    assert (result.text, result.stop_reason) == ("This is what I have.", stop_reason)
    assert (result.rounds, result.requests) == (rounds, rounds + 1)
    assert [event.kind for event in only(LimitReached, events)] == [stop_reason]
    assert [request.final for request in model.requests] == [False] * rounds + [True]
    assert [spec.name for spec in model.requests[-1].tools] == ["look"]
    assert len(result.calls) == 2 * rounds
    accepted(model, result)


@on_every_wire
def test_calls_beyond_the_budget_get_a_result_and_the_first_ones_run(wire: str) -> None:
    """Row 24: three calls are allowed and five are made."""
    desk = Desk()
    model = ScriptedModel([Call("look", at=n) for n in range(5)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("look", effect="read"), limits=Limits(calls=3)))
    assert [arguments["at"] for _, arguments in desk.ran] == [0, 1, 2]
    assert texts(result) == ["look done"] * 3 + ["Error: not executed: budget exhausted"] * 2
    assert (result.text, result.stop_reason) == ("Done.", "call_limit")
    accepted(model, result)


@under_every_schedule
@on_every_wire
def test_when_the_time_is_up_running_tools_end_and_the_answer_has_its_own_time(wire: str, schedule: Schedule) -> None:
    """Row 24: the limit is reached during a round; the final answer takes 20 s of its own 60."""
    desk = Desk()
    tools = [desk.tool("quick", "quick", seconds=1.0), desk.tool("slow", seconds=9.0), desk.tool("never", seconds=9.0)]
    calls = [Call("quick"), Call("slow"), Call("never")]
    model = ScriptedModel(calls, [Pause(20.0), Say("I have a part.")], wire=wire)
    result = play(Agent(model, tools, schedule=schedule, limits=Limits(seconds=3.0)))
    assert (result.text, result.stop_reason, result.seconds) == ("I have a part.", "time_limit", 23.0)
    assert [call.error for call in result.calls] == [False, True, True]
    assert "time limit" in result.calls[1].result.text
    assert desk.names == (["quick", "slow", "never"] if schedule is Schedule.PARALLEL else ["quick", "slow"])
    accepted(model, result)


def test_a_final_answer_that_never_arrives_is_abandoned() -> None:
    """Row 24: `final_seconds`, and still a text and a valid history."""
    model = ScriptedModel(Call("look"), [Say("I was about to"), Pause(1e6)])
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1, final_seconds=5.0)))
    assert (result.text, result.stop_reason, result.seconds) == ("I was about to", "round_limit", 5.0)
    can_go_on(result.messages)
    model = ScriptedModel(Call("look"), Pause(1e6))
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1, final_seconds=5.0)))
    assert "round_limit" in result.text
    can_go_on(result.messages)


@on_every_wire
def test_a_response_that_exceeds_the_time_limit_is_used_as_far_as_it_arrived(wire: str) -> None:
    """Row 24: it may take as long as a final one beyond the limit, and not longer."""
    desk = Desk()
    model = ScriptedModel([Say("Let me see."), Call("look"), Pause(200.0)], wire=wire)
    limits = Limits(seconds=5.0, final_seconds=10.0)
    result, events = play_aloud(Agent(model, desk.tools("look", seconds=99.0, effect="read"), limits=limits))
    assert (result.text, result.stop_reason, result.seconds) == ("Let me see.", "time_limit", 15.0)
    assert desk.spans == [("look", 0.0, None)]
    assert [event.kind for event in only(LimitReached, events)] == ["time_limit"]
    can_go_on(result.messages)


def test_missing_token_counts_are_estimated_and_marked() -> None:
    """Row 24: a provider without usage."""
    say = never_ends(lambda n: [Call("look", text="x" * 400, n=n)])
    result = play(Agent(ScriptedModel(say), Desk().tools("look"), limits=Limits(tokens=500)))
    assert result.stop_reason == "token_limit"
    assert result.usage.estimated


# Row 26: a call in the final turn


@on_every_wire
def test_a_call_in_the_final_turn_is_refused_and_text_is_requested_once_more(wire: str) -> None:
    """Row 26."""
    desk = Desk()
    model = ScriptedModel(Call("look"), Call("look", at=2), "Well then.", wire=wire)
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
    assert desk.ran == [("look", {})]
    assert texts(result)[1].startswith("Error: not executed: no more tools can be called")
    assert (result.text, result.stop_reason, result.requests) == ("Well then.", "round_limit", 3)
    assert [request.final for request in model.requests] == [False, True, True]
    accepted(model, result)


@on_every_wire
def test_a_model_that_only_calls_in_its_final_turns_still_ends_with_text(wire: str) -> None:
    """Row 26: the text next to its calls is the answer; if there is none, we explain why."""
    for said, text in (("Half an answer.", "Half an answer."), ("", "The run ended (round_limit)")):
        desk = Desk()
        model = ScriptedModel(Call("look"), *[[Say(said), Call("look", at=n)] for n in (2, 3)], wire=wire)
        result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
        assert desk.ran == [("look", {})]
        assert result.text.startswith(text)
        assert result.stop_reason == "round_limit"
        accepted(model, result)


def test_zero_rounds_mean_a_plain_question() -> None:
    """Row 26: no calls are allowed from the start."""
    desk = Desk()
    model = ScriptedModel("Hello.")
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=0)))
    assert (result.text, result.stop_reason, result.requests) == ("Hello.", "round_limit", 1)
    accepted(model, result)
