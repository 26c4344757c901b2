"""Minecraft's Bedrock protocol over a real socket: wishes from the game's chat, and what happens if the game refuses,
stays silent or disconnects in the middle of a command."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from command_agent.bedrock import IN_FLIGHT, BedrockGame, Said, waiting_for_games
from command_agent.chat import stream_chat
from command_agent.game_client import Answering, GameClient
from command_agent.game_errors import NotExecuted, OutcomeUnknown
from command_agent.in_game import InGame, chat_in, in_game, parse_address, serve_games
from command_agent.scripted import script
from command_agent.watching import Watch
from command_agent.world import BadCommand, Give, Place, Say, SetBlock, Teleport, World
from unbroken import RetryingModel, ScriptedModel, UserError
from unbroken_testing import Call

PLAYER = "Steve 2"


def new_game(lag: float = 0.0, answering: Answering | None = None) -> GameClient:
    world = World()
    world.join(PLAYER)
    return GameClient(world, lag=lag, answering=answering)


@asynccontextmanager
async def connected(client: GameClient, answers_in: float = 10.0) -> AsyncGenerator[BedrockGame]:
    ready: asyncio.Future[BedrockGame] = asyncio.get_running_loop().create_future()

    async def on_game(game: BedrockGame) -> Callable[[Said], None]:
        game._answers_in = answers_in  # pyright: ignore[reportPrivateUsage] - a test cannot wait ten seconds
        ready.set_result(game)
        return lambda said: None

    async with waiting_for_games("127.0.0.1", 0, on_game) as command, client.connected(command):
        yield await ready


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def test_a_wish_in_the_chat_of_the_game_is_granted_there(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        client, stop = new_game(), asyncio.Event()
        model = RetryingModel(ScriptedModel(script()))
        serving = asyncio.create_task(serve_games("ws://127.0.0.1:0", model, stop, watch=Watch(), sentences=True))
        printed = ""
        while "/connect" not in printed:
            await asyncio.sleep(0.01)
            printed += capsys.readouterr().out
        async with client.connected(printed.partition("write ")[2].partition(" in")[0]):
            await client.until(lambda: "PlayerMessage" in client.subscribed)
            await client.chat(PLAYER, "hello")  # not a wish
            await client.chat(PLAYER, "!give me three diamonds")
            await client.until(lambda: any("criteria" in text for text in client.shown))
            while f"{PLAYER} is at 1 64 13." not in client.shown:  # the first wish may be about to end
                count = len(client.shown)
                await client.chat(PLAYER, "!where am I?")
                await client.until(lambda count=count: len(client.shown) > count)
        stop.set()
        await serving
        assert client.lines == [
            f'give "{PLAYER}" diamond 3',
            f'clear "{PLAYER}" diamond -1 0',
            f'querytarget "{PLAYER}"',
        ]
        assert client.shown[:3] == [
            "One moment: 3 × diamond for you.",
            "Done.",
            f"You have {PLAYER} has 3 diamond that match the criteria now.",
        ]

    run(main())


def test_a_connection_that_is_lost_in_the_middle_of_a_command_leaves_its_outcome_unknown() -> None:
    async def main() -> None:
        client = new_game(answering=lambda line, answer: None if line.startswith("give") else answer)
        give = Call("give", item="diamond", count=3, id="call_1")
        model = ScriptedModel([give], "I do not know whether you have it.")
        async with connected(client) as game:
            chat = chat_in(InGame(game, PLAYER), model, Watch())
            events = [event async for event in stream_chat("three diamonds", chat)]
            (result,) = [event for event in events if event.event_type == "tool_return"]
            assert result.metadata["error"]
            assert "outcome unknown: the connection was lost after `/give" in result.content
            assert "look before you repeat it" in result.content
            assert events[-1].metadata["is_complete"]
            with pytest.raises(NotExecuted, match="was not sent: the game is not connected"):
                await game.run("say hello")
        async with connected(client):  # the same game returns: nothing is sent again
            await asyncio.sleep(0.05)
        assert client.lines == [f'give "{PLAYER}" diamond 3']
        assert dict(client.world.player(PLAYER).inventory) == {"diamond": 3}

    run(main())


def test_no_more_commands_are_sent_at_once_than_the_game_accepts() -> None:
    async def main() -> None:
        client = new_game(lag=0.02)
        async with connected(client) as game:
            answers = await asyncio.gather(*(game.run(f"say {number}") for number in range(250)))
        assert [answer["statusMessage"] for answer in answers] == [f"[the game] {number}" for number in range(250)]
        assert client.most_in_flight == IN_FLIGHT
        assert len(client.lines) == 250

    run(main())


def test_an_answer_to_another_request_is_not_taken_for_this_one(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        client = new_game(answering=lambda line, answer: {**answer, "requestId": str(uuid4())})
        async with connected(client, answers_in=0.05) as game:
            with pytest.raises(OutcomeUnknown, match=r"the game did not answer for 0\.05 seconds"):
                await game.run("time set night")
        assert client.lines == ["time set night"]

    with caplog.at_level(logging.WARNING, "command_agent"):
        run(main())
    assert "sent a message that answers nothing" in caplog.text


def test_a_game_that_answers_nothing_any_more_does_not_stop_the_agent() -> None:
    async def main() -> None:
        client = new_game(answering=lambda line, answer: {**answer, "requestId": str(uuid4())})
        async with connected(client, answers_in=0.3) as game:
            lines = (f"say {number}" for number in range(IN_FLIGHT + 1))
            told = await asyncio.gather(*map(game.run, lines), return_exceptions=True)
        assert [type(each) for each in told] == [*[OutcomeUnknown] * IN_FLIGHT, NotExecuted]
        assert "`/say 100` was not sent: 100 commands before it have no answer" in str(told[-1])

    run(main())


@pytest.mark.parametrize(
    "message",
    [
        "[]",
        '{"header": "event", "body": {}}',
        '{"header": {"messagePurpose": "event", "eventName": "PlayerMessage"}, "body": "hello"}',
        '{"header": {"messagePurpose": "event", "eventName": "PlayerMessage"}, "body": {"properties": "hello"}}',
    ],
)
def test_a_message_that_is_none_of_the_protocol_does_not_end_the_connection(message: str) -> None:
    async def main() -> None:
        client = new_game()
        async with connected(client) as game:
            assert client._socket is not None  # pyright: ignore[reportPrivateUsage]
            await client._socket.send_str(message)  # pyright: ignore[reportPrivateUsage]
            assert (await game.run("say hello"))["statusMessage"] == "[the game] hello"

    run(main())


def test_the_game_refuses_what_the_real_one_refuses() -> None:
    async def main() -> None:
        id = str(uuid4())
        told: list[dict[str, Any]] = []

        async def server(request: web.Request) -> web.WebSocketResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            for each, purpose, body in [
                (id, "cancel", {}),
                ("17", "commandRequest", {"commandLine": "say hello"}),
                (id, "commandRequest", {"command": "say hello"}),
                (id, "commandRequest", {"commandLine": "say slowly"}),
                (id, "commandRequest", {"commandLine": "say again"}),
                (str(uuid4()), "commandRequest", {"commandLine": "fly me to the moon"}),
            ]:
                await socket.send_json({"header": {"requestId": each, "messagePurpose": purpose}, "body": body})
            for _ in range(6):
                told.append(await socket.receive_json(timeout=10))
            await socket.close()
            return socket

        app = web.Application()
        app.router.add_get("/", server)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = new_game(lag=0.05)
        async with client.connected(f"127.0.0.1:{runner.addresses[0][1]}"):
            await client.until(lambda: len(client.lines) == 1)
            while len(told) < 6:
                await asyncio.sleep(0.01)
        await runner.cleanup()
        assert [(each["header"]["messagePurpose"], each["body"]["statusMessage"]) for each in told] == [
            ("error", "the message purpose 'cancel' is not known"),
            ("error", "the requestId is no UUID"),
            ("error", "the message purpose 'commandRequest' is not known"),
            ("error", "the requestId is in use"),
            ("commandResponse", "[the game] slowly"),
            ("commandResponse", 'Syntax error: Unexpected "fly me to the moon"'),
        ]

    run(main())


def test_the_game_answers_questions_and_explains_refusals() -> None:
    async def main() -> None:
        client = new_game()
        async with connected(client) as game:
            here = InGame(game, PLAYER)
            assert await here.run(SetBlock(Place(1, 64, 1), "stone")) == "stone is at 1 64 1 (it was air)"
            assert await here.block_at(Place(1, 64, 1)) == "The block at 1,64,1 is stone (expected: air)."
            assert await here.block_at(Place(2, 64, 1)) == "air"
            assert await here.what_time() == "Day time is 1000"
            assert (await here.inventory(PLAYER)).startswith("nothing was given in this chat")
            with pytest.raises(NotExecuted, match="there is no item `diamonds`; did you mean `diamond`"):
                await here.run(Give(PLAYER, "diamonds", 1))
            with pytest.raises(NotExecuted, match="there is no player `Alex`"):
                await here.run(Teleport("Alex", Place(1, 64, 1)))

    run(main())


@pytest.mark.parametrize(
    "command",
    [
        Give(PLAYER, "diamond 64 0 {}", 1),
        Give("@e", "diamond", 1),
        Give('Steve" diamond 64 "', "diamond", 1),
        SetBlock(Place(1, 64, 1), "tnt\nkill @e"),
        Say("hello\nkill @e"),
        Say("x" * 400),
    ],
)
def test_a_name_or_a_text_holds_no_second_command(command: Any) -> None:
    async def main() -> None:
        client = new_game()
        async with connected(client) as game:
            with pytest.raises(BadCommand):
                await InGame(game, PLAYER).run(command)
        assert client.lines == []

    run(main())


def test_the_first_game_that_connects_is_taken_and_pages_of_a_browser_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main() -> None:
        client = new_game()

        async def play() -> None:
            address = ""
            while not address:
                await asyncio.sleep(0.01)
                address = capsys.readouterr().err.partition("write ")[2].partition(" in")[0]
            async with aiohttp.ClientSession(headers={"origin": "https://example.org"}) as session:
                with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                    await session.ws_connect(f"ws://{address.removeprefix('/connect ')}")
            async with client.connected(address):
                await client.until(lambda: len(client.lines) == 1)

        playing = asyncio.create_task(play())
        async with in_game("ws://127.0.0.1:0") as here:
            await here.run(Give("@p", "apple", 1))
        await playing
        assert client.lines == ["give @p apple 1"]

    run(main())


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ("minecraft", r"expected ws://127\.0\.0\.1:19131 \(Bedrock\) or rcon"),
        ("http://127.0.0.1:1", "expected ws"),
        ("rcon://:secret@127.0.0.1", "expected ws"),
        ("ws://127.0.0.1:99999", "the port is a number from 0 to 65535"),
    ],
)
def test_an_address_that_is_none_is_refused(world: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_address(world)
    assert "secret" not in str(caught.value)
    assert parse_address("ws://127.0.0.1") == ("ws", "127.0.0.1", 19131)
