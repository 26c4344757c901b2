"""Writes one response for a client: the deltas of any wire in, the bytes of another out, calls in call order.

A call becomes ready when its own arguments are complete, so a later one may be ready first (an empty call is only sure
at the end). A client is handed calls in the order in which the model began them: one that is early waits here. A
response that failed ends with an error in the client's wire, never as if all were well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from unbroken_wires.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta, Ended, Restarted, TextDelta
from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.wire import ResponseEncoder, Wire


class ResponseWriter:
    """`wire` is the client's; `id` names the response there, `created` (seconds since 1970) is its time. A client of
    a stream that did not ask for usage gets none: `include_usage=False`. On a wire whose responses repeat the request
    and give the time of their end, these are `request` (the client's body) and `now`."""

    def __init__(
        self,
        wire: Wire | str,
        model: str,
        id: str,
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._wire = find_wire(wire) if isinstance(wire, str) else wire
        self._new_encoder = partial(
            self._wire.encoder, model, id, created=created, include_usage=include_usage, request=request, now=now
        )
        self._encoder = self._new_encoder()
        self._waiting: dict[int, CallReady | None] = {}
        """Calls that have begun and were not written, in the order of their beginning."""
        self._said: list[Delta] = []
        self._calls: dict[int, CallReady] = {}
        self.handed: list[ToolCall] = []
        """The calls that were written."""
        self.cited = False
        """The client got the pages that the answer cites, though they came on another wire."""

    def follow(self, data: bytes) -> None:
        """Complete events that the client has received unchanged: everything written from now on continues them. Their
        content is not fed, and is not in the body."""
        self._encoder.follow(data)

    def keep_alive(self, *, relays: bool = False) -> bytes:
        """A sign of life, for a client that has not received anything for a while. It changes nothing. `relays`: the
        client receives events unchanged at this time (`follow`)."""
        return self._encoder.keep_alive(relays)

    def feed(self, delta: Delta) -> bytes:
        """What the client is sent for this delta. A call is written when complete, after those that began earlier."""
        if isinstance(delta, TextDelta):
            self._said.append(delta)
            return self._encoder.feed(delta)
        match delta:
            case CallOpened(index, _, _):
                self._waiting.setdefault(index, None)
                return b""
            case CallReady(call):
                self._calls[call.index] = delta
                if call.index not in self._waiting:
                    return self._hand(delta)
                self._waiting[call.index] = delta
                return self._write_next()
            case CallSpoiled(call):
                return self._forget(call.index)
            case CallWithdrawn(index):
                return self._forget(index)
            case Restarted(_):
                self._waiting.clear()  # what had begun will not be finished, and must not hold back what comes now
                self._calls.clear()
            case Ended(_):
                held = [ready for ready in self._waiting.values() if ready is not None]
                self._waiting.clear()
                self._said.append(delta)
                written = b"".join(map(self._hand, held))
                return written + self._cite(self._encoder, delta) + self._encoder.feed(delta)
            case _:
                self._said.append(delta)
        return self._encoder.feed(delta)

    def body(self) -> bytes:
        """After the last delta: the same response as one body. It leaves out what a stream could not: calls
        that were spoiled, withdrawn or dropped after they had been announced."""
        encoder = self._new_encoder()
        said, ends = self._said, [delta for delta in self._said if isinstance(delta, Ended)]
        for delta in said:
            if not isinstance(delta, Ended):
                encoder.feed(delta)
        for _, ready in sorted(self._calls.items()):
            encoder.feed(ready)
        for end in ends:
            self._cite(encoder, end)
            encoder.feed(end)
        return encoder.body()

    def _cite(self, encoder: ResponseEncoder, end: Ended) -> bytes:
        """The pages that a model of another wire cites. Their places count in the model's text, which the client has
        unless a retry said something else."""
        message = end.message
        if message is None or message.native is None or message.native.wire == self._wire.name:
            return b""
        crossing = WIRES[message.native.wire].crossing() if message.native.wire in WIRES else None
        citations = (
            ()
            if crossing is None
            else tuple(one for one in crossing.history.citations(message.native.value) if one.url)
        )
        said = "".join([delta.text for delta in self._said if isinstance(delta, TextDelta)])
        written = encoder.cite(citations) if citations and said == message.text else None
        self.cited = written is not None
        return written or b""

    def _forget(self, index: int) -> bytes:
        self._waiting.pop(index, None)
        self._calls.pop(index, None)
        return self._write_next()

    def _write_next(self) -> bytes:
        written = b""
        while self._waiting:
            index, ready = next(iter(self._waiting.items()))
            if ready is None:
                break
            del self._waiting[index]
            written += self._hand(ready)
        return written

    def _hand(self, ready: CallReady) -> bytes:
        self.handed.append(ready.call)
        return self._encoder.feed(ready)
