"""Players who return: a page that is reloaded finds its player, its items, its chat and even the wish in progress, and
nobody else does. And what is said about faults that were made on purpose."""

from __future__ import annotations

import asyncio
import json

import aiohttp
from command_client import Client, alone, joined, problems_of, text_of

from command_agent.chat import StreamEvent
from command_agent.connection import TAKEN_OVER
from command_agent.scripted import script
from command_agent.server import MOST, Game, serving
from command_agent.upstream import FaultLog, open_model
from unbroken import ScriptedModel
from unbroken_testing import Pause
from unbroken_testing import Say as Words

END = {"is_complete", "tool_calls", "tool_returns"}


async def told(client: Client) -> list[list[StreamEvent]]:
    """The history that follows the world."""
    while await client.take() != "history":
        pass
    names = ("event_type", "content", "sequence", "metadata")
    return [[StreamEvent(**{name: event[name] for name in names}) for event in one["events"]] for one in client.history]


def test_a_player_who_returns_finds_items_and_chat_and_the_model_remembers() -> None:
    async def main() -> None:
        game = Game(ScriptedModel(script()))
        async with serving(game) as address:
            async with joined(address, "") as client:
                first = await client.wish("give me three diamonds")
                token = client.token
            async with joined(address, token) as again:
                assert again.player == "player1"
                (events,) = await told(again)
                assert again.history[0]["content"] == "give me three diamonds"
                assert (text_of(events), problems_of(events)) == (text_of(first), [])
                assert "all_messages" not in events[-1].metadata
                assert events[-1].metadata.keys() >= END
                second = await again.wish("what do I have?")
                assert text_of(second) == "You have 3 × diamond."
                assert "three diamonds" in json.dumps(second[-1].metadata["all_messages"])
            assert game.world.players == ("player1",)

    asyncio.run(main())


def test_a_wish_continues_while_its_page_is_reloaded() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel(script(0.1)), lag=0.01)) as address:
            async with joined(address, "") as client:
                await client.send(type="wish", content="make it night and tell everyone")
                await client.until("content")
                token = client.token
            async with joined(address, token) as again:
                (before,) = await told(again)
                events = before + await again.rest()
                assert problems_of(events) == []
                assert text_of(events).endswith("Everybody knows.")
                assert again.commands == ["/time set night", "/say It is night now!"]

    asyncio.run(main())


def test_a_player_who_does_not_return_is_gone_after_a_while_with_the_wish() -> None:
    async def main() -> None:
        game = Game(ScriptedModel([Words("One. Two. "), Pause(3600)], "Here."), linger=0.05)
        async with serving(game) as address, joined(address) as stays:
            async with joined(address, "") as client:
                await client.send(type="wish", content="wait")
                await client.until("content")
                token = client.token
            while game.world.players != ("player1",):
                await stays.take()
            async with joined(address, token) as new:
                assert (new.player, new.token != token, new.history) == ("player3", True, [])

    asyncio.run(main())


def test_too_many_players_who_left_do_not_wait_all_for_their_return() -> None:
    async def main() -> None:
        game = Game(ScriptedModel())
        async with serving(game) as address:
            for _ in range(MOST + 4):
                async with joined(address, ""):
                    pass
            assert len(game.world.players) <= MOST + 2
            assert "player1" not in game.world.players

    asyncio.run(main())


def test_a_second_page_with_the_same_player_takes_over() -> None:
    async def main() -> None:
        async with (
            serving(Game(ScriptedModel(script()))) as address,
            joined(address, "") as one,
            joined(address, one.token) as two,
        ):
            closed = await one.socket.receive(timeout=20)
            assert (closed.data, closed.extra) == (TAKEN_OVER, "this player continues on another page")
            assert text_of(await two.wish("what time is it?")) == "It is 07:00, day."

    asyncio.run(main())


def test_without_the_token_nobody_returns() -> None:
    async def main() -> None:
        game = Game(ScriptedModel(script()))
        async with serving(game) as address:
            async with joined(address, "") as client:
                token = client.token
            assert len(token) >= 32
            for guess in ("player1", token[:-1], token.swapcase(), "None"):
                async with joined(address, guess) as other:
                    assert other.player != "player1"
            async with joined(address) as plain:
                assert plain.token == ""
            async with aiohttp.ClientSession() as session, session.get(f"{address}world") as answer:
                assert token not in await answer.text()

    asyncio.run(main())


def test_the_events_say_what_was_broken_on_purpose_and_what_was_retried() -> None:
    async def main() -> None:
        log = FaultLog()
        async with (
            open_model(faults="cut_by_lost_connection", pace=0, log=log) as model,
            alone(Game(model, faults=log)) as client,
        ):
            events = await client.wish("give me a diamond")
        retried = [event.metadata["fault"] for event in events if event.event_type == "retried"]
        cut = {
            "name": "cut_by_lost_connection",
            "title": "the connection is lost in the middle of a call",
            "retried": True,
        }
        assert retried == [cut, cut]
        assert [fault["retried"] for fault in events[-1].metadata["faults"]] == [True, True, False]

    asyncio.run(main())


def test_a_fault_that_needs_no_retry_is_named_at_the_end() -> None:
    async def main() -> None:
        log = FaultLog()
        async with (
            open_model(faults="leaked_deepseek", pace=0, log=log) as model,
            alone(Game(model, faults=log)) as client,
        ):
            events = await client.wish("give me a diamond")
        faults = events[-1].metadata["faults"]
        assert {(fault["name"], fault["retried"]) for fault in faults} == {("leaked_deepseek", False)}
        assert client.commands == ["/give player1 diamond 1"]

    asyncio.run(main())
