"""A request that a gateway relays: what its client sent, and whether the client is to receive the answer's own bytes.

It passes through fallbacks and retries like any `Request`; only `HTTPModel` looks at what is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter

from unbroken.messages import Json, Message, Request


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
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the client that are meant for the provider, such as the betas of its wire."""


@dataclass(frozen=True, slots=True)
class RelayRequest(Request):
    verbatim: Verbatim | None = None
    raw_wire: str = ""
    """The client's wire: a model of that wire also yields the bytes that it receives (`Received`)."""


_values = attrgetter(*(field.name for field in fields(Request) if field.name != "pieces"))


def relay_request(request: Request, verbatim: Verbatim | None, raw_wire: str) -> RelayRequest:
    """Who passes bytes on has no use for pieces of a call."""
    return RelayRequest(*_values(request), pieces=False, verbatim=verbatim, raw_wire=raw_wire)


def without_relay(request: Request) -> Request:
    """The same request for a model that is not behind HTTP."""
    return Request(*_values(request), pieces=request.pieces) if isinstance(request, RelayRequest) else request


def verbatim_for(request: Request, wire: str) -> Verbatim | None:
    """The body as the client wrote it, if a model of this wire can be sent exactly that."""
    verbatim = request.verbatim if isinstance(request, RelayRequest) else None
    if verbatim is None or verbatim.wire != wire or verbatim.messages is not request.messages:
        return None
    return verbatim
