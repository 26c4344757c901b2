"""Reads the lines of a recording one after another, from a file or as they are written, and the events in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from unbroken.errors import UserError
from unbroken.events import Event, ReasoningAdded, RunFinished, TextAdded, event_from_json
from unbroken.trajectory.known import Known
from unbroken.trajectory.line_checks import Expander, is_line, number
from unbroken.trajectory.lines import SCHEMA, Line, split_pieces
from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import dicts
from unbroken_wires.wires.jsontext import loads_faithful

BEGINNING = b'{"line":"run","schema":'
"""How every recording begins."""


class LineReader:
    """`feed` takes one raw line and returns the lines that are read of it. `name` is that of the recording, for
    errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: Line | None = None
        """The first line; None until it is read."""
        self.problems: list[str] = []
        """What could not be read."""
        self.size = 0
        self.damaged = 0
        """The number of the first line that cannot be read, 0 if there is none. A line that was cut when a process
        died does not count."""
        self._place = self._unreadable = 0
        self._offset = 0.0
        """Seconds between the beginning of the run and that of its current part."""
        self._expander = Expander()
        self._known = Known({})

    def feed(self, raw: bytes) -> list[Line]:
        self._place += 1
        self.size += len(raw)
        if self.head is None:
            self.head = read_head(self.name, raw)
            self._known = Known(self.head)
            return []
        read = read_json(raw)
        if read is not None and read.get("line") == "resumed" and "schema" in read:
            refuse_other_schema(self.name, read["schema"])
        line = self._checked(read)
        if line is None:
            if raw.strip():
                self.problems.append(_unreadable(self._place, raw))
                self._unreadable = self._unreadable or self._place
            return []
        if self._unreadable and line["line"] != "resumed":
            self.damaged = self.damaged or self._unreadable
        self._unreadable = 0
        return [self._complete(each) for each in split_pieces(line)]

    def _checked(self, line: Line | None) -> Line | None:
        """None if it is not a valid line: cut, or not following the schema."""
        return None if line is None else complete(self._known, line)

    def _complete(self, line: Line) -> Line:
        """Fills in what it refers to, and makes its time one since the beginning of the run."""
        if not self._expander.feed(line):
            self.problems.append(f"line {self._place} refers to lines that are not there")
        if line["line"] == "resumed":
            self._offset = max(number(line.get("time")) - number((self.head or {}).get("time")), 0.0)
            line["at"] = self._offset
        elif self._offset and "at" in line:
            line["at"] = round(line["at"] + self._offset, 9)
        return line


class EventReader:
    """The events of a run from the lines of its recording, line by line. Text that was streamed has no lines of its
    own: each piece of the answer is an event, and takes the next number."""

    def __init__(self, head: Line, time_at: Callable[[float], float], first: int = 0) -> None:
        self._run = str(head.get("run", ""))
        self._time_at = time_at
        self._said: list[Line] = dicts(head.get("messages"))
        self._next = first
        self._piece: TextAdded | ReasoningAdded | None = None
        self._silent = False
        """The answer is a second one: it is emitted when it is complete, if it is different."""

    def feed(self, line: Line) -> Event | None:
        """The event of this line, or None. A piece that arrived together with the one before is added to its event."""
        match line["line"]:
            case "resumed":
                self._said = []
            case "request":
                self._said, self._silent = [*self._said[: line["keep"]], *line["messages"]], False
            case "delta" if line["delta"] == "restarted":
                self._silent = True
            case "delta" if line["delta"] in _PIECES and not self._silent:
                if line.get("joined") and self._piece is not None:
                    self._piece.text += line["text"]
                    return None
                at = self._time_at(line["at"])
                self._piece = _PIECES[line["delta"]](self._run, line["turn"], self._next, at, line["text"])
                self._next += 1
                return self._piece
            case "event":
                event = read_event(line)
                if event is None:
                    return None
                self._next, self._piece = event.seq + 1, None
                if isinstance(event, RunFinished):
                    event.messages = [*self._said[: line.get("keep", 0)], *event.messages]
                return event
            case _:
                pass
        return None


_PIECES: dict[str, type[TextAdded] | type[ReasoningAdded]] = {"text": TextAdded, "reasoning": ReasoningAdded}


def read_event(line: Line) -> Event | None:
    """None for one of a later version."""
    try:
        return event_from_json(line)
    except UserError:
        return None


def read_head(name: object, raw: bytes) -> Line:
    """The first line of a recording. Raises `UserError` if it is not one."""
    line = read_json(raw)
    if line is None and raw.startswith(BEGINNING) and not raw.endswith(b"\n"):
        raise UserError(f"{name} is cut in its first line: its process died when the run began; there is nothing in it")
    if line is None or line.get("line") != "run" or "schema" not in line:
        raise UserError(f"{name} is not a recording: its first line does not begin with {BEGINNING.decode()}")
    refuse_other_schema(name, line["schema"])
    return line


def refuse_other_schema(name: object, schema: object) -> None:
    if isinstance(schema, int) and schema < SCHEMA:
        raise UserError(
            f"{name} was recorded by an earlier version (schema {schema}, and this one reads {SCHEMA}): convert it "
            "with scripts/convert_recordings.py of the source"
        )
    if schema != SCHEMA:
        raise UserError(
            f"{name} was recorded by a newer version (schema {schema}, and this one reads {SCHEMA}): update unbroken"
        )


def complete(known: Known, line: Line) -> Line | None:
    """With everything that the lines before it say. None if it does not follow the schema."""
    turn, seq = known.turn, known.seq
    try:
        full = known.complete(line)
        if is_line(full):
            return full
    except Exception:  # noqa: BLE001 - a recording may come from anywhere
        pass
    known.turn, known.seq = turn, seq
    return None


def read_json(raw: bytes) -> Line | None:
    try:
        value: Json = loads_faithful(raw)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is no line
        return None
    return cast("Line", value) if isinstance(value, dict) else None


def _unreadable(place: int, raw: bytes) -> str:
    if not raw.endswith(b"\n"):
        return f"line {place} is cut: its process died while it was written; the lines before it are whole"
    return f"line {place} cannot be read and is left out"
