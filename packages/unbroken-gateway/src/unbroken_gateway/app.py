"""`Gateway`, the ASGI application: finds the route, and reports every error in the client's wire.

`request_handling` checks the key and reads the body, `model_requests` and `forwarded_requests` answer, `admin.pages`
serves the pages. Nothing here knows a provider.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from unbroken.asgi import (
    REQUEST_ID,
    ClientGone,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    connection_of,
    new_request_id,
    read_headers,
)
from unbroken.models.pricing import load_prices
from unbroken.models.sessions import close_session
from unbroken_gateway.admin.pages import Pages, open_page
from unbroken_gateway.admin.stats import Stats
from unbroken_gateway.forwarded_requests import ForwardedRequests
from unbroken_gateway.http import cors
from unbroken_gateway.http.admission import Admission, KeyLimits, sent_key
from unbroken_gateway.http.routes import error_wire, find_route, find_stored
from unbroken_gateway.http.websocket import HandshakeResponse, WebSocket
from unbroken_gateway.keys import KeyRing
from unbroken_gateway.model_requests import ModelRequests
from unbroken_gateway.reloading import ConfigSource, Reloader
from unbroken_gateway.request_handling import RequestHandling
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.stores import Store, StoreUnavailable, open_store, store_url
from unbroken_gateway.stores.marked import MarkedStore
from unbroken_gateway.stores.store import CircuitBreakerStore
from unbroken_gateway.turns.response_store import LastResponse
from unbroken_gateway.upstreams.catalog import Catalog
from unbroken_gateway.upstreams.upstream import Upstream

if TYPE_CHECKING:
    from unbroken_durable.web import RunsApp
    from unbroken_gateway.additions import Added, Additions
    from unbroken_gateway.admin.recordings_page import RecordingPages
    from unbroken_gateway.relay.request_recording import Recordings
    from unbroken_gateway.spending.metering import Metering
    from unbroken_gateway.stored_keys import StoredKeyRing


@dataclass(frozen=True, slots=True)
class _Configured:
    """What the configuration decides. A reload replaces all of it at once; requests in flight keep theirs."""

    settings: GatewaySettings
    catalog: Catalog
    admission: Admission
    handling: RequestHandling
    models: ModelRequests
    forwarded: ForwardedRequests
    pages: Pages
    recordings: Recordings | None
    recording_pages: RecordingPages | None


class Gateway:
    """The ASGI application: give it to any ASGI server. It opens its models and its store when it is created. `source`:
    where its settings come from, so that it can read them again."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store | None = None,
        now: Callable[[], float] = time.time,
        *,
        source: ConfigSource | None = None,
    ) -> None:
        catalog = Catalog(settings.upstreams)
        opened: Store = store or open_store(
            store_url(settings.store), max_bytes=settings.store_bytes, max_entry=settings.entry_bytes, now=now
        )
        # Of several parts, each has a circuit breaker of its own.
        self.store = MarkedStore(CircuitBreakerStore(opened) if opened.parts == 1 else opened)
        self._now = now
        self._limits = KeyLimits()
        self._stats = Stats(catalog.upstreams.values(), settings.hold_timeout, now)
        self._stats.log_requests(settings.access_log, settings.access_share)
        self._reloader = None if source is None else Reloader(source, self, self._stats, now)
        self._additions: Additions | None = _additions(settings, source)
        self._following: asyncio.Task[None] | None = None
        admission = Admission(settings, _keys(settings))
        self._runs = _runs(settings, self._limits, admission.keys)
        handling = RequestHandling(settings, self.store, admission, self._limits, self._stats, now)
        self._configured = self._configure(
            settings, catalog, handling, _recordings(settings), _recording_pages(settings)
        )

    @property
    def settings(self) -> GatewaySettings:
        """Those in force for new requests."""
        return self._configured.settings

    @property
    def upstreams(self) -> dict[str, Upstream]:
        """The models by alias, for new requests."""
        return self._configured.catalog.upstreams

    @property
    def metering(self) -> Metering | None:
        """Counts what requests cost. None while nothing needs it."""
        return self._configured.handling.meter.metering

    def _configure(
        self,
        settings: GatewaySettings,
        catalog: Catalog,
        handling: RequestHandling,
        recordings: Recordings | None,
        recording_pages: RecordingPages | None,
    ) -> _Configured:
        handling.meter.use(settings, catalog.upstreams)
        return _Configured(
            settings,
            catalog,
            handling.admission,
            handling,
            ModelRequests(handling, catalog, recordings),
            ForwardedRequests(handling, catalog),
            Pages(
                settings,
                catalog.upstreams,
                self.store,
                self._stats,
                self._limits,
                self._reloader,
                self._now,
                handling.meter,
                handling.admission.keys,
            ),
            recordings,
            recording_pages,
        )

    async def use(self, settings: GatewaySettings) -> None:
        """Uses these settings for new requests. Raises `UnbrokenError` if they name something that cannot be opened;
        then nothing changes. Settings in `NEEDS_RESTART` must be as they were."""
        old = self._configured

        def open_all() -> tuple[Catalog, KeyRing | None, Recordings | None, RecordingPages | None]:
            catalog = Catalog(settings.upstreams, old.catalog)
            keys = _keys(settings, old.admission.keys)
            return catalog, keys, _recordings(settings), _recording_pages(settings)

        catalog, keys, recordings, recording_pages = await asyncio.to_thread(open_all)
        await _load_prices(catalog, recordings, self._now())
        if settings.keys_in_store and keys is not None and keys is not old.admission.keys:
            await cast("StoredKeyRing", keys).read(self.store)
        # From here on nothing fails, and nothing waits.
        handling = old.handling.with_settings(settings, Admission(settings, keys))
        if self._runs is not None:
            from unbroken_gateway.durable_runs import guard_runs  # noqa: PLC0415 - start-up time

            guard_runs(self._runs, settings, keys, self._limits)
        self._stats.use(catalog.upstreams.values(), settings.hold_timeout)
        self._stats.log_requests(settings.access_log, settings.access_share)
        self._configured = self._configure(settings, catalog, handling, recordings, recording_pages)
        old.catalog.stop_probes()
        catalog.start_probes()
        if self._additions is None:
            self._additions = _additions(settings, self._reloader)
        elif not settings.admin_shared:
            self._additions = None
        self._follow_store()

    @property
    def added(self) -> Added:
        """What the admin API has added to the configuration."""
        return {} if self._additions is None else self._additions.tables

    def _follow_store(self) -> None:
        """Reads what is shared through the store from time to time."""
        if self._following is None:
            from unbroken_gateway.additions import follow  # noqa: PLC0415 - start-up time

            work = follow(
                self.store,
                self._stored_keys,
                lambda: self._additions,
                self._reload,
                lambda: self.settings,
            )
            self._following = asyncio.get_running_loop().create_task(work, name="unbroken-follow")

    async def _read_store(self) -> None:
        if self._stored_keys() is not None or self._additions is not None:
            from unbroken_gateway.additions import read_once  # noqa: PLC0415 - start-up time

            await read_once(self.store, self._stored_keys(), self._additions, self._reload)

    def _stored_keys(self) -> StoredKeyRing | None:
        keys = self._configured.admission.keys
        return cast("StoredKeyRing", keys) if self.settings.keys_in_store and keys is not None else None

    async def _reload(self) -> None:
        if self._reloader is not None:
            await self._reloader.reload()

    @property
    def can_reload(self) -> bool:
        """Whether it knows where its settings came from."""
        return self._reloader is not None

    def reload(self) -> None:
        """Begins to read the configuration again."""
        if self._reloader is not None:
            self._reloader.start()

    async def aclose(self) -> None:
        """Closes the store and this loop's connections to models. A server that supports ASGI lifespan calls it."""
        if self._reloader is not None:
            self._reloader.stop()
        if self._following is not None:
            self._following.cancel()
        self._configured.catalog.stop_probes()
        await self._configured.handling.aclose()
        if self._runs is not None:
            await self._runs.aclose()
        await self.store.aclose()
        await close_session()

    def fail_readiness(self) -> None:
        """From now on `/readyz` is a 503: the gateway is about to stop."""
        self._stats.is_stopping = True

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
                await self._read_store()
                self._follow_store()
                configured = self._configured
                configured.catalog.start_probes()
                configured.handling.start()
                await _load_prices(configured.catalog, configured.recordings, self._now())
                if self.metering is not None and self.metering.records:
                    await self.metering.start()
                if self._reloader is not None:
                    self._reloader.start_watching()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answers_preflight(self, scope: Scope, response: Response) -> bool:
        """Adds the headers for web pages to the response. True if the request only asked for them. No page may use the
        admin API."""
        if scope["path"].startswith("/admin/"):
            return False
        headers = read_headers(scope)
        more = cors.cors_headers(self.settings.cors_origins, scope, headers)
        response.add_headers(more)
        if not cors.is_preflight(scope, headers):
            return False
        await cors.answer_preflight(response, scope["path"], headers, "access-control-allow-origin" in more)
        return True

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        id = new_request_id()
        REQUEST_ID.set(id)
        response = Response(send, {"x-unbroken-request-id": id}, connection_of(scope))
        route = find_route(path)
        wire = route.wire if route is not None else error_wire(path)
        configured = self._configured
        try:
            if configured.settings.cors_origins and await self._answers_preflight(scope, response):
                return
            if route is not None:
                await configured.models.open(route, scope, receive, response)
            elif (page := configured.pages.find(path)) is not None:
                await open_page(page, scope, response, configured.admission)
            elif (pages := configured.recording_pages) is not None and (path + "/").startswith("/recordings/"):
                await open_page(pages.find(scope), scope, response, configured.admission)
            elif self._runs is not None and _is_runs_path(path):
                await self._runs(scope, receive, send)
            elif path.startswith("/admin/"):
                await self._administer(scope, receive, response)
            elif (stored := find_stored(path)) is not None:
                await configured.forwarded.open_stored(*stored, scope, receive, response)
            elif path.startswith("/v1/"):
                await configured.forwarded.pass_through(scope, receive, response)
            else:
                raise Refused(
                    404, f"there is no path {path[:200]}: GET /openapi.json lists the paths", kind="unknown_url"
                )
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001 - the client always gets an answer, and the log the details
            await configured.handling.refuse(response, wire, configured.handling.failure(error))

    async def _administer(self, scope: Scope, receive: Receive, response: Response) -> None:
        from unbroken_gateway.admin.api import AdminApi, Administered  # noqa: PLC0415 - start-up: loads pydantic

        configured = self._configured
        parts = Administered(
            configured.settings,
            configured.admission,
            configured.catalog,
            configured.handling.turn_store,
            self.store,
            self._stats,
            self._reloader,
            self._additions,
            self._now,
        )
        await AdminApi(parts).answer(scope, receive, response)

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A connection for requests of one wire. It is admitted as any request, and each of its requests again."""
        route = find_route(scope["path"])
        last = LastResponse()

        async def answer(asked: Scope, receive: Receive, send: Send) -> None:
            assert route is not None
            REQUEST_ID.set(new_request_id())
            response = Response(send)
            configured = self._configured
            try:
                await configured.models.open(route, asked, receive, response, last)
            except Exception as error:  # noqa: BLE001 - as in `_serve`
                await configured.handling.refuse(response, route.wire, configured.handling.failure(error))

        await receive()  # the handshake
        if scope["path"] == "/v1/realtime":
            REQUEST_ID.set(new_request_id())
            await self._configured.forwarded.realtime(scope, receive, send)
            return
        handling = self._configured.handling
        try:
            handling.admission.admit(read_headers(scope), scope)
            if route is None or scope["path"] not in route.http.socket_paths:
                raise Refused(404, f"there is no WebSocket at {scope['path'][:200]}", kind="unknown_url")
        except (Refused, StoreUnavailable) as error:  # keys may be in the store
            refusal = HandshakeResponse(scope, send).response()
            await handling.refuse(refusal, error_wire(scope["path"]), handling.failure(error))
            return

        def is_admitted() -> bool:
            keys = self._configured.admission.keys
            return keys is None or keys.find(sent_key(read_headers(scope), scope)) is not None

        idle = handling.settings.websocket_idle
        await WebSocket(scope, receive, send, answer, handling.large_memory, is_admitted, idle=idle).serve()


async def _load_prices(catalog: Catalog, recordings: Recordings | None, now: float) -> None:
    """If requests are recorded, the first one would wait for it otherwise."""
    if recordings is not None:
        for upstream in catalog.upstreams.values():
            await load_prices(upstream.model.name, now)


def _recordings(settings: GatewaySettings) -> Recordings | None:
    if not settings.record:
        return None
    from unbroken_gateway.relay.request_recording import Recordings  # noqa: PLC0415 - start-up: 0.1 s and 10 MB

    return Recordings(settings)


def _recording_pages(settings: GatewaySettings) -> RecordingPages | None:
    if not settings.record:
        return None
    from unbroken_gateway.admin.recordings_page import RecordingPages  # noqa: PLC0415 - start-up time

    return RecordingPages(settings)


def _keys(settings: GatewaySettings, before: KeyRing | None = None) -> KeyRing | None:
    """`before`: those of the configuration before."""
    if not settings.keys:
        return None
    if not settings.keys_in_store:
        return KeyRing(settings.keys_file, look_every=settings.look_every)
    from unbroken_gateway.stored_keys import StoredKeyRing  # noqa: PLC0415 - start-up time

    if not isinstance(before, StoredKeyRing):
        return StoredKeyRing(settings.keys_keep)
    before.keep = settings.keys_keep
    return before


def _additions(settings: GatewaySettings, source: object) -> Additions | None:
    if not settings.admin_shared or source is None:
        return None
    from unbroken_gateway.additions import Additions  # noqa: PLC0415 - start-up time

    return Additions()


def _runs(settings: GatewaySettings, limits: KeyLimits, keys: KeyRing | None) -> RunsApp | None:
    if not settings.journal:
        return None
    from unbroken_gateway.durable_runs import served_runs  # noqa: PLC0415 - start-up time

    return served_runs(settings, limits, keys)


def _is_runs_path(path: str) -> bool:
    return path in ("/runs", "/session") or path.startswith("/runs/")
