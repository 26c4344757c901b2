"""Questions of MCP servers in the middle of a call (elicitation, sampling), over pipes and HTTP, with a server of the
newest protocol and one of 2025."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import mcp_library
from in_loop import in_loop
from loaded_command import relayed
from mcp_library import build, without_newer_protocols
from test_mcp_sessions import Reply, serving
from web_server import serve

from unbroken import Agent, Allow, Deny, Edit, Limits, Model, Prices, System, ToolCall, User, UserError, Wait
from unbroken.events import CallProgress, Event
from unbroken.mcp.client.server import MCPServer
from unbroken.tools.approval import Approval, Question
from unbroken_testing import Call, ScriptedModel

PROGRAM = str(Path(mcp_library.__file__))
LOADED = ("mcp_library", "anyio._backends._asyncio")
KINDS = ["pipes", "pipes of 2025", "http", "http of 2025"]


@contextlib.asynccontextmanager
async def library(kind: str, **options: Any) -> AsyncGenerator[MCPServer]:
    if not kind.startswith("http"):
        command = [sys.executable, PROGRAM] if kind == "program" else relayed(program=PROGRAM, load=LOADED)
        async with MCPServer(command, env={"OLDER": "1"} if "2025" in kind else {}, **options) as server:
            yield server
        return
    app = build().streamable_http_app()
    async with (
        serve(without_newer_protocols(app) if "2025" in kind else app) as port,
        MCPServer(url=f"http://127.0.0.1:{port}/mcp", **options) as server,
    ):
        yield server


def answering(answer: Approval, asked: list[ToolCall]) -> Callable[[ToolCall], Approval]:
    def approve(call: ToolCall) -> Approval:
        asked.append(call)
        return answer

    return approve


async def result_of(server: MCPServer, call: Call, answer: Approval | None, asked: list[ToolCall]) -> str:
    on_approval = None if answer is None else answering(answer, asked)
    agent = Agent(ScriptedModel([call], "Done."), tools=[server], on_approval=on_approval)
    return (await agent.run("Go.")).calls[0].result.text


@pytest.mark.parametrize("kind", [*KINDS, "program"])
@in_loop
async def test_a_form_reaches_the_approver_and_the_answer_the_server(kind: str) -> None:
    asked: list[ToolCall] = []
    async with library(kind) as server:
        text = await result_of(server, Call("book", day="Monday"), Edit({"number": 3}), asked)
    assert text == "Monday: accept Guests(number=3, table='window')"
    [question] = asked
    assert isinstance(question, Question)
    assert (question.kind, question.tool, question.server) == ("form", "book", "MCP server `library`")
    assert question.message == "How many guests, and which table?"
    assert question.arguments == {"table": "window"}
    assert question.schema["required"] == ["number"]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_page_is_shown_to_the_approver_and_not_opened(kind: str) -> None:
    asked: list[ToolCall] = []
    async with library(kind) as server:
        assert await result_of(server, Call("pay"), Allow(), asked) == "pay: accept"
        assert await result_of(server, Call("pay"), Deny("too dear"), asked) == "pay: decline"
    assert [(each.kind, getattr(each, "url", "")) for each in asked] == [("url", "https://pay.example/1")] * 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "decline None"),
        (Deny(), "decline None"),
        (Wait(), "cancel None"),
        (Allow(), "cancel None"),  # the form has no default for the number of guests
        (Edit({"number": 99}), "cancel None"),
        (Edit({"number": 2, "table": "roof"}), "cancel None"),
    ],
)
@in_loop
async def test_no_answer_and_one_that_does_not_fit_are_not_sent_as_an_answer(
    answer: Approval | None, said: str
) -> None:
    async with library("pipes") as server:
        assert await result_of(server, Call("book", day="Monday"), answer, []) == f"Monday: {said}"


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_half_a_surrogate_pair_does_not_end_the_connection(kind: str) -> None:
    async with library(kind, sampling=ScriptedModel("Half: \ud83d", loop_last=True)) as server:
        call = Call("book", r'{"day": "\ud83d"}')
        assert await result_of(server, call, Deny(), []) == "\ufffd: decline None"
        assert "\ufffd" in await result_of(server, Call("name_it"), None, [])
        assert await result_of(server, Call("book", day="Monday"), Deny(), []) == "Monday: decline None"


USER: ContextVar[str] = ContextVar("user")


@pytest.mark.parametrize("kind", ["pipes", "http", "http of 2025"])
@in_loop
async def test_runs_that_share_a_server_never_see_the_questions_of_others(kind: str) -> None:
    asked: list[tuple[str, str, str]] = []
    both = asyncio.Barrier(2)

    async def one_run(server: MCPServer, user: str) -> str:
        USER.set(user)

        async def approve(call: ToolCall) -> Approval:
            asked.append((user, USER.get(), call.id))
            await both.wait()  # both questions are open at the same time
            return Edit({"number": len(user)})

        agent = Agent(ScriptedModel([Call("book", day=user)], "Done."), tools=[server], on_approval=approve)
        return (await agent.run("Go.", run_id=user)).calls[0].result.text

    async with library(kind) as server:
        texts = await asyncio.gather(one_run(server, "Ada"), one_run(server, "Grace"))
    assert texts == [
        "Ada: accept Guests(number=3, table='window')",
        "Grace: accept Guests(number=5, table='window')",
    ]
    assert sorted((user, seen) for user, seen, _ in asked) == [("Ada", "Ada"), ("Grace", "Grace")]


@in_loop
async def test_a_question_that_may_belong_to_any_of_several_runs_is_declined(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[ToolCall] = []
    async with library("pipes of 2025") as server:
        resting = Agent(ScriptedModel([Call("rest", seconds=60)], "Done."), tools=[server])
        other = asyncio.create_task(resting.run("Rest.", run_id="other"))
        while not server_is_busy(server):
            await asyncio.sleep(0.01)
        with caplog.at_level(logging.WARNING, "unbroken.tools"):
            text = await result_of(server, Call("book", day="Monday"), Edit({"number": 3}), asked)
        other.cancel()
        await asyncio.wait({other})
    assert text == "Monday: decline None"
    assert asked == []
    assert "does not say which of them it asks about" in caplog.text


def server_is_busy(server: MCPServer) -> bool:
    session = server._session  # pyright: ignore[reportPrivateUsage] - only it knows
    return session is not None and session.busy


@pytest.mark.parametrize("kind", ["pipes", "pipes of 2025"])
@in_loop
async def test_the_time_out_of_a_call_does_not_count_while_a_person_is_asked(kind: str) -> None:
    async def think(call: ToolCall) -> Approval:
        await asyncio.sleep(0.8)
        return Edit({"number": 1})

    async with library(kind, timeout=0.5) as server:
        agent = Agent(
            ScriptedModel([Call("book", day="Monday")], [Call("rest", seconds=9)], "Done."),
            tools=[server],
            on_approval=think,
        )
        first, second = (await agent.run("Go.")).calls
    assert first.result.text.startswith("Monday: accept")
    assert second.outcome == "timed_out"


@pytest.mark.parametrize("kind", ["pipes", "pipes of 2025"])
@in_loop
async def test_a_run_that_is_cancelled_closes_its_open_question(kind: str) -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def approve(call: ToolCall) -> Approval:
        opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()
        return Allow()

    async with library(kind) as server:
        agent = Agent(ScriptedModel([Call("book", day="Monday")], "Done."), tools=[server], on_approval=approve)
        run = asyncio.create_task(agent.run("Go."))
        await opened.wait()
        run.cancel()
        await asyncio.wait({run})
        await closed.wait()
        assert await result_of(server, Call("pay"), Allow(), []) == "pay: accept"  # the server still works


@in_loop
async def test_a_question_is_reported_as_progress_of_its_call() -> None:
    events: list[Event] = []
    async with library("pipes") as server:
        agent = Agent(ScriptedModel([Call("pay")], "Done."), tools=[server], on_approval=answering(Allow(), []))
        await agent.run("Go.", sinks=[events.append])
    assert [event.message for event in events if isinstance(event, CallProgress)] == ["asks: Please pay."]


@in_loop
async def test_a_page_that_must_be_opened_before_a_call_is_named_in_its_failure() -> None:
    page = {"mode": "url", "message": "Please sign in.", "url": "https://login.example/1", "elicitationId": "1"}

    async def answer(name: str, session: str) -> Reply:
        return 200, {"error": {"code": -32042, "message": "Not signed in", "data": {"elicitations": [page]}}}

    async with serving(answer, "read_mail") as desk, desk:
        text = await result_of(desk, Call("read_mail"), None, [])
    assert text == (
        "Error: MCP server `pay desk`: Not signed in\n"
        "The user has to open https://login.example/1 first: Please sign in."
    )


# Sampling


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_server_may_ask_the_model_of_the_run_and_the_run_counts_it(kind: str) -> None:
    limits = Limits(prices=Prices(input=1_000_000, output=1_000_000))
    async with library(kind, sampling=True) as server:
        model = ScriptedModel([Call("name_it")], "Chai", "Done.")
        result = await Agent(model, tools=[server], limits=limits).run("Go.")
        other = Agent(ScriptedModel([Call("rest", seconds=0)], "Done."), tools=[server], limits=limits)
        without = await other.run("Go.")
    assert result.calls[0].result.text == "Chai (scripted:demo)"
    asked = model.requests[1]
    assert asked.messages == (System.of("One word."), User.of("A word for tea?"))
    assert asked.sampling.max_tokens == 20
    assert result.usage.total_tokens > without.usage.total_tokens
    assert result.cost is not None
    assert without.cost is not None
    assert result.cost > without.cost


@in_loop
async def test_another_model_may_answer_the_server() -> None:
    small: Model = ScriptedModel("Small tea", name="small")
    async with library("pipes", sampling=small) as server:
        result = await Agent(ScriptedModel([Call("name_it")], "Done."), tools=[server]).run("Go.")
    assert result.calls[0].result.text.startswith("Small tea")


@in_loop
async def test_sampling_is_off_by_default_and_can_be_denied() -> None:
    asked: list[ToolCall] = []
    async with library("pipes") as server:
        text = await result_of(server, Call("name_it"), Allow(), asked)
        assert "sampling" in text.lower()
        assert asked == []
    async with library("pipes", sampling=True) as server:
        text = await result_of(server, Call("name_it"), Deny(), asked)
    assert text == "Error: MCP server `library`: the user rejected the request to the model"
    [question] = asked
    assert isinstance(question, Question)
    assert (question.kind, question.message) == ("sampling", "A word for tea?")


@in_loop
async def test_a_run_at_its_limit_lets_no_server_ask_its_model() -> None:
    async with library("pipes", sampling=True) as server:
        model = ScriptedModel([Call("name_it")], "Done.")
        result = await Agent(model, tools=[server], limits=Limits(tokens=1)).run("Go.")
    assert "the run has reached its limit (token_limit)" in result.calls[0].result.text


def test_sampling_takes_a_model() -> None:
    with pytest.raises(UserError, match="expected True, False or a model"):
        MCPServer("x", sampling="gpt")
