"""HTTP on top of ASGI: read a request within its limits, send a response, notice a client that disconnects.

Nothing here knows models or wires. Plain ASGI without a framework: every token passes through this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

from unbroken.deadlines import TimeLimit

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Refused(Exception):
    """The request cannot be read, or is not allowed: `status` and words for the client."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None, kind: str = "") -> None:
        super().__init__(words)
        self.status = status
        self.headers = dict(headers or {})
        self.kind = kind
        """As `Wire.error_body` has it."""


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Names in lower case. Of several with one name the last counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(
    headers: Mapping[str, str], receive: Receive, most: int, seconds: float, received: Callable[[int], None]
) -> bytes:
    """`received` is called with the number of bytes so far, and may raise."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise Refused(413, f"the body has {int(length):,} bytes, {most:,} are allowed (`max_body`)")
    parts: list[bytes] = []
    size = 0
    try:
        with TimeLimit(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise Refused(413, f"the body has more than the {most:,} bytes that are allowed (`max_body`)")
                received(size)
                parts.append(part)
                if not message.get("more_body"):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {seconds:g} s") from None


class Response:
    """One HTTP response on its way out. `status` is 0 until it has begun. If a client does not read, the server
    (`protocol`) closes the connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    def reroute(self, by: Callable[[Send], Send]) -> None:
        """What is sent from now on goes another way to the same place."""
        self._send = by(self._send)

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
        """Waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def complete(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, content_type: bytes = JSON
    ) -> None:
        await self.begin(status, content_type, headers or {}, len(body))
        await self.send(body, more=False)


def _safe(value: str) -> bytes:
    """A header is one line; what stands in it may come from a client."""
    return value.encode("latin-1", "replace").replace(b"\r", b" ").replace(b"\n", b" ")


class DisconnectSignal:
    """Where a server that can tell it (`protocol`) says at once that a client has gone: `then` is called."""

    __slots__ = ("then",)

    NAME = "unbroken.leaving"
    """Under `extensions` in the scope."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None


class CancelOnDisconnect:
    """`with Watching(scope, receive):` a client that goes away ends what is inside, with `ClientGone`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._leaving: DisconnectSignal | None = scope.get("extensions", {}).get(DisconnectSignal.NAME)
        self._receive = receive
        self._gone = False
        self._working: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._working = asyncio.current_task()
        if self._leaving is not None:
            self._leaving.then = self._end
        else:  # any other server has to be asked, by a task that does nothing else
            self._watcher = asyncio.create_task(self._watch())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leaving is not None:
            self._leaving.then = None
        if self._watcher is not None:
            # Not awaited: it only waits itself, and the loop sees it out.
            self._watcher.cancel()
        if self._gone and self._working is not None:
            self._working.uncancel()
            if kind is asyncio.CancelledError:
                raise ClientGone from None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end()

    def _end(self) -> None:
        self._gone = True
        if self._working is not None:
            self._working.cancel()
