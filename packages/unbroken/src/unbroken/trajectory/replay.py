"""Replays a recording in place of the model, the tools and the approver, so that a run is repeated.

Strategy. `Playback` is middleware around the live loop, so a replay runs the code that a run runs, and live tools, the
fixture `recorded` and evaluations work in the same way. Everything that went into the run (deltas, results, approvals,
what tools reported) is fed to it in the order of the lines, and each request and each call is compared with the
recorded one. `ReplayDiverged` shows the first that differs, as a diff.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias

from unbroken.clock import VirtualLoop
from unbroken.errors import UserError, Vetoed, named
from unbroken.events import CallEvent, Event, RunFailed, RunFinished, event_from_json
from unbroken.middleware import Ask, CheckInput, CheckOutput, Middleware, RunStart
from unbroken.replay_loop import ReplayLoop
from unbroken.tools.approval import Approval, OnApproval
from unbroken.tools.caller import Caller, Prepared, failure
from unbroken.tools.context import CallContext
from unbroken.trajectory.divergence import compare_requests, describe_call
from unbroken.trajectory.input_queue import InputQueue
from unbroken.trajectory.lines import (
    CAUSED_BY_TOOLS,
    read_approval,
    read_delta,
    read_error,
    read_usage,
    read_waits,
)
from unbroken.trajectory.past import Past
from unbroken.trajectory.recorded_checks import RecordedChecks
from unbroken.trajectory.recorded_inputs import Exchange, Input, find_execution, group_arrivals, read_inputs
from unbroken.trajectory.recording import Recording, read_recording
from unbroken_wires.deltas import Delta, PartialResponse
from unbroken_wires.messages import Message, Request, ToolCall, ToolResult, User
from unbroken_wires.transcript import from_json
from unbroken_wires.transcript.saved import read_result
from unbroken_wires.validation import checked

PlayedClock: TypeAlias = Literal["virtual", "real"]
PlayedTools: TypeAlias = Literal["recorded", "live"]


class ReplayDiverged(UserError):
    """The run asked for something that is not in the recording: the message shows where, and how it differs."""


class RecordingEnded(UserError):
    """The recording ends before the run did."""


@checked
def replay(
    path: str | os.PathLike[str] | Recording,
    *,
    clock: PlayedClock = "virtual",
    tools: PlayedTools = "recorded",
    speed: float = 1.0,
) -> Playback:
    """A recording as middleware: the model and the tools of the run are not called. `agent.replay(path)` does it all.

    `clock="real"` takes as long as the run took, divided by `speed`. With `tools="live"` the tools run, and only the
    model is replayed."""
    if not speed > 0:
        raise UserError(f"replay(speed={speed!r}): it is a number above 0")
    recording = path if isinstance(path, Recording) else read_recording(path)
    return Playback(recording, clock, tools, speed)


class Playback(Middleware, Past):
    """A recording that takes the place of the model, the tools and the approver of a run. Each can be played once."""

    mutates = False
    sees_deltas = True
    edits_answers = False

    def __init__(self, recording: Recording, clock: PlayedClock, tools: PlayedTools, speed: float) -> None:
        self.recording = recording
        self.clock: PlayedClock = clock
        self.tools: PlayedTools = tools
        self.diverged: ReplayDiverged | None = None
        """Where the run diverged, if it did."""
        self.ended: RecordingEnded | None = None
        """Where the recording ended before the run, if it did."""
        inputs = read_inputs(recording)
        self._exchanges, self._executions, self._approvals = inputs.exchanges, inputs.executions, inputs.approvals
        self._waits = inputs.waits
        self._background, self._arrivals = inputs.background, inputs.arrivals
        self._live_name = recording.answer_tool
        self._asked = 0
        ending = recording.ending
        self._broke_off = ending is None or (isinstance(ending, RunFailed) and named(ending.error) is None)
        """Its process died, or it was cancelled: nothing in the recording repeats that."""
        self._checks = RecordedChecks(recording)
        self._veto: Callable[[Vetoed], None] | None = None
        self._turn: int | None = None
        """The number of the last event."""
        self._last_turn = self._exchanges[-1].request.turn if self._exchanges else 0
        played = [each for exchange in self._exchanges for each in exchange.inputs]
        if tools == "recorded":
            played += [each for some in self._executions.values() for one in some for each in one.inputs]
            played += [each for some in self._approvals.values() for each in some]
        self._queue = InputQueue(played, tools == "recorded", speed if clock == "real" else 1.0)

    @property
    def run(self) -> str:
        """The id of the run that was recorded."""
        return self.recording.run

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history that the run began with; the prompt is its last message."""
        return from_json(self.recording.head.get("messages", []))

    @property
    def question(self) -> User | None:
        """The prompt that was sent after the open calls of that history had run."""
        saved = self.recording.head.get("question")
        message = from_json([saved])[0] if saved else None
        return message if isinstance(message, User) else None

    @property
    def left(self) -> int:
        """The number of inputs that were not used."""
        return self._queue.left

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new loop for the replay; if it is virtual, its time is that of the recording."""
        if self.clock == "real":
            return ReplayLoop() if self.tools == "recorded" else asyncio.new_event_loop()
        began = self.recording.virtual or {"start": self.recording.time, "elapsed": 0.0}
        loop = VirtualLoop(began["start"])
        loop.clock.advance(began["elapsed"])
        return loop

    def start(self, run: RunStart) -> Playback:
        """The time of the recording counts from now."""
        self._queue.begin()
        self._veto = run.veto
        return self

    def on_event(self, event: Event) -> None:
        self._turn = event.turn
        if not isinstance(event, CAUSED_BY_TOOLS):
            self._queue.emitted()

    def on_time_limit(self) -> None:
        self._queue.emitted()

    def end(self) -> None:
        """The run is over: releases the loop."""
        self._queue.end()

    # In place of the model

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        """Answers as recorded; the model is not asked."""
        return self.play_exchange(self.next_exchange(request))

    def next_exchange(self, request: Request) -> Exchange:
        """The next recorded answer. `ReplayDiverged` if this is not the request for it, `RecordingEnded` if there is
        none because the recorded run broke off."""
        if self.diverged is not None or self.ended is not None:
            raise self.diverged or self.ended or AssertionError
        place, self._asked = self._asked, self._asked + 1
        if place >= len(self._exchanges):
            if not isinstance(self.recording.ending, RunFinished):
                raise self._end("here")
            raise self._diverge(f"request {place} is not in the recording, which has {len(self._exchanges)}")
        exchange = self._exchanges[place]
        if words := compare_requests(exchange.request, request, place):
            raise self._diverge(words)
        return exchange

    def _diverge(self, words: str) -> ReplayDiverged:
        self.diverged = self.diverged or ReplayDiverged(words)
        return self.diverged

    def _end(self, where: str) -> RecordingEnded:
        ending = self.recording.ending
        why = f"the run failed there ({ending.error})" if isinstance(ending, RunFailed) else "its run was cut off"
        words = f"{self.recording.path} ends {where}: {why}; `agent.resume` or `unbroken resume FILE` continues it"
        self.ended = self.ended or RecordingEnded(words)
        return self.ended

    async def play_exchange(self, exchange: Exchange) -> AsyncIterator[Sequence[Delta]]:
        """The deltas of one answer, in the recorded batches and at the recorded times; a request that failed fails
        again."""
        last = exchange.inputs[-1] if exchange.inputs else None
        left = last if last is not None and last.line.get("cancelled") else None
        try:
            so_far = PartialResponse()
            for together in group_arrivals([each for each in exchange.inputs if each is not left]):
                deltas: list[Delta] = []
                for each in together:
                    await self._queue.take(each)
                    if each.line["line"] == "failed":
                        raise read_error(each.line)
                    if each.line["line"] == "closed":
                        return
                    delta = read_delta(each.line, so_far)
                    so_far.feed(delta)
                    deltas.append(delta)
                yield deltas
            if left is not None or not exchange.whole:
                if self._broke_off:
                    raise self._end("in the middle of an answer")
                await self._queue.until_its_end()  # the run stopped reading here, and will cancel it again
                raise self._end("in the middle of an answer, and nobody leaves it as it was left then")
        except (asyncio.CancelledError, GeneratorExit):
            if left is not None:
                await self._queue.take_despite_cancel(left)
            raise

    # In place of checks

    async def check_input(self, prompt: User, call_next: CheckInput) -> User:
        """As the recorded run did."""
        event = self._checks.next("input", self._turn or 0)
        return prompt if event is None else prompt.with_text(event.text)

    async def check_output(self, output: Any, call_next: CheckOutput) -> Any:
        """As the recorded run did. A typed output that was replaced is checked again: only its text is recorded."""
        turn = self._turn or 0
        self._checks.raise_late(turn)
        event = self._checks.next("output", turn)
        if event is None:
            return output
        return event.text if isinstance(output, str) else await call_next(output)

    async def check_client_call(self, call: ToolCall) -> str:
        """As the recorded run did."""
        turn = self._turn or 0
        self._veto_calls(turn)
        return self._checks.refusal(call, turn)

    def _veto_calls(self, turn: int) -> None:
        for event in self._checks.vetoes(turn):
            if self._veto is not None:
                self._veto(Vetoed(event.text))

    # In place of the part of the run that another process ran (`Past`): everything is emitted again, and calls are
    # numbered and played from their beginning

    def began(self, prepared: Prepared, turn: int) -> bool:
        """Did this call wait for a person because its process had died while it ran?"""
        return (turn, prepared.call.id) in self._waits

    @property
    def replays_tools(self) -> bool:
        """Every result is the recorded one, unless the tools are live."""
        return self.tools == "recorded"

    def seconds_of(self, context: CallContext[Any]) -> float | None:
        """Its calls are replayed; only a result that was known before its call ran is known now."""
        if self.tools == "live":
            return None
        executions = self._executions.get((context.turn, context.call_id), ())
        return 0.0 if executions and not executions[0].started else None

    def went_to_background(self, turn: int, call_id: str) -> bool | None:
        """As recorded, unless the tools run."""
        return (turn, call_id) in self._background if self.tools == "recorded" else None

    def arrivals(self, turn: int) -> Collection[str] | None:
        """As recorded, unless the tools run."""
        return self._arrivals.get(turn, ()) if self.tools == "recorded" else None

    # In place of the tools

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        """Returns the recorded result. With `tools="live"` the tools run; so does the one that takes a typed answer."""
        if self.tools == "live":
            return await call_next(call, context)
        executions = self._executions.get((context.turn, call.id))
        if not executions and context.turn == self._last_turn and not isinstance(self.recording.ending, RunFinished):
            self._end(f"before `{call.name}` runs")
            return failure(call, "the recording ends here")
        if not executions:
            self._diverge(describe_call(call, context, self.recording))
            return failure(call, "this call is not in the recording")
        self._veto_calls(context.turn)
        execution = find_execution(executions, context.number)
        context.began = bool(execution.inputs)
        for place, each in enumerate(execution.inputs):
            match each.line["line"]:
                case "cancelled":
                    if not await self._cancelled_as(each):
                        break
                    raise asyncio.CancelledError
                case "result":
                    await self._queue.take_despite_cancel(each)
                    if call.name == self._live_name:
                        return await call_next(call, context)
                    for late in execution.inputs[place + 1 :]:
                        asyncio.get_running_loop().call_soon(self._say, late, context)
                    self._spend(each, context)
                    return replace(read_result(each.line["result"]), call_id=call.id)
                case "waits":
                    await self._queue.take_despite_cancel(each)
                    self._spend(each, context)
                    raise read_waits(each.line)
                case _:
                    await self._queue.take_despite_cancel(each)
                    self._say(each, context)
        if not self._broke_off:
            await self._queue.until_its_end()  # it was cancelled, and will be again
        self._end(f"while `{call.name}` runs")
        return failure(call, "the recording ends here")

    def _spend(self, each: Input, context: CallContext[Any]) -> None:
        if (
            usage := read_usage(each.line.get("usage"), each.line.get("cost"), each.line.get("cache_saving"))
        ) is not None:
            context.spend(usage)
        if calls := each.line.get("inner_calls"):
            context.count_calls(calls)

    async def _cancelled_as(self, each: Input) -> bool:
        """Waits until the run cancels the call as recorded, and for its end. False if that does not happen."""
        task = asyncio.current_task()
        if not (each.line.get("by_itself") or (task is not None and task.cancelling())):
            if self._broke_off:
                return False
            try:
                await self._queue.until_its_end()
            except asyncio.CancelledError:
                if self._queue.over:
                    raise
            else:
                return False
        await self._queue.take_despite_cancel(each)
        return True

    def _say(self, each: Input, context: CallContext[Any]) -> None:
        """Emits what the tool reported; its own thread may have reported it after the tool was done."""
        self._queue.skip(each)
        event = event_from_json(each.line)
        assert isinstance(event, CallEvent)
        own = [getattr(event, field.name) for field in fields(event)[_OF_CALL_EVENTS:]]
        context.say(type(event), context.number, context.call_id, event.name, *own)

    # In place of the approver

    def approver(self, on_approval: OnApproval | None) -> OnApproval | None:
        """Decides as recorded; with `tools="live"`, `on_approval` is asked."""
        if self.tools == "live" or (on_approval is None and not self._approvals):
            return on_approval

        async def played(call: ToolCall) -> Approval:
            decisions = self._approvals.get(call.id, [])
            each = next((each for each in decisions if self._turn in (None, each.line["turn"])), None)
            if each is None:
                await self._leave_undecided(call)
                raise self._diverge(
                    f"an approval of `{call.name}` ({call.id}) is asked for that is not in the recording"
                )
            decisions.remove(each)
            if each.line["line"] == "cancelled":
                raise asyncio.CancelledError if await self._cancelled_as(each) else self._never_approved(call)
            await self._queue.take_despite_cancel(each)
            return read_approval(each.line)

        return played

    async def _leave_undecided(self, call: ToolCall) -> None:
        """An approval that was requested and never answered: the run gave it up, and will again."""
        asked = any(
            line["event"] == "approval_asked" and line["call_id"] == call.id and self._turn in (None, line["turn"])
            for line in self.recording.of("event")
        )
        if not asked:
            return
        if self._broke_off:
            raise self._never_approved(call)
        await self._queue.until_its_end()

    def _never_approved(self, call: ToolCall) -> RecordingEnded:
        return self._end(f"before `{call.name}` is approved")


_OF_CALL_EVENTS = len(fields(CallEvent))
