"""Durable runs on Temporal: the engine wakes, the journal remembers.

A workflow for each run starts one heartbeating activity after another, each of them a `drive`. Between them it waits
for a signal (there are answers) or a timer (the time for answers is over). Only the run's id travels.
"""

# pyright: basic, reportMissingImports=false
# temporalio is an extra of its own, and not in the environment in which the types are checked.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from unbroken.agent.agent import Agent
from unbroken.agent.prompts import Prompt
from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError, UserError, needs_extra
from unbroken.tools.toolbox import Source
from unbroken_durable.driving import drive
from unbroken_durable.errors import AlreadyAnswered, Busy, Superseded, UnknownRun
from unbroken_durable.jobs import Job, JobLimits
from unbroken_durable.journal import Journal
from unbroken_durable.records import StartOptions
from unbroken_durable.remote_tools import JobRunner, RemoteTools
from unbroken_durable.temporal_workflows import (
    AGENT,
    CALL,
    CANCEL,
    CHECK,
    DRIVE,
    LOST_AFTER,
    STATE,
    TENANT,
    DriveReport,
    JobWorkflow,
    RunInput,
    RunWorkflow,
)

try:
    from temporalio import activity
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
    from temporalio.client import Client, WorkflowExecutionStatus
    from temporalio.common import (
        SearchAttributePair,
        TypedSearchAttributes,
        WorkflowIDConflictPolicy,
        WorkflowIDReusePolicy,
    )
    from temporalio.exceptions import ApplicationError
    from temporalio.service import RPCError, RPCStatusCode
    from temporalio.worker import Worker
except ImportError:
    raise needs_extra("durable runs on Temporal", "the package temporalio", "temporal") from None

LOG = logging.getLogger("unbroken.durable")
T = TypeVar("T")

TASK_QUEUE = "unbroken"
"""The task queue of the workers that drive runs. A tool's `queue` is the task queue of the workers that run it."""
LOOK = 5.0
"""Seconds between two looks of a worker for runs that nobody has woken: answered by `journal.answer`, for example."""
GRACE = 30.0
"""Seconds for which a worker that stops waits for running calls."""
PATIENCE = 60.0
"""Seconds for which a Temporal server that cannot be reached is tried again."""
_MOST = 1000
"""Ready runs that a worker looks at. Some of them may not be for it to wake."""
_STICKY = timedelta(seconds=2)
"""For so long a workflow waits for the worker that it was on; by default 10 s. Its history is short: another worker has
it at once."""
_THROTTLE = timedelta(seconds=0.5)
"""`_Heartbeat` sends one in every quarter of `lost_after`; by default the SDK would hold them back for four fifths."""

# Starting, answering, cancelling


def workflow_id(journal: Journal, run_id: str) -> str:
    """The id of the workflow that drives a run. The journal's id is in it: others may have runs of the same id."""
    return f"unbroken-run-{journal.id}-{run_id}"


async def start_run(
    client: Client,
    journal: Journal,
    agent: str,
    prompt: Prompt,
    *,
    task_queue: str = TASK_QUEUE,
    lost_after: float = LOST_AFTER,
    search_attributes: bool = True,
    **options: Unpack[StartOptions],
) -> str:
    """Starts a run and its workflow, and returns the run's id. The same id starts nothing twice; a run that failed is
    driven again. A worker that sends no heartbeat for `lost_after` seconds loses the run to another one."""
    id = await journal.start(agent, prompt, **options)
    given = RunInput(id, lost_after, search_attributes)
    await _start_workflow(client, journal, given, agent, options.get("tenant", ""), task_queue)
    return id


async def answer_run(
    client: Client,
    journal: Journal,
    run_id: str,
    answers: Mapping[str, object],
    *,
    task_queue: str = TASK_QUEUE,
    lost_after: float = LOST_AFTER,
    search_attributes: bool = True,
) -> None:
    """Stores answers to calls that the run waits for (see `Journal.answer`), and wakes its workflow."""
    try:
        await journal.answer(run_id, answers)
    except AlreadyAnswered:  # the process that answered may have died before the signal
        await wake_run(
            client, journal, run_id, task_queue=task_queue, lost_after=lost_after, search_attributes=search_attributes
        )
        raise
    await wake_run(
        client, journal, run_id, task_queue=task_queue, lost_after=lost_after, search_attributes=search_attributes
    )


async def wake_run(
    client: Client,
    journal: Journal,
    run_id: str,
    *,
    task_queue: str = TASK_QUEUE,
    lost_after: float = LOST_AFTER,
    search_attributes: bool = True,
) -> None:
    """Has the run driven now: after `journal.answer`, or if it has no workflow yet."""
    row = await journal.run(run_id)
    try:
        await client.get_workflow_handle(workflow_id(journal, run_id)).signal(RunWorkflow.wake)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        given = RunInput(run_id, lost_after, search_attributes)
        await _start_workflow(client, journal, given, row.agent, row.tenant, task_queue)


async def cancel_run(client: Client, journal: Journal, run_id: str) -> None:
    """Ends the run, wherever it is driven, and its workflow. If `journal.cancel` has ended the run, only that."""
    try:
        await journal.cancel(run_id)
    except UserError:
        if (await journal.run(run_id)).state != "cancelled":
            raise
    with suppress(RPCError):  # there is none, or it has ended: the run is cancelled in any case
        await client.get_workflow_handle(workflow_id(journal, run_id)).cancel()


async def _start_workflow(
    client: Client, journal: Journal, given: RunInput, agent: str, tenant: str, task_queue: str
) -> None:
    shown: list[SearchAttributePair[Any]] = []
    if given.search_attributes:
        shown = [SearchAttributePair(AGENT, agent), SearchAttributePair(STATE, "ready")]
        shown += [SearchAttributePair(TENANT, tenant)] if tenant else []

    async def start() -> None:
        await client.start_workflow(
            RunWorkflow.run,
            given,
            id=workflow_id(journal, given.run_id),
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            search_attributes=TypedSearchAttributes(shown),
        )

    try:
        await _patiently(start)
    except RPCError as error:
        if not shown or error.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        await add_search_attributes(client)
        await _patiently(start)


async def add_search_attributes(client: Client) -> None:
    """Makes the search attributes UnbrokenAgent, UnbrokenTenant and UnbrokenState known to the namespace. `start_run`
    and `run_worker` do that if need be."""
    kind = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    wanted = {key.name: kind for key in (AGENT, TENANT, STATE)}
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            names = ", ".join(wanted)
            raise UserError(
                f"the search attributes {names} cannot be added to namespace {client.namespace!r} ({error.message}): "
                f"add them as keywords with Temporal's own tools, or use search_attributes=False"
            ) from None


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Asks again while the server cannot be reached."""
    clock = current_clock()
    began = clock.elapsed()
    while True:
        try:
            return await ask()
        except RPCError as error:
            passing = error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED)
            if not passing or clock.elapsed() - began > PATIENCE:
                raise
            await asyncio.sleep(0.5)


# Workers


async def run_worker(
    client: Client,
    agents: Mapping[str, Agent[Any, Any]],
    journal: Journal,
    *,
    task_queue: str = TASK_QUEUE,
    drives: int = 100,
    per_tenant: int | None = None,
    grace: float = GRACE,
    search_attributes: bool = True,
) -> None:
    """Drives runs until it is cancelled. `drives`: how many at the same time. `per_tenant`: how many runs of a tenant
    may be active at the same time, on all workers. When it is cancelled, it waits up to `grace` seconds for calls that
    are running; other workers continue its runs."""
    if search_attributes:
        await _patiently(lambda: add_search_attributes(client))
    activities = _DriveActivities(agents, journal, per_tenant)
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[RunWorkflow],
        activities=[activities.drive, activities.cancel],
        max_concurrent_activities=drives,
        graceful_shutdown_timeout=timedelta(seconds=grace),
        sticky_queue_schedule_to_start_timeout=_STICKY,
        max_heartbeat_throttle_interval=_THROTTLE,
    )
    waking = asyncio.create_task(_wake_ready(client, agents, journal, task_queue, search_attributes))
    try:
        await worker.run()
    finally:
        waking.cancel()


async def _wake_ready(
    client: Client, agents: Mapping[str, Agent[Any, Any]], journal: Journal, task_queue: str, search_attributes: bool
) -> None:
    """Wakes runs that have been ready for a while, and those that were cancelled, so that their workflows end: the
    process that answered, started or cancelled them did not reach Temporal, or does not use it."""
    woken: dict[str, float] = {}
    cancelled = current_clock().now() - CHECK.total_seconds()
    while True:
        await asyncio.sleep(LOOK)
        now = current_clock().now()
        try:
            ready = {row.run_id: row.updated for row in await journal.drivable(_MOST, agents=agents, orphans=False)}
            ended = await journal.cancelled_since(cancelled - LOOK)
        except UnbrokenError as error:
            LOG.warning("runs that are ready cannot be woken now: %s", error)
            continue
        cancelled = now
        woken = {run_id: updated for run_id, updated in woken.items() if ready.get(run_id) == updated}
        for run_id, updated in ready.items():
            if run_id in woken or now - updated <= LOOK:
                continue
            try:
                await wake_run(client, journal, run_id, task_queue=task_queue, search_attributes=search_attributes)
                woken[run_id] = updated
            except (RPCError, UnbrokenError) as error:
                LOG.warning("run %s is ready and cannot be woken now: %s", run_id, error)
        for run_id in ended:
            with suppress(RPCError):  # as a rule its workflow has ended
                await client.get_workflow_handle(workflow_id(journal, run_id)).signal(RunWorkflow.wake)


async def run_tool_worker(
    client: Client,
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
    """Runs the calls of tools with this queue until it is cancelled. `jobs`: how many this worker runs at the same
    time. `per_queue`, `per_tool`, `per_tenant`: how many all workers of the queue run at the same time. Tools get
    `deps` as `context.deps`. When it is cancelled, it waits up to `grace` seconds for calls that are running."""
    runner = JobRunner(journal, tools, JobLimits(per_queue, per_tool, per_tenant), deps)
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[JobWorkflow],
        activities=[_JobActivities(runner).call],
        max_concurrent_activities=jobs,
        graceful_shutdown_timeout=timedelta(seconds=grace),
        sticky_queue_schedule_to_start_timeout=_STICKY,
        max_heartbeat_throttle_interval=_THROTTLE,
    )
    await worker.run()


class _DriveActivities:
    def __init__(self, agents: Mapping[str, Agent[Any, Any]], journal: Journal, per_tenant: int | None) -> None:
        self._agents = agents
        self._journal = journal
        self._per_tenant = per_tenant

    @activity.defn(name=DRIVE)
    async def drive(self, run_id: str) -> DriveReport:
        stop = asyncio.Event()
        async with _Heartbeat(stop):
            try:
                outcome = await drive(
                    self._agents,
                    self._journal,
                    run_id,
                    take_over=activity.info().attempt > 1,  # the worker of the attempt before is lost, or seems so
                    per_tenant=self._per_tenant,
                    stop=stop,
                )
            except (Busy, Superseded) as error:
                LOG.info("%s", error)
                return DriveReport("busy")
            except UnknownRun as error:
                raise ApplicationError(str(error), type="UnknownRun", non_retryable=True) from None
        if outcome.state == "ready":
            raise _stopped()
        return DriveReport(outcome.state, outcome.expires, outcome.error)

    @activity.defn(name=CANCEL)
    async def cancel(self, run_id: str) -> None:
        try:
            await self._journal.cancel(run_id)
        except UserError as error:  # it has ended
            LOG.info("%s", error)


class _JobActivities:
    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    @activity.defn(name=CALL)
    async def call(self, key: str) -> None:
        async with _Heartbeat(asyncio.Event()):
            ended = await self._runner.run(key)
        if ended == "full":
            wait = timedelta(seconds=min(0.1 * activity.info().attempt, 5))
            raise ApplicationError("as many calls as may are running", type="Full", next_retry_delay=wait)


class _Heartbeat:
    """Sends heartbeats inside of this block, and sets the event when the worker stops. If the activity is cancelled
    because it takes longer than the worker waits, it has failed: another one continues."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch())]

    async def _watch(self) -> None:
        await activity.wait_for_worker_shutdown()
        self._stop.set()

    async def _beat(self) -> None:
        timeout = activity.info().heartbeat_timeout or timedelta(seconds=LOST_AFTER)
        while True:
            activity.heartbeat()
            await asyncio.sleep(timeout.total_seconds() / 4)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for task in self._tasks:
            task.cancel()
        details = activity.cancellation_details()
        if isinstance(error, asyncio.CancelledError) and details is not None and details.worker_shutdown:
            raise _stopped() from None


def _stopped() -> ApplicationError:
    return ApplicationError("the worker stops", type="WorkerStopped", next_retry_delay=timedelta(milliseconds=1))


class TemporalTools(RemoteTools):
    """Middleware that sends the calls of tools that have a queue to workers of the task queue with this name (see
    `run_tool_worker`): `Agent(…, middleware=[TemporalTools(client, journal)])`."""

    def __init__(self, client: Client, journal: Journal, *, lost_after: float = LOST_AFTER) -> None:
        super().__init__(journal)
        self._client = client
        self._lost_after = lost_after

    async def submit(self, job: Job) -> None:
        async def start() -> None:
            await self._client.start_workflow(
                JobWorkflow.run,
                args=[job.key, self._lost_after],
                id=_job_id(self.journal, job),
                task_queue=job.queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )

        try:
            await _patiently(start)
        except RPCError as error:
            raise UnbrokenError(f"Temporal refused the call: {error.message}") from None

    async def is_lost(self, job: Job) -> bool:
        try:
            found = await self._client.get_workflow_handle(_job_id(self.journal, job)).describe()
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return found.status is not WorkflowExecutionStatus.RUNNING


def _job_id(journal: Journal, job: Job) -> str:
    return f"unbroken-job-{journal.id}-{job.key}"
