"""The example run for recordings: 3 rounds with 8 calls, one restart, one time-out, one duplicate.

It uses virtual time, so that every number in it is exact; the tests of recordings check against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unbroken import Agent, Result, RetryingModel, ScriptedModel, tool
from unbroken.events import Sink
from unbroken.middleware import Middleware
from unbroken.models.scripted import Break, Call, Pause, Say, Uses
from unbroken.trajectory.recorder import Recorder
from unbroken_testing import run_virtual

QUESTION = "Plan a day in Reykjavik and book it."
START = 1_700_000_000.0
"""When it began, in seconds since the epoch."""


@tool(effect="read")
async def weather(city: str) -> str:
    """The weather of a city."""
    await asyncio.sleep(0.5)
    return f"{city}: 4 degrees, wind"


@tool(effect="read")
async def events_on(day: str) -> str:
    """What is on, on a day."""
    await asyncio.sleep(1.5)
    return f"{day}: a concert, a swim, whales"


@tool(effect="read", timeout=1.0)
async def map_of(city: str) -> str:
    """A map, from a server that hangs."""
    await asyncio.sleep(60)
    return "never"


@tool(effect="write", overlap=True)
async def book(what: str) -> str:
    """Book something."""
    await asyncio.sleep(0.25)
    return f"booked: {what}"


TOOLS = [weather, events_on, map_of, book]
INSTRUCTIONS = """\
## Using tools
When several tool calls do not depend on each other, make them all in one reply instead of one after another: they run \
at the same time.
Together: searching for several things, reading several files, asking several sources about one question.
One after another: when a call needs the result of an earlier one, or when you must see a result to decide what to do.
Example: asked to compare the weather in Paris and in Rome, call the weather tool twice in one reply; do not wait for \
the first answer before you ask for the second.
You can call tools in at most 16 replies; after that you must answer with what you have."""
"""A text of their own: the numbers of the tests and the recordings that were kept depend on it."""


def model() -> RetryingModel[ScriptedModel]:
    """The second answer breaks off after its first call, which is running by then, and is retried completely."""
    second = (
        Call("events_on", day="Sunday"),
        Call("map_of", city="Reykjavik"),
        Call("weather", city="Akureyri"),
    )
    scripted = ScriptedModel(
        [
            Say("Let me look. ", over=0.2),
            Call("weather", city="Reykjavik", after=0.1),
            Pause(0.3),
            Call("weather", city="Reykjavik"),
            Call("events_on", day="Saturday"),
            Uses(100, 20),
        ],
        [Say("And the rest.", over=0.2), second[0], Pause(0.4), Break("the connection was lost")],
        [Say("And the rest."), *second, Uses(200, 30)],
        [Call("book", what="a swim"), Call("book", what="whales"), Uses(300, 40)],
        [Say("Swim in the morning, whales at noon; both are booked.", over=0.5), Uses(400, 50)],
    )
    return RetryingModel(scripted, first_wait=0.0, jitter=lambda: 0.0)


def agent(**options: Any) -> Agent:
    settings: dict[str, Any] = {"instructions": INSTRUCTIONS, "guidance": False, **options}
    return Agent(model(), TOOLS, **settings)


def play(path: Path | None = None, sinks: Sequence[Sink | Middleware] = (), run_id: str = "the-long-run") -> Result:
    """Plays it; with a `path` it is recorded there."""
    recorders = [Recorder(path)] if path is not None else []

    async def main() -> Result:
        return await agent().run(QUESTION, run_id=run_id, sinks=[*sinks, *recorders])

    return run_virtual(main, START)
