"""How the answers of a run arrived, from the deltas of its recording: turns with their attempts, and the calls in them
while they are written.

An answer that breaks off and is retried is one turn with two attempts. So is one that is requested again because the
process died, unless it was complete: then the resumed run replays it from the recording, and it did not arrive twice.
"""

from __future__ import annotations

from unbroken.trajectory.line_checks import count
from unbroken.trajectory.lines import Line
from unbroken_viewer.picture_data import (
    LONGEST_FIELD,
    Attempt,
    CallLane,
    Clipper,
    Piece,
    Turn,
    inner,
    text,
    words,
)
from unbroken_wires.wires.json_access import as_list

QUIET = 0.5
"""Seconds without a delta after which an answer is drawn with a gap."""
DIED = "its process died"
ANEW = "it was requested again"
_PIECES = {"text": "text", "reasoning": "reasoning"} | dict.fromkeys(
    ("call_opened", "call_arguments", "call_ready", "call_spoiled"), "call"
)
"""What arrived, by the kind of delta."""


class DrawnAnswers:
    """`begin` takes each request, `take` each delta, `resume` each change of the process."""

    def __init__(self, clips: Clipper) -> None:
        self.turns: list[Turn] = []
        self.written: dict[str, CallLane] = {}
        """The last call of each id that is complete and has no number yet."""
        self._clips = clips
        self._by_number: dict[int, Turn] = {}
        self._open: dict[int, CallLane] = {}
        """The calls of the answer that is being read, by index."""
        self._texts: dict[str, list[str]] = {}
        """The pieces of its text and of its reasoning."""
        self._deltas: list[Line] = []
        self._replayed: list[Line] = []
        """The deltas of the complete answer that the one that is being read may repeat."""
        self._attempts_before = 0
        """Attempts at the turn before the run was resumed."""
        self._resumed = False
        """The next request may repeat that of the last turn."""

    def begin(self, number: int, at: float) -> Turn:
        """A request is sent. An event and a line report it, in either order; one may be missing."""
        turn, resumed = self.turns[-1] if self.turns else None, self._resumed
        self._resumed = False
        if turn is None or turn.number != number or not (resumed or turn.ended is None):
            self.end(at)
            self._forget_replay()
            turn = self._by_number[number] = Turn(number, at, attempts=[Attempt(at)])
            self.turns.append(turn)
            self._read_anew()
        elif resumed:
            self._try_again(turn, at)
        return turn

    def turn(self, number: int, at: float) -> Turn:
        return self._by_number.get(number) or self.begin(number, at)

    def end(self, at: float) -> None:
        """The last answer is complete, or given up."""
        if self.turns and (turn := self.turns[-1]).ended is None:
            last = turn.attempts[-1]
            last.ended = turn.ended = max(at, last.asked)

    def fail(self, line: Line, at: float) -> None:
        turn = self.turn(line["turn"], at)
        turn.failed = turn.attempts[-1].broken = f"{words(line, 'error')}: {words(line, 'message')}"
        self.end(at)

    def close(self) -> None:
        """The recording ends here."""
        self._forget_replay()
        if self.turns:
            self._join_texts(self.turns[-1])

    # A run that is resumed

    def resume(self, died: float) -> None:
        """`died` is when the process did that ran it before."""
        self._resumed = True
        self._forget_replay()
        if self.turns and self.turns[-1].ended is None:
            self.turns[-1].attempts[-1].broken = DIED
            self.end(died)
        self._void_open()

    def _try_again(self, turn: Turn, at: float) -> None:
        turn.attempts[-1].broken = turn.attempts[-1].broken or ANEW
        self._attempts_before = len(turn.attempts)
        self._replayed = self._deltas if _is_complete(self._deltas) else []
        turn.attempts.append(Attempt(at))
        turn.ended, turn.provider_calls = None, []
        self._read_anew()

    def _forget_replay(self) -> None:
        """A replayed answer does not count as an attempt. Only its end shows whether it was a different one."""
        if self._replayed and _is_beginning(self._deltas, self._replayed):
            turn = self.turns[-1]
            del turn.attempts[self._attempts_before :]
            turn.attempts[-1].broken, turn.ended = "", turn.attempts[-1].ended
            self._deltas = self._replayed  # which may be replayed again
        self._replayed = []

    # Deltas

    def take(self, line: Line, at: float) -> None:
        turn, kind = self.turn(line["turn"], at), line["delta"]
        self._deltas.append(line)
        attempt = turn.attempts[-1]
        if kind == "attempt_failed":
            self._fail_attempt(turn, line, at)
            return
        if kind == "restarted":  # what came of the answer is void
            self._void_open()
            self._open, self._texts = {}, {}
            return
        attempt.first = at if attempt.first is None else attempt.first
        if kind in _PIECES:
            _add_piece(attempt, _PIECES[kind], at, len(text(line, "text")))
        match kind:
            case "text" | "reasoning":
                self._texts.setdefault(kind, []).append(line["text"])
            case "call_opened":
                self._open_call(turn, line, at)
            case "call_ready" | "call_spoiled":
                lane = self._open_call(turn, line["call"], at)
                self._complete_call(lane, line["call"], at)
                if kind == "call_spoiled":
                    lane.state = "spoiled"
            case "call_withdrawn" if (lane := self._open.pop(line["index"], None)) is not None:
                lane.state, lane.ended = "withdrawn", at
            case "server_call":
                saved = line["call"]
                turn.provider_calls.append(words(saved, "name") or words(saved, "tool") or words(saved, "type"))
            case "usage":
                usage = line["usage"]
                turn.input_tokens, turn.output_tokens = (
                    count(usage.get("input_tokens")),
                    count(usage.get("output_tokens")),
                )
            case "ended":
                verdict = line["verdict"]
                turn.verdict, turn.finish = words(verdict, "kind"), words(verdict, "finish")
                attempt.model = words(verdict, "model")
                self._join_texts(turn)
                self.end(at)
                self._forget_replay()
            case _:
                pass

    def _open_call(self, turn: Turn, saved: Line, at: float) -> CallLane:
        index, name, id = count(saved.get("index")), words(saved, "name"), words(saved, "id")
        lane = self._open.get(index)
        if lane is None:
            lane = self._open[index] = CallLane(turn.number, index, name, opened=at)
            turn.calls.append(lane)
        lane.id, lane.name = id or lane.id, name or lane.name
        return lane

    def _complete_call(self, lane: CallLane, saved: Line, at: float) -> None:
        lane.written = at
        self.written[lane.id] = lane  # not earlier: its id may change until now
        lane.problem = words(saved, "problem")
        lane.notes = [note[:LONGEST_FIELD] for note in as_list(saved.get("notes")) if isinstance(note, str)]
        arguments = saved.get("arguments")
        lane.arguments = self._clips.text(text(saved, "raw")) if arguments is None else self._clips.json(arguments)

    def _fail_attempt(self, turn: Turn, line: Line, at: float) -> None:
        verdict, failed = line["verdict"], turn.attempts[-1]
        failed.ended, failed.kind, failed.model = at, words(verdict, "kind"), words(verdict, "model")
        failed.broken = words(verdict, "reason") or failed.kind or "it broke off"
        failed.wait, failed.elsewhere = max(line["wait"], 0.0), line["elsewhere"]
        turn.attempts.append(Attempt(round(at + failed.wait, 6)))

    def _read_anew(self) -> None:
        self._open, self._texts, self._deltas = {}, {}, []

    def _void_open(self) -> None:
        """Drops calls of an answer that broke off before they had a number."""
        for lane in self._open.values():
            lane.void |= lane.written is None or self.written.get(lane.id) is lane

    def _join_texts(self, turn: Turn) -> None:
        for kind, pieces in self._texts.items():
            joined = self._clips.text("".join(pieces))
            if kind == "text":
                turn.said = joined
            else:
                turn.reasoning = joined


def _add_piece(attempt: Attempt, kind: str, at: float, size: int) -> None:
    pieces = attempt.pieces
    if not pieces or pieces[-1].kind != kind or at - pieces[-1].end > QUIET:
        pieces.append(Piece(kind, at, at))
    pieces[-1].end = at
    pieces[-1].size += size


def _is_complete(deltas: list[Line]) -> bool:
    return bool(deltas) and inner(deltas[-1], "verdict").get("kind") == "whole"


def _is_beginning(deltas: list[Line], complete: list[Line]) -> bool:
    """Are these the same deltas as the first ones of that answer, whenever they came?"""
    pairs = zip(deltas, complete, strict=False)
    return len(deltas) <= len(complete) and all({**one, "at": 0} == {**other, "at": 0} for one, other in pairs)
