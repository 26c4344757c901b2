"""What happened when, read off the lines of a recording: each turn with the model's answer and its calls.

A fold over the lines in their order, in seconds from the start of the run. An answer that breaks off and comes again is
one turn with two attempts, and a call that is taken over by the second is one lane, from its first byte to its end. The
same is drawn of a live run by `cli.timeline`, which sees events and deltas and no lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unbroken.trajectory.lines import Line
from unbroken.viewer.clips import Clipper
from unbroken.viewer.fields import as_list, count, flag, inner, number, objects, text
from unbroken.viewer.lanes import Attempt, CallLane, Mark, Piece, State, Turn

QUIET = 0.5
"""Seconds without a delta after which an answer is drawn with a gap."""


class Lanes:
    """`read` takes every line, once."""

    def __init__(self, clips: Clipper, began: float) -> None:
        self.turns: list[Turn] = []
        self.marks: list[Mark] = []
        self.now = 0.0
        self.times: list[float] = []
        """Of every line."""
        self.end: Line | None = None
        """The event in which the run ended."""
        self._clips = clips
        self._began = began
        self._before = 0.0
        self._by_id: dict[str, list[CallLane]] = {}
        self._open: dict[int, CallLane] = {}
        """Of the answer that is being heard, by index."""
        self._lost: list[CallLane] = []
        """Of answers that broke off: those that had started, and are not taken over."""
        self._begun_by: set[str] = set()
        self._said: list[str] = []
        self._reasoned: list[str] = []

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.times.append(self.when(line))
            self._before, self.now = self.now, max(self.now, self.times[-1])
            kind = line["line"]
            if kind == "event":
                self._event(text(line, "event"), line)
            elif kind == "delta":
                self._delta(text(line, "delta"), line)
            else:
                self._other(kind, line)
        self._close()

    def when(self, line: Line) -> float:
        """Seconds from the start of the run."""
        at = number(line, "at")
        if at is None:
            time = number(line, "time")
            at = self.now if time is None else time - self._began
        return max(round(at, 6), 0.0)  # a time since the epoch is no finer than that

    # Turns

    def _begin(self, line: Line, by: str) -> Turn:
        """A turn begins with an event and with a request, in either order; without both where something was lost."""
        turn, known = count(line, "turn"), self.turns[-1] if self.turns else None
        if known is not None and known.number == turn and by not in self._begun_by:
            self._begun_by.add(by)
            return known
        self._end_answer(self.now)
        known = Turn(turn, self.when(line))
        known.attempts.append(Attempt(known.asked))
        self.turns.append(known)
        self._begun_by = {by}
        self._open, self._lost, self._said, self._reasoned = {}, [], [], []
        return known

    def _turn(self, line: Line) -> Turn:
        wanted = count(line, "turn")
        return next((turn for turn in reversed(self.turns) if turn.number == wanted), None) or self._begin(line, "line")

    def _end_answer(self, at: float) -> None:
        if not self.turns or self.turns[-1].ended is not None:
            return
        turn = self.turns[-1]
        last = turn.attempts[-1]
        last.ended = turn.ended = max(at, last.asked)

    # Lines that are neither deltas nor events

    def _other(self, kind: str, line: Line) -> None:
        at = self.when(line)
        match kind:
            case "request":
                self._begin(line, "request")
            case "failed":
                turn = self._turn(line)
                turn.failed = turn.attempts[-1].broken = f"{text(line, 'error')}: {text(line, 'message')}"
                self._end_answer(at)
            case "result":
                call = self._find(line)
                call.key, call.result = text(line, "key"), self._clips.text("".join(_parts(inner(line, "result"))))
            case "approval":
                call = self._find(line)
                call.decided = at
                call.decision = ": ".join(filter(None, (text(line, "decision"), text(line, "reason"))))
            case "resumed":
                self._resume(at)
            case "note":
                self.marks.append(Mark(at, "note", text(line, "text")))
            case _:
                pass

    def _resume(self, at: float) -> None:
        before = self._before
        self.end = None
        self.marks.append(Mark(at, "resumed", "the run goes on here"))
        if self.turns and self.turns[-1].ended is None:
            self.turns[-1].attempts[-1].broken = "its process died"
            self._end_answer(before)
        if self.turns:
            self._take_over()
        for call in self.calls():
            if call.ended is None and call.state == "waiting":
                call.state = "dropped"  # unless it is begun again
                if call.started is not None:
                    call.died.append((call.started, max(call.started, before)))
                    call.started, call.early = None, False

    # Deltas

    def _delta(self, kind: str, line: Line) -> None:
        turn, at = self._turn(line), self.when(line)
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
                self._open_call(turn, count(line, "index"), text(line, "name"), text(line, "id"), at)
            case "call_arguments":
                self._piece(attempt, "call", at, len(text(line, "text")))
            case "call_ready" | "call_spoiled":
                saved = inner(line, "call")
                self._piece(attempt, "call", at)
                call = self._open_call(turn, count(saved, "index"), text(saved, "name"), text(saved, "id"), at)
                self._written(call, saved, at)
                if kind == "call_spoiled":
                    call.state = "spoiled"
            case "call_withdrawn":
                if (call := self._open.pop(count(line, "index"), None)) is not None:
                    call.state, call.ended = "withdrawn", at
            case "server_call":
                saved = inner(line, "call")
                turn.provider_calls.append(text(saved, "name") or text(saved, "type"))
            case "usage":
                usage = inner(line, "usage")
                turn.input_tokens, turn.output_tokens = count(usage, "input_tokens"), count(usage, "output_tokens")
            case "ended":
                verdict = inner(line, "verdict")
                turn.verdict, turn.finish = text(verdict, "kind"), text(verdict, "finish")
                self._heard(turn)
                self._end_answer(at)
            case _:
                pass

    def _piece(self, attempt: Attempt, kind: str, at: float, size: int = 0) -> None:
        pieces = attempt.pieces
        if not pieces or pieces[-1].kind != kind or at - pieces[-1].end > QUIET:
            pieces.append(Piece(kind, at, at))
        pieces[-1].end = at
        pieces[-1].size += size

    def _open_call(self, turn: Turn, index: int, name: str, id: str, at: float) -> CallLane:
        call = self._open.get(index)
        if call is None:
            call = self._open[index] = CallLane(turn.number, index, name, id, opened=at)
            turn.calls.append(call)
        call.name = name or call.name
        self._name(call, id)
        return call

    def _name(self, call: CallLane, id: str) -> None:
        call.id = id or call.id
        known = self._by_id.setdefault(call.id, [])
        if not any(call is other for other in known):
            known.append(call)

    def _written(self, call: CallLane, saved: Line, at: float) -> None:
        call.written = at
        call.problem = text(saved, "problem")
        call.notes = [note for note in as_list(saved.get("notes")) if isinstance(note, str)]
        arguments = saved.get("arguments")
        call.arguments = self._clips.text(text(saved, "raw")) if arguments is None else self._clips.json(arguments)

    def _heard(self, turn: Turn) -> None:
        if self._said:
            turn.said = self._clips.text("".join(self._said))
        if self._reasoned:
            turn.reasoning = self._clips.text("".join(self._reasoned))

    def _broken(self, turn: Turn, kind: str, line: Line, at: float) -> None:
        """An attempt failed; what had come of its answer is void."""
        if kind == "attempt_failed":
            verdict, last = inner(line, "verdict"), turn.attempts[-1]
            last.ended, last.kind, last.model = at, text(verdict, "kind"), text(verdict, "model")
            last.broken = text(verdict, "reason") or last.kind or "it broke off"
            last.wait, last.elsewhere = max(number(line, "wait") or 0.0, 0.0), flag(line, "elsewhere")
            turn.attempts.append(Attempt(round(at + last.wait, 6)))
            return
        for call in self._open.values():
            if call.started is not None:
                call.state = "dropped"
                self._lost.append(call)
            else:
                call.state = "withdrawn"
                _take_out(turn.calls, call)
        self._open, self._said, self._reasoned = {}, [], []

    # Events

    def _event(self, kind: str, line: Line) -> None:
        at = self.when(line)
        match kind:
            case "request_sent":
                turn = self._begin(line, "event")
                turn.messages, turn.tools = count(line, "messages"), count(line, "tools")
                turn.final = flag(line, "final")
            case "call_started":
                call = self._find(line)
                call.started, call.early, call.ended, call.state = at, flag(line, "early"), None, "waiting"
                if call.arguments is None:
                    call.arguments = self._clips.json(inner(line, "arguments"))
            case "call_finished":
                self._finished(line, at)
            case "call_progress":
                self._find(line).progress.append((at, text(line, "message")[:500]))
            case "approval_asked":
                self._find(line).asked = at
            case "tool_late":
                self._find(line).notes.append(f"it ran on for {number(line, 'seconds') or 0:g} s after its time-out")
            case "calls_ignored":
                turn = self._turn(line)
                turn.ignored += [name for name in as_list(line.get("names")) if isinstance(name, str)]
            case "round_finished":
                self._turn(line).finished = at
            case "limit_reached":
                self.marks.append(Mark(at, "limit", f"{text(line, 'kind')}: {number(line, 'limit') or 0:g}"))
            case "run_finished" | "run_failed":
                self.end = line
            case _:
                pass

    def _finished(self, line: Line, at: float) -> None:
        dropped, adopted = flag(line, "dropped"), text(line, "adopted_from")
        if adopted:
            self._adopt(line, adopted)
        lost = next((call for call in self._lost if call.id == text(line, "call_id")), None) if dropped else None
        call = lost or self._find(line)
        call.error, call.seconds = flag(line, "error"), number(line, "seconds")
        if call.ended is None or not adopted:  # one that is taken over may have ended before
            call.ended = at
        call.duplicate_of, call.adopted_from = text(line, "duplicate_of"), adopted
        if call.result is None:
            call.result = self._clips.text(text(line, "text"))
        call.state = _state(call, dropped, line.get("executed") is not False)

    def _adopt(self, line: Line, adopted_from: str) -> None:
        """The call goes on as one of an answer that broke off."""
        lost = next((call for call in self._lost if call.id == adopted_from), None)
        call = self._find(line)
        if lost is not None and call is not lost:
            self._go_on(self._turn(line).calls, lost, call)

    def _go_on(self, calls: list[CallLane], lost: CallLane, call: CallLane) -> None:
        if not any(other is call for other in calls):
            return
        lost.index, lost.arguments, lost.notes = call.index, call.arguments, call.notes
        call.state = "withdrawn"
        self._name(lost, call.id)
        self._lost.remove(lost)
        _take_out(calls, lost)
        calls[next(place for place, other in enumerate(calls) if other is call)] = lost
        self._open[lost.index] = lost

    def _take_over(self) -> None:
        """A run that has no end had no time to say which calls went on as others."""
        for lost in [call for call in self._lost if call.ended is None]:
            calls = self.turns[-1].calls
            again = next((call for call in calls if _is_again(call, lost)), None)
            if again is not None:
                self._go_on(calls, lost, again)
                lost.state = "waiting"

    def _find(self, line: Line) -> CallLane:
        """The call that a line is about. A run that goes on begins with calls that nobody saw being written."""
        id, turn = text(line, "call_id"), self._turn(line)
        known = [call for call in self._by_id.get(id, ()) if call.state != "withdrawn" and not self._is_lost(call)]
        if known:
            return next((call for call in reversed(known) if call.turn == turn.number), known[-1])
        call = CallLane(turn.number, len(turn.calls), text(line, "name"), id)
        self._name(call, id)
        turn.calls.append(call)
        return call

    def _is_lost(self, call: CallLane) -> bool:
        return any(call is lost for lost in self._lost)

    def calls(self) -> Iterator[CallLane]:
        return (call for turn in self.turns for call in turn.calls)

    def _close(self) -> None:
        """What has not ended, and which turns were rounds."""
        if self.turns:
            self._heard(self.turns[-1])
        if self.end is not None:
            self._end_answer(self.now)
        else:
            self._take_over()
        for call in self.calls():
            if call.ended is None and call.state == "waiting":
                call.state = "running" if call.started is not None else "waiting" if self.end is None else "handed"
        rounds = 0
        for turn in self.turns:
            turn.calls.sort(key=lambda call: (call.state != "dropped", call.index))
            if any(call.state not in ("dropped", "withdrawn") for call in turn.calls):
                turn.round = rounds = rounds + 1


def _is_again(call: CallLane, lost: CallLane) -> bool:
    return call is not lost and call.started is None and (call.name, call.arguments) == (lost.name, lost.arguments)


def _take_out(calls: list[CallLane], call: CallLane) -> None:
    """This very one: two may be equal."""
    calls[:] = [other for other in calls if other is not call]


def _state(call: CallLane, dropped: bool, executed: bool) -> State:
    if dropped:
        return "dropped"
    if call.duplicate_of:
        return "shared"
    if not executed:
        return "spoiled" if call.state == "spoiled" else "refused"
    return "failed" if call.error else "done"


def _parts(result: Line) -> Iterator[str]:
    """The content of a result in words: of media only what they are."""
    for part in objects(result, "content"):
        if part.get("type") == "text":
            yield text(part, "text")
        else:
            yield media(part)


def media(part: Line) -> str:
    size = len(text(part, "data")) * 3 // 4
    what = ", ".join(filter(None, (text(part, "name"), text(part, "mime"), text(part, "url")[:200])))
    return f"[{what or 'a file'}{f', {size:,} bytes' if size else ''}]"
