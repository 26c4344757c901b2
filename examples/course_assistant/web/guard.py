"""Allows only this machine and only our own page. A web page from elsewhere can reach a server on the loopback
interface, by its address or by a domain name that resolves to it (DNS rebinding). So a request has to use the loopback
address, and to come from our own page or from no page at all. This is not a login: every user of this machine has
access."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class OnlyHere:
    """Wraps an application, and refuses requests before they reach it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (words := _objection(Headers(scope=scope))):
            await JSONResponse({"error": words}, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _objection(headers: Headers) -> str:
    host = headers.get("host", "")
    if _name(host) not in LOOPBACK:
        return "the course assistant is for this machine only: use 127.0.0.1"
    origin = headers.get("origin", "")
    fetched_by = headers.get("sec-fetch-site", "none")
    foreign = fetched_by not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate"
    if (origin and origin != f"http://{host}") or foreign:
        return "the course assistant answers only its own page: open its address in the browser"
    return ""


def _name(host: str) -> str:
    try:
        asked = urlsplit(f"//{host}")
        return "" if asked.username is not None else (asked.hostname or "").lower()
    except ValueError:
        return ""
