"""What a tool may know about the call that runs it. A tool takes it as a parameter that the model does not see."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from unbroken.clock import TimeLimit
from unbroken.events import CallProgress, Event
from unbroken_wires.messages import Assistant, Json, Message, ToolCall, ToolResult, Usage, User

Deps = TypeVar("Deps")


@dataclass(frozen=True, slots=True)
class RunContext(Generic[Deps]):
    """What functions of an agent know about the run that calls them: checks, and functions that return instructions,
    tools, limits or a history."""

    run: str = ""
    """Its id."""
    agent: str = ""
    """The agent's name."""
    model: str = ""
    """The model's name."""
    turn: int = 0
    """The number of the request, from 0."""
    deps: Deps = None  # type: ignore[assignment] - a run without deps has none
    store: dict[str, Any] = field(default_factory=dict[str, Any])
    """Lives as long as the conversation; tools find it in their `CallContext`."""
    messages: tuple[Message, ...] = ()
    """The history so far, without the instructions."""
    usage: Usage = field(default_factory=Usage)
    """The tokens that the run has used so far."""

    @property
    def prompt(self) -> str:
        """The text of the last message of the user."""
        return next((message.text for message in reversed(self.messages) if isinstance(message, User)), "")


def _to_nobody(kind: type[Event], *fields: Any) -> None:
    pass


def _uncounted(usage: Usage) -> None:
    pass


def _stays() -> None:
    pass


@dataclass(slots=True)
class CallContext(Generic[Deps]):
    """`deps` is what the run was given; `store` is a dict that lives as long as the conversation. `key` is an
    idempotency key: the same call of the same run has the same key on every attempt and after a resume.
    """

    run: str = ""
    turn: int = 0
    call_id: str = ""
    name: str = ""
    fingerprint: str = ""
    """The name and arguments of the call; `nth` distinguishes identical calls of one message."""
    nth: int = 1
    attempt: int = 0
    number: int = -1
    """The number of the call, which its events carry. Ids may repeat when an answer is retried; this is unique in the
    run."""
    deps: Deps = None  # type: ignore[assignment] - a run without deps has none
    store: dict[str, Json] = field(default_factory=dict[str, Json])
    arguments: dict[str, Any] | None = None
    """The bound arguments, if they are known already."""
    approved: bool = False
    """Somebody has approved the call."""
    say: Callable[..., None] = _to_nobody
    """Sends an event: its kind and its own fields; the run adds the rest. May be called from any thread."""
    began: bool = True
    """False in a replay if the call was cancelled before its tool was entered."""
    ended: bool = False
    """The call has its result: later reports of a late thread are ignored."""
    ran_before: float | None = None
    """If the result is known from an earlier part of the run: how many seconds it took then."""
    known: ToolResult | None = None
    """The result of an identical call, from a cache or an earlier round: the tool does not run."""
    changed: bool = False
    """Middleware has changed its arguments: its result is not that of identical calls."""
    returned: ToolResult | None = None
    """The result before middleware, once the tool has returned."""
    elsewhere: bool = False
    """It was sent to another machine, where its time-out counts from its start."""
    retries: dict[str, int] = field(default_factory=dict[str, int])
    """How often each tool of the run has asked for a retry."""
    most_retries: int | None = None
    """How often it may."""
    spend: Callable[[Usage], None] = _uncounted
    """Adds what this call used (an agent as a tool) to the run: tokens, and their `cost`, without which the cost of the
    run is unknown."""
    approver: Callable[[ToolCall], Any] | None = None
    """Approves calls of the run, and answers questions that a tool asks while it runs (`tools.approval.ask_within`)."""
    ask_model: Callable[..., Awaitable[tuple[Assistant, str]]] | None = None
    """`ask_model(request, model, context.spend)` asks a model beside the conversation, that of the run if `model` is
    None, and returns the answer and the model's name. At a limit of the run it raises `ToolFailed`."""
    to_background: Callable[[], None] = _stays
    """A tool with the role `task` calls it when it knows that the call takes long: the model gets a handle, and the
    call continues. It does nothing where calls cannot go to the background."""
    time: TimeLimit | None = None
    """The time-out of the call, once it runs."""
    asked: bool = False
    """It has asked a person something: its time-out does not count while it waits for the answer."""

    host: Any = None
    """The run that makes the call."""
    inner_calls: int = 0
    """How many calls such an agent has made."""
    recorders: tuple[Any, ...] = ()
    """What records the call: the run of such an agent is recorded there too."""
    inner: Any = None
    """The recording of that run, if it began in an earlier part of this one."""

    @property
    def key(self) -> str:
        """For a service that must not do a thing twice: the same on every attempt of this call, and after a resume."""
        digest = hashlib.sha1(self.fingerprint.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
        return f"{self.run}-{self.turn}-{digest[:12]}-{self.nth}"

    def count_calls(self, count: int) -> None:
        """Counts calls of an agent that runs as the tool of this call: the limits of the run hold for them too."""
        self.inner_calls += count
        if self.host is not None:
            self.host.account.count_calls(count)

    def report(self, message: str, done: float | None = None) -> None:
        """Reports progress with a `CallProgress` event. May be called from any thread."""
        if not self.ended:
            self.say(CallProgress, self.number, self.call_id, self.name, message, done)
