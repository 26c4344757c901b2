"""MCP servers and clients of others: `make test-mcp` installs them, and names their folder in `UNBROKEN_MCP`. The
servers are those of the protocol's own repository, in TypeScript (everything, filesystem, memory) and Python (time);
the clients are its inspector and the TypeScript package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import served_app
from in_loop import in_loop
from web_server import serve

from unbroken import Agent, Allow, Edit, MCPServer, ToolCall
from unbroken.events import CallProgress, Event
from unbroken.mcp import asgi_app
from unbroken.tools.approval import Approval, Question
from unbroken_testing import Call, ScriptedModel

FOLDER = Path(os.environ.get("UNBROKEN_MCP", ""))
pytestmark = pytest.mark.skipif(not os.environ.get("UNBROKEN_MCP"), reason="needs servers and clients: make test-mcp")

SDK_CLIENT = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const client = new Client({ name: "test", version: "1" }, { capabilities: { elicitation: {} } });
const asked = [];
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  asked.push(request.params.message);
  return { action: "accept", content: { approve: true } };
});
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const progress = [];
const onprogress = (report) => progress.push(report.message);
const names = (await client.listTools()).tools.map((tool) => tool.name);
const weather = await client.callTool({ name: "helper", arguments: { prompt: "weather" } }, undefined, { onprogress });
const paid = await client.callTool({ name: "pay", arguments: { amount: 3 } });
const failed = await client.callTool({ name: "fail", arguments: {} });
const stop = new AbortController();
const work = { name: "work", arguments: { folder: process.argv[3] } };
const working = client.callTool(work, undefined, { signal: stop.signal });
setTimeout(() => stop.abort(), 1000);
const cancelled = await working.then(() => false, () => true);
console.log(JSON.stringify({ names, weather, paid, failed, asked, progress, cancelled }));
await new Promise((resume) => setTimeout(resume, 1000)); // closing at once would drop the cancellation
await client.close();
"""


def node(package: str, entry: str, *arguments: str) -> list[str]:
    return ["node", str(FOLDER / "node_modules" / "@modelcontextprotocol" / package / entry), *arguments]


async def results(server: MCPServer, *calls: Call, answer: Any = None, events: list[Event] | None = None) -> list[Any]:
    agent = Agent(ScriptedModel([*calls], "Sampled.", "Done.", "Done."), tools=[server], on_approval=answer)
    return list((await agent.run("Go.", sinks=[events.append] if events is not None else [])).calls)


@in_loop
async def test_the_server_with_everything() -> None:
    asked: list[ToolCall] = []
    events: list[Event] = []

    def approve(call: ToolCall) -> Approval:
        asked.append(call)
        return Edit({"name": "Ada"}) if isinstance(call, Question) and call.kind == "form" else Allow()

    async with MCPServer(node("server-everything", "dist/index.js"), sampling=True, resources=True) as server:
        names = {tool.name for tool in server.tools}
        assert {"echo", "list_resources", "read_resource"} <= names
        sampling = next(name for name in names if "sampl" in name.lower() and "task" not in name)
        elicit = next(name for name in names if "elicit" in name.lower() and "url" not in name and "async" not in name)
        slow = next(name for name in names if "long" in name.lower())
        echoed, sampled, elicited, steps = await results(
            server,
            Call("echo", message="hello"),
            Call(sampling, prompt="A word?", maxTokens=10),
            Call(elicit),
            Call(slow, duration=1, steps=3),
            answer=approve,
            events=events,
        )
        assert "hello" in echoed.result.text
        assert "Sampled." in sampled.result.text
        assert "Ada" in elicited.result.text
        assert not steps.error
        assert len([event for event in events if isinstance(event, CallProgress) and event.name == slow]) >= 2
        assert {call.kind for call in asked} == {"form", "sampling"}
        found = await server.resources()
        assert any(each.template for each in found)
        first = next(each for each in found if not each.template)
        assert await server.read(first.uri)
        changes = server.watch(first.uri)
        change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.5)  # the server reports to subscribers alone
        await results(server, Call("toggle-subscriber-updates"))
        assert await change == first.uri
        await changes.aclose()
        prompts = {each.name: each for each in await server.prompts()}
        simple = next(each for each in prompts.values() if not each.arguments)
        assert await server.prompt(simple.name)


@pytest.mark.parametrize("http", [False, True], ids=["pipes", "http"])
@in_loop
async def test_a_task_of_the_server_with_everything_is_a_background_call(http: bool) -> None:
    asked: list[str] = []
    events: list[Event] = []

    def approve(call: ToolCall) -> Approval:
        assert isinstance(call, Question)
        asked.append(call.message)
        return Edit({"interpretation": call.schema["properties"]["interpretation"]["oneOf"][0]["const"]})

    async with everything(http) as server:
        model = ScriptedModel(
            [Call("simulate-research-query", topic="python", ambiguous=True)],
            [Call("echo", message="meanwhile")],
            "I wait.",
            "Done.",
        )
        result = await Agent(model, tools=[server], on_approval=approve).run("Go.", sinks=[events.append])
        report, echoed = result.calls
        assert report.result.text.startswith("# Research Report: python (")
        assert "meanwhile" in echoed.result.text
        assert [each.handle for each in result.background] == ["$call_1"]
        assert len(asked) == 1
        told = [event.message for event in events if isinstance(event, CallProgress)]
        assert "Generating report..." in told


@contextlib.asynccontextmanager
async def everything(http: bool) -> AsyncGenerator[MCPServer]:
    if not http:
        async with MCPServer(node("server-everything", "dist/index.js")) as server:
            yield server
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = node("server-everything", "dist/index.js", "streamableHttp")
    quiet, env = asyncio.subprocess.DEVNULL, {**os.environ, "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet, env=env)
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            await asyncio.sleep(0.1)
        async with MCPServer(url=f"http://127.0.0.1:{port}/mcp") as server:
            yield server
    finally:
        process.terminate()
        await process.wait()


@in_loop
async def test_files_memory_and_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("tea")
    files = MCPServer(node("server-filesystem", "dist/index.js", str(tmp_path)), prefix="fs_")
    read, outside = await results(
        files,
        Call("fs_read_text_file", path=str(tmp_path / "a.txt")),
        Call("fs_read_text_file", path="/etc/hostname"),
    )
    assert read.result.text == "tea"
    assert outside.error

    memory = MCPServer(node("server-memory", "dist/index.js"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")})
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    created, graph = await results(memory, Call("create_entities", entities=[entity]), Call("read_graph"))
    assert not created.error
    assert "likes tea" in graph.result.text

    clock = MCPServer([str(FOLDER / "venv" / "bin" / "python"), "-m", "mcp_server_time", "--local-timezone", "UTC"])
    now, wrong = await results(
        clock, Call("get_current_time", timezone="Europe/Oslo"), Call("get_current_time", timezone="x")
    )
    assert "Europe/Oslo" in now.result.text
    assert wrong.error


def inspected(*arguments: str) -> Any:
    inspector = node("inspector", "cli/build/cli.js", "--cli")
    server = [sys.executable, "-m", "unbroken", "mcp", "serve", f"{Path(served_app.__file__)}:everything"]
    command = [*inspector, *server, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_inspector_uses_our_server() -> None:
    listed = inspected("--method", "tools/list")["tools"]
    assert [tool["name"] for tool in listed][:2] == ["helper", "get_weather"]
    assert listed[1]["annotations"] == {"readOnlyHint": True, "idempotentHint": True}
    called = inspected("--method", "tools/call", "--tool-name", "get_weather", "--tool-arg", "city=Rome")
    assert called["content"] == [{"type": "text", "text": "Sunny in Rome."}]
    asked = inspected("--method", "tools/call", "--tool-name", "helper", "--tool-arg", "prompt=weather")
    assert asked["content"][0]["text"] == "It is sunny."


@in_loop
async def test_the_typescript_client_uses_our_server(tmp_path: Path) -> None:
    script = FOLDER / "client.mjs"
    script.write_text(SDK_CLIENT)
    async with serve(asgi_app(served_app.everything)) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        process = await asyncio.create_subprocess_exec(
            "node", str(script), url, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=FOLDER
        )
        said = json.loads((await process.communicate())[0])
        while not (tmp_path / "cancelled").exists():
            await asyncio.sleep(0.01)
    assert said["names"][:2] == ["helper", "get_weather"]
    assert said["weather"]["content"] == [{"type": "text", "text": "It is sunny."}]
    assert said["progress"] == ["get_weather started", "get_weather done"]
    assert said["paid"]["content"] == [{"type": "text", "text": "Paid 3."}]
    assert said["asked"] == ['Run `pay` with {"amount": 3}?']
    assert said["failed"]["isError"] is True
    assert said["cancelled"] is True
