"""Requests that a model answers: finds the model, checks what the key may use, and gives the request to
`relay.responder`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unbroken.asgi import Receive, Refused, Response, Scope, read_headers
from unbroken_gateway.http.admission import sent_key
from unbroken_gateway.http.client_names import client_name
from unbroken_gateway.http.client_response import ClientResponse
from unbroken_gateway.http.routes import (
    FORWARDED_HEADERS,
    Attempt,
    ClientRequest,
    Route,
    find_profile,
    model_of,
    read_attempt,
    read_body,
    read_request,
)
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.compaction import compact
from unbroken_gateway.relay.counting import count_tokens
from unbroken_gateway.relay.passthrough import other_model_refused
from unbroken_gateway.relay.references import Claiming, Reference, gives_ids, other_models, provider_references
from unbroken_gateway.request_handling import RequestHandling
from unbroken_gateway.request_state import RequestState
from unbroken_gateway.spending.estimates import most_output
from unbroken_gateway.spending.passed_usage import PassedUsage
from unbroken_gateway.turns.response_store import LastResponse
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_access import as_text
from unbroken_wires.wires.json_pieces import write_json

if TYPE_CHECKING:
    from unbroken_gateway.relay.request_recording import Recordings


class ModelRequests:
    def __init__(self, handling: RequestHandling, catalog: Catalog, recordings: Recordings | None) -> None:
        self._handling = handling
        self._settings = handling.settings
        self._catalog = catalog
        self._recordings = recordings

    async def open(
        self, route: Route, scope: Scope, receive: Receive, response: Response, last: LastResponse | None = None
    ) -> None:
        """`last`: it is a request on a WebSocket, which may continue from its last response."""
        if scope["method"] != "POST":
            pages = "; web pages of other sites need `cors_origins` in [server]" if scope["method"] == "OPTIONS" else ""
            raise Refused(405, f"{scope['path'][:200]} needs POST{pages}", {"allow": "POST"})
        outlet = ClientResponse(response, find_wire(route.wire).framing, as_array=_wants_array(route, scope))
        continued = [""]

        async def answer(state: RequestState, data: bytes) -> None:
            body = read_body(data, self._handling.check_values(state, data))
            if last is not None:
                body = route.http.socket_body(body)
                continued[0] = as_text(body.get("previous_response_id"))
            upstream = self._catalog.find(model_of(route, body), state.key, body, route.http.messages_field)
            state.alias, state.upstream_wire = upstream.counted_as, upstream.wire
            metering = self._handling.meter.of(state.key)
            if metering is not None and route.wanted != "count":
                same_wire = body if upstream.wire == route.wire else None
                tally = state.outcome.tally = metering.tally(partial(read_request, route, body), same_wire)
                tally.model_name, tally.size, tally.most_output = upstream.model.name, len(data), most_output(body)
                response.add_headers(await metering.check(state.key, upstream.counted_as, tally))
            if state.key is not None or upstream.pool is not None:
                owned = await self._check_body(state, route, body, state.key)
                if owned and upstream.pool is not None:
                    upstream = upstream.pool.at(await state.handlers.ids.holder(state.scope, owned)) or upstream
                if gives_ids(upstream.wire, body):
                    ids, sent = state.handlers.ids, partial(write_json, body)
                    outlet.claiming = Claiming(ids, state.scope, sent, owned, outlet.head)
            attempt = read_attempt(state.headers, str((scope.get("client") or ("",))[0]))
            incoming = self._read_request(route, body, data, upstream, state.key, state.headers, attempt)
            state.client = incoming.client
            incoming = incoming if last is None else replace(incoming, last_response=last)
            if metering is not None and body.get("stream") and not route.http.wants_usage(body):
                incoming = replace(incoming, body=route.http.asking_usage(body), hides_usage=True)
            if route.wanted == "count":
                await count_tokens(incoming, state.handlers.stored, response)
            elif route.wanted == "compact":
                metrics, created = self._handling.stats.metrics, int(self._handling.now())
                seen = PassedUsage() if metering is not None else None
                feed = seen.feed if seen is not None else None
                stored, outcome = state.handlers.stored, state.outcome
                await compact(incoming, stored, response, outcome, created, metrics.guardrail, feed)
                if seen is not None and state.outcome.usage is None:
                    state.outcome.usage = await seen.read()
                if state.outcome.usage is not None:
                    metrics.tokens(upstream.counted_as, state.outcome.usage)
            else:
                if self._recordings is not None:
                    secret, agent = sent_key(state.headers, scope), state.headers.get("user-agent", "")
                    state.outcome.recording = self._recordings.sample(secret, agent)
                await state.handlers.responder.answer(incoming, outlet, state.outcome)
                await outlet.end()

        state = RequestState(route.wire, read_headers(scope), self._handling.now(), self._handling.handlers)
        await self._handling.handle(state, scope, receive, outlet, answer)
        if last is not None and (state.outcome.error_kind or outlet.status != 200):
            last.forget(continued[0])

    async def _check_body(
        self, state: RequestState, route: Route, body: dict[str, object], key: GatewayKey | None
    ) -> Sequence[Reference]:
        """Checks that the key uses only its own models and its own ids at the provider. Returns those ids."""
        is_forwarded = route.wanted != "count" or route.http.count_path
        if key is not None and key.aliases and is_forwarded:
            for field in other_models(body):
                raise other_model_refused(key, field)
        references = [*provider_references(body)]
        await self._handling.check_ids(state, key, references)
        return references

    def _read_request(
        self,
        route: Route,
        body: dict[str, object],
        data: bytes,
        upstream: Upstream,
        key: GatewayKey | None,
        headers: Mapping[str, str],
        attempt: Attempt,
    ) -> ClientRequest:
        name = key.name if key is not None else ""
        profile = find_profile(self._settings.clients, name, headers)
        all_calls = profile.all_calls if profile is not None else None
        return ClientRequest(
            route,
            body,
            data,
            upstream,
            scope=key.id if key is not None else "",
            key=name,
            client=client_name(headers),
            serial=profile.serial if profile is not None else upstream.serial,
            all_calls=upstream.all_calls if all_calls is None else all_calls,
            headers={name: headers[name] for name in FORWARDED_HEADERS if name in headers},
            attempt=attempt,
        )


def _wants_array(route: Route, scope: Scope) -> bool:
    return bool(route.streams) and route.http.wants_array(scope.get("query_string", b"").decode("latin-1"))
