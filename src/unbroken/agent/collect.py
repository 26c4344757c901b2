"""`collect`: what a run came to, from its events alone: they may come from a stream, a file or another machine.

`Result` is the run's own account and can be gone on with; this is a reader's, and knows what readers are told: text,
reasoning, calls with their times, the list of what is to be done.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from unbroken.events import (
    ApprovalAsked,
    CallFinished,
    CallStarted,
    Event,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    Said,
    TextAdded,
    TextReplaced,
    TodoUpdated,
    ToolCallsDetected,
)
from unbroken.messages import Json, Usage


@dataclass(slots=True)
class CollectedCall:
    id: str
    name: str
    turn: int
    arguments: dict[str, Json] | None = None
    """None if they were cut."""
    text: str | None = None
    """The result as the model read it. None if there is none: the call waits, or the run ended before."""
    error: bool = False
    seconds: float = 0.0
    early: bool = False
    duplicate_of: str = ""
    executed: bool = False
    adopted_from: str = ""
    uncertain: bool = False
    """Its process died while the tool ran: whether the call took effect is not known."""
    """The call of a broken response whose execution it took over. The ids may be equal."""


@dataclass(slots=True)
class Collected:
    """What the events said. `text` is the answer; of a run that did not end, what it said last."""

    run: str = ""
    text: str = ""
    texts: list[str] = field(default_factory=list[str])
    """What was said in each turn that said something, the last one included."""
    thoughts: list[str] = field(default_factory=list[str])
    """Of these, the ones that calls followed."""
    reasoning: str = ""
    """Of all turns, with an empty line between them."""
    calls: list[CollectedCall] = field(default_factory=list[CollectedCall])
    """In call order, turn by turn."""
    dropped: list[CollectedCall] = field(default_factory=list[CollectedCall])
    """Calls that had started in a response that broke off, and were not in the one that counts."""
    todos: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """The last list."""
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    """Empty if the run failed, or if its end is not among the events."""
    rounds: int = 0
    requests: int = 0
    seconds: float = 0.0
    pending: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    complete: bool = False
    """The run ended, and every call of its history has its result."""
    fallback_used: bool = False
    attempts: int = 0
    """Requests that were sent, with those that failed."""
    retries: list[RequestRetried] = field(default_factory=list[RequestRetried])
    verdicts: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """What was wrong with each response that was not whole, where the run's end says it."""
    failed: RunFailed | None = None
    events: list[Event] = field(default_factory=list[Event])

    @classmethod
    def of(cls, events: Iterable[Event]) -> Collected:
        """The same as `collect`, for events that are all there."""
        collector = _Collector()
        for event in events:
            collector.take(event)
        return collector.end()


async def collect(stream: AsyncIterable[Event]) -> Collected:
    """Reads a stream of events to its end. If the stream raises there, as that of a failed run does, so does this;
    of events that were saved, `failed` tells it."""
    collector = _Collector()
    async for event in stream:
        collector.take(event)
    return collector.end()


class _Collector:
    def __init__(self) -> None:
        self.collected = Collected()
        self._calls: dict[str, CollectedCall] = {}
        self._saying: list[str] = []
        """Of this turn. Joined once: to join at each piece would cost the square of a long answer."""
        self._unsaid = False
        """Has `text` still to be made of it?"""
        self._reasoning: list[str] = []
        self._thinking_in: int | None = None
        self._thinking_from = 0
        """Where in `_reasoning` that turn begins."""
        self._turn_from = 0
        """Where in `calls` this turn begins."""
        self._lost: dict[str, CollectedCall] = {}

    def take(self, event: Event) -> None:
        collected = self.collected
        collected.run = collected.run or event.run
        collected.events.append(event)
        lost = isinstance(event, CallFinished) and event.dropped
        match event:
            case TextAdded():
                self._saying.append(event.text)
                self._unsaid = True
            case TextReplaced():
                self._saying = [event.text]
                self._unsaid = True
            case ReasoningAdded():
                self._think(event)
            case ReasoningReplaced():
                del self._reasoning[self._thinking_from :]
                self._reasoning.append(event.text)
            case RequestSent():
                self._join()
                self._saying.clear()
                self._turn_from = len(collected.calls)
                self._lost.clear()
            case RequestRetried():
                collected.retries.append(event)
                self._lose_calls()
            case Said():
                self._say(event)
            case ToolCallsDetected():
                self._put_in_order(event)
            case ApprovalAsked():
                self._call(event.call_id, event.name, event.turn).arguments = event.arguments
            case CallStarted():
                call = self._call(event.call_id, event.name, event.turn)
                call.arguments, call.early = event.arguments, event.early
            case CallFinished():
                self._finish_call(event, lost)
            case TodoUpdated():
                collected.todos = event.todos
            case RunFinished():
                self._finish(event)
            case RunFailed():
                collected.failed = event
            case _:
                pass

    def end(self) -> Collected:
        self._join()
        self.collected.reasoning = "".join(self._reasoning)
        return self.collected

    def _join(self) -> None:
        if self._unsaid:
            self.collected.text = "".join(self._saying)
            self._unsaid = False

    def _say(self, event: Said) -> None:
        self.collected.text, self._unsaid = event.text, False
        self.collected.texts.append(event.text)
        if not event.final:
            self.collected.thoughts.append(event.text)

    def _think(self, event: ReasoningAdded) -> None:
        if self._thinking_in != event.turn:
            if self._thinking_in is not None:
                self._reasoning.append("\n\n")
            self._thinking_in, self._thinking_from = event.turn, len(self._reasoning)
        self._reasoning.append(event.text)

    def _lose_calls(self) -> None:
        """The response broke off. Its calls are of no message, unless they are taken over."""
        calls = self.collected.calls
        for call in calls[self._turn_from :]:
            self._lost[call.id] = call
            self._calls.pop(call.id, None)
        self.collected.dropped += calls[self._turn_from :]
        del calls[self._turn_from :]

    def _finish_call(self, event: CallFinished, lost: bool) -> None:
        before = self._lost.get(event.adopted_from or event.call_id) if lost or event.adopted_from else None
        if lost and before is not None:
            call = before
        else:
            call = self._call(event.call_id, event.name, event.turn)
            if before is not None:
                call.arguments, call.early = before.arguments, before.early
                self.collected.dropped = [each for each in self.collected.dropped if each is not before]
        call.text, call.error, call.seconds = event.text, event.error, event.seconds
        call.duplicate_of, call.executed, call.adopted_from = event.duplicate_of, event.executed, event.adopted_from
        call.uncertain = event.uncertain

    def _put_in_order(self, event: ToolCallsDetected) -> None:
        """Some have started already, in an order of their own."""
        for told in event.calls:
            self._call(told["id"], told["name"], event.turn).arguments = told["arguments"]
        place = {told["id"]: number for number, told in enumerate(event.calls)}
        calls = self.collected.calls
        begin = next((n for n, call in enumerate(calls) if call.turn == event.turn), len(calls))
        calls[begin:] = sorted(calls[begin:], key=lambda call: place.get(call.id, len(place)))

    def _finish(self, event: RunFinished) -> None:
        collected = self.collected
        collected.text, collected.stop_reason, self._unsaid = event.text, event.stop_reason, False
        collected.rounds, collected.requests, collected.seconds = event.rounds, event.requests, event.seconds
        collected.usage, collected.pending, collected.failed = _usage(event.usage), event.pending, None
        collected.complete, collected.fallback_used = event.complete, event.fallback_used
        collected.attempts, collected.verdicts = event.attempts, event.verdicts
        for waiting in event.pending:
            self._call(waiting["id"], waiting["name"], event.turn)

    def _call(self, id: str, name: str, turn: int) -> CollectedCall:
        """The call with this id. Ids may come again in a later turn; while a call has no result, it is the same one."""
        call = self._calls.get(id)
        if call is None or (call.text is not None and call.turn != turn):
            call = self._calls[id] = CollectedCall(id, name, turn)
            self.collected.calls.append(call)
        return call


def _usage(saved: dict[str, Any]) -> Usage:
    names = {field.name for field in fields(Usage)}
    return Usage(**{name: value for name, value in saved.items() if name in names})
