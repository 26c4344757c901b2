"""Thoughts, actions and observations: the order holds under every schedule, nothing is lost, and early calls stay
early."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Desk, only, play_aloud

from unbroken import Agent, Allow, Event, Policy, RetryingModel, Schedule, ScriptedModel, Wait
from unbroken.agent.steps import Action, Answer, Observation, Step, Steps, Thought, TodoUpdate, steps
from unbroken.events import ToolCallsDetected
from unbroken.tools.todo import todo_write
from unbroken_testing import Break, Call, Cut, Say, run_virtual

pytestmark = pytest.mark.multi_tool_call

TODOS = [{"content": "look", "status": "pending"}]


def told(events: list[Event]) -> list[Step]:
    following = Steps()
    return [step for event in events for step in following.take(event)]


def kinds(events: list[Event]) -> str:
    """The types of all steps by their first letters."""
    return "".join(step.type[0] if step.type != "answer" else "." for step in told(events))


@pytest.mark.parametrize("schedule", Schedule)
def test_the_order_is_thought_actions_observations_and_the_to_do_list(schedule: Schedule) -> None:
    """The order of design document 004, section 1, under every schedule."""
    desk = Desk()
    tools = [desk.tool("slow", seconds=2.0, effect="read"), desk.tool("quick", effect="read"), todo_write]
    calls = [Say("Let me see."), Call("slow", id="a"), Call("todo_write", id="b", todos=TODOS), Call("quick", id="c")]
    _, events = play_aloud(Agent(ScriptedModel([*calls, Call("unknown", id="d")], "Done."), tools, schedule=schedule))
    found = told(events)
    assert [step.type for step in found] == [
        "thought",
        "action",
        "action",
        "action",
        "action",
        "observation",
        "observation",
        "todo_update",
        "observation",
        "observation",
        "answer",
    ]
    assert [step.call_id for step in found if isinstance(step, Action)] == ["a", "b", "c", "d"]
    observed = [step for step in found if isinstance(step, Observation)]
    assert [(step.call_id, step.tool, step.duration) for step in observed] == [
        ("a", "slow", 2.0),
        ("b", "todo_write", 0.0),
        ("c", "quick", 0.0),
        ("d", "unknown", 0.0),
    ]
    assert [step.error for step in observed] == [False, False, False, True]
    assert (found[0], found[-1]) == (Thought(0, "Let me see."), Answer(1, "Done."))
    assert [step.todos[0]["content"] for step in found if isinstance(step, TodoUpdate)] == ["look"]


def test_a_call_that_starts_early_still_starts_early() -> None:
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b", after=1.0)], "Done.")
    agent = Agent(model, desk.tools("a", "b", effect="read", seconds=1.0))
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        async for step in steps(agent.stream("Go.")):
            seen.append((step.type, asyncio.get_running_loop().time()))

    run_virtual(main())
    assert desk.spans == [("a", 0.0, 1.0), ("b", 1.0, 2.0)]
    assert seen == [("action", 1.0), ("action", 1.0), ("observation", 1.0), ("observation", 2.0), ("answer", 2.0)]


CALLS = st.sampled_from(
    ["read", "slow_read", "write", "slow_write", "overlap", "fails", "unknown", "cut", "todo_write"]
)
ROUNDS = st.lists(st.tuples(st.booleans(), st.lists(CALLS, min_size=1, max_size=5)), max_size=3)


def line(thinks: bool, names: list[str], number: int) -> list[Any]:
    said: list[Any] = [Say(f"Thought {number}.")] if thinks else []
    for place, name in enumerate(names):
        arguments: dict[str, Any] = {"n": f"{number}.{place % 2}"}
        if name == "todo_write":
            arguments = {"todos": [{"content": f"step {number}", "status": "pending"}]}
        said.append(Cut("read", f'{{"n": {number}') if name == "cut" else Call(name, **arguments))
    return said


@given(ROUNDS, st.sampled_from(Schedule), st.booleans())
def test_the_order_holds_and_nothing_is_lost(
    rounds: list[tuple[bool, list[str]]], schedule: Schedule, eagerly: bool
) -> None:
    desk = Desk()
    tools = [
        desk.tool("read", effect="read"),
        desk.tool("slow_read", effect="read", seconds=1.0),
        desk.tool("write"),
        desk.tool("slow_write", seconds=2.0),
        desk.tool("overlap", overlap=True, seconds=0.5),
        desk.tool("fails", fails="no", overlap=eagerly),
        todo_write,
    ]
    script = [line(thinks, names, number) for number, (thinks, names) in enumerate(rounds)]
    result, events = play_aloud(Agent(ScriptedModel(*script, "Done."), tools, schedule=schedule))
    found, at = told(events), 0
    for turn, detected in enumerate(only(ToolCallsDetected, events)):
        in_turn = [step for step in found if step.step == turn]
        assert found[at : at + len(in_turn)] == in_turn  # turns do not mix
        at += len(in_turn)
        ids = [call["id"] for call in detected.calls]
        thoughts = [step for step in in_turn if isinstance(step, Thought)]
        actions = [step for step in in_turn if isinstance(step, Action)]
        rest = in_turn[len(thoughts) + len(actions) :]
        assert [*thoughts, *actions, *rest] == in_turn
        assert len(thoughts) == rounds[turn][0]
        assert [step.call_id for step in actions] == ids
        assert [step.call_id for step in rest if isinstance(step, Observation)] == ids
        for place, step in enumerate(rest):
            if isinstance(step, TodoUpdate):
                before = rest[place - 1]
                assert isinstance(before, Observation)
                assert before.tool == "todo_write"
        assert sum(isinstance(step, TodoUpdate) for step in rest) <= rounds[turn][1].count("todo_write")
    assert [step.result for step in found if isinstance(step, Observation)] == [
        call.result.text for call in result.calls
    ]
    assert found[at:] == [Answer(found[-1].step, result.text)]


def test_calls_of_a_broken_stream_are_no_steps_unless_they_are_made_again() -> None:
    desk = Desk()
    model = ScriptedModel(
        [Say("Let me"), Call("a"), Call("b"), Call("gone"), Break()],
        [Say("Let me see."), Call("a"), Call("b")],
        "Done.",
    )
    _, events = play_aloud(Agent(RetryingModel(model), desk.tools("a", "b", "gone", effect="read", seconds=1.0)))
    assert kinds(events) == "taaoo."
    assert [step.tool for step in told(events) if isinstance(step, Action)] == ["a", "b"]


def test_a_result_behind_a_waiting_call_is_shown_and_the_rest_when_the_run_is_resumed() -> None:
    desk = Desk()
    model = ScriptedModel([Call("asks", id="x"), Call("look", id="y")], "Done.")
    tools = [desk.tool("asks", approve=True, overlap=True), desk.tool("look", overlap=True)]
    agent = Agent(model, tools, schedule=Schedule.PARALLEL, on_approval=lambda call: Wait())

    async def main() -> tuple[list[Event], list[Event]]:
        first: list[Event] = []
        second: list[Event] = []
        waiting = await agent.run("Go.", sinks=[first.append])
        await agent.resume(waiting, {"x": Allow()}, sinks=[second.append])
        return first, second

    first, second = run_virtual(main())
    assert (kinds(first), kinds(second)) == ("aao", "ao.")
    assert [step.call_id for step in told(second) if isinstance(step, Observation)] == ["x"]


def test_a_background_call_is_observed_twice_at_the_end_of_its_rounds() -> None:
    desk = Desk()
    tools = [desk.tool("slow", "ready", seconds=5.0, background=1), desk.tool("wait", seconds=9.0)]
    model = ScriptedModel([Call("slow")], [Call("wait")], "Done.")
    _, events = play_aloud(Agent(model, tools, policy=Policy()))
    observed = [(step.tool, step.result) for step in told(events) if isinstance(step, Observation)]
    assert observed == [("slow", "running in the background as $call_1"), ("wait", "ok"), ("slow", "ready")]


def test_reading_no_further_ends_the_run() -> None:
    desk = Desk()
    agent = Agent(ScriptedModel([Call("look")], "Done."), desk.tools("look", seconds=5.0))

    async def main() -> list[str]:
        seen: list[str] = []
        async with aclosing(steps(agent.stream("Go."))) as running:
            async for step in running:
                seen.append(step.type)
                break
        return seen

    assert run_virtual(main()) == ["action"]
    assert [execution.ended for execution in desk.executions] in ([], [None])
