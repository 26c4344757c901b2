"""One WebSocket: reads the messages of a player and writes what the player sees. The player, the conversation and the
current wish belong to a `Seat`, which may outlive the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from aiohttp import WSCloseCode, WSMsgType, web

from command_agent.seat import Seat
from command_agent.world import Change, World

LARGEST = 64 * 1024
"""The largest message, in bytes; a larger one closes the connection."""
LONGEST_WISH = 2000
WAITING = 5000
"""Messages that may be queued for a client; beyond that it is disconnected."""
TAKEN_OVER = 4001
"""The code of a connection that is closed because its player has another one."""


class Connection:
    """`hang_up` closes the connection without a message. If `returns`, the player may return with the seat's token."""

    def __init__(
        self,
        seat: Seat,
        socket: web.WebSocketResponse,
        world: World,
        *,
        hang_up: Callable[[], None],
        model_name: str,
        returns: bool,
        resumed: bool,
    ) -> None:
        self.seat = seat
        self._socket = socket
        self._hang_up = hang_up
        self._world = world
        self._hello = {"type": "hello", "player": seat.player, "model": model_name, "resumed": resumed}
        if returns:
            self._hello["token"] = seat.token
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING)

    async def serve(self) -> None:
        with self._world.watched(self._send_change):
            self._send(self._hello)
            self._send({"type": "world", "whole": True, **self._world.snapshot()})
            if self._hello["resumed"]:
                self._send(self.seat.history())
            self.seat.send = self._send
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write())
                try:
                    await self._read()
                finally:
                    writing.cancel()
                    if self.seat.send == self._send:
                        self.seat.send = None

    async def close(self, code: int, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode())

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                self._refuse("a message must be a text message with JSON")
            elif len(message.data) > LARGEST:
                await self.close(WSCloseCode.MESSAGE_TOO_BIG, f"a message may have at most {LARGEST} characters")
            else:
                await self._take(message.data)
            await asyncio.sleep(0)  # reading queued messages does not wait; this lets the writer run

    async def _take(self, text: str) -> None:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return self._refuse('this is not JSON; send {"type": "wish", "content": "give me a diamond"}')
        fields = cast("dict[str, object]", said) if isinstance(said, dict) else {}
        match fields.get("type"):
            case "wish":
                return await self._wish(fields.get("content"))
            case "cancel" if self.seat.granting:
                return self.seat.cancel()
            case "cancel":
                return self._refuse("there is nothing to cancel: no wish is in progress")
            case other:
                return self._refuse(f"there is no message type {str(other)[:40]!r}; use wish or cancel")

    async def _wish(self, wish: object) -> None:
        if not isinstance(wish, str) or not wish.strip():
            return self._refuse("a wish needs a text in `content`")
        if len(wish) > LONGEST_WISH:
            return self._refuse(f"a wish may have at most {LONGEST_WISH} characters; this one has {len(wish)}")
        if self.seat.granting:
            return self._refuse("one wish at a time: the last one is still in progress; wait for its end, or cancel it")
        self.seat.wish(wish.strip())
        await asyncio.sleep(0)  # lets the task start: one that is cancelled before could not report its end
        return None

    def _refuse(self, reason: str) -> None:
        self._send({"type": "error", "content": reason})

    def _send_change(self, change: Change) -> None:
        self._send({"type": "world", "whole": False, **change})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._hang_up()  # it does not read; it would miss changes of the world, so it has to reconnect

    async def _write(self) -> None:
        try:
            while True:
                message = await self._outbox.get()
                await self._socket.send_str(json.dumps(message))  # ASCII: half a surrogate pair has no UTF-8
        except ConnectionError:
            pass  # the reader notices it too
