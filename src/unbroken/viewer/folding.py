"""What happened when, read off the lines of a recording: each turn with the model's answer and its calls.

A fold over the lines in their order, in seconds from the start of the run; the time in which nobody was there, before a
run was resumed, is left out. An answer that breaks off and comes again is one turn with two attempts, and a call that
is taken over by the second is one lane, from its first byte to its end. So is a call of a run that goes on: what it did
before its process died, and after. The same is drawn of a live run by `cli.timeline`, which sees events and deltas and
no lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from unbroken.trajectory.lines import Line
from unbroken.viewer.clips import Clip, Clipper
from unbroken.viewer.fields import LONGEST, as_list, count, flag, inner, number, objects, text, words
from unbroken.viewer.known import KnownCalls
from unbroken.viewer.lanes import Attempt, CallLane, Mark, Piece, State, Turn

QUIET = 0.5
"""Seconds without a delta after which an answer is drawn with a gap."""
DIED = "its process died"


class Lanes:
    """`read` takes every line, once. A `recorded_inputs` is what a model said, without the run around it."""

    def __init__(self, clips: Clipper, began: float, tape: bool = False) -> None:
        self.turns: list[Turn] = []
        self.marks: list[Mark] = []
        self.now = 0.0
        self.times: list[float] = []
        """Of every line."""
        self.end: Line | None = None
        """The event in which the run ended."""
        self._tape = tape
        self._clips = clips
        self._began = began
        self._away = 0.0
        """Seconds in which nobody was there."""
        self._by_number: dict[int, Turn] = {}
        self._known = KnownCalls()
        self._numbered: dict[int, CallLane] = {}
        self._open: dict[int, CallLane] = {}
        """Of the answer that is being heard, by index."""
        self._begun_by: set[str] = set()
        self._said: list[str] = []
        self._reasoned: list[str] = []
        self._coming: list[Line] = []
        """The deltas of the answer that is being heard."""
        self._whole: list[Line] = []
        """The same of the last one that was whole, as long as its turn is the last."""
        self._again: Turn | None = None
        """The run was resumed: this turn's request is the next one once more."""
        self._played: deque[Line] | None = None
        """What is still to come of an answer that is said again, out of the recording."""
        self._replayed: list[Line] = []
        self._died: dict[tuple[str, Clip | None], list[tuple[CallLane, State]]] = {}
        """Calls of an answer that was lost with its process: those that come again go on."""

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            kind = line["line"]
            if kind == "resumed":
                self._resume(line)
            self.times.append(self.when(line))
            self.now = max(self.now, self.times[-1])
            if kind == "event":
                self._event(text(line, "event"), line)
            elif kind == "delta":
                self._delta(text(line, "delta"), line)
            else:
                self._other(kind, line)
        self._close()

    def when(self, line: Line) -> float:
        """Seconds from the start of the run."""
        at = self._at(line)
        return self.now if at is None else max(round(at - self._away, 6), 0.0)  # a time of day is no finer than that

    def _at(self, line: Line) -> float | None:
        at = number(line, "at")
        if at is None and (time := number(line, "time")) is not None:
            at = time - self._began
        return at

    # Turns

    def _begin(self, line: Line, by: str) -> Turn:
        """A turn begins with an event and with a request, in either order; without both where something was lost."""
        turn, known = count(line, "turn"), self.turns[-1] if self.turns else None
        if known is not None and known.number == turn:
            if self._again is known:
                self._again, self._begun_by = None, {by}
                self._ask_again(known, self.when(line))
                return known
            if by not in self._begun_by:
                self._begun_by.add(by)
                return known
        self._end_answer(self.now)
        known = Turn(turn, self.when(line))
        known.attempts.append(Attempt(known.asked))
        self.turns.append(known)
        self._by_number[turn] = known
        self._begun_by, self._again, self._played, self._whole = {by}, None, None, []
        self._known.forget_lost()
        self._died.clear()
        self._hear_anew()
        return known

    def _hear_anew(self) -> None:
        self._open, self._said, self._reasoned, self._coming = {}, [], [], []

    def _turn(self, line: Line) -> Turn:
        return self._by_number.get(count(line, "turn")) or self._begin(line, "line")

    def _end_answer(self, at: float) -> None:
        if not self.turns or self.turns[-1].ended is not None:
            return
        turn = self.turns[-1]
        last = turn.attempts[-1]
        last.ended = turn.ended = max(at, last.asked)

    # A run that goes on

    def _resume(self, line: Line) -> None:
        died, at = self.now, self._at(line)
        if at is not None:
            away, self._away = at - self._away - died, at - died
            self.marks.append(Mark(died, "resumed", f"the run goes on here, {_span(max(away, 0.0))} later"))
        else:
            self.marks.append(Mark(died, "resumed", "the run goes on here"))
        self.end = None
        if not self.turns:
            return
        self._again = turn = self.turns[-1]
        if turn.ended is None:
            turn.attempts[-1].broken = DIED
            self._end_answer(died)
        self._take_over()
        for call in turn.calls:
            if call.ended is not None:
                call.settled = True  # what is told of it again is what it gave before
            elif call.started is not None:
                call.died.append((call.started, max(call.started, died)))
                call.started, call.early = None, False

    def _ask_again(self, turn: Turn, at: float) -> None:
        """An answer that was whole is said again as it was, unless it is asked for anew: then something differs."""
        turn.asked_again = at
        self._replayed = []
        if self._whole:
            self._played = deque(self._whole)
        else:
            self._ask_anew(turn)

    def _is_played(self, line: Line) -> bool:
        if self._played is None:
            return False
        if self._played and {**self._played[0], "at": 0} == {**line, "at": 0}:
            self._replayed.append(self._played.popleft() | {"at": line.get("at")})
            if not self._played:
                self._played = None
            return True
        self._stop_playing(self._turn(line))
        return False

    def _stop_playing(self, turn: Turn) -> None:
        if self._played is not None:
            self._played = None
            self._ask_anew(turn)
            for line in self._replayed:
                self._delta(text(line, "delta"), line)

    def _ask_anew(self, turn: Turn) -> None:
        turn.attempts[-1].broken = turn.attempts[-1].broken or "it was asked for anew"
        turn.attempts.append(Attempt(turn.asked_again or self.now))
        turn.ended, turn.verdict, turn.finish, self._whole = None, "", "", []
        for call in turn.calls:
            if call.state != "withdrawn":
                self._died.setdefault((call.name, call.arguments), []).append((call, call.state))
                self._lose(call)
        self._hear_anew()

    def _lose(self, call: CallLane) -> None:
        """Its answer is void. What had started has to be seen."""
        if call.started is not None or call.ended is not None or call.died:
            call.state = "dropped"
            self._known.lose(call)
        else:
            call.state, call.void = "withdrawn", True

    # Lines that are neither deltas nor events

    def _other(self, kind: str, line: Line) -> None:
        at = self.when(line)
        match kind:
            case "request":
                self._begin(line, "request")
            case "failed":
                turn = self._turn(line)
                self._stop_playing(turn)
                turn.failed = turn.attempts[-1].broken = f"{words(line, 'error')}: {words(line, 'message')}"
                self._end_answer(at)
            case "result":
                call = self._find(line)
                if not call.settled:
                    call.key, call.result = words(line, "key"), self._clips.text("".join(_parts(inner(line, "result"))))
            case "approval":
                call = self._find(line)
                call.decided = at
                call.decision = ": ".join(filter(None, (words(line, "decision"), words(line, "reason"))))
            case "note":
                self.marks.append(Mark(at, "note", words(line, "text")))
            case _:
                pass

    # Deltas

    def _delta(self, kind: str, line: Line) -> None:
        turn, at = self._turn(line), self.when(line)
        if self._is_played(line):
            return
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
                call = self._open_call(turn, count(saved, "index"), words(saved, "name"), words(saved, "id"), at)
                self._written(call, saved, at)
                if kind == "call_spoiled":
                    call.state = "spoiled"
            case "call_withdrawn":
                if (call := self._open.pop(count(line, "index"), None)) is not None:
                    call.state, call.ended = "withdrawn", at
            case "server_call":
                saved = inner(line, "call")
                turn.provider_calls.append(words(saved, "name") or words(saved, "type"))
            case "usage":
                usage = inner(line, "usage")
                turn.input_tokens, turn.output_tokens = count(usage, "input_tokens"), count(usage, "output_tokens")
            case "ended":
                verdict = inner(line, "verdict")
                turn.verdict, turn.finish = words(verdict, "kind"), words(verdict, "finish")
                self._heard(turn)
                self._end_answer(at)
                if turn is self.turns[-1]:
                    self._whole, self._coming = (self._coming if turn.verdict == "whole" else []), []
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
            self._known.add(call)
        elif id and id != call.id:
            call.id = id
            self._known.add(call)
        call.name = name or call.name
        return call

    def _written(self, call: CallLane, saved: Line, at: float) -> None:
        call.written = at
        call.problem = words(saved, "problem")
        call.notes = [note[:LONGEST] for note in as_list(saved.get("notes")) if isinstance(note, str)]
        arguments = saved.get("arguments")
        call.arguments = self._clips.text(text(saved, "raw")) if arguments is None else self._clips.json(arguments)
        if self._died and (before := self._died.get((call.name, call.arguments))):
            lost, state = before.pop(0)
            self._go_on(lost, call)
            lost.state, lost.void = state, False

    def _heard(self, turn: Turn) -> None:
        if self._said:
            turn.said = self._clips.text("".join(self._said))
        if self._reasoned:
            turn.reasoning = self._clips.text("".join(self._reasoned))

    def _broken(self, turn: Turn, kind: str, line: Line, at: float) -> None:
        """An attempt failed; what had come of its answer is void."""
        if kind == "attempt_failed":
            verdict, last = inner(line, "verdict"), turn.attempts[-1]
            last.ended, last.kind, last.model = at, words(verdict, "kind"), words(verdict, "model")
            last.broken = words(verdict, "reason") or last.kind or "it broke off"
            last.wait, last.elsewhere = max(number(line, "wait") or 0.0, 0.0), flag(line, "elsewhere")
            turn.attempts.append(Attempt(round(at + last.wait, 6)))
            return
        for call in self._open.values():
            self._lose(call)
        self._open, self._said, self._reasoned = {}, [], []

    # Events

    def _event(self, kind: str, line: Line) -> None:
        at = self.when(line)
        match kind:
            case "request_sent":
                turn = self._begin(line, "event")
                turn.messages, turn.tools = count(line, "messages"), count(line, "tools")
                turn.final = flag(line, "final")
            case "call_written":
                call = self._known.find(words(line, "call_id"), self._turn(line).number)
                if call is not None:
                    self._numbered[count(line, "call")] = call
            case "call_adopted":
                self._adopt(line)
            case "call_dropped":
                self._drop(self._find(line))
            case "call_started":
                call = self._find(line)
                if call.settled:
                    return
                call.started, call.early, call.ended, call.state = at, flag(line, "early"), None, "waiting"
                if call.arguments is None:
                    call.arguments = self._clips.json(inner(line, "arguments"))
            case "call_finished":
                self._finished(line, at)
            case "call_progress":
                self._find(line).progress.append((at, words(line, "message")[:500]))
            case "approval_asked":
                call = self._find(line)
                call.asked = at
                if flag(line, "uncertain"):
                    call.state = "uncertain"
                    call.notes.append("it may have taken effect before the run stopped: somebody has to say what to do")
            case "tool_late":
                self._find(line).notes.append(f"it ran on for {number(line, 'seconds') or 0:g} s after its time-out")
            case "calls_ignored":
                turn = self._turn(line)
                turn.ignored += [name[:LONGEST] for name in as_list(line.get("names")) if isinstance(name, str)]
            case "round_finished":
                self._turn(line).finished = at
            case "limit_reached":
                self.marks.append(Mark(at, "limit", f"{words(line, 'kind')}: {number(line, 'limit') or 0:g}"))
            case "run_finished" | "run_failed":
                self.end = line
            case _:
                pass

    def _finished(self, line: Line, at: float) -> None:
        call = self._find(line)
        if call.settled:
            return
        call.error, call.seconds = flag(line, "error"), number(line, "seconds")
        dropped = call.state == "dropped"
        if dropped and call.started is not None and call.seconds is not None:
            call.ended = min(at, round(call.started + call.seconds, 6))  # it is told when nobody has taken it over
        elif call.ended is None or not call.adopted_from:  # one that is taken over may have ended before
            call.ended = at
        call.duplicate_of = words(line, "duplicate_of")
        if call.result is None:
            call.result = self._clips.text(text(line, "text"))
        if not dropped:
            call.state = _state(call, text(line, "outcome"))
        if call.state == "uncertain":
            call.started = None

    def _adopt(self, line: Line) -> None:
        """The call goes on as one of an answer that broke off, or as what it was before its process died."""
        lost, call = self._numbered.get(count(line, "adopted")), self._find(line)
        if lost is None or call is lost:
            return
        lost_id = lost.id
        self._go_on(lost, call)
        lost.state, lost.adopted_from = "waiting", lost_id
        self._numbered[count(line, "call")] = lost

    def _drop(self, call: CallLane) -> None:
        """It is in no message. What had started has to be seen."""
        if call.state != "withdrawn":
            ran = call.started is not None or bool(call.died)
            call.state = "dropped" if ran else "withdrawn"

    def _go_on(self, lost: CallLane, call: CallLane) -> None:
        self._known.find_again(lost)
        lost.index, lost.id, lost.arguments, lost.notes = call.index, call.id, call.arguments, call.notes
        call.state, call.void = "withdrawn", True
        self._known.add(lost)
        self._open[lost.index] = lost

    def _take_over(self) -> None:
        """A run that has no end had no time to say which calls went on as others."""
        if not self.turns or not self._known.has_lost:
            return
        again: dict[tuple[str, Clip | None], list[CallLane]] = {}
        for call in reversed(self.turns[-1].calls):
            if call.started is None and call.ended is None and call.state != "withdrawn":
                again.setdefault((call.name, call.arguments), []).append(call)
        for lost in self._known.all_lost():
            if lost.ended is None and (calls := again.get((lost.name, lost.arguments))):
                self._go_on(lost, calls.pop())
                lost.state = "waiting"

    def _find(self, line: Line) -> CallLane:
        """The call that a line is about. A run that goes on begins with calls that nobody saw being written; and what
        was decided about a call is known by its id alone."""
        id, turn = words(line, "call_id"), self._turn(line)
        known = self._numbered.get(count(line, "call")) if "call" in line else None
        known = known or self._known.find(id, turn.number)
        if known is None:
            known = CallLane(turn.number, len(turn.calls), words(line, "name"), id)
            self._known.add(known)
            turn.calls.append(known)
        if "call" in line:
            self._numbered.setdefault(count(line, "call"), known)
        return known

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
        over = self.end is not None or self._tape
        rounds = 0
        for turn in self.turns:
            turn.calls = [call for call in turn.calls if not call.void]
            for call in turn.calls:
                if call.ended is None and call.state == "waiting":
                    call.state = _unended(call, over)
            turn.calls.sort(key=lambda call: (call.state != "dropped", call.index))
            # After a limit the model is asked for an answer: calls in it are refused, and make no round.
            if not turn.final and any(call.state not in ("dropped", "withdrawn") for call in turn.calls):
                turn.round = rounds = rounds + 1


def _unended(call: CallLane, over: bool) -> State:
    if call.started is not None:
        return "running"
    if over:
        return "dropped" if call.died else "handed"
    return "waiting"


def _state(call: CallLane, outcome: str) -> State:
    if outcome == "unknown":
        return "uncertain"
    if call.duplicate_of:
        return "shared"
    if outcome == "not_executed":
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
    what = ", ".join(filter(None, (words(part, "name"), text(part, "mime"), text(part, "url")[:200])))
    return f"[{what or 'a file'}{f', {size:,} bytes' if size else ''}]"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
