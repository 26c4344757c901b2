"""The content of a picture as plain data: turns, attempts, calls, and entries whose long texts are cut. `drawn_run`
builds them from the lines of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unbroken.run_view import CallView
from unbroken.trajectory.line_checks import count
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import Recording
from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import as_dict, dicts
from unbroken_wires.wires.jsontext import dump_arguments

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


def flag(line: Line, name: str) -> bool:
    return line.get(name) is True


def inner(line: Line, name: str) -> Line:
    return as_dict(line.get(name))


def objects(line: Line, name: str) -> list[Line]:
    return dicts(line.get(name))


def part_text(part: Line) -> str:
    """A part of a message or a result as text: media are only named."""
    if part.get("type") == "text":
        return text(part, "text")
    size = len(text(part, "data")) * 3 // 4
    what = ", ".join(filter(None, (words(part, "name"), text(part, "mime"), text(part, "url")[:200])))
    return f"[{what or 'a file'}{f', {size:,} bytes' if size else ''}]"


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
    begun = silent = False
    """A retried answer is emitted when it is complete."""
    for at, line in zip(times, recording.lines, strict=True):
        kind, is_event = text(line, "delta") or line["line"], line["line"] == "event"
        fields = {name: _short(value) for name, value in line.items() if name not in _SAID_ELSEWHERE}
        entry = Entry(at, count(line.get("turn")), line["event"] if is_event else kind, is_event, fields)
        found.append(entry)
        if is_event:
            seq = count(line.get("seq"))
            if entry.kind == "run_started" and not begun:
                next_seq = seq  # that of a durable run is 1
            begun = True
            for number, piece in zip(range(next_seq, seq), pieces, strict=False):
                piece.kind, piece.event, piece.fields = _PIECES[piece.kind], True, {"seq": number, **piece.fields}
            missing += max(seq - next_seq - len(pieces), 0)
            pieces.clear()
            next_seq = seq + 1
        elif kind in _PIECES and not silent:
            if not line.get("joined"):  # else it is in the event of the piece before
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


State: TypeAlias = Literal[
    "done",
    "failed",
    "shared",
    "refused",
    "spoiled",
    "dropped",
    "uncertain",
    "running",
    "waiting",
    "handed",
    "sent",
    "held",
    "withdrawn",
]
"""How a call ended: with a result, with an error, with the result of an identical call, answered without its tool,
incomplete, lost with its answer; or not at all: it still ran, it still waited, it was returned to the program that
asked, a gateway sent it to its client or still holds it, it was not a call."""


@dataclass(slots=True)
class Piece:
    """A part of an answer that arrived without a gap: text, reasoning, or calls."""

    kind: str
    start: float
    end: float
    size: int = 0
    """Characters."""


@dataclass(slots=True)
class Attempt:
    """One attempt at an answer. `broken` is the reason if it failed; another follows after `wait` seconds."""

    asked: float
    first: float | None = None
    ended: float | None = None
    pieces: list[Piece] = field(default_factory=list[Piece])
    broken: str = ""
    kind: str = ""
    """Of its verdict."""
    wait: float = 0.0
    elsewhere: bool = False
    model: str = ""
    """The model that was asked, if that is recorded."""


@dataclass(slots=True)
class InnerLane:
    """A call of an agent that runs as a tool, or of an agent inside of it."""

    agent: str
    """The path of the agent that made it."""
    depth: int
    """1 for an agent of the run, 2 for an agent of that agent."""
    name: str
    arguments: str
    started: float
    ended: float | None = None
    error: bool = False


@dataclass(slots=True)
class CallLane:
    """One call. A time is None if it did not happen or was not recorded."""

    turn: int
    index: int
    name: str
    id: str = ""
    opened: float | None = None
    written: float | None = None
    asked: float | None = None
    """Somebody was asked to approve it."""
    decided: float | None = None
    decision: str = ""
    started: float | None = None
    early: bool = False
    ended: float | None = None
    seconds: float | None = None
    """How long its tool ran, from the event."""
    died: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When it ran and was lost with its process."""
    void: bool = False
    """It is no longer a call, and is not drawn."""
    state: State = "waiting"
    error: bool = False
    duplicate_of: str = ""
    adopted_from: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list[str])
    key: str = ""
    """Its idempotency key, once it had a result."""
    arguments: Clip | None = None
    """As it ran."""
    edited: bool = False
    """An approver or middleware has changed its arguments: `made` has those of the model."""
    made: Clip | None = None
    result: Clip | None = None
    progress: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    agent: str = ""
    """The path of the agent that is its tool."""
    steps: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    """What that agent did, and agents inside of it: when, which agent, and what."""
    inner: list[InnerLane] = field(default_factory=list[InnerLane])
    """The calls of that agent, and of agents inside of it."""
    backgrounded: float | None = None
    """When it was answered with a handle and continued in the background."""


@dataclass(slots=True)
class Turn:
    """One request: its answer, in one attempt or more, and the calls in it."""

    number: int
    asked: float
    round: int = 0
    """From 1; 0 if nothing was called."""
    final: bool = False
    messages: int = 0
    tools: int = 0
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    calls: list[CallLane] = field(default_factory=list[CallLane])
    ended: float | None = None
    """Its answer was complete, or given up."""
    finished: float | None = None
    """Its calls had their results."""
    failed: str = ""
    verdict: str = ""
    finish: str = ""
    said: Clip | None = None
    reasoning: Clip | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """What the request cost, if that is known."""
    round_cost: float | None = None
    """The same with its calls."""
    provider_calls: list[str] = field(default_factory=list[str])
    """Tools that the provider ran itself."""
    ignored: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Mark:
    """Something that happened at a moment and belongs to no call."""

    at: float
    kind: str
    text: str


def state_of(call: CallView) -> State:
    """The state of a call."""
    if call.dropped is not None:
        return "dropped"
    match call.outcome:
        case None:
            return "waiting" if call.started is None else "running"
        case "unknown":
            return "uncertain"
        case _ if call.duplicate_of or call.outcome == "cached":
            return "shared"
        case "not_executed":
            return "spoiled" if call.arguments is None else "refused"
        case _:
            return "failed" if call.error else "done"
