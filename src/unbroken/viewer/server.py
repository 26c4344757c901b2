"""Serves the page on this machine, to this machine: the list of recordings, and the picture of each.

Whoever can open a web page on this machine could ask a server on the loopback, by a name of theirs that leads there
(DNS rebinding); so a request has to name the loopback itself, and its data is for no other site.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from unbroken.errors import UserError
from unbroken.viewer.listing import SEARCHED_AT_ONCE, Shelf
from unbroken.viewer.page import PAGE_HEADERS, served_page
from unbroken.viewer.picture import picture_json

HOST = "127.0.0.1"
_LOG = logging.getLogger("unbroken.viewer")
_LOG.addHandler(logging.NullHandler())  # what is no HTTP is not worth a traceback on somebody's terminal
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_DATA_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "content-security-policy"} | {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'"
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(shelf: Shelf, port: int = 0) -> AsyncGenerator[str]:
    """The address of the page, as long as it is served."""
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


def application(shelf: Shelf) -> web.Application:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=served_page(), content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)

    async def runs(request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(lambda: picture_json(shelf.rows(SEARCHED_AT_ONCE))))

    async def run(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _json(await asyncio.to_thread(lambda: picture_json(shelf.draw(name))))

    app = web.Application(middlewares=[_only_here, _in_words])
    app.router.add_get("/", page)
    app.router.add_get("/runs", runs)
    app.router.add_get("/runs/{name}", run)
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
    except UserError as error:
        return _refuse(404, str(error))
    except web.HTTPException as error:
        return _refuse(error.status, f"{error.reason}: there is / for the page and /runs for its data")


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=_DATA_HEADERS)


def _refuse(status: int, words: str) -> web.Response:
    return _json(picture_json({"error": words}), status)
