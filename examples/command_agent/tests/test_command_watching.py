"""Numbers and alerts of the wishes."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest
from command_client import joined

from command_agent.chat import stream_chat
from command_agent.scripted import script
from command_agent.server import Game, serving
from command_agent.tools import Here
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Conversation, RetryingModel, ScriptedModel
from unbroken_testing import Break, Say, run_virtual


def test_the_metrics_of_the_page_count_the_wishes() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel(script()))) as address, aiohttp.ClientSession() as session:
            async with joined(address) as client:
                await client.wish("give me three diamonds")
            async with session.get(f"{address}metrics") as answer:
                numbers = await answer.json()
        assert (numbers["queries"], numbers["tool_executions"], numbers["alerts"]) == (1, 2, [])

    asyncio.run(main())


def test_chains_that_break_are_an_alert(caplog: pytest.LogCaptureFixture) -> None:
    watch, world = Watch(), World()
    model = RetryingModel(ScriptedModel(*[[Say("One moment"), Break()], "Hello."] * 20))
    chat = Conversation(watch.agent_for("player1", model), deps=Here(world, "player1"))

    async def main() -> None:
        for _ in range(20):
            async for _ in stream_chat("hello?", chat):
                pass

    with caplog.at_level(logging.WARNING, "unbroken.metrics"):
        run_virtual(main())
    assert [record.getMessage()[:19] for record in caplog.records if record.name == "unbroken.metrics"] == [
        "alert broken_chains"
    ]
    assert [line.split()[0] for line in watch.numbers()["alerts"]] == ["broken_chains"]
