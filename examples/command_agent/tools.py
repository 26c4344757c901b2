"""The world's commands and questions as tools, and the agent that uses them.

One world serves all connections. The tools are `async`, so they run on the event loop and not in threads, and a command
is executed between two awaits: commands of several connections interleave, but never overlap.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Protocol

from command_agent.world import (
    BLOCKS,
    GROUND,
    ITEMS,
    MOMENTS,
    SIZE,
    TOP,
    Command,
    Give,
    Place,
    Say,
    SetBlock,
    SetTime,
    Teleport,
    World,
    describe_time,
)
from unbroken import CallContext, tool

INSTRUCTIONS = """\
You grant wishes in a small block world by calling its commands. You serve the player {player}; "me" and "I" are them.
x and z are 0 to {last}, y is {ground} (the grass) to {top}; build from y {first}. Blocks: {blocks}.
Items besides them: {items}.
Call commands that do not depend on each other together. Look (inventory, block_at, where_is, what_time) after you have
changed something, and answer in one to three short sentences, in the language of the wish."""

TOOL_CHAIN_CONTINUE_PROMPT = "Please finish the commands and give the final answer."
"""Sent to a model that answers nothing, and with the further requests for an answer that keeps breaking off."""


class Surroundings(Protocol):
    """What the tools of one connection find in their context: the block world (`Here`), or a game (`InGame`)."""

    def named(self, player: str) -> str: ...
    async def run(self, command: Command) -> str: ...
    async def inventory(self, player: str) -> dict[str, int] | str: ...
    async def block_at(self, at: Place) -> str: ...
    async def where_is(self, player: str) -> str: ...
    async def what_time(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Here:
    """One player in the block world."""

    world: World
    player: str
    lag: float = 0.0
    """Seconds that a command takes, as on a real game server."""

    async def run(self, command: Command) -> str:
        await asyncio.sleep(self.lag)
        done = self.world.run(self.player, command)
        return f"{done.text} (command {done.number})"

    def named(self, player: str) -> str:
        return player if player not in ("", "me", "@s", "@p") else self.player

    async def inventory(self, player: str) -> dict[str, int] | str:
        return dict(self.world.player(player).inventory) or "nothing"

    async def block_at(self, at: Place) -> str:
        return self.world.block_at(at)

    async def where_is(self, player: str) -> str:
        found = self.world.player(player)
        return f"{found.name} is at {found.at}; players here: {', '.join(self.world.players)}"

    async def what_time(self) -> str:
        return describe_time(self.world.time)


Context = CallContext[Surroundings]
Whom = Annotated[str, "The player's name; leave it out for the one who wishes."]


@tool(effect="write")
async def give(item: str, context: Context, count: int = 1, player: Whom = "") -> str:
    """Put items into a player's inventory."""
    here = context.deps
    return await here.run(Give(here.named(player), item, count))


@tool(effect="write", key=lambda arguments: "{x} {y} {z}".format_map(arguments))
async def setblock(x: int, y: int, z: int, block: str, context: Context) -> str:
    """Put a block at a place; `air` takes it away."""
    return await context.deps.run(SetBlock(Place(x, y, z), block))


@tool(effect="write", key=lambda arguments: "teleport")
async def teleport(x: int, y: int, z: int, context: Context, player: Whom = "") -> str:
    """Move a player to a place."""
    here = context.deps
    return await here.run(Teleport(here.named(player), Place(x, y, z)))


@tool(effect="write", key=lambda arguments: "time")
async def time(to: Annotated[str, f"One of {', '.join(MOMENTS)}, or ticks from 0 to 23999."], context: Context) -> str:
    """Set the time of day."""
    return await context.deps.run(SetTime(to))


@tool(effect="write", key=lambda arguments: "say")
async def say(text: str, context: Context) -> str:
    """Tell all players something."""
    return await context.deps.run(Say(text))


@tool(effect="read")
async def inventory(context: Context, player: Whom = "") -> dict[str, int] | str:
    """What a player has."""
    here = context.deps
    return await here.inventory(here.named(player))


@tool(effect="read")
async def block_at(x: int, y: int, z: int, context: Context) -> str:
    """Which block is at a place."""
    return await context.deps.block_at(Place(x, y, z))


@tool(effect="read")
async def where_is(context: Context, player: Whom = "") -> str:
    """Where a player is."""
    here = context.deps
    return await here.where_is(here.named(player))


@tool(effect="read")
async def what_time(context: Context) -> str:
    """What time it is."""
    return await context.deps.what_time()


TOOLS = (give, setblock, teleport, time, say, inventory, block_at, where_is, what_time)


def instructions_for(player: str) -> str:
    return INSTRUCTIONS.format(
        player=player,
        last=SIZE - 1,
        ground=GROUND,
        first=GROUND + 1,
        top=TOP,
        blocks=", ".join(BLOCKS),
        items=", ".join(item for item in ITEMS if item not in BLOCKS),
    )
