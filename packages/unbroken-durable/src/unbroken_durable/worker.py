"""`Worker`: drives every run of a journal that can be driven, several at a time. Any number of workers, on any number
of machines, may share a journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from unbroken.agent.agent import Agent
from unbroken.clock import current_clock
from unbroken.errors import UserError
from unbroken.middleware import Middleware, RunStart
from unbroken_durable.changes import Waiter
from unbroken_durable.driving import drive
from unbroken_durable.errors import Busy, JournalUnavailable, Superseded
from unbroken_durable.journal import Journal
from unbroken_durable.records import RunRow, State
from unbroken_wires.validation import checked

LOG = logging.getLogger("unbroken.durable")

CONCURRENCY = 10
PAUSE = 0.05
"""Seconds between two looks at the journal, however often it changes."""
LOOK_AGAIN = 1.0
"""Seconds after which it looks without a change: for runs whose drivers have died, and for waiting runs whose time is
over."""
_LONGEST_PAUSE = 60.0
"""Seconds before a run that could not be driven is tried again; the first time it is one second, then twice as long."""

Happened: TypeAlias = Literal["driving", "drove", "superseded", "error", "unknown_agent", "unavailable"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a worker has done."""

    what: Happened
    """`driving`: it begins to drive a run. `drove`: as far as it goes, and `state` is how it ended. `superseded`:
    another driver took the run. `error`: the run could not be driven, and is tried again later. `unknown_agent`: runs
    are ready for an agent that this worker does not have. `unavailable`: the database cannot be reached."""
    run_id: str = ""
    agent: str = ""
    tenant: str = ""
    state: State | None = None
    seconds: float = 0.0
    words: str = ""


@checked
class Worker:
    """`agents` are those whose runs it drives, by name. At most `concurrency` runs at the same time here, and at most
    `per_tenant` of each tenant in the whole journal, if all workers are given the same number."""

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        journal: Journal,
        *,
        concurrency: int = CONCURRENCY,
        per_tenant: int | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> None:
        for name, limit in (("concurrency", concurrency), ("per_tenant", per_tenant)):
            if limit is not None and limit < 1:
                raise UserError(f"Worker({name}={limit}): give a number from 1")
        if not agents:
            raise UserError("Worker(agents={}): there is no agent; give them by name, as in {'support': agent}")
        self._agents = agents
        self._journal = journal
        self._concurrency = concurrency
        self._per_tenant = per_tenant
        self._on_progress = on_progress
        self._stop = asyncio.Event()
        self._drives: dict[str, asyncio.Task[None]] = {}
        """By run id."""
        self._later: dict[str, tuple[float, float]] = {}
        """Runs that could not be driven: when they are tried again, and after which pause."""
        self._changed: Waiter | None = None
        self._named: set[str] = set()
        """Unknown agents that were reported."""

    @property
    def active(self) -> tuple[str, ...]:
        """The ids of the runs that it drives now."""
        return tuple(self._drives)

    def stop(self) -> None:
        """It takes no new run, starts no request and no call, and `run` returns once running calls have finished."""
        self._stop.set()

    async def run(self) -> None:
        """Works until `stop`. If it is cancelled, running calls are cancelled too."""
        looking = asyncio.create_task(self._look_for_runs())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([looking, stopping], return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            looking.cancel()
            await self._drives_end()
        finally:
            stopping.cancel()
            tasks = [looking, *self._drives.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_until_idle(self) -> None:
        """Works until no run can be driven, or `stop`. What is started or answered meanwhile is driven too."""
        while not self._stop.is_set() and (await self._take_runs(orphans=True) or self._drives):
            if self._drives:
                await asyncio.wait([*self._drives.values()], return_when=asyncio.FIRST_COMPLETED)
        await self._drives_end()

    async def _drives_end(self) -> None:
        if self._drives:
            await asyncio.wait([*self._drives.values()])

    async def _look_for_runs(self) -> None:
        clock = current_clock()
        looked = -LOOK_AGAIN
        while True:
            with self._journal.listening() as self._changed:
                thorough = clock.elapsed() - looked >= LOOK_AGAIN
                try:
                    await self._take_runs(orphans=thorough)
                    if thorough:
                        looked = clock.elapsed()
                        await self._report_unknown_agents()
                except JournalUnavailable as error:
                    self._tell(Progress("unavailable", words=str(error)))
                await asyncio.sleep(PAUSE)
                await self._changed.wait(LOOK_AGAIN)

    async def _take_runs(self, *, orphans: bool) -> int:
        """Begins to drive what can be driven, as far as there is room. Returns how many."""
        free = self._concurrency - len(self._drives)
        if free <= 0 or self._stop.is_set():
            return 0
        rows = await self._journal.drivable(
            free + len(self._later) + len(self._drives),
            agents=self._agents,
            per_tenant=self._per_tenant,
            orphans=orphans,
        )
        now = current_clock().elapsed()
        taken = 0
        for row in rows:
            if taken == free or self._stop.is_set():
                break
            if row.run_id in self._drives or self._later.get(row.run_id, (0.0, 0.0))[0] > now:
                continue
            taken += 1
            task = self._drives[row.run_id] = asyncio.create_task(self._drive(row))
            task.add_done_callback(lambda _, run_id=row.run_id: self._ended(run_id))
        return taken

    def _ended(self, run_id: str) -> None:
        self._drives.pop(run_id, None)
        if self._changed is not None:
            self._changed.ring()

    async def _drive(self, row: RunRow) -> None:
        """One run, as far as it goes. No error of it leaves this."""
        clock = current_clock()
        began = clock.elapsed()
        run_id, about = row.run_id, (row.run_id, row.agent, row.tenant)
        begin = _AtStart(lambda: self._tell(Progress("driving", *about)))
        try:
            outcome = await drive(
                self._agents, self._journal, run_id, per_tenant=self._per_tenant, sinks=[begin], stop=self._stop
            )
        except Busy:
            return  # another worker was faster, or its tenant has enough
        except Superseded as error:
            self._tell(Progress("superseded", *about, seconds=clock.elapsed() - began, words=str(error)))
            return
        except Exception as error:
            pause = min(2 * self._later.get(run_id, (0.0, 0.5))[1], _LONGEST_PAUSE)
            self._later[run_id] = clock.elapsed() + pause, pause
            LOG.debug("run %s could not be driven", run_id, exc_info=error)
            words = f"{type(error).__name__}: {error}; it is tried again in {pause:g} s"
            self._tell(Progress("error", *about, seconds=clock.elapsed() - began, words=words))
            return
        self._later.pop(run_id, None)
        words = outcome.error or "; ".join(outcome.changed)
        self._tell(Progress("drove", *about, outcome.state, clock.elapsed() - began, words))

    async def _report_unknown_agents(self) -> None:
        for name in sorted(await self._journal.agents() - {*self._agents} - self._named):
            self._named.add(name)
            self._tell(Progress("unknown_agent", agent=name))

    def _tell(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)


class _AtStart(Middleware):
    """Reports that a drive has begun, and nothing else."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report

    def start(self, run: RunStart) -> Middleware:
        self._report()
        return Middleware()
