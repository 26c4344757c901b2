"""What can be looked at: health, models, metrics, the description of the interface, the status page. Read only."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unbroken import __version__
from unbroken.gateway.book import Book
from unbroken.gateway.config import store_url
from unbroken.gateway.edge import Refused, Response
from unbroken.gateway.keys import GatewayKey
from unbroken.gateway.openapi import openapi
from unbroken.gateway.settings import GatewaySettings
from unbroken.gateway.status import GatewayStatus, StoreStatus, status_json, status_page
from unbroken.gateway.stores import Store, StoreUnavailable
from unbroken.gateway.upstreams import Upstream
from unbroken.wires.jsontext import dumps

_METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_LISTS = ("/v1/models", "/v1beta/models")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks. Without keys, everybody may see everything."""

    key: GatewayKey | None
    may_see: bool

    def may_ask(self, alias: str) -> bool:
        return self.key is None or self.key.allows(alias)


@dataclass(frozen=True, slots=True)
class Page:
    show: Callable[[Response, Visitor], Awaitable[None]]
    private: bool = True
    """Where the gateway has keys, one is needed to see it at all."""


class Pages:
    def __init__(
        self,
        settings: GatewaySettings,
        upstreams: Mapping[str, Upstream],
        store: Store,
        book: Book,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._upstreams = upstreams
        self._store = store
        self._book = book
        self._now = now
        self._pages = {
            "/": Page(self._show_status, private=False),
            "/healthz": Page(self._say_healthy, private=False),
            "/readyz": Page(self._say_ready, private=False),
            "/openapi.json": Page(self._describe, private=False),
            "/status.json": Page(self._tell_status),
            "/metrics": Page(self._tell_metrics),
            **dict.fromkeys(_LISTS, Page(self._list_models)),
        }

    def find(self, path: str) -> Page | None:
        if (page := self._pages.get(path)) is not None:
            return page
        for models in _LISTS:
            if path.startswith(f"{models}/"):
                return self._model_page(path[len(models) + 1 :], gemini="beta" in models)
        return None

    async def _say_healthy(self, response: Response, visitor: Visitor) -> None:
        await response.whole(200, b'{"status":"ok"}')

    async def _say_ready(self, response: Response, visitor: Visitor) -> None:
        """Ready means that turns can be kept; models are asked when somebody asks for them."""
        try:
            await self._store.ping()
        except StoreUnavailable as error:
            reason = str(error) if visitor.may_see else "the store cannot be used"
            await response.whole(503, dumps({"status": "not ready", "reason": reason}))
            return
        await response.whole(200, b'{"status":"ready"}')

    async def _list_models(self, response: Response, visitor: Visitor) -> None:
        """In the shapes of all wires at once: OpenAI and Anthropic read `data`, Gemini `models`."""
        aliases = [alias for alias in self._upstreams if visitor.may_ask(alias)]
        ends = {"first_id": aliases[0] if aliases else None, "last_id": aliases[-1] if aliases else None}
        listed = {"data": list(map(self._model, aliases)), "models": list(map(_gemini_model, aliases))}
        await response.whole(200, dumps({"object": "list", **listed, "has_more": False, **ends}))

    def _model_page(self, alias: str, gemini: bool) -> Page:
        async def show(response: Response, visitor: Visitor) -> None:
            if alias not in self._upstreams or not visitor.may_ask(alias):
                raise Refused(404, f"there is no model {alias[:100]!r} here: GET /v1/models lists those that there are")
            await response.whole(200, dumps(_gemini_model(alias) if gemini else self._model(alias)))

        return Page(show)

    def _model(self, alias: str) -> dict[str, Any]:
        began = self._book.started
        return {
            "id": alias,
            "object": "model",
            "type": "model",
            "display_name": alias,
            "created": int(began),
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "owned_by": "unbroken",
        }

    async def _describe(self, response: Response, visitor: Visitor) -> None:
        aliases = [alias for alias in self._upstreams if visitor.may_see and visitor.may_ask(alias)]
        await response.whole(200, dumps(openapi(aliases)))

    async def _show_status(self, response: Response, visitor: Visitor) -> None:
        body, headers = status_page(await self._status(), shows=visitor.may_see)
        await response.whole(200, body, headers, b"text/html; charset=utf-8")

    async def _tell_status(self, response: Response, visitor: Visitor) -> None:
        await response.whole(200, status_json(await self._status()), {"cache-control": "no-store"})

    async def _tell_metrics(self, response: Response, visitor: Visitor) -> None:
        body, content_type = self._book.counts()
        await response.whole(200, body, content_type=content_type.encode())

    async def _status(self) -> GatewayStatus:
        kind = store_url(self._settings.store).partition(":")[0]
        try:
            stats = await self._store.stats()
            store = StoreStatus(kind, stats.entries, stats.bytes)
        except StoreUnavailable as error:
            store = StoreStatus(kind, problem=str(error))
        held, since = self._book.held()
        return GatewayStatus(
            version=__version__,
            now=self._now(),
            started=self._book.started,
            upstreams=self._book.upstreams(),
            store=store,
            in_flight=self._book.in_flight,
            held_turns=held,
            held_since=since,
            recent=self._book.recent.latest(),
            keys=self._settings.keys,
            workers=self._settings.workers,
        )


def _gemini_model(alias: str) -> dict[str, Any]:
    return {"name": f"models/{alias}", "displayName": alias, "supportedGenerationMethods": list(_METHODS)}
