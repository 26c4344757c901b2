"""Workers that are killed, in processes of their own: plain ones, and those of Temporal. Each drives runs of the agent
`payer` and allows what waits, until it is killed."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import Child, Tell, load_first
from durable_runs import OFTEN, QUESTION, Ledger, agents_of, drive_to_the_end, kill_at_append
from temporalio.client import Client

from unbroken import Agent, Allow
from unbroken_durable import AlreadyAnswered, Journal, Superseded, Worker, open_journal, temporal
from unbroken_durable.records import Append

LOST_AFTER = 3.0
"""Seconds without a heartbeat after which Temporal gives a run to another worker."""

SUPERSEDED = 33

load_first(__name__)


class PlainWorkers:
    """Those of `unbroken worker`: they look for runs in the journal."""

    async def start(self, journal: Journal, run_id: str) -> None:
        await journal.start("payer", QUESTION, run_id=run_id)

    async def answer(self, journal: Journal, run_id: str, answers: Mapping[str, object]) -> None:
        await journal.answer(run_id, answers)

    async def work(self, journal: Journal, agents: Mapping[str, Agent]) -> None:
        await Worker(agents, journal).run()

    async def end_of(self, journal: Journal, run_id: str) -> str:
        """How the run has ended, as the process that wakes the workers sees it."""
        return (await journal.run(run_id)).state


class TemporalWorkers(PlainWorkers):
    """Temporal gives them the runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self, journal: Journal, run_id: str) -> None:
        await temporal.start_run(self._client, journal, "payer", QUESTION, run_id=run_id, lost_after=LOST_AFTER)

    async def answer(self, journal: Journal, run_id: str, answers: Mapping[str, object]) -> None:
        await temporal.answer_run(self._client, journal, run_id, answers, lost_after=LOST_AFTER)

    async def work(self, journal: Journal, agents: Mapping[str, Agent]) -> None:
        await temporal.run_worker(self._client, agents, journal)

    async def end_of(self, journal: Journal, run_id: str) -> str:
        return await self._client.get_workflow_handle(temporal.workflow_id(journal, run_id)).result()


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the workers find their runs and their ledger."""

    url: str
    folder: Path
    address: str = ""
    """Of the Temporal server; without one they are plain workers."""

    @property
    def name(self) -> str:
        return "temporal" if self.address else "plain"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger.db")

    async def connect(self) -> PlainWorkers:
        return TemporalWorkers(await Client.connect(self.address)) if self.address else PlainWorkers()

    def worker(self, kill: tuple[int, bool] | None = None) -> Child:
        """Starts one; `kill`: see `kill_at_each_append`."""
        return Child(_work, self, kill)

    def driver(self, run_id: str) -> Child:
        """Starts a process that starts this run and drives it slowly; it exits with `SUPERSEDED` if it loses the
        run."""
        return Child(_drive_slowly, self, run_id)

    def killed(self) -> set[int]:
        """The numbers of the runs at whose append a worker was killed."""
        return {int(each.name) for each in self.folder.glob("killed/*")}


def _work(tell: Tell, engine: Engine, kill: tuple[int, bool] | None) -> None:
    if kill is not None:
        kill_at_each_append(engine.folder / "killed", *kill)
    asyncio.run(_work_until_killed(tell, engine))


def kill_at_each_append(folder: Path, appends: int, after: bool) -> None:
    """Each run has one append that kills the process that drives it, before or after it is stored; another one in the
    next run, so that `appends` runs in a row have a kill at each. The folder has a file for each that was killed."""
    folder.mkdir(exist_ok=True)

    def is_due(each: Append) -> bool:
        if each.position != each.run % appends:
            return False
        marker = folder / str(each.run)
        again = marker.exists()
        marker.touch()
        return after or not again

    kill_at_append(is_due, after=after)


async def _work_until_killed(tell: Tell, engine: Engine) -> None:
    workers = await engine.connect()
    async with await open_journal(engine.url, deaths=OFTEN) as journal:
        working = asyncio.create_task(workers.work(journal, agents_of(engine.ledger)))
        tell("it works")
        while not working.done():
            await allow_what_waits(workers, journal)
            await journal.changed(0.2)
            await asyncio.sleep(0.02)
        working.result()


async def allow_what_waits(workers: PlainWorkers, journal: Journal) -> None:
    for row in await journal.runs(state="waiting"):
        answers: dict[str, Any] = {call.id: Allow() for call in row.pending}
        with suppress(AlreadyAnswered):
            await workers.answer(journal, row.run_id, answers)


def _drive_slowly(tell: Tell, engine: Engine, run_id: str) -> None:
    async def main() -> None:
        async with await open_journal(engine.url, deaths=OFTEN) as journal:
            await journal.start("payer", QUESTION, run_id=run_id)
            tell("it drives")
            await drive_to_the_end(journal, agents_of(engine.ledger, pause=0.3), run_id)

    try:
        asyncio.run(main())
    except Superseded:
        sys.exit(SUPERSEDED)
