"""What a response came to: data that decoders make, models pass on and errors carry. It is decided elsewhere, in
`decoding.verdict`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.frozen import quick
from unbroken.messages import Json

Meaning: TypeAlias = Literal["done", "length", "refused", "paused", "other"]
"""What a finish reason means: the model was done (also: it calls tools), the token limit cut it, the provider refused
to go on, it only paused and wants to be asked again with the same history, or we do not know."""


VerdictKind: TypeAlias = Literal[
    "whole",
    "unfinished",
    "lost",
    "silent",
    "late",
    "cut_call",
    "error",
    "damaged",
    "empty",
    "foreign",
    "too_long",
    "too_large",
    "limited",
    "unavailable",
    "unreachable",
    "unanswered",
    "refused",
]
"""What became of a response; `Verdict` explains each."""

_PASSING: frozenset[VerdictKind] = frozenset(
    {"unfinished", "lost", "silent", "damaged", "empty", "foreign", "limited", "unavailable", "unreachable"}
)


@quick
@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the response whole? Decided in one place (`decoding.verdict`), carried as data.

    `kind` is one of: whole; unfinished (the body ended without the terminal sign), lost (the connection was), silent
    (nothing came for too long), late (its whole time was up), cut_call (an end, but a call is not whole), error (an
    error object inside), damaged (an event that cannot be read), empty (nothing was said), foreign (not a response at
    all), too_long (the context is), too_large (more bytes than whoever asked allows). Where there was no response:
    limited (429), unavailable (5xx and the like), unreachable, unanswered (no byte in time), refused (whatever another
    try will not change).
    """

    kind: VerdictKind
    reason: str = ""
    finish: str | None = None
    meaning: Meaning = "done"
    bytes_seen: int = 0
    text_seen: int = 0
    open_calls: tuple[str, ...] = ()
    error: Json = None
    again: bool = False
    """It is broken, and another try may do."""
    turn: int = 0
    attempt: int = 1
    """The number of the try at this turn, from 1."""
    model: str = ""
    """Who was asked, where that is known."""

    @property
    def whole(self) -> bool:
        """Nothing is wrong with it, though a token limit may have ended it: `meaning` says so."""
        return self.kind == "whole"

    @property
    def failed(self) -> bool:
        """There is no end to tell a client: what it has seen is not an answer. (A cut call has one, a cut one.)"""
        return self.kind not in ("whole", "cut_call", "empty")

    @property
    def retryable(self) -> bool:
        """May another try do? Of most kinds that goes without saying, also where a model of one's own made it."""
        return self.again or self.kind in _PASSING

    @property
    def told(self) -> Meaning:
        """What the finish means to a client that was not given the calls that are not whole."""
        if self.kind == "cut_call":
            return "length"
        return "done" if self.meaning == "other" else self.meaning
