"""A large request, or an endless provider, costs other clients nothing: neither time nor memory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_client import (
    IDS,
    MODEL_IN_PATH,
    SOME_PAIRS,
    THREE_CALLS,
    Client,
    Inside,
    path_of,
    result_of,
    run,
    serving,
    settings_for,
    upstream_settings,
)
from gateway_upstreams import FIELDS, Told, Upstream, events, telling

from unbroken_gateway.http.large_requests import LARGE, LargeRequests, MemoryBudget, is_large
from unbroken_gateway.stores.store import MemoryStore
from unbroken_gateway.turns.call_ids import new_call_id
from unbroken_testing import ScriptedServer
from unbroken_wires.deltas import CallReady, Delta, Ended, TextDelta, Verdict
from unbroken_wires.messages import Assistant, Request, ToolCall, ToolMessage, User
from unbroken_wires.wires import WIRES, find_wire

Object = dict[str, Any]
WIRE = pytest.mark.parametrize("wire", WIRES)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
MANY = 10_000


def said(wire: str, text: str) -> Object:
    parts = [{"text": text}]
    if wire == "gemini":
        return {"role": "user", "parts": parts}
    return {"role": "user", "content": parts if wire == "bedrock-converse" else text}


def question(wire: str, messages: list[Object], stream: bool = False) -> Object:
    body: Object = {FIELDS[wire]: messages}
    return body if wire in MODEL_IN_PATH else {"model": "m", "max_tokens": 9, "stream": stream, **body}


class Named:
    """A model that knows on which thread it was asked."""

    name = "named"

    def __init__(self) -> None:
        self.threads: list[str] = []

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self.threads.append(threading.current_thread().name)
        yield [TextDelta("Fine."), Ended(Verdict("whole"), Assistant("Fine."))]


@WIRE
def test_a_large_request_is_handled_in_a_separate_thread_and_a_small_one_is_not(wire: str) -> None:
    async def story() -> list[str]:
        model = Named()
        gateway = Inside({"m": model}, MemoryStore())
        path = path_of(wire)
        for messages in ([said(wire, "Hello.")], [said(wire, "x" * LARGE)], [said(wire, "x")] * 4000):
            reply = await gateway.post(path, "", json.dumps(question(wire, messages)).encode(), {})
            assert reply.status == 200, reply.data
            assert b"Fine." in reply.data
        await gateway.aclose()
        return model.threads

    here = threading.current_thread().name
    assert run(story) == [here, "unbroken-large-requests", "unbroken-large-requests"]


@WIRE
def test_others_are_answered_while_a_large_request_is_read(wire: str) -> None:
    async def story() -> int:
        async with (
            ScriptedServer("Fine.") as upstream,
            serving(settings_for(upstream_settings(upstream, wire))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            messages = [said(wire, "hi")] * MANY
            if wire == "bedrock-converse":  # roles have to alternate there
                messages = [{"role": "user", "content": [{"text": "hi"}] * MANY}]
            data = BytesIO(json.dumps(question(wire, messages)).encode())
            path = path_of(wire)
            large = asyncio.create_task(session.post(path, data=data))
            pings = 0
            while not large.done():
                async with session.get("/healthz") as answer:
                    assert answer.status == 200
                pings += 1
                await asyncio.sleep(0.01)
            async with await large as answer:
                assert answer.status == 200
            return pings

    assert run(story) >= 5  # on one loop there are as many as the request has awaits


@STREAMED
@WIRE
def test_one_call_at_a_time_works_for_a_conversation_that_becomes_large(wire: str, stream: bool) -> None:
    """The first request is small and the rest are not: what one thread stores, the other finds."""

    async def story() -> None:
        async with (
            ScriptedServer(THREE_CALLS, "Fine.") as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat", serial=True))) as url,
        ):
            client = Client(url, wire, stream)
            replies = [await client.ask(User.of("The weather?"))]
            while calls := replies[-1].response.calls:
                results = tuple(result_of(call, "Sunny." + "x" * LARGE) for call in calls)
                replies.append(await client.ask(ToolMessage(results)))
                assert len(results) == 1
            assert len(replies) == 4
            assert replies[-1].response.message.text == "Fine."
            assert len(upstream.requests) == 2

    run(story)


def test_a_client_that_leaves_ends_its_large_request_and_the_next_is_answered() -> None:
    async def story() -> None:
        data = json.dumps(question("openai-chat", [said("openai-chat", "hi")] * MANY)).encode()
        async with (
            ScriptedServer("Fine.", loop_last=True) as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            leaving = asyncio.create_task(session.post("/v1/chat/completions", data=BytesIO(data)))
            await asyncio.sleep(0.1)
            leaving.cancel()
            async with session.post("/v1/chat/completions", data=BytesIO(data)) as answer:
                assert answer.status == 200
            told = ""
            while "unbroken_requests_in_flight 0.0" not in told:
                await asyncio.sleep(0.01)
                async with session.get("/metrics") as answer:
                    told = await answer.text()

    run(story)


def test_more_values_than_allowed_are_refused_unread() -> None:
    async def story() -> None:
        model = Named()
        gateway = Inside({"m": model}, MemoryStore(), max_values=1000)
        for body in (
            question("openai-chat", [said("openai-chat", "x")] * 5000),
            {**question("openai-chat", [said("openai-chat", "x")]), "x": [1] * 600_000},
            {**question("openai-chat", [said("openai-chat", "x" * LARGE)]), "x": [["a"]] * 5000},
        ):
            reply = await gateway.post("/v1/chat/completions", "", json.dumps(body).encode(), {})
            assert (reply.status, b"1,000 values" in reply.data, b"`max_values`" in reply.data) == (413, True, True)
        await gateway.aclose()
        assert model.threads == []

    run(story)


def test_large_bodies_that_do_not_fit_in_memory_together_are_refused_for_a_moment() -> None:
    async def story() -> None:
        gateway = Inside({"m": Named()}, MemoryStore(), large_bodies=3 * LARGE)
        body = question("openai-chat", [said("openai-chat", "x" * (2 * LARGE))])
        for _ in range(2):
            reply = await gateway.post("/v1/chat/completions", "", json.dumps(body).encode(), {})
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        small = question("openai-chat", [said("openai-chat", "x" * (LARGE // 2))])
        for _ in range(5):
            assert (await gateway.post("/v1/chat/completions", "", json.dumps(small).encode(), {})).status == 200
        await gateway.aclose()

    run(story)


def test_memory_of_a_request_is_released() -> None:
    room = MemoryBudget(10 * LARGE)
    for _ in range(100):
        with room.share() as share:
            share.received(LARGE)
            share.received(3 * LARGE)
            share.holds(3 * LARGE, 10)
    with room.share() as share:
        share.received(10 * LARGE)


@asynccontextmanager
async def endless(event: bytes) -> AsyncGenerator[tuple[Upstream, dict[str, int]]]:
    """A provider that repeats itself until it is disconnected."""
    seen = {"bytes": 0, "requests": 0}

    async def answer(http: web.Request) -> web.StreamResponse:
        seen["requests"] += 1
        await http.read()
        kind = "text/event-stream" if event.startswith(b"data:") else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(http)
        while True:
            await response.write(event)
            seen["bytes"] += len(event)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield Upstream(f"http://{host}:{port}"), seen
    finally:
        await runner.cleanup()


EVENTS: Mapping[str, Object] = {
    "openai-chat": {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x" * 60_000}}]},
    "openai-responses": {"type": "response.output_text.delta", "output_index": 0, "delta": "x" * 60_000},
    "anthropic-messages": {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "x" * 60_000},
    },
    "gemini": {"candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "x" * 60_000}]}}]},
    "ollama": {"message": {"role": "assistant", "content": "x" * 60_000}, "done": False},
    "cohere-v2": {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "x" * 60_000}}}},
    "bedrock-converse": {"contentBlockDelta": {"delta": {"text": "x" * 60_000}, "contentBlockIndex": 0}},
}


@pytest.mark.parametrize("shape", ["events", "one event", "one body"])
@STREAMED
@WIRE
def test_an_endless_provider_is_disconnected_and_the_client_gets_an_error(wire: str, stream: bool, shape: str) -> None:
    framed = find_wire(wire).framing.write(json.dumps(EVENTS[wire], separators=(",", ":")).encode())
    event = framed if shape == "events" else b"x" * 60_000
    event = b"data: x" * 9000 if shape == "one event" else event

    async def story() -> None:
        async with endless(event) as (upstream, seen):
            row = upstream.settings(wire, options={"attempts": 3})
            async with serving(settings_for(row, max_response=LARGE)) as url, aiohttp.ClientSession(url) as session:
                path = path_of(wire, stream=stream) + ("?alt=sse" if wire == "gemini" and stream else "")
                async with session.post(path, json=question(wire, [said(wire, "hi")], stream)) as answer:
                    told = await answer.read()
                assert answer.status == 502 or b"error" in told or b"Exception" in told, told[-300:]
                assert (b"1,048,576 bytes" in told, b"`max_response`" in told) == (True, True)
                assert seen["requests"] == 1
                assert seen["bytes"] < 64 * LARGE  # what sockets hold, and no more

    run(story)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens"])
def test_an_endless_response_on_another_path_is_cut_off(path: str) -> None:
    wire = "openai-chat" if path == "/v1/embeddings" else "anthropic-messages"

    async def story() -> None:
        async with endless(b"x" * 60_000) as (upstream, seen):
            row = upstream.settings(wire)
            async with serving(settings_for(row, max_response=LARGE)) as url, aiohttp.ClientSession(url) as session:
                with pytest.raises(aiohttp.ClientPayloadError):
                    async with session.post(path, json=question(wire, [said(wire, "hi")])) as answer:
                        await answer.read()
                assert seen["bytes"] < 64 * LARGE

    run(story)


PARALLEL = pytest.mark.parametrize("parallel", [True, False], ids=["together", "one at a time"])


@PARALLEL
@STREAMED
@pytest.mark.parametrize(("client", "model"), SOME_PAIRS)
def test_an_answer_with_more_calls_than_allowed_is_an_error_that_names_the_setting(
    client: str, model: str, stream: bool, parallel: bool
) -> None:
    async def story() -> None:
        async with (
            ScriptedServer(THREE_CALLS, loop_last=True) as upstream,
            serving(settings_for(upstream_settings(upstream, model, serial=not parallel), max_calls=2)) as url,
            aiohttp.ClientSession(url) as session,
        ):
            path = path_of(client, stream=stream) + ("?alt=sse" if client == "gemini" and stream else "")
            async with session.post(path, json=question(client, [said(client, "hi")], stream)) as answer:
                told = await answer.text()
            assert answer.status == 502 or stream
            assert "more than the 2 calls that one answer may have: `max_calls`" in told
            assert len(upstream.requests) == 1

    run(story)


class Caller:
    """A model in Python that makes three calls."""

    name = "caller"

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        calls = tuple(ToolCall(id, "get_weather", {}, "{}", at) for at, id in enumerate(IDS))
        yield [*map(CallReady, calls), Ended(Verdict("whole"), Assistant(calls=calls))]


def test_the_calls_of_a_model_in_python_are_counted_too() -> None:
    async def story() -> None:
        body = json.dumps(question("openai-chat", [said("openai-chat", "hi")])).encode()
        for most, status in ((2, 502), (3, 200)):
            gateway = Inside({"m": Caller()}, MemoryStore(), max_calls=most)
            reply = await gateway.post("/v1/chat/completions", "", body, {})
            assert (reply.status, b"max_calls" in reply.data) == (status, status == 502), reply.data
            await gateway.aclose()

    run(story)


@PARALLEL
@STREAMED
def test_others_are_answered_while_an_answer_with_many_calls_is_read(stream: bool, parallel: bool) -> None:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in new_ids(MANY)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    whole = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    pieces = [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)]
    said_so = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in ({"role": "assistant"}, *pieces)]
    end: Object = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    told = Told(events(*said_so, end, done=True)) if stream else Told(json.dumps(whole).encode())

    async def story() -> int:
        async with (
            telling(told) as upstream,
            serving(settings_for(upstream.settings("openai-chat", serial=not parallel), max_calls=MANY)) as url,
            aiohttp.ClientSession(url) as session,
        ):
            body = question("openai-chat", [said("openai-chat", "hi")], stream)
            asking = asyncio.create_task(session.post("/v1/chat/completions", json=body))
            pings = 0
            while not asking.done():
                async with session.get("/healthz") as answer:
                    assert answer.status == 200
                pings += 1
            async with await asking as answer:
                shown = (await answer.read()).count(b'"call_')
            assert shown == (MANY if parallel else 1)
            return pings

    assert run(story) >= 5


def new_ids(count: int) -> list[str]:
    return [new_call_id() for _ in range(count)]


def test_text_alone_does_not_make_a_small_body_large() -> None:
    assert not is_large(json.dumps({"text": "x" * 900_000}).encode())
    assert not is_large(json.dumps([{"a": "b"}] * 1000).encode())
    assert is_large(json.dumps([{"a": "b"}] * 10_000).encode())
    assert is_large(json.dumps(["a"] * 20_000).encode())
    assert not is_large(json.dumps({"text": "é" * 100_000}).encode())
    assert not is_large(json.dumps([1] * 20_000).encode())
    assert is_large(json.dumps([1] * 50_000).encode())


def test_surrogate_halves_make_a_body_large() -> None:
    assert is_large(json.dumps({"text": "\ud800" * 100_000}).encode())


def test_cancelled_work_has_ended_when_its_cancellation_returns() -> None:
    ended: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(threading.current_thread().name)

    async def story() -> None:
        large = LargeRequests()
        running = asyncio.create_task(large.run(work))
        await asyncio.sleep(0)
        await asyncio.to_thread(begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == ["unbroken-large-requests"]
        with pytest.raises(ZeroDivisionError):
            await large.run(fail)
        await large.aclose()
        assert "unbroken-large-requests" not in [thread.name for thread in threading.enumerate()]

    async def fail() -> None:
        raise ZeroDivisionError

    run(story)
