"""Runs the calls of tools that have a queue on other machines. `RemoteTools` sends them and waits for their results;
`JobRunner` runs them there. How a job gets from one to the other is up to an engine: see `temporal` and `dbos`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from unbroken.clock import current_clock
from unbroken.errors import InvalidTool, UnbrokenError
from unbroken.events import CallProgress
from unbroken.middleware import Middleware, RunStart
from unbroken.tools.approval import settle
from unbroken.tools.caller import Caller, ResultCache, ToolCaller, ToolErrors, failure, in_words
from unbroken.tools.context import CallContext
from unbroken.tools.results import RESULT_LIMIT
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Source, Toolbox
from unbroken_durable import jobs
from unbroken_durable.database import Database
from unbroken_durable.errors import JournalUnavailable
from unbroken_durable.jobs import Job, JobClaim, JobLimits, Progress
from unbroken_durable.journal import Journal
from unbroken_wires.messages import ToolCall, ToolResult, Usage

LOG = logging.getLogger("unbroken.durable")

LOOK = 0.5
"""Seconds between two looks whether a job is still wanted."""
REPORT = 0.1
"""Seconds between two transactions with progress."""
ASK = 30.0
"""Seconds between two questions to the engine whether it still has a job."""
CANCELLED = "cancelled: the call was cancelled"


class RemoteTools(Middleware):
    """Sends the calls of tools that have a queue to workers. All others run here.

    If the driver of the run dies, the calls continue, and the next driver finds them again by their keys.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def start(self, run: RunStart) -> Middleware:
        return _RunTools(self, run)

    def finds_again(self, tool: Tool) -> bool:
        return tool.queue is not None

    async def submit(self, job: Job) -> None:
        """Makes sure that a worker of the job's queue runs the job with this key. It may be there already."""
        raise NotImplementedError

    async def is_lost(self, job: Job) -> bool:
        """Has the engine given the job up?"""
        return False


class _RunTools(Middleware):
    def __init__(self, sends: RemoteTools, run: RunStart) -> None:
        self._sends = sends
        self._toolbox = Toolbox()
        self._limit = int(cast("int", run.settings.get("result_limit", RESULT_LIMIT)))
        self._errors = cast("ToolErrors", run.settings.get("tool_errors", "full"))

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        tool = self._toolbox.get(call.name)
        if tool is None or tool.queue is None or context.known is not None:
            return await call_next(call, context)
        journal, job = self._sends.journal, Job.of(tool.queue, call, context, tool.timeout, self._limit)
        job = await journal.work(partial(jobs.add_job, job=replace(job, errors=self._errors)))
        context.elsewhere = True
        try:
            await self._sends.submit(job)
            result, usage = await self._finished(job, context)
        except asyncio.CancelledError:
            if context.run not in journal.left:
                LOG.info("job %s is cancelled", job.key)
                await asyncio.shield(self._cancel(job, failure(call, CANCELLED, "cancelled")))
            raise
        except UnbrokenError as error:  # it could not be sent
            await self._cancel(job, failure(call, in_words(error)))
            raise
        if usage is not None:
            context.spend(usage)
        return replace(result, call_id=call.id)

    async def _cancel(self, job: Job, result: ToolResult) -> None:
        await self._sends.journal.work(partial(jobs.cancel_job, key=job.key, result=result))

    async def _finished(self, job: Job, context: CallContext[Any]) -> tuple[ToolResult, Usage | None]:
        journal, seen, clock = self._sends.journal, 0, current_clock()
        asked = clock.elapsed()
        while True:
            with journal.listening() as changed:
                try:
                    progress, result = await journal.work(partial(jobs.look, key=job.key, after=seen))
                except JournalUnavailable as error:  # the job continues; whether the run does, its recorder decides
                    LOG.warning("job %s: %s", job.key, error)
                    continue
                for position, message, done in progress:
                    context.report(message, done)
                    seen = position
                if result is not None:
                    return jobs.read_finished(result)
                await changed.wait(ASK)
            if clock.elapsed() - asked >= ASK:
                asked = clock.elapsed()
                if await self._sends.is_lost(job):
                    LOG.warning("job %s was lost, and is sent again", job.key)
                    await self._sends.submit(job)


class JobRunner:
    """Runs jobs at a worker. `limits` count over all workers of the queue. Tools get `deps` as `context.deps`."""

    def __init__(self, journal: Journal, tools: Source, limits: JobLimits | None = None, deps: object = None) -> None:
        self._journal = journal
        self._toolbox = Toolbox(tools)
        if not self._toolbox.names:
            raise InvalidTool("a worker for tools needs tools: give a list of them, or a module that has some")
        self._limits = limits or JobLimits()
        self._deps = deps

    async def run(self, key: str) -> Literal["done", "full", "lost"]:
        """Runs the job, unless it has run. `full`: not now, because as many as may are running. `lost`: it is another
        worker's by now, or its run was cancelled."""
        claim = await self._journal.work(partial(jobs.claim_job, key=key, limits=self._limits))
        if not isinstance(claim, JobClaim):
            return claim
        progress = _Progress(self._journal, claim)
        work = asyncio.create_task(self._call(claim, progress))
        watch = asyncio.create_task(self._watch(claim, work))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:  # the worker stops: the engine gives the job to another one
            work.cancel()
            await asyncio.shield(asyncio.wait([work]))
            raise
        finally:
            watch.cancel()
            await progress.flush()
        result = failure(claim.job.call, CANCELLED, "cancelled") if work.cancelled() else work.result()
        stored = await self._store(partial(jobs.finish_job, claim=claim, result=result, usage=progress.usage), key)
        self._journal.ring()
        return "done" if stored else "lost"

    async def _store(self, finish: Callable[[Database], bool], key: str) -> bool:
        """The call has run, and nobody else takes the job as long as this process lives: an outage only delays it."""
        while True:
            try:
                return await self._journal.work(finish)
            except JournalUnavailable as error:
                LOG.warning("the result of job %s waits for the database: %s", key, error)

    async def _call(self, claim: JobClaim, progress: _Progress) -> ToolResult:
        job, call = claim.job, claim.job.call
        tool = self._toolbox.get(call.name)
        if tool is None:
            known = ", ".join(self._toolbox.names)
            return failure(call, f"the workers of queue `{job.queue}` have no tool `{call.name}`; they have: {known}")
        tool = replace(tool, timeout=job.timeout)
        context = job.context(self._deps)
        context.say, context.spend = progress.say, progress.spend
        try:
            if claim.was_lost:
                settled = await settle(tool, call, context, job.limit)
                if settled is not None:
                    return settled
            caller = ToolCaller(Toolbox(tool), current_clock(), ResultCache(), job.limit, job.errors)
            return await caller(call, context)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has to get a result
            return failure(call, in_words(error))
        finally:
            context.ended = True

    async def _watch(self, claim: JobClaim, work: asyncio.Task[ToolResult]) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                wanted = await self._journal.work(partial(jobs.is_wanted, claim=claim))
            except JournalUnavailable:
                continue
            if not wanted:
                LOG.info("job %s is not wanted any more", claim.job.key)
                work.cancel()
                return


class _Progress:
    """Stores what a tool reports, a few reports at a time. Tools may report from any thread."""

    def __init__(self, journal: Journal, claim: JobClaim) -> None:
        self.usage: Usage | None = None
        self._journal = journal
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._count = claim.token * 1_000_000  # a second worker's reports follow those of the first
        self._waiting: list[Progress] = []
        self._storing: asyncio.Task[None] | None = None

    def say(self, kind: type, *fields: Any) -> None:
        if kind is CallProgress:
            with suppress(RuntimeError):  # a late thread, after the end of the loop
                self._loop.call_soon_threadsafe(self._add, *fields[3:])

    def spend(self, usage: Usage) -> None:
        self.usage = usage if self.usage is None else self.usage + usage

    def _add(self, message: str, done: float | None = None) -> None:
        self._count += 1
        self._waiting.append((self._count, message, done))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_later())

    async def _store_later(self) -> None:
        await asyncio.sleep(REPORT)
        self._storing = None
        await self.flush()

    async def flush(self) -> None:
        """Stores what is waiting. No error leaves this: a report that cannot be stored must not cost the result."""
        reports, self._waiting = self._waiting, []
        if not reports:
            return
        try:
            await self._journal.work(partial(jobs.add_progress, claim=self._claim, progress=reports))
        except Exception as error:  # noqa: BLE001 - whatever it is
            LOG.warning("progress of job %s was not stored: %s", self._claim.job.key, error)
        self._journal.ring()
