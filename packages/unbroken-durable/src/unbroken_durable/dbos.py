# type: ignore - the package dbos is not in the environment in which types are checked, and would be this file there
"""Durable runs on DBOS: a queue of drives, in PostgreSQL or SQLite.

Each drive is a workflow without steps; if it is recovered it begins again, and the journal knows how far it had come.
Workers also look for runs and calls whose worker has died, which DBOS itself leaves until that executor starts again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, TypeAlias, Unpack

from unbroken.agent.agent import Agent
from unbroken.agent.prompts import Prompt
from unbroken.clock import current_clock
from unbroken.errors import needs_extra
from unbroken.tools.toolbox import Source
from unbroken_durable.driving import drive
from unbroken_durable.errors import AlreadyAnswered, Busy, JournalUnavailable, Superseded
from unbroken_durable.jobs import Job, JobLimits, orphaned_jobs
from unbroken_durable.journal import Journal
from unbroken_durable.records import RunRow, StartOptions
from unbroken_durable.remote_tools import JobRunner, RemoteTools

try:
    from dbos import DBOS, DBOSClient, EnqueueOptions
    from sqlalchemy.exc import DBAPIError
except ImportError:
    raise needs_extra("durable runs on DBOS", "the package dbos", "dbos") from None

LOG = logging.getLogger("unbroken.durable")

Enqueuer: TypeAlias = DBOSClient | type[DBOS]
"""What puts work into a queue: a `DBOSClient`, or `DBOS` in a process where it was launched."""

QUEUE = "unbroken"
"""The queue of drives. A tool's `queue` is the queue of its calls."""
LOOK = 5.0
"""Seconds between two looks for work whose worker has died."""
POLL = 0.5
"""Seconds between two looks of DBOS at its queues."""
GRACE = 30.0
"""Seconds for which a worker that stops waits for running calls."""
_DRIVE, _CALL = "unbroken-drive", "unbroken-call"
_AT_WORK = ("ENQUEUED", "DELAYED", "PENDING")
"""The states of a workflow that has not ended."""
_ANY_NUMBER = 1_000_000
_NO_TENANT = "-"
"""DBOS does not take an empty partition key."""


# Starting, answering, cancelling


async def start_run(
    client: Enqueuer,
    journal: Journal,
    agent: str,
    prompt: Prompt,
    *,
    queue: str = QUEUE,
    **options: Unpack[StartOptions],
) -> str:
    """Starts a run, puts it into the queue, and returns its id. The same id starts nothing twice; a run that failed is
    driven again."""
    id = await journal.start(agent, prompt, **options)
    await wake_run(client, journal, id, queue=queue)
    return id


async def answer_run(
    client: Enqueuer, journal: Journal, run_id: str, answers: Mapping[str, object], *, queue: str = QUEUE
) -> None:
    """Stores answers to calls that the run waits for (see `Journal.answer`), and puts it into the queue."""
    try:
        await journal.answer(run_id, answers)
    except AlreadyAnswered:  # the process that answered may have died before this
        await wake_run(client, journal, run_id, queue=queue)
        raise
    await wake_run(client, journal, run_id, queue=queue)


async def wake_run(client: Enqueuer, journal: Journal, run_id: str, *, queue: str = QUEUE) -> None:
    """Has the run driven: after `journal.answer`, for example. A run that cannot be driven stays as it is."""
    row = await journal.run(run_id)
    if not _can_be_driven(row):  # its driver takes answers that came meanwhile; if that one has died, a worker finds it
        return
    try:
        await _enqueue_drive(client, journal, row, queue)
    except DBAPIError as error:
        LOG.warning(
            "run %s is stored, and DBOS could not be told (%s); the next worker that looks finds it. If no worker was "
            "ever launched with this system database, its tables do not exist yet: start one with run_worker",
            run_id,
            " ".join(str(error.orig).split()),
        )


def _can_be_driven(row: RunRow) -> bool:
    if row.state == "waiting":
        return row.expires is not None and row.expires <= current_clock().now()
    return row.state in ("ready", "failed")


async def cancel_run(client: Enqueuer, journal: Journal, run_id: str) -> None:
    """Ends the run, wherever it is driven. What is in the queue for it does nothing then."""
    await journal.cancel(run_id)


async def _enqueue_drive(
    client: Enqueuer, journal: Journal, row: RunRow, queue: str, delay: float | None = None
) -> None:
    """The id has the number of drives so far: the next one exists once, even if several processes enqueue it."""
    options: EnqueueOptions = {
        "workflow_name": _DRIVE,
        "queue_name": queue,
        "workflow_id": _drive_id(journal, row, "" if delay is None else "-expiry"),
        "queue_partition_key": row.tenant or _NO_TENANT,
    }
    if delay is not None:
        options["delay_seconds"] = delay
    await _enqueue(client, options, row.run_id)


def _drive_id(journal: Journal, row: RunRow, suffix: str = "", before: int = 0) -> str:
    return f"unbroken-run-{journal.id}-{row.run_id}-{row.drives - before}{suffix}"


async def _enqueue(client: Enqueuer, options: EnqueueOptions, argument: str) -> None:
    """Unless it is in the queue or at work. DBOS drops a workflow whose id was used before: if that one has ended
    without doing the work, because the database was away for example, the next one has a number behind its id."""
    options["workflow_id"] = (await _used(client, options["workflow_id"]))[0]
    if isinstance(client, DBOSClient):
        await client.enqueue_async(options, argument)
    else:
        await client.enqueue_workflow_with_options_async(options, argument)


async def _used(client: Enqueuer, id: str) -> tuple[str, bool]:
    """The first of this id and its numbered successors that has not ended, and whether there is one with it."""
    for number in count():
        tried = id if number == 0 else f"{id}.{number}"
        found = await client.list_workflows_async(workflow_ids=[tried], load_input=False, load_output=False)
        if not found or found[0].status in _AT_WORK:
            return tried, bool(found)
    raise AssertionError("count() never ends")


# Workers

_serving: dict[str, Callable[[str], Awaitable[str]]] = {}
"""What this process does, by the name of the workflow. DBOS has workflows as functions of a module."""


@DBOS.workflow(name=_DRIVE)
async def _drive(run_id: str) -> str:
    return await _serving[_DRIVE](run_id)


@DBOS.workflow(name=_CALL)
async def _call(key: str) -> str:
    return await _serving[_CALL](key)


async def run_worker(
    agents: Mapping[str, Agent[Any, Any]],
    journal: Journal,
    *,
    queue: str = QUEUE,
    drives: int = 100,
    per_tenant: int | None = None,
    grace: float = GRACE,
) -> None:
    """Launches DBOS and drives runs until it is cancelled. Make `DBOS(config=…)` before. `drives`: how many runs at the
    same time. `per_tenant`: how many runs of a tenant at the same time, on all workers. When it is cancelled, it waits
    up to `grace` seconds for calls that are running; other workers continue its runs. DBOS stores the limits with the
    queue: give all its workers the same, because those of the worker that starts last count for all."""
    worker = _DriveWorker(agents, journal, queue)
    limits = {"worker_concurrency": drives, "partition_concurrency": per_tenant or _ANY_NUMBER}
    await _work(_DRIVE, worker, queue, limits, grace)


async def run_tool_worker(
    tools: Source,
    journal: Journal,
    *,
    queue: str,
    jobs: int = 100,
    per_queue: int | None = None,
    per_tool: int | Mapping[str, int] | None = None,
    per_tenant: int | None = None,
    grace: float = GRACE,
    deps: object = None,
) -> None:
    """Launches DBOS and runs the calls of tools with this queue until it is cancelled. Make `DBOS(config=…)` before.
    `jobs`: how many this worker runs at the same time. `per_queue`, `per_tool`, `per_tenant`: how many all workers of
    the queue run at the same time. Give all of them the same, `jobs` too: DBOS stores them with the queue. Tools get
    `deps` as `context.deps`. When it is cancelled, it waits up to `grace` seconds for calls that are running."""
    worker = _JobWorker(JobRunner(journal, tools, JobLimits(per_queue, per_tool, per_tenant), deps), journal, queue)
    most = per_queue or _ANY_NUMBER
    limits = {
        "worker_concurrency": min(jobs, most),
        "global_concurrency": per_queue,
        "partition_concurrency": min(per_tenant or _ANY_NUMBER, most),
    }
    await _work(_CALL, worker, queue, limits, grace)


async def _work(
    name: str, worker: _DriveWorker | _JobWorker, queue: str, limits: Mapping[str, int | None], grace: float
) -> None:
    _serving[name] = worker.run
    DBOS.listen_queues([queue])
    DBOS.launch()  # on this loop, so that workflows run on it
    try:
        await DBOS.register_queue_async(queue, **limits, polling_interval_sec=POLL, on_conflict="always_update")
        while True:
            try:
                await worker.take_orphans()
            except Exception as error:  # noqa: BLE001 - of either database: they come back
                LOG.warning("work whose worker has died cannot be looked for now: %s", error)
            await asyncio.sleep(LOOK)
    finally:
        await asyncio.shield(_stop(worker, grace))


async def _stop(worker: _DriveWorker | _JobWorker, grace: float) -> None:
    worker.stop.set()
    end = current_clock().elapsed() + grace
    while worker.active and current_clock().elapsed() < end:
        await asyncio.sleep(0.05)
    await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)


class _DriveWorker:
    def __init__(self, agents: Mapping[str, Agent[Any, Any]], journal: Journal, queue: str) -> None:
        self.stop = asyncio.Event()
        self.active = 0
        self._agents = agents
        self._journal = journal
        self._queue = queue

    async def run(self, run_id: str) -> str:
        self.active += 1
        try:
            return await self._run(run_id)
        finally:
            self.active -= 1

    async def _run(self, run_id: str) -> str:
        while True:
            try:
                outcome = await drive(self._agents, self._journal, run_id, stop=self.stop)
                break
            except (Busy, Superseded) as error:
                LOG.info("%s", error)
                await self._journal.changed(LOOK)
        # Without the context of this workflow: it would become a step of it, and be skipped if DBOS recovers it.
        await asyncio.create_task(self._enqueue_next(run_id), context=Context())
        return outcome.state

    async def _enqueue_next(self, run_id: str) -> None:
        row = await self._journal.run(run_id)
        if row.state == "ready":  # the worker stops, or there were answers meanwhile
            await _enqueue_drive(DBOS, self._journal, row, self._queue)
        elif row.state == "waiting" and row.expires is not None:
            left = max(0.0, row.expires - current_clock().now())
            await _enqueue_drive(DBOS, self._journal, row, self._queue, left)

    async def take_orphans(self) -> None:
        """Enqueues runs whose driver has died, and those that were stored and never enqueued. Workflows of the dead
        driver are cancelled: they would count for the limit of the tenant."""
        for row in await self._journal.drivable(agents=self._agents):
            if row.state == "running":
                for suffix in ("", "-expiry"):
                    await _cancel(_drive_id(self._journal, row, suffix, before=1))
            await _enqueue_drive(DBOS, self._journal, row, self._queue)


class _JobWorker:
    def __init__(self, runner: JobRunner, journal: Journal, queue: str) -> None:
        self.stop = asyncio.Event()
        self.active = 0
        self._runner = runner
        self._journal = journal
        self._queue = queue

    async def run(self, key: str) -> str:
        self.active += 1
        try:
            return await self._run(key)
        finally:
            self.active -= 1

    async def _run(self, key: str) -> str:
        while True:
            try:
                ended = await self._runner.run(key)
            except JournalUnavailable as error:  # it has not begun
                LOG.warning("job %s: %s", key, error)
                continue
            if ended != "full":
                return ended
            await self._journal.changed(1)

    async def take_orphans(self) -> None:
        """Enqueues calls whose worker has died: their tool's `after_crash` decides what is done with them."""
        for key, token, tenant in await self._journal.work(partial(orphaned_jobs, queue=self._queue)):
            LOG.warning("job %s: its worker has died", key)
            await _cancel(_job_id(self._journal, key, token - 1))
            await _enqueue_job(DBOS, self._journal, key, self._queue, tenant, token)


async def _cancel(id: str) -> None:
    with suppress(Exception):  # it has just ended
        tried, exists = await _used(DBOS, id)
        if exists:
            await DBOS.cancel_workflows_async([tried])


# Tools


class DBOSTools(RemoteTools):
    """Middleware that sends the calls of tools that have a queue to workers of the DBOS queue with this name (see
    `run_tool_worker`): `Agent(…, middleware=[DBOSTools(DBOS, journal)])`."""

    def __init__(self, client: Enqueuer, journal: Journal) -> None:
        super().__init__(journal)
        self._client = client

    async def submit(self, job: Job) -> None:
        await _enqueue_job(self._client, self.journal, job.key, job.queue, job.tenant, 0)


def _job_id(journal: Journal, key: str, token: int) -> str:
    return f"unbroken-job-{journal.id}-{key}-{token}"


async def _enqueue_job(client: Enqueuer, journal: Journal, key: str, queue: str, tenant: str, token: int) -> None:
    options: EnqueueOptions = {
        "workflow_name": _CALL,
        "queue_name": queue,
        "workflow_id": _job_id(journal, key, token),
        "queue_partition_key": tenant or _NO_TENANT,
    }
    await _enqueue(client, options, key)
