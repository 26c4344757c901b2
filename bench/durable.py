"""What a durable run costs: `make bench-durable`. The run of `runs.py` (3 calls in 20 deltas, 3 tools, then text), in
memory, recorded in a file, and in a journal in SQLite. Ratios of CPU time, measured interleaved; the median."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

from recorded_sizes import of_journals, overall
from upstream import upstream

from unbroken import Agent, connect, tool
from unbroken_durable import Journal, drive, open_journal

QUESTION = "How is the weather there?"
INSTRUCTIONS = "You are a weather service. Answer in one sentence."
Runner = Callable[[], Awaitable[str]]


@tool
async def get_weather(city: str, days: int) -> str:
    """How the weather will be in a city."""
    return f"sunny in {city} for {days} days"


def agent_at(url: str, record: Path | None = None) -> Agent:
    model = connect("openai:gpt-5", base_url=url, api_key="x")
    return Agent(model, [get_weather], INSTRUCTIONS, record=record)


def in_memory(agent: Agent) -> Runner:
    async def run() -> str:
        return (await agent.run(QUESTION)).text

    return run


def durable(agent: Agent, journal: Journal) -> Runner:
    numbers = count()

    async def run() -> str:
        run_id = await journal.start("weather", QUESTION, run_id=f"run-{next(numbers)}")
        outcome = await drive({"weather": agent}, journal, run_id)
        assert outcome.result is not None
        return outcome.result.text

    return run


async def measure(pause: float, rounds: int, times: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    with upstream(pause) as url, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        async with await open_journal(f"sqlite:///{place / 'runs.db'}") as journal:
            runners = {
                "in memory": in_memory(agent_at(url)),
                "recorded": in_memory(agent_at(url, place / "files")),
                "durable": durable(agent_at(url), journal),
            }
            for run in runners.values():
                for _ in range(3):
                    await run()
            gc.collect()
            gc.freeze()
            cpu: dict[str, list[float]] = {name: [] for name in runners}
            wall: dict[str, list[float]] = {name: [] for name in runners}
            for _ in range(rounds):
                for name, run in runners.items():
                    began, clock = time.process_time(), time.perf_counter()
                    for _ in range(times):
                        text = await run()
                        assert text.startswith("It is sunny"), text
                    cpu[name].append((time.process_time() - began) / times)
                    wall[name].append((time.perf_counter() - clock) / times)
            if not pause:  # the other runs are too few: a database grows by pages
                await print_bytes(journal, place, 3 + rounds * times)
            return cpu, wall


async def print_bytes(journal: Journal, place: Path, runs: int) -> None:
    recorded = statistics.mean(file.stat().st_size for file in (place / "files").iterdir())
    await journal.work(lambda database: database.query("PRAGMA wal_checkpoint(TRUNCATE)"))
    stored = (place / "runs.db").stat().st_size / runs
    print(f"  bytes: recording {recorded:.0f}, journal {stored:.0f}, ratio {stored / recorded:.2f}   at most 1.2")


def print_sizes() -> None:
    print("All that a journal stores of a run, against a recording: at most 1.2")
    found = of_journals()
    for kind, (recording, journal) in found.items():
        print(f"  {kind:24} {recording:8.0f} {journal:8.0f} bytes {journal / recording:6.2f}")
    print(f"  {'geometric mean':42} {overall(found.values()):11.2f}")


def ratio(spent: dict[str, list[float]], one: str) -> float:
    return statistics.median(a / b for a, b in zip(spent[one], spent["in memory"], strict=True))


def main() -> None:
    for title, pause, rounds, times, most in (
        ("as fast as it goes", 0.0, 12, 20, "at most 1.8"),
        ("20 ms per chunk", 0.02, 5, 2, "at most 1.1"),
    ):
        print(title)
        cpu, wall = asyncio.run(measure(pause, rounds, times))
        for name in cpu:
            spent, took = statistics.median(cpu[name]) * 1000, statistics.median(wall[name]) * 1000
            print(f"  {name:9} {spent:7.2f} ms CPU {took:8.1f} ms")
        print(f"  durable / in memory, CPU  {ratio(cpu, 'durable'):.2f}   {most}")
        print(f"  durable / in memory, time {ratio(wall, 'durable'):.2f}")
        print(f"  recorded / in memory, CPU {ratio(cpu, 'recorded'):.2f}")
    print_sizes()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()
