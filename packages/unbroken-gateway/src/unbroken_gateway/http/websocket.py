"""WebSocket on top of ASGI: a client sends request after request on one connection, and each is answered like a POST
with a stream, event by event as one message each.

Requests on a connection are answered in their order. Nothing here knows models or wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from unbroken.asgi import ClientConnection, ClientGone, Receive, Refused, Response, Scope, Send
from unbroken.errors import StreamError
from unbroken_gateway.http.large_requests import MemoryBudget
from unbroken_wires.wires.json_access import Object, as_dict
from unbroken_wires.wires.jsontext import dumps, loads
from unbroken_wires.wires.sse import Framer

MOST_WAITING = 8
"""Requests that a client may send before the answer to an earlier one is complete."""
_COUNTED = 64 << 10
"""A waiting request of this many bytes counts for the memory of large bodies."""
GOING_AWAY, POLICY_VIOLATION, RESTART = 1001, 1008, 1012
UNAUTHORIZED = 401
_HANDSHAKE_ONLY = frozenset(
    {b"content-length", b"transfer-encoding", b"idempotency-key", b"x-idempotency-key", b"x-stainless-retry-count"}
)
"""Headers of the handshake that do not describe each request."""


class ConnectionState:
    """What the server (`websocket_protocol`) and the connection know of each other."""

    __slots__ = ("busy", "stopping")

    NAME = "unbroken.connection"
    """The name in the scope's `extensions`."""

    def __init__(self) -> None:
        self.busy = False
        """A request is being answered."""
        self.stopping = False
        """The server stops: the connection closes after that answer."""


class WebSocket:
    """`answer` is called with an HTTP scope, `receive` and `send` for each request. `memory` is for those that wait.
    `is_admitted`: whether the key of the connection is still valid. `idle`: seconds without a request after which the
    connection is closed."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer: Callable[[Scope, Receive, Send], Awaitable[None]],
        memory: MemoryBudget,
        is_admitted: Callable[[], bool],
        *,
        idle: float,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._answer = answer
        self._memory = memory
        self._is_admitted = is_admitted
        self._idle = idle
        self._state: ConnectionState = scope.get("extensions", {}).get(ConnectionState.NAME) or ConnectionState()
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Requests, and None at the end."""
        self._leaving = ClientConnection()
        self._gone = False

    async def serve(self) -> None:
        await self._send({"type": "websocket.accept"})
        reading = asyncio.create_task(self._read())
        try:
            while (data := await self._next()) is not None:
                self._state.busy = True
                frames = _Frames(self._send_text)
                await self._answer(self._http_scope(), self._body(data), frames.send)
                self._state.busy = False
                if frames.status == UNAUTHORIZED and not self._is_admitted():
                    await self._close(POLICY_VIOLATION, "the key of this connection is not valid any more")
                    return
                if self._state.stopping:
                    break
            if not self._gone:
                await self._close(RESTART if self._state.stopping else GOING_AWAY)
        except ClientGone:
            pass
        finally:
            self._state.busy = False
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            while not self._waiting.empty():
                self._release(self._waiting.get_nowait())

    async def _next(self) -> bytes | None:
        """The next request; None if there will be none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._idle):
                data = await self._waiting.get()
                self._release(data)
                return data
        return None

    def _release(self, data: bytes | None) -> None:
        """It does not wait any more: while it is answered, it is counted as any request is."""
        if data is not None and len(data) >= _COUNTED:
            self._memory.change(-len(data))

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass")
            if self._waiting.qsize() >= MOST_WAITING:
                words = f"more than {MOST_WAITING} requests wait on this connection: wait for their answers first"
                await self._send_error(429, "rate_limit_error", "too_many_requests", words)
                continue
            try:
                if len(data) >= _COUNTED:
                    self._memory.change(len(data))
            except Refused as error:
                await self._send_error(error.status, "server_error", "server_error", str(error))
            else:
                self._waiting.put_nowait(data)
        self._gone = True
        self._waiting.put_nowait(None)
        self._leaving.report()

    async def _send_error(self, status: int, kind: str, code: str, words: str) -> None:
        error = {"type": kind, "code": code, "message": words, "param": None}
        with suppress(ClientGone):
            await self._send_text(dumps({"type": "error", "status": status, "error": error}))

    def _http_scope(self) -> Scope:
        headers = [(name, value) for name, value in self._scope["headers"] if name not in _HANDSHAKE_ONLY]
        extensions = {ClientConnection.NAME: self._leaving}
        return {**self._scope, "type": "http", "method": "POST", "headers": headers, "extensions": extensions}

    def _body(self, data: bytes) -> Receive:
        async def receive() -> Mapping[str, Any]:
            return {"type": "http.disconnect"} if self._gone else {"type": "http.request", "body": data}

        return receive

    async def _send_text(self, data: bytes) -> None:
        if self._gone:
            raise ClientGone
        try:
            await self._send({"type": "websocket.send", "text": data.decode("utf-8", "replace")})
        except OSError:  # as servers report a client that has left
            raise ClientGone from None

    async def _close(self, code: int, reason: str = "") -> None:
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _Frames:
    """Turns an HTTP response into messages: each event of a stream, or an error as one event."""

    def __init__(self, send_text: Callable[[bytes], Awaitable[None]]) -> None:
        self._send_text = send_text
        self._framer = Framer()
        self.status = 0
        self._body = b""

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        body: bytes = message.get("body", b"")
        if self.status == 200:
            for event in self._framer.feed(body):
                if (text := event.strip())[:1] == b"{":  # not `[DONE]`
                    await self._send_text(text)
            return
        self._body += body
        if not message.get("more_body"):
            await self._send_text(dumps(_error_event(self.status, self._body)))


def _error_event(status: int, body: bytes) -> Object:
    try:
        error = as_dict(as_dict(loads(body)).get("error"))
    except StreamError:
        error = {}
    kind = error.get("type") or "server_error"
    told = {"type": kind, "code": error.get("code") or kind, "message": error.get("message") or "the request failed"}
    return {"type": "error", "status": status, "error": {**told, "param": error.get("param")}}


class HandshakeResponse:
    """`send` for an HTTP response in the place of a handshake that is refused."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._answers = "websocket.http.response" in scope.get("extensions", {})
        self._send = send

    def response(self) -> Response:
        return Response(self._refuse)

    async def _refuse(self, message: dict[str, Any]) -> None:
        if self._answers:
            await self._send({**message, "type": f"websocket.{message['type']}"})
        elif message["type"] == "http.response.start":
            await self._send({"type": "websocket.close", "code": GOING_AWAY})
