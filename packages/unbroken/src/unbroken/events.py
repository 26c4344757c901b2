"""The events of a run: one small class each, in the order in which things happen, convertible to JSON and back.

Every event has the run, the turn (the number of the request, from 0), a sequence number and the time. Do not confuse
events with deltas, which a decoder yields for a single response. Events contain nothing but JSON values, so a sink can
keep, send or print them as they are. The classes are not frozen, because one is built for every few characters that a
model writes. They have no slots, because orjson serialises an object with a `__dict__` four times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from unbroken.errors import UserError
from unbroken_wires.messages import Json, Outcome


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
    """In a final request the model cannot call tools."""
    changed: str = ""
    """What is not as it was in the request before, although it was sent there: `tools`, `system`, or the first message
    that differs, such as `message 3`. The provider's cache has nothing from there on."""


@dataclass
class TextAdded(Event):
    text: str


@dataclass
class ReasoningAdded(Event):
    text: str


@dataclass
class RequestRetried(Event):
    """There was no complete response: the same request is sent again after `wait` seconds."""

    attempt: int
    """The number of the attempt that failed, from 1."""
    kind: str
    """What was wrong with it: the kind of its verdict."""
    reason: str
    wait: float = 0.0
    model: str = ""
    """The model that failed."""
    elsewhere: bool = False
    """The next attempt goes to another model."""


@dataclass
class TextReplaced(Event):
    """The stream broke, and the retry produced different text: `text` replaces everything that `TextAdded` reported for
    this turn so far. (If the retry repeats the first text and continues it, only the rest is added.)"""

    text: str


@dataclass
class ReasoningReplaced(Event):
    """The same for reasoning."""

    text: str


@dataclass
class ToolCallsDetected(Event):
    """The response is complete and contains these calls, in call order."""

    count: int
    names: list[str]
    calls: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """Each has its number as `call`, its `id`, `name` and `arguments`; the arguments are null if they were cut off."""
    cost: float | None = None
    """What the request cost, failed attempts included. None if that is not known."""


@dataclass
class CallEvent(Event):
    """A step in the life of one call: it is written, starts, reports progress and finishes. If its response breaks, a
    call of the response that replaces it may adopt it; a call that ends up in no message is dropped."""

    call: int
    """The number of the call, unique in its run. Ids come from the provider and may repeat."""
    call_id: str
    name: str


@dataclass
class CallWritten(CallEvent):
    """The model has finished writing a call. This is the first event of every call."""

    arguments: dict[str, Json] | None
    """None if they were cut off or are not JSON: then the call never starts."""


@dataclass
class CallStarted(CallEvent):
    arguments: dict[str, Json]
    early: bool = False
    """The call started while the response was still being received."""


@dataclass
class CallChanged(CallEvent):
    """Middleware has changed the arguments of a call that started: it runs with these."""

    arguments: dict[str, Json]
    by: str
    """The name of the middleware."""


@dataclass
class CallProgress(CallEvent):
    message: str
    done: float | None = None
    """From 0 to 1, if the tool knows."""


@dataclass
class CallBackgrounded(CallEvent):
    """The call continues in the background, and the model is answered with its handle. Its `CallFinished` comes in a
    later turn."""

    handle: str


@dataclass
class CallFinished(CallEvent):
    """A call has its result. `seconds` is how long its tool ran: 0 if the call never ran."""

    seconds: float
    error: bool
    text: str
    """The result as the model will read it; media are left out."""
    outcome: Outcome
    duplicate_of: str = ""
    """The id of the call whose execution it shared."""


@dataclass
class ResultArrived(CallEvent):
    """The result of a background call was added to the history: the model reads it with the next request."""

    handle: str


@dataclass
class CallAdopted(CallEvent):
    """The call continues another one: the same call in a response that broke off, or in a run whose process died or
    that waited. If no `CallStarted` follows, it takes over the execution of that call and does not run again."""

    adopted: int
    """The number of the call that it continues."""


@dataclass
class CallDropped(CallEvent):
    """The call is in no message, for example because its response broke off and the response that replaced it does not
    contain the call. If the call had started, its `CallFinished` comes first."""

    reason: str


@dataclass
class CallsIgnored(Event):
    """The request allowed only one call at a time: these were additional calls, which are not added to the history."""

    names: list[str]


@dataclass
class ServerCallStarted(Event):
    """The provider runs a tool of its own. It has no number: the run neither starts nor answers it."""

    call_id: str
    """As the provider has it; unique in a response."""
    tool: str
    """What it does, the same for every provider: `web_search`, `web_fetch`, `code_execution`, `file_search`,
    `image_generation`, `mcp`, `tool_search`."""
    name: str
    """The provider's own name for it; the name of the tool, if it is one of an MCP server."""
    arguments: dict[str, Json] | None
    """None if they are not known yet."""


@dataclass
class ServerCallFinished(Event):
    """It has ended. `outcome` is `done`, `failed`, or `unknown` if nothing more was heard of it."""

    call_id: str
    tool: str
    name: str
    arguments: dict[str, Json] | None
    outcome: Outcome
    error: str = ""
    """Why it failed, in the provider's words."""


@dataclass
class ApprovalAsked(CallEvent):
    arguments: dict[str, Json]
    uncertain: bool = False
    """The call had started when the run stopped, and may have taken effect: somebody must decide what to do."""


@dataclass
class TodoUpdated(CallEvent):
    todos: list[dict[str, Json]]


@dataclass
class InnerEvent(CallEvent):
    """An event of an agent that runs as a tool: `call` is the call that runs it. If that agent runs another one, the
    event in here is an `InnerEvent` too."""

    agent: str
    """The path of the agent, such as `main/researcher`."""
    inner: dict[str, Json]
    """The event as JSON; `event` has it as an object. The end of a run has no `messages` here."""

    @property
    def event(self) -> Event:
        """The event of the inner run. One of a later version, whose kind is unknown here, is a plain `Event`: ignore
        it."""
        name = self.inner.get("event")
        is_new = isinstance(name, str) and name not in _KINDS_BY_NAME
        return _read(Event, self.inner) if is_new else event_from_json(self.inner)


@dataclass
class AgentChanged(Event):
    """The run was handed off: from the next request on, another agent answers."""

    agent: str
    """Its name."""
    model: str
    tool: str
    """The tool with which the agent before it handed the run off."""
    settings: dict[str, Json] = field(default_factory=dict[str, Json])
    """How it runs, as at the beginning of a recording."""


@dataclass
class LimitReached(Event):
    """`kind` is the stop reason that the run will have: round_limit, call_limit, token_limit, and so on."""

    kind: str
    limit: float


@dataclass
class ToolLate(CallEvent):
    """A synchronous tool ran past its time-out. Its thread cannot be ended: `threads` such threads are running now."""

    seconds: float
    threads: int


@dataclass
class Checked(Event):
    """A check did not accept the prompt or the final output as it was, or ended the run because of a call. `outcome` is
    `replaced`: `text` is in its place now; `veto`: the run ends with `text`; `retry`: another answer is requested, and
    `text` is the reason; or `failed`: the run fails with `text`."""

    value: str
    """`input`, `call` or `output`."""
    outcome: str
    text: str


@dataclass
class Compacted(Event):
    """The history was compacted: from now on a summary is sent in place of its older part. Or it was not, because there
    is no summary: `problem` has the reason, and the run continues with all of its history."""

    messages: int
    """How many messages the summary stands for."""
    before: int
    """Tokens of the history, by what the provider reported last."""
    after: int
    """The same after it, estimated. 0 if the provider compacts by itself: its next report shows it."""
    text: str
    """The summary."""
    problem: str = ""
    cost: float | None = None
    """What the request for it cost. None if that is not known."""


@dataclass
class RunChanged(Event):
    """A durable run continues with an agent that differs from the one before: what has changed, one sentence each."""

    changes: list[str]


@dataclass
class RecordingIncomplete(Event):
    """From here on the run is not recorded, because the file cannot be written."""

    path: str
    reason: str


@dataclass
class TextFinished(Event):
    """The complete text of one turn. `final` is false if calls follow: then the text is a thought and not the
    answer."""

    text: str
    final: bool
    cost: float | None = None
    """What the request cost, failed attempts included. None if that is not known."""


@dataclass
class RoundFinished(Event):
    calls: int
    failed: int
    seconds: float
    """From the start of the first call to the last result."""
    cost: float | None = None
    """What the request and its calls cost: an agent as a tool has a cost. None if that is not known, or if the round
    waited for somebody outside."""


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
    """The calls that the run is waiting for, each with `call`, `id`, `name` and `arguments`."""
    complete: bool = True
    """Every call in the history has a result."""
    tool_calls: int = 0
    """The number of calls in the history; `tool_returns` is the number of their results."""
    tool_returns: int = 0
    fallback_used: bool = False
    """A response broke and was requested again without streaming, or from another model."""
    attempts: int = 0
    """Requests that were sent, including those that failed."""
    verdicts: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """What was wrong with each incomplete response."""
    messages: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """The history, in its saved form."""
    cost: float | None = None
    """What the run cost. None if that is not known."""
    cache_saving: float | None = None
    """How much less it cost because of the provider's cache. None if that is not known, or nothing was cached."""
    cut_off: bool = False
    """It ended without an answer of the model: `text` is what there was, or a sentence of ours."""


@dataclass
class RunFailed(Event):
    error: str
    """The name of the error's type, or `CancelledError`."""
    message: str
    verdicts: list[dict[str, Json]] = field(default_factory=list[dict[str, Json]])
    """What was wrong with each incomplete response, if that is why the run failed."""
    usage: dict[str, Json] = field(default_factory=dict[str, Json])
    """Token usage until the failure, as far as it is known."""
    requests: int = 0
    attempts: int = 0
    """Requests that were sent, including those that failed and were retried."""
    cost: float | None = None
    """What it cost until the failure. None if that is not known."""
    fallback_used: bool = False
    """A response broke and was retried without streaming, or with another model; that failed too, or something else
    did later."""


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
    CallChanged,
    CallProgress,
    CallBackgrounded,
    CallFinished,
    ResultArrived,
    CallAdopted,
    CallDropped,
    CallsIgnored,
    ServerCallStarted,
    ServerCallFinished,
    ApprovalAsked,
    TodoUpdated,
    InnerEvent,
    AgentChanged,
    LimitReached,
    ToolLate,
    Checked,
    Compacted,
    RunChanged,
    RecordingIncomplete,
    TextFinished,
    RoundFinished,
    RunFinished,
    RunFailed,
)
"""Every kind of event."""

NAMES: dict[type[Event], str] = {kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in KINDS}
"""The name of each kind in JSON, such as `call_started`."""

_SCALARS = frozenset({"str", "int", "float", "bool", "float | None", "Outcome"})
FLAT = frozenset(kind for kind in KINDS if all(field.type in _SCALARS for field in fields(kind)))
"""The kinds whose fields hold no object and no list."""

_KINDS_BY_NAME = {name: kind for kind, name in NAMES.items()}
_FIELDS: dict[type[Event], tuple[str, ...]] = {kind: tuple(field.name for field in fields(kind)) for kind in KINDS}


def event_to_json(event: Event) -> dict[str, Json]:
    """Returns the event as plain JSON values: the name of its kind as `event`, then its fields."""
    # Not `asdict`: it copies values that are JSON already, and fails on deeply nested arguments.
    kind = type(event)
    saved: dict[str, Json] = {"event": NAMES[kind]}
    for name in _FIELDS[kind]:
        saved[name] = getattr(event, name)
    return saved


def event_from_json(saved: dict[str, Json]) -> Event:
    """Reads an event from its JSON. Fields that this version does not know are ignored: a newer version may have
    written them."""
    name = saved.get("event")
    kind = _KINDS_BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UserError(
            f"reading an event failed: {name!r} is not a kind of event; the kinds are: {', '.join(_KINDS_BY_NAME)}"
        )
    return _read(kind, saved)


def _read(kind: type[Event], saved: dict[str, Json]) -> Event:
    names = {field.name for field in fields(kind)}
    given: dict[str, Any] = {key: value for key, value in saved.items() if key in names}
    try:
        return kind(**given)
    except TypeError as error:
        raise UserError(f"reading a {saved['event']} event failed: {error}") from error
