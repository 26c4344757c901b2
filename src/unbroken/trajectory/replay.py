"""Plays a recording: in place of the model, of the tools and of who approves, so that a run happens once more.

Strategy. What went into the run (deltas, results, decisions, what tools reported) is a tape of inputs in the order in
which they came. Each is given to whoever asks for it, when its time has come, when all before it were given, and when
the run has said all that it had said before it: so the run goes the same way again, to the byte on virtual time. A run
that asks for something else departs from the recording, and is told where.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias

from unbroken.deltas import Delta
from unbroken.errors import UserError
from unbroken.events import Event, RunFailed, RunFinished, event_from_json
from unbroken.messages import Message, Request, ToolCall, ToolResult, User
from unbroken.models.model import Model, apart, reads_together
from unbroken.tools.approval import Approval, OnApproval
from unbroken.tools.calling import Caller, failure
from unbroken.tools.context import CallContext
from unbroken.trajectory.companion import Companion, Ear, RunHead
from unbroken.trajectory.departure import Departed, compare_requests, describe_call
from unbroken.trajectory.lines import CAUSED_BY_TOOLS, Hearing, Line, read_approval, read_delta, read_error, read_usage
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.tape import Exchange, Input, Tape, came_together, read_tape
from unbroken.transcript import from_json
from unbroken.transcript.saved import read_result
from unbroken.virtual import VirtualLoop

PlayedClock: TypeAlias = Literal["virtual", "real"]
PlayedTools: TypeAlias = Literal["recorded", "live"]


class RecordingEnded(UserError):
    """The recording does not say how it went on."""


def replay(
    path: str | os.PathLike[str] | Recording,
    *,
    clock: PlayedClock = "virtual",
    tools: PlayedTools = "recorded",
    speed: float = 1.0,
) -> Playback:
    """A recording, ready to be played: `playback.model` and `playback.caller` take the places of the real ones;
    `agent.replay(path)` does it all. `clock="real"` takes as long as the run took, divided by `speed`. With
    `tools="live"` the tools run, and only the model is played."""
    for name, given, known in (("clock", clock, ("virtual", "real")), ("tools", tools, ("recorded", "live"))):
        if given not in known:
            raise UserError(f"replay({name}={given!r}): it is one of {' and '.join(map(repr, known))}")
    if not speed > 0:
        raise UserError(f"replay(speed={speed!r}): it is a number above 0")
    recording = path if isinstance(path, Recording) else read_recording(path)
    return Playback(recording, clock, tools, speed)


class Playback(Companion):
    """One recording on its way. Each can be played once."""

    hears_deltas = True

    def __init__(self, recording: Recording, clock: PlayedClock, tools: PlayedTools, speed: float) -> None:
        self.recording = recording
        self.clock: PlayedClock = clock
        self.tools: PlayedTools = tools
        self.departed: Departed | None = None
        """Where the run went another way, if it did."""
        self.ended: RecordingEnded | None = None
        """Where the recording ended before the run, if it did."""
        self._exchanges, self._executions, self._approvals = read_tape(recording)
        output: Line = recording.settings.get("output") or {}
        self._live_name: str = output.get("tool", "")
        self._asked = 0
        self._last_turn = self._exchanges[-1].request.turn if self._exchanges else 0
        self._accompanies = False
        played = [each for exchange in self._exchanges for each in exchange.inputs]
        if tools == "recorded":
            played += [each for some in self._executions.values() for one in some for each in one.inputs]
            played += [each for some in self._approvals.values() for each in some]
        self._tape = Tape(played, speed if clock == "real" else 1.0)

    @property
    def run(self) -> str:
        """The id of the run that was recorded."""
        return self.recording.run

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history that the run began with; what was asked is its last message."""
        return from_json(self.recording.head.get("messages", []))

    @property
    def question(self) -> User | None:
        """What was asked once the calls had run in which that history ended."""
        saved = self.recording.head.get("question")
        message = from_json([saved])[0] if saved else None
        return message if isinstance(message, User) else None

    @property
    def left(self) -> int:
        """Inputs that nobody has asked for."""
        return self._tape.left

    def loop(self) -> asyncio.AbstractEventLoop:
        """A new loop to play it on, whose time is that of the recording if it is virtual."""
        if self.clock == "real":
            return asyncio.new_event_loop()
        began = self.recording.virtual or {"start": self.recording.time, "elapsed": 0.0}
        loop = VirtualLoop(began["start"])
        loop.clock.advance(began["elapsed"])
        return loop

    def accompany(self, head: RunHead) -> Companion:
        """The run that begins is the one to play: its time counts from now. An agent asks for it."""
        self._accompanies = True
        self._tape.begin(ordered=self.tools == "recorded")
        return self

    def __call__(self, event: Event) -> None:
        if not isinstance(event, CAUSED_BY_TOOLS):
            self._tape.said()

    def end(self) -> None:
        """The run is over: it lets go of the loop."""
        self._tape.end()

    def listens(self, request: Request) -> Ear:
        """Who hears an answer is told each piece of it, as it was told then."""
        return _Witness()

    # In place of the model

    def model(self, model: Model | None = None) -> Model:
        """Answers as the model did then; the one that is given is not asked."""
        return _PlayedModel(self)

    def next_exchange(self, request: Request) -> Exchange:
        """The next answer that was recorded. `Departed` if this is not the request for it, `RecordingEnded` if there is
        none because the recorded run broke off."""
        if self.departed is not None or self.ended is not None:
            raise self.departed or self.ended or AssertionError
        place, self._asked = self._asked, self._asked + 1
        if place >= len(self._exchanges):
            if not isinstance(self.recording.ending, RunFinished):
                raise self._end("here")
            raise self._depart(f"request {place} is not in the recording, which has {len(self._exchanges)}")
        exchange = self._exchanges[place]
        if words := compare_requests(exchange.request, request, place):
            raise self._depart(words)
        return exchange

    def _depart(self, words: str) -> Departed:
        self.departed = self.departed or Departed(words)
        return self.departed

    def _end(self, where: str) -> RecordingEnded:
        ending = self.recording.ending
        why = f"the run failed there ({ending.error})" if isinstance(ending, RunFailed) else "its run was cut off"
        words = f"{self.recording.path} ends {where}: {why}; `agent.resume` goes on"
        self.ended = self.ended or RecordingEnded(words)
        return self.ended

    async def play_exchange(self, exchange: Exchange) -> AsyncIterator[Sequence[Delta]]:
        """The deltas of one answer, those together that came together, each when its time has come; a request that
        failed then fails again."""
        self._begin_alone()
        hearing = Hearing()
        for together in came_together(exchange.inputs):
            deltas: list[Delta] = []
            for each in together:
                await self._tape.take(each)
                if each.line["line"] == "failed":
                    raise read_error(each.line)
                delta = read_delta(each.line, hearing)
                hearing.feed(delta)
                deltas.append(delta)
            yield deltas
        if not exchange.whole:
            if not isinstance(self.recording.ending, RunFinished):
                raise self._end("in the middle of an answer")
            await self._tape.until_its_end()  # it was left there: somebody will cancel it again
            raise self._end("in the middle of an answer, and nobody leaves it as it was left then")

    # In place of the tools

    def caller(self, caller: Caller) -> Caller:
        """Gives what the tools gave then; with `tools="live"` they run."""

        async def played(call: ToolCall, context: CallContext[Any]) -> ToolResult:
            if self.tools == "live":
                return await caller(call, context)
            return await self.play_call(call, context, caller)

        return played

    async def play_call(self, call: ToolCall, context: CallContext[Any], live: Caller | None = None) -> ToolResult:
        """What the call gave, as it was recorded. `live` runs what has to run: the tool that takes a typed answer."""
        self._begin_alone()
        executions = self._executions.get((context.turn, call.id))
        if not executions and context.turn == self._last_turn and not isinstance(self.recording.ending, RunFinished):
            self._end(f"before `{call.name}` runs")
            return failure(call, "the recording ends here")
        if not executions:
            self._depart(describe_call(call, context, self.recording))
            return failure(call, "this call is not in the recording")
        execution = executions.pop(0) if len(executions) > 1 else executions[0]
        for place, each in enumerate(execution.inputs):
            await self._tape.take(each)
            if each.line["line"] == "result":
                for late in execution.inputs[place + 1 :]:
                    asyncio.get_running_loop().call_soon(self._say, late, context)
                if live is not None and call.name == self._live_name:
                    return await live(call, context)
                if (usage := read_usage(each.line.get("usage"))) is not None:
                    context.spend(usage)
                return replace(read_result(each.line["result"]), call_id=call.id)
            self._say(each, context)
        if isinstance(self.recording.ending, RunFinished):
            await self._tape.until_its_end()  # it was cancelled, and will be again
        self._end(f"while `{call.name}` runs")
        return failure(call, "the recording ends here")

    def _say(self, each: Input, context: CallContext[Any]) -> None:
        """What the tool said; a thread of its own may have said it when the tool was done."""
        self._tape.pass_by(each)
        event = event_from_json(each.line)
        context.say(type(event), *(getattr(event, field.name) for field in fields(event)[4:]))

    # In place of who approves

    def approval(self, on_approval: OnApproval | None) -> OnApproval | None:
        """Decides as it was decided then; with `tools="live"`, who is given is asked."""
        if self.tools == "live" or not self._approvals:
            return on_approval

        async def played(call: ToolCall) -> Approval:
            decisions = self._approvals.get(call.id)
            if not decisions:
                raise self._depart(
                    f"an approval of `{call.name}` ({call.id}) is asked for that is not in the recording"
                )
            each = decisions.pop(0)
            await self._tape.take(each)
            return read_approval(each.line)

        return played

    def _begin_alone(self) -> None:
        """Played without a run that is accompanied: what is said is not heard, so only time orders what comes."""
        if not self._accompanies:
            self._accompanies = True
            self._tape.begin(ordered=False)


class _Witness:
    """An ear that does nothing."""

    def __call__(self, deltas: Sequence[Delta]) -> None:
        pass

    def end(self, error: BaseException | None) -> None:
        pass


@reads_together
class _PlayedModel:
    def __init__(self, playback: Playback) -> None:
        self._playback = playback

    @property
    def name(self) -> str:
        return self._playback.recording.model

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        return apart(self.reads(request))

    def reads(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return self._playback.play_exchange(self._playback.next_exchange(request))
