"""What a decoder yields while a response arrives (deltas), and what became of the response (`Verdict`).

Deltas are small values in the order of the bytes, the same at any chunk size. They are plain slotted classes, not
frozen: one is built for every few bytes of a stream, and freezing costs four times as much. They are not events of a
run (those carry run, turn and time), and do not depend on the wire. `decoding.verdict` decides the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.frozen import quick
from unbroken.messages import Assistant, Json, ServerCall, ToolCall, Usage

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


@dataclass(slots=True)
class TextDelta:
    text: str


@dataclass(slots=True)
class ReasoningDelta:
    text: str


@dataclass(slots=True)
class CallOpened:
    """A call has begun. `index` is unique in the response and stands in all later deltas of the call; `id` is empty
    while the provider has not given one."""

    index: int
    name: str
    id: str


@dataclass(slots=True)
class CallArguments:
    index: int
    text: str


@dataclass(slots=True)
class CallReady:
    """The arguments are complete and strictly parsed: the call may run now. (A custom call: its free text is whole.)"""

    call: ToolCall


@dataclass(slots=True)
class CallSpoiled:
    """The call must not run, `call.problem` says why. If it was announced ready before, it must be cancelled."""

    call: ToolCall


@dataclass(slots=True)
class CallWithdrawn:
    """What had begun at this index is no call of its own: the provider ran it itself, or it came a second time, as
    text and as a call. Cancel it if it runs."""

    index: int


@dataclass(slots=True)
class ServerCallSeen:
    call: ServerCall


@dataclass(slots=True)
class UsageReported:
    usage: Usage


@dataclass(slots=True)
class Ended:
    """The last delta. `message` is everything for the history, with what only its wire knows; a `Model` that does not
    come from a wire may leave it out, then it is what the deltas said."""

    verdict: Verdict
    message: Assistant | None = None


@dataclass(slots=True)
class AttemptFailed:
    """There was no whole response, and after `wait` seconds another is asked for. If some of the broken one was passed
    on already, `Restarted` comes next."""

    verdict: Verdict
    wait: float = 0.0
    elsewhere: bool = False
    """Another model is asked next."""


@dataclass(slots=True)
class Restarted:
    """What was passed on so far is void: the complete answer follows, from its beginning. Calls with these ids
    will not be finished by it; one with the same name and arguments may come again."""

    dropped: tuple[str, ...]


@dataclass(slots=True)
class Received:
    """Bytes of the body as they came, whole events of them; only where the request asks for them. What was read
    of them stands in the deltas just before."""

    data: bytes
    wait: bool = False
    """Not to be passed on before it is known how the response ends: a call is not whole yet, an error is in it, or the
    terminal sign is."""


Delta: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | CallOpened
    | CallArguments
    | CallReady
    | CallSpoiled
    | CallWithdrawn
    | ServerCallSeen
    | UsageReported
    | Ended
    | AttemptFailed
    | Restarted
    | Received
)


# What the deltas of one response add up to so far. The one place where deltas are accumulated.


class PartialResponse:
    """Feed it deltas; `message` is the answer as far as it has arrived."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        """By index. Only calls that are complete, and those that can no longer become so (`ToolCall.problem`)."""

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text):
                self.text.append(text)
            case ReasoningDelta(text):
                self.reasoning.append(text)
            case CallReady(call) | CallSpoiled(call):
                self.calls[call.index] = call
            case CallWithdrawn(index):
                self.calls.pop(index, None)
            case Restarted():
                self.restart()
            case _:
                pass

    def restart(self) -> None:
        """The response broke off, and another comes in its place, from the beginning."""
        self.text, self.reasoning, self.calls = [], [], {}

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls)

    @property
    def message(self) -> Assistant:
        return Assistant("".join(self.text), self._in_order(), "".join(self.reasoning))

    def matches(self, message: Assistant) -> bool:
        """Does the message hold exactly what arrived?"""
        if "".join(self.text) != message.text or "".join(self.reasoning) != message.reasoning:
            return False
        return self._in_order() == message.calls

    def _in_order(self) -> tuple[ToolCall, ...]:
        return tuple([self.calls[index] for index in sorted(self.calls)])
