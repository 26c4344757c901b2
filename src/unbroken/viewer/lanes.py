"""What is drawn of a run: turns, the attempts at their answers, calls. Plain data; `folding` builds it from the
lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from unbroken.run_view import CallView
from unbroken.viewer.entries import Clip

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
    "withdrawn",
]
"""How a call ended: with a result, with an error, with the result of an identical call, answered without its tool,
incomplete, lost with its answer; or not at all: it still ran, it still waited, it was handed to a client, it was not a
call."""


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
    result: Clip | None = None
    progress: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])


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
    asked_again: float | None = None
    """The run was resumed here; its answer was repeated, if it had been complete."""
    failed: str = ""
    verdict: str = ""
    finish: str = ""
    said: Clip | None = None
    reasoning: Clip | None = None
    input_tokens: int = 0
    output_tokens: int = 0
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
        case _ if call.duplicate_of:
            return "shared"
        case "not_executed":
            return "spoiled" if call.arguments is None else "refused"
        case _:
            return "failed" if call.error else "done"
