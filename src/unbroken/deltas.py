"""What a decoder says while a response arrives: small values, in the order of the bytes, the same at any chunk size.

Plain slotted classes, not frozen: one is built for every few bytes of a stream, and freezing costs four times as much.
They are not events of a run (those carry run, turn and time) and know nothing of any wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from unbroken.messages import Json, ServerCall, ToolCall, Usage

Meaning: TypeAlias = Literal["done", "length", "refused", "paused", "other"]
"""What a finish reason means: the model was done (also: it calls tools), the token limit cut it, the provider refused
to go on, it only paused and wants to be asked again with the same history, or we do not know."""


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the response whole? Decided in one place (`decoding.verdict`), carried as data.

    `kind` is one of: whole, unfinished (no terminal sign), cut_call (an end, but a call is not whole), error (an error
    object inside), damaged (an event that cannot be read), empty (nothing was said), foreign (not a response at all).
    """

    kind: str
    reason: str = ""
    finish: str | None = None
    meaning: Meaning = "done"
    bytes_seen: int = 0
    text_seen: int = 0
    open_calls: tuple[str, ...] = ()
    error: Json = None

    @property
    def whole(self) -> bool:
        return self.kind == "whole"

    @property
    def failed(self) -> bool:
        """There is no end to tell a client: what it has seen is not an answer. (A cut call has one, a cut one.)"""
        return self.kind in ("error", "unfinished", "damaged", "foreign")

    @property
    def told(self) -> Meaning:
        """What the finish means to a client that was not given the calls that are not whole."""
        if self.kind == "cut_call":
            return "length"
        return "done" if self.meaning == "other" else self.meaning


@dataclass(slots=True)
class Ended:
    verdict: Verdict


@dataclass(slots=True)
class Restarted:
    """The stream broke and is asked for again: calls with these ids will not be finished by it."""

    dropped: tuple[str, ...]


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
    | Restarted
)
