"""A model over real local HTTP: what is sent, and how each response is handled."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from model_servers import (
    CALL,
    CHAT,
    HELLO,
    KEY,
    SEARCH,
    WHOLE,
    answers,
    at,
    begin,
    collect,
    encoded,
    play,
    play_hanging,
    serve,
    streams,
    text,
    verdict,
)

from unbroken.models.connect import connect
from unbroken_wires.deltas import CallReady, Delta, Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Assistant, Usage
from unbroken_wires.wires.writer import ResponseWriter

# The four wires


@pytest.mark.parametrize(
    ("provider", "wire", "path", "header", "value"),
    [
        ("openai", "openai-chat", "/v1/chat/completions", "Authorization", f"Bearer {KEY}"),
        ("openai-responses", "openai-responses", "/v1/responses", "Authorization", f"Bearer {KEY}"),
        ("anthropic", "anthropic-messages", "/v1/messages", "x-api-key", KEY),
        ("gemini", "gemini", "/v1beta/models/m:streamGenerateContent", "x-goog-api-key", KEY),
        ("azure", "openai-chat", "/openai/v1/chat/completions", "api-key", KEY),
        ("azure", "openai-responses", "/openai/v1/responses", "api-key", KEY),
        ("vertex-claude", "anthropic-messages", "/models/m:streamRawPredict", "Authorization", f"Bearer {KEY}"),
        ("ollama", "ollama", "/api/chat", "Authorization", f"Bearer {KEY}"),
        ("cohere", "cohere-v2", "/v2/chat", "Authorization", f"Bearer {KEY}"),
        ("bedrock", "bedrock-converse", "/model/m/converse-stream", "Authorization", f"Bearer {KEY}"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_each_wire_is_requested_at_its_path_and_decoded(
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
            model = connect(f"{provider}:m", base_url=base, api_key=KEY, stream=stream, wire=wire)
            deltas = await collect(model, SEARCH)
            assert text(deltas) == "Look: "
            assert [d.call.arguments for d in deltas if isinstance(d, CallReady)] == [{"q": "x"}]
            assert verdict(deltas).whole
            (sent,) = server.requests
            whole = path.replace("streamG", "g").replace("streamR", "r").replace("-stream", "")
            assert sent.path == (path if stream else whole)
            assert sent.headers[header] == value
            assert sent.headers["Content-Type"] == "application/json"
            assert ("anthropic-version" in sent.headers) == (wire == "anthropic-messages")
            assert bool(server.bodies[0].get("stream")) == (stream and wire not in ("gemini", "bedrock-converse"))
            assert (sent.query.get("alt") == "sse") == (stream and wire == "gemini")

    asyncio.run(run())


def test_settings_headers_and_query_are_sent() -> None:
    _, server = play(streams(CHAT), headers={"X-Team": "blue"}, query={"v": "2"}, temperature=0.2)
    assert server.requests[0].headers["X-Team"] == "blue"
    assert server.requests[0].query["v"] == "2"
    assert server.bodies[0]["temperature"] == 0.2


def test_without_a_key_there_is_no_header() -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            await collect(connect("compatible:m", base_url=server.url))
            assert "Authorization" not in server.requests[0].headers

    asyncio.run(run())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_function_returns_a_key_for_each_request(asynchronous: bool) -> None:
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


@pytest.mark.parametrize("key", [KEY, lambda: KEY], ids=["a key", "a function"])
def test_a_users_header_overrides_any_key(key: Any) -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            model = connect(
                "openai:m", base_url=server.url, api_key=key, headers={"authorization": "Token mine", "X": 1}
            )
            await collect(model)
            assert server.requests[0].headers.getall("Authorization") == ["Token mine"]
            assert server.requests[0].headers["X"] == "1"

    asyncio.run(run())


def test_a_user_in_the_base_url_overrides_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            base = server.url.replace("http://", "http://me:pass@")
            await collect(connect("openai:m", base_url=base).model)
            await collect(connect("anthropic:m", base_url=base).model)
            alone, both = (request.headers for request in server.requests)
            assert alone["Authorization"] == both["Authorization"] == f"Basic {b64encode(b'me:pass').decode()}"
            assert both["x-api-key"] == KEY

    asyncio.run(run())


def test_a_function_that_returns_no_key_sends_none() -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            await collect(connect("openai:m", base_url=server.url, api_key=lambda: ""))
            assert "Authorization" not in server.requests[0].headers

    asyncio.run(run())


# How the bytes arrive


def test_deltas_arrive_as_the_bytes_do() -> None:
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
            async for deltas in at(server).stream(HELLO):
                for delta in deltas:
                    if isinstance(delta, TextDelta):
                        said += delta.text
                        seen.set()
            assert said == "Hello there"

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_pieces_may_be_split_anywhere(size: int) -> None:
    body = b"".join(CHAT)
    deltas, _ = play(streams([body[i : i + size] for i in range(0, len(body), size)]))
    assert text(deltas) == "Hello there"
    assert verdict(deltas).whole


def test_a_compressed_body_is_read() -> None:
    deltas, _ = play(answers(200, gzip.compress(b"".join(CHAT)), **{"Content-Encoding": "gzip"}))
    assert text(deltas) == "Hello there"


def test_a_non_streaming_body_is_read_although_a_stream_was_requested() -> None:
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


def test_a_server_that_never_closes_is_not_waited_for_after_done() -> None:
    deltas, seconds = play_hanging(CHAT)
    assert text(deltas) == "Hello there"
    assert verdict(deltas).whole
    assert seconds < 2


def test_usage_is_waited_for_after_a_finish_reason_but_only_for_the_idle_time() -> None:
    finish = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n'
    deltas, seconds = play_hanging([finish], idle=0.05)
    assert verdict(deltas).whole
    assert seconds < 2


FINISHED = [*CHAT[:-1], CHAT[-1].partition(b"\n\n")[0] + b"\n\n"]


@pytest.mark.parametrize("sent", [CHAT, FINISHED], ids=["done", "finished"])
def test_a_connection_that_is_kept_alive_after_the_end_is_not_waited_for(sent: list[bytes]) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        for piece in sent:
            await response.write(piece)
        for _ in range(2000):
            await response.write(b": keep-alive\n\n")
            await asyncio.sleep(0.01)
        raise AssertionError("nobody went away")

    deltas, _ = play(handler, idle=0.1)
    assert verdict(deltas).whole


def test_a_connection_that_is_only_kept_alive_counts_as_silent_in_the_end() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await response.write(CHAT[0])
        for _ in range(2000):
            await response.write(b": keep-alive\n\n")
            await asyncio.sleep(0.005)
        raise AssertionError("nobody went away")

    deltas, _ = play(handler, idle=0.05)
    assert verdict(deltas).kind == "silent"


def test_a_slow_non_streaming_body_is_not_mistaken_for_keep_alive() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        body = b'{"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}'
        for place in range(0, len(body), 20):
            await response.write(body[place : place + 20])
            await asyncio.sleep(0.02)
        return response

    async def run() -> list[Delta]:
        async with serve(handler) as server:
            model = at(server, stream=False, idle=5)
            model.timeouts = replace(model.timeouts, alive=0.001)
            return await collect(model)

    deltas = asyncio.run(run())
    assert (text(deltas), verdict(deltas).kind) == ("Hello", "whole")


def test_silence_in_the_middle_ends_the_response_with_its_cause() -> None:
    deltas, _ = play_hanging(CHAT[:2], idle=0.05)
    assert text(deltas).startswith("Hello")
    assert verdict(deltas).kind == "silent"
    assert "fell silent: nothing came for idle=0.05 s" in verdict(deltas).reason


def test_total_ends_the_response_with_its_cause() -> None:
    deltas, _ = play_hanging(CHAT[:2], total=0.1)
    assert verdict(deltas).kind == "late"
    assert "total=0.1 s" in verdict(deltas).reason


def test_a_slow_consumer_is_not_silence() -> None:
    async def run() -> None:
        async with serve(streams(CHAT)) as server:
            said = ""
            async for deltas in at(server, idle=0.03, first_byte=0.5).stream(HELLO):
                said += "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
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
    assert verdict(deltas).kind == "lost"
    assert "the connection was lost" in verdict(deltas).reason


def test_a_connection_lost_after_the_end_of_the_response_is_a_complete_response() -> None:
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
