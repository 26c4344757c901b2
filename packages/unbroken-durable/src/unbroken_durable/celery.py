# type: ignore - celery is not in the environment in which types are checked, and would be this file there
"""Durable runs on Celery: a task that drives a run, and is acknowledged when the drive has ended.

A task whose worker is lost is given to another one: at once if only the worker's child process died, and after the
broker's visibility time-out if the whole worker did. Workers look into the journal too, and find its run before that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any, TypeAlias, TypeVar, Unpack

from unbroken.agent.agent import Agent
from unbroken.agent.prompts import Prompt
from unbroken.clock import current_clock
from unbroken.errors import UserError, needs_extra
from unbroken_durable.database import Database
from unbroken_durable.deaths import DEATHS
from unbroken_durable.driving import Outcome, drive
from unbroken_durable.errors import AlreadyAnswered, Busy, JournalUnavailable, Superseded, UnknownAgent
from unbroken_durable.journal import Journal, open_journal
from unbroken_durable.records import RunRow, StartOptions

try:
    from celery import Celery, Task
    from celery.signals import worker_ready
except ImportError:
    raise needs_extra("durable runs on Celery", "the package celery", "celery") from None

LOG = logging.getLogger("unbroken.durable")
T = TypeVar("T")
_Opening: TypeAlias = Callable[[], Awaitable[Journal]]

NAME = "unbroken.drive"
"""The name of the task, which takes a run's id."""
BUSY = 5.0
"""Seconds after which a run is tried again that another driver has, or whose tenant has as many as it may."""
LOOK = 5.0
"""Seconds between two looks of a worker for runs that nobody has sent a task for."""
_MOST = 1000
"""Runs that a look finds."""
LONGEST = 600.0
"""A task waits no longer than this for the time of a run to be over. Brokers such as Redis and Valkey give a task that
waits longer than their visibility time-out (an hour) to other workers as well."""


# Starting, answering, cancelling


async def start_run(
    app: Celery,
    journal: Journal,
    agent: str,
    prompt: Prompt,
    **options: Unpack[StartOptions],
) -> str:
    """Starts a run, sends the task that drives it, and returns its id. Called again with the same id, it starts no
    second run; a run that failed is driven again."""
    id = await journal.start(agent, prompt, **options)
    await _wake(app, journal, id)
    return id


async def answer_run(app: Celery, journal: Journal, run_id: str, answers: Mapping[str, object]) -> None:
    """Stores answers to calls that the run waits for (see `Journal.answer`), and sends the task that drives it."""
    try:
        await journal.answer(run_id, answers)
    except AlreadyAnswered:  # the process that answered may have died before this
        await _wake(app, journal, run_id)
        raise
    await _wake(app, journal, run_id)


async def _wake(app: Celery, journal: Journal, run_id: str) -> None:
    await wake_run(app, run_id)
    await journal.work(partial(_mark_sent, run_id=run_id, now=current_clock().now()))


async def wake_run(app: Celery, run_id: str) -> None:
    """Has the run driven: after `journal.answer`, for example. A task too many does nothing."""
    await asyncio.to_thread(app.send_task, NAME, (run_id,))


async def cancel_run(app: Celery, journal: Journal, run_id: str) -> None:
    """Ends the run, wherever it is driven. Tasks that are left for it do nothing then."""
    await journal.cancel(run_id)


# Workers


def register_runs(
    app: Celery,
    agents: Mapping[str, Agent[Any, Any]] | Callable[[], Mapping[str, Agent[Any, Any]]],
    journal: str,
    *,
    per_tenant: int | None = None,
    look: float | None = LOOK,
    deaths: int = DEATHS,
) -> Task:
    """Adds the task that drives runs to a Celery app, in the module that its workers load. `agents`: by name, or a
    function that returns them, which is called in each worker process. `journal` is a URL, because each process opens
    it for itself. `per_tenant`: how many runs of a tenant may be active at the same time, on all workers. `look`: every
    so many seconds each worker looks for runs that nobody has sent a task for; None: never. `deaths`: see
    `open_journal`."""
    opening = partial(open_journal, journal, deaths=deaths)
    drives = _Drives(agents, opening, per_tenant)
    if look is not None:
        looking = _Looking(app, opening, None if callable(agents) else tuple(agents), per_tenant, look)
        worker_ready.connect(looking.start, weak=False)

    @app.task(name=NAME, bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=None, ignore_result=True)
    def drive_run(self: Task, run_id: str, found: bool = False) -> str:
        """`found`: a worker has found the run in the journal. If it has a driver that dies, it is found again."""
        try:
            outcome = drives.drive(run_id, found)
        except (Busy, Superseded, JournalUnavailable, UnknownAgent) as error:
            if found and isinstance(error, UnknownAgent):
                LOG.warning("%s", error)
                return "unknown agent"
            # It passes: the database comes back, and the next deploy brings the agent. If the run has another driver
            # and that one dies, this task is the one that continues. So it is not dropped.
            wait = BUSY if isinstance(error, Busy | Superseded) else BUSY * 2 ** min(self.request.retries, 4)
            raise self.retry(exc=error, countdown=wait) from None
        if outcome.state == "waiting" and outcome.expires is not None and not found:
            left = max(0.0, outcome.expires - current_clock().now())
            self.apply_async((run_id,), countdown=min(left, LONGEST))
        return outcome.state

    return drive_run


class _Looking:
    """Looks for runs that nobody has sent a task for (they were started or answered over HTTP, for example), and for
    those whose driver has died. In a thread of the worker's main process, which drives nothing itself."""

    def __init__(
        self, app: Celery, opening: _Opening, agents: tuple[str, ...] | None, per_tenant: int | None, seconds: float
    ) -> None:
        self._app = app
        self._opening = opening
        self._agents = agents
        self._per_tenant = per_tenant
        self._seconds = seconds

    def start(self, sender: Any, **_: Any) -> None:
        if sender.app == self._app:
            threading.Thread(target=asyncio.run, args=(self._look(),), name="unbroken-looks", daemon=True).start()

    async def _look(self) -> None:
        journal: Journal | None = None
        while True:
            await asyncio.sleep(self._seconds)
            try:
                journal = journal or await self._opening()
                await self._send(
                    journal, await journal.drivable(_MOST, agents=self._agents, per_tenant=self._per_tenant)
                )
            except Exception as error:  # noqa: BLE001 - of the database or of the broker: they come back
                LOG.warning("runs that are ready cannot be looked for now: %s", error)

    async def _send(self, journal: Journal, rows: Sequence[RunRow]) -> None:
        for row in rows:
            now = current_clock().now()
            if row.state == "ready" and now - row.updated < self._seconds:
                continue  # whoever has made it ready sends one
            changed = row.expires if row.state == "waiting" else row.updated
            if not await journal.work(partial(_mark_sent, run_id=row.run_id, now=now, changed=changed)):
                continue
            try:
                await asyncio.to_thread(self._app.send_task, NAME, (row.run_id,), {"found": True})
            except BaseException:
                await journal.work(partial(_mark_sent, run_id=row.run_id, now=0.0))
                raise


def _mark_sent(database: Database, run_id: str, now: float, changed: float = inf) -> bool:
    """Notes that a task was sent for a run. False if somebody has sent one since the run `changed`: not long ago, or it
    is in the queue still."""
    with database.transaction():
        return bool(
            database.change(
                "UPDATE unbroken_runs SET sent = ? WHERE run_id = ? AND (sent < ? OR sent < ?)",
                now,
                run_id,
                changed,
                now - LONGEST,
            )
        )


class _Drives:
    """Drives runs on an event loop of its own, in a thread of this process."""

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]] | Callable[[], Mapping[str, Agent[Any, Any]]],
        opening: _Opening,
        per_tenant: int | None,
    ) -> None:
        self._agents = agents
        self._open_journal = opening
        self._per_tenant = per_tenant
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._journal: Journal | None = None
        self._opening = asyncio.Lock()

    def drive(self, run_id: str, found: bool) -> Outcome:
        return self._on_loop(self._drive(run_id, found)).result()

    async def _drive(self, run_id: str, found: bool) -> Outcome:
        async with self._opening:
            if self._journal is None:
                await self._open()
        try:
            return await drive(self._agents, self._journal, run_id, per_tenant=self._per_tenant)
        except (Busy, Superseded):
            state = (await self._journal.run(run_id)).state
            if found and state != "ready":
                return Outcome(run_id, state)
            raise

    async def _open(self) -> None:
        if callable(self._agents):
            self._agents = self._agents()
        try:
            self._journal = await self._open_journal()
        except UserError as error:  # it cannot be reached, or is not up to date
            raise JournalUnavailable(str(error)) from None

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._starting:
            if self._loop is None:  # only now: a worker forks its processes after it has loaded the app
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="unbroken-drives", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)
