"""The type of a fault: a way to break or distort a response, where it can happen, and the outcome with a good client.

The faults themselves are in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from unbroken_testing.damage import Damage, EventFault
from unbroken_testing.rewrites import Rewrite
from unbroken_testing.scenario import Reply
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.event_shapes import BOTH, Mode

Outcome: TypeAlias = str
"""`answered`; `reported`: the model gets an error result and continues; `typed:NAME`: the caller gets this error."""
Form: TypeAlias = Literal["", "body", "stream", "array"]

ALL = tuple(WIRES)


@dataclass(frozen=True, slots=True)
class Instead:
    """What is sent instead of the response. `body` gets the name of the wire."""

    status: int
    body: Callable[[str], bytes]
    type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break or distort a response.

    `outcome` is what a good client reaches if one response is broken and the others are good, `lasting` if all are
    broken.
    """

    name: str
    row: int
    title: str
    damages: bool = False
    """The response is lost, or may be, so it has to be retried. If false, all of it can be decoded."""
    outcome: Outcome = "answered"
    lasting: Outcome = ""
    wires: tuple[str, ...] = ALL
    modes: tuple[Mode, ...] = BOTH
    rewrite: Rewrite | None = None
    change_events: EventFault | None = None
    damage: Damage | None = None
    instead: Instead | None = None
    form: Form = ""
    """Sent in another form than requested: as one body, as a stream, or as one array of events."""
    after: int | None = None
    """The byte of the body at which it happens; None for a default of the fault."""
    seconds: float | None = None
    """The value of `Retry-After`; how long a stall lasts, or a pause between two bytes."""
    longest: int | None = None
    """It affects only requests whose body has more bytes than this, however often they are sent."""
    except_for: tuple[tuple[str, Mode], ...] = ()

    def __post_init__(self) -> None:
        if not self.lasting:
            object.__setattr__(self, "lasting", self.outcome)

    @property
    def keeps_answer(self) -> bool:
        """The answer was not received as intended: it is repeated, even for a client that continues."""
        return self.outcome == "reported"

    def fits(self, wire: str, stream: bool) -> bool:
        """Whether it can happen on this wire, to a streamed or a non-streaming response."""
        mode: Mode = "streamed" if stream else "unstreamed"
        return wire in self.wires and mode in self.modes and (wire, mode) not in self.except_for

    def at(self, after: int | None = None, seconds: float | None = None, longest: int | None = None) -> Fault:
        """The same fault with other numbers; None keeps a number."""
        return replace(
            self,
            after=self.after if after is None else after,
            seconds=self.seconds if seconds is None else seconds,
            longest=self.longest if longest is None else longest,
        )

    def on(self, wires: tuple[str, ...]) -> Fault:
        """The same fault on these wires only."""
        return replace(self, wires=tuple(wire for wire in self.wires if wire in wires))

    def in_place(self, wire: str) -> Reply | None:
        """What is sent instead of the response; None for a fault that changes the response itself."""
        if self.instead is None:
            return None
        headers = {"Content-Type": self.instead.type}
        if self.seconds is not None:
            headers["Retry-After"] = f"{self.seconds:g}"
        return Reply(iter([(0.0, self.instead.body(wire))]), self.instead.status, headers)
