"""`ToolSearch` with models that search tools themselves: all definitions are sent, deferred, and the provider loads
those that the model finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, RetryingModel, ScriptedModel, connect, tool
from unbroken.models.model import Model
from unbroken.tools.search import ToolSearch
from unbroken.tools.tool import Tool
from unbroken_testing import Call, ProviderCall, ScriptedServer
from unbroken_wires.server_tools import WebSearch

ANTHROPIC, RESPONSES = "anthropic-messages", "openai-responses"
NATIVE = {ANTHROPIC: "anthropic:claude-sonnet-4-5", RESPONSES: "openai-responses:gpt-5.4"}


def many(count: int) -> list[Tool]:
    def make(number: int) -> Tool:
        @tool(name=f"tool_{number}", description=f"Does number {number}.", effect="read")
        async def use(amount: int) -> str:
            return f"{number} x {amount}"

        return use

    return [make(number) for number in range(count)]


def model_at(server: ScriptedServer, name: str, wire: str) -> Model:
    return connect(name, base_url=server.base_url(wire), api_key="k")


@pytest.mark.parametrize("wire", [ANTHROPIC, RESPONSES])
def test_a_model_with_a_search_of_its_own_uses_that(wire: str) -> None:
    async def ask() -> tuple[Any, list[dict[str, Any]]]:
        found = ProviderCall("tool_search", {"query": "number 7"}, ["tool_7"])
        async with ScriptedServer([found, Call("tool_7", amount=2)], "14.") as server:
            agent = Agent(model_at(server, NATIVE[wire], wire), [ToolSearch(many(40), always=["tool_0"])])
            return await agent.run("Seven times two?"), server.bodies

    result, bodies = asyncio.run(ask())
    assert [record.result.text for record in result.calls] == ["7 x 2"]
    assert [call.tool for call in result.server_calls if call.tool] == ["tool_search"]
    tools = bodies[0]["tools"]
    search = [each for each in tools if str(each["type" if "type" in each else "name"]).startswith("tool_search")]
    assert len(search) == 1
    assert [each["name"] for each in tools if "name" in each and "search" not in each["name"]] == [
        f"tool_{number}" for number in range(40)
    ]
    assert sum(bool(each.get("defer_loading")) for each in tools) == 39
    assert not next(each for each in tools if each.get("name") == "tool_0").get("defer_loading")
    assert bodies[0]["tools"] == bodies[1]["tools"]  # so the provider's prompt cache stays valid
    assert "tool_7" in str(bodies[1].get("messages") or bodies[1].get("input"))


@pytest.mark.parametrize("name", ["anthropic:claude-3-7-sonnet-latest", "anthropic:claude-sonnet-4-5"])
def test_other_models_and_whoever_says_so_use_search_tools(name: str) -> None:
    async def ask() -> list[dict[str, Any]]:
        answers = [Call("search_tools", query="number 7")], [Call("tool_7", amount=2)], "14."
        async with ScriptedServer(*answers) as server:
            search = ToolSearch(many(40), found=1, native="3-7" in name)
            await Agent(model_at(server, name, ANTHROPIC), [search]).run("Seven times two?")
            return server.bodies

    bodies = asyncio.run(ask())
    assert [each["name"] for each in bodies[0]["tools"]] == ["search_tools"]
    assert [each["name"] for each in bodies[1]["tools"]] == ["search_tools", "tool_7"]


def test_a_fallback_without_a_search_of_its_own_decides_for_both() -> None:
    native = connect(NATIVE[ANTHROPIC], api_key="k")
    assert RetryingModel(native).finds_tools
    assert not RetryingModel(native, fallback=[ScriptedModel("Hi")]).finds_tools


def test_what_search_tools_found_earlier_is_not_deferred_any_more() -> None:
    async def ask() -> dict[str, Any]:
        model = ScriptedModel([Call("search_tools", query="number 7")], "Found.", wire=ANTHROPIC)
        search = ToolSearch(many(5), found=1)
        first = await Agent(model, [search]).run("Find number 4.")
        async with ScriptedServer("Yes.") as server:
            agent = Agent(model_at(server, NATIVE[ANTHROPIC], ANTHROPIC), [search, WebSearch()])
            await agent.run("And now?", history=first.messages)
            return server.bodies[0]

    tools = asyncio.run(ask())["tools"]
    assert [bool(each.get("defer_loading")) for each in tools if "input_schema" in each].count(False) == 1
    assert any(each.get("name") == "web_search" for each in tools)


def test_a_run_with_a_native_search_replays(tmp_path: Path) -> None:
    async def record() -> Agent:
        found = ProviderCall("tool_search", {"query": "number 7"}, ["tool_7"])
        async with ScriptedServer([found, Call("tool_7", amount=2)], "14.") as server:
            agent = Agent(model_at(server, NATIVE[ANTHROPIC], ANTHROPIC), [ToolSearch(many(9))], record=tmp_path)
            await agent.run("Seven times two?")
            return agent

    agent = asyncio.run(record())
    assert agent.replay(next(tmp_path.glob("*.jsonl"))).text == "14."


def test_cache_marks_move_from_deferred_tools_to_the_search() -> None:
    async def ask() -> list[dict[str, Any]]:
        async with ScriptedServer("Hi.") as server:
            model = connect(NATIVE[ANTHROPIC], base_url=server.url, api_key="k", cache=True)
            await Agent(model, [ToolSearch(many(3))]).run("Hello")
            return server.bodies[0]["tools"]

    tools = asyncio.run(ask())
    assert [("cache_control" in each, bool(each.get("defer_loading"))) for each in tools] == [
        (True, False),
        (False, True),
        (False, True),
        (False, True),
    ]
