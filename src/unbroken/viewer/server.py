"""Serves the page on this machine, to this machine: the list of recordings, and the picture of each.

A web page that is open on this machine could reach a server on the loopback address through its own domain name (DNS
rebinding); so a request has to name the loopback address itself, and other sites get no data.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from unbroken.errors import UserError
from unbroken.viewer.listing import SEARCHED_AT_ONCE, Listing, Row
from unbroken.viewer.picture import picture_json

# The page: `page.html` as it is served, or as one file that holds what it shows and needs nothing else. Nothing runs on
# it that is not in `page.html`: its policy allows only one script and one style, by their hashes. The data is embedded
# and escaped, so that no text of a recording can end its element.


_PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
MOST = 48 * 1024 * 1024
"""Bytes of pictures that one file holds: a browser should still open it at once."""


PALETTE = _PAGE.partition("<style>\n")[2].partition("\n}\n")[0] + "\n}"
"""The colours of the page, light and dark, as style rules: other pages use the same."""


def inline_hash(page: str, tag: str) -> str:
    """Of the one inline element of this kind in a page, as a browser takes it."""
    inner = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; script-src {inline_hash(_PAGE, 'script')}; style-src {inline_hash(_PAGE, 'style')}; "
    "img-src data:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)
PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY.format(connect="'self'") + "; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def served_page() -> bytes:
    """The page; it loads its data from the same server."""
    return _PAGE.encode()


def whole_page(shelf: Listing, most: int = MOST) -> tuple[bytes, list[str]]:
    """One file with all recordings, and a list of what was left out. Runs that do not fit are only in the list."""
    rows = shelf.rows()
    pictures: list[bytes] = []
    left_out: list[str] = []
    room = most
    for row in rows:
        if row.problem:
            continue
        drawn = _draw(shelf, row)
        if isinstance(drawn, str):
            left_out.append(drawn)
        elif len(drawn) <= room or not pictures:
            room -= len(drawn)
            pictures.append(picture_json(row.name) + b":" + drawn)
        else:
            left_out.append(f"{row.name} is only listed: the file would be too large; name it alone")
    data = b'{"runs":%b,"pictures":{%b}}' % (picture_json(rows), b",".join(pictures))
    policy = _POLICY.format(connect="'none'")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    top, _, rest = _PAGE.partition("<!--policy-->")
    middle, _, bottom = rest.partition("null<!--data-->")
    return b"".join((top.encode(), policy.encode(), middle.encode(), _harmless(data), bottom.encode())), left_out


def _draw(shelf: Listing, row: Row) -> bytes | str:
    try:
        return picture_json(shelf.draw(row.name))
    except UserError as error:
        return str(error)


def _harmless(data: bytes) -> bytes:
    """Escapes JSON for a script element: nothing may end the element, nor be a line end for old scripts. All of these
    occur only inside strings."""
    for character, escaped in ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")):
        data = data.replace(character, escaped)
    return data


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
