"""What the screens show of a team: the page of a chat, the viewer, the terminal, and the prompt for an approval."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from scenes import Desk, play_aloud
from test_handoffs import team as handed_off
from test_teams import allow, in_turn, outer_of, researcher_of, wait

from unbroken import Agent, Allow, Deny, Event, ScriptedModel, ToolCall
from unbroken.agent.ui_history import answers_from_ui_messages
from unbroken.agent.ui_messages import ui_messages
from unbroken.trajectory.recording import read_recording
from unbroken_cli.approval_prompt import approval_text
from unbroken_cli.plain import PlainScreen
from unbroken_testing import Call, Say, run_virtual
from unbroken_viewer.picture import draw


def chunks_of(agent: Agent) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        lines = [line async for line in ui_messages(agent.stream("Go."))]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    return run_virtual(read)


def test_a_page_gets_the_calls_and_the_streamed_text_of_an_inner_agent() -> None:
    inner = Agent(in_turn(Call("look", id="l"), [Say("It is forty-two.", chunks=3)]), Desk().tools("look"))
    agent = Agent(in_turn(Call("ask", task="x", id="a"), "Done."), [inner.as_tool("ask", "Asks.", stream_text=True)])
    told = [chunk["data"] for chunk in chunks_of(agent) if chunk["type"] == "data-inner"]
    assert {(data["toolCallId"], data["agent"]) for data in told} == {("a", "main/ask")}
    assert [data["toolName"] for data in told if "input" in data] == ["look"]
    assert [data["output"] for data in told if "output" in data] == ["look done"]
    assert "".join(data.get("text", "") for data in told) == "It is forty-two."


def test_a_page_approves_an_inner_call_at_the_part_of_the_tool_that_runs_the_agent() -> None:
    agent = outer_of(researcher_of(Desk()), on_approval=wait)
    chunks = chunks_of(agent)
    [waiting] = [chunk["data"] for chunk in chunks if chunk["type"] == "data-waiting"]
    assert (waiting["agent"], waiting["toolName"], waiting["needs"]) == ("main/researcher", "put", "approval")
    [asked] = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
    assert (asked["approvalId"], asked["toolCallId"]) == ("r/p", "r")
    assert not [chunk for chunk in chunks if chunk["type"] == "tool-output-error"]
    pending = [ToolCall("r/p", "put", {}, agent="main/researcher")]
    for approved, decision in ((True, Allow()), (False, Deny())):
        part: Any = {
            "type": "tool-researcher",
            "toolCallId": "r",
            "state": "approval-responded",
            "approval": {"id": "r/p", "approved": approved},
        }
        assert answers_from_ui_messages([{"role": "assistant", "parts": [part]}], pending) == {"r/p": decision}


def test_a_page_is_told_which_agent_has_taken_over() -> None:
    chunks = chunks_of(handed_off(Desk()))
    assert [chunk["data"] for chunk in chunks if chunk["type"] == "data-agent"] == [{"agent": "billing"}]


def test_the_viewer_shows_the_steps_of_inner_agents_at_their_calls(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    middle = outer_of(researcher_of(Desk()))
    model = in_turn(Call("middle", task="x", id="m"), "Done.")
    agent = Agent(model, [middle.as_tool("middle", "Asks.")], on_approval=allow, record=record)
    run_virtual(lambda: agent.run("Go."))
    call = draw(read_recording(record)).turns[0].calls[0]
    assert call.agent == "main/middle"
    assert [(path, text) for _, path, text in call.steps] == [
        ("main/middle", 'researcher {"task": "Do it."}'),
        ("main/middle/researcher", 'look {"what": "x"}'),
        ("main/middle/researcher", "look gave: ok"),
        ("main/middle/researcher", "put needs an approval"),
        ("main/middle/researcher", 'put {"what": "y"}'),
        ("main/middle/researcher", "put gave: ok"),
        ("main/middle/researcher", "said: Put."),
        ("main/middle", "researcher gave: Put."),
        ("main/middle", "said: Done."),
    ]
    inner = [(lane.agent, lane.depth, lane.name, lane.ended is not None, lane.error) for lane in call.inner]
    assert inner == [
        ("main/middle", 1, "researcher", True, False),
        ("main/middle/researcher", 2, "look", True, False),
        ("main/middle/researcher", 2, "put", True, False),
    ]


def test_the_viewer_marks_a_hand_off(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    run_virtual(lambda: handed_off(Desk(), record=record).run("Go."))
    assert [mark.text for mark in draw(read_recording(record)).marks if mark.kind == "agent"] == [
        "handed off to billing"
    ]


def test_output_that_is_no_terminal_names_the_agents() -> None:
    def shown(events: list[Event]) -> str:
        progress = io.StringIO()
        screen = PlainScreen(io.StringIO(), progress)
        for event in events:
            screen.show(event)
        return progress.getvalue()

    assert "billing takes over" in shown(play_aloud(handed_off(Desk()))[1])
    said = shown(play_aloud(outer_of(Agent(ScriptedModel("It is 42."))))[1])
    assert "main/researcher: said: It is 42." in said


def test_the_prompt_for_an_approval_names_the_agent_that_asks() -> None:
    rows = approval_text(ToolCall("r/p", "put", {"what": "y"}, agent="main/researcher"))
    assert rows[0] == 'Tool call of agent "main/researcher": put, 1 argument'
