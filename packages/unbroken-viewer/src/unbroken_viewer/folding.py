"""What happened when, from the lines of a recording: each turn with the model's answer and its calls.

Reads the lines in order, in seconds from the start of the run, without the time before a run was resumed. A `RunView`,
which gets the events, knows the outcome of each call; the deltas show when it was written, and how the answers arrived.
An answer that breaks off and is retried is one turn with two attempts, and a call that adopts another one is one lane,
from the first byte to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unbroken.errors import UserError
from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallAdopted,
    CallBackgrounded,
    CallEvent,
    CallFinished,
    CallProgress,
    CallsIgnored,
    CallStarted,
    Compacted,
    InnerEvent,
    LimitReached,
    RequestSent,
    ResultArrived,
    RoundFinished,
    RunFailed,
    RunFinished,
    ServerCallFinished,
    TextFinished,
    ToolCallsDetected,
    ToolLate,
    event_from_json,
)
from unbroken.run_view import CallView, RunView
from unbroken.trajectory.lines import Line
from unbroken_viewer.inner_lanes import InnerLanes
from unbroken_viewer.picture_data import (
    LONGEST_FIELD,
    Attempt,
    CallLane,
    Clipper,
    Mark,
    Piece,
    State,
    Turn,
    count,
    flag,
    inner,
    number,
    objects,
    part_text,
    state_of,
    text,
    words,
)
from unbroken_wires.wires.json_access import as_list

QUIET = 0.5
"""Seconds without a delta after which an answer is drawn with a gap."""
DIED = "its process died"
ANEW = "it was requested again"
UNCERTAIN = "it may have taken effect before the run stopped: somebody has to say what to do"


class Lanes:
    """`read` takes every line, once. `model_only`: the recording holds only requests and answers of a model, not a
    run. `lead`: how many seconds before its recording the run began."""

    def __init__(self, clips: Clipper, began: float, model_only: bool = False, lead: float = 0.0) -> None:
        self.turns: list[Turn] = []
        self.marks: list[Mark] = []
        self.now = 0.0
        self.times: list[float] = []
        """Of every line."""
        self.end: Line | None = None
        """The event in which the run ended."""
        self.last = 0.0
        """The time of the last line, in seconds since `began`, with the time between a crash and a resume."""
        self._model_only = model_only
        self._clips = clips
        self._began = began
        self._lead = lead
        self._away = 0.0
        """Seconds between a crash and a resume."""
        self._view = RunView()
        self._by_turn: dict[int, Turn] = {}
        self._by_number: dict[int, CallLane] = {}
        self._by_id: dict[str, CallLane] = {}
        """The last call of each id."""
        self._unnumbered: dict[str, CallLane] = {}
        """The same for calls that have no number yet."""
        self._inner = InnerLanes()
        self._open: dict[int, CallLane] = {}
        """The calls of the answer that is being read, by index."""
        self._settled: set[int] = set()
        """Calls that had ended before their process died: the resumed run uses their results."""
        self._died: set[int] = set()
        """Calls that ran when their process died, and have not started again."""
        self._begun_by: set[str] = set()
        self._said: list[str] = []
        self._reasoned: list[str] = []
        self._coming: list[Line] = []
        """The deltas of the answer that is being read."""
        self._whole: list[Line] = []
        """The same for the last complete answer, as long as its turn is the last."""
        self._tried = 0
        """Attempts at the last turn before the run was resumed."""
        self._resumed = False
        """The next request may repeat that of the last turn."""

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            kind = line["line"]
            if kind == "resumed":
                self._resume(line)
            self.times.append(self.when(line))
            self.now = max(self.now, self.times[-1])
            if kind == "event":
                self._event(line, self.times[-1])
            elif kind == "delta":
                self._delta(text(line, "delta"), line, self.times[-1])
            else:
                self._other(kind, line, self.times[-1])
        self._close()

    def when(self, line: Line) -> float:
        """Seconds from the start of the run."""
        at = self._at(line)
        if at is None:
            return self.now
        self.last = max(self.last, at - self._lead)
        return max(round(at - self._away, 6), 0.0)  # a time of day is no more precise

    def _at(self, line: Line) -> float | None:
        at = number(line, "at")
        if at is None and (time := number(line, "time")) is not None:
            at = time - self._began
        return None if at is None else at + self._lead

    # Turns

    def _begin(self, turn: int, at: float, by: str) -> Turn:
        """A turn begins with an event and a request, in either order; one may be missing if something was lost."""
        known = self.turns[-1] if self.turns else None
        if known is not None and known.number == turn:
            if self._resumed:
                self._resumed, self._begun_by = False, {by}
                self._try_again(known, at)
                return known
            if by not in self._begun_by:
                self._begun_by.add(by)
                return known
        self._end_answer(self.now)
        self._forget_replay()
        known = Turn(turn, at)
        known.attempts.append(Attempt(at))
        self.turns.append(known)
        self._by_turn[turn] = known
        self._begun_by, self._resumed, self._whole = {by}, False, []
        self._hear_anew()
        return known

    def _turn(self, number: int, at: float) -> Turn:
        return self._by_turn.get(number) or self._begin(number, at, "line")

    def _hear_anew(self) -> None:
        self._open, self._said, self._reasoned, self._coming = {}, [], [], []

    def _void_unnumbered(self) -> None:
        """Drops calls of an answer that broke off before they were complete."""
        numbered = {id(lane) for lane in self._by_number.values()}
        for lane in self._open.values():
            lane.void = id(lane) not in numbered

    def _end_answer(self, at: float) -> None:
        if not self.turns or self.turns[-1].ended is not None:
            return
        turn = self.turns[-1]
        last = turn.attempts[-1]
        last.ended = turn.ended = max(at, last.asked)

    # A run that is resumed

    def _resume(self, line: Line) -> None:
        died, at = self.now, self._at(line)
        if at is not None:
            away, self._away = at - self._away - died, at - died
            self.marks.append(Mark(died, "resumed", f"the run continues here, {_span(max(away, 0.0))} later"))
        else:
            self.marks.append(Mark(died, "resumed", "the run continues here"))
        self.end = None
        if not self.turns:
            return
        self._resumed = True
        self._forget_replay()
        if self.turns[-1].ended is None:
            self.turns[-1].attempts[-1].broken = DIED
            self._end_answer(died)
        self._void_unnumbered()
        for call in self._view.by_number.values():
            if call.outcome is not None:
                self._settled.add(call.number)
            elif call.started is not None and call.counts:
                self._by_number[call.number].died.append((call.started, max(call.started, died)))
                self._died.add(call.number)

    def _try_again(self, turn: Turn, at: float) -> None:
        """A complete answer is replayed from the recording. Only its end shows whether it was a different one."""
        turn.attempts[-1].broken = turn.attempts[-1].broken or ANEW
        self._tried = len(turn.attempts)
        turn.attempts.append(Attempt(at))
        turn.ended, turn.provider_calls = None, []
        self._hear_anew()

    def _forget_replay(self) -> None:
        """A replayed answer does not count as an attempt."""
        if self._whole and self._coming is not self._whole and _same(self._coming, self._whole):
            turn = self.turns[-1]
            del turn.attempts[self._tried :]
            turn.attempts[-1].broken, turn.ended = "", turn.attempts[-1].ended
            self._whole = self._coming = []

    # Lines that are neither deltas nor events

    def _other(self, kind: str, line: Line, at: float) -> None:
        match kind:
            case "request":
                self._begin(count(line, "turn"), at, "request")
            case "failed":
                turn = self._turn(count(line, "turn"), at)
                turn.failed = turn.attempts[-1].broken = f"{words(line, 'error')}: {words(line, 'message')}"
                self._end_answer(at)
            case "result":
                lane = self._find(line, at)
                if lane.result is None:
                    given = "".join(map(part_text, objects(inner(line, "result"), "content")))
                    lane.key, lane.result = words(line, "key"), self._clips.text(given)
            case "approval":
                lane = self._find(line, at)
                lane.decided = at
                lane.decision = ": ".join(filter(None, (words(line, "decision"), words(line, "reason"))))
            case "note":
                self.marks.append(Mark(at, "note", words(line, "text")))
            case _:
                pass

    # Deltas

    def _delta(self, kind: str, line: Line, at: float) -> None:
        turn = self._turn(count(line, "turn"), at)
        self._coming.append(line)
        attempt = turn.attempts[-1]
        if kind in ("attempt_failed", "restarted"):
            self._broken(turn, kind, line, at)
            return
        if attempt.first is None:
            attempt.first = at
        match kind:
            case "text" | "reasoning":
                (self._said if kind == "text" else self._reasoned).append(text(line, "text"))
                self._piece(attempt, kind, at, len(text(line, "text")))
            case "call_opened":
                self._piece(attempt, "call", at)
                self._open_call(turn, count(line, "index"), words(line, "name"), words(line, "id"), at)
            case "call_arguments":
                self._piece(attempt, "call", at, len(text(line, "text")))
            case "call_ready" | "call_spoiled":
                saved = inner(line, "call")
                self._piece(attempt, "call", at)
                lane = self._open_call(turn, count(saved, "index"), words(saved, "name"), words(saved, "id"), at)
                self._written(lane, saved, at)
                if kind == "call_spoiled":
                    lane.state = "spoiled"
            case "call_withdrawn":
                if (lane := self._open.pop(count(line, "index"), None)) is not None:
                    lane.state, lane.ended = "withdrawn", at
            case "server_call":
                saved = inner(line, "call")
                turn.provider_calls.append(words(saved, "name") or words(saved, "tool") or words(saved, "type"))
            case "usage":
                usage = inner(line, "usage")
                turn.input_tokens, turn.output_tokens = count(usage, "input_tokens"), count(usage, "output_tokens")
            case "ended":
                verdict = inner(line, "verdict")
                turn.verdict, turn.finish = words(verdict, "kind"), words(verdict, "finish")
                attempt.model = words(verdict, "model")
                self._join_texts(turn)
                self._end_answer(at)
                if turn is self.turns[-1]:
                    self._forget_replay()
                    self._whole = self._coming if turn.verdict == "whole" else []
            case _:
                pass

    def _piece(self, attempt: Attempt, kind: str, at: float, size: int = 0) -> None:
        pieces = attempt.pieces
        if not pieces or pieces[-1].kind != kind or at - pieces[-1].end > QUIET:
            pieces.append(Piece(kind, at, at))
        pieces[-1].end = at
        pieces[-1].size += size

    def _open_call(self, turn: Turn, index: int, name: str, id: str, at: float) -> CallLane:
        lane = self._open.get(index)
        if lane is None:
            lane = self._open[index] = CallLane(turn.number, index, name, opened=at)
            turn.calls.append(lane)
        lane.id, lane.name = id or lane.id, name or lane.name
        return lane

    def _written(self, lane: CallLane, saved: Line, at: float) -> None:
        lane.written = at
        self._by_id[lane.id] = self._unnumbered[lane.id] = lane  # not earlier: its id may change until now
        lane.problem = words(saved, "problem")
        lane.notes = [note[:LONGEST_FIELD] for note in as_list(saved.get("notes")) if isinstance(note, str)]
        arguments = saved.get("arguments")
        lane.arguments = self._clips.text(text(saved, "raw")) if arguments is None else self._clips.json(arguments)

    def _join_texts(self, turn: Turn) -> None:
        if self._said:
            turn.said = self._clips.text("".join(self._said))
        if self._reasoned:
            turn.reasoning = self._clips.text("".join(self._reasoned))

    def _broken(self, turn: Turn, kind: str, line: Line, at: float) -> None:
        """An attempt failed; its partial answer is void."""
        if kind == "attempt_failed":
            verdict, last = inner(line, "verdict"), turn.attempts[-1]
            last.ended, last.kind, last.model = at, words(verdict, "kind"), words(verdict, "model")
            last.broken = words(verdict, "reason") or last.kind or "it broke off"
            last.wait, last.elsewhere = max(number(line, "wait") or 0.0, 0.0), flag(line, "elsewhere")
            turn.attempts.append(Attempt(round(at + last.wait, 6)))
            return
        self._void_unnumbered()
        self._open, self._said, self._reasoned = {}, [], []

    # Events

    def _event(self, line: Line, at: float) -> None:
        try:
            event = event_from_json({**line, "time": at})
        except UserError:
            return  # of a later version
        if isinstance(event, CallEvent):
            self._call_event(event, at)
            return
        self._view.feed(event)
        match event:
            case RequestSent():
                turn = self._begin(event.turn, at, "event")
                turn.messages, turn.tools, turn.final = event.messages, event.tools, event.final
                if event.changed:
                    self.marks.append(Mark(at, "prefix", f"{event.changed[:LONGEST_FIELD]} changed"))
            case CallsIgnored():
                self._turn(event.turn, at).ignored += [name[:LONGEST_FIELD] for name in event.names]
            case TextFinished() | ToolCallsDetected():
                self._turn(event.turn, at).cost = event.cost
            case Compacted():
                self._turn(event.turn, at).cost = event.cost
                shown = f"{event.before:,} to {event.after:,} tokens" if event.text else event.problem[:LONGEST_FIELD]
                self.marks.append(Mark(at, "compaction", shown))
            case RoundFinished():
                turn = self._turn(event.turn, at)
                turn.finished, turn.round_cost = at, event.cost
            case ServerCallFinished():
                calls = self._turn(event.turn, at).provider_calls
                asked = ", ".join(map(str, (event.arguments or {}).values()))[:LONGEST_FIELD]
                shown = f"{event.name[:LONGEST_FIELD]}({asked}) {event.error[:LONGEST_FIELD] or event.outcome}"
                if event.name in calls:
                    calls[calls.index(event.name)] = shown
                else:
                    calls.append(shown)
            case LimitReached():
                self.marks.append(Mark(at, "limit", f"{event.kind[:LONGEST_FIELD]}: {event.limit:g}"))
            case AgentChanged():
                self.marks.append(Mark(at, "agent", f"handed off to {event.agent[:LONGEST_FIELD]}"))
            case RunFinished() | RunFailed():
                self.end = line
            case _:
                pass

    def _call_event(self, event: CallEvent, at: float) -> None:
        lane = self._lane(event, at)
        if event.call in self._settled and isinstance(event, CallStarted | CallFinished):
            return  # converted recordings of schema 1 report it twice
        self._view.feed(event)
        match event:
            case CallStarted():
                self._died.discard(event.call)
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
                self._inner.feed(event, lane, at)
            case ApprovalAsked():
                lane.asked = at
                if event.uncertain:
                    lane.notes.append(UNCERTAIN)
            case ToolLate():
                lane.notes.append(f"it ran on for {event.seconds:g} s after its time-out")
            case _:
                pass

    def _adopt(self, event: CallAdopted, lane: CallLane) -> None:
        """Takes over the lane of the call that it continues."""
        before = self._by_number.get(event.adopted)
        if before is None or before is lane:
            return
        call = self._view.by_number[event.call]
        if event.adopted in self._died:
            self._died.add(event.call)
        elif event.adopted in self._settled and call.outcome is not None:
            self._settled.add(event.call)
        elif not call.resumed:
            before.adopted_from = before.id
        before.index, before.id, before.arguments, before.notes = lane.index, lane.id, lane.arguments, lane.notes
        lane.void = True
        self._by_number[event.call] = self._by_id[before.id] = before

    def _lane(self, event: CallEvent, at: float) -> CallLane:
        lane = self._by_number.get(event.call)
        if lane is None:
            lane = self._unnumbered.pop(event.call_id, None)
            lane = lane or self._new_lane(event.turn, event.name, event.call_id, at)
            self._by_number[event.call] = lane
        return lane

    def _new_lane(self, number: int, name: str, id: str, at: float) -> CallLane:
        """A resumed run begins with calls that were written before its recording."""
        turn = self._turn(number, at)
        lane = self._by_id[id] = CallLane(number, len(turn.calls), name[:LONGEST_FIELD], id[:LONGEST_FIELD])
        turn.calls.append(lane)
        return lane

    def _find(self, line: Line, at: float) -> CallLane:
        """The call that a line is about: an approval has only the id of its call."""
        id = words(line, "call_id")
        known = self._by_number.get(count(line, "call")) if "call" in line else self._by_id.get(id)
        return known or self._new_lane(count(line, "turn"), words(line, "name"), id, at)

    # The end

    def calls(self) -> Iterator[CallLane]:
        return (call for turn in self.turns for call in turn.calls)

    def _close(self) -> None:
        """Closes what has not ended, and finds which turns were rounds."""
        self._forget_replay()
        if self.turns:
            self._join_texts(self.turns[-1])
        if self.end is not None:
            self._end_answer(self.now)
        last = {id(lane): (lane, call) for call, lane in self._by_number.items()}  # the last call of each lane
        for lane, call in last.values():
            self._tell(lane, self._view.by_number[call])
        over = self.end is not None or self._model_only
        rounds = 0
        for turn in self.turns:
            turn.calls = [lane for lane in turn.calls if not lane.void]
            for lane in turn.calls:
                if lane.ended is None and lane.state == "waiting" and over:
                    lane.state = "dropped" if lane.died else "handed"
            turn.calls.sort(key=lambda lane: (lane.state != "dropped", lane.index))
            # After a limit the model is asked for an answer: calls in it are refused, and are not a round.
            if not turn.final and any(lane.state not in ("dropped", "withdrawn") for lane in turn.calls):
                turn.round = rounds = rounds + 1

    def _tell(self, lane: CallLane, call: CallView) -> None:
        """Copies the outcome of the call."""
        if lane.state == "withdrawn":
            return
        if call.number not in self._died:
            lane.started, lane.early = call.started, call.early
        if call.finished is not None:
            lane.ended, lane.seconds = round(call.finished, 6), call.seconds
        lane.error, lane.duplicate_of = call.error, call.duplicate_of
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


def _state(lane: CallLane, call: CallView) -> State:
    if call.dropped is not None or call.response_broke:
        return "dropped" if lane.started is not None or lane.died else "withdrawn"
    if call.outcome is None and lane.started is None:
        return "uncertain" if call.approval is not None and call.approval.uncertain else "waiting"
    state = state_of(call)
    return "spoiled" if state == "refused" and lane.state == "spoiled" else state


def _same(coming: list[Line], whole: list[Line]) -> bool:
    """Is `coming` the beginning of that answer?"""
    return len(coming) <= len(whole) and all(
        {**one, "at": 0} == {**other, "at": 0} for one, other in zip(coming, whole, strict=False)
    )


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
