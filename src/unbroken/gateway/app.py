"""`Gateway`, the ASGI application: finds the route, checks the key, reads the body, and reports every error in the
client's wire.

`relay.responder` answers requests, `passthrough.forwarding` forwards the others, `admin.pages` serves the pages.
Nothing here knows a provider.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from unbroken.asgi import (
    REQUEST_ID,
    CancelOnDisconnect,
    ClientGone,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    read_headers,
)
from unbroken.asgi import read_body as receive_body
from unbroken.errors import UnbrokenError
from unbroken.gateway.admin.pages import Page, Pages, Viewer
from unbroken.gateway.admin.stats import Stats
from unbroken.gateway.http.admission import UNLIMITED, Admission, KeyLimits, sent_key
from unbroken.gateway.http.client_names import client_name
from unbroken.gateway.http.client_response import ClientResponse, Failure, failure_from, whole_seconds, without_address
from unbroken.gateway.http.large_requests import LargeRequests, MemoryBudget, StoreOnMainLoop, is_large
from unbroken.gateway.http.routes import (
    FORWARDED_HEADERS,
    Attempt,
    ClientRequest,
    Route,
    error_wire,
    find_profile,
    find_route,
    find_stored,
    model_of,
    read_attempt,
    read_body,
)
from unbroken.gateway.http.websocket import HandshakeResponse, WebSocket
from unbroken.gateway.keys import GatewayKey, KeyRing
from unbroken.gateway.relay.compaction import compact
from unbroken.gateway.relay.counting import count_tokens
from unbroken.gateway.relay.passthrough import (
    Permit,
    choose,
    failed_by,
    other_model_refused,
    pass_through,
    permit,
)
from unbroken.gateway.relay.references import (
    Claiming,
    ProviderIds,
    Reference,
    gives_ids,
    other_models,
    provider_references,
    read_rule,
)
from unbroken.gateway.relay.responder import Responder
from unbroken.gateway.relay.stored_responses import StoredResponses
from unbroken.gateway.request_state import GONE, Handlers, RequestState, log_failed
from unbroken.gateway.settings import GatewaySettings
from unbroken.gateway.stores import Store, StoreUnavailable, open_store, store_url
from unbroken.gateway.stores.store import CircuitBreakerStore
from unbroken.gateway.turns.response_store import LastResponse, ResponseStore
from unbroken.gateway.turns.turn_store import TurnStore
from unbroken.gateway.upstreams.catalog import Catalog
from unbroken.gateway.upstreams.upstream import Upstream
from unbroken.models.model import RESPONSE_HEAD, RESPONSE_LIMIT, ResponseLimit
from unbroken.models.pricing import load_prices
from unbroken.models.sessions import close_session
from unbroken.wires import find_wire
from unbroken.wires.http_api import StoredPath
from unbroken.wires.json_pieces import write_json
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import as_text

if TYPE_CHECKING:
    from unbroken.durable.web import RunsApp
    from unbroken.gateway.admin.recordings_page import RecordingPages
    from unbroken.gateway.relay.request_recording import Recordings

log = logging.getLogger("unbroken.gateway")

PASSED = "passed"
"""Stands for the client's wire if nothing of the request could be read."""


class Gateway:
    """The ASGI application: give it to any ASGI server. It opens its models and its store when it is created."""

    def __init__(
        self, settings: GatewaySettings, store: Store | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self._catalog = Catalog(settings.upstreams)
        self.upstreams = self._catalog.upstreams
        self.store: Store = CircuitBreakerStore(
            store
            or open_store(
                store_url(settings.store), max_bytes=settings.store_bytes, max_entry=settings.entry_bytes, now=now
            )
        )
        self._now = now
        self._keys = KeyRing(settings.keys_file) if settings.keys else None
        self._admission = Admission(settings, self._keys)
        self._limits = KeyLimits()
        self._passes = tuple(map(read_rule, settings.passes))
        self._stats = Stats(self.upstreams.values(), settings.hold_timeout, now, settings.access_log)
        self._handlers = self._make_handlers(self.store)
        self._large = LargeRequests()
        self._large_handlers: Handlers | None = None
        self._large_memory = MemoryBudget(settings.large_bodies)
        self._recordings = _recordings(settings)
        self._recording_pages = _recording_pages(settings)
        self._runs = _runs(settings, self._limits)
        self._pages = Pages(settings, self.upstreams, self.store, self._stats, self._limits, now)

    async def aclose(self) -> None:
        """Closes the store and this loop's connections to models. A server that supports ASGI lifespan calls it."""
        self._catalog.stop_probes()
        await self._large.aclose()
        if self._runs is not None:
            await self._runs.aclose()
        await self.store.aclose()
        await close_session()

    def end_streams(self) -> None:
        """Ends the streams of durable runs' events, which would last as long as the runs; clients connect again. A
        server calls it before it waits for other requests."""
        if self._runs is not None:
            self._runs.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._open_websocket(scope, receive, send)
        else:
            raise RuntimeError(f"the gateway speaks HTTP and WebSocket, not {scope['type']}")

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                with suppress(StoreUnavailable):  # it has been logged
                    await self.store.ping()
                self._catalog.start_probes()
                if self._recordings is not None:  # otherwise the first recorded request waits for it
                    for upstream in self.upstreams.values():
                        await load_prices(upstream.model.name, self._now())
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        id = token_hex(8)
        REQUEST_ID.set(id)
        response = Response(send, {"x-unbroken-request-id": id})
        route = find_route(path)
        wire = route.wire if route is not None else error_wire(path)
        try:
            if route is not None:
                await self._open(route, scope, receive, response)
            elif (page := self._pages.find(path)) is not None:
                await self._open_page(page, scope, response)
            elif self._recording_pages is not None and (path == "/recordings" or path.startswith("/recordings/")):
                await self._open_page(self._recording_pages.find(scope), scope, response)
            elif self._runs is not None and _is_runs_path(path):
                await self._runs(scope, receive, send)
            elif (stored := find_stored(path)) is not None:
                await self._open_stored(*stored, scope, receive, response)
            elif path.startswith("/v1/"):
                await self._pass_through(scope, receive, response)
            else:
                raise Refused(
                    404, f"there is no path {path[:200]}: GET /openapi.json lists the paths", kind="unknown_url"
                )
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001 - the client always gets an answer, and the log the details
            await self._refuse(response, wire, self._failure(error))

    async def _open_page(self, page: Page, scope: Scope, response: Response) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, f"{scope['path']} needs GET", {"allow": "GET, HEAD"})
        headers = read_headers(scope)
        if page.private or self._keys is None:
            key = self._admission.admit(headers, scope)
        else:
            key = self._keys.find(sent_key(headers, scope))
        if page.operators and key is not None and not key.operator:
            raise Refused(
                403, f"{scope['path']} shows all keys: it needs an operator's key (`unbroken keys create --operator`)"
            )
        await page.show(response, Viewer(key, has_keys=self._keys is not None))

    # Requests

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection for requests of one wire. It is admitted as any request, and each of its requests again."""
        route = find_route(scope["path"])
        last = LastResponse()

        async def answer(asked: Scope, receive: Receive, send: Send) -> None:
            assert route is not None
            REQUEST_ID.set(token_hex(8))
            response = Response(send)
            try:
                await self._open(route, asked, receive, response, last)
            except Exception as error:  # noqa: BLE001 - as in `_serve`
                await self._refuse(response, route.wire, self._failure(error))

        await receive()  # the handshake
        try:
            self._admission.admit(read_headers(scope), scope)
            if route is None or scope["path"] not in route.http.socket_paths:
                raise Refused(404, f"there is no WebSocket at {scope['path'][:200]}", kind="unknown_url")
        except Refused as error:
            refusal = HandshakeResponse(scope, send).response()
            await self._refuse(refusal, error_wire(scope["path"]), self._failure(error))
            return

        def is_admitted() -> bool:
            return self._keys is None or self._keys.find(sent_key(read_headers(scope), scope)) is not None

        await WebSocket(scope, receive, send, answer, self._large_memory, is_admitted).serve()

    async def _open(
        self, route: Route, scope: Scope, receive: Receive, response: Response, last: LastResponse | None = None
    ) -> None:
        """`last`: it is a request on a WebSocket, which may continue from its last response."""
        if scope["method"] != "POST":
            raise Refused(405, f"{scope['path'][:200]} needs POST", {"allow": "POST"})
        outlet = ClientResponse(response, find_wire(route.wire).framing, as_array=_wants_array(route, scope))
        continued = [""]

        async def answer(state: RequestState, data: bytes) -> None:
            body = read_body(data, self._check_values(state, data))
            if last is not None:
                body = route.http.socket_body(body)
                continued[0] = as_text(body.get("previous_response_id"))
            upstream = self._catalog.find(model_of(route, body), state.key, body, route.http.messages_field)
            state.alias, state.upstream_wire = upstream.counted_as, upstream.wire
            if state.key is not None:
                owned = await self._check_body(state, route, body, state.key)
                if gives_ids(upstream.wire, body):
                    outlet.claiming = Claiming(state.handlers.ids, state.key.id, partial(write_json, body), owned)
            attempt = read_attempt(state.headers, str((scope.get("client") or ("",))[0]))
            incoming = self._read_request(route, body, data, upstream, state.key, state.headers, attempt)
            incoming = incoming if last is None else replace(incoming, last_response=last)
            if route.wanted == "count":
                await count_tokens(incoming, state.handlers.stored, response)
            elif route.wanted == "compact":
                await compact(incoming, state.handlers.stored, response, state.outcome, int(self._now()))
                if state.outcome.usage is not None:
                    self._stats.metrics.tokens(upstream.counted_as, state.outcome.usage)
            else:
                if self._recordings is not None:
                    secret, agent = sent_key(state.headers, scope), state.headers.get("user-agent", "")
                    state.outcome.recording = self._recordings.sample(secret, agent)
                await state.handlers.responder.answer(incoming, outlet, state.outcome)
                await outlet.end()

        state = RequestState(route.wire, read_headers(scope), self._now(), self._handlers)
        await self._handle(state, scope, receive, outlet, answer)
        if last is not None and (state.outcome.error_kind or outlet.status != 200):
            last.forget(continued[0])

    async def _pass_through(self, scope: Scope, receive: Receive, response: Response) -> None:
        """Forwards other paths that are listed to a provider of OpenAI's wires."""
        permits: list[Permit] = []

        def admit(key: GatewayKey | None) -> None:
            permits.append(permit(scope, key, self._passes))

        async def answer(state: RequestState, data: bytes) -> None:
            check = self._check_values(state, data)
            passage = choose(permits[0], state.headers, data, self.upstreams.values(), state.key, check)
            state.alias, state.upstream_wire = passage.alias, passage.model.wire
            claiming = None
            if state.key is not None:
                owned = (*permits[0].references, *passage.references)
                await self._check_ids(state, state.key, owned)
                claiming = Claiming(state.handlers.ids, state.key.id, lambda: passage.data, owned).read
            await pass_through(permits[0], passage, state.headers, response, claiming)
            state.outcome.error_kind = failed_by(response.status)
            if state.outcome.error_kind:
                state.outcome.error = f"provider `{passage.model.endpoint.provider}` answered {response.status}"

        state = RequestState(PASSED, read_headers(scope), self._now(), self._handlers)
        await self._handle(state, scope, receive, ClientResponse(response), answer, error_wire(scope["path"]), admit)

    async def _open_stored(
        self, wire: str, stored: StoredPath, scope: Scope, receive: Receive, response: Response
    ) -> None:
        """Reads or deletes a stored response. One that is not stored here is the provider's, if a rule passes it on."""
        with suppress(Refused):
            key = self._admission.admit(read_headers(scope), scope)
            permit(scope, key, self._passes)
            if not await self._handlers.stored.has(stored, key.id if key is not None else ""):
                await self._pass_through(scope, receive, response)
                return

        async def answer(state: RequestState, data: bytes) -> None:
            await state.handlers.stored.answer(find_wire(wire).http, stored, scope, state.scope, response)

        state = RequestState(wire, read_headers(scope), self._now(), self._handlers)
        await self._handle(state, scope, receive, ClientResponse(response), answer)

    def _check_values(self, state: RequestState, data: bytes) -> Callable[[int], None] | None:
        """Returns the check that a large JSON body must pass while it is parsed."""
        if state.handlers is self._handlers:
            return None
        most, size = self.settings.max_values, len(data)

        def check(values: int) -> None:
            if values > most:
                raise Refused(
                    413,
                    f"the body holds more than the {most:,} values that are allowed (`max_values`): send fewer "
                    f"messages",
                )
            state.share.holds(size, values)

        check(0)
        return check

    async def _check_body(
        self, state: RequestState, route: Route, body: dict[str, object], key: GatewayKey
    ) -> Sequence[Reference]:
        """Checks that the key uses only its own models and its own ids at the provider. Returns those ids."""
        if key.aliases and (route.wanted != "count" or route.http.count_path):  # otherwise it is never forwarded
            for field in other_models(body):
                raise other_model_refused(key, field)
        references = [*provider_references(body)]
        await self._check_ids(state, key, references)
        return references

    async def _check_ids(self, state: RequestState, key: GatewayKey, references: Sequence[Reference]) -> None:
        if not self.settings.shared_ids:
            await state.handlers.ids.check(key.id, references)

    async def _handle(
        self,
        state: RequestState,
        scope: Scope,
        receive: Receive,
        outlet: ClientResponse,
        answer: Callable[[RequestState, bytes], Coroutine[Any, Any, None]],
        wire: str = "",
        admit: Callable[[GatewayKey | None], None] | None = None,
    ) -> None:
        """`wire`: the wire of errors, if not the client's. `admit` may refuse before the body is read."""
        failure: Failure | None = None
        cause: BaseException | None = None
        self._stats.begin()
        try:
            key = state.key = self._admission.admit(state.headers, scope)
            RESPONSE_LIMIT.set(ResponseLimit(self.settings.max_response, self.settings.max_calls))
            RESPONSE_HEAD.set(outlet.head)
            with (
                self._limits.admit(key) if key is not None else UNLIMITED as refused,
                self._large_memory.share() as share,
            ):
                if refused is not None:
                    raise Refused(429, refused.words, {"retry-after": whole_seconds(refused.retry_after)})
                if admit is not None:
                    admit(key)
                settings = self.settings
                data = await receive_body(
                    state.headers, receive, settings.max_body, settings.body_timeout, share.received
                )
                with CancelOnDisconnect(scope, receive):
                    if is_large(data):
                        state.share = share
                        await self._answer_large(state, outlet, lambda: answer(state, data))
                    else:
                        await answer(state, data)
            if state.outcome.error_kind:
                log_failed(state, state.outcome.error)
        except ClientGone as error:
            cause, failure = error, Failure(GONE, "the client went away")
        except asyncio.CancelledError as error:  # `stop_timeout` is over
            cause, failure = error, Failure(503, "the gateway was stopped")
            await outlet.fail(wire or state.client_wire, failure)
            raise
        except Exception as error:  # noqa: BLE001 - as in `_serve`
            cause, failure = error, self._failure(error, state)
            await outlet.fail(wire or state.client_wire, failure)
        finally:
            if state.outcome.recording is not None:
                state.outcome.recording.end(cause, failure.words if failure is not None else "")
            failed = state.outcome.error_kind or (failure.upstream if failure is not None else "")
            self._stats.end(state.summary(outlet.status, failure), failed, state.scope)

    async def _answer_large(
        self, state: RequestState, outlet: ClientResponse, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        home = asyncio.get_running_loop()
        if self._large_handlers is None:
            self._large_handlers = self._make_handlers(StoreOnMainLoop(self.store, home))
        state.handlers = self._large_handlers
        outlet.send_from_elsewhere(home)
        await self._large.run(work)

    def _make_handlers(self, store: Store) -> Handlers:
        turn_store = TurnStore(store, self.settings.ttl, self.settings.hold_timeout, self._now)
        stored = StoredResponses(ResponseStore(store, self.settings.ttl))
        return Handlers(
            Responder(self.settings, turn_store, stored, self._stats, self._now),
            ProviderIds(store, self.settings.ttl),
            stored,
        )

    def _failure(self, error: Exception, state: RequestState | None = None) -> Failure:
        failure = failure_from(error)
        if not isinstance(error, UnbrokenError | Refused):
            log.error("answering a request failed", exc_info=error)
        elif failure.upstream:
            log_failed(state, failure.words)
        return failure if self._keys is None else without_address(error, failure)

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
        profile = find_profile(self.settings.clients, name, headers)
        return ClientRequest(
            route,
            body,
            data,
            upstream,
            scope=key.id if key is not None else "",
            key=name,
            client=client_name(headers),
            serial=profile.serial if profile is not None else upstream.serial,
            all_calls=upstream.all_calls or (profile is not None and profile.all_calls),
            headers={name: headers[name] for name in FORWARDED_HEADERS if name in headers},
            attempt=attempt,
        )

    async def _refuse(self, response: Response, wire: str, failure: Failure) -> None:
        if response.status:
            return  # a page that broke off; no error can follow
        body = dumps(find_wire(wire).error_body(failure.status, failure.words, failure.kind))
        await response.complete(failure.status, body, failure.headers)


def _recordings(settings: GatewaySettings) -> Recordings | None:
    if not settings.record:
        return None
    from unbroken.gateway.relay.request_recording import Recordings  # noqa: PLC0415 - start-up: 0.1 s and 10 MB

    return Recordings(settings)


def _recording_pages(settings: GatewaySettings) -> RecordingPages | None:
    if not settings.record:
        return None
    from unbroken.gateway.admin.recordings_page import RecordingPages  # noqa: PLC0415 - start-up time

    return RecordingPages(settings)


def _runs(settings: GatewaySettings, limits: KeyLimits) -> RunsApp | None:
    if not settings.journal:
        return None
    from unbroken.gateway.durable_runs import served_runs  # noqa: PLC0415 - start-up time

    return served_runs(settings, limits)


def _is_runs_path(path: str) -> bool:
    return path in ("/runs", "/session") or path.startswith("/runs/")


def _wants_array(route: Route, scope: Scope) -> bool:
    return bool(route.streams) and route.http.wants_array(scope.get("query_string", b"").decode("latin-1"))
