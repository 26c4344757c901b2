"""MCP servers as tools, against real servers: one of the `mcp` package (over pipes and HTTP) and one by hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from checkout import SUPPORT

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

from loaded_command import relayed
from mcp_server import PIXEL, build
from starlette.types import ASGIApp, Receive, Scope, Send
from web_server import serve

from unbroken.errors import InvalidTool, UserError
from unbroken.events import CallProgress, Event
from unbroken.mcp.client.server import MCPServer
from unbroken.tools.context import CallContext
from unbroken.tools.results import ToolFailed
from unbroken.tools.toolbox import Toolbox, origin_of
from unbroken_wires.messages import Media, Part, Text

PROGRAM = [sys.executable, str(SUPPORT.joinpath("mcp_server.py"))]
BY_HAND = [sys.executable, str(SUPPORT.joinpath("mcp_server_by_hand.py"))]
GREETING = (Text("Hello, Ada."),)


def loaded_program() -> list[str]:
    return relayed(program=PROGRAM[1], load=("mcp_server", "anyio._backends._asyncio"))


async def call(server: MCPServer, name: str, /, _context: CallContext[Any] | None = None, **arguments: Any) -> Any:
    found = Toolbox(server).get(name)
    assert found is not None
    assert found.function is not None
    arguments = found.signature.bind(arguments)
    return await found.function(**arguments, **{found.signature.context: _context or CallContext()})


async def failure(server: MCPServer, name: str, /, **arguments: Any) -> str:
    with pytest.raises(ToolFailed) as caught:
        await call(server, name, **arguments)
    return str(caught.value)


@contextlib.asynccontextmanager
async def over_http(prefix: str = "") -> AsyncGenerator[MCPServer, None]:
    async with (
        serve(build().streamable_http_app()) as port,
        MCPServer(url=f"http://127.0.0.1:{port}/mcp", prefix=prefix) as server,
    ):
        yield server


def guarded(app: ASGIApp, key: str) -> ASGIApp:
    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"authorization", key.encode()) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await app(scope, receive, send)

    return guard


def test_tools_of_a_program_are_usable() -> None:
    async def main() -> None:
        async with MCPServer(PROGRAM) as server:
            toolbox = Toolbox(server)
            greet, slow = toolbox.get("greet"), toolbox.get("slow")
            assert greet is not None
            assert slow is not None
            assert greet.spec.description == "Say hello."
            assert greet.spec.parameters["required"] == ["name"]
            assert (greet.effect, slow.effect) == ("read", "write")
            assert origin_of(greet) == "MCP server `tests`, tool `greet`"
            assert await call(server, "greet", name="Ada") == GREETING

    asyncio.run(main())


def test_names_get_a_prefix_and_are_valid_for_providers() -> None:
    async def main() -> None:
        async with over_http(prefix="t_") as server:
            assert {"t_greet", "t_a_name_with_signs"} <= set(Toolbox(server).names)
            assert await call(server, "t_a_name_with_signs") == (Text("odd"),)

    asyncio.run(main())


def test_pictures_stay_media_and_failures_are_reported() -> None:
    async def main() -> None:
        async with over_http() as server:
            assert await call(server, "picture") == (Text("one pixel:"), Media(mime="image/png", data=PIXEL))
            assert "the moon is in the wrong phase" in await failure(server, "refuse")
            assert "name" in await failure(server, "greet")

    asyncio.run(main())


def test_progress_is_reported_and_calls_run_in_parallel() -> None:
    async def main() -> None:
        said: list[tuple[type[Event], Any]] = []
        half_way = asyncio.Event()

        def say(kind: type[Event], *fields: Any) -> None:
            said.append((kind, fields))
            half_way.set()

        async with MCPServer(loaded_program()) as server, asyncio.TaskGroup() as group:
            context = CallContext[Any](call_id="c", name="slow", say=say)
            slow = group.create_task(call(server, "slow", context, seconds=0.2))
            await half_way.wait()
            assert await call(server, "greet", name="Ada") == GREETING
            assert not slow.done()
            assert await slow == (Text("done"),)
        assert said == [(CallProgress, (-1, "c", "slow", "half way", 0.5))]

    asyncio.run(main())


def test_all_pages_are_fetched_and_refetched_when_they_change() -> None:
    async def main() -> None:
        async with MCPServer(BY_HAND) as server:
            assert Toolbox(server).names == ("never_answers", "changes", "process", "key", "cancelled")
            text = {"type": "object", "properties": {"text": {"type": "string"}}}
            assert server.tools[0].spec.parameters == {"$schema": "x", **text}
            assert await call(server, "changes") == (
                Text("[resource a at file:///a]\n[resource file:///b]\ninside\n[audio/wav, 3 bytes, not shown]"),
            )
            async with asyncio.timeout(5):
                while "new" not in Toolbox(server):
                    await asyncio.sleep(0.005)

    asyncio.run(main())


def test_a_newer_server_announces_its_new_tools_too() -> None:
    async def main() -> None:
        async with MCPServer(loaded_program()) as server:
            await call(server, "grow")
            async with asyncio.timeout(5):
                while "grown" not in Toolbox(server):
                    await asyncio.sleep(0.005)
            assert await call(server, "grown") == (Text("grown"),)

    asyncio.run(main())


def test_a_cancelled_call_is_cancelled_at_the_server() -> None:
    async def main() -> None:
        async with MCPServer(BY_HAND) as server:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await call(server, "never_answers")
            assert await call(server, "cancelled") == (Text('{"cancelled":1}'),)

    asyncio.run(main())


def test_a_server_that_dies_fails_its_calls_with_a_message_and_is_restarted() -> None:
    async def main() -> None:
        async with MCPServer(loaded_program(), env={"SECRET": "swordfish"}) as server:
            first = await call(server, "process")
            async with asyncio.TaskGroup() as group:
                beside = group.create_task(failure(server, "slow", seconds=60))
                words = await failure(server, "die")
            assert (
                words == "MCP server `tests` was lost while `die` was running (it wrote: fatal: out of cheese, key ***)"
            )
            assert "`slow` was running" in await beside
            assert await call(server, "process") != first

    asyncio.run(main())


def test_opening_and_closing_may_be_repeated() -> None:
    async def main() -> None:
        server = MCPServer(BY_HAND)
        await server.aclose()
        await asyncio.gather(server.open(), server.open())
        number = await call(server, "process")
        await server.open()
        assert await call(server, "process") == number
        process = Toolbox(server).get("process")
        await server.aclose()
        await server.aclose()
        assert not server.is_open
        assert process is not None
        with pytest.raises(ToolFailed, match="was closed"):
            await process()
        await server.open()
        assert await process() != number
        await server.aclose()

    asyncio.run(main())


def test_one_server_serves_one_event_loop_after_another() -> None:
    server = MCPServer(BY_HAND)

    async def main() -> tuple[Part, ...]:
        await server.open()
        return await call(server, "process")

    assert asyncio.run(main()) != asyncio.run(main())


def test_a_server_that_is_not_open_has_no_tools() -> None:
    with pytest.raises(InvalidTool, match="`python3` is not open; use `async with`, or give it to an Agent"):
        Toolbox(MCPServer("python3"))


def test_cancelling_the_opening_leaves_no_process() -> None:
    async def main() -> None:
        server = MCPServer([sys.executable, "-c", "import sys; sys.stdin.read()"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await server.open()
        assert not server.is_open
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (MCPServer("no-such-program -x"), "`no-such-program` cannot be started: `no-such-program` was not found"),
        (MCPServer(PROGRAM, cwd="/no/such/place"), "`/no/such/place` was not found"),
        (
            MCPServer(
                [sys.executable, "-c", "raise SystemExit('no key hunter22')"], env={"KEY": "hunter22"}, name="it"
            ),
            "MCP server `it` ended before it was ready (it wrote: no key ***)",
        ),
        (
            MCPServer([sys.executable, "-c", "import sys; sys.stdin.read()"], name="it", opening=0.1),
            "MCP server `it` was not ready after 0.1 s; give it longer with opening=",
        ),
        (MCPServer(url="http://127.0.0.1:9/mcp?key=hunter22"), "`http://127.0.0.1:9` cannot be reached"),
    ],
)
def test_a_server_that_does_not_start_reports_why_in_one_line(server: MCPServer, words: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        asyncio.run(server.open())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter22" not in str(caught.value)


def test_no_repr_contains_secrets() -> None:
    program = MCPServer(["serve", "--token", "hunter22"], env={"KEY": "hunter22"})
    address = MCPServer(url="https://u:hunter22@example.org/hunter22?key=hunter22", headers={"x-key": "hunter22"})
    assert repr(program) == "MCPServer('serve')"
    assert repr(address) == "MCPServer('https://example.org')"
    assert "hunter22" not in repr([vars(program), vars(address)])


def test_a_server_needs_a_command_or_a_url() -> None:
    for command, url in (("", ""), ("a", "http://b"), ("", "ws://b"), ("a 'b", "")):
        with pytest.raises(UserError, match="MCP server"):
            MCPServer(command, url=url)


def test_a_server_over_http_with_its_key() -> None:
    async def main() -> None:
        async with serve(guarded(build().streamable_http_app(), "Bearer hunter22")) as port:
            url = f"http://127.0.0.1:{port}/mcp"
            async with MCPServer(url=url, headers={"authorization": "Bearer hunter22"}) as server:
                assert await call(server, "greet", name="Ada") == GREETING
                assert "wrong phase" in await failure(server, "refuse")
                await call(server, "grow")
                async with asyncio.timeout(5):
                    while "grown" not in Toolbox(server):
                        await asyncio.sleep(0.005)
            with pytest.raises(InvalidTool, match=r"HTTP status 401 .*; give its key with headers="):
                await MCPServer(url=url).open()

    asyncio.run(main())


def test_an_older_server_over_sse() -> None:
    async def main() -> None:
        async with (
            serve(build().sse_app()) as port,
            MCPServer(url=f"http://127.0.0.1:{port}/sse") as server,
        ):
            assert await call(server, "greet", name="Ada") == GREETING

    asyncio.run(main())


def test_a_server_over_http_that_went_away_is_reconnected() -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with serve(build().streamable_http_app()) as port:
                server = await stack.enter_async_context(MCPServer(url=f"http://127.0.0.1:{port}/mcp"))
                assert await call(server, "greet", name="Ada") == GREETING
            await failure(server, "greet", name="Ada")
            words = await failure(server, "greet", name="Ada")
            assert f"`http://127.0.0.1:{port}` cannot be reached" in words
            async with serve(build().streamable_http_app(), port):
                assert await call(server, "greet", name="Ada") == GREETING

    asyncio.run(main())


def test_other_output_of_a_program_does_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    noisy = "import sys, runpy; print('noise'); print('more', file=sys.stderr); sys.argv = sys.argv[1:]; "
    noisy += "runpy.run_path(sys.argv[0], run_name='__main__')"

    async def main() -> None:
        async with MCPServer([sys.executable, "-uc", noisy, BY_HAND[1]]) as server:
            assert len(server.tools) == 5

    logging.getLogger().handlers, before = [], logging.getLogger().handlers
    try:
        asyncio.run(main())
    finally:
        logging.getLogger().handlers = before
    assert capfd.readouterr() == ("", "")


def test_the_library_is_imported_without_the_mcp_package() -> None:
    code = "import sys, unbroken, unbroken.mcp.client.server; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_server_gets_the_idempotency_key_of_the_call() -> None:
    async def main() -> None:
        async with MCPServer(BY_HAND) as server:
            first = CallContext(run="r1", turn=2, name="key", fingerprint="key\n{}")
            assert await call(server, "key", first) == (Text(first.key),)
            assert await call(server, "key", replace(first, nth=2)) != (Text(first.key),)
            assert await call(server, "key", replace(first, attempt=1)) == (Text(first.key),)
            assert await call(server, "key") == (Text("none"),)  # outside of a run there is none

    asyncio.run(main())
