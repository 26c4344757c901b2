"""Requests that need nothing from the gateway are sent on before they are decoded.

Most requests are like that: no calls in the history that could be broken, nothing to hold, nothing to restore, and the
model speaks the client's wire. For a stream, the request is decoded while its answer is awaited. A non-streaming body
is returned after a quick check: decoding request and answer would cost twice as much as forwarding them. Anything else
(a refusal, an answer with reasoning, a broken one) continues on the normal path with the answer that is already there:
no model is asked twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

from unbroken.decoding import Decoder
from unbroken.deltas import Delta
from unbroken.errors import ProviderError
from unbroken.gateway.http.asgi import off_loop
from unbroken.gateway.http.client_request import ClientRequest
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.messages import Json, Request
from unbroken.models.connections import Sent
from unbroken.models.http import HTTPModel
from unbroken.models.model import RESPONSE_LIMIT, Model
from unbroken.models.relay import PassingDecoder
from unbroken.models.retrying import RetryingModel
from unbroken.wires import find_wire
from unbroken.wires.values import as_dict, as_text

_FRESH = frozenset({"system", "developer", "user"})


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of the first attempt."""

    data: bytes = b""
    error: ProviderError | None = None


def can_forward(incoming: ClientRequest) -> bool:
    """May this request be forwarded as it is?"""
    wire, body, http = incoming.wire, incoming.body, incoming.upstream.http
    if http is None or http.logs or not incoming.upstream.passes(wire) or find_wire(wire).plain is None:
        return False
    if body.get("parallel_tool_calls") is False or (body.get("tools") and not http.endpoint.quirks.stream_with_tools):
        return False
    said = cast("list[Json]", body[find_wire(wire).http.messages_field])
    return all(as_text(as_dict(message).get("role")) in _FRESH for message in said)


async def send(incoming: ClientRequest) -> Sent:
    """Returns once the request is on its way."""
    assert incoming.upstream.http is not None
    sent = incoming.upstream.http.send(incoming.body, incoming.headers)
    await asyncio.sleep(0)  # until it is sent
    await asyncio.sleep(0)  # until aiohttp's own task has written it
    return sent


async def fetch(incoming: ClientRequest) -> Fetched:
    assert incoming.upstream.http is not None
    try:
        return Fetched(await incoming.upstream.http.fetch(incoming.body, incoming.headers))
    except ProviderError as error:
        return Fetched(error=error)


def continue_from(upstream: Upstream, first: Fetched | Sent) -> Model:
    """The model, with its first attempt already made."""
    assert upstream.http is not None
    model, begun = upstream.model, _Begun(upstream.http, first)
    if not isinstance(model, RetryingModel):
        return begun
    retrying = cast("RetryingModel[Model]", model)
    return RetryingModel(begun, retrying.attempts, retrying.seconds, fallback=retrying.fallback)


class _Begun:
    def __init__(self, http: HTTPModel, first: Fetched | Sent) -> None:
        self._http = http
        self._first: Fetched | Sent | None = first

    @property
    def name(self) -> str:
        return self._http.name

    @property
    def origin(self) -> str:
        return self._http.origin

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        first, self._first = self._first, None
        return self._read(first, request) if isinstance(first, Fetched) else self._http.stream(request, first)

    async def _read(self, fetched: Fetched, request: Request) -> AsyncIterator[Sequence[Delta]]:
        if fetched.error is not None:
            raise fetched.error
        limit = RESPONSE_LIMIT.get()
        max_calls = inf if limit is None else limit.max_calls
        decoder = PassingDecoder(Decoder(self._http.wire, None, request, max_calls=max_calls), streamed=False)
        deltas = await off_loop(len(fetched.data), lambda: [*decoder.feed(fetched.data), *decoder.end()])
        self._http.mask_end(deltas)
        yield deltas
