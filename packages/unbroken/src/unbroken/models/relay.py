"""A request that a gateway relays: what its client sent, and whether the client is to receive the answer's own bytes.

It passes through fallbacks and retries like any `Request`; only `HTTPModel` uses the added fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.verdict import How
from unbroken_wires.deltas import Delta, Ended, Received
from unbroken_wires.messages import Json, Message, Request
from unbroken_wires.wires import find_wire


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A body as a client of `wire` wrote it. A model of that wire sends it unchanged, except for the model, the stream,
    and what the provider's profile says it would refuse.

    It applies as long as the request has these very `messages`: if a layer in between has changed them, the request is
    encoded from them instead.
    """

    wire: str
    body: Mapping[str, Json]
    messages: tuple[Message, ...]
    edited: bool = False
    """Its messages are not those of the client: they were repaired."""


@dataclass(frozen=True, slots=True)
class RelayRequest(Request):
    verbatim: Verbatim | None = None
    raw_wire: str = ""
    """The client's wire: a model of that wire also yields the bytes that it receives (`Received`). Empty: no model
    does."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the client that are meant for a provider of its own wire, such as the betas of its API."""


_values = attrgetter(*(field.name for field in fields(Request) if field.name != "pieces"))


def relay_request(
    request: Request, verbatim: Verbatim | None, raw_wire: str, headers: Mapping[str, str], *, pieces: bool = False
) -> RelayRequest:
    """Usually without pieces of calls: a relay passes on the bytes instead."""
    return RelayRequest(*_values(request), pieces=pieces, verbatim=verbatim, raw_wire=raw_wire, headers=headers)


def without_relay(request: Request) -> Request:
    """The same request for a model that is not behind HTTP."""
    return Request(*_values(request), pieces=request.pieces) if isinstance(request, RelayRequest) else request


_NONE: Mapping[str, str] = {}


def headers_for(request: Request, wire: str) -> Mapping[str, str]:
    """The headers that a model of this wire is sent for this request: the client's, or those that a field needs."""
    if isinstance(request, RelayRequest):
        return request.headers if request.wire == wire else _NONE
    return _NONE if request.managed is None else find_wire(wire).http.headers_of(request.managed)


def verbatim_for(request: Request, wire: str) -> Verbatim | None:
    """The body as the client wrote it, if a model of this wire can be sent exactly that."""
    verbatim = request.verbatim if isinstance(request, RelayRequest) else None
    if verbatim is None or verbatim.wire != wire or verbatim.messages is not request.messages:
        return None
    return verbatim


# A decoder for a relay: after the deltas it yields the bytes themselves. Complete events only, so that nothing is
# appended to half of one. The bytes are unchanged.


class PassingDecoder:
    """`feed` and `end` as in `Decoder`, with `Received` among the deltas. `streamed`: it is cut into the events of its
    wire's framing; a non-streaming body is one piece at the end. `apart`: each event separately, for a relay that must
    stop between two. Otherwise events that came together stay together, up to the beginning of a call: the bytes of a
    call that is complete need not wait for the next one, unless all of the rest came with it."""

    def __init__(self, decoder: Decoder, streamed: bool, apart: bool = False) -> None:
        self._decoder = decoder
        self._framing = decoder.wire.framing
        self._streamed = streamed
        self._apart = apart
        self._came = bytearray()
        """Bytes after the last complete event."""
        self._call_start = decoder.wire.relay.check().start

    @property
    def terminal(self) -> bool:
        return self._decoder.terminal

    @property
    def done(self) -> bool:
        return self._decoder.done

    def feed(self, chunk: bytes) -> list[Delta]:
        decoder = self._decoder
        if not self._streamed:
            self._came += chunk
            return decoder.feed(chunk)
        deltas: list[Delta] = []
        if not self._apart:
            for piece in self._framing.pieces(chunk, self._call_start) if self._is_cut(chunk) else (chunk,):
                deltas += decoder.feed(piece)
                if events := self._whole_events(piece):
                    deltas.append(self._received(events))
            return deltas
        for event in self._framing.events(self._whole_events(chunk)):
            deltas += decoder.feed(event)
            deltas.append(self._received(event))
        return deltas

    def end(self, cause: str = "", how: How = "unfinished") -> list[Delta]:
        fed = self._decoder.feed(bytes(self._came)) if self._apart and self._streamed and self._came else []
        *deltas, ended = *fed, *self._decoder.end(cause, how)
        if isinstance(ended, Ended) and (rest := self._rest()):
            deltas.append(Received(rest, wait=True))
        return [*deltas, ended]

    def _is_cut(self, chunk: bytes) -> bool:
        start = self._call_start
        return start != b"" and start in chunk and not self._decoder.wire.relay.has_end(chunk)

    def _received(self, events: bytes) -> Received:
        decoder = self._decoder
        return Received(events, wait=decoder.terminal or decoder.calling or decoder.troubled)

    def _whole_events(self, chunk: bytes) -> bytes:
        if not self._came:
            end = self._framing.complete(chunk, len(chunk))
            if end == len(chunk):  # nearly always
                return chunk
            self._came += chunk[end:]
            return chunk[:end]
        self._came += chunk
        end = self._framing.complete(self._came, len(chunk))
        whole = bytes(self._came[:end])
        del self._came[:end]
        return whole

    def _rest(self) -> bytes:
        """What is left at the end: all of a non-streaming body; of a stream nothing, or its last event."""
        rest = bytes(self._came)
        return self._framing.rest(rest) if self._streamed else rest
