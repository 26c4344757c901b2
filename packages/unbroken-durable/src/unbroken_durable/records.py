"""What a journal holds of a run besides its recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from unbroken.agent.limits import Limits
from unbroken_wires.messages import Message

State: TypeAlias = Literal["ready", "running", "waiting", "answered", "failed", "cancelled"]
"""`ready`: a driver may take it. `running`: a driver has it, or died. `waiting`: for the answers to its pending calls.
The others are ends; a failed run can be driven again."""
STATES: tuple[State, ...] = ("ready", "running", "waiting", "answered", "failed", "cancelled")
ENDED: tuple[State, ...] = ("answered", "failed", "cancelled")

LONGEST_NAME = 500
"""Bytes of a run's id, an agent's name and a tenant, in UTF-8: the ids of engines contain them, and have limits."""
LONGEST_WAIT = 10_000_000_000
"""Seconds that a run may wait for an answer; more than three hundred years."""


def is_too_long(name: str) -> bool:
    return len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME


def is_wait(seconds: object) -> bool:
    """May it be the `answer_within` of a run?"""
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= LONGEST_WAIT


class StartOptions(TypedDict, total=False):
    """Options of a new run: of `Journal.start`, and of `start_run` on every engine."""

    run_id: str | None
    """Its id; random if there is none. The same id starts nothing twice."""
    tenant: str
    history: Sequence[Message]
    """The earlier messages."""
    limits: Limits | None
    """In place of the agent's own."""
    answer_within: float | None
    """For how many seconds the run waits for an answer, up to `LONGEST_WAIT`; after that its pending calls are denied.
    None: without end."""


class PendingCall(dict[str, Any]):
    """A call that a run waits for, as JSON; what it holds is there as attributes too."""

    @property
    def id(self) -> str:
        return self["id"]

    @property
    def call(self) -> int:
        """Its number in the run."""
        return self["call"]

    @property
    def name(self) -> str:
        """Of its tool."""
        return self["name"]

    @property
    def arguments(self) -> dict[str, Any]:
        return self["arguments"] or {}

    @property
    def needs(self) -> Literal["approval", "result"]:
        return self["needs"]

    @property
    def uncertain(self) -> bool:
        """It had started when its process died, and may have taken effect."""
        return bool(self.get("uncertain"))


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, as `journal.runs()` lists it."""

    run_id: str
    agent: str
    tenant: str
    state: State
    created: float
    """Seconds since the epoch."""
    updated: float
    question: str
    pending: tuple[PendingCall, ...] = ()
    """The calls that it waits for; while it is ready or running again, those that it waited for last."""
    expires: float | None = None
    """When a waiting run continues without an answer; None: never."""
    error: str = ""
    """Why it failed."""
    drives: int = 0
    """How many drivers it has had."""
    supersessions: int = 0
    """How often a driver that was alive lost it to another one."""
    deaths: int = 0
    """How many of its drivers have died: each is counted by the next one."""
    fruitless: int = 0
    """How many of these were the last ones, and died without a result of a call."""
    number: int = 0
    """Its number in this journal."""
    chunks: int = 0
    """How many appends it consists of."""


@dataclass(slots=True)
class Claim:
    """A driver's right to write to a run, as long as nobody has a higher token."""

    row: RunRow
    token: int
    input: dict[str, Any]
    """What `start` was given."""
    data: bytes = b""
    """The recording so far."""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """All answers so far, by the numbers of the calls."""
    trace: str = ""
    """The span that all drives belong to, as a `traceparent` header; empty if there is none yet."""
    died: bool = False
    """The driver before has died."""
    alone: bool = False
    """Nothing else is driven in this process."""


@dataclass(slots=True)
class Append:
    """Lines to be stored, and what becomes of the run with them."""

    run: int
    token: int
    position: int
    data: bytes
    updated: float
    state: State | None = None
    pending: str = "[]"
    expires: float | None = None
    error: str = ""
    trace: str = ""
    """The span of the first drive."""
    progress: bool = False
    """The driver has come further: it is not one of those that died in a row."""
