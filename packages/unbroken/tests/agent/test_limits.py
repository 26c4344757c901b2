"""Limits of a run: each limit, several together, none at all; the cost of tokens; and estimates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, on_every_wire, only, play, play_aloud, texts

from unbroken import (
    Agent,
    Allow,
    Limits,
    Policy,
    Prices,
    Recorder,
    Request,
    Result,
    RunFinished,
    ScriptedModel,
    Usage,
    UserError,
    Wait,
)
from unbroken.events import LimitReached
from unbroken_testing import Call, Pause, Say, Uses, run_virtual


def endless(*beside: Any, final: Any = "Enough.") -> ScriptedModel:
    """Calls forever, until calls are no longer possible."""
    count = iter(range(1_000))

    def answer(request: Request) -> Any:
        return [final, *beside] if request.final else [Call("look", n=next(count)), *beside]

    return ScriptedModel(answer)


PRICES = Prices(input=10.0, output=100.0)
"""A million of each."""


@pytest.mark.parametrize(
    ("limits", "stop", "rounds"),
    [
        pytest.param(Limits(rounds=2), "round_limit", 2, id="rounds"),
        pytest.param(Limits(calls=3), "call_limit", 3, id="calls"),
        pytest.param(Limits(tokens=220), "token_limit", 2, id="tokens"),
        pytest.param(Limits(seconds=2.5), "time_limit", 3, id="seconds"),
        pytest.param(Limits(cost=0.004, prices=PRICES), "cost_limit", 2, id="cost"),
        pytest.param(Limits(rounds=3, calls=2), "call_limit", 2, id="the call limit comes first"),
        pytest.param(Limits(rounds=2, calls=3, tokens=10_000, seconds=99.0), "round_limit", 2, id="the rounds do"),
        pytest.param(Limits(rounds=None, seconds=1.0, tokens=330), "time_limit", 1, id="the time does"),
        pytest.param(Limits(rounds=None, seconds=9.0, tokens=330), "token_limit", 3, id="the tokens do"),
        pytest.param(Limits(rounds=2, calls=2), "round_limit", 2, id="both at once"),
        pytest.param(Limits(), "round_limit", 16, id="by default"),
    ],
)
def test_the_limit_that_is_reached_first_ends_the_run(limits: Limits, stop: str, rounds: int) -> None:
    model = endless(Uses(100, 10))
    result, events = play_aloud(Agent(model, Desk().tools("look", seconds=1.0), limits=limits))
    assert (result.text, result.stop_reason, result.rounds) == ("Enough.", stop, rounds)
    assert [event.kind for event in only(LimitReached, events)] == [stop]
    assert model.requests[-1].final
    assert not any(request.final for request in model.requests[:-1])
    accepted(model, result)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(rounds=0), "round_limit"),
        (Limits(calls=0), "call_limit"),
        (Limits(tokens=0), "token_limit"),
        (Limits(seconds=0.0), "time_limit"),
        (Limits(cost=0.0, prices=PRICES), "cost_limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@on_every_wire
def test_a_limit_of_zero_means_a_plain_question(wire: str, limits: Limits, stop: str) -> None:
    model = ScriptedModel("Hello.", wire=wire)
    result = play(Agent(model, Desk().tools("look"), limits=limits, policy=Policy(choice="required")))
    assert (result.text, result.stop_reason, result.requests, result.rounds) == ("Hello.", stop, 1, 0)
    assert model.requests[0].final
    accepted(model, result)


@pytest.mark.parametrize("limit", ["rounds", "calls", "tokens", "seconds", "cost", "final_seconds"])
def test_a_negative_limit_is_refused(limit: str) -> None:
    with pytest.raises(UserError, match=rf"Limits\({limit}=-1\): a limit is 0 or more, or None for none"):
        Limits(**{limit: -1}, prices=PRICES)


def test_a_cost_needs_prices() -> None:
    with pytest.raises(UserError, match=r"prices=Prices\(input=…, output=…\)"):
        play(Agent(endless(), Desk().tools("look"), limits=Limits(cost=1.0)))


@pytest.mark.parametrize(
    ("prices", "usage", "cost"),
    [
        (Prices(10, 100), Usage(1_000_000, 0), 10.0),
        (Prices(10, 100), Usage(0, 500_000), 50.0),
        (Prices(10, 100), Usage(1_000_000, 0, cached_tokens=400_000), 10.0),
        (Prices(10, 100, cached=1), Usage(1_000_000, 0, cached_tokens=400_000), 6.4),
        (Prices(10, 100, cached=1, cache_write=20), Usage(1_000_000, 0, 400_000, 100_000), 7.4),
        (Prices(10, 100, cached=0), Usage(1_000_000, 0, cached_tokens=1_000_000), 0.0),
        (Prices(10, 100, cached=1), Usage(100, 0, cached_tokens=1_000_000), 1.0),
    ],
)
def test_what_tokens_cost(prices: Prices, usage: Usage, cost: float) -> None:
    assert prices.of(usage) == pytest.approx(cost)


def test_the_cost_of_a_run_is_reported() -> None:
    model = ScriptedModel([Call("look"), Uses(1000, 100, cached=500)], ["Done.", Uses(2000, 10)])
    prices = Prices(input=10.0, output=100.0, cached=2.0)
    result = play(Agent(model, Desk().tools("look"), limits=Limits(prices=prices)))
    assert result.cost == pytest.approx((500 * 10 + 500 * 2 + 100 * 100 + 2000 * 10 + 10 * 100) / 1_000_000)


def test_without_prices_the_cost_of_a_run_is_unknown() -> None:
    assert play(Agent(ScriptedModel(["Done.", Uses(1000, 100)]))).cost is None


def test_tokens_are_those_that_were_reported() -> None:
    model = ScriptedModel([Call("look"), Uses(100, 10, cached=50, reasoning=5)], ["Done.", Uses(200, 20)])
    result, events = play_aloud(Agent(model, Desk().tools("look")))
    usage = result.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (300, 30, 50)
    assert (usage.reasoning_tokens, usage.total_tokens, usage.estimated) == (5, 330, False)
    (finished,) = only(RunFinished, events)
    assert (finished.usage["input_tokens"], finished.usage["estimated"]) == (300, False)


@on_every_wire
def test_missing_token_counts_are_estimated_and_marked(wire: str) -> None:
    model = ScriptedModel(["x" * 4000, Uses(0, 0)], wire=wire)
    result = play(Agent(model, instructions="y" * 400), "z" * 40)
    assert result.usage.estimated
    assert 1000 <= result.usage.output_tokens <= 1010
    assert 110 <= result.usage.input_tokens <= 120


def test_one_request_without_usage_marks_the_total_as_estimated() -> None:
    model = ScriptedModel([Call("look"), Uses(100, 10)], "Done.")
    result = play(Agent(model, Desk().tools("look")))
    assert result.usage.estimated
    assert result.usage.total_tokens > 110


def test_the_final_request_has_its_own_time() -> None:
    model = ScriptedModel(Call("look"), [Pause(8.0), Say("Enough.")])
    limits = Limits(seconds=3.0, final_seconds=10.0)
    result = play(Agent(model, Desk().tools("look", seconds=99.0, timeout=None), limits=limits))
    assert (result.text, result.stop_reason, result.seconds) == ("Enough.", "time_limit", 11.0)
    assert texts(result) == ["Error: cancelled: the time limit of the run was reached"]
    accepted(model, result)


def test_a_final_request_without_any_time_still_ends_in_a_text() -> None:
    model = ScriptedModel(Call("look"), [Pause(1.0), Say("Never.")])
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1, final_seconds=0.0)))
    assert result.text == "The run ended (round_limit) before the model gave an answer."
    assert result.cut_off
    can_go_on(result.messages)


def ended(*script: Any, **options: Any) -> tuple[str, bool]:
    """How the run ended; its event, its saved form and its replay say the same."""
    tools = [*Desk().tools("look", seconds=2.0), Desk().tool("broken", fails="no")]
    result, events = play_aloud(Agent(ScriptedModel(*script), tools, **options))
    (finished,) = only(RunFinished, events)
    assert finished.cut_off == result.cut_off == Result.from_json(result.to_json()).cut_off
    assert result.metrics.cut_off + result.metrics.answered == 1
    return result.stop_reason, result.cut_off


def test_an_answer_that_used_the_whole_budget_is_an_answer() -> None:
    call, again = Call("look"), Call("look", n=2)
    one = Limits(rounds=1)
    assert ended("Hello.") == ("answered", False)
    assert ended(call, "Enough.", limits=one) == ("round_limit", False)
    assert ended(call, again, "Enough.", limits=one) == ("round_limit", False)  # refused, then it answered
    assert ended(call, again, [Say("I still look."), again], limits=one) == ("round_limit", True)
    assert ended(call, [Pause(3.0), Say("Late.")], limits=Limits(rounds=1, final_seconds=2.0)) == ("round_limit", True)
    assert ended(call, "Enough.", limits=Limits(seconds=1.0)) == ("time_limit", False)
    assert ended(call, limits=one, policy=Policy(final_answer=False)) == ("round_limit", True)
    assert ended(Call("broken"), policy=Policy(on_all_failed="stop")) == ("tool_failure", True)


def test_time_between_two_parts_of_a_run_does_not_count_and_time_within_them_does() -> None:
    tools = [Desk().tool("asks", seconds=4.0, approve=True), Desk().tool("slow", seconds=5.0)]
    model = ScriptedModel(Call("slow"), Call("asks"), Call("slow", n=2), "Enough.")
    agent = Agent(model, tools, limits=Limits(seconds=10.0), on_approval=lambda call: Wait())

    async def main() -> None:
        result = await agent.run("Go.")
        assert (result.stop_reason, result.seconds) == ("waiting", 5.0)
        await asyncio.sleep(1000.0)
        result = await agent.resume(result.to_json(), {result.pending[0].id: Allow()})
        assert (result.text, result.stop_reason, result.seconds) == ("Enough.", "time_limit", 10.0)
        assert texts(result) == ["ok", "ok", "Error: cancelled: the time limit of the run was reached"]

    run_virtual(main())


def test_limits_of_a_run_replace_those_of_the_agent() -> None:
    agent = Agent(endless(), Desk().tools("look"), limits=Limits(rounds=5))
    assert play(agent, limits=Limits(rounds=1)).rounds == 1
    assert play(agent).rounds == 5


def test_the_model_is_told_the_budget_of_the_run() -> None:
    model = endless()
    agent = Agent(model, Desk().tools("look"), limits=Limits(rounds=5))
    play(agent, limits=Limits(rounds=2))
    play(agent, limits=Limits(rounds=None, calls=1))
    said = [getattr(request.messages[0], "text", "") for request in model.requests]
    assert "at most 2 replies" in said[0]
    assert "at most" not in said[-1]


def test_calls_that_share_one_execution_count_each() -> None:
    desk = Desk()
    model = ScriptedModel([Call("look"), Call("look"), Call("look", n=2)], "Enough.")
    result = play(Agent(model, desk.tools("look", effect="read"), limits=Limits(calls=2)))
    assert len(desk.executions) == 1
    assert texts(result) == ["look done", "look done", "Error: not executed: budget exhausted"]
    assert (result.stop_reason, len(result.calls)) == ("call_limit", 3)


@on_every_wire
def test_without_a_final_answer_a_run_ends_with_the_results_of_its_last_calls(wire: str, tmp_path: Path) -> None:
    model = ScriptedModel([Say("I look."), Call("look", n=1)], "More.", wire=wire)
    desk = Desk()
    agent = Agent(model, desk.tools("look"), limits=Limits(rounds=1), policy=Policy(final_answer=False))
    recording = tmp_path / "run.jsonl"
    result = run_virtual(agent.run("Look.", sinks=[Recorder(recording)]))
    assert (result.text, result.stop_reason, result.requests) == ("", "round_limit", 1)
    assert [call.error for call in result.calls] == [False]
    again = run_virtual(agent.run("And now?", history=result.messages))
    assert again.text == "More."
    assert agent.replay(recording).messages == result.messages


def test_without_a_final_answer_no_text_of_ours_replaces_failing_tools() -> None:
    model, tools = ScriptedModel([Call("broken")]), [Desk().tool("broken", fails="no")]
    agent = Agent(model, tools, limits=Limits(rounds=1), policy=Policy(final_answer=False, on_all_failed="stop"))
    result = run_virtual(agent.run("Try."))
    assert (result.text, result.stop_reason) == ("", "tool_failure")


def searching(found: list[str], **limits: Any) -> Result[Any]:
    """A run whose searches find these, one after another; the last one for ever."""
    finds = iter(found)
    desk = Desk()

    def find(**arguments: Any) -> str:
        return next(finds, found[-1])

    look = desk.tool("look", find)
    return play(Agent(endless(), [look], limits=Limits(**limits)))


@pytest.mark.parametrize(
    ("found", "rounds"),
    [
        (["a", "b", "c", "c"], 4),
        (["a", "a"], 2),
        (["a\nb", "c", "c\na"], 3),
        (["a", "b", "c", "d", "e", "f", "g"], 5),
    ],
)
def test_the_rounds_may_grow_while_results_bring_something_new(found: list[str], rounds: int) -> None:
    result = searching(found, rounds=2, most_rounds=5)
    assert (result.rounds, result.stop_reason, result.text) == (rounds, "round_limit", "Enough.")


def test_without_most_rounds_new_results_change_nothing() -> None:
    assert searching(["a", "b", "c"], rounds=2).rounds == 2


def test_failures_bring_nothing_new() -> None:
    desk = Desk()
    result = play(Agent(endless(), [desk.tool("look", fails="no index")], limits=Limits(rounds=2, most_rounds=9)))
    assert result.rounds == 2


def test_a_run_whose_rounds_may_grow_replays(tmp_path: Path) -> None:
    finds = iter(["a", "b", "c", "c"])

    def find(**arguments: Any) -> str:
        return next(finds, "c")

    look = Desk().tool("look", find)
    path = tmp_path / "run.jsonl"
    agent = Agent(endless(), [look], limits=Limits(rounds=2, most_rounds=9), record=path)
    run = play(agent)
    assert agent.replay(path).rounds == run.rounds == 4


def test_most_rounds_below_rounds_are_refused() -> None:
    with pytest.raises(UserError, match=r"Limits\(rounds=4, most_rounds=3\): expected `rounds`, or more"):
        Limits(rounds=4, most_rounds=3)
