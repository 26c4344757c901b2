"""Records a run in a journal, and keeps the journal's row of the run up to date with it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from unbroken.errors import UnbrokenError
from unbroken.events import (
    CallAdopted,
    CallFinished,
    CallStarted,
    Event,
    RequestSent,
    RunChanged,
    RunFailed,
    RunFinished,
)
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.tools.approval import Approval, OnApproval, Wait
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.jsonl_writer import Target
from unbroken.trajectory.lines import Line, encode
from unbroken.trajectory.recording import Recording
from unbroken.trajectory.redaction import Redactor
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_durable.agent_changes import compare
from unbroken_durable.answers import NEEDS_APPROVAL, NEEDS_RESULT
from unbroken_durable.errors import Superseded
from unbroken_durable.journal import Journal
from unbroken_durable.late_results import results_in
from unbroken_durable.records import Append, Claim
from unbroken_wires.deltas import Delta, PartialResponse
from unbroken_wires.messages import Json, Request, ToolCall, ToolResult

LOG = logging.getLogger("unbroken.durable")


class JournalTarget(Target):
    """Stores lines with the token of a claim. `error` is set if that is refused or not possible."""

    delay = 0.25
    later = True

    def __init__(self, journal: Journal, claim: Claim) -> None:
        self.path = f"run `{claim.row.run_id}` in {journal.url}"
        self.run = claim.row.number
        self.is_open = True
        self.error: UnbrokenError | None = None
        self.on_error: Any = None
        self.ending: dict[str, Any] = {}
        """What becomes of the run with the next lines."""
        self.progress = False
        """A call of this drive has a result since the last lines."""
        self._journal = journal
        self._claim = claim
        self._position = claim.row.chunks
        self.trace = {"traceparent": claim.trace} if claim.trace else {}
        """The span that this drive belongs to; tracing middleware fills it in if there is none."""
        self._last: asyncio.Future[None] | None = None
        self._handing_in: set[asyncio.Task[None]] = set()

    def has_lines(self) -> bool:
        return bool(self._claim.data)

    def write(self, data: bytes, urgent: bool) -> None:
        if isinstance(self.error, Superseded):
            self.hand_in(data)
            return
        append = Append(self._claim.row.number, self._claim.token, self._position, data, 0.0, **self.ending)
        append.progress, self.progress = self.progress or bool(self.ending), False
        if self.trace and not self._claim.trace:
            append.trace = self._claim.trace = self.trace["traceparent"]
        self._position += 1
        last = self._last = self._journal.append(append)
        if last.done():
            self._stored(data, last)
        else:
            last.add_done_callback(partial(self._stored, data))

    def _stored(self, data: bytes, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, Superseded):
            self.hand_in(data)
        if error is not None and self.error is None:
            self.is_open = isinstance(error, Superseded)
            self.error = error if isinstance(error, UnbrokenError) else UnbrokenError(str(error))
            if self.on_error is not None:
                self.on_error()

    async def stored(self) -> None:
        if self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        if self.error is not None:
            raise OSError(str(self.error))

    def hand_in(self, data: bytes) -> None:
        """Of lines that another driver's run does not take, it gets the results."""
        if results := results_in(data):
            task = asyncio.create_task(self._journal.hand_in(self._claim.row.number, results))
            self._handing_in.add(task)
            task.add_done_callback(self._handing_in.discard)

    async def handed_in(self) -> None:
        if self._handing_in:
            await asyncio.wait(self._handing_in)

    def close(self) -> None:
        self.is_open = False


class JournalRecorder(Middleware):
    """Records one drive of a run. `before` is the recording so far, if there is any."""

    records = True

    def __init__(self, journal: Journal, claim: Claim, before: Recording | None) -> None:
        self.target = JournalTarget(journal, claim)
        self.changed: tuple[str, ...] = ()
        self.instructions: str | None = None
        """None if they are a function: what it returns may differ each time."""
        self.before = before
        self.open_calls = _open_calls(before)
        """The ids of calls that earlier drivers started, and that have no result: one may come in late."""
        self.answer_within: float | None = claim.input.get("answer_within")
        self.on_stopped: Callable[[], object] | None = None
        """Is called after `stop`, once no tool is running."""
        self.stopping = False
        self._journal = journal
        self._run: DurableRunRecorder | None = None

    def start(self, run: RunStart) -> RunRecorder:
        self._run = DurableRunRecorder(self, run, self._journal.redactor_of(run.secrets()))
        return self._run

    def resume(self, path: Path, run: str, size: int) -> Self:
        return self

    def stop(self) -> None:
        """Nothing new starts from now on. Running tools finish, and their results are stored."""
        self.stopping = True
        if self._run is not None:
            self._run.stop_if_idle()

    @property
    def is_writing(self) -> bool:
        """Does a call run that may change something?"""
        return self._run is not None and self._run.is_writing

    def lose(self) -> None:
        """The run is another driver's: of what is recorded from now on, the results are handed in."""
        if self._run is not None:
            self._run.lose()
        self.target.close()

    async def late_result(self, key: str) -> ToolResult | None:
        return await self._journal.late_result(self.target.run, key)

    def detach(self) -> None:
        """Nothing more of this drive enters the journal."""
        if self._run is not None:
            self._run.store()
        self.target.close()


class DurableRunRecorder(RunRecorder):
    """In a durable run a call that needs an approval waits for it, unless the agent has an approver.

    When the driver stops, the first start of something new is held back and not recorded. From then on only results of
    calls that were running are: the journal then looks as if the process had died before that start.
    """

    def __init__(self, drive: JournalRecorder, run: RunStart, redactor: Redactor) -> None:
        self._drive = drive
        self._start = run
        self._held_back = False
        """Something new was about to start after the driver had been told to stop."""
        self._lost = False
        """The run is another driver's."""
        self._active: dict[int, str] = {}
        """The calls that have started and not finished: their numbers, and the names of their tools."""
        super().__init__(drive.target, run, redactor, "stop")

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        return super().approver(on_approval or _wait)

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        super().on_tools(turn, toolbox)
        before, self._drive.before = self._drive.before, None
        if before is not None:
            changes = compare(before, self._start, self._drive.instructions, toolbox)
            if changes:
                self._drive.changed = tuple(changes)
                LOG.warning("run %s continues with changes: %s", self._start.run, "; ".join(changes))
                self._start.emit(RunChanged, changes)

    def on_event(self, event: Event) -> None:
        if self._drive.stopping and isinstance(event, CallStarted | RequestSent):
            self._hold_back()
        if not self._held_back:
            super().on_event(event)
            if isinstance(event, RunFinished | RunFailed) and self._drive.target.is_open:
                self._end(event)
        self._count(event)

    def _end(self, event: RunFinished | RunFailed) -> None:
        if isinstance(event, RunFinished):
            if event.stop_reason == "waiting":
                within = self._drive.answer_within
                pending = [self._pending(call) for call in event.pending]
                self._drive.target.ending = {
                    "state": "waiting",
                    "pending": json.dumps(self._redactor.value(cast("Json", pending))),
                    "expires": None if within is None else event.time + within,
                }
            else:
                self._drive.target.ending = {"state": "answered"}
        else:
            error = self._redactor.text(f"{event.error}: {event.message}")
            self._drive.target.ending = {"state": "failed", "error": error}

    def _pending(self, call: dict[str, Any]) -> dict[str, Any]:
        if "needs" in call:  # a call of an agent that runs as a tool
            return call
        tool = self._toolbox.get(call["name"]) if self._toolbox is not None else None
        return {**call, "needs": NEEDS_RESULT if tool is not None and tool.function is None else NEEDS_APPROVAL}

    def store(self) -> None:
        """Hands over what there is."""
        self.writer.flush()

    # The driver stops, or loses the run

    @property
    def is_writing(self) -> bool:
        return any(name not in self._reads for name in self._active.values())

    def lose(self) -> None:
        self.store()
        self._lost = True

    def stop_if_idle(self) -> None:
        on_stopped = self._drive.on_stopped
        if self._drive.stopping and not self._active and on_stopped is not None:
            self._drive.on_stopped = None
            on_stopped()

    def _count(self, event: Event) -> None:
        if isinstance(event, CallStarted) and not self._held_back:
            self._active[event.call] = event.name
        elif isinstance(event, CallAdopted) and event.adopted in self._active:
            self._active[event.call] = self._active.pop(event.adopted)
        elif isinstance(event, CallFinished):
            self._active.pop(event.call, None)
            self.stop_if_idle()

    def _hold_back(self) -> None:
        if self._held_back:
            return
        self._held_back = True
        self.stop_if_idle()

    def _put(self, line: Line) -> None:
        if self._lost:
            if line["line"] == "result":
                self._drive.target.hand_in(self._redactor.lines(encode(line) + b"\n"))
        elif not self._held_back or line["line"] == "result":
            super()._put(line)

    def received(self, deltas: Sequence[Delta], so_far: PartialResponse) -> None:
        if not self._held_back:
            super().received(deltas, so_far)

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        return _no_answer() if self._held_back else super().ask_model(request, call_next)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        if self._held_back and context.number not in self._active:
            await _until_cancelled()
        if call.id in self._drive.open_calls and (late := await self._drive.late_result(context.key)) is not None:
            context.ran_before = 0.0
            call_next = _known(replace(late, call_id=call.id, name=call.name))
        result = await super().call_tool(call, context, call_next)
        self._drive.target.progress |= context.number in self._active and result.outcome != "unknown"
        return result


def _open_calls(before: Recording | None) -> set[str]:
    open_calls: dict[int, str] = {}
    for event in before.events if before is not None else ():
        if isinstance(event, CallStarted):
            open_calls[event.call] = event.call_id
        elif isinstance(event, CallFinished):
            open_calls.pop(event.call, None)
    return {*open_calls.values()}


def _known(result: ToolResult) -> Caller:
    """Instead of the tool: a result that it gave before."""

    async def known(call: ToolCall, context: CallContext[Any]) -> ToolResult:
        return result

    return known


async def _wait(call: ToolCall) -> Approval:  # a function that is not async would run in a thread
    return Wait()


async def _until_cancelled() -> None:
    await asyncio.get_running_loop().create_future()


async def _no_answer() -> AsyncIterator[Sequence[Delta]]:
    await _until_cancelled()
    yield ()
