"""What a fault is: a way to break a response or to bend it, where that can happen, what a good client makes of it.

Only the shape; the faults themselves are rows in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from unbroken.testing.damage import Bend, Damage
from unbroken.testing.rewrites import Rewrite
from unbroken.testing.scenario import Reply
from unbroken.wires import WIRES
from unbroken.wires.event_shapes import BOTH, Mode

Outcome: TypeAlias = str
"""`answered`; `told`: the model gets an error result, and goes on; `typed:NAME`: the caller gets this error."""
Form: TypeAlias = Literal["", "whole", "stream", "array"]

ALL = tuple(WIRES)


@dataclass(frozen=True, slots=True)
class Instead:
    """What is sent in place of the response; the body from the name of the wire."""

    status: int
    body: Callable[[str], bytes]
    type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break a response, or to bend it.

    `outcome` is what a good client makes of it if one response is so and the others are well, `lasting` if all are.
    """

    name: str
    row: int
    title: str
    damages: bool = False
    """The response is lost, or may be: it has to be asked for again. Else all of it can be decoded."""
    outcome: Outcome = "answered"
    lasting: Outcome = ""
    wires: tuple[str, ...] = ALL
    modes: tuple[Mode, ...] = BOTH
    rewrite: Rewrite | None = None
    bend: Bend | None = None
    damage: Damage | None = None
    instead: Instead | None = None
    form: Form = ""
    """Sent otherwise than it was asked for: as a whole body, as a stream, as one array of events."""
    after: int | None = None
    """The byte of the body at which it happens; None leaves it to the fault."""
    seconds: float | None = None
    """What `Retry-After` says; how long a stall lasts, or a pause between two bytes."""
    longest: int | None = None
    """It meets requests whose body has more bytes than this, and only them, however often they come."""
    except_for: tuple[tuple[str, Mode], ...] = ()

    def __post_init__(self) -> None:
        if not self.lasting:
            object.__setattr__(self, "lasting", self.outcome)

    @property
    def keeps_answer(self) -> bool:
        """The answer was not heard as it was meant: it is given again, also to a client that goes on."""
        return self.outcome == "told"

    def fits(self, wire: str, stream: bool) -> bool:
        """Can it happen on this wire, to a response that is streamed, or to a whole one?"""
        mode: Mode = "streamed" if stream else "whole"
        return wire in self.wires and mode in self.modes and (wire, mode) not in self.except_for

    def at(self, after: int | None = None, seconds: float | None = None, longest: int | None = None) -> Fault:
        """The same fault with other numbers; None leaves one as it is."""
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
        """What is sent in place of the response; None for a fault that breaks or bends the response itself."""
        if self.instead is None:
            return None
        headers = {"Content-Type": self.instead.type}
        if self.seconds is not None:
            headers["Retry-After"] = f"{self.seconds:g}"
        return Reply(iter([(0.0, self.instead.body(wire))]), self.instead.status, headers)
