"""Serves the page on this machine, to this machine: the list of recordings, the picture of each,
a search in their contents, and requests as code.

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
from unbroken.viewer.listing import SEARCHED_AT_ONCE, Listing
from unbroken.viewer.page import PAGE_HEADERS, served_page
from unbroken.viewer.picture import picture_json
from unbroken.viewer.request_code import Language, request_code
from unbroken.viewer.searching import search

HOST = "127.0.0.1"
_LOG = logging.getLogger("unbroken.viewer")
_LOG.addHandler(logging.NullHandler())  # no traceback on the terminal for requests that are not HTTP
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_DATA_HEADERS = {name: value for name, value in PAGE_HEADERS.items() if name != "content-security-policy"} | {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'"
}
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
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=served_page(), content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)

    async def runs(request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(lambda: picture_json(shelf.rows(SEARCHED_AT_ONCE))))

    async def run(request: web.Request) -> web.Response:
        """The picture of a run. A page that shows a run in progress asks for it again and again, and gets it only if
        the recording has grown."""
        name = request.match_info["name"]
        version = f'"{await asyncio.to_thread(shelf.version, name)}"'
        if request.headers.get("if-none-match") == version:
            return web.Response(status=304, headers=_DATA_HEADERS)
        answer = _json(await asyncio.to_thread(lambda: picture_json(shelf.draw(name))))
        answer.headers["etag"] = version
        return answer

    async def code(request: web.Request) -> web.Response:
        name, number = request.match_info["name"], int(request.match_info["number"])
        language: Language = "python" if request.match_info["language"] == "python" else "curl"
        text = await asyncio.to_thread(lambda: request_code(shelf.read(name), number, language))
        return _json(picture_json({"text": text}))

    async def found(request: web.Request) -> web.Response:
        wanted = request.query.get("text", "")
        return _json(await asyncio.to_thread(lambda: picture_json(search(shelf, wanted))))

    app = web.Application(middlewares=[_only_here, _in_words])
    app.router.add_get("/", page)
    app.router.add_get("/runs", runs)
    app.router.add_get("/runs/{name}", run)
    app.router.add_get(r"/runs/{name}/requests/{number:\d{1,6}}/{language:curl|python}", code)
    app.router.add_get("/search", found)
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
        return _refuse(error.status, f"{error.reason}: there is / for the page, /runs and /search for its data")


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=_DATA_HEADERS)


def _refuse(status: int, words: str) -> web.Response:
    return _json(picture_json({"error": words}), status)
