"""Every line of a recording in short, for a list that can be searched. What is long in it stands elsewhere, longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unbroken.messages import Json
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken.viewer.fields import count, text
from unbroken.wires.jsontext import dump_arguments

LONGEST = 600
"""Characters that are shown of one field."""


@dataclass(slots=True)
class Entry:
    at: float
    turn: int
    kind: str
    event: bool
    """An event of the run; else another line of the recording."""
    fields: Line


_SAID_ELSEWHERE = frozenset({"line", "at", "turn", "time", "run", "event", "delta"})


_PIECES = {"text": "text_added", "reasoning": "reasoning_added"}


def entries_of(recording: Recording, times: Sequence[float]) -> tuple[tuple[Entry, ...], int]:
    """And how many events are missing: each has a number."""
    found: list[Entry] = []
    pieces: list[Entry] = []
    """Of a stream: an event was said of each, which is told by its number that no other has."""
    next_seq = missing = 0
    silent = False
    """An answer that comes again is said when it is whole."""
    for at, line in zip(times, recording.lines, strict=True):
        is_event = line["line"] == "event"
        kind = text(line, "event") if is_event else text(line, "delta") or text(line, "line")
        fields = {name: _short(value) for name, value in line.items() if name not in _SAID_ELSEWHERE}
        entry = Entry(at, count(line, "turn"), kind, is_event, fields)
        found.append(entry)
        if is_event:
            for seq, piece in zip(range(next_seq, count(line, "seq")), pieces, strict=False):
                piece.kind, piece.event, piece.fields = _PIECES[piece.kind], True, {"seq": seq, **piece.fields}
            missing += max(count(line, "seq") - next_seq - len(pieces), 0)
            pieces.clear()
            next_seq = count(line, "seq") + 1
        elif line["line"] == "delta" and kind in _PIECES and not silent:
            pieces.append(entry)
        else:
            silent = kind == "restarted" or (silent and kind != "request")
    return tuple(found), missing


def _short(value: Json) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else str(value)  # nor is NaN
    told = value if isinstance(value, str) else dump_arguments(value)
    if told is None:
        return repr(value)[:LONGEST]
    return value if len(told) <= LONGEST else f"{told[:LONGEST]}… ({len(told):,} characters)"
