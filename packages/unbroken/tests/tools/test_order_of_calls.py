"""What runs in parallel under the default schedule: reads overlap, everything else keeps its order unless its tools
declare otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import Desk, accepted, play, play_aloud, texts
from strategies import costly

from unbroken import (
    Agent,
    Allow,
    Deny,
    Result,
    RetryingModel,
    Schedule,
    ScriptedModel,
    Tool,
    ToolCall,
    Wait,
    client_tool,
    tool,
)
from unbroken.errors import InvalidTool
from unbroken.models.scripted import Break, Call, Step
from unbroken.tools.approval import Approval
from unbroken_testing import run_virtual
from unbroken_wires.messages import Json

PATH: dict[str, Any] = {"key": itemgetter("path")}
READ: dict[str, Any] = {"effect": "read"}
OVERLAP: dict[str, Any] = {"overlap": True}
ALONE: dict[str, Any] = {"effect": "exclusive"}
UNDECLARED: dict[str, Any] = {}

END, START, NOTHING = "end", "start", "nothing"
PAIRS = [
    # the earlier call's tool, the later call's tool, same key?, what the later call waits for: EAGER, PARALLEL
    (UNDECLARED, UNDECLARED, False, END, START),
    ({"effect": "write"}, {"effect": "write"}, False, END, START),
    (UNDECLARED, READ, False, END, START),
    (READ, UNDECLARED, False, END, START),
    (READ, READ, False, NOTHING, NOTHING),
    (OVERLAP, OVERLAP, False, NOTHING, NOTHING),
    (OVERLAP, UNDECLARED, False, END, START),
    (UNDECLARED, OVERLAP, False, END, START),
    (OVERLAP, READ, False, END, START),
    (READ, OVERLAP, False, END, START),
    (READ | OVERLAP, OVERLAP, False, NOTHING, NOTHING),
    (PATH, PATH, False, NOTHING, NOTHING),
    (PATH, PATH, True, END, END),
    (PATH | OVERLAP, PATH | OVERLAP, True, END, END),
    (PATH | READ, PATH, True, END, END),
    (PATH | READ, PATH | READ, True, END, END),
    (PATH, UNDECLARED, False, END, START),
    (UNDECLARED, PATH, False, END, START),
    (PATH, READ, False, END, START),
    (PATH | OVERLAP, OVERLAP, False, NOTHING, NOTHING),
    (ALONE, READ, False, END, END),
    (READ, ALONE, False, END, END),
    (OVERLAP, ALONE, False, END, END),
]


def _names(promises: dict[str, Any]) -> str:
    return "+".join("key" if name == "key" else f"{name}={value}" for name, value in promises.items()) or "undeclared"


@pytest.mark.parametrize(
    ("earlier", "later", "same_key", "eager", "parallel"),
    [pytest.param(*pair, id=f"{_names(pair[0])}, {_names(pair[1])}, {pair[2]}") for pair in PAIRS],
)
def test_a_later_call_waits_as_in_the_table(
    earlier: dict[str, Any], later: dict[str, Any], same_key: bool, eager: str, parallel: str
) -> None:
    """The earlier call asks for an approval for 1 s and runs for 2 s."""

    async def after_a_second(call: ToolCall) -> Approval:
        await asyncio.sleep(1.0)
        return Allow()

    begins = {NOTHING: 0.0, START: 1.0, END: 3.0}
    for schedule, waits in ((Schedule.EAGER, eager), (Schedule.PARALLEL, parallel), (Schedule.SEQUENTIAL, END)):
        desk = Desk()
        tools = [desk.tool("earlier", seconds=2.0, approve=True, **earlier), desk.tool("later", **later)]
        model = ScriptedModel([Call("earlier", path="a"), Call("later", path="a" if same_key else "b")], "Done.")
        result = play(Agent(model, tools, schedule=schedule, on_approval=after_a_second))
        started = {run.name: run.started for run in desk.executions}
        assert started == {"earlier": 1.0, "later": begins[waits]}, schedule
        accepted(model, result)


def test_an_exclusive_tool_cannot_overlap() -> None:
    with pytest.raises(InvalidTool, match="an exclusive tool runs alone"):
        tool(name="alone", effect="exclusive", overlap=True)(lambda: None)


# The same as sequential execution


class Store:
    """Shared state that every tool reads and changes; each takes some time between reading and writing."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.at_once = self.most_at_once = 0

    def tools(self, declare: Callable[..., Callable[[Callable[..., Any]], Tool]]) -> list[Tool]:
        async def take_time(seconds: float) -> None:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(seconds)
            self.at_once -= 1

        @declare()
        async def add(item: str, seconds: float) -> str:
            found = [*self.items, item]
            await take_time(seconds)
            self.items = found
            return f"{len(found)} items"

        @declare()
        async def remove(item: str, seconds: float) -> str:
            found = list(self.items)
            found.remove(item)  # fails where it is not there
            await take_time(seconds)
            self.items = found
            return f"without {item}"

        @declare(effect="read")
        async def show(seconds: float) -> str:
            await take_time(seconds)
            return ",".join(self.items)

        return [add, remove, show]


def nothing(**promises: Any) -> Callable[[Callable[..., Any]], Tool]:
    return tool()


SECONDS = st.sampled_from([0.0, 0.1, 0.3, 1.0])


@st.composite
def store_calls(draw: st.DrawFn) -> list[Step]:
    calls: list[Step] = []
    for _ in range(draw(st.integers(1, 8))):
        name = draw(st.sampled_from(["add", "remove", "show"]))
        arguments: dict[str, Json] = {"seconds": draw(SECONDS)}
        if name != "show":
            arguments["item"] = draw(st.sampled_from("abc"))
        calls.append(Call(name, arguments, after=draw(SECONDS), over=draw(SECONDS)))
    return calls


def play_store(
    script: list[list[Step]], schedule: Schedule, chunks: float, declare: Callable[..., Any]
) -> tuple[Store, Result]:
    store = Store()
    model = ScriptedModel(*script, "Done.", chunk_delay=chunks)
    return store, run_virtual(Agent(model, store.tools(declare), schedule=schedule).run("Go."))


@pytest.mark.parametrize("declare", [nothing, tool], ids=["nothing declared", "reads declared"])
@costly
@given(script=st.lists(store_calls(), min_size=1, max_size=3), chunks=st.sampled_from([0.0, 0.01, 0.2]))
def test_results_and_state_are_those_of_sequential_execution(
    declare: Callable[..., Any], script: list[list[Step]], chunks: float
) -> None:
    store, result = play_store(script, Schedule.EAGER, chunks, declare)
    reference, expected = play_store(script, Schedule.SEQUENTIAL, chunks, declare)
    assert store.items == reference.items
    assert texts(result) == texts(expected)
    assert result.messages == expected.messages
    if declare is nothing:
        assert store.most_at_once <= 1


def test_declared_reads_run_in_parallel() -> None:
    script: list[list[Step]] = [[Call("show", seconds=1.0), Call("show", seconds=1.5)]]
    store, result = play_store(script, Schedule.EAGER, 0.0, tool)
    assert (store.most_at_once, result.seconds) == (2, 1.5)


# Approvals, failures, breaks


@pytest.mark.parametrize("decision", [Allow(), Deny("no")], ids=["allowed", "denied"])
def test_undeclared_calls_wait_for_an_approval_in_the_middle(decision: Approval) -> None:
    desk = Desk()

    async def decide(call: ToolCall) -> Approval:
        await asyncio.sleep(5.0)
        return decision

    tools = [*desk.tools("first", "last", seconds=1.0), desk.tool("asks", seconds=1.0, approve=True)]
    result = play(Agent(ScriptedModel([Call("first"), Call("asks"), Call("last")], "Done."), tools, on_approval=decide))
    ran = [("asks", 6.0, 7.0)] if isinstance(decision, Allow) else []
    assert desk.spans == [("first", 0.0, 1.0), *ran, ("last", 7.0 if ran else 6.0, 8.0 if ran else 7.0)]
    assert [call.error for call in result.calls] == [False, not ran, False]


def test_overlapping_calls_run_while_another_call_waits() -> None:
    desk = Desk()
    tools = [
        desk.tool("asks", approve=True, overlap=True),
        desk.tool("beside", "beside", overlap=True),
        desk.tool("after", "after"),
    ]
    agent = Agent(
        ScriptedModel([Call("asks", id="a"), Call("beside"), Call("after")], "Done."),
        tools,
        on_approval=lambda call: Wait(),
    )
    waiting = play(agent)
    assert (waiting.stop_reason, desk.names) == ("waiting", ["beside"])
    result = run_virtual(agent.resume(waiting, {"a": Allow()}))
    assert (desk.names, texts(result)) == (["beside", "asks", "after"], ["ok", "beside", "after"])
    accepted(ScriptedModel(), result)


def test_nothing_runs_after_a_client_call() -> None:
    desk = Desk()
    tools = [client_tool("pick", "Pick.", {"type": "object", "properties": {}}), desk.tool("after")]
    agent = Agent(ScriptedModel([Call("pick", id="p"), Call("after")], "Done."), tools)
    waiting = play(agent)
    assert (waiting.stop_reason, desk.names) == ("waiting", [])
    assert run_virtual(agent.resume(waiting, {"p": "red"})).text == "Done."
    assert desk.names == ["after"]


def test_after_a_failure_no_later_call_has_run_if_errors_end_the_run() -> None:
    desk = Desk()
    tools = [desk.tool("fails", fails="no"), *desk.tools("after")]
    model = ScriptedModel([Call("after", n=1), Call("fails"), Call("after", n=2)], "Done.")
    result = play(Agent(model, tools, on_error="finish"))
    assert desk.names == ["after", "fails"]
    assert texts(result)[2] == "Error: not executed: an earlier call failed"


def test_a_read_of_a_broken_answer_is_adopted_and_the_write_after_it_waits() -> None:
    desk = Desk()
    from_break = ScriptedModel(
        [Call("look"), Call("act", after=0.5), Break()], [Call("look"), Call("act"), Call("look", n=2)], "Done."
    )
    tools = [desk.tool("look", seconds=2.0, effect="read"), desk.tool("act", seconds=1.0)]
    play(Agent(RetryingModel(from_break, first_wait=0.0), tools))
    assert desk.spans == [("look", 0.0, 2.0), ("act", 2.0, 3.0), ("look", 3.0, 5.0)]


def test_identical_undeclared_calls_run_one_after_another() -> None:
    desk = Desk()
    play(Agent(ScriptedModel([Call("roll")] * 3, "Done."), desk.tools("roll", seconds=1.0)))
    assert desk.spans == [("roll", 0.0, 1.0), ("roll", 1.0, 2.0), ("roll", 2.0, 3.0)]


@pytest.mark.parametrize(("promise", "seconds"), [({}, 2.0), ({"overlap": True}, 1.0), ({"effect": "read"}, 1.0)])
def test_agents_as_tools_keep_their_order_unless_they_declare_otherwise(
    promise: dict[str, Any], seconds: float
) -> None:
    def inner(name: str) -> Tool:
        desk = Desk()
        agent = Agent(ScriptedModel(Call("look"), "Seen."), desk.tools("look", seconds=1.0))
        return agent.as_tool(name, "Look.", **promise)

    model = ScriptedModel([Call("one", task="a"), Call("two", task="b")], "Done.")
    assert play(Agent(model, [inner("one"), inner("two")])).seconds == seconds


# The hint


def hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "declare nothing" in record.getMessage()]


def test_undeclared_tools_that_cost_time_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    calls = [Call("slow_a"), Call("slow_b"), Call("slow_a", n=2)]
    agent = Agent(ScriptedModel(calls, calls, "Done."), desk.tools("slow_a", "slow_b", seconds=0.4))
    with caplog.at_level(logging.WARNING, "unbroken.tools"):
        play(agent)
    (hint,) = hints(caplog)
    assert hint == agent.order_hint.text
    assert hint.startswith("3 calls of `slow_a`, `slow_b` ran one after another and took 1.2 s; side by side 0.4 s: ")
    assert 'write @tool(effect="read") if they only read' in hint
    assert "overlap=True" in hint
    assert "\n" not in hint


def test_the_first_round_that_an_undeclared_tool_slowed_down_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    """Three calls of 0.1 s, as in the document about parallel calls."""
    agent = Agent(ScriptedModel([Call("three")] * 3, "Done."), Desk().tools("three", seconds=0.1))
    with caplog.at_level(logging.WARNING, "unbroken.tools"):
        play(agent)
    (hint,) = hints(caplog)
    assert hint.startswith("3 calls of `three` ran one after another and took 0.3 s; side by side 0.1 s: ")


@pytest.mark.parametrize(
    ("promises", "seconds", "schedule"),
    [
        ({"effect": "read"}, 9.0, Schedule.EAGER),
        ({"overlap": False}, 9.0, Schedule.EAGER),
        ({"overlap": True}, 9.0, Schedule.EAGER),
        ({"key": itemgetter("n")}, 9.0, Schedule.EAGER),
        ({"effect": "exclusive"}, 9.0, Schedule.EAGER),
        ({}, 0.09, Schedule.EAGER),
        ({}, 9.0, Schedule.SEQUENTIAL),
        ({}, 9.0, Schedule.PARALLEL),
    ],
)
def test_there_is_no_hint_if_nothing_is_lost(promises: dict[str, Any], seconds: float, schedule: Schedule) -> None:
    model = ScriptedModel([Call("a_tool", n=1), Call("a_tool", n=2)], "Done.")
    agent = Agent(model, [Desk().tool("a_tool", seconds=seconds, **promises)], schedule=schedule)
    _, events = play_aloud(agent)
    assert (agent.order_hint.text, bool(events)) == ("", True)


def test_an_effect_that_is_declared_needs_no_hint() -> None:
    assert tool(name="a", effect="write")(lambda: None).overlap is False
    assert tool(name="a")(lambda: None).overlap is None
