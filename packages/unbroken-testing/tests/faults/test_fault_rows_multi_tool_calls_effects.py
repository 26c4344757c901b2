"""What may run in parallel: reads and writes of one thing, keys, barriers, under every schedule. And one call at a
time, if a wire keeps more of the message than our own fields do."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

import pytest
import wire_bytes
from scenes import (
    WIRES,
    Desk,
    accepted,
    can_go_on,
    on_every_wire,
    only,
    play,
    play_aloud,
    results_in,
    under_every_schedule,
)
from wire_bytes import block, tool_use

from unbroken import Agent, Allow, CallStarted, Conversation, Schedule, ScriptedModel, Tool, ToolCall, tool
from unbroken.events import CallsIgnored
from unbroken.tools.approval import Approval
from unbroken_testing import Call, Pause, Raw, Say, Think, run_virtual


def file_tools(files: dict[str, str], keyed: bool) -> list[Tool]:
    key = itemgetter("path") if keyed else None

    @tool(key=key)
    async def write_file(path: str, text: str) -> str:
        """Write a file, slowly."""
        await asyncio.sleep(2.0)
        files[path] = text
        return "written"

    @tool(effect="read", key=key)
    async def read_file(path: str) -> str:
        """Read a file."""
        return files.get(path, "no such file")

    return [write_file, read_file]


@under_every_schedule
@on_every_wire
def test_a_read_sees_the_write_before_it_if_both_have_the_same_key(wire: str, schedule: Schedule) -> None:
    model = ScriptedModel(
        [Call("write_file", path="a", text="new"), Call("read_file", path="a", after=0.5)], "Done.", wire=wire
    )
    result = play(Agent(model, file_tools({"a": "old"}, keyed=True), schedule=schedule))
    assert [text for _, text in results_in(result.messages)] == ["written", "new"]
    accepted(model, result)


@under_every_schedule
def test_a_read_before_a_write_of_the_same_key_sees_the_old_value(schedule: Schedule) -> None:
    calls = [Call("read_file", path="a"), Call("write_file", path="a", text="new"), Call("read_file", path="a")]
    result = play(Agent(ScriptedModel(calls, "Done."), file_tools({"a": "old"}, keyed=True), schedule=schedule))
    assert [text for _, text in results_in(result.messages)] == ["old", "written", "new"]


@under_every_schedule
@on_every_wire
def test_without_keys_a_read_does_not_start_before_the_write_before_it(wire: str, schedule: Schedule) -> None:
    model = ScriptedModel(
        [Call("write_file", path="a", text="new"), Call("read_file", path="a"), Pause(1.0)], "Done.", wire=wire
    )
    result, events = play_aloud(Agent(model, file_tools({"a": "old"}, keyed=False), schedule=schedule))
    assert [event.name for event in only(CallStarted, events)] == ["write_file", "read_file"]
    assert [event.early for event in only(CallStarted, events)] == [False, False]
    assert result.text == "Done."
    accepted(model, result)


@under_every_schedule
def test_a_read_waits_with_the_write_before_it_for_approval(schedule: Schedule) -> None:
    """Without keys: the write cannot start yet, so what was called after it cannot either."""
    desk = Desk()

    async def takes_its_time(call: ToolCall) -> Approval:
        await asyncio.sleep(5.0)
        return Allow()

    tools = [desk.tool("send", approve=True), desk.tool("look", effect="read")]
    model = ScriptedModel([Call("look", n=1), Call("send"), Call("look", n=2)], "Done.")
    result = play(Agent(model, tools, schedule=schedule, on_approval=takes_its_time))
    assert [(run.name, run.started) for run in desk.executions] == [("look", 0.0), ("send", 5.0), ("look", 5.0)]
    accepted(model, result)


def test_a_read_without_a_key_does_not_overtake_a_write_that_has_one() -> None:
    desk = Desk()
    tools = [desk.tool("write", seconds=1.0, key=itemgetter("path")), desk.tool("list", effect="read")]
    _, events = play_aloud(Agent(ScriptedModel([Call("write", path="a"), Call("list"), Pause(2.0)], "Done."), tools))
    assert [(run.name, run.started) for run in desk.executions] == [("write", 2.0), ("list", 3.0)]
    assert [event.early for event in only(CallStarted, events)] == [False, False]


@pytest.mark.parametrize("schedule", [Schedule.PARALLEL, Schedule.EAGER])
def test_different_keys_run_in_parallel_and_equal_ones_in_call_order(schedule: Schedule) -> None:
    desk = Desk()
    save = desk.tool("save", seconds=1.0, key=itemgetter("to"))
    calls = [Call("save", to=to, n=n) for n, to in enumerate("abab")]
    result = play(Agent(ScriptedModel(calls, "Done."), [save], schedule=schedule))
    assert [(run.arguments["n"], run.started, run.ended) for run in desk.executions] == [
        (0, 0.0, 1.0),
        (1, 0.0, 1.0),
        (2, 1.0, 2.0),
        (3, 1.0, 2.0),
    ]
    assert result.seconds == 2.0


@pytest.mark.parametrize("schedule", [Schedule.PARALLEL, Schedule.EAGER])
@pytest.mark.parametrize("promise", [{"effect": "read"}, {"overlap": True}], ids=str)
def test_an_exclusive_call_is_a_barrier(schedule: Schedule, promise: dict[str, Any]) -> None:
    desk = Desk()
    others = [desk.tool(name, seconds=1.0, **promise) for name in ("a", "b", "c", "d")]
    model = ScriptedModel([Call("a"), Call("b"), Call("alone"), Call("c"), Call("d")], "Done.")
    play(Agent(model, [*others, desk.tool("alone", seconds=1.0, effect="exclusive")], schedule=schedule))
    assert desk.spans == [
        ("a", 0.0, 1.0),
        ("b", 0.0, 1.0),
        ("alone", 1.0, 2.0),
        ("c", 2.0, 3.0),
        ("d", 2.0, 3.0),
    ]


def test_reads_start_while_the_response_is_being_written_and_writes_wait_for_its_end() -> None:
    desk = Desk()
    tools = [desk.tool("look", seconds=1.0, effect="read"), desk.tool("send", seconds=1.0)]
    calls = [Call("look", n=1), Call("look", n=2, after=1.0), Call("send", after=1.0), Call("look", n=3, after=1.0)]
    result, events = play_aloud(Agent(ScriptedModel([*calls, Pause(1.0)], "Done."), tools))
    assert desk.spans == [("look", 0.0, 1.0), ("look", 1.0, 2.0), ("send", 4.0, 5.0), ("look", 5.0, 6.0)]
    assert [event.early for event in only(CallStarted, events)] == [True, True, False, False]
    assert result.seconds == 6.0


def test_a_read_may_overtake_a_write_of_another_key_and_no_other() -> None:
    desk = Desk()
    key = itemgetter("path")
    tools = [desk.tool("write", seconds=1.0, key=key), desk.tool("read", seconds=1.0, effect="read", key=key)]
    calls = [Call("write", path="a"), Call("read", path="b"), Call("read", path="a"), Pause(2.0)]
    play(Agent(ScriptedModel(calls, "Done."), tools))
    assert [(run.name, run.arguments["path"], run.started) for run in desk.executions] == [
        ("read", "b", 0.0),
        ("write", "a", 2.0),
        ("read", "a", 3.0),
    ]


# One call at a time

THINKING = [
    Raw(
        wire_bytes.messages(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
            {"type": "content_block_stop", "index": 0},
            *block(1, {"type": "text", "text": "Two."}),
            *tool_use(2, "toolu_1", "first", "{}"),
            *tool_use(3, "toolu_2", "second", "{}"),
        )
    )
]
SIGNED = [
    Raw(
        wire_bytes.gemini(
            {"text": "Hm.", "thought": True},
            {"functionCall": {"name": "first", "args": {}}, "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "second", "args": {}}},
        )
    )
]
KEPT: list[Any] = [
    pytest.param("anthropic-messages", THINKING, id="anthropic-messages, signed thinking"),
    pytest.param("gemini", SIGNED, id="gemini, a signature"),
    *[pytest.param(wire, [Think("Hm."), Say("Two."), Call("first"), Call("second")], id=wire) for wire in WIRES],
]


@under_every_schedule
@pytest.mark.parametrize(("wire", "answer"), KEPT)
def test_an_ignored_call_is_not_in_the_native_message(wire: str, answer: Any, schedule: Schedule) -> None:
    """Only the first call enters the history, even if the wire keeps its own message verbatim."""
    desk = Desk()
    model = ScriptedModel(answer, "Done.", wire=wire)
    agent = Agent(model, desk.tools("first", "second"), several_calls=False, schedule=schedule)
    result, events = play_aloud(agent)
    assert desk.names == ["first"]
    assert [event.names for event in only(CallsIgnored, events)] == [["second"]]
    without_tools = {key: value for key, value in model.bodies[1].items() if key not in ("tools", "toolConfig")}
    assert "'second'" not in str(without_tools)
    assert result.text == "Done."
    accepted(model, result)


@on_every_wire
def test_an_ignored_call_is_not_in_the_history_of_a_cancelled_turn_either(wire: str) -> None:
    desk = Desk()
    model = ScriptedModel([Call("first"), Call("second"), Pause(9.0)], "Done.", wire=wire)
    chat = Conversation(Agent(model, desk.tools("first", "second", effect="read"), several_calls=False))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await chat.say("Go.")

    run_virtual(main())
    assert desk.names == ["first"]
    assert len(results_in(chat.messages)) == 1
    can_go_on(chat.messages)
