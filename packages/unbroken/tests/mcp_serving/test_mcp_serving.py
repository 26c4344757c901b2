"""Agents and tools as an MCP server, used by the client of the `mcp` package over pipes and HTTP, with its newest
protocol and that of 2025, and by our own `MCPServer`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import httpx2
import mcp_types as types
import served_app
from in_loop import in_loop
from loaded_command import relayed
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from web_server import serve

from unbroken import Agent, Edit, MCPServer, ToolCall, UserError
from unbroken.mcp import asgi_app
from unbroken.mcp.serving.client_user import Waiting
from unbroken.mcp.serving.served import ServedAgent
from unbroken.tools.approval import Approval
from unbroken_testing import Call, ScriptedModel

APP = str(Path(served_app.__file__))
LOADED = ("unbroken.mcp", "mcp_library", "anyio._backends._asyncio")
KINDS = ["pipes", "pipes of 2025", "http", "http of 2025"]


def program(name: str, folder: Path | None = None) -> StdioServerParameters:
    first, *rest = relayed("mcp", "serve", f"{APP}:{name}", load=LOADED)
    library = relayed(program=served_app.LIBRARY[1], load=LOADED)
    env = {"FOLDER": str(folder or ""), "LIBRARY": json.dumps(library)}
    return StdioServerParameters(command=first, args=rest, env=env)


class User:
    """The user of a client, who gives these answers in turn."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content=next(self._answers))


@contextlib.asynccontextmanager
async def client(kind: str, name: str, user: User | None = None, folder: Path | None = None) -> AsyncGenerator[Client]:
    mode = "legacy" if "2025" in kind else "auto"
    if kind.startswith("pipes"):
        async with Client(program(name, folder), mode=mode, elicitation_callback=user) as connected:
            yield connected
        return
    async with serve(asgi_app(getattr(served_app, name))) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with Client(streamable_http_client(url), mode=mode, elicitation_callback=user) as connected:
            yield connected


def text_of(result: types.CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_an_agent_is_a_tool_that_takes_a_prompt_and_reports_its_calls(kind: str) -> None:
    reports: list[str | None] = []
    numbers: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        numbers.append(progress)
        reports.append(message)

    async with client(kind, "agent") as connected:
        [tool] = (await connected.list_tools()).tools
        result = await connected.call_tool("helper", {"prompt": "weather"}, progress_callback=report)
        empty = await connected.call_tool("helper", {"prompt": " "})
    assert tool.name == "helper"
    assert tool.input_schema["required"] == ["prompt"]
    assert (text_of(result), result.is_error) == ("It is sunny.", False)
    assert reports == ["get_weather started", "get_weather done"]
    assert numbers == sorted(numbers)
    assert empty.is_error


@pytest.mark.parametrize("kind", KINDS[1:])
@in_loop
async def test_tools_have_their_schemas_annotations_results_and_errors(kind: str) -> None:
    async with client(kind, "TOOLS") as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
        good = await connected.call_tool("get_weather", {"city": "Rome"})
        bad = await connected.call_tool("get_weather", {"town": "Rome"})
        failed = await connected.call_tool("fail", {})
        late = await connected.call_tool("hang", {})
        shown = await connected.call_tool("picture", {})
        with pytest.raises(MCPError, match="there is no tool `nothing`"):
            await connected.call_tool("nothing", {})
    assert [*tools] == ["get_weather", "pay", "fail", "hang", "work", "step", "picture"]
    weather, pay = tools["get_weather"], tools["pay"]
    assert weather.description == "The weather in a city."
    assert weather.input_schema["properties"] == {"city": {"type": "string"}}
    assert weather.annotations == types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    assert pay.annotations == types.ToolAnnotations(read_only_hint=False)
    assert (text_of(good), good.is_error) == ("Sunny in Rome.", False)
    assert [result.is_error for result in (bad, failed, late)] == [True] * 3
    assert "`city`: Field required" in text_of(bad)
    assert text_of(failed) == "Error: there is no paper"
    words, picture = shown.content
    assert words == types.TextContent(text="one pixel")
    assert picture == types.ImageContent(data="iVBORw==", mime_type="image/png")
    assert text_of(late) == "Error: Execution timeout after 0.1s"


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_the_user_of_the_client_approves_calls(kind: str) -> None:
    yes, no = {"approve": True}, {"approve": False, "reason": "too much"}
    user = User(yes, no, yes, no)
    async with client(kind, "everything", user) as connected:
        said = [text_of(await connected.call_tool("helper", {"prompt": "pay"})) for _ in range(2)]
        paid = [text_of(await connected.call_tool("pay", {"amount": 3})) for _ in range(2)]
    assert user.asked == ['Run `pay` with {"amount": 3}?'] * 4
    assert said == ["Done: Paid 3.", "Done: Error: not executed: denied: too much"]
    assert paid == ["Paid 3.", "Error: not executed: denied: too much"]


@pytest.mark.parametrize("kind", ["http", "http of 2025"])
@in_loop
async def test_without_a_user_to_ask_calls_that_need_an_approval_do_not_run(kind: str) -> None:
    nobody = "Error: not executed: it needs an approval, and nobody is there to give it"
    async with client(kind, "everything") as connected:
        assert text_of(await connected.call_tool("pay", {"amount": 3})) == nobody
        assert text_of(await connected.call_tool("helper", {"prompt": "pay"})) == f"Done: {nobody}"


@in_loop
async def test_an_answer_of_the_user_counts_once_and_only_for_its_own_call() -> None:
    async with client("http", "TOOLS", User()) as connected:

        async def call(amount: int, **more: Any) -> Any:
            return await connected.session.call_tool("pay", {"amount": amount}, allow_input_required=True, **more)

        first = await call(3)
        assert isinstance(first, types.InputRequiredResult)
        [key] = first.input_requests or {}
        said = {key: types.ElicitResult(action="accept", content={"approve": True})}
        with pytest.raises(MCPError, match="not waiting for an answer"):
            await call(9, input_responses=said, request_state=first.request_state)  # another amount
        second = await call(3)
        assert isinstance(second, types.InputRequiredResult)
        [key] = second.input_requests or {}
        said = {key: types.ElicitResult(action="accept", content={"approve": True})}
        assert text_of(await call(3, input_responses=said, request_state=second.request_state)) == "Paid 3."
        with pytest.raises(MCPError, match="was answered before"):
            await call(3, input_responses=said, request_state=second.request_state)
        unasked = await call(3, input_responses=said)  # without what was given to the client
        assert isinstance(unasked, types.InputRequiredResult)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "agent") for kind in KINDS), ("http", "TOOLS"), ("http of 2025", "TOOLS")],
)
@in_loop
async def test_a_client_that_cancels_its_call_cancels_the_run(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    tool, arguments = ("helper", {"prompt": "work"}) if name == "agent" else ("work", {"folder": str(tmp_path)})
    async with client(kind, name, folder=tmp_path) as connected:
        calling = asyncio.create_task(connected.call_tool(tool, arguments))
        await until(tmp_path / "begun")
        calling.cancel()
        await asyncio.wait({calling})
        await until(tmp_path / "cancelled")
        assert await connected.list_tools()


async def until(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@in_loop
async def test_clients_of_one_server_do_not_see_or_disturb_each_other(mode: str, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("ada", "grace")}
    users = {"ada": User(*[{"approve": True}] * 10), "grace": User(*[{"approve": False, "reason": "no"}] * 10)}
    heard: dict[str, set[str | None]] = {"ada": set(), "grace": set()}

    async def use(name: str, connected: Client) -> list[str]:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            heard[name].add(message)

        asked = [
            connected.call_tool("get_weather", {"city": f"{name} {number}"}, progress_callback=report)
            if number % 2
            else connected.call_tool("helper", {"prompt": "pay"}, progress_callback=report)
            for number in range(8)
        ]
        return [text_of(result) for result in await asyncio.gather(*asked)]

    async with serve(asgi_app(served_app.everything)) as port, contextlib.AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name, folder in folders.items():
            folder.mkdir()
            transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp")
            one = Client(transport, mode=mode, elicitation_callback=users[name])
            clients[name] = await stack.enter_async_context(one)
        said = await asyncio.gather(*(use(name, one) for name, one in clients.items()))
        for (name, texts), paid in zip(
            zip(clients, said, strict=True), ("Done: Paid 3.", "Done: Error: not executed: denied: no"), strict=True
        ):
            assert texts == [f"Sunny in {name} {number}." if number % 2 else paid for number in range(8)]
            assert len(users[name].asked) == 4

        work = {
            name: asyncio.create_task(one.call_tool("work", {"folder": str(folders[name])}))
            for name, one in clients.items()
        }
        await until(folders["ada"] / "begun")  # writes wait for each other: that of `grace` has not begun
        work["ada"].cancel()
        await until(folders["ada"] / "cancelled")
        await until(folders["grace"] / "begun")
        assert not (folders["grace"] / "cancelled").exists()
        work["grace"].cancel()
        await until(folders["grace"] / "cancelled")
        await asyncio.wait(work.values())
    assert heard["ada"] == {"pay started", "pay done"}
    assert heard["grace"] == {"pay failed"}


@in_loop
async def test_writes_of_different_requests_run_one_after_another(tmp_path: Path) -> None:
    async with client("http", "TOOLS") as connected:
        calls = [connected.call_tool("step", {"folder": str(tmp_path), "name": name}) for name in "abc"]
        await asyncio.gather(*calls)
    begun = (tmp_path / "steps").read_text().split()
    assert [begun[i + 1] for i in (0, 2, 4)] == [f"/{begun[i]}" for i in (0, 2, 4)]


@in_loop
async def test_several_agents_are_several_tools_and_a_typed_answer_has_its_schema() -> None:
    async with client("http", "agents") as connected:
        first, second = (await connected.list_tools()).tools
        result = await connected.call_tool("second", {"prompt": "How warm?"})
    assert (first.name, second.name) == ("first", "second")
    assert second.output_schema is not None
    assert second.output_schema["required"] == ["city", "degrees"]
    assert result.structured_content == {"city": "Rome", "degrees": 21}
    assert text_of(result) == '{"city":"Rome","degrees":21}'


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_half_a_surrogate_pair_in_a_result_does_not_end_the_connection(kind: str) -> None:
    reports: list[str | None] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append(message)

    async with client(kind, "halves") as connected:
        half = await connected.call_tool("half", {}, progress_callback=report)
        answer = await connected.call_tool("answer", {"prompt": "Go."})
        asked = await connected.call_tool("typed", {"prompt": "Go."})
    assert text_of(half) == "half: \ufffd"
    assert reports == ["at \ufffd"]
    assert text_of(answer) == "\ufffd"
    assert asked.structured_content == {"city": "\ufffd"}


TYPED: list[tuple[str, Any]] = [
    ("either", {"value": {"city": "Rome"}}),
    ("tree", {"value": {"kids": [{"kids": []}]}}),
]


@pytest.mark.parametrize(("name", "fits"), TYPED)
@in_loop
async def test_a_typed_answer_that_is_a_union_or_contains_itself_fits_its_schema(
    name: str, fits: dict[str, Any]
) -> None:
    async with client("http", "wrapped") as connected:
        result = await connected.call_tool(name, {"prompt": "Go."})  # the client checks it
    assert result.structured_content == fits


@pytest.mark.parametrize("key", ["", "our-key-0123"])
@in_loop
async def test_http_is_open_to_this_machine_alone_or_to_those_with_the_key(key: str) -> None:
    async with serve(asgi_app(served_app.TOOLS, key=key)) as port, httpx2.AsyncClient() as web:
        url = f"http://127.0.0.1:{port}/mcp"
        for headers in ({"authorization": "Bearer wrong"}, {"host": "evil.example"}, {"origin": "http://evil.example"}):
            answer = await web.post(url, headers=headers, json={})
            assert answer.status_code in (
                (401,) if key else (403, 421) if "authorization" not in headers else (400, 406)
            )
        given = {"authorization": f"Bearer {key}"} if key else {}
        async with MCPServer(url=url, headers=given) as server:
            assert len(server.tools) == 7


@pytest.mark.parametrize("kind", ["pipes", "http"])
@in_loop
async def test_our_own_client_uses_our_own_server(kind: str) -> None:
    asked: list[str] = []

    def approve(call: ToolCall) -> Approval:
        asked.append(getattr(call, "message", call.name))
        return Edit({"approve": True})

    async def use(server: MCPServer) -> None:
        model = ScriptedModel([Call("helper", prompt="weather"), Call("helper", prompt="pay")], "All done.")
        result = await Agent(model, tools=[server], on_approval=approve).run("Go.")
        assert [call.result.text for call in result.calls] == ["It is sunny.", "Done: Paid 3."]

    if kind == "pipes":
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        await use(MCPServer([sys.executable, "-m", "unbroken", "mcp", "serve", f"{APP}:agent"], env=env))
    else:
        async with serve(asgi_app(served_app.agent)) as port:
            await use(MCPServer(url=f"http://127.0.0.1:{port}/mcp"))
    assert asked == ['Run `pay` with {"amount": 3}?']


@in_loop
async def test_the_tools_of_another_server_are_served_on_with_its_questions() -> None:
    user = User({"number": 4, "table": "garden"})
    async with client("pipes of 2025", "library", user) as connected:
        result = await connected.call_tool("book", {"day": "Monday"})
    assert text_of(result) == "Monday: accept Guests(number=4, table='garden')"
    assert user.asked == ["How many guests, and which table?"]


def test_the_name_of_an_agent_becomes_one_that_clients_accept() -> None:
    waiting = Waiting()
    for name, offered in (("my agent!", "my_agent_"), ("Wetterfrosch ü", "Wetterfrosch__"), ("a" * 70, "a" * 64)):
        agent = Agent(ScriptedModel("Hi."), name=name)
        assert ServedAgent(agent, "", "", None, waiting).description.name == offered


def test_what_cannot_be_served_is_refused_at_once() -> None:
    with pytest.raises(UserError, match="`my agent!` cannot be the name of an MCP tool"):
        asgi_app({"my agent!": served_app.agent})
    with pytest.raises(UserError, match="there is nothing to serve"):
        asgi_app([])
    with pytest.raises(UserError, match="expected agents by name"):
        asgi_app({"x": served_app.pay})
    with pytest.raises(UserError, match="for one agent"):
        asgi_app(served_app.TOOLS, name="x")
    with pytest.raises(UserError, match="two agents are called `helper`"):
        asgi_app([served_app.agent, served_app.agent])


@in_loop
async def test_white_space_around_the_value_of_a_header_is_not_part_of_it() -> None:
    mark = "io.modelcontextprotocol/"
    marks: dict[str, Any] = {f"{mark}protocolVersion": "2026-07-28", f"{mark}clientCapabilities": {}}
    params = {"name": "get_weather", "arguments": {"city": "Rome"}, "_meta": marks}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    async with serve(asgi_app(served_app.everything)) as port:
        reading, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(
            f"POST /mcp HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name:  get_weather  \r\n\r\n".encode()
            + body
        )
        answer = await reading.read()
        writing.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"Sunny in Rome." in answer
