"""Compaction and clearing that a provider does by itself, over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from scenes import PROVIDERS, WIRES

from unbroken import Agent, Request, ScriptedModel, connect, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.compaction import ClearResults, Compaction
from unbroken.events import Compacted, Event
from unbroken.models.scripted import Call, Raw, Say, Uses
from unbroken.trajectory.recording import read_recording
from unbroken_testing import ScriptedServer, run_virtual
from unbroken_wires.messages import Managed, User
from unbroken_wires.wires.json_access import Object

BLOCK = {"type": "compaction", "content": "What was before."}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "b3BhcXVl"}


@tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"seen {n}"


def anthropic_answer() -> Raw:
    """A compaction, then a call; the tokens of the compaction are counted apart."""
    begin: Object = {"type": "message", "id": "msg_1", "role": "assistant", "model": "m", "content": [], "usage": {}}
    use: Object = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    iterations = [
        {"type": "compaction", "input_tokens": 60_000, "output_tokens": 500},
        {"type": "message", "input_tokens": 700, "output_tokens": 20},
    ]
    usage = {"input_tokens": 700, "output_tokens": 20, "iterations": iterations}
    return events(
        {"type": "message_start", "message": begin},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": BLOCK["content"]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": use},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"n": 1}'}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
        {"type": "message_stop"},
    )


def openai_answer() -> Raw:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"n": 1}'}
    usage = {"input_tokens": 900, "output_tokens": 20, "total_tokens": 920}
    head: Object = {"id": "resp_1", "object": "response", "status": "in_progress", "output": []}
    done = {**head, "status": "completed", "output": [ITEM, {**call, "status": "completed"}], "usage": usage}
    return events(
        {"type": "response.created", "response": head},
        {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
        {"type": "response.output_item.done", "output_index": 0, "item": ITEM},
        {"type": "response.output_item.added", "output_index": 1, "item": {**call, "arguments": ""}},
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": '{"n": 1}'},
        {"type": "response.output_item.done", "output_index": 1, "item": {**call, "status": "completed"}},
        {"type": "response.completed", "response": done},
    )


def events(*sent: dict[str, Any]) -> Raw:
    return Raw("".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in sent).encode())


async def run(wire: str, first: Raw, *middleware: Any, **settings: Any) -> tuple[Any, list[Event], ScriptedServer]:
    heard: list[Event] = []
    async with ScriptedServer([first], [Say("Done."), Uses(800, 5)]) as server:
        model = connect(PROVIDERS[wire], base_url=server.base_url(wire), wire=wire, api_key="k", **settings)
        agent = Agent(model, [look], middleware=middleware, sinks=[heard.append])
        return await agent.run("Go."), heard, server


def test_anthropic_compacts_by_itself_and_gets_its_summary_back() -> None:
    compaction = Compaction(60_000, native=True)
    headers = {"anthropic-beta": "interleaved-thinking-2025-05-14"}
    result, heard, server = asyncio.run(
        run(
            "anthropic-messages",
            anthropic_answer(),
            compaction,
            ClearResults(3, never=["look"], native=True),
            headers=headers,
        )
    )
    assert result.text == "Done."
    for body, sent in zip(server.bodies, server.headers, strict=True):
        clear, compact = body["context_management"]["edits"]
        assert compact == {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 60_000}}
        assert (clear["type"], clear["exclude_tools"]) == ("clear_tool_uses_20250919", ["look"])
        betas = sent["anthropic-beta"].split(",")
        assert betas == ["interleaved-thinking-2025-05-14", "compact-2026-01-12", "context-management-2025-06-27"]
    assert server.bodies[1]["messages"][1]["content"][0] == BLOCK
    (compacted,) = [event for event in heard if isinstance(event, Compacted)]
    assert compacted.text == BLOCK["content"]
    assert result.usage.input_tokens == 60_000 + 700 + 800


def test_openai_compacts_by_itself_and_gets_its_item_back() -> None:
    result, heard, server = asyncio.run(
        run("openai-responses", openai_answer(), Compaction(100_000, native=True), ClearResults(native=True))
    )
    assert result.text == "Done."
    expected = [{"type": "compaction", "compact_threshold": 100_000}]
    assert [body["context_management"] for body in server.bodies] == [expected, expected]
    assert ITEM in server.bodies[1]["input"]
    assert sum(isinstance(event, Compacted) for event in heard) == 1


def test_where_the_provider_cannot_a_summary_is_requested() -> None:
    def answer(request: Request) -> Any:
        if isinstance(request.messages[-1], User) and "summary that you write now" in request.messages[-1].text:
            return "So far."
        return [Call("look", n=len(model.requests)), Uses(5000, 1)] if len(model.requests) < 8 else "Done."

    model = ScriptedModel(answer)
    agent = Agent(model, [look], middleware=[Compaction(4000, keep=1, native=True)])
    assert run_virtual(lambda: agent.run("Go.")).text == "Done."
    assert any("So far." in str(request.messages) for request in model.requests)


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire not in ("anthropic-messages", "openai-responses")])
def test_other_wires_never_send_the_field(wire: str) -> None:
    model = connect(PROVIDERS[wire], wire=wire, api_key="k" * 24, base_url="http://127.0.0.1:1/v1").model
    assert model.manages == frozenset()
    request = Request((User.of("Hi"),), managed=Managed(compact_at=60_000, clear_at=5))
    assert b"context_management" not in model.write(request)[1]


def test_another_provider_of_the_wire_does_not_get_the_field() -> None:
    model = connect("compatible:m", base_url="http://127.0.0.1:1", wire="anthropic-messages", api_key="k").model
    assert model.manages == frozenset()
    assert b"context_management" not in model.write(Request((User.of("Hi"),), managed=Managed(60_000)))[1]


def test_a_recorded_run_with_a_native_compaction_replays_with_its_agent_and_without(tmp_path: Path) -> None:
    path, wire = tmp_path / "run.jsonl", "anthropic-messages"

    async def main() -> tuple[Agent, Any]:
        async with ScriptedServer([anthropic_answer()], [Say("Done."), Uses(800, 5)]) as server:
            model = connect(PROVIDERS[wire], base_url=server.base_url(wire), wire=wire, api_key="k")
            agent = Agent(model, [look], middleware=[Compaction(60_000, native=True)], record=path)
            return agent, await agent.run("Go.")

    agent, result = asyncio.run(main())
    again = agent.replay(path)
    assert (again.messages, again.usage) == (result.messages, result.usage)
    recording = read_recording(path)
    assert agent_of(recording).replay(recording).messages == result.messages
