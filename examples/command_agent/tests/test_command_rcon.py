"""Minecraft's RCON over a real socket, against a small server that refuses what the real one refuses: a wrong password,
a command before the login, a packet that is too long."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from command_agent.chat import stream_chat
from command_agent.game_errors import NotExecuted, OutcomeUnknown
from command_agent.in_game import InJava, chat_in, in_game, serve_games
from command_agent.rcon import FULL, LONGEST, rcon_game
from command_agent.watching import Watch
from command_agent.world import Give, Place
from unbroken import ScriptedModel, UserError
from unbroken_testing import Call

PASSWORD = "open sesame"
Execute = Callable[[str], str | None]


def packet(id: int, kind: int, text: bytes) -> bytes:
    return struct.pack("<iii", 10 + len(text), id, kind) + text + b"\0\0"


@asynccontextmanager
async def rcon_server(execute: Execute) -> AsyncGenerator[int]:
    """Yields its port. `execute` returns the answer to a command; None cuts the connection after it ran."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knows_password = False
        try:
            while True:
                data = await reader.read(4096)  # as the real one: what is read at once is one packet
                if not data:
                    break
                length, id, kind = struct.unpack_from("<iii", data)
                text = data[12:-2].decode()
                if length != len(data) - 4 or len(text.encode()) > LONGEST:
                    break
                if kind == 3:
                    knows_password = text == PASSWORD
                    writer.write(packet(id if knows_password else -1, 2, b""))
                elif not knows_password:
                    writer.write(packet(-1, 2, b""))
                elif kind != 2:
                    writer.write(packet(id, 0, f"Unknown request {kind:x}".encode()))
                elif (answer := execute(text)) is None:
                    break
                else:
                    for start in range(0, max(len(answer), 1), FULL):  # it counts characters, not bytes
                        writer.write(packet(id, 0, answer[start : start + FULL].encode()))
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def test_a_wish_is_granted_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCON_PASSWORD", PASSWORD)
    lines: list[str] = []
    answers = {
        "give @p diamond 3": "Gave 3 [Diamond] to Steve",
        "data get entity @p Inventory": 'Steve has the following entity data: [{id: "minecraft:diamond", count: 3}]',
    }

    def execute(line: str) -> str:
        lines.append(line)
        return answers[line]

    async def main() -> None:
        model = ScriptedModel([Call("give", item="diamond", count=3)], Call("inventory"), "You have three.")
        async with rcon_server(execute) as port, in_game(f"rcon://127.0.0.1:{port}") as here:
            events = [event async for event in stream_chat("three diamonds", chat_in(here, model, Watch()))]
        assert [event.content for event in events if event.event_type == "tool_return"] == list(answers.values())
        assert events[-1].metadata["is_complete"]
        assert lines == list(answers)

    run(main())


def test_a_connection_that_is_lost_in_the_middle_of_a_command_leaves_its_outcome_unknown() -> None:
    lines: list[str] = []

    async def main() -> None:
        model = ScriptedModel([Call("give", item="diamond"), Call("say", text="Here.")], "I do not know.")
        async with rcon_server(lines.append) as port, rcon_game("127.0.0.1", port, PASSWORD) as game:
            events = [event async for event in stream_chat("a diamond", chat_in(InJava(game, "Steve"), model, Watch()))]
        first, second = [event.content for event in events if event.event_type == "tool_return"]
        assert "outcome unknown: the connection was lost after `/give Steve diamond 1` was sent" in first
        assert "`/say Here.` was not sent: the connection was lost" in second
        assert lines == ["give Steve diamond 1"]

    run(main())


def test_a_server_that_stays_silent_leaves_the_outcome_unknown() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, id, _ = struct.unpack_from("<iii", await reader.read(4096))
        writer.write(packet(id, 2, b""))
        await reader.read()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with rcon_game("127.0.0.1", port, PASSWORD, answers_in=0.2) as game:
                with pytest.raises(OutcomeUnknown, match=r"did not answer for 0\.2 seconds"):
                    await game.run("time set night")
                with pytest.raises(NotExecuted, match="was not sent"):
                    await game.run("time set day")

    run(main())


def test_the_server_refuses_a_wrong_password_a_command_before_the_login_and_a_packet_that_is_too_long() -> None:
    lines: list[str] = []

    async def main() -> None:
        async with rcon_server(lines.append) as port:
            with pytest.raises(UserError, match="refused the password: it is read from RCON_PASSWORD") as caught:
                async with rcon_game("127.0.0.1", port, "wrong horse"):
                    pass
            assert "horse" not in str(caught.value)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(packet(7, 2, b"stop"))
            assert struct.unpack_from("<iii", await reader.readexactly(14))[1] == -1
            writer.write(packet(8, 3, b"x" * 2000))
            assert await reader.read() == b""
            writer.close()
            async with rcon_game("127.0.0.1", port, PASSWORD) as game:
                with pytest.raises(NotExecuted, match="it has 1504 bytes, and the server reads 1446"):
                    await game.run("say " + "x" * 1500)
        with pytest.raises(UserError, match="there is no RCON server at"):
            async with rcon_game("127.0.0.1", port, PASSWORD):
                pass
        assert lines == []

    run(main())


@pytest.mark.parametrize("letters", ["x", "钻石xyz"])
@pytest.mark.parametrize("size", [0, 1, FULL // 2, FULL - 1, FULL, FULL + 1, 3 * FULL])
def test_long_answers_arrive_whole_and_the_next_one_after_them(size: int, letters: str) -> None:
    text = (letters * size)[:size]

    async def main() -> None:
        async with (
            rcon_server(lambda line: text if line == "list" else line) as port,
            rcon_game("127.0.0.1", port, PASSWORD) as game,
        ):
            assert (await game.run("list"))["statusMessage"] == text
            answers = await asyncio.gather(*(game.run(f"say {number}") for number in range(20)))
            assert [each["statusMessage"] for each in answers] == [f"say {number}" for number in range(20)]

    run(main())


def test_questions_and_refusals_of_the_java_edition() -> None:
    answers = {
        "execute if block 1 64 1 air": "Test failed",
        "execute if block 2 64 1 air": "Test passed",
        "data get entity Steve Pos": "Steve has the following entity data: [1.5d, 64.0d, 1.5d]",
        "time query daytime": "The time is 1000",
        "give Steve diamonds 1": "Unknown item 'minecraft:diamonds'\n...give Steve diamonds<--[HERE]",
    }

    async def main() -> None:
        async with rcon_server(answers.get) as port, rcon_game("127.0.0.1", port, PASSWORD) as game:
            here = InJava(game, "Steve")
            assert await here.block_at(Place(2, 64, 1)) == "air"
            assert (await here.block_at(Place(1, 64, 1))).startswith("Test failed; this edition does not say")
            assert (await here.where_is("Steve")).endswith("[1.5d, 64.0d, 1.5d]")
            assert await here.what_time() == "The time is 1000"
            with pytest.raises(NotExecuted, match="Unknown item"):
                await here.run(Give("Steve", "diamonds", 1))
        with pytest.raises(UserError, match="does not report what players say"):
            await serve_games("rcon://127.0.0.1", ScriptedModel(), asyncio.Event(), watch=Watch(), sentences=True)

    run(main())
