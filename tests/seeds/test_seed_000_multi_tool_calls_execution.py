"""How several calls of one response run: all or only the first, in which order, identical ones, failing ones, slow
ones. Times are exact: the clock is virtual."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from scenes import WIRES, Desk, accepted, only, play, play_aloud, results_in

from unbroken import Agent, CallFinished, Policy, Schedule, ScriptedModel, tool
from unbroken.events import CallsIgnored, RoundFinished, ToolLate
from unbroken.models.scripted import Line
from unbroken_testing import Call
from unbroken_wires.transcript import to_json

ALL_FAILED = "All tool calls failed. Please check the error messages and try again."


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_with_one_call_only_the_first_of_two_runs(wire: str, schedule: Schedule) -> None:
    """Seed 7.2.1: test_flag_disabled_single_tool_call."""
    desk = Desk()
    model = ScriptedModel([Call("first", a=1), Call("second", b=2)], "Done.", wire=wire)
    tools = desk.tools("first", "second", effect="read")
    result, events = play_aloud(Agent(model, tools, several_calls=False, schedule=schedule))
    assert desk.ran == [("first", {"a": 1})]
    assert [event.names for event in only(CallsIgnored, events)] == [["second"]]
    assert [text for _, text in results_in(result.messages)] == ["first done"]
    assert "second done" not in str(model.bodies[1])
    accepted(model, result)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
def test_all_calls_of_a_response_run(wire: str, schedule: Schedule) -> None:
    """Seed 7.2.1: test_flag_enabled_all_tool_calls."""
    desk = Desk()
    model = ScriptedModel([Call("a", n=1), Call("b", n=2), Call("c", n=3)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("a", "b", "c"), schedule=schedule))
    assert desk.ran == [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3})]
    assert [text for _, text in results_in(result.messages)] == ["a done", "b done", "c done"]
    assert (result.text, result.stop_reason) == ("Done.", "answered")
    accepted(model, result)


@pytest.mark.parametrize("effect", ["read", "write", "exclusive"])
def test_sequential_means_in_call_order_and_never_two_at_once(effect: str) -> None:
    """Seed 7.2.1: test_sequential_execution_order."""
    desk = Desk()
    tools = [desk.tool("a", seconds=0.5, effect=effect), desk.tool("b", seconds=0.8, effect=effect)]
    tools.append(desk.tool("c", seconds=0.3, effect=effect))
    model = ScriptedModel([Call("a"), Call("b"), Call("c")], "Done.")
    result, events = play_aloud(Agent(model, tools, schedule=Schedule.SEQUENTIAL))
    assert desk.spans == [("a", 0.0, 0.5), ("b", 0.5, 1.3), ("c", 1.3, 1.6)]
    assert [(event.name, event.seconds) for event in only(CallFinished, events)] == [("a", 0.5), ("b", 0.8), ("c", 0.3)]
    assert [event.seconds for event in only(RoundFinished, events)] == [1.6]
    assert result.seconds == 1.6


@pytest.mark.parametrize("schedule", Schedule)
def test_a_failing_call_does_not_affect_the_others(schedule: Schedule) -> None:
    """Seed 7.2.1: test_partial_failure_continues, and section 9.1."""
    desk = Desk()
    tools = [desk.tool("tool_1", "one"), desk.tool("tool_2", fails="it is broken"), desk.tool("tool_3", "three")]
    model = ScriptedModel([Call("tool_1", id="1"), Call("tool_2", id="2"), Call("tool_3", id="3")], "Done.")
    result = play(Agent(model, tools, schedule=schedule))
    assert desk.names == ["tool_1", "tool_2", "tool_3"]
    assert results_in(result.messages) == [("1", "one"), ("2", "Error: it is broken"), ("3", "three")]
    assert [call.error for call in result.calls] == [False, True, False]
    assert (result.text, result.stop_reason) == ("Done.", "answered")
    accepted(model, result)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("settings", [{"effect": "read"}, {"dedupe": True}], ids=["a read", "dedupe"])
def test_identical_calls_of_one_message_run_once_and_each_has_a_result(
    schedule: Schedule, settings: dict[str, Any]
) -> None:
    """Seed 7.2.1: test_deduplication_within_batch, and section 11.2: name and sorted arguments make the same call."""
    desk = Desk()
    twice = [Call("search", '{"q": "test", "n": 1}', id="1"), Call("search", '{"n": 1, "q": "test"}', id="2")]
    model = ScriptedModel(twice, "Done.")
    result, events = play_aloud(
        Agent(model, [desk.tool("search", "found", seconds=1.0, **settings)], schedule=schedule)
    )
    assert desk.ran == [("search", {"q": "test", "n": 1})]
    assert results_in(result.messages) == [("1", "found"), ("2", "found")]
    assert [(event.call_id, event.duplicate_of) for event in only(CallFinished, events)] == [("1", ""), ("2", "1")]
    assert result.seconds == 1.0
    accepted(model, result)


def test_a_write_runs_once_for_each_call_unless_it_is_shared() -> None:
    """Section 11.2 shares identical calls of every tool; here only tools that declare it, because three rolls are
    meant."""
    desk = Desk()
    twice: Line = [Call("send", to="Ann"), Call("send", to="Ann")]
    play(Agent(ScriptedModel(twice, "Done."), desk.tools("send")))
    assert len(desk.ran) == 2
    shared = Desk()
    play(Agent(ScriptedModel(twice, "Done."), shared.tools("send"), policy=Policy(share_all=True)))
    assert len(shared.ran) == 1


SCENARIOS: list[Any] = [
    pytest.param(
        [Call("get_weather", city="Beijing"), Call("get_news", topic="tech")],
        ["25°C", "Latest news..."],
        2,
        id="weather_and_news",
    ),
    pytest.param([Call("tool_a"), Call("tool_b"), Call("tool_c")], ["a", "b", "c"], 3, id="three_tools"),
    pytest.param([Call("search", q="test"), Call("search", q="test")], ["found", "found"], 1, id="duplicate_calls"),
]


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("calls", "responses", "executions"), SCENARIOS)
def test_the_scenarios_of_the_seed_work(
    calls: list[Call], responses: list[str], executions: int, wire: str, schedule: Schedule
) -> None:
    """Seed 7.4.1: MULTI_TOOL_CALL_SCENARIOS, with the scripted model for 7.3.1 and tools that count for 7.3.2."""
    desk = Desk()
    gives = {call.name: text for call, text in zip(calls, responses, strict=True)}
    tools = [desk.tool(name, text, effect="read") for name, text in gives.items()]
    model = ScriptedModel(["I'll use multiple tools", *calls], "Done.", wire=wire)
    result = play(Agent(model, tools, schedule=schedule))
    assert len(desk.executions) == executions
    assert [text for _, text in results_in(result.messages)] == responses
    assert result.text == "Done."
    accepted(model, result)


@pytest.mark.parametrize("schedule", Schedule)
def test_if_every_call_failed_the_run_may_stop_with_a_plain_sentence(schedule: Schedule) -> None:
    """Seed 9.3: stop, and report it."""
    desk = Desk()
    tools = [desk.tool("a", fails="no"), desk.tool("b", fails="no way")]
    model = ScriptedModel([Call("a"), Call("b")])
    result = play(Agent(model, tools, schedule=schedule, policy=Policy(on_all_failed="stop")))
    assert (result.text, result.stop_reason, result.requests) == (ALL_FAILED, "tool_failure", 1)
    assert [item["metadata"] for item in to_json(result.messages)[2]["results"]] == [{"error": True}, {"error": True}]
    accepted(model, result)


def test_one_good_result_is_enough_to_continue() -> None:
    """Seed 9.3: only when all failed."""
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b")], "Done.")
    result = play(Agent(model, [desk.tool("a", fails="no"), desk.tool("b")], policy=Policy(on_all_failed="stop")))
    assert (result.text, result.stop_reason) == ("Done.", "answered")


def test_by_default_the_model_learns_that_every_call_failed_and_answers() -> None:
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b")], "I could not find out.")
    result = play(Agent(model, [desk.tool("a", fails="no"), desk.tool("b", fails="no")]))
    assert (result.text, result.stop_reason) == ("I could not find out.", "answered")
    accepted(model, result)


@pytest.mark.parametrize("schedule", Schedule)
def test_a_tool_that_takes_too_long_is_an_error_and_the_next_one_runs(schedule: Schedule) -> None:
    """Seed Q4: its wording, and the default of 30 seconds."""
    desk = Desk()
    model = ScriptedModel([Call("slow", id="1"), Call("quick", id="2")], "Done.")
    result = play(Agent(model, [desk.tool("slow", seconds=99.0), desk.tool("quick", "quick")], schedule=schedule))
    assert results_in(result.messages) == [("1", "Error: Execution timeout after 30s"), ("2", "quick")]
    assert [call.seconds for call in result.calls] == [30.0, 0.0]
    assert result.seconds == 30.0
    accepted(model, result)


def test_a_time_out_is_written_without_needless_digits() -> None:
    desk = Desk()
    slow = [desk.tool("slow", seconds=9.0, timeout=2.5)]
    result = play(Agent(ScriptedModel(Call("slow"), "Done."), slow))
    assert result.calls[0].result.text == "Error: Execution timeout after 2.5s"


class Stopped(asyncio.SelectorEventLoop):
    """A loop on which time passes only if somebody lets it."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_a_synchronous_tool_that_hangs_is_abandoned_and_named() -> None:
    """Seed Q4, for a tool that blocks a real thread. Its time passes when it has begun: a tool whose thread did not
    begin in time would not be late."""
    released = threading.Event()
    events: list[Any] = []
    with asyncio.Runner(loop_factory=Stopped) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Stopped)

        @tool(timeout=0.02)
        def hangs() -> str:
            """Hang."""
            loop.call_soon_threadsafe(loop.advance, 0.02)
            released.wait()
            return "late"

        @tool
        def quick() -> str:
            """Be quick."""
            return "quick"

        model = ScriptedModel([Call("hangs"), Call("quick")], "Done.")
        try:
            result = runner.run(Agent(model, [hangs, quick], sinks=[events.append]).run("Go."))
        finally:
            released.set()
    assert [call.result.text for call in result.calls] == ["Error: Execution timeout after 0.02s", "quick"]
    assert [(event.name, event.seconds) for event in only(ToolLate, events)] == [("hangs", 0.02)]
    assert result.text == "Done."
