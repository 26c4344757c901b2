"""CORS: which web pages may use the API from a browser. Off unless origins are configured.

Cookies are never allowed along (`Access-Control-Allow-Credentials`): clients send their key in a header. Only the API
is open to pages of others, never the admin API, the status page, recordings, runs or metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from unbroken.asgi import Refused, Response, Scope
from unbroken_gateway.http.routes import find_route

ANY = "*"
_EXPOSED = (
    "x-unbroken-request-id",
    "x-unbroken-upstream",
    "x-unbroken-failed",
    "x-unbroken-turn",
    "x-unbroken-expires",
    "x-unbroken-repairs",
    "x-unbroken-dropped",
    "x-unbroken-reasoning",
    "x-unbroken-guardrails",
    "x-unbroken-estimated",
    "x-unbroken-budget",
    "x-request-id",
    "request-id",
    "retry-after",
)
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_NAMES = re.compile(r"[A-Za-z0-9!#$&^_.+`|~ ,-]{1,2000}")
_REMEMBERED = "600"
"""Seconds for which a browser need not ask again."""


def cors_headers(origins: Sequence[str], scope: Scope, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers for a response to this request; none if it does not come from a page that may use the API."""
    origin = headers.get("origin", "")
    if not origin or not is_api(scope["path"]) or not (ANY in origins or origin in origins):
        return {"vary": "origin"} if is_api(scope["path"]) else {}
    return {
        "access-control-allow-origin": ANY if ANY in origins else origin,
        "access-control-expose-headers": ", ".join(_EXPOSED),
        "vary": "origin",
    }


def is_preflight(scope: Scope, headers: Mapping[str, str]) -> bool:
    """Does a browser ask whether a page may send a request?"""
    return scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


async def answer_preflight(response: Response, path: str, headers: Mapping[str, str], allowed: bool) -> None:
    """`allowed`: the response has the headers of `cors_headers`; without them a browser sends nothing. Raises `Refused`
    if it is not."""
    if not allowed and not is_api(path):
        raise Refused(403, f"no web page of another site may use {path[:200]}, only the API")
    if not allowed:
        raise Refused(
            403,
            f"pages of {headers['origin'][:200]} may not use this gateway from a browser: its operator can add the "
            "origin to `cors_origins` in [server] of the configuration",
        )
    asked = headers.get("access-control-request-headers", "")
    more = {"access-control-allow-methods": _METHODS, "access-control-max-age": _REMEMBERED}
    if asked and _NAMES.fullmatch(asked):
        more["access-control-allow-headers"] = asked
    await response.complete(204, b"", more)


def is_api(path: str) -> bool:
    """Is it a path that pages of others may use?"""
    return path.startswith(("/v1/", "/v1beta/", "/v1alpha/")) or find_route(path) is not None
