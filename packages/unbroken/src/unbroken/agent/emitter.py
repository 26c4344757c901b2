"""Sends the events of a run to all listeners, and writes the log lines of `unbroken.tools`.

It decides nothing. A listener that fails is logged and removed: a listener must not break a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from unbroken.agent.run_state import Emitted
from unbroken.clock import Clock
from unbroken.events import (
    FLAT,
    ApprovalAsked,
    CallAdopted,
    CallBackgrounded,
    CallDropped,
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    ReasoningAdded,
    RoundFinished,
    Sink,
    TextAdded,
    ToolCallsDetected,
)
from unbroken.middleware import Listener, Middleware, wraps
from unbroken.tools.caller import QUOTED, Prepared
from unbroken.tools.futures import Futures
from unbroken.tools.schedule import Schedule
from unbroken.trajectory.counting import COUNTED_IN_RUN
from unbroken_wires.decoding.arguments import DOUBLE_ENCODED
from unbroken_wires.messages import Json, ToolCall, ToolResult, own

LOG = logging.getLogger("unbroken.tools")


class Emitter:
    """`emit(kind, *fields)` sends one event. If called from another thread, the loop sends it."""

    def __init__(self, run: str, clock: Clock, emitted: Emitted | None = None) -> None:
        self.run = run
        self.turn = 0
        self.emitted = emitted or Emitted()
        self._now = clock.now
        self._thread = get_ident()
        self._loop = asyncio.get_running_loop()
        self._listeners: list[tuple[Sink, bool]] = []
        """With each, whether it needs a copy of what it gets."""
        self._of_streams: list[Sink] = []
        """The listeners that receive text as it streams."""
        self.has_listeners = False
        self.in_detail = LOG.isEnabledFor(logging.DEBUG)
        """Log lines about single calls are written."""

    def listen(self, middleware: Sequence[Middleware]) -> None:
        """Adds listeners for the events from now on."""
        listening = [each for each in middleware if wraps(each, "on_event")]
        self._listeners = [(_sink(each), each.mutates) for each in listening]
        self._of_streams = [_sink(each) for each in listening if not each.sees_deltas]
        self.has_listeners = bool(listening)

    def end(self) -> None:
        """The run is over: threads that still work emit nothing more."""
        self._listeners, self._of_streams, self.has_listeners = [], [], False

    def emit(self, kind: type[Event], *fields: Any) -> None:
        counted = kind in COUNTED_IN_RUN
        if not (counted or self._listeners):
            return
        if get_ident() != self._thread:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.emit, kind, *fields)
            return
        emitted = self.emitted
        head = self.run, self.turn, emitted.next_seq, self._now()
        emitted.next_seq += 1
        shared: Event | None = None
        if counted:
            shared = kind(*head, *fields)
            emitted.counted.append(shared)
        for sink, mutates in self._listeners:
            if mutates:
                event = kind(*head, *(fields if kind in FLAT else map(own, fields)))
            else:
                event = shared = shared or kind(*head, *fields)
            self._send(sink, event)

    def emit_written(self, kind: type[Event], write: Callable[[bool], Sequence[Any]]) -> None:
        """Sends an event whose fields are large: `write(True)` makes them for a listener that may change them, in less
        time than to copy them; the others share those of `write(False)`."""
        counted = kind in COUNTED_IN_RUN
        if not (counted or self._listeners):
            return
        emitted = self.emitted
        head = self.run, self.turn, emitted.next_seq, self._now()
        emitted.next_seq += 1
        shared: Event | None = None
        if counted:
            shared = kind(*head, *write(False))
            emitted.counted.append(shared)
        for sink, mutates in self._listeners:
            if mutates:
                self._send(sink, kind(*head, *write(True)))
            else:
                shared = shared or kind(*head, *write(False))
                self._send(sink, shared)

    def emit_streamed(self, kind: type[TextAdded | ReasoningAdded], text: str) -> None:
        """Text as it streams. The event is numbered if anybody listens to the run, and built if anybody receives it."""
        if not self._listeners:
            return
        seq = self.emitted.next_seq
        self.emitted.next_seq += 1
        if self._of_streams:
            now = self._now()
            for sink in self._of_streams:
                self._send(sink, kind(self.run, self.turn, seq, now, text))

    def _send(self, sink: Sink, event: Event) -> None:
        try:
            sink(event)
        except BaseException as error:  # noqa: BLE001 - a listener must not break a run
            self._leave_out(sink, event, error)

    def _leave_out(self, sink: Sink, event: Event, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        LOG.error("A sink failed on %s and is left out from now on", type(event).__name__, exc_info=error)
        self._listeners = [each for each in self._listeners if each[0] != sink]
        self._of_streams = [each for each in self._of_streams if each != sink]


def _sink(middleware: Middleware) -> Sink:
    return middleware.sink if isinstance(middleware, Listener) else middleware.on_event


class RoundReporter:
    """Reports what happens to the calls of one message: the `Observer` of its `Batch`."""

    def __init__(self, emitter: Emitter, clock: Clock, schedule: Schedule, futures: Futures | None = None) -> None:
        self._emitter = emitter
        self._futures = futures
        self._clock = clock
        self._schedule = schedule
        self._count = 0
        self._numbers: list[int] = []
        """The calls of the response in call order, by number: what is known of it so far, then all of it."""
        self._failed = 0
        self._first_start: float | None = None
        self._loose: dict[int, ToolCall] = {}
        """Complete calls that are not in a message yet, by number."""

    def written(self, call: ToolCall) -> int:
        """A call is complete, or was cut off. Returns its number."""
        emitter = self._emitter
        number = emitter.emitted.next_call
        emitter.emitted.next_call += 1
        self._loose[number] = call
        self._numbers.append(number)
        if emitter.has_listeners:
            emitter.emit(CallWritten, number, call.id, call.name, call.arguments)
        return number

    def reopen(self, numbers: Sequence[int]) -> None:
        """These are the open calls of a given history."""
        self._count, self._numbers = len(numbers), [*numbers]

    def place(self, numbers: Iterable[int]) -> None:
        """These calls are now in a message."""
        for number in numbers:
            self._loose.pop(number, None)

    def detected(self, calls: Sequence[ToolCall], numbers: Sequence[int], cost: float | None) -> None:
        self._count = len(calls)
        self._numbers = [*numbers]
        self.place(numbers)
        self._emitter.emit_written(ToolCallsDetected, partial(_detected, calls, numbers, cost))
        LOG.info("Detected %d tool call%s in single response", len(calls), "" if len(calls) == 1 else "s")
        for call in calls:
            if call.problem:
                LOG.warning(
                    "Tool call %s (id=%s) skipped: Stream ended but JSON arguments incomplete or invalid. "
                    "Raw arguments: '%s'",
                    call.name,
                    call.id,
                    _first(call.raw),
                )
            if DOUBLE_ENCODED in call.notes:
                LOG.debug(
                    "Double JSON encoding detected for tool call '%s', performing second parse. Original: %s",
                    call.name,
                    _first(call.raw),
                )

    def asked(self, prepared: Prepared, uncertain: bool) -> None:
        call = prepared.call
        self._emitter.emit(ApprovalAsked, prepared.number, call.id, call.name, call.arguments or {}, uncertain)

    def started(self, prepared: Prepared, early: bool) -> None:
        call = prepared.call
        if self._first_start is None:
            self._first_start = self._clock.elapsed()
        report_started(self._emitter, prepared, early)
        if self._emitter.in_detail:
            place = self._place_of(prepared.number)
            count = max(self._count, place)
            LOG.debug("Executing tool %d/%d: %s(%s)", place, count, call.name, _written(call.arguments or {}))

    def _place_of(self, number: int) -> int:
        """From 1. A call that was shared or refused has its place too, though it does not start."""
        if number not in self._numbers:
            self._numbers.append(number)
        return self._numbers.index(number) + 1

    def restarted(self) -> None:
        """The response broke off: counting starts over."""
        self._failed = 0
        self._numbers.clear()

    def adopted(self, prepared: Prepared, number: int) -> None:
        self._loose.pop(number, None)
        self._emitter.emit(CallAdopted, prepared.number, prepared.call.id, prepared.call.name, number)

    def dropped(self, prepared: Prepared, reason: str) -> None:
        self.drop(prepared.number, prepared.call, reason)

    def drop(self, number: int, call: ToolCall, reason: str) -> None:
        """The call is not in a message and never will be."""
        self._loose.pop(number, None)
        if number in self._numbers:
            self._numbers.remove(number)
        self._emitter.emit(CallDropped, number, call.id, call.name, reason)
        LOG.debug("Tool call %s (id=%s) is in no message: %s", call.name, call.id, reason)

    def drop_loose(self, reason: str, but: Collection[int] = ()) -> None:
        """Drops the calls that are not in a message, except those with these numbers."""
        for number, call in [*self._loose.items()]:
            if number not in but:
                self.drop(number, call, reason)

    def finished(self, prepared: Prepared, result: ToolResult, seconds: float) -> None:
        if self._futures is not None and result.outcome == "running":
            call, handle = prepared.call, self._futures.handle_of(result)
            self._emitter.emit(CallBackgrounded, prepared.number, call.id, call.name, handle)
            LOG.info("Tool call %s (id=%s) continues in the background as %s", call.name, call.id, handle)
            self._futures.answered(prepared, result.duplicate_of, handle)
            return
        self._failed += result.error
        report_finished(self._emitter, prepared, result, seconds)

    def ended(self, cost: float | None) -> None:
        """All calls have their results."""
        seconds = 0.0 if self._first_start is None else round(self._clock.elapsed() - self._first_start, 9)
        self._emitter.emit(RoundFinished, self._count, self._failed, seconds, cost)
        plural = "" if self._count == 1 else "s"
        LOG.info("All %d tool call%s completed in %ss (%s)", self._count, plural, _Short(seconds), self._schedule.value)


def _detected(calls: Sequence[ToolCall], numbers: Sequence[int], cost: float | None, copy: bool) -> tuple[Any, ...]:
    each = [
        {"call": number, "id": call.id, "name": call.name, "arguments": own(call.arguments) if copy else call.arguments}
        for call, number in zip(calls, numbers, strict=True)
    ]
    return len(calls), [call.name for call in calls], each, cost


class _Short(float):
    """Seconds for a log line: 0.5, not 0.500."""

    def __str__(self) -> str:
        return f"{self:.3f}".rstrip("0").rstrip(".")


def _first(text: str) -> str:
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def _written(arguments: dict[str, Json]) -> str:
    text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"


def report_started(emitter: Emitter, prepared: Prepared, early: bool) -> None:
    call = prepared.call
    emitter.emit(CallStarted, prepared.number, call.id, call.name, call.arguments or {}, early)


def report_finished(emitter: Emitter, prepared: Prepared, result: ToolResult, seconds: float) -> None:
    """The call has its result."""
    call, outcome = prepared.call, result.outcome
    told = prepared.number, call.id, call.name, seconds, result.error, result.text, outcome, result.duplicate_of
    emitter.emit(CallFinished, *told)
    if outcome == "unknown":
        pass  # already logged where it was decided
    elif result.duplicate_of:
        LOG.debug("Tool call %s (id=%s) not executed: duplicate of %s", call.name, call.id, result.duplicate_of)
    elif outcome == "cached":
        LOG.debug("Tool call %s (id=%s) not executed: its result is cached", call.name, call.id)
    elif not result.error:
        if emitter.in_detail:
            LOG.debug("Tool %s completed in %ss", call.name, _Short(seconds))
    elif outcome != "not_executed":
        error = result.text.removeprefix("Error: ")
        LOG.error("Tool call %s failed: %s, continuing with next tool", call.name, error)
    else:
        LOG.debug("Tool call %s was answered without its tool: %s", call.name, result.text)
