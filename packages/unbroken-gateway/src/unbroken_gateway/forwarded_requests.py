"""Requests that no model here answers: those that are passed through to a provider as they are, and those for stored
responses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from unbroken.asgi import Receive, Refused, Response, Scope, Send, read_headers
from unbroken.models.model import ResponseHead
from unbroken_gateway.http.admission import sent_key
from unbroken_gateway.http.client_response import ClientResponse
from unbroken_gateway.http.routes import FORWARDED_HEADERS, error_wire
from unbroken_gateway.http.websocket import HandshakeResponse
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.exchange import Outcome
from unbroken_gateway.relay.passthrough import (
    Permit,
    at_holder,
    choose,
    failed_by,
    other_model_refused,
    pass_through,
    permit,
    refuse_guarded,
    rules_of,
    speaking,
)
from unbroken_gateway.relay.references import Claiming, Reference, find_rule, names_a_model, read_rule
from unbroken_gateway.request_handling import RequestHandling
from unbroken_gateway.request_state import RequestState
from unbroken_gateway.spending.estimates import BYTES_PER_TOKEN
from unbroken_gateway.spending.passed_usage import PassedUsage
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_wires.messages import Request, Usage, User
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.http_api import StoredPath

PASSED = "passed"
"""Stands for the client's wire if nothing of the request could be read."""


def _as_text(data: bytes) -> Request:
    return Request((User.of(data.decode("utf-8", "replace")),))


class _NoBody:
    """`receive` of a request without a body, whose client is watched elsewhere."""

    def __init__(self) -> None:
        self._read = False

    async def receive(self) -> Mapping[str, Any]:
        if self._read:
            await asyncio.Event().wait()
        self._read = True
        return {"type": "http.request", "body": b""}


class ForwardedRequests:
    def __init__(self, handling: RequestHandling, catalog: Catalog) -> None:
        self._handling = handling
        self._catalog = catalog
        self._passes = tuple(map(read_rule, handling.settings.passes))

    async def pass_through(self, scope: Scope, receive: Receive, response: Response) -> None:
        """Forwards other paths that are listed to a provider of OpenAI's wires."""
        permits: list[Permit] = []

        def admit(key: GatewayKey | None) -> None:
            permits.append(permit(scope, key, self._passes))

        async def answer(state: RequestState, data: bytes) -> None:
            check = self._handling.check_values(state, data)
            passage, upstream = choose(permits[0], state.headers, data, self._catalog, state.key, check)
            state.alias, state.upstream_wire = passage.alias, passage.models[0].wire
            metering = self._handling.meter.of(state.key)
            # What is read again was counted when it was made.
            seen = PassedUsage() if metering is not None and permits[0].rule.method != "GET" else None
            if metering is not None:
                read = partial(_as_text, data) if seen is not None and names_a_model(permits[0].rule) else None
                tally = state.outcome.tally = metering.tally(read)
                if read is not None:
                    # What a file counts for is not known from its size.
                    tally.size = len(data) if data.lstrip()[:1] == b"{" else 1
                    tally.model_name = passage.models[0].name
                response.add_headers(await metering.check(state.key, passage.alias, tally))
            claiming = None
            if state.key is not None or upstream.pool is not None:
                ids, owned = state.handlers.ids, (*permits[0].references, *passage.references)
                await self._handling.check_ids(state, state.key, owned)
                if owned and upstream.pool is not None:
                    passage = at_holder(passage, upstream, await ids.holder(state.scope, owned))
                claiming = Claiming(ids, state.scope, passage.data, owned, outlet.head).read
            feed = seen.feed if seen is not None else None
            try:
                state.outcome.restarts = await pass_through(
                    permits[0], passage, state.headers, response, claiming, feed
                )
            except BaseException:
                if seen is not None and state.outcome.tally is not None:
                    state.outcome.tally.passed(seen.events)
                raise
            if seen is not None:
                state.outcome.usage = await seen.read()
                if not names_a_model(permits[0].rule):  # files, batches and so on have no usage
                    outlet.head.model = outlet.head.model if state.outcome.usage is not None else ""
            state.outcome.error_kind = failed_by(response.status)
            if state.outcome.error_kind:
                state.outcome.error = f"provider `{outlet.head.upstream}` answered {response.status}"

        outlet = ClientResponse(response)
        state = RequestState(PASSED, read_headers(scope), self._handling.now(), self._handling.handlers)
        await self._handling.handle(state, scope, receive, outlet, answer, error_wire(scope["path"]), admit)

    async def realtime(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a WebSocket through to a provider; the handshake was received."""
        from unbroken_gateway.relay import realtime  # noqa: PLC0415 - start-up time: loads a client for WebSockets

        response = HandshakeResponse(scope, send).response()
        outlet, settings = ClientResponse(response), self._handling.settings

        def admit(key: GatewayKey | None) -> None:
            if find_rule(rules_of(key, self._passes), "GET", ("v1", "realtime")) is None:
                words = f"list `{realtime.RULE}` under `paths` in [passing], or with `unbroken keys create --pass`"
                raise Refused(403, f"this gateway does not pass {realtime.PATH} through to a provider: {words}")

        async def answer(state: RequestState, data: bytes) -> None:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            asked = query.get("model", [""])[0]
            upstream = self._catalog.look_up(asked, state.key)
            models = speaking(upstream, in_turn=True) if upstream is not None else ()
            if upstream is None or not models:
                raise Refused(404, f"there is no model {asked[:100]!r} here for {realtime.PATH}: name it in `?model=`")
            refuse_guarded(upstream)
            state.alias, state.upstream_wire = upstream.counted_as, models[0].wire
            await self._check_spending(state.key, state.alias)
            if (metering := self._handling.meter.of(state.key)) is not None:
                state.outcome.tally = metering.tally()
            offered = [name for name in scope.get("subprotocols", ()) if name == "realtime"]
            kept = {name: state.headers[name] for name in FORWARDED_HEADERS if name in state.headers}
            model, provider, state.outcome.restarts = await realtime.connect(models, kept, offered, settings.max_body)
            outlet.head.upstream = model.label or model.name
            response.status = 101
            await send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None})
            check = partial(self._check_message, state) if state.key is not None else None
            admit_again, charge = partial(self._admit_again, state, scope), partial(self._charge, state, model.name)
            answers = realtime.Answers(partial(self._begin, state, model.name)) if metering is not None else None
            try:
                await realtime.relay(
                    model,
                    provider,
                    receive,
                    send,
                    check,
                    admit_again,
                    charge,
                    answers,
                    look_every=settings.look_every,
                )
            finally:
                if answers is not None and state.outcome.tally is not None and (more := answers.left()) is not None:
                    state.outcome.tally.left(model.name, more)

        state = RequestState(PASSED, read_headers(scope), self._handling.now(), self._handling.handlers)
        body = _NoBody()
        asked: Scope = {**scope, "type": "http", "method": "GET", "extensions": {}}
        await self._handling.handle(state, asked, body.receive, outlet, answer, error_wire(scope["path"]), admit)

    async def _check_message(self, state: RequestState, references: Sequence[Reference], chosen: Sequence[str]) -> None:
        if state.key is not None and state.key.aliases and chosen:
            raise other_model_refused(state.key, chosen[0])
        await self._handling.check_ids(state, state.key, references)

    async def _admit_again(self, state: RequestState, scope: Scope) -> None:
        """Raises `Refused` if the key of a connection is not valid any more, or a budget of it is spent."""
        keys, key = self._handling.admission.keys, None
        if keys is not None and (key := keys.find(sent_key(state.headers, scope))) is None:
            raise Refused(401, "the key of this connection is not valid any more")
        await self._check_spending(key, state.alias, counts=False)

    async def _check_spending(self, key: GatewayKey | None, alias: str, *, counts: bool = True) -> None:
        metering = self._handling.meter.of(key)
        if metering is not None:
            await metering.check(key, alias, counts=counts)

    async def _begin(self, state: RequestState, model: str, tokens: int) -> None:
        """Reserves for an answer on a connection, which the provider has begun; raises `Refused`. Of several at the
        same time, only for the first."""
        metering, tally = self._handling.meter.of(state.key), state.outcome.tally
        if metering is not None and tally is not None and tally.reserved is None:
            tally.model_name, tally.size = model, BYTES_PER_TOKEN * tokens + 1
            await metering.check(state.key, state.alias, tally, counts=False)

    def _charge(self, state: RequestState, model: str, usage: Usage, is_answer: bool) -> None:
        """Counts one answer on a connection, or the text of what was said to it."""
        self._handling.stats.metrics.tokens(state.alias, usage)
        metering = self._handling.meter.of(state.key)
        if metering is not None:
            head = ResponseHead()
            head.model = model
            counted = Outcome(0.0, usage=usage, tally=state.outcome.tally)
            if not is_answer and counted.tally is not None:
                counted.tally = copy(counted.tally)
                counted.tally.reserved = None  # it is for the answer
            metering.charge(state.key, state.alias, counted, head, answered=True)

    async def open_stored(
        self, wire: str, stored: StoredPath, scope: Scope, receive: Receive, response: Response
    ) -> None:
        """Reads or deletes a stored response. One that is not stored here is the provider's, if a rule passes it on."""
        with suppress(Refused):
            key = self._handling.admission.admit(read_headers(scope), scope)
            permit(scope, key, self._passes)
            if not await self._handling.handlers.stored.has(stored, key.id if key is not None else ""):
                await self.pass_through(scope, receive, response)
                return

        async def answer(state: RequestState, data: bytes) -> None:
            await state.handlers.stored.answer(find_wire(wire).http, stored, scope, state.scope, response)

        state = RequestState(wire, read_headers(scope), self._handling.now(), self._handling.handlers)
        await self._handling.handle(state, scope, receive, ClientResponse(response), answer)
