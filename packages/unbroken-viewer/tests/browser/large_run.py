"""A recording of a large run: 10,000 events and more, thousands of calls. It is played on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from unbroken import Agent, Limits, ScriptedModel, tool
from unbroken.models.scripted import Line
from unbroken.trajectory.recorder import Recorder
from unbroken_testing import Call, Say, run_virtual


@tool(effect="read")
async def work(turn: int, n: int) -> str:
    """Works, and fails now and then."""
    await asyncio.sleep(0.3)
    if (turn + n) % 17 == 0:
        raise ValueError("it does not work")
    return "a result"


def write(path: Path, turns: int = 220, calls: int = 10, words: int = 24) -> Path:
    said = [Say(f"word_{word} ", over=0.02) for word in range(words)]
    script: list[Line] = [
        [*said, *(Call("work", {"turn": turn, "n": n}, after=0.03) for n in range(calls))] for turn in range(turns)
    ]
    agent = Agent(ScriptedModel(*script, "done"), [work], limits=Limits(rounds=turns + 1, calls=turns * calls + 1))
    run_virtual(lambda: agent.run("Do very much.", sinks=[Recorder(path)]), 1_000.0)
    return path
