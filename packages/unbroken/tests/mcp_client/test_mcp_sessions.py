"""Sessions of MCP servers: when a call is repeated and when never, how long a session lives, who may share it. The
server uses HTTP, and answers as each test defines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

from starlette.types import Receive, Scope, Send
from test_mcp import BY_HAND, call, failure
from web_server import serve

from unbroken import Agent, Request, Result, ScriptedModel
from unbroken.errors import InvalidTool, UserError
from unbroken.mcp.client.server import MCPServer
from unbroken_testing import Call
from unbroken_wires.messages import Text, ToolMessage

Reply = tuple[int, dict[str, Any] | bytes | None]
"""A status, and a JSON-RPC message without its id, or an invalid body."""
OK: dict[str, Any] = {"result": {"content": [{"type": "text", "text": "ok"}]}}
NO_SESSION = {"error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}}
NOT_FOUND = {"error": {"code": -32600, "message": "Session not found"}}


class Server:
    """A server of the protocol of 2025; `answer` gets the name of a tool and the session of the call."""

    def __init__(self, answer: Callable[[str, str], Awaitable[Reply]], tools: list[dict[str, Any]]) -> None:
        self._answer = answer
        self._tools = tools
        self.sessions = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while (piece := await receive())["type"] == "http.request":
            body += piece.get("body", b"")
            if not piece.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, said = await self._reply(scope["method"], body, headers.get("mcp-session-id", ""))
        content = said if isinstance(said, bytes) else b""
        if said is not None and not isinstance(said, bytes):
            content = json.dumps({"jsonrpc": "2.0", "id": json.loads(body).get("id"), **said}).encode()
        sent = [(b"content-type", b"text/plain" if isinstance(said, bytes) else b"application/json")]
        if b'"initialize"' in body:
            sent.append((b"mcp-session-id", f"session-{self.sessions}".encode()))
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": content})

    async def _reply(self, verb: str, body: bytes, session: str) -> Reply:
        if verb != "POST":
            return 405, None
        message = json.loads(body)
        match message.get("method"):
            case "initialize":
                self.sessions += 1
                about: dict[str, Any] = {
                    "serverInfo": {"name": "pay desk", "version": "1"},
                    "capabilities": {"tools": {}},
                }
                return 200, {"result": {"protocolVersion": "2025-06-18", **about}}
            case "tools/list":
                return 200, {"result": {"tools": self._tools}}
            case "tools/call":
                return await self._answer(message["params"]["name"], session)
            case _ if "id" in message:
                return 200, {"error": {"code": -32601, "message": "Method not found"}}
            case _:
                return 202, None


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[str, str], Awaitable[Reply]], *tools: str, output_schema: dict[str, Any] | None = None
) -> AsyncGenerator[MCPServer, None]:
    """Not open yet."""
    listed: list[dict[str, Any]] = [
        {"name": name, "inputSchema": {"type": "object"} if name != "bad" else {}} for name in tools
    ]
    if output_schema is not None:
        listed = [{**one, "outputSchema": output_schema} for one in listed]
    async with serve(Server(answer, listed)) as port:
        yield MCPServer(url=f"http://127.0.0.1:{port}/mcp")


def test_a_write_is_not_repeated_because_another_call_was_refused() -> None:
    ran: list[str] = []
    paying, refused = asyncio.Event(), asyncio.Event()

    async def answer(name: str, session: str) -> Reply:
        ran.append(name)
        if name == "other":
            return 400, b"bad request"
        paying.set()
        await refused.wait()
        return 200, {"error": {"code": -32603, "message": "paid, but the receipt failed"}}

    async def main() -> None:
        async with serving(answer, "pay", "other") as desk, desk, asyncio.TaskGroup() as group:
            pay = group.create_task(failure(desk, "pay"))
            await paying.wait()
            words = await failure(desk, "other")
            assert words == "MCP server `pay desk`: HTTP status 400: Server returned an error response"
            refused.set()
            assert await pay == "MCP server `pay desk`: paid, but the receipt failed"
            assert ran == ["pay", "other"]

    asyncio.run(main())


@pytest.mark.parametrize(("status", "said"), [(404, None), (404, NOT_FOUND), (400, NO_SESSION)])
def test_a_call_whose_session_the_server_forgot_is_repeated_in_a_new_one(status: int, said: Any) -> None:
    sent: list[str] = []

    async def answer(name: str, session: str) -> Reply:
        sent.append(session)
        return (status, said) if session == "session-1" else (200, OK)

    async def main() -> None:
        async with serving(answer, "pay") as desk, desk:
            assert await call(desk, "pay") == (Text("ok"),)
            assert sent == ["session-1", "session-2"]

    asyncio.run(main())


def test_a_server_that_forgets_every_session_is_tried_twice() -> None:
    sent: list[str] = []

    async def answer(name: str, session: str) -> Reply:
        sent.append(session)
        return 404, None

    async def main() -> None:
        async with serving(answer, "pay") as desk, desk:
            words = await failure(desk, "pay")
            assert words == "MCP server `pay desk` loses its session at once; nothing was run"
            assert sent == ["session-1", "session-2"]

    asyncio.run(main())


def test_a_call_that_is_refused_without_a_reason_is_sent_once_and_the_next_one_has_a_new_session() -> None:
    sent: list[str] = []

    async def answer(name: str, session: str) -> Reply:
        sent.append(session)
        return (400, b"what?") if len(sent) == 1 else (200, OK)

    async def main() -> None:
        async with serving(answer, "pay") as desk, desk:
            assert "HTTP status 400" in await failure(desk, "pay")
            assert sent == ["session-1"]
            assert await call(desk, "pay") == (Text("ok"),)
            assert sent == ["session-1", "session-2"]

    asyncio.run(main())


def test_the_end_of_a_session_does_not_cut_off_its_running_calls() -> None:
    started, forgotten = asyncio.Event(), asyncio.Event()

    async def answer(name: str, session: str) -> Reply:
        if name == "slow":
            started.set()
            await forgotten.wait()
            return 200, OK
        return (404, None) if session == "session-1" else (200, OK)

    async def main() -> None:
        async with serving(answer, "slow", "quick") as desk, desk, asyncio.TaskGroup() as group:
            slow = group.create_task(call(desk, "slow"))
            await started.wait()
            assert await call(desk, "quick") == (Text("ok"),)
            assert not slow.done()
            forgotten.set()
            assert await slow == (Text("ok"),)

    asyncio.run(main())


def test_an_invalid_result_is_reported_in_one_line() -> None:
    async def answer(name: str, session: str) -> Reply:
        return (200, {"result": {"content": [{"type": "video"}]}}) if name == "film" else (200, b"garbage")

    async def main() -> None:
        async with serving(answer, "film", "noise") as desk, desk:
            words = await failure(desk, "film")
            assert words.startswith(
                "MCP server `pay desk` gave a result that cannot be read: CallToolResult: `content.0"
            )
            assert "\n" not in words + await failure(desk, "noise")
            assert "http" not in words

    asyncio.run(main())


async def always_ok(name: str, session: str) -> Reply:
    return 200, OK


def test_an_unreadable_list_of_tools_names_the_position() -> None:
    async def main() -> None:
        async with serving(always_ok, "good", "bad") as desk:
            with pytest.raises(InvalidTool, match=r"ListToolsResult: `tools\.1\.inputSchema\.type`: Field required"):
                await desk.open()

    asyncio.run(main())


def test_tools_with_one_name_are_numbered() -> None:
    async def main() -> None:
        async with serving(always_ok, "t", "t", "t", "t_2", "x" * 70, "x" * 70) as desk, desk:
            names = [tool.name for tool in desk.tools]
            assert names == ["t", "t_2", "t_3", "t_2_2", "x" * 64, "x" * 62 + "_2"]

    asyncio.run(main())


def test_a_server_that_never_returns_its_new_tools_can_be_closed() -> None:
    async def main() -> None:
        async with asyncio.timeout(5), MCPServer(BY_HAND, env={"LISTS_ONCE": "1"}) as server:
            await call(server, "changes")
            await call(server, "process")
            assert len(server.tools) == 5

    asyncio.run(main())


def test_invalid_bytes_are_ignored_as_noise() -> None:
    noisy = "import sys, runpy; sys.stdout.buffer.write(b'\\xff\\xfe\\x00\\n'); sys.argv = sys.argv[1:]; "
    noisy += "runpy.run_path(sys.argv[0], run_name='__main__')"

    async def main() -> None:
        async with MCPServer([sys.executable, "-uc", noisy, BY_HAND[1]]) as server:
            assert len(server.tools) == 5

    asyncio.run(main())


def test_agents_share_a_server_that_was_not_open() -> None:
    first_called, second_called, first_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(name: str, session: str) -> Reply:
        if name == "first":
            first_called.set()
            await second_called.wait()
        elif name == "second":
            second_called.set()
            await first_left.wait()
        return 200, OK

    async def main() -> None:
        async with serving(answer, "first", "second", "third") as desk, asyncio.TaskGroup() as group:
            opens_it = group.create_task(Agent(ScriptedModel([Call("first")], "done"), [desk]).run("go"))
            await first_called.wait()
            shares_it = Agent(ScriptedModel([Call("second")], [Call("third")], "done"), [desk])
            going = group.create_task(shares_it.run("go"))
            calls = [*(await opens_it).calls]
            first_left.set()
            calls += (await going).calls
            assert [(call.result.text, call.error) for call in calls] == [("ok", False)] * 3
            assert not desk.is_open

    asyncio.run(main())


def test_a_server_that_was_opened_by_hand_stays_open_when_others_leave() -> None:
    async def main() -> None:
        async with serving(always_ok, "t") as desk:
            async with desk:
                await desk.open()
            assert desk.is_open
            async with desk:
                pass
            assert await call(desk, "t") == (Text("ok"),)
            await desk.aclose()
            assert not desk.is_open

    asyncio.run(main())


def test_a_second_event_loop_is_refused_and_the_first_is_not_disturbed() -> None:
    inside, tried = threading.Event(), threading.Event()
    server = MCPServer(BY_HAND)

    def wait_for_the_other(request: Request) -> Any:
        inside.set()
        assert tried.wait(10)
        return "done" if isinstance(request.messages[-1], ToolMessage) else [Call("process")]

    agent = Agent(ScriptedModel(wait_for_the_other, loop_last=True), [server])
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(agent.run("go"))))
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(UserError, match="is open in another event loop; close it there first, or give each loop"):
            asyncio.run(agent.run("go"))
    finally:
        tried.set()
        thread.join(10)
    assert [call.error for call in results[0].calls] == [False]
    assert [call.error for call in asyncio.run(agent.run("go")).calls] == [False]
