"""How soon results are there: `make bench`. Wall clock, so the load of the machine is printed; the median of five.

Four reads written 250 ms apart, whose tools take 1.0, 0.1, 0.1 and 0.1 s; how long after its last argument byte a tool
starts; sixteen synchronous tools of 100 ms at once. The model is scripted, behind a real server on this machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from unbroken import Agent, CallFinished, CallReady, CallStarted, Model, Request, TextAdded, connect, tool
from unbroken.models.scripted import Answer, Call, Say
from unbroken_testing import ScriptedServer
from unbroken_wires.deltas import Delta

TIMES = 5
KEY = "not-a-real-key"


@tool(effect="read")
async def fetch(name: str, seconds: float) -> str:
    """Fetch something that takes its time."""
    await asyncio.sleep(seconds)
    return name


@tool(effect="read")
def compute(number: int) -> int:
    """Compute something that takes 100 ms."""
    time.sleep(0.1)
    return number


class Watched:
    """A model that notes when each call was complete, that is when its last byte had been read."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.name = model.name
        self.ready: dict[str, float] = {}

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in self._model.stream(request):
            for delta in deltas:
                if isinstance(delta, CallReady):
                    self.ready[delta.call.id] = time.perf_counter()
            yield deltas


async def four_reads() -> float:
    """Seconds from the first byte of the answer to the last of four results."""
    steps = [Call("fetch", name=f"{n}", seconds=1.0 if n == 0 else 0.1, after=0.25 if n else 0.0) for n in range(4)]
    script: list[Answer] = [[Say("Looking."), *steps], "Done."]
    async with ScriptedServer(*script) as server:
        agent = Agent(connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY), tools=[fetch])
        first = last = 0.0
        async for event in agent.stream("Go."):
            if isinstance(event, TextAdded) and not first:
                first = time.perf_counter()
            elif isinstance(event, CallFinished):
                last = time.perf_counter()
        return last - first


async def start_after_last_byte() -> float:
    """The longest of three."""
    steps = [Call("fetch", name=f"{n}", seconds=0.0, after=0.05) for n in range(3)]
    async with ScriptedServer([Say("Looking."), *steps], "Done.") as server:
        model = Watched(connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY))
        started: dict[str, float] = {}
        async for event in Agent(model, tools=[fetch]).stream("Go."):
            if isinstance(event, CallStarted):
                started[event.call_id] = time.perf_counter()
        return max(started[id] - ready for id, ready in model.ready.items())


async def sixteen_sync_tools() -> float:
    async with ScriptedServer([Call("compute", number=n) for n in range(16)], "Done.") as server:
        agent = Agent(connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY), tools=[compute])
        first = last = 0.0
        async for event in agent.stream("Go."):
            if isinstance(event, CallStarted) and not first:
                first = time.perf_counter()
            elif isinstance(event, CallFinished):
                last = time.perf_counter()
        return last - first


def show(title: str, measure: Callable[[], Awaitable[float]], wanted: str) -> None:
    async def one() -> float:
        return await measure()

    asyncio.run(one())
    seconds = [asyncio.run(one()) for _ in range(TIMES)]
    print(f"  {title:48} {statistics.median(seconds):7.4f} s   {wanted}")


def main() -> None:
    print(f"Wall clock, median of {TIMES}; load of this machine: {os.getloadavg()[0]:.2f}")
    show("four reads, from the first byte to all results", four_reads, "at most 1.05 (others: 1.76)")
    show("a tool's start after its last argument byte", start_after_last_byte, "at most 0.010")
    show("16 synchronous tools of 100 ms", sixteen_sync_tools, "at most 0.13")


if __name__ == "__main__":
    main()
