"""The WebSocket protocol of Minecraft's Bedrock edition: the game connects to this server (`/connect 127.0.0.1:19131`),
the server sends it commands, and the game reports what players say.

A command is sent once. If the connection is lost before the game has answered, nobody knows whether it ran: the result
says so, and it is not sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from aiohttp import WSMsgType, web

from command_agent.game_errors import NotExecuted, OutcomeUnknown
from unbroken import UserError

LOG = logging.getLogger("command_agent")
IN_FLIGHT = 100
"""The game refuses more commands than that at the same time."""
ANSWERS_IN = 10.0
"""Seconds that a command may take."""
LARGEST = 1024 * 1024
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What a player wrote in the game's chat."""

    player: str
    text: str


class BedrockGame:
    """A connected game. `await game.run("say hello")` returns the body of its answer."""

    def __init__(self, socket: web.WebSocketResponse, name: str, answers_in: float = ANSWERS_IN) -> None:
        self.name = name
        self._socket = socket
        self._answers_in = answers_in
        self._asked: dict[str, asyncio.Future[Object]] = {}
        """Commands that the game has not answered, by request id; also those that nobody waits for any more."""
        self._answered = asyncio.Condition()
        self._lost = False

    async def run(self, line: str) -> Object:
        """Sends one command, without its slash. Raises `NotExecuted` or `OutcomeUnknown`."""
        async with self._answered:
            try:
                async with asyncio.timeout(self._answers_in):
                    await self._answered.wait_for(lambda: self._lost or len(self._asked) < IN_FLIGHT)
            except TimeoutError:
                raise NotExecuted(f"`/{line}` was not sent: {IN_FLIGHT} commands before it have no answer") from None
            if self._lost or self._socket.closed:
                raise NotExecuted(f"`/{line}` was not sent: the game is not connected")
            id = str(uuid4())
            answer = self._asked[id] = asyncio.get_running_loop().create_future()
        body = {"version": 1, "commandLine": line, "origin": {"type": "player"}}
        try:
            await self._send(id, "commandRequest", body)
            told = await asyncio.wait_for(asyncio.shield(answer), self._answers_in)
        except ConnectionError:
            raise OutcomeUnknown(line, "the connection was lost") from None
        except TimeoutError:
            raise OutcomeUnknown(line, f"the game did not answer for {self._answers_in:g} seconds") from None
        if told.get("statusCode", 0) != 0:
            raise NotExecuted(str(told.get("statusMessage") or f"the game refused `/{line}`"))
        return told

    async def listen(self, heard: Callable[[Said], None]) -> None:
        """Reads what the game sends until it disconnects."""
        try:
            await self._send(str(uuid4()), "subscribe", {"eventName": "PlayerMessage"})
            async for message in self._socket:
                if message.type is WSMsgType.TEXT:
                    await self._take(message.data, heard)
        except ConnectionError:
            pass  # the same as a connection that was closed
        finally:
            await self._lose()

    async def _send(self, id: str, purpose: str, body: Object) -> None:
        header = {"version": 1, "requestId": id, "messageType": "commandRequest", "messagePurpose": purpose}
        await self._socket.send_str(json.dumps({"header": header, "body": body}))

    async def _take(self, text: str, heard: Callable[[Said], None]) -> None:
        try:
            message = json.loads(text)
            header, body = _object(message["header"]), _object(message["body"])
            purpose, id = str(header["messagePurpose"]), str(header.get("requestId", ""))
        except (ValueError, TypeError, KeyError, RecursionError):
            LOG.warning("%s sent what is no message of the protocol: %.80r", self.name, text)
            return
        if purpose == "event":
            if said := _said(header, body):
                heard(said)
        elif purpose in ("commandResponse", "error") and id in self._asked:
            async with self._answered:
                answer = self._asked.pop(id)
                self._answered.notify_all()
            if not answer.done():
                answer.set_result(body if purpose == "commandResponse" else {"statusCode": -1, **body})
        else:
            LOG.warning("%s sent a message that answers nothing: purpose %.40r, request %.40r", self.name, purpose, id)

    async def _lose(self) -> None:
        async with self._answered:
            self._lost = True
            asked, self._asked = self._asked, {}
            self._answered.notify_all()
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError())
                answer.exception()  # somebody may have stopped waiting for it


def _object(value: object) -> Object:
    if not isinstance(value, dict):
        raise TypeError
    return cast("Object", value)


def _said(header: Object, body: Object) -> Said | None:
    """What a player wrote; None for messages that commands make, our own included. Older games have the name of the
    event in the body, and its fields in `properties`."""
    if (header.get("eventName") or body.get("eventName")) != "PlayerMessage":
        return None
    fields = body["properties"] if isinstance(body.get("properties"), dict) else body
    player, text = fields.get("sender") or fields.get("Sender"), fields.get("message") or fields.get("Message")
    kind = fields.get("type") or fields.get("MessageType")
    return Said(player, text) if isinstance(player, str) and isinstance(text, str) and kind == "chat" else None


OnGame = Callable[[BedrockGame], Awaitable[Callable[[Said], None]]]


@asynccontextmanager
async def waiting_for_games(host: str, port: int, on_game: OnGame) -> AsyncGenerator[str]:
    """Listens for games inside the `with` block, and yields the command that connects one. `on_game` is called with
    each, and returns the function that gets what its players say."""
    number = 0

    async def connect(request: web.Request) -> web.StreamResponse:
        nonlocal number
        if request.headers.get("origin", "").startswith("http"):  # a page of a browser, not a game
            return web.Response(status=403, text="this address is for games\n")
        socket = web.WebSocketResponse(max_msg_size=LARGEST, heartbeat=30)
        await socket.prepare(request)
        number += 1
        game = BedrockGame(socket, f"connection{number}")
        await game.listen(await on_game(game))
        return socket

    app = web.Application()
    app.router.add_get("/{tail:.*}", connect)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise UserError(f"--world: listening on {host}:{port} failed: {error.strerror or error}") from None
        yield f"/connect {host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
