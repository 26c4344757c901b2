"""What a client receives: the deltas of any model in, the bytes of the client's wire out.

Strategy. If client and model speak the same wire, the model's own bytes are passed on as they arrive, and our encoder
only follows them: nothing is lost that we have no field for. The encoder takes over in the middle of the response as
soon as the bytes cannot be used: the stream broke and is retried; a call is not valid in the wire; only the first of
several calls may be released. Between two wires it writes from the start.

A client never receives half a call: bytes with an open call wait until it is complete. It receives no end before the
response is known to be complete and is stored, so the last bytes come from `end`.

After a broken stream, what was sent cannot be taken back. The complete second answer is compared with it: the client
gets the rest, or, if the answer differs, all of it after a paragraph break, or an error (`on_diverge`). A non-streaming
body is written at the end, so it needs none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unbroken_gateway.settings import OnDiverge
from unbroken_gateway.turns.turn import same_call
from unbroken_wires.decoding.assembler import Shown
from unbroken_wires.deltas import (
    AttemptFailed,
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Received,
    Restarted,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, ToolCall, Usage
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import as_dict
from unbroken_wires.wires.jsontext import dumps, loads, loads_faithful
from unbroken_wires.wires.sse import is_only_alive
from unbroken_wires.wires.writer import ResponseWriter

_CALL = (CallOpened, CallArguments, CallReady, CallSpoiled, CallWithdrawn)

ANOTHER_ANSWER = "the answer broke off after some of it was sent, and the second one says something else"
ANOTHER_CALL = "the answer broke off after a call was sent, and the second one does not make that call"


class ClientStream(Protocol):
    head: bytes
    """The first of the model's own bytes that were passed on, if any."""
    passed: list[ToolCall]
    """Calls that the client received in the model's own bytes."""

    @property
    def text(self) -> str:
        """The text that the client received."""
        ...

    @property
    def cited(self) -> bool:
        """Did the client get the pages that a model of another wire cites?"""
        ...

    def feed(self, delta: Delta) -> bytes:
        """The bytes to send now. Takes every delta except the last, which is for `end`."""
        ...

    def keep_alive(self) -> bytes:
        """A sign of life, to be sent between two answers of `feed`."""
        ...

    def end(self, ended: Ended, handed: ToolCall | None = None) -> bytes:
        """The last bytes, or the complete body. `handed`: the one call that is released in serial mode."""
        ...


class StreamedResponse:
    """`raw`: the model's bytes may be passed on. `serial`: only the first of several calls is sent. `hides_usage`: the
    client did not ask for the event with the usage, and would not understand it."""

    def __init__(
        self,
        wire: str,
        writer: ResponseWriter,
        *,
        raw: bool,
        serial: bool,
        on_diverge: OnDiverge,
        hides_usage: bool = False,
    ) -> None:
        self.head = b""
        self._wire = wire
        self._writer = writer
        self._raw = raw
        self._serial = serial
        self._on_diverge: OnDiverge = on_diverge
        self._hides_usage = hides_usage
        self._unsent: list[Delta] = []
        """The deltas of bytes that were not passed on yet."""
        self._waiting: list[bytes] = []
        """Those bytes."""
        self._relay = find_wire(wire).relay
        self._framing = find_wire(wire).framing
        self._check = self._relay.check()
        self.passed: list[ToolCall] = []
        self._text = Shown()
        self._reasoning = Shown()
        self._usage: Usage | None = None
        self._retry: PartialResponse | None = None
        """The complete second answer, after a retry."""

    @property
    def text(self) -> str:
        return self._text.text

    @property
    def cited(self) -> bool:
        return self._writer.cited

    def feed(self, delta: Delta) -> bytes:
        if isinstance(delta, UsageReported):
            self._usage = delta.usage
        if isinstance(delta, AttemptFailed):
            # What was read and not sent will arrive again, perhaps from a model of another wire.
            self._raw = False
            self._unsent.clear()
            self._waiting.clear()
            return b""
        if isinstance(delta, Restarted):
            self._retry = PartialResponse()
            return b""
        if self._retry is not None:
            self._retry.feed(delta)
            return b""
        if not self._raw:
            if isinstance(delta, Received):
                return self._writer.keep_alive() if is_only_alive(delta.data) else b""
            return self._encode(delta)
        if isinstance(delta, Received):
            return self._pass_on(delta)
        self._unsent.append(delta)
        return b""

    def keep_alive(self) -> bytes:
        return self._writer.keep_alive(relays=self._raw)

    def end(self, ended: Ended, handed: ToolCall | None = None) -> bytes:
        if self._retry is not None:
            return self._end_retry(ended.message or self._retry.message, ended, handed)
        if self._raw and self._has_complete_end(ended) and handed is None and self._waiting_conforms():
            return self._flush()
        written = self._take_over() if self._raw else b""
        return written + self._finish(ended, handed)

    # The model's own bytes

    def _pass_on(self, received: Received) -> bytes:
        if not self._waiting and self._framing.is_body(received.data):
            return self._take_over()  # a server that does not stream even if asked to
        if self._waiting and received.wait and is_only_alive(received.data):
            return received.data  # the call that is being written may take long
        self._waiting.append(received.data)
        if self._serial and any(isinstance(delta, _CALL) for delta in self._unsent):
            return self._take_over()
        if received.wait:
            return b""
        return self._flush() if self._waiting_conforms() else self._take_over()

    def _has_complete_end(self, ended: Ended) -> bool:
        """Is the response complete, and do its own bytes contain the end? Some servers do not stream even if asked
        to."""
        verdict, data = ended.verdict, b"".join(self._waiting)
        return verdict.whole and verdict.error is None and self._relay.has_end(data)

    def _waiting_conforms(self) -> bool:
        calls = (delta for delta in self._unsent if isinstance(delta, CallReady | CallSpoiled | CallWithdrawn))
        if not all(isinstance(delta, CallReady) and self._relay.call_conforms(delta.call) for delta in calls):
            return False
        return self._check.feed(b"".join(self._waiting))

    def _flush(self) -> bytes:
        data = b"".join(self._waiting)
        self.head = self.head or data
        self._writer.follow(data)
        for delta in self._unsent:
            self._note(delta)
            if isinstance(delta, CallReady):
                self.passed.append(delta.call)
        self._waiting.clear()
        self._unsent.clear()
        return self._relay.without_usage(data) if self._hides_usage else data

    def _take_over(self) -> bytes:
        """Replaces the waiting bytes, and everything after them, with what our encoder writes."""
        self._raw = False
        unsent, self._unsent = self._unsent, []
        self._waiting.clear()
        written = b"" if self._usage is None else self._writer.feed(UsageReported(self._usage))
        return written + b"".join(map(self._encode, unsent))

    # Our encoder's bytes

    def _encode(self, delta: Delta) -> bytes:
        if self._serial and isinstance(delta, _CALL):
            return b""
        self._note(delta)
        return self._writer.feed(delta)

    def _note(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            self._text.feed(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._reasoning.feed(delta.text)

    def _finish(self, ended: Ended, handed: ToolCall | None) -> bytes:
        call = b"" if handed is None else self._writer.feed(CallReady(handed))
        return call + self._writer.feed(ended)

    # After a broken stream

    def _end_retry(self, again: Assistant, ended: Ended, handed: ToolCall | None) -> bytes:
        sent = [*self.passed, *self._writer.handed]
        self._writer.feed(Restarted(()))
        if ended.verdict.failed:
            return self._writer.feed(ended)
        rest = _without([call for call in again.calls if not call.problem], sent)
        if rest is None:
            return self._writer.feed(Ended(Verdict("error", ANOTHER_CALL)))
        left = self._text.compare(again.text)
        if left.replaced and self._on_diverge == "error":
            return self._writer.feed(Ended(Verdict("error", ANOTHER_ANSWER)))
        written = b"" if self._usage is None else self._writer.feed(UsageReported(self._usage))
        thought = self._reasoning.compare(again.reasoning)
        if thought.text and not thought.replaced and not self.text:
            written += self._encode(ReasoningDelta(thought.text))
        text = f"\n\n{again.text}" if left.replaced else left.text
        if text:
            written += self._encode(TextDelta(text))
        if not self._serial:
            written += b"".join(self._writer.feed(CallReady(call)) for call in rest)
        return written + self._finish(ended, handed)


def _without(calls: Sequence[ToolCall], sent: Sequence[ToolCall]) -> list[ToolCall] | None:
    """The calls that were not sent yet; None if one that was sent is not among them."""
    left = list(calls)
    for call in sent:
        again = next((at for at, other in enumerate(left) if same_call(call, other)), None)
        if again is None:
            return None
        del left[again]
    return left


class CompleteResponse:
    """The same for a client that wants a non-streaming body: nothing is sent before the end."""

    def __init__(self, wire: str, writer: ResponseWriter, *, raw: bool, serial: bool) -> None:
        self.head = b""
        self.passed: list[ToolCall] = []
        self._wire = wire
        self._writer = writer
        self._raw = raw
        self._serial = serial
        self._said: list[Delta] = []
        self._usage: Usage | None = None
        self._text = ""

    @property
    def text(self) -> str:
        return self._text

    @property
    def cited(self) -> bool:
        return self._writer.cited

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case Received(data):
                self.head += data
            case UsageReported(usage):
                self._usage = usage
            case AttemptFailed():
                self._raw = False
            case Restarted():
                self._said.clear()
            case _:
                self._said.append(delta)
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def end(self, ended: Ended, handed: ToolCall | None = None) -> bytes:
        said = self._said if ended.message is None else _deltas(ended.message)
        self._text = "".join([delta.text for delta in said if isinstance(delta, TextDelta)])
        is_body = find_wire(self._wire).framing.is_one_body
        if self._raw and ended.verdict.whole and is_body(self.head) and self._conforms(said):
            self.passed = [delta.call for delta in said if isinstance(delta, CallReady)]
            renamed = handed is not None and handed.id != self.passed[0].id
            if handed is None or (len(self.passed) < 2 and not renamed):
                return self.head
            self.passed = [handed]
            return dumps(find_wire(self._wire).keep_first_call(loads_faithful(self.head), handed.id if renamed else ""))
        self.head = b""
        if self._usage is not None:
            self._writer.feed(UsageReported(self._usage))
        for delta in said:
            if not (self._serial and isinstance(delta, _CALL)):
                self._writer.feed(delta)
        if handed is not None:
            self._writer.feed(CallReady(handed))
        self._writer.feed(ended)
        return self._writer.body()

    def _conforms(self, said: Sequence[Delta]) -> bool:
        calls = [delta.call for delta in said if isinstance(delta, CallReady | CallSpoiled)]
        relay = find_wire(self._wire).relay
        return not calls or (all(map(relay.call_conforms, calls)) and relay.body_conforms(as_dict(loads(self.head))))


def _deltas(message: Assistant) -> list[Delta]:
    """A complete message as the deltas of a stream."""
    deltas: list[Delta] = []
    if message.reasoning:
        deltas.append(ReasoningDelta(message.reasoning))
    if message.text:
        deltas.append(TextDelta(message.text))
    deltas += [CallSpoiled(call) if call.problem else CallReady(call) for call in message.calls]
    return deltas
