# type: ignore - celery is not in the environment in which types are checked, and would be this file there
"""Durable runs on Celery: a task that drives a run, and is acknowledged when the drive has ended.

A task whose worker is lost is given to another one: at once if only the worker's child process died, and after the
broker's visibility time-out if the whole worker did.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from unbroken.agent.agent import Agent
from unbroken.agent.prompts import Prompt
from unbroken.clock import current_clock
from unbroken.durable.driving import Outcome, drive
from unbroken.durable.errors import AlreadyAnswered, Busy, JournalUnavailable, Superseded
from unbroken.durable.journal import Journal, open_journal
from unbroken.durable.records import StartOptions
from unbroken.errors import UserError

try:
    from celery import Celery, Task
except ImportError:
    raise UserError("durable runs on Celery need the package celery: pip install 'unbroken[celery]'") from None

LOG = logging.getLogger("unbroken.durable")
T = TypeVar("T")

NAME = "unbroken.drive"
"""The name of the task, which takes a run's id."""
BUSY = 5.0
"""Seconds after which a run is tried again that another driver has, or whose tenant has as many as it may."""
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
    await wake_run(app, id)
    return id


async def answer_run(app: Celery, journal: Journal, run_id: str, answers: Mapping[str, object]) -> None:
    """Stores answers to calls that the run waits for (see `Journal.answer`), and sends the task that drives it."""
    try:
        await journal.answer(run_id, answers)
    except AlreadyAnswered:  # whoever answered may have died before this
        await wake_run(app, run_id)
        raise
    await wake_run(app, run_id)


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
) -> Task:
    """Adds the task that drives runs to a Celery app, in the module that its workers load. `agents`: by name, or a
    function that returns them, which is called in each worker process. `journal` is a URL, because each process opens
    it for itself. `per_tenant`: how many runs of a tenant may be active at the same time, on all workers."""
    drives = _Drives(agents, journal, per_tenant)

    @app.task(name=NAME, bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=None, ignore_result=True)
    def drive_run(self: Task, run_id: str) -> str:
        try:
            outcome = drives.drive(run_id)
        except (Busy, Superseded) as error:
            # If the other driver dies, this task is the one that continues. So it is not dropped.
            raise self.retry(exc=error, countdown=BUSY) from None
        except JournalUnavailable as error:
            raise self.retry(exc=error, countdown=BUSY) from None
        if outcome.state == "waiting" and outcome.expires is not None:
            left = max(0.0, outcome.expires - current_clock().now())
            self.apply_async((run_id,), countdown=min(left, LONGEST))
        return outcome.state

    return drive_run


class _Drives:
    """Drives runs on an event loop of its own, in a thread of this process."""

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]] | Callable[[], Mapping[str, Agent[Any, Any]]],
        url: str,
        per_tenant: int | None,
    ) -> None:
        self._agents = agents
        self._url = url
        self._per_tenant = per_tenant
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._journal: Journal | None = None

    def drive(self, run_id: str) -> Outcome:
        return self._on_loop(self._drive(run_id)).result()

    async def _drive(self, run_id: str) -> Outcome:
        if self._journal is None:
            self._journal = await open_journal(self._url)
            self._agents = self._agents() if callable(self._agents) else self._agents
        return await drive(self._agents, self._journal, run_id, per_tenant=self._per_tenant)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._starting:
            if self._loop is None:  # only now: a worker forks its processes after it has loaded the app
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="unbroken-drives", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)
