"""Says what happens in a run: stamps events and hands them to sinks, and writes the log lines of `unbroken.tools`.

It decides nothing. A sink that fails is left out from then on: nobody who only listens may break a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from unbroken.agent.notes import Notes
from unbroken.clock import Clock
from unbroken.decoding.arguments import DOUBLE_ENCODED
from unbroken.events import (
    ApprovalAsked,
    CallFinished,
    CallStarted,
    Event,
    ReasoningAdded,
    RoundFinished,
    Sink,
    TextAdded,
    ToolCallsDetected,
)
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.calling import QUOTED, Prepared, quote
from unbroken.tools.schedule import Schedule

LOG = logging.getLogger("unbroken.tools")


class Voice:
    """`say(kind, *fields)` sends one event; from another thread it is sent by the loop, in its turn."""

    def __init__(self, run: str, clock: Clock, sinks: Sequence[Sink], seq: int = 0) -> None:
        self.run = run
        self.turn = 0
        self.notes = Notes()
        self._now = clock.now
        self.next_seq = seq
        self._thread = get_ident()
        self._loop = asyncio.get_running_loop()
        self.listen_to(sinks)

    @property
    def heard(self) -> bool:
        """Is anybody listening? Then what is said often is worth saying."""
        return bool(self.sinks)

    @property
    def has_ears(self) -> bool:
        """Is there anybody who does not hear the answers and the history for himself?"""
        return bool(self._ears)

    def listen_to(self, sinks: Sequence[Sink]) -> None:
        """These hear it from now on, in place of those who did."""
        self.sinks = list(sinks)
        self._ears = [sink for sink in sinks if not getattr(sink, "hears_deltas", False)]

    def end(self) -> None:
        """The run is over: a thread that still works says nothing any more."""
        self.listen_to(())

    def say(self, kind: type[Event], *fields: Any) -> None:
        if not self.sinks:
            return
        if get_ident() != self._thread:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.say, kind, *fields)
            return
        event = kind(self.run, self.turn, self.next_seq, self._now(), *fields)
        self.next_seq += 1
        for sink in self.sinks:
            try:
                sink(event)
            except BaseException as error:  # noqa: BLE001 - nobody who only listens may break a run
                self._leave_out(sink, event, error)

    def say_piece(self, kind: type[TextAdded | ReasoningAdded], text: str) -> None:
        """A piece of a stream, just as it came. It is not built for those who heard it come themselves; where there is
        nobody else it is enough to count it (`next_seq`)."""
        event = kind(self.run, self.turn, self.next_seq, self._now(), text)
        self.next_seq += 1
        for sink in self._ears:
            try:
                sink(event)
            except BaseException as error:  # noqa: BLE001 - nobody who only listens may break a run
                self._leave_out(sink, event, error)

    def _leave_out(self, sink: Sink, event: Event, error: BaseException) -> None:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        LOG.error("A sink failed on %s and is left out from now on", type(event).__name__, exc_info=error)
        self.listen_to([other for other in self.sinks if other is not sink])


class RoundVoice:
    """Says what happens to the calls of one message: an `Observer` of its `Batch`."""

    def __init__(self, voice: Voice, clock: Clock, schedule: Schedule, count: int = 0) -> None:
        self._voice = voice
        self._clock = clock
        self._schedule = schedule
        self._count = count
        self._begun = 0
        self._failed = 0
        self._first_start: float | None = None
        self._in_detail = LOG.isEnabledFor(logging.DEBUG)

    def detected(self, calls: Sequence[ToolCall]) -> None:
        self._count = len(calls)
        self._voice.notes.detected(self._voice.turn, self._clock.now(), calls)
        if self._voice.heard:
            each = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
            self._voice.say(ToolCallsDetected, len(calls), [call.name for call in calls], each)
        LOG.info("Detected %d tool calls in single response", len(calls))
        for call in calls:
            if call.problem:
                LOG.warning(
                    "Tool call %s (id=%s) skipped: Stream ended but JSON arguments incomplete or invalid. "
                    "Raw arguments: '%s'",
                    call.name,
                    call.id,
                    call.raw if len(call.raw) <= QUOTED else f"{call.raw[:QUOTED]}...",
                )
            if DOUBLE_ENCODED in call.notes:
                LOG.debug("Double JSON encoding detected for tool call '%s', performing second parse.", call.name)

    def asked(self, call: ToolCall) -> None:
        self._voice.say(ApprovalAsked, call.id, call.name, call.arguments or {})

    def started(self, prepared: Prepared, early: bool) -> None:
        call = prepared.call
        self._begun += 1
        if self._first_start is None:
            self._first_start = self._clock.elapsed()
        if early:
            self._voice.notes.started(self._voice.turn, self._clock.now(), call)
        self._voice.say(CallStarted, call.id, call.name, call.arguments or {}, early)
        if self._in_detail:
            count = max(self._count, self._begun)
            LOG.debug("Executing tool %d/%d: %s(%s)", self._begun, count, call.name, quote(call.arguments or {}))

    def restarted(self) -> None:
        """The message broke off: what is counted is counted anew."""
        self._begun = self._failed = 0

    def dropped(self, call: ToolCall, result: ToolResult, seconds: float) -> None:
        """It belongs to a message that broke off, and to no other."""
        told = call.id, call.name, seconds, result.error, result.text, "", True, "", True
        self._voice.notes.finished(self._voice.turn, call, result, seconds, True, "", dropped=True)
        self._voice.say(CallFinished, *told)
        LOG.debug("Tool call %s is of no message any more: %s", call.name, result.text)

    def finished(self, call: ToolCall, result: ToolResult, seconds: float, executed: bool, adopted_from: str) -> None:
        self._failed += result.error
        self._voice.notes.finished(self._voice.turn, call, result, seconds, executed, adopted_from)
        if self._voice.heard:
            twin = result.duplicate_of
            self._voice.say(
                CallFinished, call.id, call.name, seconds, result.error, result.text, twin, executed, adopted_from
            )
        if not result.error:
            if self._in_detail:
                LOG.debug("Tool %s completed in %.3fs", call.name, seconds)
        elif executed:
            error = result.text.removeprefix("Error: ")
            LOG.error("Tool call %s failed: %s, continuing with next tool", call.name, error)
        else:
            LOG.debug("Tool call %s was answered without its tool: %s", call.name, result.text)

    def ended(self, waiting: bool) -> None:
        if waiting:
            return
        seconds = 0.0 if self._first_start is None else round(self._clock.elapsed() - self._first_start, 9)
        self._voice.say(RoundFinished, self._count, self._failed, seconds)
        LOG.info("All %d tool calls completed in %.3fs (%s)", self._count, seconds, self._schedule.value)
