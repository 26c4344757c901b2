"""A fresh question that needs nothing of us: sent on before it is read.

Most of what passes a gateway is such: no calls in the history that could be broken, nothing to hold, nothing to put
back, in the wire of the model. Asked for a stream, what we have to know of it is read while the answer is waited for.
Asked for a whole answer, that is given back with one look at it: to read all of both would cost twice as much as to
carry them. Whatever is not plain (a refusal, an answer with reasoning, one that broke) is handed to the long way, and
that goes on from there: nobody is asked twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

from unbroken.decoding import Decoder
from unbroken.deltas import Delta
from unbroken.errors import ProviderError
from unbroken.gateway.asked import Asked
from unbroken.gateway.doors import MESSAGES_FIELD
from unbroken.gateway.upstreams import Upstream
from unbroken.messages import Json, Request
from unbroken.models import Guarded, HTTPModel, Model
from unbroken.models.passing import PassingDecoder
from unbroken.models.sent import Sent
from unbroken.wires import find_wire
from unbroken.wires.values import as_dict, as_text

_FRESH = frozenset({"system", "developer", "user"})


@dataclass(frozen=True, slots=True)
class Fetched:
    """How the first try went."""

    data: bytes = b""
    error: ProviderError | None = None


def is_fresh(asked: Asked) -> bool:
    """May this question be sent on as it is?"""
    wire, body, http = asked.wire, asked.body, asked.upstream.http
    if asked.serial or http is None or http.logs or not asked.upstream.passes(wire) or find_wire(wire).plain is None:
        return False
    if body.get("parallel_tool_calls") is False or (body.get("tools") and not http.endpoint.quirks.stream_with_tools):
        return False
    said = cast("list[Json]", body[MESSAGES_FIELD[wire]])
    return all(as_text(as_dict(message).get("role")) in _FRESH for message in said)


async def send(asked: Asked) -> Sent:
    """On its way when this is over."""
    assert asked.upstream.http is not None
    sent = asked.upstream.http.send(asked.body, asked.headers)
    await asyncio.sleep(0)  # until it is sent
    await asyncio.sleep(0)  # until aiohttp's own task has written it
    return sent


async def fetch(asked: Asked) -> Fetched:
    assert asked.upstream.http is not None
    try:
        return Fetched(await asked.upstream.http.fetch(asked.body, asked.headers))
    except ProviderError as error:
        return Fetched(error=error)


def going_on(upstream: Upstream, first: Fetched | Sent) -> Model:
    """The model, whose first try was made already."""
    assert upstream.http is not None
    model, begun = upstream.model, _Begun(upstream.http, first)
    if not isinstance(model, Guarded):
        return begun
    guard = cast("Guarded[Model]", model)
    return Guarded(begun, guard.attempts, guard.seconds, fallback=guard.fallback)


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

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        first, self._first = self._first, None
        return self._read(first, request) if isinstance(first, Fetched) else self._http.stream(request, first)

    async def _read(self, fetched: Fetched, request: Request) -> AsyncIterator[Delta]:
        if fetched.error is not None:
            raise fetched.error
        decoder = PassingDecoder(Decoder(self._http.wire, None, request), streamed=False)
        for delta in (*decoder.feed(fetched.data), *decoder.end()):
            yield delta
