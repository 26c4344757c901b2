"""A game that connects as Minecraft's Bedrock edition does, with the block world in it: for tests, and to try `--world`
without the game. It refuses what the real one refuses: messages of an unknown purpose, request ids that are no UUID or
are in use, unknown commands, and more than a hundred commands at the same time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import aiohttp

from command_agent.world import BadCommand, Command, Give, Place, Say, SetBlock, SetTime, Teleport, World

IN_FLIGHT = 100
FAILED, TOO_MANY, UNKNOWN = -2147483648, -2147418109, -2147483647
Object = dict[str, Any]
Answering = Callable[[str, Object], Object | None]
_PLACE = r"(?P<x>-?\d+) (?P<y>-?\d+) (?P<z>-?\d+)"
_WHO = r'"?(?P<player>[\w @-]+?)"?'


class GameClient:
    """`answering` may change the answer to a command line, or return None: then the connection is cut without one.
    `lag` is how long a command takes."""

    def __init__(self, world: World, *, lag: float = 0.0, answering: Answering | None = None) -> None:
        self.world = world
        self.shown: list[str] = []
        """What `tellraw` wrote into the chat."""
        self.lines: list[str] = []
        """The commands that were executed."""
        self.subscribed: set[str] = set()
        self.changed = asyncio.Event()
        """Set whenever one of these grows."""
        self.most_in_flight = 0
        self._lag = lag
        self._answering = answering
        self._in_flight: set[str] = set()
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @asynccontextmanager
    async def connected(self, command: str) -> AsyncGenerator[None]:
        """Connects as a player does who types `/connect HOST:PORT`."""
        address = command.removeprefix("/connect ")
        async with aiohttp.ClientSession() as session, session.ws_connect(f"ws://{address}") as self._socket:
            reading = asyncio.create_task(self._read())
            try:
                yield
            finally:
                reading.cancel()

    async def chat(self, player: str, text: str) -> None:
        """A player writes something: the server hears of it if it has subscribed."""
        if "PlayerMessage" in self.subscribed:
            header = {"version": 1, "messagePurpose": "event", "eventName": "PlayerMessage"}
            await self._write(header, {"message": text, "sender": player, "receiver": "", "type": "chat"})

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    async def _read(self) -> None:
        assert self._socket is not None
        async with asyncio.TaskGroup() as group:
            async for message in self._socket:
                group.create_task(self._take(str(message.data)))

    async def _take(self, text: str) -> None:
        message = json.loads(text)
        header, body = cast("Object", message["header"]), cast("Object", message["body"])
        id, purpose = str(header.get("requestId")), header.get("messagePurpose")
        try:
            UUID(id)
        except ValueError:
            return await self._refuse(id, UNKNOWN, "the requestId is no UUID")
        if purpose == "subscribe":
            self.subscribed.add(str(body.get("eventName")))
            self.changed.set()
        elif purpose != "commandRequest" or "commandLine" not in body:
            await self._refuse(id, UNKNOWN, f"the message purpose {purpose!r} is not known")
        elif id in self._in_flight:
            await self._refuse(id, UNKNOWN, "the requestId is in use")
        elif len(self._in_flight) >= IN_FLIGHT:
            await self._refuse(id, TOO_MANY, "Too many commands have been requested, wait for one to be done")
        else:
            await self._command(id, str(body["commandLine"]))
        return None

    async def _command(self, id: str, line: str) -> None:
        self._in_flight.add(id)
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        await asyncio.sleep(self._lag)
        try:
            answer: Object = {"statusCode": 0, **self._execute(line)}
        except BadCommand as error:
            answer = {"statusCode": FAILED, "statusMessage": str(error)}
        self._in_flight.discard(id)
        self.changed.set()
        changed = answer if self._answering is None else self._answering(line, answer)
        if changed is None:
            assert self._socket is not None
            await self._socket.close()
        else:
            header = {"version": 1, "requestId": changed.pop("requestId", id), "messagePurpose": "commandResponse"}
            await self._write(header, changed)

    def _execute(self, line: str) -> Object:
        if found := re.fullmatch(r"tellraw @a (?P<text>\{.*\})", line):
            self.shown.append(json.loads(found["text"])["rawtext"][0]["text"])
            return {}
        for pattern, answer in self._patterns().items():
            if match := re.fullmatch(pattern, line):
                found = match.groupdict()
                if found.get("player") == "@p":
                    found["player"] = self.world.players[0]
                told = answer(found)
                self.lines.append(line)
                return told
        raise BadCommand(f'Syntax error: Unexpected "{line[:40]}"')

    def _patterns(self) -> dict[str, Callable[[dict[str, str]], Object]]:
        return {
            rf"give {_WHO} (?P<item>\w+) (?P<count>\d+)": lambda found: self._run(
                Give(found["player"], found["item"], int(found["count"]))
            ),
            rf"setblock {_PLACE} (?P<block>\w+)": lambda found: self._run(SetBlock(_place(found), found["block"])),
            rf"tp {_WHO} {_PLACE}": lambda found: self._run(Teleport(found["player"], _place(found))),
            r"time set (?P<to>\w+)": lambda found: self._run(SetTime(found["to"])),
            r"say (?P<text>.+)": lambda found: self._run(Say(found["text"])),
            r"time query daytime": lambda found: {"statusMessage": f"Day time is {self.world.time}"},
            rf"querytarget {_WHO}": self._target,
            rf"clear {_WHO} (?P<item>\w+) -1 0": self._count,
            rf"testforblock {_PLACE} (?P<block>\w+)": self._test,
        }

    def _run(self, command: Command) -> Object:
        return {"statusMessage": self.world.run("the game", command).text}

    def _target(self, found: dict[str, str]) -> Object:
        at = self.world.player(found["player"]).at
        return {"details": json.dumps([{"dimension": 0, "position": {"x": at.x, "y": at.y, "z": at.z}}])}

    def _count(self, found: dict[str, str]) -> Object:
        has = self.world.player(found["player"]).inventory.get(found["item"], 0)
        if not has:
            raise BadCommand(f"Could not clear the inventory of {found['player']}, no items to remove")
        return {"statusMessage": f"{found['player']} has {has} {found['item']} that match the criteria"}

    def _test(self, found: dict[str, str]) -> Object:
        at = _place(found)
        if (block := self.world.block_at(at)) != found["block"]:
            raise BadCommand(f"The block at {at.x},{at.y},{at.z} is {block} (expected: {found['block']}).")
        return {"statusMessage": f"Successfully found the block at {at.x},{at.y},{at.z}."}

    async def _refuse(self, id: str, code: int, why: str) -> None:
        header = {"version": 1, "requestId": id, "messagePurpose": "error"}
        await self._write(header, {"statusCode": code, "statusMessage": why})

    async def _write(self, header: Object, body: Object) -> None:
        assert self._socket is not None
        await self._socket.send_str(json.dumps({"header": header, "body": body}))


def _place(found: dict[str, str]) -> Place:
    return Place(int(found["x"]), int(found["y"]), int(found["z"]))
