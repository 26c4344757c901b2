"""A seat: one player, a conversation, and what was shown of it. It outlives its connection for a while, so that a page
that is reloaded, even in the middle of a wish, finds its player, its items and its chat again."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from command_agent.chat import StreamEvent, stream_chat
from command_agent.memory import MOST_WISHES, recent
from command_agent.tools import Here
from command_agent.upstream import FaultLog
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Conversation, Model

LOG = logging.getLogger("command_agent")

Message = dict[str, Any]


@dataclass(slots=True)
class Shown:
    """A wish and its events, as they were sent, without the history that the last event has."""

    number: int
    content: str
    events: list[Message] = field(default_factory=list[Message])


class Seat:
    """`name` is used for its runs in the log, `token` to return to it; it cannot be guessed. `send` is the method of
    its connection, while there is one."""

    def __init__(
        self,
        name: str,
        player: str,
        world: World,
        model: Model,
        *,
        watch: Watch,
        sentences: bool,
        lag: float,
        faults: FaultLog,
    ) -> None:
        self.player = player
        self.token = secrets.token_urlsafe(24)
        self.send: Callable[[Message], None] | None = None
        self.wishes: deque[Shown] = deque(maxlen=MOST_WISHES)
        self._name = name
        self._by_sentence = sentences
        self._faults = faults
        self._chat = Conversation(watch.agent_for(player, model), deps=Here(world, player, lag))
        self._number = 0
        self._granting: asyncio.Task[None] | None = None

    @property
    def granting(self) -> bool:
        return self._granting is not None

    def history(self) -> Message:
        return {
            "type": "history",
            "wishes": [{"wish": one.number, "content": one.content, "events": one.events} for one in self.wishes],
        }

    def wish(self, content: str) -> None:
        self._number += 1
        self.wishes.append(shown := Shown(self._number, content))
        self._granting = asyncio.create_task(self._grant(shown))

    def cancel(self) -> None:
        if self._granting and not self._granting.cancelling():  # a second one would cut off the end of the first
            self._granting.cancel()

    async def close(self) -> None:
        """Ends the wish, and waits until every call has its result."""
        if self._granting:
            self.cancel()
            await asyncio.wait([self._granting])

    async def _grant(self, shown: Shown) -> None:
        run_id = f"{self._name}-wish{shown.number}"
        events = stream_chat(shown.content, self._chat, stream_sentence_mode=self._by_sentence, run_id=run_id)
        happened: list[Message] = []
        try:
            async with aclosing(events):
                async for event in events:
                    self._show(shown, event, happened)
        except Exception:
            LOG.exception("a wish could not be granted")
            self._pass({"type": "error", "content": "the server could not grant this wish: see its log"})
        finally:
            self._granting = None
            self._chat = recent(self._chat)

    def _show(self, shown: Shown, event: StreamEvent, happened: list[Message]) -> None:
        """With faults, says which one was made on purpose."""
        ends = "is_complete" in event.metadata
        if event.event_type == "retried" or ends:
            for fault in self._faults.take(self.player):
                happened.append({"name": fault.name, "title": fault.title, "retried": False})
            if event.event_type == "retried" and happened:
                happened[-1]["retried"] = True
                event.metadata["fault"] = happened[-1]
            elif happened:
                event.metadata["faults"] = happened
        message = {"type": "event", "wish": shown.number, **event.to_json()}
        self._pass(message)
        if ends:
            metadata = {name: value for name, value in event.metadata.items() if name != "all_messages"}
            message = {**message, "metadata": metadata}
        shown.events.append(message)

    def _pass(self, message: Message) -> None:
        if self.send:
            self.send(message)
