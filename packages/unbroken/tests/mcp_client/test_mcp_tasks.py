"""Calls that an MCP server runs as tasks, in the form of 2026 (over HTTP and pipes) and in that of 2025-11-25: they
become background calls. The server is strict: it refuses a client that polls too fast or does not declare tasks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import mcp_task_server
from in_loop import in_loop
from loaded_command import relayed
from mcp_task_server import DESK
from web_server import serve

from unbroken import Agent, Edit, Limits, Policy, Result, Text, ToolCall, User, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.events import CallBackgrounded, CallProgress, Event, ResultArrived
from unbroken.mcp import asgi_app
from unbroken.mcp.client.server import MCPServer
from unbroken.tools.approval import Approval
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, ScriptedModel

KINDS = ["http", "pipes", "pipes of 2025"]


@pytest.fixture(autouse=True)
def an_empty_desk() -> Generator[None]:
    yield
    DESK.tasks.clear()
    DESK.log.clear()


@contextlib.asynccontextmanager
async def workshop(kind: str = "http", **options: Any) -> AsyncGenerator[MCPServer]:
    if kind != "http":
        command = relayed(program=Path(mcp_task_server.__file__), load=("mcp_task_server", "anyio._backends._asyncio"))
        async with MCPServer(command, env={"OLDER": "1"} if "2025" in kind else {}, **options) as server:
            yield server
        return
    async with (
        serve(mcp_task_server.build().streamable_http_app()) as port,
        MCPServer(url=f"http://127.0.0.1:{port}/mcp", **options) as server,
    ):
        yield server


async def run(server: MCPServer, name: str, *sinks: Any, **options: Any) -> Result:
    return await Agent(ScriptedModel([Call(name)], "I wait.", "Done."), [server], **options).run(
        "Go.", sinks=list(sinks)
    )


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_task_is_a_background_call_with_its_progress_its_result_and_its_errors(kind: str) -> None:
    events: list[Event] = []
    async with workshop(kind) as server:
        result = await run(server, "build", events.append)
        failed = {name: await run(server, name) for name in ("fail", "refuse", "stop", "forget")}
        plain = await run(server, "greet")
    [called] = result.calls
    assert (called.result.text, called.outcome) == ("build is done", "done")
    assert result.background[0].handle == "$call_1"
    arrived = "[Background call $call_1 (`build`) has finished. Its result:]\nbuild is done"
    assert User((Text(arrived),), arrived=True) in result.messages
    told = [event.message for event in events if isinstance(event, CallProgress)]
    assert [text for text in told if text != "half of it"] == ["queued", "compiling", "linking"]
    assert ("half of it" in told) == (kind == "pipes of 2025")  # tasks of 2026 report no other progress
    assert len([event for event in events if isinstance(event, CallBackgrounded | ResultArrived)]) == 2
    words = {name: one.calls[0].result.text.replace("MCP server `workshop`: ", "") for name, one in failed.items()}
    assert all(one.calls[0].outcome == "failed" and one.background for one in failed.values())
    assert words["fail"].endswith("out of cheese")
    assert words["refuse"] == "Error: there is no paper"
    assert words["stop"] == "Error: the task was cancelled at the server: the operator stopped it"
    assert words["forget"] == "Error: the task of `forget` was lost, and may have taken effect: Task not found"
    assert plain.calls[0].result.text == "greet at once"
    assert not plain.background


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_task_that_needs_input_asks_the_approver_once(kind: str) -> None:
    asked: list[ToolCall] = []

    def approve(call: ToolCall) -> Approval:
        asked.append(call)
        return Edit({"colour": "red"})

    async with workshop(kind) as server:
        painted = await run(server, "paint", on_approval=approve)
        nobody = await run(server, "paint")
    assert painted.calls[0].result.text == "paint is done: {'colour': 'red'}"
    assert [getattr(each, "message", "") for each in asked] == ["Which colour?"]
    assert nobody.calls[0].result.text == "paint is done: decline"


@in_loop
async def test_over_shared_pipes_a_question_of_2025_reaches_the_run_whose_task_it_names() -> None:
    both = asyncio.Barrier(2)

    async def one(server: MCPServer, colour: str) -> str:
        async def approve(call: ToolCall) -> Approval:
            await both.wait()  # both questions are open at the same time
            return Edit({"colour": colour})

        return (await run(server, "paint", on_approval=approve)).calls[0].result.text

    async with workshop("pipes of 2025") as server:
        texts = await asyncio.gather(one(server, "red"), one(server, "blue"))
    assert texts == ["paint is done: {'colour': 'red'}", "paint is done: {'colour': 'blue'}"]


@in_loop
async def test_the_model_goes_on_while_a_task_runs_and_may_name_its_handle() -> None:
    @tool(effect="read")
    def send(text: str) -> str:
        """Send a text."""
        return f"sent {text}"

    model = ScriptedModel([Call("build")], [Call("send", text="now")], [Call("send", text="$call_1")], "Done.", "Done.")
    async with workshop() as server:
        result = await Agent(model, [server, send]).run("Go.")
    assert [call.result.text for call in result.calls] == ["build is done", "sent now", "sent build is done"]
    assert DESK.log.count("call build") == 1


@pytest.mark.parametrize("ending", ["cancel", "timeout", "limit", "leave"])
@in_loop
async def test_a_call_that_ends_before_its_task_cancels_the_task(ending: str) -> None:
    async with workshop(timeout=0.4 if ending == "timeout" else 30) as server:
        limits = Limits(seconds=0.4) if ending == "limit" else Limits()
        going = asyncio.create_task(
            run(server, "hang", limits=limits, policy=Policy(wait_for_background=ending != "leave"))
        )
        while "get hang" not in DESK.log and not going.done():
            await asyncio.sleep(0.01)
        if ending == "cancel":
            going.cancel()
            await asyncio.wait({going})
        else:
            called = (await going).calls[0]
            assert called.outcome == ("timed_out" if ending == "timeout" else "cancelled")
        assert DESK.log[-1] == "cancel hang"
        assert (DESK.log.count("call hang"), DESK.log.count("cancel hang")) == (1, 1)


@in_loop
async def test_the_end_of_a_call_of_2025_cancels_its_task_too() -> None:
    async with workshop("pipes of 2025", timeout=0.4) as server:
        assert (await run(server, "hang")).calls[0].outcome == "timed_out"
        assert '"cancel hang"]' in (await run(server, "log")).calls[0].result.text


@in_loop
async def test_a_program_that_dies_loses_its_tasks_and_the_call_is_not_made_again() -> None:
    async with workshop("pipes") as server:
        lost = (await run(server, "crash")).calls[0]
        assert lost.result.text == (
            "Error: MCP server `workshop`: the task of `crash` was lost, and may have taken effect: "
            "the connection was lost (it wrote: fatal: the disk is full)"
        )
        assert (await run(server, "greet")).calls[0].result.text == "greet at once"  # it was started again


@in_loop
async def test_a_task_survives_a_server_over_http_that_is_away_for_a_while() -> None:
    app = mcp_task_server.build
    async with contextlib.AsyncExitStack() as stack:
        async with serve(app().streamable_http_app()) as port:
            server = MCPServer(url=f"http://127.0.0.1:{port}/mcp")
            await server.open()
            going = asyncio.create_task(run(server, "rebuild"))
            while DESK.log.count("get rebuild") < 2:
                await asyncio.sleep(0.01)
        await stack.enter_async_context(serve(app().streamable_http_app(), port))
        assert (await going).calls[0].result.text == "rebuild is done"
        assert DESK.log.count("call rebuild") == 1
        await server.aclose()


@in_loop
async def test_a_task_is_lost_if_its_server_is_away_for_longer() -> None:
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve(mcp_task_server.build().streamable_http_app()))
        server = MCPServer(url=f"http://127.0.0.1:{port}/mcp", outage=0.1)
        await server.open()
        going = asyncio.create_task(run(server, "hang"))
        while "get hang" not in DESK.log:
            await asyncio.sleep(0.01)
        await stack.aclose()
        lost = (await going).calls[0]
        assert "the task of `hang` was lost, and may have taken effect" in lost.result.text
        await server.aclose()


@in_loop
async def test_a_server_gets_no_task_if_it_may_have_none() -> None:
    async with workshop(tasks=False) as server:
        result = await run(server, "build")
    assert result.calls[0].result.text == "build at once"
    assert not result.background
    async with workshop("pipes of 2025", tasks=False) as server:
        assert "this tool is always a task" in (await run(server, "build")).calls[0].result.text
        assert (await run(server, "paint")).calls[0].result.text == "paint at once"


@in_loop
async def test_a_task_whose_call_has_to_wait_after_a_crash_stays_in_the_foreground() -> None:
    async with workshop(after_crash="wait") as server:
        result = await Agent(ScriptedModel([Call("build")], "Done."), [server]).run("Go.")
    assert result.calls[0].result.text == "build is done"
    assert not result.background


@in_loop
async def test_a_run_with_tasks_is_replayed_without_the_server_and_resumed_without_a_second_call(
    tmp_path: Path,
) -> None:
    async with workshop() as server:
        result = await run(server, "build", record=tmp_path / "first")
        [path] = (tmp_path / "first").glob("*.jsonl")
        recording = read_recording(path)
        for agent in (agent_of(recording), Agent(ScriptedModel(), server.tools)):
            replayed = agent.replay(path)
            assert replayed.messages == result.messages
            assert [call.result for call in replayed.calls] == [call.result for call in result.calls]
        assert DESK.log.count("call build") == 1

        lines = path.read_text().splitlines(keepends=True)
        until = next(at for at, line in enumerate(lines) if '"call_backgrounded"' in line)
        cut = tmp_path / "cut.jsonl"
        cut.write_text("".join(lines[: until + 1]))
        resumed = await Agent(ScriptedModel("I wait.", "Done."), [server]).resume(cut)
    assert DESK.log.count("call build") == 1  # it is a write, and may have taken effect
    assert resumed.calls[0].outcome == "unknown"


@in_loop
async def test_a_server_of_ours_waits_for_the_tasks_of_the_server_behind_it() -> None:
    async with workshop() as server, serve(asgi_app([server])) as port:
        result = await run(MCPServer(url=f"http://127.0.0.1:{port}/mcp"), "build")
    assert result.calls[0].result.text == "build is done"
    assert not result.background


def test_a_server_in_a_process_of_its_own() -> None:
    async def main() -> str:
        async with MCPServer([sys.executable, mcp_task_server.__file__]) as server:
            return (await run(server, "build")).calls[0].result.text

    assert asyncio.run(main()) == "build is done"
