"""Durable runs, some of which end every process that drives them, as an out-of-memory or a segmentation fault would.

Workers drive them under a supervisor that starts a new worker for each one that dies. `check_poison` reads the journal:
the bad runs have failed with their typed error after a bounded number of deaths, all other runs are answered, and no
write of theirs is unknown because of it. Only deaths before a bad run is known as one can reach the writes of others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from child_processes import Child, Tell, load_first

from torture.checker import Report
from torture.rounds import write_violations
from unbroken import Agent, ScriptedModel, tool
from unbroken.agent.recorded_state import ended_result
from unbroken.models.scripted import Answer, Call
from unbroken.tools.tool import Effect
from unbroken_durable import Journal, Worker, open_journal
from unbroken_durable.deaths import DEATHS
from unbroken_wires.messages import Assistant, Request

load_first(__name__)

WORKERS = 2
CONCURRENCY = 10
WRITES = 3
EFFECTS: tuple[Effect, ...] = ("read", "write")
"""Of the tools that end their process: a read runs again, and after a write the model asks for another one."""


def script(request: Request) -> Answer:
    """Some writes, one after another."""
    said = sum(isinstance(message, Assistant) for message in request.messages)
    return "Paid." if said >= WRITES else [Call("transfer", number=said)]


def agents() -> dict[str, Agent]:
    @tool(effect="write")
    async def transfer(number: int) -> str:
        """Transfers money."""
        await asyncio.sleep(0.03)
        return f"done {number}"

    def bad(effect: Effect) -> Agent:
        @tool(effect=effect)
        async def crash() -> str:
            """Ends the process."""
            os.kill(os.getpid(), signal.SIGKILL)
            return "still here"

        return Agent(ScriptedModel(lambda request: [Call("crash")]), [crash])

    return {"payer": Agent(ScriptedModel(script), [transfer]), **{f"bad-{effect}": bad(effect) for effect in EFFECTS}}


def work(tell: Tell, url: str, deaths: int) -> None:
    """One worker, until it is killed."""

    async def main() -> None:
        async with await open_journal(url, deaths=deaths) as journal:
            tell("ready")
            await Worker(agents(), journal, concurrency=CONCURRENCY).run()

    asyncio.run(main())


def torture_poison(
    folder: Path,
    *,
    bad: Sequence[Effect] = EFFECTS,
    others: int = 30,
    deaths: int = DEATHS,
    known: bool,
    seconds: float = 90.0,
) -> Report:
    """Runs that end their processes, and others; until all have ended, or the time is over. `known`: the others are
    started when the bad runs have been driven as often as is needed to know them."""
    folder.mkdir(parents=True, exist_ok=True)
    url, end = f"sqlite:///{folder / 'runs.db'}", time.monotonic() + seconds
    report = asyncio.run(_torture(url, bad, others, deaths, known, end))
    write_violations(report, folder)
    return report


async def _torture(url: str, bad: Sequence[Effect], others: int, deaths: int, known: bool, end: float) -> Report:
    report, workers = Report(), list[Child]()
    async with await open_journal(url, deaths=deaths) as journal:
        for effect in bad:
            await journal.start(f"bad-{effect}", "Go.", run_id=f"bad-{effect}")
        left = others
        try:
            while time.monotonic() < end:
                alive = [worker for worker in workers if worker.is_alive]
                report.counts["killed"] += len(workers) - len(alive)
                workers = [*alive, *(Child(work, url, deaths) for _ in range(WORKERS - len(alive)))]
                rows = await journal.runs()
                if left and (not known or all(row.drives > deaths or row.state == "failed" for row in rows)):
                    for left in range(others - 1, -1, -1):
                        await journal.start("payer", "Pay.", run_id=f"run-{left}")
                elif not left and all(row.state in ("answered", "failed") for row in rows):
                    break
                await asyncio.sleep(0.05)
        finally:
            for worker in workers:
                worker.kill()
        report.counts["start"] = others + len(bad)
        await check_poison(report, journal, deaths * len(bad), known)
    return report


async def check_poison(report: Report, journal: Journal, shared: int, known: bool) -> None:
    """`shared`: how many workers may die with other runs in them, and as many without."""
    harmed = 0
    if report.counts["killed"] > 2 * shared:
        report.add("endless", "the workers", f"{report.counts['killed']} of them died, at most {2 * shared} may")
    for row in await journal.runs():
        if row.agent.startswith("bad-"):
            if row.state != "failed" or not row.error.startswith("DriversDied: "):
                report.add("endless", row.run_id, f"it is {row.state} after {row.drives} drives: {row.error}")
        elif row.state != "answered":
            report.add("unfinished", row.run_id, f"it is {row.state} after {row.drives} drives: {row.error}")
        else:
            calls = ended_result(await journal.recording(row.run_id)).calls
            harmed += sum(not call.result.text.startswith("done") for call in calls)
    report.counts["info"] = harmed
    if harmed > (0 if known else shared * (CONCURRENCY - 1)):
        report.add("harmed", "the others", f"{harmed} writes of theirs are unknown")
