"""What a decoder says while a response arrives: small values, in the order of the bytes, the same at any chunk size.

Plain slotted classes, not frozen: one is built for every few bytes of a stream, and freezing costs four times as much.
They are not events of a run (those carry run, turn and time) and know nothing of any wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from unbroken.messages import Assistant, ServerCall, ToolCall, Usage
from unbroken.verdicts import Verdict


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
