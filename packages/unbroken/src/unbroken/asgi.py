"""HTTP on top of ASGI: read a request within its limits, send a response, notice a client that disconnects, and
recognise foreign web pages.

Plain ASGI without a framework: every token of the gateway passes through this code.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from hashlib import sha256
from itertools import count
from secrets import token_hex
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from unbroken.clock import TimeLimit
from unbroken.models.addresses import ip_version

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

JSON = b"application/json"


class Refused(Exception):
    """The request cannot be read, or is not allowed: `status` and a message for the client."""

    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None, kind: str = "") -> None:
        super().__init__(words)
        self.status = status
        self.headers = dict(headers or {})
        self.kind = kind
        """The kind, as in `Wire.error_body`."""


class ClientGone(Exception):
    """The client has disconnected."""


def read_headers(scope: Scope) -> dict[str, str]:
    """Names in lower case. If a name occurs several times, the last one counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(
    headers: Mapping[str, str],
    receive: Receive,
    most: int,
    seconds: float,
    received: Callable[[int], None],
    connection: ClientConnection | None = None,
) -> bytes:
    """Calls `received` with the number of bytes so far; it may raise."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise Refused(413, f"the body has {int(length):,} bytes, {most:,} are allowed (`max_body`)")
    if connection is not None and (body := connection.body()) is not None:
        if len(body) > most:
            raise _too_large(most)
        received(len(body))
        return body
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
                    raise _too_large(most)
                received(size)
                parts.append(part)
                if not message.get("more_body"):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {seconds:g} s") from None


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body has more than the {most:,} bytes that are allowed (`max_body`)")


REQUEST_ID: ContextVar[str] = ContextVar("unbroken request id", default="")
"""The id of the request that is being answered, for its response and for log lines. Empty outside of requests."""
_process = token_hex(5)
_numbers = count(1)


def new_request_id() -> str:
    """Unique among the requests of all processes: a random prefix of this process and a number."""
    return f"{_process}{next(_numbers):06x}"


class Response:
    """One HTTP response on its way out. `status` is 0 until it has begun. If a client does not read, the server
    (`protocol`) closes the connection."""

    def __init__(
        self, send: Send, headers: Mapping[str, str] | None = None, connection: ClientConnection | None = None
    ) -> None:
        """`headers` are sent with every response."""
        self._send = send
        self._headers = headers or {}
        self._connection = connection
        self.status = 0

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Sends them too, whatever the response will be."""
        self._headers = {**self._headers, **headers}

    def reroute(self, by: Callable[[Send], Send]) -> None:
        """Replaces the `send` function for everything from now on."""
        self._send = by(self._send)
        self._connection = None

    async def begin(self, status: int, content_type: bytes, headers: Mapping[str, str], length: int | None) -> None:
        pairs = self._head(status, content_type, headers, length)
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    def _head(
        self, status: int, content_type: bytes, headers: Mapping[str, str], length: int | None
    ) -> list[tuple[bytes, bytes]]:
        self.status = status
        pairs = [(b"content-type", content_type)]
        if length is not None:
            pairs.append((b"content-length", b"%d" % length))
        else:
            pairs.append((b"cache-control", b"no-cache"))
            pairs.append((b"x-accel-buffering", b"no"))  # otherwise nginx buffers events
        for each in (self._headers, headers):
            for name, value in each.items():
                pairs.append((name.encode("latin-1"), _safe(value)))
        return pairs

    async def send(self, data: bytes, more: bool = True) -> None:
        """Waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def complete(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, content_type: bytes = JSON
    ) -> None:
        pairs = self._head(status, content_type, headers or {}, len(body))
        if self._connection is None or not self._connection.respond(status, pairs, body):
            await self._send({"type": "http.response.start", "status": status, "headers": pairs})
            await self.send(body, more=False)


_NO_CONTROLS = bytes(byte if byte >= 32 and byte != 127 else 32 for byte in range(256))


def _safe(value: str) -> bytes:
    """Removes control characters: the value may come from a client."""
    return value.encode("latin-1", "replace").translate(_NO_CONTROLS)


class ClientConnection:
    """What our server (`gateway.http.protocol`) offers for a request beyond ASGI: it reports a disconnect at once
    (`report` calls `then`), and it has a shortcut for bodies and responses that are complete. Other servers have none
    of it, and everything works without."""

    __slots__ = ("gone", "then")

    NAME = "unbroken.connection"
    """The name in the scope's `extensions`."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None
        self.gone = False
        """The client has disconnected, perhaps before anybody asked for it."""

    def report(self) -> None:
        self.gone = True
        if self.then is not None:
            self.then()

    def body(self) -> bytes | None:
        """Takes the body of the request, if all of it has arrived."""
        return None

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Sends a complete response in one write, instead of two. Returns False if it cannot be done now."""
        return False


def connection_of(scope: Scope) -> ClientConnection | None:
    return scope.get("extensions", {}).get(ClientConnection.NAME)


class CancelOnDisconnect:
    """`with CancelOnDisconnect(scope, receive):` cancels the block if the client disconnects, and raises
    `ClientGone`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._leaving = connection_of(scope)
        self._receive = receive
        self._gone = False
        self._working: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._working = asyncio.current_task()
        if self._leaving is not None:
            if self._leaving.gone:
                raise ClientGone
            self._leaving.then = self._end
        else:  # any other server is polled by a task
            self._watcher = asyncio.create_task(self._watch())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leaving is not None:
            self._leaving.then = None
        if self._watcher is not None:
            # Not awaited: the task only waits, and the loop ends it.
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


# Pages


def page_headers(page: str) -> dict[str, str]:
    """The headers of a page that runs and loads only what is in it: its one script and its one style, by their hashes,
    and data of its own server."""

    def hash_of(tag: str) -> str:
        inner = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"

    return {
        "cache-control": "no-store",
        "content-security-policy": (
            f"default-src 'none'; script-src {hash_of('script')}; style-src {hash_of('style')}; img-src data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


# Foreign web pages
#
# Without keys, a web page in a browser on this machine must not get in. A page can post to any loopback address, and
# with a host name of its own that resolves there (DNS rebinding) it can read the answer too. Other clients send no
# `Origin`, and `localhost` or an address as `Host`.


def is_foreign(headers: Mapping[str, str], host: str) -> bool:
    """Does this request come from a foreign web page? `headers` have lower-case names; `host` is the name that the
    gateway listens on."""
    return _is_foreign(
        headers.get("host", ""), headers.get("origin", ""), headers.get("sec-fetch-site", ""), host.lower()
    )


@lru_cache(maxsize=256)
def _is_foreign(host: str, origin: str, site: str, own_name: str) -> bool:
    asked = _name(f"//{host}")
    # A name without a dot belongs to the local network: nobody outside can make it resolve here.
    own = "." not in asked or asked == own_name or asked.endswith(".localhost") or bool(ip_version(asked))
    if not own:
        return True
    if site == "cross-site":
        return True
    return bool(origin) and _name(origin) != asked


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return "no.name"
