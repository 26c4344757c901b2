"""The block world: commands, questions, refusals, and what watchers are notified of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from command_agent.world import (
    BadCommand,
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

ALL: tuple[Command, ...] = (
    Give("ada", "diamond", 3),
    SetBlock(Place(1, 64, 1), "stone"),
    Teleport("ada", Place(5, 64, 5)),
    SetTime("night"),
    Say("hello"),
)


def world_with(*players: str) -> World:
    world = World()
    for player in players:
        world.join(player)
    return world


def test_every_command_changes_the_world_and_is_in_the_log_with_its_number() -> None:
    world = world_with("ada")
    texts = [world.run("ada", command).text for command in ALL]

    assert texts == [
        "ada got 3 diamond",
        "stone is at 1 64 1 (it was air)",
        "ada is at 5 64 5",
        "it is 19:00, night",
        "[ada] hello",
    ]
    assert [(done.number, done.command) for done in world.log] == [
        (1, "/give ada diamond 3"),
        (2, "/setblock 1 64 1 stone"),
        (3, "/tp ada 5 64 5"),
        (4, "/time set night"),
        (5, "/say hello"),
    ]
    assert world.player("ada").inventory == {"diamond": 3}
    assert world.player("ada").at == Place(5, 64, 5)
    assert (world.block_at(Place(1, 64, 1)), world.block_at(Place(2, 64, 1)), world.block_at(Place(2, 63, 1))) == (
        "stone",
        "air",
        "grass",
    )
    assert describe_time(world.time) == "19:00, night"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Give("ada", "unicorn"), "there is no item `unicorn`; there are: diamond, "),
        (Give("ada", "diamonds"), "there is no item `diamonds`; did you mean `diamond`? "),
        (Give("adda", "diamond"), "there is no player `adda`; did you mean `ada`? there are: ada"),
        (Give("ada", "diamond", 0), "cannot give 0 diamond: the count is 1 to 999; ada has 0"),
        (Give("ada", "diamond", -5), "cannot give -5 diamond"),
        (SetBlock(Place(16, 64, 0), "stone"), "16 64 0 is outside of the world: x and z are 0 to 15, y is 63 "),
        (SetBlock(Place(0, 62, 0), "stone"), "0 62 0 is outside of the world"),
        (SetBlock(Place(0, 64, 0), "diamond"), "there is no block `diamond`"),
        (SetBlock(Place(0, 63, 0), "air"), "cannot dig at 0 63 0: the ground at y 63 stays"),
        (Teleport("ada", Place(0, 63, 0)), "cannot go to 0 63 0: there is grass; choose a free place"),
        (Teleport("ada", Place(-1, 64, 0)), "-1 64 0 is outside of the world"),
        (SetTime("yesterday"), "there is no time `yesterday`: say day, noon, evening, night, midnight, or a number "),
        (SetTime("24000"), "there is no time `24000`"),
        (SetTime("9" * 5000), "there is no time"),
        (Say("  "), "cannot say that: give 1 to 200 characters, not 2"),
        (Say("a" * 201), "cannot say that: give 1 to 200 characters, not 201"),
        *(
            (Say(f"a{odd}b"), f"cannot say that: {odd!r} is not a printable character")
            for odd in "\n\x00\x1b\x7f\x9b\u2028\u202e"
        ),
        (SetTime("１２"), "there is no time `１２`"),
    ],
)
def test_a_bad_command_is_refused_with_a_reason_and_changes_nothing(command: Command, reason: str) -> None:
    world = world_with("ada")
    before = world.snapshot()
    with pytest.raises(BadCommand) as refused:
        world.run("ada", command)
    assert str(refused.value).startswith(reason)
    assert world.snapshot() == before


def test_the_same_commands_give_the_same_world() -> None:
    worlds = [world_with("ada", "bob") for _ in range(2)]
    for world in worlds:
        for command in ALL:
            world.run("bob", command)
    assert worlds[0].snapshot() == worlds[1].snapshot()


def test_the_changes_that_a_watcher_gets_add_up_to_the_snapshot() -> None:
    world = World()
    seen: dict[str, Any] = json.loads(json.dumps(world.snapshot()))

    def learn(change: dict[str, Any]) -> None:
        for name, value in change.items():
            if name == "log":
                seen["log"] += value
            elif isinstance(value, dict):
                seen[name] |= value
            else:
                seen[name] = value

    with world.watched(learn):
        world.join("ada")
        world.join("bob")
        for command in ALL:
            world.run("ada", command)
        world.leave("bob")
    world.run("ada", Say("nobody hears this"))

    expected = world.snapshot()
    assert seen["players"].pop("bob") is None
    assert seen == {**expected, "number": 5, "log": expected["log"][:-1]}


def test_a_removed_block_is_air_and_not_in_the_snapshot() -> None:
    world = world_with("ada")
    for block in ("stone", "air"):
        world.run("ada", SetBlock(Place(1, 64, 1), block))
    for block in ("sand", "grass"):
        world.run("ada", SetBlock(Place(1, 63, 1), block))
    assert world.snapshot()["blocks"] == {}


def test_a_player_who_leaves_frees_the_name_and_leaves_the_blocks() -> None:
    world = world_with("ada")
    with pytest.raises(BadCommand, match="a player called `ada` is here already"):
        world.join("ada")
    world.run("ada", SetBlock(Place(1, 64, 1), "stone"))
    world.leave("ada")
    assert world.players == ()
    assert world.block_at(Place(1, 64, 1)) == "stone"
    world.join("ada")
    assert world.player("ada").inventory == {}


def test_a_long_log_keeps_its_end() -> None:
    world = world_with("ada")
    for number in range(250):
        world.run("ada", Say(str(number)))
    assert [world.log[0].number, world.log[-1].number, len(world.log)] == [51, 250, 200]
