"""Thinking of newer Claude models is read only under the account that wrote it. Of several deployments the gateway asks
that one again; if it cannot answer, another is asked without the thinking, and the client is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import pytest
from gateway_client import run, serving, settings_for

from unbroken import Agent, connect, tool
from unbroken.errors import RateLimited
from unbroken.models.retrying import RetryingModel
from unbroken_gateway.settings import DeploymentSettings, UpstreamSettings
from unbroken_testing import Call, Fail, ScriptedServer, Think

Object = dict[str, Any]
MODEL = "anthropic:claude-sonnet-5-5"
LOOK: Object = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
THINKS = [Think("Hm."), Call("look")]
LIMITED = Fail(RateLimited("slow down", status=429, retry_after=60.0))


class Conversation:
    def __init__(self, url: str, number: int = 0) -> None:
        self.url = url
        self.messages: list[Any] = [{"role": "user", "content": f"Look {number}."}]
        self.headers: Mapping[str, str] = {}

    async def ask(self) -> str:
        """The kind of the last block of the answer; to a call the result is added."""
        body: Object = {"model": "m", "max_tokens": 100, "messages": self.messages, "tools": [LOOK]}
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/v1/messages", json=body) as reply:
            self.headers, answer = reply.headers, await reply.json()
        assert "content" in answer, answer
        self.messages.append({"role": "assistant", "content": answer["content"]})
        last = answer["content"][-1]
        if last["type"] == "tool_use":
            result = {"type": "tool_result", "tool_use_id": last["id"], "content": "x"}
            self.messages.append({"role": "user", "content": [result]})
        return str(last["type"])


def keys(server: ScriptedServer) -> list[str]:
    return [headers["x-api-key"] for headers in server.headers]


def refused(server: ScriptedServer) -> list[str]:
    return [sent.refused for sent in server.sent if "thinking" in sent.refused]


def play(
    monkeypatch: pytest.MonkeyPatch, script: list[Any], story: Callable[[str, ScriptedServer], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with ScriptedServer(*script) as server:
            names = ("ONE_ACCOUNT", "OTHER_ACCOUNT")
            for name in names:
                monkeypatch.setenv(name, f"key-of-{name}")
            accounts = tuple(
                DeploymentSettings(MODEL, name=name, base_url=server.url, api_key_env=name) for name in names
            )
            async with serving(settings_for(UpstreamSettings("m", MODEL, deployments=accounts))) as url:
                await story(url, server)

    run(main)


def test_a_conversation_stays_with_the_account_that_wrote_its_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(url: str, server: ScriptedServer) -> None:
        used: set[str] = set()
        for number in range(8):
            conversation = Conversation(url, number)
            assert [await conversation.ask() for _ in range(3)] == ["tool_use", "tool_use", "text"]
            assert "x-unbroken-dropped" not in conversation.headers
            (key,) = set(keys(server)[-3:])
            used.add(key)
            assert len(server.bodies[-1]["messages"][1]["content"]) == 2
        assert (len(used), refused(server)) == (2, [])

    play(monkeypatch, [THINKS, THINKS, "Done."] * 8, story)


def test_if_that_account_cannot_answer_another_is_asked_without_the_thinking(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(url: str, server: ScriptedServer) -> None:
        conversation = Conversation(url)
        await conversation.ask()
        assert await conversation.ask() == "tool_use"
        one, same, other = keys(server)
        assert one == same != other
        assert conversation.headers["x-unbroken-dropped"] == "messages.thinking"
        assert [block["type"] for block in server.bodies[-1]["messages"][1]["content"]] == ["tool_use"]
        assert await conversation.ask() == "text"
        assert (keys(server)[3:], refused(server)) == ([other], [])
        kinds = [[block["type"] for block in each["content"]] for each in server.bodies[-1]["messages"][1::2]]
        assert kinds == [["tool_use"], ["thinking", "tool_use"]]
        assert conversation.headers["x-unbroken-dropped"] == "messages.thinking"

    play(monkeypatch, [THINKS, LIMITED, THINKS, "Done."], story)


@tool
def look() -> str:
    """Looks."""
    return "x"


def test_a_run_that_changes_the_account_leaves_the_thinking_out_and_reports_it() -> None:
    async def main() -> tuple[Any, list[str]]:
        async with ScriptedServer(THINKS, LIMITED, THINKS, "Done.") as server:
            accounts = [connect(MODEL, base_url=server.url, api_key=key) for key in ("one", "other")]
            result = await Agent(RetryingModel(accounts[0], fallback=accounts[1:]), [look]).run("Look.")
            assert keys(server)[:3] == ["one", "one", "other"]
            return result, refused(server)

    result, found = run(main)
    assert (result.text, found) == ("Done.", [])
    assert any("messages.thinking" in warning for warning in result.warnings)
