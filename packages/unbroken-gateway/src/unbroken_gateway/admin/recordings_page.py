"""The viewer on the gateway's own recordings, at `/recordings/`. The page itself holds nothing and needs no key; its
data are the conversations of all clients and need an operator's key. Loaded only by a gateway that records.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, quote

from unbroken.asgi import Refused, Response, Scope, read_headers
from unbroken.errors import UserError
from unbroken_gateway.admin.pages import Page, Viewer
from unbroken_gateway.settings import GatewaySettings
from unbroken_viewer.answers import Answer, answer, refusal
from unbroken_viewer.listing import Shelf

PATH = "/recordings/"
LATEST = 1000
"""How many recordings are listed. Any of them can be shown by its name."""
LARGEST = 64 << 20
"""Bytes of a recording that is still drawn here: the same process answers requests."""


class RecordingPages:
    def __init__(self, settings: GatewaySettings) -> None:
        self._shelf = _SmallShelf(Path(settings.record).expanduser(), latest=LATEST)
        self._open_to_all = settings.open_to_all and not settings.keys

    def find(self, scope: Scope) -> Page:
        if scope["path"] == PATH.rstrip("/"):
            return Page(_redirect, private=False)
        raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
        path = raw.decode("latin-1").partition("?")[0].removeprefix(PATH)
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        known = read_headers(scope).get("if-none-match", "")

        async def show(response: Response, viewer: Viewer) -> None:
            if path and self._open_to_all:
                raise Refused(
                    403,
                    "this gateway is open to all and shows no recordings: turn keys on, or use `unbroken view`",
                )
            given = await asyncio.to_thread(answer, self._shelf, path, query, known)
            await _send(given, response)

        return Page(show, private=bool(path), operators=bool(path))


class _SmallShelf(Shelf):
    def version(self, name: str) -> str:
        version = super().version(name)
        if int(version.partition("-")[0]) > LARGEST:
            raise UserError(f"{name} is too large to be shown by a gateway: use `unbroken view`")
        return version


async def _send(given: Answer, response: Response) -> None:
    await response.complete(given.status, given.body, given.headers, given.content_type.encode())


async def _redirect(response: Response, viewer: Viewer) -> None:
    given = refusal(308, f"the recordings are at {PATH}")
    await response.complete(given.status, given.body, {**given.headers, "location": PATH.removeprefix("/")})
