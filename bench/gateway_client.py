"""The client of the gateway's benches: HTTP by hand on kept connections, because whatever it costs is taken from the
same cores. It knows what a response is, and leaves its body as it came until somebody wants to read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

HOST = "127.0.0.1"


class Lost(Exception):
    """The connection went before the response was whole."""


@dataclass(slots=True)
class Response:
    status: int
    head: bytes
    raw: bytes
    first: float
    """Seconds from the request to the first byte of the body."""

    @property
    def body(self) -> bytes:
        if b"\r\ntransfer-encoding: chunked" not in self.head.lower():
            return self.raw
        parts: list[bytes] = []
        at = 0
        while True:
            end = self.raw.index(b"\r\n", at)
            size = int(self.raw[at:end], 16)
            if not size:
                return b"".join(parts)
            parts.append(self.raw[end + 2 : end + 2 + size])
            at = end + 4 + size


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: Any = None
        self._waiter: asyncio.Future[Response] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parts: list[bytes] = []
        self._head = b""
        self._length = -1
        self._received = 0
        self._first = 0.0
        self._began = 0.0
        self.started: asyncio.Event | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(f"after {self._received} bytes of the body: {exc or 'closed'}"))

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    async def ask(self, request: bytes, started: asyncio.Event | None = None) -> Response:
        """`started` is set with the first byte of the body."""
        self._reset()
        self.started = started
        self._waiter = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self._transport.write(request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        if not self._head:
            data = b"".join([*self._parts, data])
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._parts = [data]
                return
            self._parts = []
            self._head, data = data[:end], data[end + 4 :]
            lower = self._head.lower()
            at = lower.find(b"\r\ncontent-length:")
            self._length = int(lower[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else -1
        if data:
            if not self._first:
                self._first = time.perf_counter() - self._began
                if self.started is not None:
                    self.started.set()
            self._parts.append(data)
            self._received += len(data)
        if self._received >= self._length if self._length >= 0 else self._ends():
            response = Response(int(self._head[9:12]), self._head, b"".join(self._parts), self._first)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(response)

    def _ends(self) -> bool:
        last = self._parts[-1] if self._parts else b""
        if len(last) < 7 and len(self._parts) > 1:
            last = b"".join(self._parts[-7:])
        return last.endswith(b"\r\n0\r\n\r\n") or last == b"0\r\n\r\n"


async def open_connection(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, port)
    return connection


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


def post(path: str, body: Mapping[str, Any] | bytes, headers: str = "") -> bytes:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nAuthorization: Bearer not-a-key"
    return f"{head}\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data
