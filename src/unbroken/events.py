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
from unbroken.messages import Json, Outcome


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
    """Each with its number as `call`, `id`, `name` and `arguments`; those are null where they were cut."""


@dataclass
class CallEvent(Event):
    """Something in the life of one call: it is written, it starts, reports progress and finishes. A call of a response
    that broke may be adopted by a call of the response that came instead; a call that is in no message is dropped."""

    call: int
    """The number of the call, unique in its run. Ids are the provider's and may repeat."""
    call_id: str
    name: str


@dataclass
class CallWritten(CallEvent):
    """The model has written a call to its end. This is the first event of every call."""

    arguments: dict[str, Json] | None
    """None if they were cut, or are not JSON: then the call never starts."""


@dataclass
class CallStarted(CallEvent):
    arguments: dict[str, Json]
    early: bool = False
    """It started while the response was still being written."""


@dataclass
class CallProgress(CallEvent):
    message: str
    done: float | None = None
    """From 0 to 1, where the tool knows."""


@dataclass
class CallFinished(CallEvent):
    """A call has its result. `seconds` is how long its tool ran; a call that never ran took none."""

    seconds: float
    error: bool
    text: str
    """The result as the model will read it; media are left out."""
    outcome: Outcome
    duplicate_of: str = ""
    """The id of the call whose execution it shared."""


@dataclass
class CallAdopted(CallEvent):
    """The call continues another one: the same call in a response that broke off, or in a run whose process died or
    that waited. If no `CallStarted` follows, it takes over the execution of that call and does not run again."""

    adopted: int
    """The number of the call that it continues."""


@dataclass
class CallDropped(CallEvent):
    """The call is in no message: its response broke off, say, and the one that came instead does not have it. If it had
    started, `CallFinished` comes before this."""

    reason: str


@dataclass
class CallsIgnored(Event):
    """Only one call at a time was asked for: these came beside it and are not in the history."""

    names: list[str]


@dataclass
class ApprovalAsked(CallEvent):
    arguments: dict[str, Json]
    uncertain: bool = False
    """It had started when the run stopped, and may have taken effect: somebody has to say what to do."""


@dataclass
class TodoUpdated(CallEvent):
    todos: list[dict[str, Json]]


@dataclass
class LimitReached(Event):
    """`kind` is the stop reason that the run will have: round_limit, call_limit, token_limit, and so on."""

    kind: str
    limit: float


@dataclass
class ToolLate(CallEvent):
    """A synchronous tool outlived its time-out. Its thread cannot be ended: `threads` such threads are running now."""

    seconds: float
    threads: int


@dataclass
class RecordingIncomplete(Event):
    """What happens from here on is not recorded, because the file cannot be written."""

    path: str
    reason: str


@dataclass
class TextFinished(Event):
    """The complete text of one turn. If calls follow, it is a thought and not the answer: then it is not final."""

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
    """The calls that the run waits for, each with `call`, `id`, `name` and `arguments`."""
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
    CallWritten,
    CallStarted,
    CallProgress,
    CallFinished,
    CallAdopted,
    CallDropped,
    CallsIgnored,
    ApprovalAsked,
    TodoUpdated,
    LimitReached,
    ToolLate,
    RecordingIncomplete,
    TextFinished,
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
