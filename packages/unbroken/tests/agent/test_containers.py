"""The container in which Anthropic runs code goes back with every later request, beside the calls that wait in it: in
the run, in another process, through a gateway. The servers are as strict as the real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Conversation, connect, tool
from unbroken.errors import RequestRefused
from unbroken_testing import Call, Fail, ProviderCall, ScriptedServer, check_request
from unbroken_wires.messages import Assistant, Native, Request, ToolMessage, ToolResult, User
from unbroken_wires.server_tools import CodeExecution
from unbroken_wires.wires import find_wire

Object = dict[str, Any]
ANTHROPIC = "anthropic-messages"
CODE = {"code": "print(1)"}
WAITS = ProviderCall("code_execution", CODE, id="srvtoolu_1", part="call")
RAN = ProviderCall("code_execution", result="1", id="srvtoolu_1", part="result")
EXPIRED = Fail(RequestRefused("container: container_msg_1 has expired", status=400))


@tool(effect="read")
def pack(item: str) -> str:
    """Packs an item."""
    return f"packed: {item}"


def agent_for(server: ScriptedServer, **options: Any) -> Agent:
    return Agent(
        connect("anthropic:claude-opus-4-7", base_url=server.url, api_key="k", **options), [CodeExecution(), pack]
    )


def blocks(body: Object, at: int) -> list[Object]:
    return body["messages"][at]["content"]


def test_code_that_waits_for_a_call_of_ours_continues_in_its_container() -> None:
    async def ask(stream: bool) -> tuple[Any, list[Object]]:
        async with ScriptedServer([WAITS, Call("pack", item="hat")], [RAN, "A hat, and 1."], "Bye.") as server:
            conversation = Conversation(agent_for(server, stream=stream))
            result = await conversation.say("Pack, and count.")
            await conversation.say("Thanks.")
            return result, server.bodies

    for stream in (True, False):
        result, (first, second, third) = asyncio.run(ask(stream))
        assert result.text == "A hat, and 1."
        assert [call.arguments for call in result.server_calls] == [CODE]
        assert "container" not in first
        assert second["container"] == third["container"]
        assert second["container"].startswith("container_")
        assert [block["type"] for block in blocks(second, 1)] == ["server_tool_use", "tool_use"]
        assert [block["type"] for block in blocks(third, 3)] == ["bash_code_execution_tool_result", "text"]


def test_a_saved_conversation_continues_in_its_container_in_another_process(tmp_path: Path) -> None:
    async def ask() -> list[Object]:
        async with ScriptedServer([ProviderCall("code_execution", CODE, "1"), "It is 1."], "Still 1.") as server:
            conversation = Conversation(agent_for(server))
            await conversation.say("Count.")
            conversation.save(tmp_path / "saved.json")
            saved = json.loads((tmp_path / "saved.json").read_text())
            await Conversation.from_json(agent_for(server), saved).say("Again.")
            return server.bodies

    first, second = asyncio.run(ask())
    assert "container" not in first
    assert second["container"].startswith("container_")


def test_skills_are_loaded_into_the_container_of_the_conversation() -> None:
    skills: Object = {"skills": [{"type": "anthropic", "skill_id": "pptx", "version": "latest"}]}

    async def ask() -> list[Object]:
        async with ScriptedServer(
            [ProviderCall("code_execution", CODE, "1"), Call("pack", item="hat")], "1."
        ) as server:
            await agent_for(server, extra={"container": skills}).run("Count.")
            return server.bodies

    first, second = asyncio.run(ask())
    assert first["container"] == skills
    assert second["container"].keys() == {"id", "skills"}


def test_a_container_that_has_expired_is_replaced_by_a_new_one_and_reported() -> None:
    async def ask() -> tuple[Any, list[Object]]:
        first = [WAITS, Call("pack", item="hat")]
        async with ScriptedServer(first, EXPIRED, [ProviderCall("code_execution", CODE, "1"), "1."]) as server:
            return await agent_for(server).run("Pack, and count."), server.bodies

    result, (_, second, third) = asyncio.run(ask())
    assert result.text == "1."
    assert "container" in second
    assert "container" not in third
    assert [block["type"] for block in blocks(third, 1)] == ["tool_use"]  # what waited in it cannot be continued
    assert any("container" in warning for warning in result.warnings)


def test_a_refusal_that_is_about_something_else_is_not_sent_again() -> None:
    async def ask() -> int:
        refused = Fail(RequestRefused("messages: something else", status=400))
        async with ScriptedServer([WAITS, Call("pack", item="hat")], refused, "Never.") as server:
            with pytest.raises(RequestRefused, match="something else"):
                await agent_for(server).run("Pack, and count.")
            return len(server.bodies)

    assert asyncio.run(ask()) == 2


def history(*more: Any, container: bool = True) -> Object:
    use: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": CODE}
    call: Object = {"type": "tool_use", "id": "toolu_1", "name": "pack", "input": {"item": "hat"}}
    kept: list[Object] = [{"type": "container", "id": "container_1"}] if container else []
    decoded = find_wire(ANTHROPIC).decode_request(
        {"messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [use, call]}]}
    )
    said = decoded.messages[1]
    assert isinstance(said, Assistant)
    said = Assistant(said.text, said.calls, native=Native(ANTHROPIC, [*kept, use, call], ("toolu_1",)))
    results = ToolMessage((ToolResult.of(said.calls[0], "packed"),))
    request = Request((User.of("Go."), said, results, *more), model="claude-opus-4-7", tools=(pack.spec,))
    return find_wire(ANTHROPIC).encode_request(request)


def test_the_server_refuses_waiting_code_without_its_container_and_code_that_nobody_continues() -> None:
    complete = history()
    assert check_request(ANTHROPIC, complete) == []
    assert "container_id is required" in check_request(ANTHROPIC, history(container=False))[0]
    over = {**complete, "messages": [*complete["messages"], {"role": "user", "content": "Never mind."}]}
    assert "without a corresponding result" in check_request(ANTHROPIC, over)[0]


def test_code_that_nobody_continues_is_left_out_and_so_is_a_result_whose_call_was_cut_off() -> None:
    body = history(User.of("Never mind."))
    assert [block["type"] for block in blocks(body, 1)] == ["tool_use"]
    assert check_request(ANTHROPIC, body) == []
    result: Object = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_0", "content": {}}
    said = Assistant("1.", native=Native(ANTHROPIC, [result, {"type": "text", "text": "1."}]))
    request = Request((User.of("Go."), said, User.of("Again.")), model="claude-opus-4-7")
    body = find_wire(ANTHROPIC).encode_request(request)
    assert [block["type"] for block in blocks(body, 1)] == ["text"]
