"""Serves the page and its data (`answers`) on this machine, to this machine.

A web page that is open on this machine could reach a server on the loopback address through its own domain name (DNS
rebinding); so a request has to name the loopback address itself, and other sites get no data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from unbroken.errors import UserError
from unbroken_viewer.answers import Answer, answer, refusal
from unbroken_viewer.listing import Listing

HOST = "127.0.0.1"
_LOG = logging.getLogger("unbroken.viewer")
_LOG.addHandler(logging.NullHandler())  # no traceback on the terminal for requests that are not HTTP
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(shelf: Listing, port: int = 0) -> AsyncGenerator[str]:
    """Serves the page and yields its address."""
    runner = web.AppRunner(application(shelf), access_log=None, logger=_LOG, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise UserError(
                f"serving on port {port} failed: {error.strerror or error}; name another, or none for any that is free"
            ) from None
        yield f"http://{HOST}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def application(shelf: Listing) -> web.Application:
    async def show(request: web.Request) -> web.Response:
        path, known = request.rel_url.raw_path.removeprefix("/"), request.headers.get("if-none-match", "")
        return _response(await asyncio.to_thread(answer, shelf, path, request.query, known))

    app = web.Application(middlewares=[_only_here, _in_words])
    app.router.add_get("/{path:.*}", show)
    return app


@web.middleware
async def _only_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    if _name(request.headers.get("host", "")) not in _LOOPBACK:
        return _refuse(403, f"this page is served to this machine alone: ask for {HOST}")
    if request.path != "/" and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return _refuse(403, "recordings are shown to no other site")
    return await handler(request)


@web.middleware
async def _in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _refuse(error.status, f"{error.reason}: there is / for the page, /runs and /search for its data")


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _response(given: Answer) -> web.Response:
    return web.Response(
        body=given.body, status=given.status, headers={**given.headers, "content-type": given.content_type}
    )


def _refuse(status: int, words: str) -> web.Response:
    return _response(refusal(status, words))
