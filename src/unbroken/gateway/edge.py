"""HTTP as ASGI has it: a request read within its limits, a response sent, a client that goes away noticed.

Nothing is known here of models or wires. Bare ASGI, no framework: the gateway stands in the way of every token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Refused(Exception):
    """The request cannot be read: `status` and words for the client."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Names in lower case. Of several with one name the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(headers: Mapping[str, str], receive: Receive, most: int, seconds: float) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise Refused(413, f"the body has {int(length):,} bytes, {most:,} are allowed")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise Refused(413, f"the body has more than the {most:,} bytes that are allowed")
                parts.append(part)
                if not message.get("more_body"):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {seconds:g} s") from None


class Response:
    """One HTTP response on its way out. `status` is 0 until it has begun."""

    def __init__(self, send: Send, write_timeout: float) -> None:
        self._send = send
        self._write_timeout = write_timeout
        self.status = 0

    async def begin(self, status: int, content_type: bytes, headers: Mapping[str, str], length: int | None) -> None:
        self.status = status
        pairs = [(b"content-type", content_type)]
        if length is not None:
            pairs.append((b"content-length", b"%d" % length))
        else:
            pairs.append((b"cache-control", b"no-cache"))
            pairs.append((b"x-accel-buffering", b"no"))  # nginx would hold events back
        pairs += [(name.encode("latin-1"), _safe(value)) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def send(self, data: bytes, more: bool = True) -> None:
        """Waits while the client does not read. Who does not read for too long is taken for gone."""
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise ClientGone from None

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, content_type: bytes = JSON
    ) -> None:
        await self.begin(status, content_type, headers or {}, len(body))
        await self.send(body, more=False)


def _safe(value: str) -> bytes:
    """A header is one line; what stands in it may come from a client."""
    return value.encode("latin-1", "replace").replace(b"\r", b" ").replace(b"\n", b" ")


@asynccontextmanager
async def watching(receive: Receive) -> AsyncGenerator[None]:
    """While it is left open: a client that goes away ends what is inside, with `ClientGone`."""
    working = asyncio.current_task()
    assert working is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        working.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        working.uncancel()
        raise ClientGone from None
    finally:
        if not watcher.done():
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
