"""Resources and prompts of MCP servers, what they report as changed, output schemas, and `select` on a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import mcp_server
from in_loop import in_loop
from loaded_command import relayed
from mcp_library import PIXEL
from test_mcp_questions import KINDS, LOADED, answering, library
from test_mcp_sessions import Reply, serving

from unbroken import Agent, Allow, Assistant, Deny, Text, ToolCall, ToolFailed, User
from unbroken.errors import InvalidTool
from unbroken.mcp import PromptTemplate, Resource
from unbroken.mcp.client.server import MCPServer
from unbroken.tools.selection import select
from unbroken_testing import Call, ScriptedModel
from unbroken_wires.messages import Media


def a_server(**options: Any) -> MCPServer:
    return MCPServer(relayed(program=Path(mcp_server.__file__), load=LOADED), **options)


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_resources_are_listed_and_read_as_parts_of_a_prompt(kind: str) -> None:
    async with library(kind) as server:
        found = await server.resources()
        text, picture, filled = [await server.read(uri) for uri in ("notes://tea", "pictures://pixel", "notes://x")]
        with pytest.raises(ToolFailed, match=r"library.*: "):
            await server.read("nowhere://x")
        model = ScriptedModel("Tea.")
        await Agent(model).run([*text, *picture, "What do I need?"])
    assert found == (
        Resource("notes://tea", "tea", "What to buy.", "text/plain"),
        Resource("pictures://pixel", "pixel", "", "image/png"),
        Resource("notes://{name}", "note", "Any note.", "text/plain", template=True),
    )
    assert text == (Text("Buy tea."),)
    assert filled == (Text("A note about x."),)
    assert picture == (Media(mime="image/png", data=PIXEL),)
    assert model.requests[0].messages[-1] == User.of("Buy tea.", *picture, "What do I need?")


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_prompts_are_listed_and_begin_a_conversation(kind: str) -> None:
    async with library(kind) as server:
        [found] = await server.prompts()
        messages = await server.prompt("review", file="a.py", tone="strict")
        with pytest.raises(ToolFailed, match="library"):
            await server.prompt("nothing")
    assert found == PromptTemplate("review", "Review a file.", {"file": "", "tone": ""}, ("file",))
    assert messages == (
        User.of("Review a.py, and be strict."),
        Assistant("Show it to me."),
        User.of("print(1)", Media(mime="image/png", data=PIXEL)),
    )
    model = ScriptedModel("It prints 1.")
    result = await Agent(model).run(history=messages)
    assert result.text == "It prints 1."
    assert model.requests[0].messages == messages


@in_loop
async def test_a_model_reads_resources_if_it_may() -> None:
    async with library("pipes", resources=True, prefix="lib_") as server:
        tools = {tool.name: tool.effect for tool in server.tools}
        model = ScriptedModel(
            [Call("lib_list_resources")],
            [Call("lib_read_resource", uri="notes://tea"), Call("lib_read_resource", uri="notes://{name}/no")],
            "Tea.",
        )
        result = await Agent(model, tools=[server]).run("What do I need?")
    listed, read, missing = result.calls
    assert tools["lib_list_resources"] == tools["lib_read_resource"] == "read"
    uris = [one["uri"] for one in json.loads(listed.result.text)]
    assert uris == ["notes://tea", "pictures://pixel", "notes://{name}"]
    assert read.result.text == "Buy tea."
    assert missing.error
    async with library("pipes") as server:
        assert "read_resource" not in {tool.name for tool in server.tools}


@in_loop
async def test_a_server_without_resources_and_prompts_has_none() -> None:
    async with a_server(resources=True) as server:
        assert await server.resources() == ()
        assert await server.prompts() == ()
    with pytest.raises(InvalidTool, match="is not open"):
        await server.resources()


@in_loop
async def test_changes_are_reported_to_watchers() -> None:
    async with library("pipes") as server:
        seen: list[str] = []
        watching = asyncio.Event()

        async def watch() -> None:
            changes = server.watch("notes://tea")
            watching.set()
            async for change in changes:
                seen.append(change)

        task = asyncio.create_task(watch())
        await watching.wait()
        while len(set(seen)) < 3:  # the first change may come before the subscription
            await Agent(ScriptedModel([Call("change")], "Done."), tools=[server]).run("Go.")
        assert await server.read("notes://tea") == (Text("Buy coffee."),)
    await task  # it ends with the connection
    assert set(seen) == {"notes://tea", "resources", "prompts"}


# Output schemas


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"structuredContent": {"celsius": 21.5}}, ""),
        ({"structuredContent": {"celsius": "warm"}}, "'warm' is not of type 'number'"),
        ({"structuredContent": {}}, "'celsius' is a required property"),
        ({}, "has an output schema but did not return structured content"),
        ({"isError": True}, "no thermometer"),
    ],
)
@in_loop
async def test_a_result_that_does_not_fit_its_output_schema_is_an_error(result: dict[str, Any], words: str) -> None:
    async def answer(name: str, session: str) -> Reply:
        text = "no thermometer" if result.get("isError") else "21.5"
        return 200, {"result": {"content": [{"type": "text", "text": text}], **result}}

    schema = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}
    async with serving(answer, "measure", output_schema=schema) as desk, desk:
        called = (await Agent(ScriptedModel([Call("measure")], "Done."), tools=[desk]).run("Go.")).calls[0]
    assert called.error == bool(words)
    assert words in called.result.text
    assert "\n" not in called.result.text


# Filter and approval


@in_loop
async def test_select_filters_renames_and_guards_the_tools_of_a_server() -> None:
    asked: list[ToolCall] = []
    server = a_server()
    chosen = select(server, prefix="t_", only=["greet", "process", "slow"], approve=["process"])
    model = ScriptedModel([Call("t_process"), Call("t_greet", name="Ada")], "Done.")
    async with Agent(model, tools=[chosen], on_approval=answering(Deny("no"), asked)) as agent:
        assert sorted(tool.name for tool in chosen.tools) == ["t_greet", "t_process", "t_slow"]  # type: ignore[union-attr]
        result = await agent.run("Go.")
    assert [call.name for call in asked] == ["t_process"]
    assert [call.result.text for call in result.calls] == ["Error: not executed: denied: no", "Hello, Ada."]
    reads = select(server, keep=lambda tool: tool.effect == "read", approve=True)
    model = ScriptedModel([Call("greet", name="Ada")], "Done.")
    async with Agent(model, tools=[reads], on_approval=answering(Allow(), asked)) as agent:
        assert [tool.name for tool in reads.tools] == ["greet"]  # type: ignore[union-attr]
        assert (await agent.run("Go.")).calls[0].result.text == "Hello, Ada."
    assert len(asked) == 2


@in_loop
async def test_a_filter_for_a_tool_that_the_server_does_not_have_fails_when_it_is_opened() -> None:
    with pytest.raises(InvalidTool, match=r"there is no tool `gret`.*did you mean `greet`"):
        async with select(a_server(), only=["gret"]):  # type: ignore[union-attr]
            pass
