"""What is counted of a run, noted as it happens: a few values each, for `result.metrics`.

No event is built for it, since most runs are heard by nobody and never asked for their metrics. When they are, the
notes become the events that a sink would have heard, as far as they are counted, and the same fold reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from unbroken.events import CallFinished, CallStarted, Event, RequestRetried, RequestSent, ToolCallsDetected
from unbroken.messages import ToolCall, ToolResult
from unbroken.verdicts import Verdict

Note: TypeAlias = tuple[type[Event], int, float, tuple[Any, ...]]
"""The kind of event, its turn, its time where that is counted, and what it says."""


class Notes:
    __slots__ = ("taken",)

    def __init__(self, taken: Iterable[Note] = ()) -> None:
        self.taken: list[Note] = list(taken)

    def requested(self, turn: int) -> None:
        self.taken.append((RequestSent, turn, 0.0, (0, 0, False)))

    def retried(self, turn: int, verdict: Verdict) -> None:
        self.taken.append((RequestRetried, turn, 0.0, (verdict.attempt, verdict.kind, "")))

    def detected(self, turn: int, time: float, calls: Sequence[ToolCall]) -> None:
        self.taken.append((ToolCallsDetected, turn, time, (calls,)))

    def started(self, turn: int, time: float, call: ToolCall) -> None:
        """Early: of other calls the start does not count."""
        self.taken.append((CallStarted, turn, time, (call.id, call.name, {}, True)))

    def finished(
        self,
        turn: int,
        call: ToolCall,
        result: ToolResult,
        seconds: float,
        executed: bool,
        adopted_from: str,
        dropped: bool = False,
    ) -> None:
        told = call.id, call.name, seconds, result.error, "", result.duplicate_of, executed, adopted_from, dropped
        self.taken.append((CallFinished, turn, 0.0, (*told, result.uncertain)))


def events_of(notes: Iterable[Note], run: str) -> Iterator[Event]:
    for seq, (kind, turn, time, fields) in enumerate(notes):
        if kind is ToolCallsDetected:
            (calls,) = fields
            each = [{"id": call.id, "name": call.name} for call in calls]
            yield ToolCallsDetected(run, turn, seq, time, len(each), [call.name for call in calls], each)
        else:
            yield kind(run, turn, seq, time, *fields)


def notes_of(events: Iterable[Event]) -> tuple[Note, ...]:
    """What would have been noted of a run that said these events."""
    notes = Notes()
    for event in events:
        match event:
            case RequestSent():
                notes.requested(event.turn)
            case RequestRetried():
                notes.taken.append((RequestRetried, event.turn, 0.0, (event.attempt, event.kind, "")))
            case ToolCallsDetected():
                calls = [ToolCall(str(call.get("id")), str(call.get("name")), None) for call in event.calls]
                notes.detected(event.turn, event.time, calls)
            case CallStarted() if event.early:
                notes.started(event.turn, event.time, ToolCall(event.call_id, event.name, None))
            case CallFinished():
                told = (event.call_id, event.name, event.seconds, event.error, "", event.duplicate_of)
                more = (event.executed, event.adopted_from, event.dropped, event.uncertain)
                notes.taken.append((CallFinished, event.turn, 0.0, (*told, *more)))
            case _:
                pass
    return tuple(notes.taken)
