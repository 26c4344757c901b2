"""What a run says while it goes: one small class per event, in the order in which things happen, JSON both ways.

Every event has the run, the turn (the number of the request, from 0), its own number and the time. Events are not
deltas (those are what a decoder says of one response) and hold nothing but JSON, so a sink may keep, send or print
them as they are. Plain classes, not frozen: one is built for every few characters that a model says. And without
slots: orjson writes what has a `__dict__` at a quarter of the cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from unbroken.errors import UserError
from unbroken.messages import Json


@dataclass
class Event:
    run: str
    turn: int
    seq: int
    time: float
    """Seconds since the epoch."""


Sink: TypeAlias = Callable[[Event], None]


@dataclass
class RunStarted(Event):
    model: str
    schedule: str


@dataclass
class RequestSent(Event):
    messages: int
    tools: int
    final: bool
    """In a final request nothing can be called."""


@dataclass
class TextAdded(Event):
    text: str


@dataclass
class ReasoningAdded(Event):
    text: str


@dataclass
class RequestRetried(Event):
    """There was no whole response: the same question is asked again after `wait` seconds."""

    attempt: int
    """The number of the try that failed, from 1."""
    kind: str
    """What was wrong with it: the kind of its verdict."""
    reason: str
    wait: float = 0.0
    model: str = ""
    """Who failed."""
    elsewhere: bool = False
    """Another model is asked next."""


@dataclass
class TextReplaced(Event):
    """The stream broke, and the second answer says something else: this is the text of the turn so far, in place of all
    that `TextAdded` gave of it. (Where the second answer goes on where the first stopped, only the rest is added.)"""

    text: str


@dataclass
class ReasoningReplaced(Event):
    """The same for reasoning."""

    text: str


@dataclass
class ToolCallsDetected(Event):
    """The response has ended and these calls were in it, in call order."""

    count: int
    names: list[str]
    calls: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """Each with `id`, `name` and `arguments`; those are null where they were cut."""


@dataclass
class CallStarted(Event):
    call_id: str
    name: str
    arguments: dict[str, Json]
    early: bool = False
    """It started while the response was still being written."""


@dataclass
class CallProgress(Event):
    call_id: str
    name: str
    message: str
    done: float | None = None
    """From 0 to 1, where the tool knows."""


@dataclass
class CallFinished(Event):
    """A call has its result. `seconds` is how long its tool ran; a call that never ran took none."""

    call_id: str
    name: str
    seconds: float
    error: bool
    text: str
    """The result as the model will read it; media are left out."""
    duplicate_of: str = ""
    """The call whose execution it shared."""
    executed: bool = True
    """Its tool ran (or its twin's did); otherwise it was answered without one: refused, unknown, cut, over budget."""
    adopted_from: str = ""
    """The call of a broken response whose execution it took over: it did not run again. The ids may be equal."""
    dropped: bool = False
    """It is of a response that broke off, and not in the one that came instead: it is in no message. A call that is
    may have the same id."""
    uncertain: bool = False
    """The run stopped while the tool ran, and nobody knows whether it took effect: the result says so."""


@dataclass
class CallsIgnored(Event):
    """Only one call at a time was asked for: these came beside it and are not in the history."""

    names: list[str]


@dataclass
class ApprovalAsked(Event):
    call_id: str
    name: str
    arguments: dict[str, Json]
    uncertain: bool = False
    """It had started when the run stopped, and may have taken effect: somebody has to say what to do."""


@dataclass
class TodoUpdated(Event):
    call_id: str
    todos: list[dict[str, Json]]


@dataclass
class LimitReached(Event):
    """`kind` is the stop reason that the run will have: round_limit, call_limit, token_limit, and so on."""

    kind: str
    limit: float


@dataclass
class ToolLate(Event):
    """A synchronous tool outlived its time-out. Its thread cannot be ended: `threads` such threads are running now."""

    call_id: str
    name: str
    seconds: float
    threads: int


@dataclass
class RecordingIncomplete(Event):
    """What happens from here on is not recorded, because the file cannot be written."""

    path: str
    reason: str


@dataclass
class Said(Event):
    """The text of one turn, whole. When calls follow it is a thought, not the answer: then it is not final."""

    text: str
    final: bool


@dataclass
class RoundFinished(Event):
    calls: int
    failed: int
    seconds: float
    """From the first start of a call to the last result."""


@dataclass
class RunFinished(Event):
    text: str
    stop_reason: str
    rounds: int
    requests: int
    calls: int
    usage: dict[str, Json]
    seconds: float
    pending: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    complete: bool = True
    """Every call of the history has its result."""
    tool_calls: int = 0
    """Calls in the history, and their results."""
    tool_returns: int = 0
    fallback_used: bool = False
    """A response broke and was asked for again without streaming, or of another model."""
    attempts: int = 0
    """Requests that were sent, with those that failed."""
    verdicts: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """What was wrong with each response that was not whole."""
    messages: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """The history, in its saved form."""


@dataclass
class RunFailed(Event):
    error: str
    """The name of the error's type, or `CancelledError`."""
    message: str
    verdicts: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """What was wrong with each response that was not whole, if that is why it failed."""
    usage: dict[str, Json] = field(default_factory=dict[str, Json])
    """What was spent until then, as far as it is known."""
    requests: int = 0
    attempts: int = 0
    """Requests that were sent, with those that failed and were made again."""


KINDS: tuple[type[Event], ...] = (
    RunStarted,
    RequestSent,
    TextAdded,
    ReasoningAdded,
    RequestRetried,
    TextReplaced,
    ReasoningReplaced,
    ToolCallsDetected,
    CallStarted,
    CallProgress,
    CallFinished,
    CallsIgnored,
    ApprovalAsked,
    TodoUpdated,
    LimitReached,
    ToolLate,
    RecordingIncomplete,
    Said,
    RoundFinished,
    RunFinished,
    RunFailed,
)
"""Every kind of event."""

NAMES: dict[type[Event], str] = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in KINDS}
"""How each is called in JSON: `call_started`."""

_KINDS_BY_NAME = {name: kind for kind, name in NAMES.items()}
_FIELDS: dict[type[Event], tuple[str, ...]] = {kind: tuple(field.name for field in fields(kind)) for kind in KINDS}


def event_to_json(event: Event) -> dict[str, Json]:
    """As plain JSON values: the name of its kind as `event`, then its fields."""
    # Not `asdict`: it copies what is JSON already, and fails where arguments are nested deep.
    kind = type(event)
    saved: dict[str, Json] = {"event": NAMES[kind]}
    for name in _FIELDS[kind]:
        saved[name] = getattr(event, name)
    return saved


def event_from_json(saved: dict[str, Json]) -> Event:
    """The event again. Fields that this version does not know are left out: a newer one may have written them."""
    name = saved.get("event")
    kind = _KINDS_BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UserError(
            f"reading an event failed: {name!r} is no kind of event; there are: {', '.join(_KINDS_BY_NAME)}"
        )
    names = {field.name for field in fields(kind)}
    given: dict[str, Any] = {key: value for key, value in saved.items() if key in names}
    try:
        return kind(**given)
    except TypeError as error:
        raise UserError(f"reading a {name} event failed: {error}") from error
