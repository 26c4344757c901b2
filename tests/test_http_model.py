"""A model behind real HTTP on this machine: what is sent, what comes of each answer, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from unbroken.deltas import CallReady, Delta, Ended, TextDelta, UsageReported
from unbroken.errors import (
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from unbroken.messages import Assistant, Request, ToolCall, ToolSpec, Usage, User
from unbroken.models import HTTPModel, close_session, connect
from unbroken.models import http as http_model
from unbroken.models.failures import Asked, read_failure
from unbroken.verdicts import Verdict
from unbroken.wires.writer import ResponseWriter

KEY = "sk-secret-0123456789"
HELLO = Request((User.of("Hi"),))
SEARCH = Request((User.of("Hi"),), tools=(ToolSpec("search", "finds"),))
CALL = ToolCall("call_1", "search", {"q": "x"}, '{"q": "x"}')
WHOLE = Verdict("whole", finish="stop")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """One handler for every path, on a port of its own; keeps what it was sent."""

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


async def collect(model: HTTPModel, request: Request = HELLO) -> list[Delta]:
    return [delta async for delta in model.stream(request)]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def verdict(deltas: list[Delta]) -> Verdict:
    last = deltas[-1]
    assert isinstance(last, Ended)
    return last.verdict


def at(server: Server, **settings: Any) -> HTTPModel:
    return connect("openai:m", base_url=f"{server.url}/v1", api_key=KEY, **settings)


def play(handler: Handler, request: Request = HELLO, **settings: Any) -> tuple[list[Delta], Server]:
    """One request to a server that answers so."""

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


# The four wires


@pytest.mark.parametrize(
    ("provider", "wire", "path", "header", "value"),
    [
        ("openai", "openai-chat", "/v1/chat/completions", "Authorization", f"Bearer {KEY}"),
        ("openai-responses", "openai-responses", "/v1/responses", "Authorization", f"Bearer {KEY}"),
        ("anthropic", "anthropic-messages", "/v1/messages", "x-api-key", KEY),
        ("gemini", "gemini", "/v1beta/models/m:streamGenerateContent", "x-goog-api-key", KEY),
        ("azure", "openai-chat", "/openai/v1/chat/completions", "api-key", KEY),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_each_wire_is_asked_at_its_place_and_read(
    provider: str, wire: str, path: str, header: str, value: str, stream: bool
) -> None:
    async def run() -> None:
        writer = ResponseWriter(wire, "m", "resp_1")
        said = [
            TextDelta("Look: "),
            CallReady(CALL),
            UsageReported(Usage(3, 2)),
            Ended(Verdict("whole", finish="tool_calls"), Assistant("Look: ", (CALL,))),
        ]
        pieces = [writer.feed(delta) for delta in said]
        handler = streams(pieces) if stream else answers(200, writer.body())
        async with serve(handler) as server:
            base = f"{server.url}/v1" if provider.startswith("openai") else server.url
            model = connect(f"{provider}:m", base_url=base, api_key=KEY, stream=stream)
            deltas = await collect(model, SEARCH)
            assert text(deltas) == "Look: "
            assert [d.call.arguments for d in deltas if isinstance(d, CallReady)] == [{"q": "x"}]
            assert verdict(deltas).whole
            (sent,) = server.requests
            assert sent.path == (path if stream else path.replace("streamGenerateContent", "generateContent"))
            assert sent.headers[header] == value
            assert sent.headers["Content-Type"] == "application/json"
            assert ("anthropic-version" in sent.headers) == (wire == "anthropic-messages")
            assert bool(server.bodies[0].get("stream")) == (stream and wire != "gemini")
            assert (sent.query.get("alt") == "sse") == (stream and wire == "gemini")

    asyncio.run(run())


def test_settings_headers_and_query_are_sent() -> None:
    _, server = play(streams(CHAT), headers={"X-Team": "blue"}, query={"v": "2"}, temperature=0.2)
    assert server.requests[0].headers["X-Team"] == "blue"
    assert server.requests[0].query["v"] == "2"
    assert server.bodies[0]["temperature"] == 0.2


def test_no_key_no_header() -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            await collect(connect("compatible:m", base_url=server.url))
            assert "Authorization" not in server.requests[0].headers

    asyncio.run(run())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_function_gives_a_key_for_each_request(asynchronous: bool) -> None:
    keys = iter(["first", "second"])

    async def later() -> str:
        await asyncio.sleep(0)
        return next(keys)

    async def run() -> list[str]:
        async with serve(streams(CHAT)) as server:
            give = later if asynchronous else lambda: next(keys)
            model = connect("openai:m", base_url=server.url, api_key=give)
            await collect(model)
            await collect(model)
            return [request.headers["Authorization"] for request in server.requests]

    assert asyncio.run(run()) == ["Bearer first", "Bearer second"]


# How the bytes come


def test_deltas_come_as_the_bytes_do() -> None:
    async def run() -> None:
        seen = asyncio.Event()

        async def handler(request: web.Request) -> web.StreamResponse:
            response = await begin(request)
            await response.write(CHAT[0])
            await response.write(CHAT[1])
            await seen.wait()
            for piece in CHAT[2:]:
                await response.write(piece)
            return response

        async with serve(handler) as server:
            said = ""
            async for delta in at(server).stream(HELLO):
                if isinstance(delta, TextDelta):
                    said += delta.text
                    seen.set()
            assert said == "Hello there"

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_pieces_may_be_cut_anywhere(size: int) -> None:
    body = b"".join(CHAT)
    deltas, _ = play(streams([body[i : i + size] for i in range(0, len(body), size)]))
    assert text(deltas) == "Hello there"
    assert verdict(deltas).whole


def test_a_compressed_body_is_read() -> None:
    deltas, _ = play(answers(200, gzip.compress(b"".join(CHAT)), **{"Content-Encoding": "gzip"}))
    assert text(deltas) == "Hello there"


def test_a_whole_body_is_read_although_a_stream_was_asked_for() -> None:
    body = {"object": "chat.completion", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    deltas, server = play(answers(200, json.dumps(body)))
    assert server.bodies[0]["stream"] is True
    assert text(deltas) == "Hello"
    assert verdict(deltas).whole


def test_html_with_status_200_is_a_verdict() -> None:
    deltas, _ = play(answers(200, "<html><body>Welcome</body></html>"))
    assert verdict(deltas).kind == "foreign"


def test_an_empty_body_is_a_verdict() -> None:
    deltas, _ = play(answers(200, ""))
    assert verdict(deltas).kind == "foreign"


@pytest.mark.parametrize("ended", [b"\n\n", b""])
def test_an_event_beyond_a_limit_is_a_verdict(ended: bytes) -> None:
    deltas, _ = play(streams([CHAT[0], b"data: " + b"[" * 3000 + b"]" * 3000 + ended]))
    assert text(deltas).startswith("Hello")
    assert verdict(deltas).kind == "damaged"


def test_calls_that_leaked_into_the_text_are_recovered_on_a_compatible_server() -> None:
    leak = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
    leaked = encoded("openai-chat", TextDelta(leak), Ended(WHOLE, Assistant(leak)))
    deltas, _ = play(streams(leaked), SEARCH)
    assert [d.call.arguments for d in deltas if isinstance(d, CallReady)] == [{"q": "x"}]
    deltas, _ = play(streams(leaked), HELLO)
    assert text(deltas) == leak


# How it ends


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


def test_a_server_that_never_closes_is_not_waited_for_after_done() -> None:
    deltas, seconds = play_hanging(CHAT)
    assert text(deltas) == "Hello there"
    assert verdict(deltas).whole
    assert seconds < 2


def test_usage_is_waited_for_after_a_finish_reason_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_model, "AFTER_FINISH", 0.05)
    finish = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n'
    deltas, seconds = play_hanging([finish])
    assert verdict(deltas).whole
    assert seconds < 2


def test_silence_in_the_middle_ends_the_response_with_its_cause() -> None:
    deltas, _ = play_hanging(CHAT[:2], idle=0.05)
    assert text(deltas).startswith("Hello")
    assert verdict(deltas).kind == "unfinished"
    assert "fell silent: nothing came for idle=0.05 s" in verdict(deltas).reason


def test_total_ends_the_response_with_its_cause() -> None:
    deltas, _ = play_hanging(CHAT[:2], total=0.1)
    assert verdict(deltas).kind == "unfinished"
    assert "total=0.1 s" in verdict(deltas).reason


def test_a_slow_consumer_is_not_silence() -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            said = ""
            async for delta in at(server, idle=0.03, first_byte=0.5).stream(HELLO):
                said += delta.text if isinstance(delta, TextDelta) else ""
                await asyncio.sleep(0.05)
            assert said == "Hello there"

    asyncio.run(run())


def test_a_connection_reset_in_the_middle_is_a_verdict_and_what_came_before_stays() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(CHAT[0] + CHAT[1])
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    deltas, _ = play(handler)
    assert text(deltas).startswith("Hello")
    assert verdict(deltas).kind == "unfinished"
    assert "the connection was lost" in verdict(deltas).reason


def test_a_connection_lost_after_the_terminal_sign_is_a_whole_response() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for piece in CHAT:
            await response.write(piece)
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    deltas, _ = play(handler)
    assert verdict(deltas).whole


def test_leaving_in_the_middle_closes_the_connection() -> None:
    async def run() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            response = await begin(request)
            try:
                while True:
                    await response.write(CHAT[1])
                    await asyncio.sleep(0.001)
            except ConnectionError:
                left.set()
                raise

        left = asyncio.Event()
        async with serve(handler) as server:
            stream = at(server).stream(HELLO)
            async for _ in stream:
                break
            await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - a generator
            await asyncio.wait_for(left.wait(), 5)

    asyncio.run(run())


# Before the first byte


def test_no_first_byte_in_time() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        raise AssertionError

    error = fail(handler, first_byte=0.05)
    assert isinstance(error, TimedOut)
    assert "`openai` sent nothing within first_byte=0.05 s (http://127.0.0.1" in str(error)


def test_a_head_without_a_body_is_no_first_byte() -> None:
    with pytest.raises(TimedOut, match=r"first_byte=0\.05"):
        play_hanging([], first_byte=0.05)


def test_total_counts_before_the_first_byte_too() -> None:
    with pytest.raises(TimedOut, match=r"not done within total=0\.05 s"):
        play_hanging([], total=0.05)


def test_a_connection_that_is_not_made_in_time() -> None:
    async def run() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            waiting = [socket.create_connection(("127.0.0.1", port))]  # nobody accepts: the queue is full
            try:
                model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1", connect_timeout=0.05)
                with pytest.raises(
                    TimedOut, match=r"no connection to provider `openai` within connect_timeout=0\.05 s"
                ):
                    await collect(model)
            finally:
                for connection in waiting:
                    connection.close()
        await close_session()

    asyncio.run(run())


def test_a_port_where_nobody_listens() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        with pytest.raises(Unreachable) as caught:
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY))
        message = str(caught.value)
        assert f"`openai` cannot be reached at http://127.0.0.1:{port}/v1/chat/completions" in message
        assert "check base_url" in message
        await close_session()

    asyncio.run(run())


def test_a_host_that_does_not_exist() -> None:
    async def run() -> None:
        with pytest.raises(Unreachable, match=r"cannot be reached at http://nowhere\.invalid"):
            await collect(connect("openai:m", base_url="http://nowhere.invalid/v1"))
        await close_session()

    asyncio.run(run())


def test_a_server_that_hangs_up() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert isinstance(fail(handler), Unreachable)


def test_a_server_that_does_not_speak_http() -> None:
    async def run() -> None:
        class Greets(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"220 mail.example ESMTP\r\n")

        server = await asyncio.get_running_loop().create_server(Greets, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1"))
        server.close()
        await close_session()

    asyncio.run(run())


# An answer that is an error


def refusal(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


def test_a_wrong_key() -> None:
    error = fail(answers(401, refusal(f"Incorrect API key provided: {KEY}.", code="invalid_api_key")))
    assert isinstance(error, Unauthorized)
    assert error.status == 401
    assert str(error) == (
        "provider `openai` answered 401: Incorrect API key provided: ***.; "
        "check OPENAI_API_KEY, and what that key may do"
    )


def test_a_model_that_does_not_exist() -> None:
    error = fail(answers(404, refusal("The model `m` does not exist", code="model_not_found")))
    assert isinstance(error, ModelNotFound)
    assert "check the name of model `m`" in str(error)


def test_a_page_that_does_not_exist_points_at_the_base_url() -> None:
    error = fail(answers(404, "<html><head><style>p {}</style></head><h1>Not Found</h1></html>"))
    assert isinstance(error, ModelNotFound)
    assert "answered 404: Not Found; there is nothing at http://127.0.0.1" in str(error)
    assert "check base_url" in str(error)


def test_a_request_that_is_refused() -> None:
    error = fail(answers(400, refusal("Unsupported value: 'temperature'\nonly 1 is supported")))
    assert isinstance(error, RequestRefused)
    assert str(error).endswith("400: Unsupported value: 'temperature' only 1 is supported")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_too_many_requests(headers: dict[str, str], seconds: float | None) -> None:
    error = fail(answers(429, refusal("Slow down"), **headers))
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_retry_after_may_be_a_date_or_geminis_own() -> None:
    asked = Asked("p", "m", "http://h")
    at_date = read_failure(asked, 503, {"retry-after": formatdate(1_000_030, usegmt=True)}, b"", now=1_000_000)
    assert at_date.retry_after == 30
    past = read_failure(asked, 503, {"retry-after": formatdate(999_000, usegmt=True)}, b"", now=1_000_000)
    assert past.retry_after == 0
    body = json.dumps({"error": {"code": 429, "message": "Quota", "details": [{"retryDelay": "34s"}]}}).encode()
    assert read_failure(asked, 429, {}, body, now=0).retry_after == 34


def test_no_credit_is_not_a_rate_limit() -> None:
    error = fail(answers(429, refusal("You exceeded your current quota", code="insufficient_quota")))
    assert isinstance(error, RequestRefused)
    assert "no credit" in str(error)
    assert error.status == 429


@pytest.mark.parametrize("status", [408, 409, 425, 500, 502, 503, 529])
def test_a_provider_that_is_down(status: int) -> None:
    error = fail(answers(status, refusal("Overloaded")))
    assert isinstance(error, Unavailable)
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "API key not valid. Please pass a valid API key."}}, Unauthorized),
        (
            400,
            {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa"},
            Unauthorized,
        ),
        (400, {"error": {"message": "Model Not Exist", "type": "invalid_request_error"}}, ModelNotFound),
        (400, {"message": "Invalid model: foo", "type": "invalid_model", "code": "1500"}, ModelNotFound),
        (402, {"error": {"message": "Insufficient Balance"}}, RequestRefused),
        (403, {"error": {"message": "Region not supported"}}, Unauthorized),
        (413, {"error": {"message": "Request too large"}}, RequestRefused),
        (422, {"detail": [{"msg": "field required"}]}, RequestRefused),
    ],
)
def test_providers_say_the_same_with_other_statuses(status: int, body: Any, kind: type[ProviderError]) -> None:
    assert type(read_failure(Asked("p", "m", "http://h", key="k"), status, {}, json.dumps(body).encode(), 0)) is kind


def test_a_missing_key_is_told_apart_from_a_wrong_one() -> None:
    error = read_failure(Asked("openai", "m", "http://h", "OPENAI_API_KEY"), 401, {}, b"", 0)
    assert str(error).endswith("401 without a word; the key is missing: set OPENAI_API_KEY or pass api_key=…")


def test_long_words_are_cut_and_any_key_is_masked() -> None:
    asked = Asked("p", "m", "http://h", key="plain-key")
    words = f"Bearer abcdefgh and plain-key and AIzaSyA1234567890123 and sk-proj-abcdefghi {'x' * 500}"
    message = str(read_failure(asked, 400, {}, words.encode(), 0))
    assert "Bearer *** and *** and *** and ***" in message
    assert len(message) < 400


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    error = fail(answers(status, "", Location=f"https://elsewhere.example/v1/?key={KEY}"))
    assert isinstance(error, RequestRefused)
    assert f"answered {status} and points to https://elsewhere.example/v1/; redirects are not followed" in str(error)


# Connections


def test_connections_are_shared_by_models_and_runs() -> None:
    async def run() -> int:
        async with serve(streams(CHAT)) as server:
            for _ in range(3):
                await collect(at(server))
            return len(set(server.peers))

    assert asyncio.run(run()) == 1


def test_a_kept_connection_that_died_is_replaced_once_and_silently() -> None:
    async def run() -> list[int]:
        answered: list[int] = []

        class Closes(asyncio.Protocol):
            """Answers the first request of a connection and hangs up at the second."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.transport, self.count = transport, 0

            def data_received(self, data: bytes) -> None:
                if not data.startswith(b"POST"):
                    return
                self.count += 1
                answered.append(self.count)
                if self.count > 1:
                    self.transport.abort()
                    return
                body = b"".join(CHAT)
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        server = await asyncio.get_running_loop().create_server(Closes, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1")
        for _ in range(2):
            assert verdict(await collect(model)).whole
        server.close()
        await close_session()
        return answered

    assert asyncio.run(run()) == [1, 2, 1]


def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    async def run() -> int:
        tries = 0

        class HangsUp(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal tries
                tries += 1
                transport.close()

        server = await asyncio.get_running_loop().create_server(HangsUp, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await collect(connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1"))
        server.close()
        await close_session()
        return tries

    assert asyncio.run(run()) == 1


def test_many_runs_at_once_have_a_connection_each() -> None:
    async def run() -> None:
        together = asyncio.Barrier(60)

        async def handler(request: web.Request) -> web.StreamResponse:
            await together.wait()
            return await streams(CHAT)(request)

        async with serve(handler) as server:
            model = at(server)
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(collect(model)) for _ in range(60)]
            assert all(text(task.result()) == "Hello there" for task in runs)

    asyncio.run(run())


def test_a_proxy_from_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:pass@"))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            model = connect("openai:m", base_url="http://models.example/v1", api_key=KEY)
            assert text(await collect(model)) == "Hello there"
            (sent,) = proxy.requests
            assert sent.headers["Host"] == "models.example"
            assert sent.headers["Proxy-Authorization"].startswith("Basic ")
            assert sent.headers["Authorization"] == f"Bearer {KEY}"

    asyncio.run(run())


def test_a_proxy_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def run() -> None:
        with pytest.raises(Unreachable, match=r"the proxy http://127\.0\.0\.1:9 does not answer") as caught:
            await collect(connect("openai:m", api_key=KEY, wire="openai-chat"))
        assert "secret" not in str(caught.value)
        await close_session()

    asyncio.run(run())


# Nothing is left behind

SERVER = """
import asyncio, gc, threading
from aiohttp import web
from unbroken.messages import Request, User
from unbroken.models import close_session, connect

async def handler(request):
    response = web.StreamResponse()
    try:
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\\n\\n')
        await response.write(b"data: [DONE]\\n\\n")
    except ConnectionError:
        pass
    return response

ready, port = threading.Event(), 0

async def serve():
    global port
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    ready.set()
    await done.wait()
    await runner.cleanup()

def serving():
    global done, serving_loop
    async def main():
        global done, serving_loop
        done, serving_loop = asyncio.Event(), asyncio.get_running_loop()
        await serve()
    asyncio.run(main())

thread = threading.Thread(target=serving)
thread.start()
ready.wait()
model = connect("openai:m", base_url=f"http://127.0.0.1:{port}/v1")

async def ask():
    return [delta async for delta in model.stream(Request((User.of("Hi"),)))]

def stop():
    serving_loop.call_soon_threadsafe(done.set)
    thread.join()
"""

LIVES = {
    "two runs": "asyncio.run(ask()); asyncio.run(ask()); stop()",
    "a runner": """
        with asyncio.Runner() as runner:
            runner.run(ask())
            runner.run(ask())
        stop()
    """,
    "a broken off stream": """
        async def leave():
            async for _ in model.stream(Request((User.of("Hi"),))):
                break
        asyncio.run(leave())
        stop()
    """,
    "a loop in a thread, closed by hand": """
        loop = asyncio.new_event_loop()
        runs = threading.Thread(target=loop.run_forever)
        runs.start()
        asyncio.run_coroutine_threadsafe(ask(), loop).result()
        asyncio.run_coroutine_threadsafe(close_session(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        runs.join()
        loop.close()
        stop()
    """,
    "a loop that is left open": """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask())
        stop()
        import atexit
        atexit._run_exitfuncs()
        loop.close()
    """,
    "two loops at once": """
        async def both():
            await asyncio.gather(ask(), asyncio.to_thread(lambda: asyncio.run(ask())))
        asyncio.run(both())
        stop()
    """,
    "an error": """
        async def refused():
            try:
                async for _ in connect("openai:m", base_url=f"http://127.0.0.1:{port}", first_byte=0.000001).stream(
                    Request((User.of("Hi"),))
                ):
                    pass
            except Exception as error:
                assert type(error).__name__ == "TimedOut", error
        asyncio.run(refused())
        stop()
    """,
}


@pytest.mark.parametrize("life", LIVES)
def test_no_session_is_left_open(life: str) -> None:
    assert run_script(LIVES[life], "-X", "dev", "-W", "error") == ""


def test_a_loop_closed_without_its_shutdown_leaves_no_noise_of_ours() -> None:
    """Python itself warns of the sockets, in its development mode; nobody warns of a session."""
    life = """
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask())
        loop.close()
        asyncio.run(ask())
        stop()
    """
    assert run_script(life) == ""


def run_script(life: str, *options: str) -> str:
    script = f"{SERVER}\n{textwrap.dedent(life)}\ngc.collect()\n"
    done = subprocess.run([sys.executable, *options, "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr.decode()
