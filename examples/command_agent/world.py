"""A small block world in memory: commands change it, questions read it, and every command is numbered and logged.

It is deterministic, does no I/O, and does not know about models or connections. Nothing in it waits, so on one event
loop a command is complete before the next one begins, from any sender.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, TypeAlias, assert_never

SIZE = 16
"""The size from west to east and from north to south: x and z are 0 to 15."""
GROUND, TOP = 63, 79
"""The grass is at y 63 and the sky ends at 79: buildings are in between."""
DAY = 24_000
"""Ticks of a day; 0 is sunrise."""
MOMENTS = {"day": 1_000, "noon": 6_000, "evening": 12_000, "night": 13_000, "midnight": 18_000}
BLOCKS = (
    "stone",
    "dirt",
    "grass",
    "sand",
    "oak_planks",
    "oak_log",
    "leaves",
    "brick",
    "glass",
    "gold_block",
    "diamond_block",
    "water",
    "torch",
)
ITEMS = ("diamond", "apple", "bread", "iron_sword", "compass", *BLOCKS)
MOST = 999
"""The most of one item in one inventory."""
LONGEST_WORDS = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that end a line, move a cursor or change the writing direction."""
LOG_KEPT = 200


class BadCommand(ValueError):
    """The world cannot do that. The message is for the caller: what is wrong, and what would work."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"{self.x} {self.y} {self.z}"


@dataclass(frozen=True, slots=True)
class Player:
    name: str
    at: Place
    inventory: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        return {"at": [self.at.x, self.at.y, self.at.z], "inventory": dict(self.inventory)}


@dataclass(frozen=True, slots=True)
class Give:
    player: str
    item: str
    count: int = 1

    def __str__(self) -> str:
        return f"/give {self.player} {self.item} {self.count}"


@dataclass(frozen=True, slots=True)
class SetBlock:
    at: Place
    block: str

    def __str__(self) -> str:
        return f"/setblock {self.at} {self.block}"


@dataclass(frozen=True, slots=True)
class Teleport:
    player: str
    to: Place

    def __str__(self) -> str:
        return f"/tp {self.player} {self.to}"


@dataclass(frozen=True, slots=True)
class SetTime:
    to: str
    """`night`, or ticks as digits."""

    def __str__(self) -> str:
        return f"/time set {self.to}"


@dataclass(frozen=True, slots=True)
class Say:
    text: str

    def __str__(self) -> str:
        return f"/say {self.text}"


Command: TypeAlias = Give | SetBlock | Teleport | SetTime | Say


@dataclass(frozen=True, slots=True)
class Done:
    """A command that was executed."""

    number: int
    by: str
    command: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "by": self.by, "command": self.command, "text": self.text}


Change: TypeAlias = dict[str, Any]
"""The changes, in the format of `snapshot`: a player that is None has left, a block `air` was removed."""
Watcher: TypeAlias = Callable[[Change], None]


class World:
    """`world.run("ada", Give("ada", "diamond"))`. Watchers get each change, in order, as it happens."""

    def __init__(self) -> None:
        self.time = MOMENTS["day"]
        self._players: dict[str, Player] = {}
        self._blocks: dict[Place, str] = {}
        """The blocks that differ from the empty meadow."""
        self._log: deque[Done] = deque(maxlen=LOG_KEPT)
        self._number = 0
        self._watchers: list[Watcher] = []

    def join(self, name: str) -> Player:
        if name in self._players:
            raise BadCommand(f"a player called `{name}` is here already; choose another name")
        column = len(self._players) * 3 % (SIZE - 2)
        player = self._players[name] = Player(name, Place(1 + column, GROUND + 1, SIZE - 3))
        self._notify(players={name: player.to_json()})
        return player

    def leave(self, name: str) -> None:
        """Removes a player. What the player built stays."""
        if self._players.pop(name, None):
            self._notify(players={name: None})

    @contextmanager
    def watched(self, watcher: Watcher) -> Generator[None]:
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def run(self, by: str, command: Command) -> Done:
        match command:
            case Give():
                text, change = self._give(command)
            case SetBlock():
                text, change = self._set_block(command)
            case Teleport():
                text, change = self._teleport(command)
            case SetTime():
                text, change = self._set_time(command)
            case Say():
                text, change = _said(by, command)
            case _:
                assert_never(command)
        self._number += 1
        done = Done(self._number, by, str(command), text)
        self._log.append(done)
        self._notify(log=[done.to_json()], **change)
        return done

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(self._players)

    @property
    def log(self) -> tuple[Done, ...]:
        """The latest commands."""
        return tuple(self._log)

    def player(self, name: str) -> Player:
        if found := self._players.get(name):
            return found
        raise BadCommand(_unknown("player", name, self._players))

    def block_at(self, at: Place) -> str:
        _check_inside(at)
        return self._blocks.get(at) or ("grass" if at.y == GROUND else "air")

    def snapshot(self) -> dict[str, Any]:
        """The complete world as JSON."""
        return {
            "number": self._number,
            "time": self.time,
            "players": {name: player.to_json() for name, player in self._players.items()},
            "blocks": {str(at): block for at, block in sorted(self._blocks.items())},
            "log": [done.to_json() for done in self._log],
        }

    def _give(self, command: Give) -> tuple[str, Change]:
        player = self.player(command.player)
        _check_known("item", command.item, ITEMS)
        has = player.inventory.get(command.item, 0)
        if not 1 <= command.count <= MOST - has:
            raise BadCommand(
                f"cannot give {command.count} {command.item}: the count is 1 to {MOST - has}; {player.name} has {has}"
            )
        player = replace(player, inventory={**player.inventory, command.item: has + command.count})
        self._players[player.name] = player
        return f"{player.name} got {command.count} {command.item}", {"players": {player.name: player.to_json()}}

    def _set_block(self, command: SetBlock) -> tuple[str, Change]:
        _check_inside(command.at)
        _check_known("block", command.block, ("air", *BLOCKS))
        if command.at.y == GROUND and command.block == "air":
            raise BadCommand(f"cannot dig at {command.at}: the ground at y {GROUND} stays; put another block there")
        before = self.block_at(command.at)
        self._blocks[command.at] = command.block
        if self._blocks[command.at] == ("grass" if command.at.y == GROUND else "air"):
            del self._blocks[command.at]
        return f"{command.block} is at {command.at} (it was {before})", {"blocks": {str(command.at): command.block}}

    def _teleport(self, command: Teleport) -> tuple[str, Change]:
        player = self.player(command.player)
        if (block := self.block_at(command.to)) not in ("air", "water", "torch"):
            raise BadCommand(f"cannot go to {command.to}: there is {block}; choose a free place, for example above it")
        player = self._players[player.name] = replace(player, at=command.to)
        return f"{player.name} is at {command.to}", {"players": {player.name: player.to_json()}}

    def _set_time(self, command: SetTime) -> tuple[str, Change]:
        is_number = command.to.isascii() and command.to.isdecimal() and len(command.to) < 6
        ticks = MOMENTS.get(command.to, int(command.to) if is_number else -1)
        if not 0 <= ticks < DAY:
            raise BadCommand(
                f"there is no time `{command.to[:40]}`: say {', '.join(MOMENTS)}, or a number from 0 to {DAY - 1}"
            )
        self.time = ticks
        return f"it is {describe_time(ticks)}", {"time": ticks}

    def _notify(self, **change: Any) -> None:
        for watcher in tuple(self._watchers):
            watcher({"number": self._number, **change})


def describe_time(ticks: int) -> str:
    minutes = (ticks * 60 // 1000 + 6 * 60) % (24 * 60)
    return f"{minutes // 60:02}:{minutes % 60:02}, {'night' if is_night(ticks) else 'day'}"


def is_night(ticks: int) -> bool:
    return 13_000 <= ticks < 23_000


def _said(by: str, command: Say) -> tuple[str, Change]:
    if not command.text.strip() or len(command.text) > LONGEST_WORDS:
        raise BadCommand(f"cannot say that: give 1 to {LONGEST_WORDS} characters, not {len(command.text)}")
    if strange := _CONTROL.search(command.text):
        raise BadCommand(f"cannot say that: {strange[0]!r} is not a printable character; leave it out")
    return f"[{by}] {command.text}", {}


def _check_known(kind: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise BadCommand(_unknown(kind, name, names))


def _unknown(kind: str, name: str, names: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"there is no {kind} `{name[:40]}`; {hint}there are: {', '.join(names) or 'none'}"


def _check_inside(at: Place) -> None:
    if not (0 <= at.x < SIZE and GROUND <= at.y <= TOP and 0 <= at.z < SIZE):
        raise BadCommand(
            f"{at} is outside of the world: x and z are 0 to {SIZE - 1}, y is {GROUND} (the ground) to {TOP}"
        )
