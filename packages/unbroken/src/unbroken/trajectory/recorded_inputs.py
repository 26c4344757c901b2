"""Reads the inputs of a recorded run from its lines, in their order: what the model said, what tools returned and
reported, and what was decided about approvals. `input_queue` delivers them, `replay` connects them to a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from unbroken.events import NAMES
from unbroken.trajectory.lines import CAUSED_BY_TOOLS, Line
from unbroken.trajectory.recording import RecordedRequest, Recording

_CAUSED_BY_TOOLS = [NAMES[kind] for kind in CAUSED_BY_TOOLS]


@dataclass(slots=True)
class Input:
    """Something that went into the run."""

    at: float
    line: Line
    events_before: int
    """How many events the run had emitted by then."""
    place: int
    same_step: bool = False
    """It came in the same step of the event loop as an input before it, whose effect is recorded after it."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    request: RecordedRequest
    inputs: list[Input]
    whole: bool = False
    """The answer is complete: it has an end, or an error."""


@dataclass(slots=True)
class Execution:
    """A tool that ran: what it reported, and its result."""

    call: int
    """The number of the call that started it."""
    inputs: list[Input]
    started: bool = True
    """False if its result was known before it ran."""


def group_arrivals(inputs: Sequence[Input]) -> Iterator[list[Input]]:
    """The pieces of one answer, grouped: pieces in one list arrived before the run acted on any of them, so they have
    the same time and nothing happened in between. An error is a group of its own."""
    together: list[Input] = []
    for each in inputs:
        if together and not _came_with(each, together[-1]):
            yield together
            together = []
        together.append(each)
    if together:
        yield together


def _came_with(each: Input, last: Input) -> bool:
    if each.line["line"] != "delta":
        return False
    name = each.line["delta"]
    if name in ("text", "reasoning") and name == last.line.get("delta") and not each.line.get("joined"):
        return False  # it arrived later, in the same instant
    return (each.at, each.events_before, each.place) == (last.at, last.events_before, last.place + 1)


def find_execution(executions: list[Execution], number: int) -> Execution:
    """The execution that the call with this number started. A resumed run numbers its calls differently: then the
    executions of one id are taken in order."""
    for place, execution in enumerate(executions):
        if execution.call == number:
            return executions.pop(place) if len(executions) > 1 else execution
    return executions.pop(0) if len(executions) > 1 else executions[0]


@dataclass(slots=True)
class Inputs:
    """All inputs of a run, by who takes them."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    executions: dict[tuple[int, str], list[Execution]] = field(default_factory=dict[tuple[int, str], list[Execution]])
    """By turn and id of the call, in the order of their starts."""
    approvals: dict[str, list[Input]] = field(default_factory=dict[str, list[Input]])
    """Decisions by the id of the call, in their order."""
    waits: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that were running when their process died and then waited for a person, by turn and id."""
    by_call: dict[int, Execution] = field(default_factory=dict[int, Execution])
    """By the number of the call that started it, and of the call that adopted it."""
    background: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    """Calls that went to the background, by turn and id."""
    arrivals: dict[int, dict[str, None]] = field(default_factory=dict[int, dict[str, None]])
    """By turn: the handles of the background calls whose results the history got after it."""
    turns: dict[int, int] = field(default_factory=dict[int, int])
    """The turns of calls, by their numbers: one in the background may start in a later turn."""

    def add(self, each: Input) -> None:
        line = each.line
        match line["line"]:
            case "delta" | "failed" | "closed" if self.exchanges:
                exchange = self.exchanges[-1]
                exchange.inputs.append(each)
                exchange.whole = exchange.whole or line["line"] == "failed" or line.get("delta") == "ended"
            case "approval" | "cancelled" if line["line"] == "approval" or line.get("approval"):
                self.approvals.setdefault(line["call_id"], []).append(each)
            case "event" if line["event"] == "call_written":
                self.turns[line["call"]] = line["turn"]
            case "event" if line["event"] == "call_backgrounded":
                self.background.add((line["turn"], line["call_id"]))
            case "event" if line["event"] == "result_arrived":
                self.arrivals.setdefault(line["turn"], {})[line["handle"]] = None
            case "event" if line["event"] == "call_started":
                self._begin_execution(line)
            case "event" if line["event"] == "approval_asked" and line.get("uncertain"):
                self.waits.add((line["turn"], line["call_id"]))
                self.executions.pop((line["turn"], line["call_id"]), None)  # the execution that its process died in
            case "event" if line["event"] == "call_adopted":
                running = self.by_call.get(line["adopted"])
                if running is not None:
                    self.by_call[line["call"]] = running
                else:  # its process had died: it returns its recorded result
                    self._begin_execution(line)
            case "event" | "result" | "cancelled" | "waits":
                is_input = line["line"] != "event" or line["event"] in _CAUSED_BY_TOOLS
                execution = self.by_call.get(line.get("call", -1)) if is_input else None
                if execution is None and line["line"] == "result" and _was_known(line["result"]):
                    execution = self._begin_execution(line, started=False)
                if execution is not None:
                    execution.inputs.append(each)
            case _:
                pass

    def _begin_execution(self, line: Line, started: bool = True) -> Execution:
        if line["call"] not in self.by_call:
            self.by_call[line["call"]] = execution = Execution(line["call"], [], started)
            turn = self.turns[line["call"]] if line["call"] in self.turns else line["turn"]
            self.executions.setdefault((turn, line["call_id"]), []).append(execution)
        return self.by_call[line["call"]]

    def begin_exchange(self, request: RecordedRequest, again: bool) -> None:
        """`again`: the process died, and the last request was recorded a second time, with its answer."""
        if again and self.exchanges and self.exchanges[-1].request.turn == request.turn:
            self.exchanges.pop()
            self.executions = {key: some for key, some in self.executions.items() if key[0] != request.turn}
            self.by_call = {one.call: one for some in self.executions.values() for one in some}
        self.exchanges.append(Exchange(request, []))


def read_inputs(recording: Recording) -> Inputs:
    inputs = Inputs()
    requests = iter(recording.requests)
    events, died = 0, False
    last = nobody = 0.0
    """The time of the last line, and the total time between crashes and resumes, which is not replayed."""
    effects = {} if recording.virtual else _find_effects(recording.lines)  # virtual time stands still in a step
    step_ends = 0
    for place, line in enumerate(recording.lines):
        at = line.get("at", last)
        if line["line"] == "resumed":
            if _ended_before(recording, place):
                break  # it waited for somebody: the answers belong to another run of the loop
            nobody += max(at - last, 0.0)
            died = True
        elif line["line"] == "request":
            inputs.begin_exchange(next(requests), again=died)
            died = False
        last = max(last, at)
        inputs.add(Input(round(at - nobody, 9), line, events, place, place < step_ends))
        step_ends = max(step_ends, effects.get(place, 0))
        events += line["line"] == "time_up" or (line["line"] == "event" and line["event"] not in _CAUSED_BY_TOOLS)
    return inputs


def _find_effects(lines: Sequence[Line]) -> dict[int, int]:
    """By the place of the end of a call, or of a decision about it: the place of the event that it has caused. The run
    does not wait for anything between the two; except if the call was made by an answer that broke off: its end is
    reported when the retry has it too, or ends without it."""
    causes: dict[int | str, int] = {}
    effects: dict[int, int] = {}
    started: dict[int, int] = {}
    broke_off = -1
    for place, line in enumerate(lines):
        match line:
            case {"line": "delta", "delta": "restarted"}:
                broke_off = place
                causes.clear()
            case {"line": "result" | "cancelled" | "waits", "call": int() as call}:
                if started.get(call, place) > broke_off:
                    causes[call] = place
            case {"line": "approval", "call_id": str() as id}:
                causes[id] = place
            case {"event": "call_started" | "call_finished", "call": int() as call, "call_id": str() as id}:
                started.setdefault(call, place)
                effects |= {causes.pop(cause): place for cause in (call, id) if cause in causes}
            case _:
                pass
    return effects


def _ended_before(recording: Recording, place: int) -> bool:
    """Had the run ended before this line?"""
    ends = ("run_finished", "run_failed")
    return any(line["line"] == "event" and line["event"] in ends for line in recording.lines[:place])


def _was_known(result: Line) -> bool:
    """Was it the result of an identical call, so that no tool ran?"""
    return bool(result.get("duplicate_of")) or result.get("outcome") == "cached"
