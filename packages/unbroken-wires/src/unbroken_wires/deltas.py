"""What a decoder yields while a response arrives (deltas), and what became of the response (`Verdict`).

Deltas are small values in the order of the bytes, the same at any chunk size. They are plain slotted classes, not
frozen: one is built for every few bytes of a stream, and freezing costs four times as much. They are not events of a
run (those carry run, turn and time), and do not depend on the wire. `decoding.verdict` decides the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from unbroken_wires.frozen import quick
from unbroken_wires.messages import Assistant, Json, ServerCall, ToolCall, Usage

Meaning: TypeAlias = Literal["done", "length", "refused", "paused", "other"]
"""What a finish reason means. done: the model finished, possibly with tool calls. length: the token limit cut it off.
refused: the provider refused to continue. paused: send the same history again and the model continues. other:
unknown."""


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
"""What is wrong with a response, if anything; `Verdict` explains each value."""

_TRANSIENT: frozenset[VerdictKind] = frozenset(
    {"unfinished", "lost", "silent", "damaged", "empty", "foreign", "limited", "unavailable", "unreachable"}
)


@quick
@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a response is complete, and if not, what is wrong with it. `decoding.verdict` decides; the rest of the
    code only reads the fields.

    `kind` is one of these:

    - whole: the response is complete
    - unfinished: the body ended without the mark that ends a response
    - lost: the connection was lost
    - silent: nothing arrived for too long
    - late: the time limit for the complete response passed
    - cut_call: the response has an end, but one of its calls is incomplete
    - error: the response contains an error object
    - damaged: an event could not be read
    - empty: the response ended properly, but contains nothing, or only reasoning
    - foreign: the body is not a response of this wire
    - too_long: the history exceeds the model's context
    - too_large: the body is larger than the caller allows

    If there was no response at all: limited (429), unavailable (5xx and similar), unreachable, unanswered (no byte in
    time), refused (a retry will not help).
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
    """The response is broken, and a retry may succeed."""
    turn: int = 0
    attempt: int = 1
    """The number of the attempt at this turn, from 1."""
    model: str = ""
    """The model that was asked, if known."""

    left_out: tuple[str, ...] = ()
    """Fields of the request that the model would have refused: left out, or replaced by what it accepts."""

    @property
    def whole(self) -> bool:
        """The response is complete. A token limit may still have ended it: see `meaning`."""
        return self.kind == "whole"

    @property
    def failed(self) -> bool:
        """A client cannot be sent an end of the response: what it has received is not an answer. (`cut_call` does have
        an end, and is sent as a response that was cut off.)"""
        return self.kind not in ("whole", "cut_call", "empty")

    @property
    def retryable(self) -> bool:
        """Whether a retry may succeed. For most kinds that follows from the kind, even if a custom model does not set
        `again`."""
        return self.again or self.kind in _TRANSIENT

    @property
    def meaning_for_client(self) -> Meaning:
        """What the finish reason means to a client that did not receive the incomplete calls."""
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
    """A call has begun. `index` is unique in the response, and all later deltas of the call carry it; `id` is empty
    until the provider has sent one."""

    index: int
    name: str
    id: str


@dataclass(slots=True)
class CallArguments:
    index: int
    text: str


@dataclass(slots=True)
class CallReady:
    """The arguments are complete and strictly parsed: the call may run now. (For a custom call: its text is
    complete.)"""

    call: ToolCall


@dataclass(slots=True)
class CallSpoiled:
    """The call must not run; `call.problem` explains why. If it was reported ready before, cancel it."""

    call: ToolCall


@dataclass(slots=True)
class CallWithdrawn:
    """What began at this index is not a call to run: the provider ran it itself, or it was sent twice, as text and as a
    call. Cancel it if it is running."""

    index: int


@dataclass(slots=True)
class ServerCallOpened:
    """The provider begins to run a tool of its own. The arguments may not be known yet."""

    call: ServerCall


@dataclass(slots=True)
class ServerCallSeen:
    """The call as the provider has written it, with its arguments; on some wires with its result."""

    call: ServerCall


@dataclass(slots=True)
class ServerCallEnded:
    """The tool that the provider ran has its result, or has failed: then `error` has the reason. Both have the id that
    the call was opened with."""

    call: ServerCall
    error: str = ""


@dataclass(slots=True)
class UsageReported:
    usage: Usage


@dataclass(slots=True)
class Ended:
    """The last delta. `message` is what goes into the history, including what only its wire knows. A `Model` without a
    wire may leave it out; then the message is built from the deltas."""

    verdict: Verdict
    message: Assistant | None = None


@dataclass(slots=True)
class AttemptFailed:
    """There was no complete response; another is requested after `wait` seconds. If part of the broken one was already
    passed on, `Restarted` comes next."""

    verdict: Verdict
    wait: float = 0.0
    elsewhere: bool = False
    """The next attempt goes to another model."""
    streamed: bool = True
    """The response that failed was asked for as a stream."""


@dataclass(slots=True)
class Restarted:
    """Discard what was passed on so far: the complete answer follows from its beginning. Calls with the ids in
    `dropped` will not be finished; the new answer may contain calls with the same names and arguments."""

    dropped: tuple[str, ...]


@dataclass(slots=True)
class Received:
    """Bytes of the body as they arrived, always complete events, if the request asks for them. The deltas that were
    read from them come just before."""

    data: bytes
    wait: bool = False
    """Do not pass these bytes on before it is known how the response ends: they contain part of an incomplete call, an
    error, or the end of the response."""


Delta: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | CallOpened
    | CallArguments
    | CallReady
    | CallSpoiled
    | CallWithdrawn
    | ServerCallOpened
    | ServerCallSeen
    | ServerCallEnded
    | UsageReported
    | Ended
    | AttemptFailed
    | Restarted
    | Received
)


# The one place where the deltas of a response are accumulated.


class PartialResponse:
    """Feed it deltas; `message` is the answer as far as it has been received."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        """By index: the calls that are complete, and those that can no longer become complete (see
        `ToolCall.problem`)."""

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
        """Starts over: the response broke off, and another one replaces it from the beginning."""
        self.text, self.reasoning, self.calls = [], [], {}

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.reasoning or self.calls)

    @property
    def message(self) -> Assistant:
        return Assistant("".join(self.text), self._in_order(), "".join(self.reasoning))

    def agreeing(self, message: Assistant) -> Assistant:
        """The message, with the text, the reasoning and the calls that were received in place of its own: code around a
        model may have edited the deltas alone. Then nothing keeps the original."""
        text, reasoning = "".join(self.text) or message.text, "".join(self.reasoning) or message.reasoning
        calls = tuple(self.calls.values())
        if calls != message.calls:
            received = {(call.index, call.id): call for call in calls}
            calls = tuple([received.get((call.index, call.id), call) for call in message.calls])
        if (text, reasoning, calls) == (message.text, message.reasoning, message.calls):
            return message
        return replace(message, text=text, reasoning=reasoning, calls=calls, native=None)

    def matches(self, message: Assistant) -> bool:
        """Whether the message contains exactly what was received."""
        if "".join(self.text) != message.text or "".join(self.reasoning) != message.reasoning:
            return False
        return self._in_order() == message.calls

    def _in_order(self) -> tuple[ToolCall, ...]:
        return tuple([self.calls[index] for index in sorted(self.calls)])
