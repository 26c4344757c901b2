"""A fresh question that needs nothing of us: sent on, and its answer given back, with one look at each.

Most of what passes a gateway is such: no calls in the history that could be broken, nothing to hold, nothing to put
back, a client that waits for the whole answer in the wire of the model. To read all of it would cost twice as much as
to carry it. Whatever is not plain (a refusal, an answer with reasoning, one that broke) is handed to the long way, and
that goes on from there: nobody is asked twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import cast

from unbroken.decoding import Decoder
from unbroken.deltas import Delta
from unbroken.errors import ProviderError
from unbroken.gateway.doors import MESSAGES_FIELD
from unbroken.gateway.upstreams import Upstream
from unbroken.messages import Json, Request
from unbroken.models import Guarded, HTTPModel, Model
from unbroken.models.passing import PassingDecoder
from unbroken.wires import find_wire
from unbroken.wires.values import Object, as_dict, as_text

_FRESH = frozenset({"system", "developer", "user"})


@dataclass(frozen=True, slots=True)
class Fetched:
    """How the first try went."""

    data: bytes = b""
    error: ProviderError | None = None


def is_fresh(upstream: Upstream, wire: str, body: Object) -> bool:
    """May this question go the short way?"""
    if not upstream.passes(wire) or find_wire(wire).plain is None or body.get("stream"):
        return False
    if upstream.http is None or upstream.http.logs or body.get("parallel_tool_calls") is False:
        return False
    said = cast("list[Json]", body[MESSAGES_FIELD[wire]])
    return all(as_text(as_dict(message).get("role")) in _FRESH for message in said)


async def fetch(upstream: Upstream, body: Mapping[str, Json], headers: Mapping[str, str]) -> Fetched:
    assert upstream.http is not None
    try:
        return Fetched(await upstream.http.fetch(body, headers))
    except ProviderError as error:
        return Fetched(error=error)


def going_on(model: Model, http: HTTPModel, fetched: Fetched) -> Model:
    """The model, whose first try was made already."""
    begun = _Begun(http, fetched)
    if not isinstance(model, Guarded):
        return begun
    guard = cast("Guarded[Model]", model)
    return Guarded(begun, guard.attempts, guard.seconds, fallback=guard.fallback)


class _Begun:
    def __init__(self, http: HTTPModel, fetched: Fetched) -> None:
        self._http = http
        self._fetched: Fetched | None = fetched

    @property
    def name(self) -> str:
        return self._http.name

    @property
    def origin(self) -> str:
        return self._http.origin

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        fetched, self._fetched = self._fetched, None
        if fetched is None:
            async for delta in self._http.stream(request):
                yield delta
            return
        if fetched.error is not None:
            raise fetched.error
        decoder = PassingDecoder(Decoder(self._http.wire, None, request), streamed=False)
        for delta in (*decoder.feed(fetched.data), *decoder.end()):
            yield delta
