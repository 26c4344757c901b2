"""Who goes along with a run: hears its events, and may stand between it and its model, its tools and who approves.

A sink is told what happened. One that has `accompany` is asked at the start of each run for a `Companion`, which is
told in its place and may do more: record what goes in and out (`record`), put a recording in place of the world
(`replay`), carry a trace to where a request goes (`otel`). The loop knows nothing of them: they are of the same few
signatures as what they wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from unbroken.clock import Clock
from unbroken.deltas import Delta
from unbroken.events import Event
from unbroken.messages import Json, Message, Request, ToolResult, User
from unbroken.models.model import Model
from unbroken.tools.approval import Approval, OnApproval
from unbroken.tools.calling import Caller
from unbroken.tools.toolbox import Toolbox


@dataclass(slots=True)
class RunHead:
    """What is known of a run when it begins."""

    run: str
    agent: str
    """The name of the agent: `main`, if it was given none."""
    model: str
    clock: Clock
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """How it is played: the schedule, the limits, what happens after a failure. Plain JSON."""
    messages: tuple[Message, ...] = ()
    """The history so far, with what is asked now as its last message."""
    question: User | None = None
    """What is asked once the calls have run in which that history ends."""
    goes_on: bool = False
    """The run was begun earlier: it waited for somebody, or its process died."""
    decisions: Mapping[str, Approval | ToolResult] = field(default_factory=dict[str, "Approval | ToolResult"])
    """What was said outside about calls that it waited for, by their ids."""
    history: Callable[[], tuple[Message, ...]] = tuple
    """The history as it is now; a request may have less of it, or more."""
    state: Callable[[], dict[str, Json]] = dict
    """What the run has used and noted so far: with it and the history it can go on."""
    secrets: Callable[[], Iterable[str]] = tuple
    """Keys and tokens of its model, as far as they are known by now."""


class Ear(Protocol):
    """Hears one answer, from before the model is asked."""

    def __call__(self, deltas: Sequence[Delta]) -> None:
        """These came together; the run has not acted on any of them yet."""
        ...

    def end(self, error: BaseException | None) -> None:
        """The answer has ended, or nobody reads it any more; with what the model raised, or what ended its reading."""
        ...


class Companion:
    """Goes along with one run. As it stands it does nothing: what is wanted is overridden."""

    hears_deltas: ClassVar[bool] = False
    """It hears the pieces of an answer as they come (`listens`), and needs no event for each."""

    def __call__(self, event: Event) -> None:
        """An event of the run."""

    def offered(self, turn: int, toolbox: Toolbox) -> None:
        """The tools of the turn that begins."""

    def model(self, model: Model) -> Model:
        """What is asked in place of the model."""
        return model

    def listens(self, request: Request) -> Ear | None:
        """Who hears the answer to this request. Cheaper than to stand in place of the model."""
        return None

    def caller(self, caller: Caller) -> Caller:
        """What runs the tools in place of the caller."""
        return caller

    def approval(self, on_approval: OnApproval | None) -> OnApproval | None:
        """Who is asked for approvals."""
        return on_approval

    def end(self) -> None:
        """The run is over, however it ended; nothing more will be told."""


@runtime_checkable
class Accompanying(Protocol):
    """A sink that gives each run a companion."""

    def accompany(self, head: RunHead) -> Companion: ...


def wrap_model(companions: Sequence[Companion], model: Model) -> Model:
    """Those that are listed later stand nearer to the model: what replays goes there, what records in front of it."""
    for companion in reversed(companions):
        model = companion.model(model)
    return model


def wrap_caller(companions: Sequence[Companion], caller: Caller) -> Caller:
    for companion in reversed(companions):
        caller = companion.caller(caller)
    return caller


class _Ears:
    """Several that hear the same answer."""

    def __init__(self, ears: Sequence[Ear]) -> None:
        self._ears = ears

    def __call__(self, deltas: Sequence[Delta]) -> None:
        for ear in self._ears:
            ear(deltas)

    def end(self, error: BaseException | None) -> None:
        with ExitStack() as all_of_them:  # also where one of them raises
            for ear in self._ears:
                all_of_them.callback(ear.end, error)


def open_ear(companions: Sequence[Companion], request: Request) -> Ear | None:
    """Of all that want to hear the answer."""
    if len(companions) == 1:
        return companions[0].listens(request)
    ears: list[Ear] = []
    try:
        for companion in companions:
            if (ear := companion.listens(request)) is not None:
                ears.append(ear)
    except BaseException as error:
        _Ears(ears).end(error)
        raise
    return _Ears(ears) if ears else None


def wrap_approval(companions: Sequence[Companion], on_approval: OnApproval | None) -> OnApproval | None:
    for companion in reversed(companions):
        on_approval = companion.approval(on_approval)
    return on_approval
