"""Calls that run in parallel: the tests of seed 004 (section 3), the guidance for the model, and the todo list."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import WIRES, Desk, accepted, only, play, play_aloud, results_in

from unbroken import Agent, CallFinished, CallStarted, Event, Schedule, ScriptedModel
from unbroken.events import TextFinished, TodoUpdated
from unbroken.tools.todo import todo_write
from unbroken_testing import Call, Say

TOGETHER = [Schedule.PARALLEL, Schedule.EAGER]


def starts_and_ends(events: list[Event]) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStarted):
            told.append(("started", event.name))
        elif isinstance(event, CallFinished):
            told.append(("finished", event.name))
    return told


@pytest.mark.parametrize("schedule", TOGETHER)
@pytest.mark.parametrize("wire", WIRES)
def test_all_starts_are_reported_before_the_first_end(wire: str, schedule: Schedule) -> None:
    """Seed 3.1: test_parallel_tool_execution_event_order."""
    model = ScriptedModel([Say("I'll search."), Call("a"), Call("b"), Call("c")], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, Desk().tools("a", "b", "c", overlap=True), schedule=schedule))
    assert starts_and_ends(events) == [
        ("started", "a"),
        ("started", "b"),
        ("started", "c"),
        ("finished", "a"),
        ("finished", "b"),
        ("finished", "c"),
    ]
    assert [(event.text, event.final) for event in only(TextFinished, events)] == [
        ("I'll search.", False),
        ("Done.", True),
    ]
    accepted(model, result)


def test_reads_start_as_soon_as_they_are_complete() -> None:
    """Seed 3.1, if calls do not have to wait for the complete response."""
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b", after=0.25), Call("c", after=0.25)], "Done.")
    _, events = play_aloud(Agent(model, desk.tools("a", "b", "c", effect="read", seconds=1.0)))
    assert desk.spans == [("a", 0.0, 1.0), ("b", 0.25, 1.25), ("c", 0.5, 1.5)]
    assert [event.early for event in only(CallStarted, events)][:2] == [True, True]


@pytest.mark.parametrize("promise", [{"effect": "read"}, {"overlap": True}], ids=str)
@pytest.mark.parametrize("schedule", Schedule)
def test_parallel_calls_take_as_long_as_the_slowest(schedule: Schedule, promise: dict[str, Any]) -> None:
    """Seed 3.2: test_parallel_execution_performance: three times 0.1 s takes 0.1 s, and 0.3 s one after another."""
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b"), Call("c")], "Done.")
    result = play(Agent(model, desk.tools("a", "b", "c", seconds=0.1, **promise), schedule=schedule))
    assert result.seconds == (0.3 if schedule is Schedule.SEQUENTIAL else 0.1)
    assert [call.seconds for call in result.calls] == [0.1, 0.1, 0.1]
    started = {start for _, start, _ in desk.spans}
    assert len(started) == (3 if schedule is Schedule.SEQUENTIAL else 1)


@pytest.mark.parametrize("schedule", TOGETHER)
@pytest.mark.parametrize("wire", WIRES)
def test_a_failing_call_leaves_the_others_running(wire: str, schedule: Schedule) -> None:
    """Seed 3.3: test_parallel_execution_partial_failure. It fails while the others are still under way."""
    desk = Desk()
    tools = [
        desk.tool("a", "a", seconds=0.2, overlap=True),
        desk.tool("b", fails="b is down", seconds=0.1, overlap=True),
        desk.tool("c", "c", seconds=0.3, overlap=True),
    ]
    model = ScriptedModel([Call("a", id="1"), Call("b", id="2"), Call("c", id="3")], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, tools, schedule=schedule))
    assert desk.spans == [("a", 0.0, 0.2), ("b", 0.0, 0.1), ("c", 0.0, 0.3)]
    assert results_in(result.messages) == [("1", "a"), ("2", "Error: b is down"), ("3", "c")]
    finished = [(event.name, event.seconds, event.error) for event in only(CallFinished, events)]
    assert finished == [("b", 0.1, True), ("a", 0.2, False), ("c", 0.3, False)]
    accepted(model, result)


@pytest.mark.parametrize("schedule", TOGETHER)
@pytest.mark.parametrize("wire", WIRES)
def test_three_parallel_calls_then_one_then_the_answer(wire: str, schedule: Schedule) -> None:
    """Seed 3.4: test_mixed_parallel_and_sequential."""
    desk = Desk()
    model = ScriptedModel([Call("a"), Call("b"), Call("c")], Call("d"), "Done.", wire=wire)
    tools = desk.tools("a", "b", "c", "d", seconds=0.1, overlap=True)
    result, events = play_aloud(Agent(model, tools, schedule=schedule))
    assert desk.spans == [("a", 0.0, 0.1), ("b", 0.0, 0.1), ("c", 0.0, 0.1), ("d", 0.1, 0.2)]
    assert [(event.turn, event.name) for event in only(CallStarted, events)] == [(0, "a"), (0, "b"), (0, "c"), (1, "d")]
    assert (result.text, result.rounds, result.requests, result.seconds) == ("Done.", 2, 3, 0.2)
    accepted(model, result)


@pytest.mark.parametrize(
    ("instructions", "words"),
    [
        (
            "Be brief.",
            ["make them all in one reply", "Together:", "One after another:", "Example:", "Right:", "Wrong:"],
        ),
        ("请简短回答。", ["一次回复中同时发出", "适合一起调用", "不适合一起调用", "示例", "正确：", "错误："]),
    ],
    ids=["English", "Chinese"],
)
def test_the_prompt_explains_when_to_call_several_tools_together(instructions: str, words: list[str]) -> None:
    """Section 2: when to, when not to, and an example, in the language of the instructions."""
    model = ScriptedModel("Hello.")
    play(Agent(model, Desk().tools("search"), instructions))
    system = model.bodies[0]["messages"][0]["content"]
    assert system.startswith(instructions)
    assert [word for word in words if word not in system] == []


READS: dict[str, Any] = {"effect": "read"}
NOTHING: dict[str, Any] = {}
AT_ONCE = "They run at the same time."
IN_ORDER = "They run one after another, in the order in which you make them."
OTHERS_IN_ORDER = "All other calls run one after another, in the order in which you make them."


@pytest.mark.parametrize(
    ("promises", "schedule", "words"),
    [
        ([READS, READS], Schedule.EAGER, AT_ONCE),
        ([NOTHING, NOTHING], Schedule.EAGER, IN_ORDER),
        ([NOTHING, NOTHING], Schedule.PARALLEL, AT_ONCE),
        ([READS, READS], Schedule.SEQUENTIAL, IN_ORDER),
        ([{"overlap": True}, {"overlap": True}], Schedule.EAGER, AT_ONCE),
        ([{"effect": "exclusive"}] * 2, Schedule.PARALLEL, IN_ORDER),
        ([READS, {"effect": "write"}], Schedule.EAGER, f"Calls of `a` run at the same time. {OTHERS_IN_ORDER}"),
        (
            [READS, {"key": str}, {"overlap": True}, NOTHING],
            Schedule.EAGER,
            "Calls of `a` run at the same time. Calls of `c` run at the same time. Calls of `b` run at the same time "
            f"if they are about different things. {OTHERS_IN_ORDER}",
        ),
    ],
)
def test_the_prompt_is_true_for_the_tools_of_the_request(
    promises: list[dict[str, Any]], schedule: Schedule, words: str
) -> None:
    """Section 2: it may only say that calls run at the same time if they do."""
    desk, names = Desk(), "abcd"[: len(promises)]
    tools = [desk.tool(name, seconds=1.0, **more) for name, more in zip(names, promises, strict=True)]
    model = ScriptedModel([Call(name, n=n) for name in names for n in range(2)], "Done.")
    play(Agent(model, tools, schedule=schedule))
    system = model.bodies[0]["messages"][0]["content"]
    assert f"instead of one after another. {words}\nTogether:" in system
    began = [start for _, start, _ in desk.spans]
    assert (len(set(began)) == 1) == (words == AT_ONCE)
    assert (len(set(began)) == len(began)) == (words == IN_ORDER)


def test_the_prompt_is_true_for_tools_that_change_from_turn_to_turn() -> None:
    desk = Desk()
    turns = [desk.tools("a", effect="read"), [*desk.tools("b", effect="read"), desk.tool("c")]]
    model = ScriptedModel(Call("a"), "Done.")
    play(Agent(model, lambda turn, _: turns[turn]))
    first, second = (body["messages"][0]["content"] for body in model.bodies)
    assert AT_ONCE in first
    assert f"Calls of `b` run at the same time. {OTHERS_IN_ORDER}" in second


def test_the_prompt_does_not_advise_several_calls_where_only_the_first_would_run() -> None:
    model = ScriptedModel("Done.")
    play(Agent(model, Desk().tools("a"), several_calls=False))
    system = model.bodies[0]["messages"][0]["content"]
    assert system.startswith("## Using tools\nMake only one tool call in each reply.")


@pytest.mark.parametrize("schedule", Schedule)
def test_the_todo_list_is_reported_next_to_the_other_calls(schedule: Schedule) -> None:
    """Section 1: `todo_write` also sends the complete list."""
    desk = Desk()
    steps = [{"content": "search", "status": "completed"}, {"content": "write", "status": "in_progress"}]
    model = ScriptedModel([Call("search"), Call("todo_write", todos=steps, id="t")], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("search"), todo_write], schedule=schedule))
    assert [(event.call_id, event.todos) for event in only(TodoUpdated, events)] == [("t", steps)]
    assert [call.error for call in result.calls] == [False, False]
    accepted(model, result)
