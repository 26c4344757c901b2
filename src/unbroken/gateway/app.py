"""`Gateway`: the ASGI application. Which path is what, who may ask, and every failure in the client's own shape.

How a question is answered is in `answering`, what can be looked at in `pages`, what HTTP needs in `edge`. Nothing here
knows a provider.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from unbroken.errors import UnbrokenError
from unbroken.gateway.answering import Account, Answering
from unbroken.gateway.arrays import ArrayFrames
from unbroken.gateway.asked import Asked
from unbroken.gateway.book import Book
from unbroken.gateway.config import store_url
from unbroken.gateway.counting import count_tokens
from unbroken.gateway.doors import GEMINI, PASSED_ON, Door, find_door, model_of, read_body, wire_of
from unbroken.gateway.edge import (
    EVENTS,
    JSON,
    ClientGone,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    Watching,
    read_headers,
)
from unbroken.gateway.edge import read_body as receive_body
from unbroken.gateway.failures import Failure, discreet, failure_of, whole_seconds
from unbroken.gateway.kept import Kept
from unbroken.gateway.keys import GatewayKey, KeyRing
from unbroken.gateway.limits import UNLIMITED, KeyLimits
from unbroken.gateway.origins import is_foreign
from unbroken.gateway.pages import Page, Pages, Visitor
from unbroken.gateway.passing import choose, failed_by, pass_through
from unbroken.gateway.profiles import find_profile
from unbroken.gateway.recent import RecentRequest
from unbroken.gateway.settings import GatewaySettings
from unbroken.gateway.stores import Store, StoreUnavailable, open_store
from unbroken.gateway.stores.patient import PatientStore
from unbroken.gateway.upstreams import Upstream, open_upstreams
from unbroken.models import close_session
from unbroken.wires.jsontext import dumps
from unbroken.wires.refusals import error_event, refusal

if TYPE_CHECKING:
    from unbroken.gateway.recording import Recordings

log = logging.getLogger("unbroken.gateway")

GONE = 499
"""The status under which a request is counted whose client went away."""
PASSED = "passed"
"""What stands for the client's wire where nothing was read of what it sent."""


class Gateway:
    """Give it to any ASGI server. Opens its models when made, its store when the server starts."""

    def __init__(
        self, settings: GatewaySettings, store: Store | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.settings = settings
        self.upstreams = open_upstreams(settings.upstreams)
        self.store: Store = PatientStore(
            store
            or open_store(
                store_url(settings.store), max_bytes=settings.store_bytes, max_entry=settings.entry_bytes, now=now
            )
        )
        self._now = now
        self._keys = KeyRing(settings.keys_file) if settings.keys else None
        self._limits = KeyLimits()
        self._book = Book(self.upstreams.values(), settings.hold_timeout, now, settings.access_log)
        kept = Kept(self.store, settings.ttl, settings.hold_timeout, now)
        self._answering = Answering(settings, kept, self._book, now)
        self._recordings = _recordings(settings)
        self._pages = Pages(settings, self.upstreams, self.store, self._book, now)

    async def aclose(self) -> None:
        """Closes the store and this loop's connections to models. A server that speaks ASGI's lifespan has it done."""
        await self.store.aclose()
        await close_session()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            raise RuntimeError(f"the gateway speaks HTTP, not {scope['type']}")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                with suppress(StoreUnavailable):  # it has been logged
                    await self.store.ping()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        response = Response(send)
        door = find_door(path)
        wire = door.wire if door is not None else wire_of(path)
        try:
            if door is not None:
                await self._open(door, scope, receive, response)
            elif (page := self._pages.find(path)) is not None:
                await self._open_page(page, scope, response)
            elif path.startswith("/v1/"):
                await self._pass(scope, receive, response)
            else:
                raise Refused(
                    404, f"there is no path {path[:200]}: GET /openapi.json says what there is", kind="unknown_url"
                )
        except ClientGone:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the rest
            await self._refuse(response, wire, self._failure(error))

    async def _open_page(self, page: Page, scope: Scope, response: Response) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, f"{scope['path']} is read with GET", {"allow": "GET, HEAD"})
        headers = read_headers(scope)
        if page.private or self._keys is None:
            key = self._admit(headers, scope)
        else:
            key = self._keys.find(_secret(headers, scope))
        await page.show(response, Visitor(key, may_see=self._keys is None or key is not None))

    # Questions

    async def _open(self, door: Door, scope: Scope, receive: Receive, response: Response) -> None:
        if scope["method"] != "POST":
            raise Refused(405, f"{scope['path'][:200]} is asked with POST", {"allow": "POST"})
        outlet = _Outlet(response, as_array=_wants_array(door, scope))

        async def answer(visit: _Visit, data: bytes) -> None:
            body = read_body(data)
            upstream = self._find(model_of(door, body), visit.key)
            visit.alias, visit.upstream_wire = upstream.alias, upstream.wire
            asked = self._asked(door, body, data, upstream, visit.key, visit.headers)
            if door.wanted == "count":
                await count_tokens(asked, response)
            else:
                if self._recordings is not None:
                    visit.account.recording = self._recordings.sample(_secret(visit.headers, scope))
                await self._answering.answer(asked, outlet, visit.account)
                await outlet.end()

        await self._handle(_Visit(door.wire, read_headers(scope), self._now()), scope, receive, outlet, answer)

    async def _pass(self, scope: Scope, receive: Receive, response: Response) -> None:
        """Whatever else a client of OpenAI asks for goes to a provider of its wire, and its answer back."""

        async def answer(visit: _Visit, data: bytes) -> None:
            alias, model, data = choose(scope["path"], visit.headers, data, self.upstreams.values(), visit.key)
            visit.alias, visit.upstream_wire = alias, model.wire
            await pass_through(scope, visit.headers, data, model, response)
            visit.account.error_kind = failed_by(response.status)
            if visit.account.error_kind:
                visit.account.error = f"provider `{model.endpoint.provider}` answered {response.status}"

        visit = _Visit(PASSED, read_headers(scope), self._now())
        await self._handle(visit, scope, receive, _Outlet(response), answer, wire_of(scope["path"]))

    async def _handle(
        self,
        visit: _Visit,
        scope: Scope,
        receive: Receive,
        outlet: _Outlet,
        answer: Callable[[_Visit, bytes], Awaitable[None]],
        wire: str = "",
    ) -> None:
        """`wire`: in whose shape errors are told, if it is not the client's."""
        failure: Failure | None = None
        cause: BaseException | None = None
        self._book.begin()
        try:
            key = visit.key = self._admit(visit.headers, scope)
            with self._limits.admit(key) if key is not None else UNLIMITED as refused:
                if refused is not None:
                    raise Refused(429, refused.words, {"retry-after": whole_seconds(refused.retry_after)})
                settings = self.settings
                data = await receive_body(visit.headers, receive, settings.max_body, settings.body_timeout)
                with Watching(scope, receive):
                    await answer(visit, data)
            if visit.account.error_kind:
                _log_failed(visit, visit.account.error)
        except ClientGone as error:
            cause, failure = error, Failure(GONE, "the client went away")
        except asyncio.CancelledError as error:  # the time that a stop may take is over
            cause, failure = error, Failure(503, "the gateway was stopped")
            await outlet.fail(wire or visit.client_wire, failure)
            raise
        except Exception as error:  # noqa: BLE001 - as in `_serve`
            cause, failure = error, self._failure(error, visit)
            await outlet.fail(wire or visit.client_wire, failure)
        finally:
            if visit.account.recording is not None:
                visit.account.recording.end(cause, failure.words if failure is not None else "")
            failed = visit.account.error_kind or (failure.upstream if failure is not None else "")
            self._book.end(visit.told(outlet.status, failure), failed)

    def _failure(self, error: Exception, visit: _Visit | None = None) -> Failure:
        failure = failure_of(error)
        if not isinstance(error, UnbrokenError | Refused):
            log.error("answering a request failed", exc_info=error)
        elif failure.upstream:
            _log_failed(visit, failure.words)
        return failure if self._keys is None else discreet(error, failure)

    def _asked(
        self,
        door: Door,
        body: dict[str, object],
        data: bytes,
        upstream: Upstream,
        key: GatewayKey | None,
        headers: Mapping[str, str],
    ) -> Asked:
        name = key.name if key is not None else ""
        profile = find_profile(self.settings.clients, name, headers)
        return Asked(
            door,
            body,
            data,
            upstream,
            scope=name,
            serial=profile.serial if profile is not None else upstream.serial,
            headers={name: headers[name] for name in PASSED_ON if name in headers},
        )

    def _find(self, model: str, key: GatewayKey | None) -> Upstream:
        upstream = self.upstreams.get(model)
        if upstream is not None and (key is None or key.allows(model)):
            return upstream
        allowed = [alias for alias in self.upstreams if key is None or key.allows(alias)]
        raise Refused(404, f"there is no model {model[:100]!r} here; there are: {', '.join(allowed)}")

    def _admit(self, headers: Mapping[str, str], scope: Scope) -> GatewayKey | None:
        if self._keys is None:
            if not self.settings.open_to_all and is_foreign(headers, self.settings.host):
                raise Refused(403, "web pages of others may not use this gateway: turn keys on, and send one")
            return None
        secret = _secret(headers, scope)
        if not secret:
            raise Refused(401, "this gateway wants a key: send it as `Authorization: Bearer …` or as your client does")
        key = self._keys.find(secret)
        if key is None:
            raise Refused(401, "this gateway does not know the key that was sent: `unbroken keys create` makes one")
        return key

    async def _refuse(self, response: Response, wire: str, failure: Failure) -> None:
        if response.status:
            return  # a page that broke off; nothing more can be said
        body = dumps(refusal(wire, failure.status, failure.words, failure.kind))
        await response.whole(failure.status, body, failure.headers)


def _recordings(settings: GatewaySettings) -> Recordings | None:
    """What only they need takes a tenth of a second to load, and ten megabytes."""
    return importlib.import_module("unbroken.gateway.recording").Recordings(settings) if settings.record else None


@dataclass(slots=True)
class _Visit:
    """A request from its head to the end of its answer: what is known of it by now."""

    client_wire: str
    headers: Mapping[str, str]
    at: float
    account: Account = field(default_factory=lambda: Account(time.perf_counter()))
    key: GatewayKey | None = None
    alias: str = ""
    upstream_wire: str = ""

    @property
    def key_name(self) -> str:
        return self.key.name if self.key is not None else ""

    def told(self, status: int, failure: Failure | None) -> RecentRequest:
        account = self.account
        return RecentRequest(
            at=self.at,
            client_wire=self.client_wire,
            alias=self.alias,
            status=failure.status if failure is not None else status or GONE,
            seconds=time.perf_counter() - account.began,
            key=self.key_name,
            upstream_wire=self.upstream_wire,
            streamed=account.stream,
            first_token=account.first_after,
            calls=account.calls,
            handed=account.handed,
            repairs=account.repairs,
            restarts=tuple(account.restarts),
            error=failure.words if failure is not None else account.error,
            input_tokens=account.usage.input_tokens if account.usage is not None else 0,
            output_tokens=account.usage.output_tokens if account.usage is not None else 0,
        )


class _Outlet:
    """An answer as HTTP: a stream as it comes, or one body with its length."""

    def __init__(self, response: Response, as_array: bool = False) -> None:
        self._response = response
        self._stream = False
        self._frames = ArrayFrames() if as_array else None
        self._headers: Mapping[str, str] = {}
        self._body = b""

    @property
    def status(self) -> int:
        return self._response.status

    async def begin(self, stream: bool, headers: Mapping[str, str]) -> None:
        self._stream = stream
        self._headers = headers
        if stream:
            await self._response.begin(200, JSON if self._frames is not None else EVENTS, headers, None)

    async def send(self, data: bytes) -> None:
        if not self._stream:
            self._body += data
            return
        if self._frames is not None:
            data = self._frames.feed(data)
        await self._response.send(data)

    async def end(self) -> None:
        if self._stream:
            await self._response.send(self._frames.end() if self._frames is not None else b"", more=False)
        else:
            await self._response.whole(200, self._body, self._headers)

    async def fail(self, wire: str, failure: Failure) -> None:
        """Before anything was sent: an HTTP error. After that: an error in the stream, as its wire has it."""
        if not self._response.status:
            body = dumps(refusal(wire, failure.status, failure.words, failure.kind))
            await self._response.whole(failure.status, body, failure.headers)
        elif self._stream:
            await self.send(error_event(wire, failure.status, failure.words, failure.kind))
            await self.end()


def _secret(headers: Mapping[str, str], scope: Scope) -> str:
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and given.strip():
        return given.strip()
    if found := headers.get("x-api-key") or headers.get("x-goog-api-key") or headers.get("api-key"):
        return found.strip()
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("key", [""])[0]


def _wants_array(door: Door, scope: Scope) -> bool:
    """Without `alt=sse`, Gemini streams one JSON array."""
    return door.wire == GEMINI and bool(door.streams) and b"alt=sse" not in scope.get("query_string", b"")


def _log_failed(visit: _Visit | None, words: str) -> None:
    alias, key = (visit.alias, visit.key_name) if visit is not None else ("", "")
    log.warning("a model failed alias=%s key=%s: %s", alias or "-", key or "-", words)
