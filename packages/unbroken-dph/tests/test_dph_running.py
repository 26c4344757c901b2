"""Programs while they run: their events and blocks, what runs at the same time, how they stop, and what they are given
from outside (approvals, deps, models, types, recordings, servers). Only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from checkout import SUPPORT

from unbroken import (
    Allow,
    CallContext,
    CallFinished,
    CallStarted,
    ChainBroken,
    Deny,
    Edit,
    MCPServer,
    ScriptedModel,
    TextAdded,
    ToolCall,
    Wait,
    client_tool,
    connect,
    tool,
)
from unbroken.events import CallProgress, CallsIgnored, RoundFinished
from unbroken.tools.approval import Approval
from unbroken.trajectory.recording import list_recordings, read_recording
from unbroken_dph import (
    BlockFinished,
    BlockStarted,
    InBlock,
    InvalidProgram,
    ProgramEvent,
    ProgramFailed,
    ProgramResult,
    flags,
    program_event_to_json,
    run_program,
    run_program_sync,
)
from unbroken_testing import Break, Call, Fail, Pause, Say, run_virtual, serve

Kind = TypeVar("Kind", BlockStarted, BlockFinished, InBlock)
MCP_PROGRAM = [sys.executable, str(SUPPORT.joinpath("mcp_server_by_hand.py"))]


@pytest.fixture(autouse=True)
def flags_as_they_are() -> Iterator[None]:
    yield
    flags.reset()


@tool(effect="read")
def web_search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


@tool
def draw(again: int = 0) -> str:
    """Draw a card."""
    return "ace"


@tool(approve=True)
def send(to: str, text: str = "") -> str:
    """Send a message."""
    return f"sent to {to}"


def play(program: str, *answers: Any, tools: Any = (), **options: Any) -> ProgramResult:
    """On virtual time."""

    async def run() -> ProgramResult:
        return await run_program(program, ScriptedModel(*answers), tools, **options)

    return run_virtual(run)


def play_aloud(program: str, *answers: Any, tools: Any = (), **options: Any) -> tuple[list[ProgramEvent], float]:
    """All events, also of a program that fails, and the seconds."""
    events: list[ProgramEvent] = []

    async def run() -> float:
        try:
            async for event in run_program(program, ScriptedModel(*answers), tools, **options):
                events.append(event)
        except ProgramFailed:
            pass
        return asyncio.get_running_loop().time()

    return events, run_virtual(run)


def failure(program: str, *answers: Any, **options: Any) -> ProgramFailed:
    with pytest.raises(ProgramFailed) as caught:
        play(program, *answers, **options)
    return caught.value


def only(kind: type[Kind], events: list[ProgramEvent]) -> list[Kind]:
    return [event for event in events if isinstance(event, kind)]


LOOP = """\
"x" -> first
/for/ $q in ["a", "b"]:
    @web_search(query=$q) -> hit
/end/
/explore/(tools=[draw]) Draw. -> r
"""


def test_every_event_carries_its_block_and_each_iteration_of_a_loop_is_a_separate_block() -> None:
    events, _ = play_aloud(LOOP, [Say("Hm."), Call("draw")], "An ace.", tools=[web_search, draw])
    blocks = [event.block for event in only(BlockStarted, events)]
    assert [(block.number, block.kind, block.name, block.line, block.called) for block in blocks] == [
        (1, "call", "hit", 3, "web_search"),
        (2, "call", "hit", 3, "web_search"),
        (3, "explore", "r", 5, ""),
    ]
    assert [event.block for event in only(BlockFinished, events)] == blocks
    assert [event.value for event in only(BlockFinished, events)][:2] == ["found a", "found b"]
    assert only(BlockFinished, events)[2].stop_reason == "answered"
    inside = only(InBlock, events)
    said = [event.event.text for event in inside if isinstance(event.event, TextAdded)]
    assert "".join(said) == "Hm.An ace."
    assert {event.block.number for event in inside if isinstance(event.event, TextAdded | RoundFinished)} == {3}
    assert [event.block.number for event in inside if isinstance(event.event, CallStarted)] == [1, 2, 3]


def test_events_of_a_block_can_be_written_as_json() -> None:
    events, _ = play_aloud(LOOP, [Call("draw")], "An ace.", tools=[web_search, draw])
    written = [json.loads(json.dumps(program_event_to_json(event))) for event in events]
    assert [line["type"] for line in written[:5]] == ["BlockStarted", "InBlock", "InBlock", "InBlock", "BlockFinished"]
    assert written[4]["value"] == "found a"
    told = [line["event"]["event"] for line in written[1:4]]
    assert told == ["call_written", "call_started", "call_finished"]
    assert all(line["block"]["file"] == "<program>" for line in written)


def test_children_of_parallel_are_in_flight_at_the_same_time() -> None:
    """Each waits for the others: sequentially they would wait forever."""
    barrier = asyncio.Barrier(3)

    @tool
    async def meet(name: str) -> str:
        """Wait for the others."""
        await barrier.wait()
        return name

    program = '/parallel/\n@meet(name="a") >> all\n@meet(name="b") >> all\n/explore/ Meet. -> r\n/end/'
    result = play(program, Call("meet", name="c"), "Met.", tools=[meet])
    assert result.variables["all"] == ["a", "b"]
    assert result.variables["r"]["answer"] == "Met."


def test_children_that_ask_the_model_are_in_flight_at_the_same_time() -> None:
    events, seconds = play_aloud(
        "/parallel/\n/prompt/ A. -> a\n/prompt/ B. -> b\n/end/", [Pause(2.0), Say("a")], [Pause(2.0), Say("b")]
    )
    assert seconds == 2.0
    assert [type(event) for event in events if not isinstance(event, InBlock)] == [
        BlockStarted,
        BlockStarted,
        BlockFinished,
        BlockFinished,
    ]


def test_if_a_child_fails_the_others_finish_and_all_variables_are_in_the_error() -> None:
    @tool
    async def slow() -> str:
        """Take a second."""
        await asyncio.sleep(1.0)
        return "done"

    program = '"kept" -> before\n/parallel/\n    @slow() -> a\n    1 / 0 -> b\n    @slow() -> c\n/end/\n1 -> after'
    error = failure(program, tools=[slow])
    assert error.variables == {"before": "kept", "a": "done", "c": "done"}
    assert (error.place.line, error.place.column) == (4, 7)
    events, seconds = play_aloud(program, tools=[slow])
    assert seconds == 1.0
    assert [event.error for event in only(BlockFinished, events)] == ["", ""]


def test_if_two_children_fail_the_first_in_the_program_is_reported() -> None:
    error = failure("/parallel/\n1 / 0 -> a\n$x.y -> b\n/end/", variables={"x": 1})
    assert error.place.line == 2


def test_a_tool_that_changes_its_argument_does_not_change_a_variable() -> None:
    @tool
    def grow(value: Any) -> Any:
        """Put one more into a list."""
        value.append("more")
        return value

    given = {"l": ["first"]}
    program = "/parallel/\n@grow(value=$l) -> a\n@grow(value=$l) -> b\n/end/\n@grow(value=$a) -> c"
    variables = play(program, tools=[grow], variables=given).variables
    assert variables["a"] == variables["b"] == ["first", "more"]
    assert variables["c"] == ["first", "more", "more"]
    assert given["l"] == variables["l"] == ["first"]


def test_changes_inside_a_called_program_stay_there(tmp_path: Path) -> None:
    (tmp_path / "main.dph").write_text('"mine" -> x\n@inner(x="given") -> back\n')
    (tmp_path / "inner.dph").write_text('$x + "!" -> x\n$x + "!" -> y\n')

    async def run() -> ProgramResult:
        return await run_program(tmp_path / "main.dph", ScriptedModel())

    assert run_virtual(run).variables == {"x": "mine", "back": "given!!"}


def test_blocks_of_a_called_program_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "main.dph").write_text("@inner() -> back\n")
    (tmp_path / "inner.dph").write_text("\n/prompt/ Hi. -> a\n")
    events, _ = play_aloud(str(tmp_path / "main.dph"), "Ho.")
    blocks = [event.block for event in only(BlockStarted, events)]
    assert [(block.kind, block.called, Path(block.file).name, block.line) for block in blocks] == [
        ("program", "inner", "main.dph", 1),
        ("prompt", "", "inner.dph", 2),
    ]
    assert [event.block.number for event in only(BlockFinished, events)] == [2, 1]


def test_a_failing_tool_stops_the_program_with_its_position_and_the_variables() -> None:
    @tool
    def fetch(url: str) -> str:
        """Fetch a page."""
        raise ConnectionError("no route")

    error = failure('1 -> a\n@fetch(url="x") -> page\n2 -> b', tools=[fetch])
    assert "tool `fetch` failed" in error.message
    assert "no route" in error.message
    assert str(error).endswith('\n   2 | @fetch(url="x") -> page\n     | ^')
    assert error.variables == {"a": 1}
    events, _ = play_aloud('@fetch(url="x") -> page', tools=[fetch])
    (end,) = only(BlockFinished, events)
    assert (end.value, end.error) == (None, error.message)
    assert [event.event.error for event in only(InBlock, events) if isinstance(event.event, CallFinished)] == [True]


def test_a_tool_that_takes_too_long_stops_the_program() -> None:
    @tool(timeout=2)
    async def sleep() -> str:
        """Sleep for ever."""
        await asyncio.Event().wait()
        return ""

    error = failure("@sleep() -> x", tools=[sleep])
    assert "timeout after 2s" in error.message


def test_a_model_that_fails_stops_the_program_and_the_error_keeps_its_cause() -> None:
    error = failure("1 -> a\n/prompt/ Hi. -> b", Fail(ValueError("boo")))
    assert (error.place.line, error.variables) == (2, {"a": 1})
    assert "boo" in error.message
    broken = failure("/prompt/ Hi. -> b", [Say("Half"), Break("reset")])
    assert isinstance(broken.__cause__, ChainBroken)


def test_a_program_with_a_mistake_sends_no_request_and_calls_nothing() -> None:
    model, called = ScriptedModel("never"), list[str]()

    @tool
    def note() -> None:
        """Note that it ran."""
        called.append("note")

    async def run() -> None:
        await run_program("@note() -> a\n/prompt/ Hi. -> b\n$nope -> c", model, [note])

    with pytest.raises(InvalidProgram):
        run_virtual(run)
    assert (model.requests, called) == ([], [])


def test_if_you_stop_reading_the_program_ends() -> None:
    """The running tool is cancelled, and what follows it never starts."""
    ended: list[str] = []

    @tool
    async def hang() -> None:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    async def run() -> list[ProgramEvent]:
        seen: list[ProgramEvent] = []
        async with aclosing(run_program("/parallel/\n@hang() -> a\n@hang() -> b\n/end/", ScriptedModel(), [hang])) as s:
            async for event in s:
                seen.append(event)
                if len([one for one in only(InBlock, seen) if isinstance(one.event, CallStarted)]) == 2:
                    break
        seen += [event async for event in s]
        return seen

    events = run_virtual(run)
    assert ended == ["hang", "hang"]
    assert [event.error for event in only(BlockFinished, events)] == ["cancelled", "cancelled"]


def test_a_task_that_awaits_a_program_can_be_cancelled() -> None:
    async def run() -> bool:
        program = run_program("/prompt/ Hi. -> a", ScriptedModel([Pause(100.0), Say("late")]))

        async def wait_for_it() -> ProgramResult:
            return await program

        task = asyncio.ensure_future(wait_for_it())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled() and asyncio.get_running_loop().time() < 2.0

    assert run_virtual(run)


def test_a_loop_without_blocks_can_be_cancelled() -> None:
    """It lets other tasks run: otherwise no time-out would be noticed before its end."""
    program = "/for/ $i in range(1000):\n    /for/ $j in range(1000):\n        $j -> x\n    /end/\n/end/"

    async def run() -> tuple[bool, bool]:
        running = run_program(program, ScriptedModel())

        async def to_its_end() -> ProgramResult:
            return await running

        task = asyncio.ensure_future(to_its_end())
        for _ in range(20):
            await asyncio.sleep(0)
        on_its_way = not task.done()
        task.cancel()
        await asyncio.wait([task])
        return on_its_way, task.cancelled()

    assert asyncio.run(run()) == (True, True)


SEND = '@send(to="Ada") -> a'


@pytest.mark.parametrize(
    ("approval", "value"),
    [(Allow(), "sent to Ada"), (Edit({"to": "Bob"}), "sent to Bob")],
)
def test_the_approver_is_asked_for_the_programs_own_calls(approval: Approval, value: str) -> None:
    asked: list[ToolCall] = []

    def answer(call: ToolCall) -> Approval:
        asked.append(call)
        return approval

    assert play(SEND, tools=[send], on_approval=answer).variables == {"a": value}
    assert [(call.name, call.arguments) for call in asked] == [("send", {"to": "Ada"})]


def deny(call: ToolCall) -> Approval:
    return Deny("not today")


def wait(call: ToolCall) -> Approval:
    return Wait()


def break_down(call: ToolCall) -> Approval:
    raise RuntimeError("the phone is dead")


@pytest.mark.parametrize(
    ("on_approval", "words"),
    [
        (deny, "denied: not today"),
        (wait, "a program cannot wait"),
        (break_down, "denied: the approval failed: the program around the tool failed (RuntimeError)"),
        (None, "nobody can be asked"),
    ],
)
def test_without_an_approval_the_program_stops(on_approval: Any, words: str) -> None:
    assert words in failure(SEND, tools=[send], on_approval=on_approval).message


def test_a_judges_choice_is_approved_once() -> None:
    asked: list[str] = []

    def answer(call: ToolCall) -> Approval:
        asked.append(call.name)
        return Allow()

    result = play("/judge/ Send it? -> a", Call("send", to="Ada"), tools=[send], on_approval=answer)
    assert (result.variables["a"], asked) == ("sent to Ada", ["send"])


def test_an_explore_asks_for_approvals_and_continues_with_a_denial() -> None:
    result = play(
        "/explore/ Send it. -> r",
        [Call("send", to="Ada"), Call("draw")],
        "Not sent.",
        tools=[send, draw],
        on_approval=deny,
    )
    assert [call["error"] for call in result.variables["r"]["calls"]] == [True, False]


def test_a_client_tool_cannot_be_called_by_a_program() -> None:
    ask = client_tool("ask_user", "Ask.", {"type": "object", "properties": {}})
    assert "runs in a client" in failure("@ask_user() -> a", tools=[ask]).message
    assert "a program cannot wait" in failure("/explore/ Go. -> a", Call("ask_user"), tools=[ask]).message


@dataclass
class Desk:
    name: str


def test_tools_get_the_deps_of_the_program_wherever_they_are_called() -> None:
    @tool(effect="read")
    def where(context: CallContext[Desk]) -> str:
        """Where am I?"""
        context.report("looking")
        return context.deps.name

    program = "@where() -> a\n/explore/ Where? -> b\n/judge/ Where? -> c"
    options: dict[str, Any] = {"tools": [where], "deps": Desk("room 5")}
    answers = [Call("where"), "There.", Call("where")]
    result = play(program, *answers, **options)
    assert (result.variables["a"], result.variables["c"]) == ("room 5", "room 5")
    assert result.variables["b"]["calls"][0]["result"] == "room 5"
    events, _ = play_aloud(program, *answers, **options)
    progress = [event.block.number for event in only(InBlock, events) if isinstance(event.event, CallProgress)]
    assert progress == [1, 2, 3]


def test_a_recorded_program_has_a_recording_for_each_block_that_asked_a_model(tmp_path: Path) -> None:
    play(
        '"x" -> a\n/prompt/ Hi. -> b\n/explore/ Draw. -> c', "Ho.", Call("draw"), "Ace.", tools=[draw], record=tmp_path
    )
    recordings = [read_recording(summary.path) for summary in list_recordings(tmp_path)]
    assert sorted(recording.agent_name for recording in recordings) == ["explore[c]", "prompt[b]"]
    assert [recording.problems for recording in recordings] == [[], []]


def test_tools_of_an_mcp_server_are_called_and_explored() -> None:
    async def run() -> ProgramResult:
        program = "@mcp_process() -> a\n/explore/(tools=[mcp_p*]) Which process? -> b"
        server = MCPServer(MCP_PROGRAM, prefix="mcp_")
        return await run_program(program, ScriptedModel(Call("mcp_process"), "Done."), [server])

    variables = asyncio.run(run()).variables
    assert variables["a"].isdigit()
    assert variables["b"]["calls"][0]["result"] == variables["a"]  # one process for the complete program


def test_blocks_with_history_know_each_other_and_the_others_do_not() -> None:
    model = ScriptedModel("One.", "Alone.", Call("draw"), "Two.", "Given.")
    program = """\
/prompt/(history=true) First. -> a
/prompt/ Alone. -> b
/explore/(history=true, system_prompt="Go on.") Second. -> c
/prompt/(history=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "$who"}]) Third. -> d
"""

    async def run() -> ProgramResult:
        return await run_program(program, model, [draw], {"who": "Ada"})

    result = run_virtual(run)
    said = [[(message["role"], message["content"]) for message in body["messages"]] for body in model.bodies]
    assert said[0] == [("user", "First.")]
    assert said[1] == [("user", "Alone.")]
    assert said[2] == [("system", "Go on."), ("user", "First."), ("assistant", "One."), ("user", "Second.")]
    assert said[4] == [("system", "Be kind."), ("user", "Ada"), ("user", "Third.")]
    assert result.variables["c"]["think"] == ""


def test_a_block_may_name_its_model() -> None:
    small, large = ScriptedModel("small"), ScriptedModel("large", "large again")
    program = '/prompt/ Hi. -> a\n/prompt/(model="large") Hi. -> b\n/explore/(model="$which") Hi. -> c'

    async def run() -> ProgramResult:
        return await run_program(program, small, variables={"which": "large"}, models={"large": large})

    result = run_virtual(run)
    assert [result.variables[name]["answer"] for name in "abc"] == ["small", "large", "large again"]
    with pytest.raises(InvalidProgram, match=r'model="huge": no model has this name \(the names are: large\)'):
        play('/prompt/(model="huge") Hi. -> a', models={"large": large})
    late = failure('"huge" -> which\n/prompt/(model="$which") Hi. -> a', models={"large": large})
    assert (late.place.line, late.variables) == (2, {"which": "huge"})


def test_a_type_may_be_given_or_defined_next_to_the_tools() -> None:
    given = play('/prompt/(output="obj/Ages") Ages? -> a', '{"Ada": 36}', types={"Ages": dict[str, int]})
    assert given.variables["a"] == {"Ada": 36}
    beside = play('/prompt/(output="obj/Desk") A desk. -> d', '{"name": "oak"}', tools=[web_search])
    assert beside.variables["d"] == {"name": "oak"}


FIVE = [Call("draw", again=number) for number in range(5)]


@pytest.mark.multi_tool_call
def test_with_the_flag_off_only_the_first_call_of_a_message_is_used() -> None:
    flags.disable(flags.ENABLE_PARALLEL_TOOL_CALLS)
    events, _ = play_aloud("/explore/ Draw. -> r", FIVE, "Done.", tools=[draw])
    started = [event.event.arguments for event in only(InBlock, events) if isinstance(event.event, CallStarted)]
    assert started == [{"again": 0}]
    ignored = [event.event.names for event in only(InBlock, events) if isinstance(event.event, CallsIgnored)]
    assert ignored == [["draw"] * 4]


@pytest.mark.multi_tool_call
def test_the_setting_of_a_block_overrides_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLPHIN_ENABLE_PARALLEL_TOOL_CALLS", "false")
    for argument, count in (("", 1), ("(multi_tool_calls=true)", 5), ("(multi_tool_calls=false)", 1)):
        result = play(f"/explore/{argument} Draw. -> r", FIVE, "Done.", tools=[draw])
        assert len([call for call in result.variables["r"]["calls"] if not call["error"]]) == count


@pytest.mark.multi_tool_call
def test_detected_calls_are_logged_in_one_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="unbroken.dph"):
        answers = [[Call("draw"), Call("web_search", query="x")], [Call("draw", again=1)], "Done."]
        play("/explore/ Go. -> result\n/judge/ Go. -> j", *answers, Call("draw"), tools=[draw, web_search])
    assert [record.getMessage() for record in caplog.records if record.name == "unbroken.dph"] == [
        "explore[result] detected 2 tool calls: ['draw', 'web_search']",
        "Executing tool call 1/2: draw",
        "Tool call draw completed, response length: 3",
        "Executing tool call 2/2: web_search",
        "Tool call web_search completed, response length: 7",
        "explore[result] detected 1 tool calls: ['draw']",
        "Executing tool call 1/1: draw",
        "Tool call draw completed, response length: 3",
    ]


@pytest.mark.multi_tool_call
@pytest.mark.parametrize("schedule", ["sequential", "parallel", "eager"])
def test_a_started_call_is_logged_with_its_place_among_all_calls(
    schedule: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="unbroken.dph"):
        calls = [Call("draw"), Call("draw"), Call("unknown"), Call("web_search", query="x")]
        play(f'/explore/(tool_execution="{schedule}") Go. -> r', calls, "Done.", tools=[draw, web_search])
    started = [text for text in caplog.messages if text.startswith("Executing")]
    assert started[-1] == "Executing tool call 4/4: web_search"


TALK = 'Let me see: a =># b.\n  =>#web_search: {"query": "x } y \\" {"}\nfound nonsense\n=>#web_search: {"query": "z"}'


@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 8, 13, 40, len(TALK)])
def test_a_text_call_is_found_however_the_text_is_split(chunks: int) -> None:
    model = ScriptedModel([Say(TALK, chunks=chunks)], [Say("Well: =># is a mark.\n=>", chunks=chunks)])

    async def run() -> ProgramResult:
        return await run_program('/explore/(mode="prompt") Search. -> r', model, [web_search])

    result = run_virtual(run)
    (call,) = result.variables["r"]["calls"]
    assert call["arguments"] == {"query": 'x } y " {'}
    assert result.variables["r"]["answer"] == "Well: =># is a mark.\n=>"
    said = model.bodies[1]["messages"]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert said[2]["content"].startswith("Let me see: a =># b.\n=>#web_search: ")
    assert "nonsense" not in json.dumps(said)  # what it invented as a result is not kept


@pytest.mark.parametrize(
    "written",
    [
        '=>#web_search: {"query": ',
        "=>#web_search: query",
        "=>#web_search: [1]",
        "=>#web_serach: {}",
        "=>#web_search: {}",
    ],
)
def test_a_text_call_that_cannot_run_never_runs_and_the_model_gets_an_error(written: str) -> None:
    model = ScriptedModel(f"I try.\n{written}", "I give up.")

    async def run() -> ProgramResult:
        return await run_program('/explore/(mode="prompt") Go. -> r', model, [draw, web_search])

    found = run_virtual(run).variables["r"]
    (call,) = found["calls"]
    assert call["error"]
    assert call["result"].startswith("Error: ")
    assert found["answer"] == "I give up."
    last = model.bodies[-1]["messages"][-1]["content"]
    assert last.startswith("Result of web_se")
    assert call["result"] in last


def test_a_program_runs_over_http_as_with_a_script() -> None:
    answers = ('["a", "b"]', [Say("Drawing."), Call("draw"), Call("draw", again=1)], "Two aces.")
    program = '/prompt/(output="list_str") Terms. -> t\n/explore/ Draw for $t. -> r'
    with serve(*answers, api_key="secret") as server:
        model = connect("openai:demo", base_url=server.base_url(), api_key="secret")

        async def run() -> ProgramResult:
            return await run_program(program, model, [draw])

        result = asyncio.run(run())
    assert result.variables["t"] == ["a", "b"]
    assert result.variables["r"]["answer"] == "Two aces."
    assert server.bodies[1]["messages"][-1]["content"] == 'Draw for ["a", "b"].'
    assert (result.requests, len(server.bodies)) == (3, 3)
    assert result.usage.total_tokens > 0


def test_programs_can_run_synchronously() -> None:
    result = run_program_sync("/prompt/ Hi. -> a\n$a.answer -> b", ScriptedModel("Ho."))
    assert (result.value, result.requests) == ("Ho.", 1)
    with pytest.raises(ProgramFailed):
        run_program_sync("1 / 0 -> a", ScriptedModel())
