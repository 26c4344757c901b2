"""Newer Claude models refuse thinking behind something else than it was written behind. The gateway passes on what a
client sends, and where it changes that itself the provider is asked to drop such thinking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from gateway_client import Clock, Stage, run, serving, settings_for, upstream_settings

from unbroken_gateway.settings import GuardrailSettings
from unbroken_testing import Call, Say, ScriptedServer, Think

DROP = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BETA = "thinking-binding-controls-2026-08-01"
LOOK: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
THINKS = [Think("Hm."), Say("Hello."), Call("look")]
SECRET = GuardrailSettings("redact", "secrets", pattern=r"secret", by="[gone]")


class Claude:
    """A client that sends back what it has received, and keeps the last answer's headers."""

    def __init__(self, on: Stage) -> None:
        self.on = on
        self.messages: list[Any] = []
        self.headers: Any = {}

    async def ask(self, content: Any, beta: str = "", **more: Any) -> dict[str, Any]:
        self.messages.append({"role": "user", "content": content})
        body: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": self.messages, "tools": [LOOK], **more}
        headers = {"anthropic-beta": beta} if beta else {}
        url = f"{self.on.url}/v1/messages"
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
            self.headers, answer = reply.headers, await reply.json()
        if "content" in answer:
            self.messages.append({"role": "assistant", "content": answer["content"]})
        return answer

    def result(self) -> list[Any]:
        return [{"type": "tool_result", "tool_use_id": self.messages[-1]["content"][-1]["id"], "content": "x"}]


def play(story: Callable[[Stage], Awaitable[None]], serial: bool = False, **alias: Any) -> None:
    async def main() -> None:
        async with ScriptedServer(THINKS, THINKS, "Done.") as upstream:
            row = upstream_settings(upstream, "anthropic-messages", serial=serial, **alias)
            settings = settings_for(replace(row, model="anthropic:claude-opus-5-5"))
            async with serving(settings) as url:
                await story(Stage(url, upstream, Clock()))

    run(main)


@pytest.mark.parametrize("serial", [False, True], ids=["passed", "serial"])
def test_a_client_that_only_adds_messages_keeps_its_thinking(serial: bool) -> None:
    async def story(on: Stage) -> None:
        client = Claude(on)
        await client.ask("Look.")
        await client.ask(client.result())
        assert (await client.ask(client.result()))["content"][0]["text"] == "Done."
        assert "x-unbroken-dropped" not in client.headers
        assert serial or "thinking" not in on.upstream.bodies[-1]
        assert on.upstream.bodies[-1]["messages"][1]["content"][0]["signature"].startswith("bound-")

    play(story, serial=serial)


def test_what_a_client_changes_is_for_the_client_to_say() -> None:
    async def story(on: Stage) -> None:
        client = Claude(on)
        await client.ask("Look.", system="One.")
        refused = await client.ask(client.result(), system="Two.")
        assert "bound to a different conversation" in refused["error"]["message"]
        del client.messages[-1]
        answer = await client.ask(client.result(), beta=BETA, system="Two.", thinking=DROP)
        assert answer["input_transformations"][0]["path"] == "messages.1.content.0"
        assert on.upstream.bodies[-1]["thinking"] == DROP
        assert "x-unbroken-dropped" not in client.headers

    play(story)


def test_the_field_without_its_header_is_the_clients_mistake() -> None:
    async def story(on: Stage) -> None:
        answer = await Claude(on).ask("Look.", thinking=DROP)
        assert "Extra inputs are not permitted" in answer["error"]["message"]

    play(story)


def test_where_a_guardrail_changes_the_messages_moved_thinking_is_dropped_and_that_is_said() -> None:
    async def story(on: Stage) -> None:
        client = Claude(on)
        await client.ask("Look.")
        await client.ask([*client.result(), {"type": "text", "text": "My secret."}])
        assert on.upstream.bodies[-1]["thinking"] == DROP
        assert BETA in on.upstream.headers[-1]["anthropic-beta"]
        assert client.headers["x-unbroken-dropped"] == "messages.thinking"

    play(story, guardrails=(SECRET,))


def test_a_repaired_history_asks_for_it_too() -> None:
    async def story(on: Stage) -> None:
        client = Claude(on)
        await client.ask("Look.")
        await client.ask("Never mind.")  # the call has no result
        assert client.headers["x-unbroken-repairs"]
        assert client.headers["x-unbroken-dropped"] == "messages.thinking"
        assert on.upstream.bodies[-1]["thinking"] == DROP

    play(story)
