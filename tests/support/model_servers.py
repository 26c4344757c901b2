"""Models over real local HTTP: a server with one handler, and one request to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from unbroken.errors import ProviderError
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.model import Model
from unbroken.models.sessions import close_session
from unbroken_wires.deltas import Delta, Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Request, ToolCall, ToolSpec, Usage, User
from unbroken_wires.wires.writer import ResponseWriter

KEY = "sk-secret-0123456789"
HELLO = Request((User.of("Hi"),))
SEARCH = Request((User.of("Hi"),), tools=(ToolSpec("search", "finds"),))
CALL = ToolCall("call_1", "search", {"q": "x"}, '{"q": "x"}')
WHOLE = Verdict("whole", finish="stop")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """One handler for every path, on a separate port; keeps what it was sent."""

    handler: Handler
    url: str = ""
    requests: list[web.Request] = field(default_factory=list[web.Request])
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    peers: list[Any] = field(default_factory=list[Any])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.peers.append(request.transport and request.transport.get_extra_info("peername"))
        self.bodies.append(await request.json())
        return await self.handler(request)


@asynccontextmanager
async def serve(handler: Handler, keepalive: float = 60) -> AsyncGenerator[Server]:
    server = Server(handler)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, keepalive_timeout=keepalive, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
        await close_session()


def encoded(wire: str, *deltas: Delta) -> list[bytes]:
    """A response of that wire, an event or so in each piece."""
    writer = ResponseWriter(wire, "m", "resp_1")
    return [piece for delta in deltas if (piece := writer.feed(delta))]


def answer(wire: str) -> list[bytes]:
    end = Ended(WHOLE, Assistant("Hello there"))
    return encoded(wire, TextDelta("Hello "), TextDelta("there"), UsageReported(Usage(3, 2)), end)


CHAT = answer("openai-chat")


async def begin(request: web.Request, **headers: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
    await response.prepare(request)
    return response


def streams(pieces: list[bytes]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    return handler


def answers(status: int, body: str | bytes, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        body_bytes = body.encode() if isinstance(body, str) else body
        return web.Response(status=status, body=body_bytes, headers=headers)

    return handler


async def collect(model: Model, request: Request = HELLO) -> list[Delta]:
    return [delta async for deltas in model.stream(request) for delta in deltas]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def verdict(deltas: list[Delta]) -> Verdict:
    last = deltas[-1]
    assert isinstance(last, Ended)
    return last.verdict


def at(server: Server, **settings: Any) -> HTTPModel:
    """The outcome of one request, without retries."""
    return connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY, **settings).model


def play(handler: Handler, request: Request = HELLO, **settings: Any) -> tuple[list[Delta], Server]:
    """One request to a server that answers like this."""

    async def run() -> tuple[list[Delta], Server]:
        async with serve(handler) as server:
            return await collect(at(server, **settings), request), server

    return asyncio.run(run())


def fail(handler: Handler, **settings: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        play(handler, **settings)
    message = str(caught.value)
    assert KEY not in message
    assert "\n" not in message
    return caught.value


def hangs(pieces: list[bytes], until: Callable[[], asyncio.Event]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for piece in pieces:
            await response.write(piece)
        await until().wait()
        return response

    return handler


def play_hanging(pieces: list[bytes], **settings: Any) -> tuple[list[Delta], float]:
    """The server sends the pieces, then nothing, and keeps the connection open."""

    async def run() -> tuple[list[Delta], float]:
        gone = asyncio.Event()
        async with serve(hangs(pieces, lambda: gone)) as server:
            start = time.monotonic()
            deltas = await collect(at(server, **settings))
            seconds = time.monotonic() - start
            gone.set()
            return deltas, seconds

    return asyncio.run(run())


def refusal(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


@asynccontextmanager
async def serve_bytes(answer: bytes, hangs: bool = False) -> AsyncGenerator[str]:
    """A server that sends this to each request, HTTP or not, and closes the connection; or stays silent."""

    class Answers(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(answer)
            if not hangs:
                self.transport.close()

    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        await close_session()
