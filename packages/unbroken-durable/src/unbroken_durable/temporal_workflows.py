"""What Temporal runs: a workflow for each run, and one for each tool call. They do nothing but wait and start the
activities of `temporal`."""

# pyright: basic, reportMissingImports=false
# temporalio is an extra of its own, and not in the environment in which the types are checked.

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from unbroken.errors import needs_extra

try:
    from temporalio import workflow
    from temporalio.common import RetryPolicy, SearchAttributeKey
    from temporalio.exceptions import ApplicationError, is_cancelled_exception
except ImportError:
    raise needs_extra("durable runs on Temporal", "the package temporalio", "temporal") from None

LOST_AFTER = 30.0
"""Seconds without a heartbeat after which a worker counts as lost."""
AGENT = SearchAttributeKey.for_keyword("UnbrokenAgent")
TENANT = SearchAttributeKey.for_keyword("UnbrokenTenant")
STATE = SearchAttributeKey.for_keyword("UnbrokenState")
DRIVE, CANCEL, CALL = "unbroken-drive", "unbroken-cancel", "unbroken-call"
"""The names of the activities."""
_ALWAYS = timedelta(days=3650)
CHECK = timedelta(days=1)
"""A workflow waits no longer before it looks whether its run still waits, and a worker that starts looks so far back
for runs that were cancelled."""
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


@dataclass(slots=True)
class RunInput:
    """What a workflow is started with."""

    run_id: str
    lost_after: float = LOST_AFTER
    search_attributes: bool = True


@dataclass(slots=True)
class DriveReport:
    """How far a drive has come: the state of the run, or `busy` if another driver has it, or its tenant has as many
    active runs as it may."""

    state: str
    expires: float | None = None
    error: str = ""


@workflow.defn(name="unbroken-run", sandboxed=False)  # it does nothing but wait and start activities
class RunWorkflow:
    """Drives one run to its end."""

    def __init__(self) -> None:
        self._woken = False

    @workflow.signal
    def wake(self) -> None:
        """There are answers for the run, or something else has changed."""
        self._woken = True

    @workflow.run
    async def run(self, given: RunInput) -> str:
        try:
            return await self._run(given)
        except BaseException as error:
            if is_cancelled_exception(error):
                await workflow.execute_activity(
                    CANCEL, given.run_id, start_to_close_timeout=timedelta(minutes=5), retry_policy=_RETRY
                )
                self._show(given, "cancelled")
            raise

    async def _run(self, given: RunInput) -> str:
        tries = 0
        while True:
            self._woken = False
            self._show(given, "running")
            report = await workflow.execute_activity(
                DRIVE,
                given.run_id,
                result_type=DriveReport,
                start_to_close_timeout=_ALWAYS,
                heartbeat_timeout=timedelta(seconds=given.lost_after),
                retry_policy=_RETRY,
            )
            if report.state == "busy":
                tries += 1
                await workflow.sleep(timedelta(seconds=min(0.5 * tries, 15)))
            elif report.state == "waiting":
                tries = 0
                self._show(given, "waiting")
                await self._wait(report.expires)
            else:
                self._show(given, report.state)
                if report.state == "failed":
                    raise ApplicationError(report.error, type="RunFailed", non_retryable=True)
                return report.state
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(given)

    async def _wait(self, expires: float | None) -> None:
        left = CHECK if expires is None else min(CHECK, timedelta(seconds=max(0.2, expires - workflow.time())))
        with suppress(asyncio.TimeoutError):
            await workflow.wait_condition(lambda: self._woken, timeout=left)

    def _show(self, given: RunInput, state: str) -> None:
        if given.search_attributes:
            workflow.upsert_search_attributes([STATE.value_set(state)])


@workflow.defn(name="unbroken-job", sandboxed=False)
class JobWorkflow:
    """Runs one tool call: the journal holds it, and decides whether it may run again if its worker is lost."""

    @workflow.run
    async def run(self, key: str, lost_after: float) -> None:
        await workflow.execute_activity(
            CALL,
            key,
            start_to_close_timeout=_ALWAYS,
            heartbeat_timeout=timedelta(seconds=lost_after),
            retry_policy=_RETRY,
        )
