"""The calls of a run as lanes: one for each call, and for all that adopt one another, from the first byte to the end.

A `RunView`, which gets the events of the run first, knows how each call ended. What it does not keep is collected here:
what happened to a call in between, and when.
"""

from __future__ import annotations

from collections.abc import Iterator

from unbroken.events import (
    ApprovalAsked,
    CallAdopted,
    CallBackgrounded,
    CallEvent,
    CallProgress,
    InnerEvent,
    ResultArrived,
    ToolLate,
)
from unbroken.run_view import CallView, RunView
from unbroken.trajectory.inner_runs import describe_step
from unbroken.trajectory.lines import Line
from unbroken_viewer.drawn_answers import DrawnAnswers
from unbroken_viewer.picture_data import (
    LONGEST_FIELD,
    CallLane,
    Clipper,
    InnerLane,
    State,
    objects,
    part_text,
    state_of,
    words,
)
from unbroken_wires.wires.jsontext import dump_arguments

MOST_INSIDE = 500
"""Calls of agents inside one call that are drawn."""
SHOWN_INSIDE = 300
"""Characters of their arguments."""
UNCERTAIN = "it may have taken effect before the run stopped: somebody has to say what to do"


class DrawnCalls:
    """`take` takes each event of a call, `take_result` and `take_approval` the other lines about one."""

    def __init__(self, view: RunView, answers: DrawnAnswers, clips: Clipper) -> None:
        self._view = view
        self._answers = answers
        self._clips = clips
        self._by_number: dict[int, CallLane] = {}
        self._by_id: dict[str, CallLane] = {}
        """The last call of each id."""

    def take(self, event: CallEvent, at: float) -> None:
        lane = self._lane(event.call, event.call_id, event.name, event.turn, at)
        match event:
            case CallAdopted():
                self._adopt(event, lane)
            case CallProgress():
                lane.progress.append((at, event.message[:500]))
            case CallBackgrounded():
                lane.backgrounded = at
                lane.notes.append(f"it continued in the background as {event.handle[:LONGEST_FIELD]}")
            case ResultArrived():
                lane.notes.append(f"its result arrived after {at:.2f} s, as {event.handle[:LONGEST_FIELD]}")
            case InnerEvent():
                if (step := describe_step(event)) is not None:
                    lane.steps.append((at, step[0][:LONGEST_FIELD], step[1]))
            case ApprovalAsked():
                lane.asked = at
                if event.uncertain:
                    lane.notes.append(UNCERTAIN)
            case ToolLate():
                lane.notes.append(f"it ran on for {event.seconds:g} s after its time-out")
            case _:
                pass

    def take_result(self, line: Line, at: float) -> None:
        lane = self._find(line, at)
        if lane.result is None:
            lane.key = words(line, "key")
            lane.result = self._clips.text("".join(map(part_text, objects(line["result"], "content"))))

    def take_approval(self, line: Line, at: float) -> None:
        lane = self._find(line, at)
        lane.decided = at
        lane.decision = ": ".join(filter(None, (words(line, "decision"), words(line, "reason"))))

    def resume(self, died: float) -> None:
        """`died` is when the process did that ran the calls."""
        for call in self._view.resumed():
            lane, started = self._by_number[call.number], call.started or 0.0
            lane.died.append((started, max(started, died)))

    def close(self) -> None:
        """Copies the outcomes of all calls."""
        for call in self._view.by_number.values():
            lane = self._by_number.get(call.number)
            if lane is not None and call.adopted_by is None and lane.state != "withdrawn":
                self._tell(lane, call)

    def _lane(self, number: int, id: str, name: str, turn: int, at: float) -> CallLane:
        lane = self._by_number.get(number)
        if lane is None:
            lane = self._by_number[number] = self._without_number(id, name, turn, at)
            del self._answers.written[id]
        self._by_id[id] = lane
        return lane

    def _find(self, line: Line, at: float) -> CallLane:
        """The call of a line. An approval, and a result from outside, have only its id."""
        number, id, name, turn = line.get("call"), line["call_id"], words(line, "name"), line["turn"]
        if isinstance(number, int):
            return self._lane(number, id, name, turn, at)
        return self._by_id.get(id) or self._without_number(id, name, turn, at)

    def _without_number(self, id: str, name: str, turn: int, at: float) -> CallLane:
        """A resumed run may begin with calls that were written before its recording."""
        lane = self._answers.written.get(id)
        if lane is None:
            of = self._answers.turn(turn, at)
            lane = CallLane(turn, len(of.calls), name[:LONGEST_FIELD], id[:LONGEST_FIELD])
            of.calls.append(lane)
            self._answers.written[id] = lane
        return lane

    def _adopt(self, event: CallAdopted, lane: CallLane) -> None:
        """Takes over the lane of the call that it continues."""
        before = self._by_number.get(event.adopted)
        if before is None or before is lane:
            return
        call = self._view.by_number[event.call]
        if not (call.resumed or call.died):
            before.adopted_from = before.id
        before.index, before.id, before.arguments, before.notes = lane.index, lane.id, lane.arguments, lane.notes
        lane.void = True
        self._by_number[event.call] = self._by_id[event.call_id] = before

    def _tell(self, lane: CallLane, call: CallView) -> None:
        if not call.died:
            lane.started, lane.early = call.started, call.early
        if call.finished is not None:
            lane.ended, lane.seconds = round(call.finished, 6), call.seconds
        lane.error, lane.duplicate_of = call.error, call.duplicate_of
        lane.agent = call.agent[:LONGEST_FIELD]
        lane.inner = sorted(_inside(call, 1), key=lambda inner: inner.started)[:MOST_INSIDE]
        ran = call.arguments if call.changed is None else call.changed
        lane.edited = call.started is not None and (call.changed is not None or lane.decision == "edit")
        if lane.edited:
            lane.made, lane.arguments = lane.arguments, None
        if lane.arguments is None and ran is not None:
            lane.arguments = self._clips.json(ran)
        if lane.result is None and call.text is not None:
            lane.result = self._clips.text(call.text)
        lane.state = _state(lane, call)
        if lane.state == "uncertain":
            lane.started = None
        lane.void |= lane.state == "withdrawn" and call.response_broke


def _inside(call: CallView, depth: int) -> Iterator[InnerLane]:
    """The calls of the agent that is its tool, and of agents inside of that."""
    for inner in call.inner.by_number.values() if call.inner is not None else ():
        if inner.started is not None and inner.adopted_by is None:
            shown = (dump_arguments(inner.arguments) or "")[:SHOWN_INSIDE]
            agent, name = call.agent[:LONGEST_FIELD], inner.name[:LONGEST_FIELD]
            yield InnerLane(agent, depth, name, shown, inner.started, inner.finished, inner.error)
        yield from _inside(inner, depth + 1)


def _state(lane: CallLane, call: CallView) -> State:
    if call.dropped is not None or call.response_broke:
        return "dropped" if lane.started is not None or lane.died else "withdrawn"
    if call.outcome is None and lane.started is None:
        return "uncertain" if call.approval is not None and call.approval.uncertain else "waiting"
    state = state_of(call)
    return "spoiled" if state == "refused" and lane.state == "spoiled" else state
