"""The content of a recording as fields that are safe to show: entries of the page, with long texts cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from unbroken.messages import Json
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken.wires.jsontext import dump_arguments

# Reads a field of a line, whatever it contains: a value of the wanted type, or a default. Recordings are untrusted.
# What is missing or of another type is not shown; nothing breaks on it.


LONGEST_FIELD = 1_000
"""Characters of fields that are not meant to be long."""


def text(line: Line, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""


def words(line: Line, name: str) -> str:
    """A name, an id, a reason: short, as they are meant to be."""
    value = text(line, name)
    return value if len(value) <= LONGEST_FIELD else f"{value[:LONGEST_FIELD]}…"


def number(line: Line, name: str) -> float | None:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        known = float(value)
    except OverflowError:
        return None
    return known if math.isfinite(known) else None


def count(line: Line, name: str) -> int:
    return int(number(line, name) or 0)


def flag(line: Line, name: str) -> bool:
    return line.get(name) is True


def inner(line: Line, name: str) -> Line:
    return as_object(line.get(name))


def objects(line: Line, name: str) -> list[Line]:
    return [as_object(value) for value in as_list(line.get(name)) if isinstance(value, dict)]


def as_object(value: Json) -> Line:
    return cast("Line", value) if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []


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
    """The entries, and how many events are missing, by their numbers."""
    found: list[Entry] = []
    pieces: list[Entry] = []
    """Pieces of a stream: each was an event, whose number no other event has."""
    next_seq = missing = 0
    silent = False
    """A retried answer is emitted when it is complete."""
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


# Cuts long texts. A picture holds many: there is a limit for each, and one for all of them together.


MOST = 100_000
"""Characters that are shown of one text."""
ALTOGETHER = 24_000_000
SPARING = 1_000
"""Characters of each text, once all of them together have reached that limit."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The beginning of a text, and the size of all of it in bytes."""

    text: str
    size: int
    cut: bool = False


class Clipper:
    """Cuts the texts of one picture."""

    def __init__(self, most: int = MOST, altogether: int = ALTOGETHER) -> None:
        self._most = most
        self._left = altogether

    def text(self, text: str) -> Clip:
        most = self._most if self._left > 0 else min(SPARING, self._most)
        shown = text[:most]
        self._left -= len(shown)
        return Clip(shown, _size(text), len(shown) < len(text))

    def json(self, value: Json) -> Clip:
        """A value as JSON text."""
        return self.text(dump_arguments(value) or repr(value)[:SPARING])


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
