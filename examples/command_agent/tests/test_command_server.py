"""The server: several connections in one world, clients that leave, cancel or send invalid messages, and refused
ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import aiohttp
import pytest
from command_client import alone, crowd, joined, problems_of, text_of

from command_agent.connection import WAITING
from command_agent.memory import KEPT, MOST_WISHES
from command_agent.scripted import script
from command_agent.server import MOST, Game, serving
from command_agent.world import Place, Say
from unbroken import Request, ScriptedModel, UserError
from unbroken_testing import Call, Pause
from unbroken_testing import Say as Words
from unbroken_wires.deltas import Delta


class Meeting:
    """A model that begins to answer when so many requests have arrived: all of them are in flight together."""

    name = "scripted:meeting"
    wire = "openai-chat"

    def __init__(self, many: int) -> None:
        self._barrier = asyncio.Barrier(many)
        self._inner = ScriptedModel(script())

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        await self._barrier.wait()
        async for deltas in self._inner.stream(request):
            yield deltas


def endless() -> ScriptedModel:
    """Writes two sentences and never ends; the second time it answers."""
    return ScriptedModel([Words("One. Two. Th"), Pause(3600), Call("give", item="diamond")], "Here I am.")


def test_two_connections_share_the_world_and_nothing_else() -> None:
    async def main() -> None:
        async with serving(Game(Meeting(2), lag=0.001)) as address, joined(address) as one, joined(address) as two:
            assert (one.player, two.player) == ("player1", "player2")
            first = await asyncio.gather(one.wish("give me two diamonds"), two.wish("给我一个苹果"))
            second = await asyncio.gather(one.wish("what do I have?"), two.wish("我有什么？"))

            assert [problems_of(events) for events in (*first, *second)] == [[]] * 4
            assert [text_of(events) for events in second] == ["You have 2 × diamond.", "你有 1 × apple。"]
            for events, foreign in zip(second, ("苹果", "diamonds"), strict=True):
                assert foreign not in json.dumps(events[-1].metadata["all_messages"], ensure_ascii=False)
            both = {"/give player1 diamond 2", "/give player2 apple 1"}
            assert set(one.commands) == set(two.commands) == both

    asyncio.run(main())


def test_commands_of_many_connections_interleave_and_each_runs_once() -> None:
    async def main() -> None:
        game = Game(Meeting(5), lag=0.001)
        async with serving(game) as address, crowd(address, 5) as clients:
            wishes = [f"build a tower of 8 stone at {number} 64 {number}" for number in range(5)]
            answers = await asyncio.gather(*(client.wish(wish) for client, wish in zip(clients, wishes, strict=True)))
            assert [problems_of(events) for events in answers] == [[]] * 5
            assert len(game.world.log) == len({done.command for done in game.world.log}) == 40
            assert [done.number for done in game.world.log] == list(range(1, 41))
            by = [done.by for done in game.world.log]
            assert by != sorted(by)
            assert all(game.world.block_at(Place(at, 71, at)) == "stone" for at in range(5))

    asyncio.run(main())


def test_a_client_that_disconnects_ends_only_its_own_wish() -> None:
    async def main() -> None:
        game = Game(endless())
        async with serving(game) as address, joined(address) as stays:
            async with joined(address) as leaves:
                await leaves.send(type="wish", content="give me a diamond")
                await leaves.until("content")
                assert game.world.players == ("player1", "player2")
            while game.world.players != ("player1",):
                await stays.take()  # learns that the other one left
            assert len(game.connections) == 1
            assert game.world.log == ()
            assert text_of(await stays.wish("hello?")) == "Here I am."

    asyncio.run(main())


def test_a_wish_can_be_cancelled_and_the_next_one_is_granted() -> None:
    async def main() -> None:
        async with alone(Game(endless())) as client:
            await client.send(type="wish", content="give me a diamond")
            await client.until("content")
            await client.send(type="cancel")
            events = await client.rest()
            assert events[-1].metadata["stop_reason"] == "cancelled"
            assert not events[-1].metadata["is_complete"]
            assert problems_of(events) == []
            assert text_of(await client.wish("hello?")) == "Here I am."
            assert client.commands == []
            assert client.errors == []

    asyncio.run(main())


@pytest.mark.parametrize("cancels", [1, 3])
def test_commands_that_run_when_a_wish_is_cancelled_get_a_result(cancels: int) -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script()), lag=3600)) as client:
            await client.send(type="wish", content="make it night and tell everyone")
            await client.until("tool_call")
            for _ in range(cancels):
                await client.send(type="cancel")
            events = await client.rest()
            assert problems_of(events) == []
            returns = [event for event in events if event.event_type == "tool_return"]
            assert [event.metadata["name"] for event in returns] == ["time", "say"]
            assert all(event.metadata["error"] and "cancelled" in event.content for event in returns)
            end = events[-1].metadata
            assert (end["stop_reason"], end["is_complete"], end["attempts"]) == ("cancelled", False, 1)
            assert end["usage"]["output_tokens"] > 0
            assert (end["tool_calls"], end["tool_returns"]) == (2, 2)
            assert client.commands == []

    asyncio.run(main())


def test_a_cancel_at_any_moment_leaves_no_call_without_its_return() -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script(0.002)), lag=0.0005)) as client:
            for moment in range(0, 24, 2):
                await client.send(type="wish", content="build a tower of 3 stone at 1 64 1")
                for _ in range(moment):
                    if not client.ended:
                        await client.take()
                if not client.ended:
                    await client.send(type="cancel")
                assert problems_of(await client.rest()) == []

    asyncio.run(main())


def test_a_wish_that_is_cancelled_at_once_still_has_an_end() -> None:
    async def main() -> None:
        async with alone(Game(endless())) as client:
            await client.send(type="wish", content="give me a diamond")
            await client.send(type="cancel")
            assert (await client.rest())[-1].metadata["stop_reason"] == "cancelled"
            await client.send(type="cancel")
            assert await client.error() == "there is nothing to cancel: no wish is in progress"

    asyncio.run(main())


def test_a_wish_during_a_wish_is_refused_and_has_no_effect() -> None:
    async def main() -> None:
        async with alone(Game(endless())) as client:
            await client.send(type="wish", content="give me a diamond")
            await client.until("content")
            await client.send(type="wish", content="and another one")
            assert (await client.error()).startswith("one wish at a time: the last one is still in progress")
            await client.send(type="cancel")
            assert problems_of(await client.rest()) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("give me a diamond", 'this is not JSON; send {"type": "wish"'),
        ("", "this is not JSON"),
        ("[" * 50_000, "this is not JSON"),
        ("[1]", "there is no message type 'None'; use wish or cancel"),
        ('{"type": "dance"}', "there is no message type 'dance'"),
        ('{"type": ["wish"]}', "there is no message type"),
        ('{"type": "wish"}', "a wish needs a text in `content`"),
        ('{"type": "wish", "content": "  "}', "a wish needs a text"),
        ('{"type": "wish", "content": 5}', "a wish needs a text"),
        (
            json.dumps({"type": "wish", "content": "a" * 2001}),
            "a wish may have at most 2000 characters; this one has 2001",
        ),
        (b"\x00\xff", "a message must be a text message with JSON"),
    ],
)
def test_invalid_messages_get_an_error_and_the_connection_stays_open(message: str | bytes, error: str) -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script()))) as client:
            if isinstance(message, str):
                await client.socket.send_str(message)
            else:
                await client.socket.send_bytes(message)
            assert (await client.error()).startswith(error)
            assert text_of(await client.wish("what time is it?")) == "It is 07:00, day."

    asyncio.run(main())


def test_half_a_surrogate_pair_in_a_wish_is_stored_once() -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script()))) as client:
            await client.socket.send_str('{"type": "wish", "content": "say \\ud83d!"}')
            events = await client.rest()
            assert text_of(events) == "I told everybody."
            assert (events[-1].metadata["stop_reason"], client.commands) == ("answered", ["/say \ufffd!"])

    asyncio.run(main())


def test_invalid_messages_without_a_pause_are_all_answered() -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script()))) as client:
            for _ in range(2 * WAITING):
                await client.socket.send_str("x")
            while len(client.errors) < 2 * WAITING:
                await client.take()
            assert text_of(await client.wish("what time is it?")) == "It is 07:00, day."

    asyncio.run(main())


def test_a_connection_remembers_only_its_latest_wishes() -> None:
    async def main() -> None:
        async with alone(Game(ScriptedModel(script()))) as client:
            sizes = [len((await client.wish("what time is it?"))[-1].metadata["all_messages"]) for _ in range(45)]
        each = sizes[0]
        assert max(sizes) == each * (MOST_WISHES + 1)
        assert sizes[MOST_WISHES + 1] == each * (KEPT + 1)

    asyncio.run(main())


def test_a_name_is_given_to_only_one_player() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel())) as address:
            for expected in ("player1", "player2"):
                async with joined(address) as client:
                    assert client.player == expected

    asyncio.run(main())


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_message_that_is_too_big_ends_the_connection_with_a_reason(size: int) -> None:
    async def main() -> None:
        game = Game(ScriptedModel(script()))
        async with serving(game) as address:
            async with joined(address) as client:
                await client.socket.send_str(json.dumps({"type": "wish", "content": "a" * size}))
                closed = await client.socket.receive(timeout=20)
                assert closed.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING)
                assert client.socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
                assert closed.extra == "a message may have at most 65536 characters"
            async with joined(address) as client:
                assert text_of(await client.wish("what do I have?")) == "You have nothing."

    asyncio.run(main())


def test_a_huge_message_is_not_even_read_to_its_end() -> None:
    async def main() -> None:
        game = Game(ScriptedModel(script()))
        async with serving(game) as address, joined(address) as stays:
            async with joined(address) as client:
                with suppress(aiohttp.ClientError, ConnectionError):
                    await client.socket.send_str("a" * 5_000_000)
                while game.world.players != ("player1",):
                    await stays.take()
            assert text_of(await stays.wish("what do I have?")) == "You have nothing."

    asyncio.run(main())


def test_a_client_that_is_too_far_behind_is_disconnected() -> None:
    async def main() -> None:
        game = Game(ScriptedModel(script()))
        async with serving(game) as address, joined(address):
            for number in range(6000):  # without an await between them, as if nothing got through
                game.world.run("player1", Say(str(number)))
            while game.connections:
                await asyncio.sleep(0.001)
            assert game.world.players == ()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Origin": "https://example.com"}, "pages of other sites are not served"),
        ({"Origin": "null"}, "pages of other sites are not served"),
        ({"Host": "example.com"}, "this server is for this machine only: use 127.0.0.1"),
        ({"Host": "["}, "this server is for this machine only"),
        ({"Host": "a@127.0.0.1"}, "this server is for this machine only"),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], reason: str) -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel())) as address, aiohttp.ClientSession() as session:
            for path in ("", "ws", "world", "metrics"):
                async with session.get(f"{address}{path}", headers=headers) as answer:
                    assert answer.status == 403
                    assert reason in await answer.text()
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{address}ws", headers=headers)

    asyncio.run(main())


def test_the_page_and_the_world_are_served_to_their_own_origin() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel())) as address, aiohttp.ClientSession() as session:
            async with session.get(address, headers={"Origin": address.rstrip("/")}) as answer:
                assert "script-src 'sha256-" in answer.headers["content-security-policy"]
                assert "innerHTML" not in await answer.text()
            async with session.get(f"{address}world") as answer:
                assert (await answer.json())["players"] == {}
            async with session.get(f"{address}ws") as answer:
                assert answer.status == 400

    asyncio.run(main())


def test_if_the_server_is_full_the_next_client_is_asked_to_try_later() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel())) as address, crowd(address, MOST) as clients:
            assert len({client.player for client in clients}) == MOST
            async with aiohttp.ClientSession() as session, session.get(f"{address}ws") as answer:
                assert (answer.status, await answer.text()) == (
                    503,
                    "64 players are connected already: try again later\n",
                )

    asyncio.run(main())


def test_a_server_that_stops_tells_its_clients_and_leaves_nothing_running() -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with serving(Game(endless())) as address:
                socket = await session.ws_connect(f"{address}ws")
                await socket.send_json({"type": "wish", "content": "give me a diamond"})
                while (await socket.receive_json(timeout=20))["type"] != "event":
                    pass
            while (message := await socket.receive(timeout=20)).type is aiohttp.WSMsgType.TEXT:
                pass
            assert (message.data, message.extra) == (aiohttp.WSCloseCode.GOING_AWAY, "the server is stopping")
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_port_that_is_taken_is_named() -> None:
    async def main() -> None:
        async with serving(Game(ScriptedModel())) as address:
            port = int(address.rstrip("/").rpartition(":")[2])
            with pytest.raises(UserError, match=f"serving on port {port} failed: .*; name another with --port"):
                async with serving(Game(ScriptedModel()), port):
                    pass

    asyncio.run(main())
