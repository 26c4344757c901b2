"""The same tools in a real game: commands and questions become Minecraft commands, and players wish in its chat."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import typer

from command_agent.bedrock import BedrockGame, Said, waiting_for_games
from command_agent.chat import stream_chat
from command_agent.game_errors import NotExecuted
from command_agent.memory import recent
from command_agent.rcon import RconGame, rcon_game
from command_agent.watching import Watch
from command_agent.world import BadCommand, Command, Give, Place, Say, SetBlock, SetTime, Teleport
from unbroken import Conversation, Model, ToolFailed, UserError

LOG = logging.getLogger("command_agent")
PREFIX = "!"
"""A line of the chat that begins with it is a wish."""
PORTS = {"ws": 19131, "rcon": 25575}
LONGEST_LINE = 400
INSTRUCTIONS = """\
You grant wishes in Minecraft ({edition} edition) by calling its commands. You serve the player {player}; "me" and "I"
are them. Call commands that do not depend on each other together. Look (inventory, block_at, where_is, what_time) after
you have changed something, and answer in one to three short sentences, in the language of the wish. If the outcome of a
command is unknown, look before you repeat it."""
_NAME = re.compile(r"[a-z0-9_.:]{1,64}")
_PLAYER = re.compile(r"[\w ()#-]{1,32}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def parse_address(world: str) -> tuple[str, str, int]:
    """The protocol, host and port of `--world`. For `ws` it is where games connect, for `rcon` where the server is."""
    parts = urlsplit(world)
    if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
        raise UserError("--world: expected ws://127.0.0.1:19131 (Bedrock) or rcon://127.0.0.1:25575 (Java)")
    try:
        return parts.scheme, parts.hostname, PORTS[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        raise UserError("--world: the port is a number from 0 to 65535") from None


class InGame:
    """What the tools of one player find in their context, in place of the block world."""

    edition = "Bedrock"

    def __init__(self, game: BedrockGame | RconGame, player: str) -> None:
        self.game = game
        self.player = player
        self._given: dict[str, None] = {}

    def named(self, player: str) -> str:
        return player if player not in ("", "me", "@s", "@p") else self.player

    async def run(self, command: Command) -> str:
        line = _line(command)
        told = await self.game.run(line)
        if isinstance(command, Give):
            self._given[command.item] = None
        return str(told.get("statusMessage") or f"done: /{line}")

    async def inventory(self, player: str) -> str:
        """The game lists no inventory, but counts one item: `clear` with a maximum of 0 removes nothing."""
        if not self._given:
            return "nothing was given in this chat, and the game does not list an inventory"
        found: list[str] = []
        for item in self._given:
            try:
                told = await self.game.run(f"clear {_quoted(player)} {item} -1 0")
            except NotExecuted as error:
                found.append(str(error))
            else:
                found.append(str(told.get("statusMessage", "")))
        return "; ".join(found)

    async def block_at(self, at: Place) -> str:
        try:
            await self.game.run(f"testforblock {at} air")
        except NotExecuted as error:
            return str(error)  # "The block at … is …"
        return "air"

    async def where_is(self, player: str) -> str:
        told = await self.game.run(f"querytarget {_quoted(player)}")
        try:
            position = json.loads(told["details"])[0]["position"]
            return f"{player} is at {position['x']:.0f} {position['y']:.0f} {position['z']:.0f}"
        except (ValueError, TypeError, KeyError, IndexError):
            return str(told.get("statusMessage") or "the game did not say where that is")

    async def what_time(self) -> str:
        return str((await self.game.run("time query daytime")).get("statusMessage", ""))


class InJava(InGame):
    """The same in the Java edition, which has other questions. Most of its refusals are answers like any other."""

    edition = "Java"

    async def inventory(self, player: str) -> str:
        return await self._told(f"data get entity {_quoted(player)} Inventory")

    async def block_at(self, at: Place) -> str:
        told = await self._told(f"execute if block {at} air")
        return "air" if told.startswith("Test passed") else f"{told}; this edition does not say which block it is"

    async def where_is(self, player: str) -> str:
        return await self._told(f"data get entity {_quoted(player)} Pos")

    async def _told(self, line: str) -> str:
        return str((await self.game.run(line))["statusMessage"])


def _line(command: Command) -> str:
    """The command as the game reads it, with one command in it: no name may hold another."""
    match command:
        case Give():
            line = f"give {_quoted(command.player)} {_named('item', command.item)} {command.count}"
        case SetBlock():
            line = f"setblock {command.at} {_named('block', command.block)}"
        case Teleport():
            line = f"tp {_quoted(command.player)} {command.to}"
        case SetTime():
            line = f"time set {_named('time', command.to)}"
        case Say():
            if not command.text.strip() or _CONTROL.search(command.text):
                raise BadCommand("cannot say that: give one line of text")
            line = f"say {command.text}"
    if len(line) > LONGEST_LINE:
        raise BadCommand(f"the command has {len(line)} characters: at most {LONGEST_LINE} are sent")
    return line


def _named(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadCommand(f"`{name[:40]}` is no {kind}: a name has small letters, digits and `_`, such as oak_planks")
    return name


def _quoted(player: str) -> str:
    if player == "@p":  # the one who is nearest: the player of the game that has connected
        return player
    if not _PLAYER.fullmatch(player):
        raise BadCommand(f"`{player[:40]}` is no name of a player")
    return f'"{player}"' if " " in player else player


def chat_in(here: InGame, model: Model, watch: Watch) -> Conversation[Any, Any]:
    instructions = INSTRUCTIONS.format(player=here.player, edition=here.edition)
    return Conversation(watch.agent(model, instructions), deps=here)


class GameChat:
    """The conversations of one game, one for each player. Each has one wish at a time."""

    def __init__(self, game: BedrockGame, model: Model, watch: Watch, *, sentences: bool = True) -> None:
        self._game = game
        self._model = model
        self._watch = watch
        self._sentences = sentences
        self._chats: dict[str, Conversation[Any, Any]] = {}
        self._wishing: set[str] = set()
        """Players with a wish in progress."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def heard(self, said: Said) -> None:
        if not said.text.startswith(PREFIX) or not (wish := said.text.removeprefix(PREFIX).strip()):
            return
        if said.player in self._wishing:
            doing = self._tell("one wish at a time: the last one is still in progress")
        else:
            self._number += 1
            self._wishing.add(said.player)
            doing = self._grant(said.player, wish, f"{self._game.name}-wish{self._number}")
        self._tasks.add(task := asyncio.create_task(doing))
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends the wishes; every call gets its result first."""
        for task in (running := tuple(self._tasks)):
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _grant(self, player: str, wish: str, run_id: str) -> None:
        chat = self._chats.get(player)
        if chat is None:
            chat = chat_in(InGame(self._game, player), self._model, self._watch)
        events = stream_chat(wish, chat, stream_sentence_mode=self._sentences, run_id=run_id)
        try:
            async with aclosing(events):
                async for event in events:
                    if event.event_type in ("content", "error") and event.content.strip():
                        await self._tell(event.content.strip())
        except Exception:
            LOG.exception("a wish could not be granted")
        finally:
            self._wishing.discard(player)
            self._chats[player] = recent(chat)

    async def _tell(self, text: str) -> None:
        """Shown in the chat of the game. If that fails, the wish continues."""
        shown = json.dumps({"rawtext": [{"text": text}]}, ensure_ascii=False)
        try:
            await self._game.run(f"tellraw @a {shown}")
        except ToolFailed as error:
            LOG.warning("%s was not told %.80r: %s", self._game.name, text, error)


async def serve_games(world: str, model: Model, stop: asyncio.Event, *, watch: Watch, sentences: bool) -> None:
    """Grants the wishes of all games that connect, until `stop` is set."""
    protocol, host, port = parse_address(world)
    if protocol != "ws":
        raise UserError("--world rcon://…: this protocol does not report what players say; use `say`, or ws://…")
    chats = WeakSet[GameChat]()

    async def on_game(game: BedrockGame) -> Callable[[Said], None]:
        chats.add(chat := GameChat(game, model, watch, sentences=sentences))
        return chat.heard

    async with waiting_for_games(host, port, on_game) as command:
        typer.echo(f"write {command} in the chat of the game, and begin a wish with {PREFIX}  model: {model.name}")
        await stop.wait()
        for chat in tuple(chats):
            await chat.close()


@asynccontextmanager
async def in_game(world: str) -> AsyncGenerator[InGame]:
    """The nearest player in the first game that connects, or on the server at this address."""
    protocol, host, port = parse_address(world)
    if protocol == "rcon":
        async with rcon_game(host, port, os.environ.get("RCON_PASSWORD", "")) as server:
            yield InJava(server, "@p")
        return
    connected: asyncio.Future[BedrockGame] = asyncio.get_running_loop().create_future()

    async def on_game(game: BedrockGame) -> Callable[[Said], None]:
        if not connected.done():
            connected.set_result(game)
        return lambda said: None

    async with waiting_for_games(host, port, on_game) as command:
        typer.echo(f"write {command} in the chat of the game", err=True)
        yield InGame(await connected, "@p")
