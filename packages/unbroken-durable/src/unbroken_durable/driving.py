"""`drive`: carries a durable run as far as it goes. The journal allows one driver at a time; a later call, in any
process, continues where the journal ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from unbroken.agent.agent import Agent
from unbroken.agent.handoffs import final_agent
from unbroken.agent.limits import limits_from_json
from unbroken.agent.options import Options, ResumeOptions
from unbroken.agent.ready_run import ReadyRun
from unbroken.agent.recorded_state import ended_result, handoffs_of, waiting_result, waiting_state
from unbroken.agent.result import Result, still_pending
from unbroken.agent.resuming import prepare_durable, replace_recorder
from unbroken.clock import current_clock
from unbroken.errors import UserError
from unbroken.events import Sink
from unbroken.middleware import Middleware, as_middleware
from unbroken.tools.execution import LEFT
from unbroken.trajectory.recorded_run import RecordedRun
from unbroken.trajectory.recording import Recording
from unbroken_durable.answers import expired_answers, read_answers
from unbroken_durable.errors import JournalUnavailable, Superseded
from unbroken_durable.journal import Journal
from unbroken_durable.recorder import JournalRecorder
from unbroken_durable.records import Claim, RunRow, State
from unbroken_durable.run_lines import parse
from unbroken_wires.messages import User
from unbroken_wires.transcript import from_json
from unbroken_wires.validation import checked

FINISHING = 5.0
"""Seconds for which writes that run may end when the run has another driver."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far a run has come."""

    run_id: str
    state: State
    """`answered`, `waiting`, `failed` or `cancelled`; `ready` if the driver was told to stop."""
    result: Result[Any] | None = None
    """Of a run that is answered or waits."""
    error: str = ""
    """Why it failed."""
    changed: tuple[str, ...] = ()
    """What has changed in the agent since the run was driven last, one sentence each."""
    expires: float | None = None
    """When a waiting run continues without an answer, in seconds since the epoch; None: never."""


@checked
async def drive(
    agents: Mapping[str, Agent[Any, Any]],
    journal: Journal,
    run_id: str,
    *,
    take_over: bool = False,
    per_tenant: int | None = None,
    sinks: Sequence[Sink | Middleware] = (),
    stop: asyncio.Event | None = None,
) -> Outcome:
    """Carries the run as far as it goes: to its answer, to a call that waits for somebody, or to an error. It may be
    called again, anywhere and any time.

    Raises `Busy` if another driver is alive, or if earlier drivers died and the run is to be driven alone and later.
    `take_over=True` supersedes that one: nothing more of it is stored, and it
    ends with `Superseded`. `per_tenant`: how many runs of a tenant may be active at the same time; `Busy` if there are
    as many already.

    When `stop` is set, no new request and no new call starts; calls that run may finish, and the run is then `ready`
    for another driver.
    """
    claim = await journal.claim(run_id, agents=agents, take_over=take_over, per_tenant=per_tenant)
    if isinstance(claim, RunRow):
        return await _resting(agents, journal, claim)
    try:
        drive = _Drive(agents[claim.row.agent], journal, claim, sinks, stop)
    except BaseException:
        await journal.give_back(claim)
        raise
    return await drive.run()


async def _resting(agents: Mapping[str, Agent[Any, Any]], journal: Journal, row: RunRow) -> Outcome:
    """A run for which there is nothing to do."""
    if row.state in ("cancelled", "failed"):
        return Outcome(row.run_id, row.state, error=row.error)
    recording = await journal.recording(row.run_id)
    if row.state == "waiting":
        return Outcome(row.run_id, "waiting", waiting_result(recording), expires=row.expires)
    agent = agents.get(row.agent)
    answered = final_agent(agent, handoffs_of(recording)) if agent is not None else None
    kind = answered.settings.output if answered is not None else None
    return Outcome(row.run_id, "answered", ended_result(recording, kind))


class _Drive:
    """One driver's part of a run."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        journal: Journal,
        claim: Claim,
        sinks: Sequence[Sink | Middleware],
        stop: asyncio.Event | None,
    ) -> None:
        self._agent = agent
        self._journal = journal
        self._claim = claim
        recording = parse(claim.data, claim.row.run_id) if claim.data else None
        self._recorder = JournalRecorder(journal, claim, recording)
        self._run = self._begin(sinks) if recording is None else self._continue(recording, sinks)
        plan = self._run.plan(self._run.clock or current_clock())
        if plan.write_system is None and not (recording is not None and handoffs_of(recording)):
            self._recorder.instructions = plan.system.text if plan.system is not None else ""
        self._run.trace = self._recorder.target.trace
        self._task: asyncio.Task[Result[Any]] | None = None
        self._stop = stop
        self._stopped = False
        self._finishing: asyncio.Task[None] | None = None

    def _begin(self, sinks: Sequence[Sink | Middleware]) -> ReadyRun:
        given, agent = self._claim.input, self._agent
        question = from_json([given["question"]])[0]
        assert isinstance(question, User)
        options: Options = {"run_id": self._claim.row.run_id}
        if "history" in given:
            options["history"] = from_json(given["history"])
        if "limits" in given:
            options["limits"] = limits_from_json(given["limits"])
        ready = agent.prepare(question, options)
        ready.state.emitted.next_seq = 1
        listening = (each for each in (*agent.settings.sinks, *as_middleware(sinks)) if not each.records)
        ready.middleware = (*listening, *replace_recorder(agent.settings.middleware, self._recorder))
        return ready

    def _continue(self, recording: Recording, sinks: Sequence[Sink | Middleware]) -> ReadyRun:
        row = self._claim.row
        recorded = RecordedRun.of(recording)
        waiting = waiting_state(recorded)
        answers: dict[str, Any] = {}
        if waiting is not None:
            still = still_pending(waiting)
            pending = [call for call in row.pending if call.id in still]
            answers = read_answers(pending, self._claim.answers)
            if row.expires is not None and current_clock().now() >= row.expires:
                answers |= expired_answers([call for call in pending if call.id not in answers])
        options: ResumeOptions = {"sinks": sinks}
        return prepare_durable(self._agent, recorded, answers, options, self._recorder)

    async def run(self) -> Outcome:
        target = self._recorder.target
        task = self._task = asyncio.create_task(self._run())
        target.on_error = self._lose
        self._journal.watch(self._claim, self._superseded)
        stopping = None if self._stop is None else asyncio.create_task(self._stop_when(self._stop))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._leave_now()
            await asyncio.shield(self._leave_after(task))
            raise
        finally:
            for waiting in (stopping, self._finishing):
                if waiting is not None:
                    waiting.cancel()
        if self._stopped and self._recorder.target.error is None:
            await self._leave_after(task)
            return Outcome(self._claim.row.run_id, "ready", changed=self._recorder.changed)
        try:
            outcome = await self._outcome(task)
        except BaseException:
            await self._journal.leave(self._claim, "ready")  # unless another driver has it
            raise
        await self._journal.leave(self._claim, None)
        return outcome

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._recorder.on_stopped = self._leave_now
        self._recorder.stop()

    def _leave_now(self) -> None:
        """Nothing is stored from here on, and what is left of the run is cancelled; unless it has just ended."""
        if self._task is not None and not self._task.done() and not self._recorder.target.ending:
            self._stopped = True
            self._journal.left.add(self._claim.row.run_id)
            self._recorder.detach()
            self._task.cancel(LEFT)

    async def _leave_after(self, task: asyncio.Task[Any]) -> None:
        """The driver was cancelled or stopped: the run is free for another one once its calls have ended."""
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the next driver continues the run
        with suppress(OSError):
            await self._recorder.target.stored()
        await self._recorder.target.handed_in()
        await self._journal.leave(self._claim, "ready" if self._stopped else None)

    def _superseded(self) -> None:
        target, run_id = self._recorder.target, self._claim.row.run_id
        if target.error is None:
            target.error = Superseded(f"run `{run_id}` was taken over by another driver", run_id)
            self._lose()

    def _lose(self) -> None:
        """The run is no longer this driver's."""
        self._journal.left.add(self._claim.row.run_id)
        if isinstance(self._recorder.target.error, Superseded):
            self._recorder.lose()
            if self._recorder.is_writing:
                self._finishing = asyncio.create_task(self._finish_writes())
                return
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel(LEFT)

    async def _finish_writes(self) -> None:
        """Whether a cancelled write took effect would be unknown. So it may end, for a while, and its result is handed
        in; unless somebody has cancelled the run."""
        with suppress(JournalUnavailable, TimeoutError):
            if (await self._journal.run(self._claim.row.run_id)).state != "cancelled":
                idle = asyncio.Event()
                self._recorder.on_stopped = idle.set
                self._recorder.stop()
                async with asyncio.timeout(FINISHING):
                    await idle.wait()
        self._cancel()

    async def _outcome(self, task: asyncio.Task[Result[Any]]) -> Outcome:
        target, run_id = self._recorder.target, self._claim.row.run_id
        try:
            await target.stored()
        except OSError:
            assert target.error is not None
            await target.handed_in()
            if isinstance(target.error, Superseded):
                row = await self._journal.run(run_id)
                if row.state == "cancelled":
                    return Outcome(run_id, "cancelled", error=row.error)
            raise target.error from None
        changed = self._recorder.changed
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            raise UserError(f"run `{run_id}` was cancelled by something in it")
        if error is None:
            result = task.result()
            waits = result.stop_reason == "waiting"
            expires = target.ending.get("expires")
            return Outcome(run_id, "waiting" if waits else "answered", result, changed=changed, expires=expires)
        if isinstance(error, Exception):
            words = str(target.ending.get("error") or f"{type(error).__name__}: {error}")
            return Outcome(run_id, "failed", error=words, changed=changed)
        raise error
