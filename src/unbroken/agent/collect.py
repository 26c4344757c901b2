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
    CallAdopted,
    CallDropped,
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    TextAdded,
    TextFinished,
    TextReplaced,
    TodoUpdated,
    ToolCallsDetected,
)
from unbroken.messages import Json, Outcome, Usage


@dataclass(slots=True)
class CollectedCall:
    number: int
    """Unique in its run."""
    id: str
    name: str
    turn: int
    arguments: dict[str, Json] | None = None
    """None if they were cut."""
    text: str | None = None
    """The result as the model read it. None if there is none: the call waits, or the run ended before."""
    error: bool = False
    outcome: Outcome | None = None
    """None as long as it has no result."""
    seconds: float = 0.0
    early: bool = False
    duplicate_of: str = ""
    adopted: int | None = None
    """The number of the call that it continues: of a broken response, or of a process that died."""


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
    """Calls that had started, and are in no message: their response broke off, say."""
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
        self._calls: dict[int, CollectedCall] = {}
        """All that were written, by number."""
        self._listed: set[int] = set()
        """Those of them that are in `calls`, or were."""
        self._saying: list[str] = []
        """Of this turn. Joined once: to join at each piece would cost the square of a long answer."""
        self._unsaid = False
        """Has `text` still to be made of it?"""
        self._reasoning: list[str] = []
        self._thinking_in: int | None = None
        self._thinking_from = 0
        """Where in `_reasoning` that turn begins."""

    def take(self, event: Event) -> None:
        collected = self.collected
        collected.run = collected.run or event.run
        collected.events.append(event)
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
            case RequestRetried():
                collected.retries.append(event)
            case TextFinished():
                self._say(event)
            case ToolCallsDetected():
                self._put_in_order(event)
            case CallWritten():
                self._calls[event.call] = CollectedCall(
                    event.call, event.call_id, event.name, event.turn, event.arguments
                )
            case ApprovalAsked():
                self._call(event.call, event.call_id, event.name, event.turn).arguments = event.arguments
            case CallStarted():
                call = self._call(event.call, event.call_id, event.name, event.turn)
                call.arguments, call.early = event.arguments, event.early
            case CallFinished():
                call = self._call(event.call, event.call_id, event.name, event.turn)
                call.text, call.error, call.outcome = event.text, event.error, event.outcome
                call.seconds, call.duplicate_of = event.seconds, event.duplicate_of
            case CallAdopted():
                self._adopt(event)
            case CallDropped():
                if (call := self._take_out(event.call)) is not None:
                    collected.dropped.append(call)
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

    def _say(self, event: TextFinished) -> None:
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

    def _adopt(self, event: CallAdopted) -> None:
        """It stands for the call that it continues."""
        call = self._call(event.call, event.call_id, event.name, event.turn)
        call.adopted = event.adopted
        if (before := self._take_out(event.adopted)) is not None:
            call.arguments, call.early = before.arguments, before.early
            call.text, call.error, call.outcome, call.seconds = (
                before.text,
                before.error,
                before.outcome,
                before.seconds,
            )

    def _take_out(self, number: int) -> CollectedCall | None:
        """The call with this number, if it is listed; then no more."""
        call = self._calls.pop(number, None)
        listed = [each for each in self.collected.calls if each is not call]
        if len(listed) == len(self.collected.calls):
            return None
        self.collected.calls = listed
        return call

    def _put_in_order(self, event: ToolCallsDetected) -> None:
        """Some have started already, in an order of their own."""
        for told in event.calls:
            self._call(told["call"], told["id"], told["name"], event.turn).arguments = told["arguments"]
        place = {told["call"]: place for place, told in enumerate(event.calls)}
        calls = self.collected.calls
        begin = next((n for n, call in enumerate(calls) if call.turn == event.turn), len(calls))
        calls[begin:] = sorted(calls[begin:], key=lambda call: place.get(call.number, len(place)))

    def _finish(self, event: RunFinished) -> None:
        collected = self.collected
        collected.text, collected.stop_reason, self._unsaid = event.text, event.stop_reason, False
        collected.rounds, collected.requests, collected.seconds = event.rounds, event.requests, event.seconds
        collected.usage, collected.pending, collected.failed = _usage(event.usage), event.pending, None
        collected.complete, collected.fallback_used = event.complete, event.fallback_used
        collected.attempts, collected.verdicts = event.attempts, event.verdicts
        for waiting in event.pending:
            self._call(waiting["call"], waiting["id"], waiting["name"], event.turn)

    def _call(self, number: int, id: str, name: str, turn: int) -> CollectedCall:
        """The call with this number. It is listed from now on."""
        call = self._calls.get(number)
        if call is None:
            call = self._calls[number] = CollectedCall(number, id, name, turn)
        if number not in self._listed:
            self._listed.add(number)
            self.collected.calls.append(call)
        return call


def _usage(saved: dict[str, Any]) -> Usage:
    names = {field.name for field in fields(Usage)}
    return Usage(**{name: value for name, value in saved.items() if name in names})
