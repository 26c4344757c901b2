"""What a picture shows of a run, from the lines of its recording in their order: turns, calls, and marks between them.

Times are in seconds from the start of the run, without the time before it was resumed. A `RunView`, which gets the
events, knows what became of the run; the deltas show how the answers arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unbroken.events import (
    AgentChanged,
    CallEvent,
    CallsIgnored,
    Compacted,
    Event,
    LimitReached,
    RequestSent,
    RoundFinished,
    ServerCallFinished,
    TextFinished,
    ToolCallsDetected,
)
from unbroken.run_view import RunView
from unbroken.trajectory.line_checks import is_number
from unbroken.trajectory.line_reader import read_event
from unbroken.trajectory.lines import Line
from unbroken_viewer.drawn_answers import DrawnAnswers
from unbroken_viewer.drawn_calls import DrawnCalls
from unbroken_viewer.picture_data import LONGEST_FIELD, CallLane, Clipper, Mark, words


class DrawnRun:
    """`read` takes every line, once. `model_only`: the recording holds only requests and answers of a model, not a
    run. `lead`: how many seconds before its recording the run began."""

    def __init__(self, clips: Clipper, began: float, model_only: bool = False, lead: float = 0.0) -> None:
        self.view = RunView()
        self.marks: list[Mark] = []
        self.now = 0.0
        self.times: list[float] = []
        """Of every line."""
        self.last = 0.0
        """The time of the last line, in seconds since `began`, with the time between a crash and a resume."""
        self._model_only = model_only
        self._began = began
        self._away = -lead
        """Seconds between a crash and a resume."""
        self._answers = DrawnAnswers(clips)
        self._calls = DrawnCalls(self.view, self._answers, clips)
        self.turns = self._answers.turns

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            kind = line["line"]
            if kind == "resumed":
                self._resume(line["at"])
            at = self._when(line)
            self.times.append(at)
            self.now = max(self.now, at)
            match kind:
                case "event":
                    if (event := read_event(_timed(line, at))) is not None:
                        self._take_event(event, at)
                case "delta":
                    self._answers.take(line, at)
                case "request":
                    self._answers.begin(line["turn"], at)
                case "failed":
                    self._answers.fail(line, at)
                case "result":
                    self._calls.take_result(line, at)
                case "approval":
                    self._calls.take_approval(line, at)
                case "note":
                    self._mark(at, "note", words(line, "text"))
                case _:
                    pass
        self._close()

    @property
    def calls(self) -> Iterator[CallLane]:
        return (call for turn in self.turns for call in turn.calls)

    def _when(self, line: Line) -> float:
        """Seconds from the start of the run."""
        if is_number(line.get("at")):
            at = line["at"]
        elif is_number(line.get("time")):
            at = line["time"] - self._began
        else:
            return self.now
        self.last = max(self.last, at)
        return max(round(at - self._away, 6), 0.0)  # a time of day is no more precise

    def _resume(self, at: float) -> None:
        away, self._away = at - self._away - self.now, at - self.now
        self._mark(self.now, "resumed", f"the run continues here, {_span(max(away, 0.0))} later")
        self._answers.resume(self.now)
        self._calls.resume(self.now)

    def _mark(self, at: float, kind: str, shown: str) -> None:
        self.marks.append(Mark(at, kind, shown))

    def _take_event(self, event: Event, at: float) -> None:
        self.view.feed(event)
        match event:
            case CallEvent():
                self._calls.take(event, at)
            case RequestSent():
                turn = self._answers.begin(event.turn, at)
                turn.messages, turn.tools, turn.final = event.messages, event.tools, event.final
                if event.changed:
                    self._mark(at, "prefix", f"{event.changed[:LONGEST_FIELD]} changed")
            case CallsIgnored():
                self._answers.turn(event.turn, at).ignored += [name[:LONGEST_FIELD] for name in event.names]
            case TextFinished() | ToolCallsDetected():
                self._answers.turn(event.turn, at).cost = event.cost
            case RoundFinished():
                turn = self._answers.turn(event.turn, at)
                turn.finished, turn.round_cost = at, event.cost
            case Compacted():
                self._answers.turn(event.turn, at).cost = event.cost
                shown = f"{event.before:,} to {event.after:,} tokens" if event.text else event.problem[:LONGEST_FIELD]
                self._mark(at, "compaction", shown)
            case ServerCallFinished():
                calls = self._answers.turn(event.turn, at).provider_calls
                asked = ", ".join(map(str, (event.arguments or {}).values()))[:LONGEST_FIELD]
                shown = f"{event.name[:LONGEST_FIELD]}({asked}) {event.error[:LONGEST_FIELD] or event.outcome}"
                if event.name in calls:
                    calls[calls.index(event.name)] = shown
                else:
                    calls.append(shown)
            case LimitReached():
                self._mark(at, "limit", f"{event.kind[:LONGEST_FIELD]}: {event.limit:g}")
            case AgentChanged():
                self._mark(at, "agent", f"handed off to {event.agent[:LONGEST_FIELD]}")
            case _:
                pass

    def _close(self) -> None:
        """Closes what has not ended, and finds which turns were rounds."""
        over = self.view.ended is not None
        if over:
            self._answers.end(self.now)
        self._answers.close()
        self._calls.close()
        rounds = 0
        for turn in self.turns:
            turn.calls = [lane for lane in turn.calls if not lane.void]
            for lane in turn.calls:
                if lane.ended is None and lane.state == "waiting" and (over or self._model_only):
                    lane.state = "dropped" if lane.died else "handed"
            turn.calls.sort(key=lambda lane: (lane.state != "dropped", lane.index))
            # After a limit the model is asked for an answer: calls in it are refused, and are not a round.
            if not turn.final and any(lane.state not in ("dropped", "withdrawn") for lane in turn.calls):
                turn.round = rounds = rounds + 1


def _timed(event: Line, at: float) -> Line:
    """The event with this time, and those of the agents that are in it."""
    inner = {"inner": _timed(event["inner"], at)} if isinstance(event.get("inner"), dict) else {}
    return {**event, **inner, "time": at}


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
