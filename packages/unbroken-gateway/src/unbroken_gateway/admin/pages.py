"""The pages that operators and clients can read: health, models, metrics, OpenAPI, status. Read only."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from unbroken import __version__
from unbroken.asgi import Refused, Response, Scope, read_headers
from unbroken_gateway.admin.openapi import openapi
from unbroken_gateway.admin.stats import RecentRequest, Stats
from unbroken_gateway.admin.status_page import GatewayStatus, StoreStatus, View, render_page, status_json, status_page
from unbroken_gateway.http.admission import Admission, KeyLimits, sent_key
from unbroken_gateway.keys import GatewayKey, KeyRing
from unbroken_gateway.reloading import Reloader
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.switch import MeteringSwitch
from unbroken_gateway.stores import StoreUnavailable, store_url
from unbroken_gateway.stores.marked import MarkedStore, StoreEmptied
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.wires.jsontext import dumps

_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_LISTS = ("/v1/models", "/v1beta/models")


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller of a page. Without keys, everybody may see everything."""

    key: GatewayKey | None
    has_keys: bool
    """Whether the gateway requires keys."""

    @property
    def may_see(self) -> bool:
        """Whether private pages are visible. They show only the models and requests of the caller's key."""
        return not self.has_keys or self.key is not None

    @property
    def is_operator(self) -> bool:
        return not self.has_keys or (self.key is not None and self.key.operator)

    def may_ask(self, alias: str) -> bool:
        return self.key is None or self.key.allows(alias)


@dataclass(frozen=True, slots=True)
class Page:
    show: Callable[[Response, Viewer], Awaitable[None]]
    private: bool = True
    """Needs a key, if the gateway has keys."""
    operators: bool = False
    """Needs an operator's key, because it shows all keys."""


class Pages:
    def __init__(
        self,
        settings: GatewaySettings,
        upstreams: Mapping[str, Upstream],
        store: MarkedStore,
        stats: Stats,
        limits: KeyLimits,
        reloader: Reloader | None,
        now: Callable[[], float],
        meter: MeteringSwitch,
        keys: KeyRing | None,
    ) -> None:
        self._meter = meter
        self._keys = keys
        self._settings = settings
        self._upstreams = upstreams
        self._store = store
        self._stats = stats
        self._limits = limits
        self._reloader = reloader
        self._now = now
        self._pages = {
            "/": Page(self._show_status, private=False),
            "/healthz": Page(self._send_health, private=False),
            "/readyz": Page(self._send_readiness, private=False),
            "/openapi.json": Page(self._describe, private=False),
            "/status.json": Page(self._send_status),
            "/spend": Page(self._show_spend, private=False),
            "/spend.json": Page(self._send_spend),
            "/metrics": Page(self._send_metrics, operators=True),
            **dict.fromkeys(_LISTS, Page(self._list_models)),
        }

    def find(self, path: str) -> Page | None:
        if (page := self._pages.get(path)) is not None:
            return page
        for models in _LISTS:
            if path.startswith(f"{models}/"):
                return self._model_page(path[len(models) + 1 :])
        return None

    async def _send_health(self, response: Response, viewer: Viewer) -> None:
        await response.complete(200, b'{"status":"ok"}')

    async def _send_readiness(self, response: Response, viewer: Viewer) -> None:
        """Ready means that turns can be stored. Models are not checked here."""
        if self._stats.is_stopping:
            await response.complete(503, b'{"status":"not ready","reason":"the gateway is stopping"}')
            return
        try:
            await self._store.ping()
        except StoreUnavailable as error:
            # That it was emptied is no secret: requests are refused with the same words. Other errors have its address.
            known = viewer.is_operator or isinstance(error, StoreEmptied)
            reason = str(error) if known else "the store cannot be used"
            await response.complete(503, dumps({"status": "not ready", "reason": reason}))
            return
        await response.complete(200, b'{"status":"ready"}')

    async def _list_models(self, response: Response, viewer: Viewer) -> None:
        """One body for the clients of all wires: OpenAI and Anthropic read `data`, Gemini reads `models`."""
        aliases = [alias for alias in self._upstreams if viewer.may_ask(alias)]
        ends = {"first_id": aliases[0] if aliases else None, "last_id": aliases[-1] if aliases else None}
        listed = {"data": list(map(self._model, aliases)), "models": list(map(_gemini_model, aliases))}
        await response.complete(200, dumps({"object": "list", **listed, "has_more": False, **ends}))

    def _model_page(self, alias: str) -> Page:
        """One body for the clients of all wires, because some paths are those of several."""

        async def show(response: Response, viewer: Viewer) -> None:
            if alias not in self._upstreams or not viewer.may_ask(alias):
                raise Refused(404, f"there is no model {alias[:100]!r} here: GET /v1/models lists the models")
            await response.complete(200, dumps({**self._model(alias), **_gemini_model(alias)}))

        return Page(show)

    def _model(self, alias: str) -> dict[str, Any]:
        began = self._stats.started
        return {
            "id": alias,
            "object": "model",
            "type": "model",
            "display_name": alias,
            "created": int(began),
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "owned_by": "unbroken",
            "lifecycle": "active",
        }

    async def _describe(self, response: Response, viewer: Viewer) -> None:
        aliases = [alias for alias in self._upstreams if viewer.may_see and viewer.may_ask(alias)]
        await response.complete(200, dumps(openapi(aliases, runs=bool(self._settings.journal))))

    async def _show_status(self, response: Response, viewer: Viewer) -> None:
        status = await self._status(viewer) if viewer.may_see else None
        body, headers = status_page(status)
        await response.complete(200, body, headers, b"text/html; charset=utf-8")

    async def _send_status(self, response: Response, viewer: Viewer) -> None:
        await response.complete(200, status_json(await self._status(viewer)), {"cache-control": "no-store"})

    async def _show_spend(self, response: Response, viewer: Viewer) -> None:
        view = (await self._spend(viewer))[0] if viewer.may_see else None
        body, headers = render_page(view)
        await response.complete(200, body, headers, b"text/html; charset=utf-8")

    async def _send_spend(self, response: Response, viewer: Viewer) -> None:
        view, data = await self._spend(viewer)
        await response.complete(200, dumps({**data, "view": asdict(view)}), {"cache-control": "no-store"})

    async def _spend(self, viewer: Viewer) -> tuple[View, dict[str, Any]]:
        """With what this process has not written yet. Keys that are not an operator's see their own."""
        from unbroken_gateway.admin.spend_page import read_page  # noqa: PLC0415 - start-up time

        metering = self._meter.metering
        if metering is not None:
            await metering.ledger.flush()
        own = viewer.key if viewer.key is not None and not viewer.is_operator else None
        keys = self._keys.all() if self._keys is not None else ()
        counts = metering is not None and metering.records
        return await read_page(self._store, self._settings, keys, self._now(), own, counts)

    async def _send_metrics(self, response: Response, viewer: Viewer) -> None:
        body, content_type = self._stats.counts()
        await response.complete(200, body, content_type=content_type.encode())

    async def _status(self, viewer: Viewer) -> GatewayStatus:
        if viewer.key is not None and not viewer.is_operator:
            return self._own_status(viewer.key)
        kind = store_url(self._settings.store).partition(":")[0]
        try:
            stats = await self._store.stats()
            store = StoreStatus(kind, stats.entries, stats.bytes)
        except StoreUnavailable as error:
            store = StoreStatus(kind, problem=str(error))
        return GatewayStatus(
            version=__version__,
            now=self._now(),
            started=self._stats.started,
            upstreams=self._stats.upstreams(),
            store=store,
            in_flight=self._stats.in_flight,
            held=self._stats.pending.listed(),
            counts=self._stats.counted(),
            recent=self._shown(self._stats.recent.latest()),
            keys=self._settings.keys,
            workers=self._settings.workers,
            reload=None if self._reloader is None else self._reloader.last,
            alert=self._store.problem,
            cost=self._stats.counted().cost if self._counts_cost else None,
        )

    def _shown(self, requests: tuple[RecentRequest, ...]) -> tuple[RecentRequest, ...]:
        """A gateway that is open to all does not show its recordings."""
        if not self._settings.open_to_all or self._settings.keys:
            return requests
        return tuple(replace(request, recording="") for request in requests)

    def _own_status(self, key: GatewayKey) -> GatewayStatus:
        return GatewayStatus(
            version=__version__,
            now=self._now(),
            started=self._stats.started,
            upstreams=self._stats.upstreams_of(key),
            in_flight=self._limits.in_flight(key),
            held=self._stats.pending.listed(key.id),
            counts=self._stats.counted(key.id),
            recent=tuple(replace(request, recording="") for request in self._stats.recent.latest(key.id)),
            keys=True,
            key=key.name,
            workers=self._settings.workers,
            cost=self._stats.counted(key.id).cost if self._counts_cost else None,
        )

    @property
    def _counts_cost(self) -> bool:
        return self._meter.metering is not None and self._meter.metering.records


async def open_page(page: Page, scope: Scope, response: Response, admission: Admission) -> None:
    """Shows a page if the caller may see it; raises `Refused` otherwise."""
    keys = admission.keys
    if scope["method"] not in ("GET", "HEAD"):
        raise Refused(405, f"{scope['path']} needs GET", {"allow": "GET, HEAD"})
    headers = read_headers(scope)
    key = None
    if page.private or keys is None:
        key = admission.admit(headers, scope)
    else:
        with suppress(StoreUnavailable):  # the keys are there: a process whose store is away is still alive
            key = keys.find(sent_key(headers, scope))
    if page.operators and key is not None and not key.operator:
        raise Refused(
            403, f"{scope['path']} shows all keys: it needs an operator's key (`unbroken keys create --operator`)"
        )
    await page.show(response, Viewer(key, has_keys=keys is not None))


def _gemini_model(alias: str) -> dict[str, Any]:
    return {"name": f"models/{alias}", "displayName": alias, "supportedGenerationMethods": list(_METHODS)}
