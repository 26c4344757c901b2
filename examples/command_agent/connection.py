"""One connection: a player, a conversation, and the messages on its WebSocket.

Three tasks run at once, in one task group: reading, writing, and granting the current wish. When the client
disconnects, its wish is cancelled and its player removed; what was built stays, and other players are not affected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast

from aiohttp import WSCloseCode, WSMsgType, web

from command_agent.chat import stream_chat
from command_agent.memory import recent
from command_agent.tools import Here, agent_for
from command_agent.world import Change, World
from unbroken import Conversation, Model

LARGEST = 64 * 1024
"""The largest message, in bytes; a larger one closes the connection."""
LONGEST_WISH = 2000
WAITING = 5000
"""Messages that may be queued for a client; beyond that it is disconnected."""


class Connection:
    """`name` is used for its runs in the log; `hang_up` closes the connection without a message."""

    def __init__(
        self,
        name: str,
        player: str,
        socket: web.WebSocketResponse,
        world: World,
        model: Model,
        *,
        hang_up: Callable[[], None],
        model_name: str,
        sentences: bool,
        lag: float,
    ) -> None:
        self.player = player
        self._name = name
        self._socket = socket
        self._hang_up = hang_up
        self._world = world
        self._model_name = model_name
        self._by_sentence = sentences
        self._chat = Conversation(agent_for(player, model), deps=Here(world, player, lag))
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING)
        self._wishes = 0
        self._granting: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        with self._world.watched(self._send_change):
            self._send({"type": "hello", "player": self.player, "model": self._model_name})
            self._send({"type": "world", "whole": True, **self._world.snapshot()})
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write())
                try:
                    await self._read(group)
                finally:
                    writing.cancel()
                    if self._granting:
                        self._granting.cancel()

    async def close(self, code: WSCloseCode, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode())

    async def _read(self, group: asyncio.TaskGroup) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                self._refuse("a message must be a text message with JSON")
            elif len(message.data) > LARGEST:
                await self.close(WSCloseCode.MESSAGE_TOO_BIG, f"a message may have at most {LARGEST} characters")
            else:
                await self._take(message.data, group)
            await asyncio.sleep(0)  # reading queued messages does not wait; this lets the writer run

    async def _take(self, text: str, group: asyncio.TaskGroup) -> None:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return self._refuse('this is not JSON; send {"type": "wish", "content": "give me a diamond"}')
        fields = cast("dict[str, object]", said) if isinstance(said, dict) else {}
        match fields.get("type"):
            case "wish":
                return await self._wish(fields.get("content"), group)
            case "cancel" if self._granting:
                if not self._granting.cancelling():  # a second cancellation would cut off the end of the first
                    self._granting.cancel()
                return None
            case "cancel":
                return self._refuse("there is nothing to cancel: no wish is in progress")
            case other:
                return self._refuse(f"there is no message type {str(other)[:40]!r}; use wish or cancel")

    async def _wish(self, wish: object, group: asyncio.TaskGroup) -> None:
        if not isinstance(wish, str) or not wish.strip():
            return self._refuse("a wish needs a text in `content`")
        if len(wish) > LONGEST_WISH:
            return self._refuse(f"a wish may have at most {LONGEST_WISH} characters; this one has {len(wish)}")
        if self._granting:
            return self._refuse("one wish at a time: the last one is still in progress; wait for its end, or cancel it")
        self._wishes += 1
        self._granting = group.create_task(self._grant(wish.strip(), self._wishes))
        await asyncio.sleep(0)  # lets the task start: one that is cancelled before could not report its end
        return None

    async def _grant(self, wish: str, number: int) -> None:
        events = stream_chat(
            wish,
            self._chat,
            stream_sentence_mode=self._by_sentence,
            run_id=f"{self._name}-wish{number}",
        )
        try:
            async with aclosing(events):
                async for event in events:
                    self._send({"type": "event", "wish": number, **event.to_json()})
        finally:
            self._granting = None
            self._chat = recent(self._chat)

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
