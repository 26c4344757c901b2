"""Shared by the tests of the command agent: a player on the other end of the WebSocket, and a check of what it
received."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from command_agent.chat import StreamEvent
from command_agent.server import Game, serving


class Client:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.player = ""
        self.token = ""
        self.history: list[dict[str, Any]] = []
        self.commands: list[str] = []
        """The commands of all players, from the log of the world."""
        self.blocks: dict[str, str] = {}
        self.errors: list[str] = []
        self._events: list[StreamEvent] = []

    async def take(self) -> str:
        """Reads one message and returns its type."""
        told = await self.socket.receive_json(timeout=20)
        match told["type"]:
            case "hello":
                self.player, self.token = told["player"], told.get("token", "")
            case "history":
                self.history = told["wishes"]
            case "world":
                self.commands += [done["command"] for done in told.get("log", ())]
                self.blocks |= told.get("blocks", {})
            case "event":
                fields = {name: told[name] for name in ("event_type", "content", "sequence", "metadata")}
                self._events.append(StreamEvent(**fields))
            case _:
                self.errors.append(told["content"])
        return told["type"]

    async def send(self, **message: Any) -> None:
        await self.socket.send_json(message)

    async def wish(self, text: str) -> list[StreamEvent]:
        """All events of the wish."""
        await self.send(type="wish", content=text)
        return await self.rest()

    async def until(self, event_type: str) -> None:
        """Waits for an event of this type."""
        while not any(event.event_type == event_type for event in self._events):
            await self.take()

    @property
    def ended(self) -> bool:
        return bool(self._events) and "is_complete" in self._events[-1].metadata

    async def rest(self) -> list[StreamEvent]:
        while not self.ended:
            await self.take()
        events, self._events = self._events, []
        return events

    async def error(self) -> str:
        while await self.take() != "error":
            pass
        return self.errors[-1]


@asynccontextmanager
async def joined(address: str, seat: str | None = None) -> AsyncGenerator[Client]:
    """With a `seat`, empty or a token, the player may return."""
    query = "" if seat is None else f"?seat={seat}"
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}ws{query}") as socket:
        client = Client(socket)
        while await client.take() != "world":
            pass
        yield client


@asynccontextmanager
async def crowd(address: str, many: int) -> AsyncGenerator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(joined(address)) for _ in range(many)]


@asynccontextmanager
async def alone(game: Game) -> AsyncGenerator[Client]:
    async with serving(game) as address, joined(address) as client:
        yield client


def text_of(events: Sequence[StreamEvent]) -> str:
    """What is on the screen at the end."""
    turns: dict[int, str] = {}
    for event in events:
        turn = event.metadata.get("turn", -1)
        if event.event_type == "content":
            turns[turn] = turns.get(turn, "") + event.content
        elif event.event_type == "replaced" and event.metadata["of"] == "content":
            turns[turn] = ""
    return " ".join(filter(None, (said.strip() for said in turns.values())))


def problems_of(events: Sequence[StreamEvent]) -> list[str]:
    """What no chat may show: a gap, a call without exactly one result after it, a repeated sentence, no end."""
    problems = [] if [event.sequence for event in events] == list(range(len(events))) else ["the sequence has gaps"]
    last = events[-1]
    if (last.event_type, last.content) != ("content", "") or "is_complete" not in last.metadata:
        problems.append("there is no end")
    called: Counter[str] = Counter()
    for event in events:
        if event.event_type == "tool_call":
            called[event.metadata["call_id"]] += 1
        elif event.event_type == "tool_return":
            called[event.metadata["call_id"]] -= 1
            problems += ["a return before its call"] if called[event.metadata["call_id"]] < 0 else []
    problems += [f"call {id} has no return" for id, open_calls in called.items() if open_calls]
    said: set[tuple[int, str]] = set()
    for event in events[:-1]:
        turn = event.metadata.get("turn", -1)
        if event.event_type == "replaced" and event.metadata["of"] == "content":
            said = {(of, sentence) for of, sentence in said if of != turn}  # the client was told to discard them
        elif event.event_type == "content":
            sentence = (turn, event.content.strip())
            problems += [f"said twice: {event.content!r}"] if sentence in said else []
            said.add(sentence)
    if last.metadata.get("tool_calls") != last.metadata.get("tool_returns"):
        problems.append("the chain is open")
    return problems
