"""While a model writes what a client cannot be sent yet, the client gets signs of life that its wire allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from gateway_client import PROVIDERS, SOME_PAIRS, WEATHER, Client, serving, settings_for

from unbroken_gateway.settings import UpstreamSettings
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Request, Usage, User
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.sse import is_only_alive

pytestmark = pytest.mark.anyio

EVERY = 0.02
ALIVE = {
    "openai-chat": b": keep-alive\n\n",
    "openai-responses": b"event: response.in_progress\n",
    "anthropic-messages": b'event: ping\ndata: {"type":"ping"}\n\n',
    "gemini": b"\n",
    "ollama": b'"message":{"role":"assistant","content":""}',
    "cohere-v2": b": keep-alive\n\n",
    "bedrock-converse": b"keepAlive",
}
PINGS = {
    "openai-chat": b": processing\n\n",
    "openai-responses": b'event: keepalive\ndata: {"type":"keepalive","sequence_number":9}\n\n',
    "anthropic-messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    "gemini": b"\n\n",
    "cohere-v2": b": processing\n\n",
}
PAIRS = [(client, upstream) for client, upstream in SOME_PAIRS if client in ALIVE]
PINGED = [(client, upstream) for client, upstream in PAIRS if upstream in PINGS]
ASKED = Request((), model="big-model")
ARGUMENTS = '{"city": "Rome"}'


class Scene:
    """An upstream that writes only when the test says so, and the client's stream."""

    def __init__(self, url: str, wire: str, reading: asyncio.Queue[bytes | None]) -> None:
        self.writer = find_wire(wire).provider_writer(ASKED, "id_1")
        self.reading = reading
        self.url = url
        self.received = b""
        self._answer: aiohttp.ClientResponse | None = None

    def write(self, data: bytes) -> None:
        self.reading.put_nowait(data)

    async def until(self, condition: Callable[[bytes], bool]) -> bytes:
        """Reads from the gateway until this is true of all that came."""
        assert self._answer is not None
        while not condition(self.received):
            data = await self._answer.content.readany()
            assert data, self.received
            self.received += data
        return self.received

    async def read(self) -> None:
        """Reads to the end."""
        assert self._answer is not None
        self.received += await self._answer.read()

    def reads(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer


@asynccontextmanager
async def slow_model(
    client: str, upstream: str, *, serial: bool, keep_alive: float | None = EVERY
) -> AsyncGenerator[Scene]:
    """The model of `upstream` has been asked by a client that streams, and has not written anything."""
    reading: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def answer(http: web.Request) -> web.StreamResponse:
        await http.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        while (data := await reading.get()) is not None:
            await response.write(data)
        return response

    async with serve(answer) as url:
        base = f"{url}/v1" if upstream.startswith("openai") else url
        model = f"{PROVIDERS[upstream]}:big-model"
        row = UpstreamSettings("m", model, base_url=base, wire=upstream, serial=serial, options={"attempts": 1})
        async with serving(settings_for(row, keep_alive=keep_alive)) as gateway:
            scene = Scene(gateway, upstream, reading)
            asking = Client(gateway, client, stream=True, parallel=None, tools=(WEATHER,), messages=[User.of("Hi")])
            path, query = asking.path()
            address = f"{gateway}{path}?{query}" if query else f"{gateway}{path}"
            # The head of the answer comes with its first byte, so the model has to begin first.
            scene.write(scene.writer.begin() + scene.writer.feed(TextDelta("Let me look.")))
            async with aiohttp.ClientSession() as session, session.post(address, json=asking.body()) as answered:
                assert answered.status == 200
                scene.reads(answered)
                yield scene


@asynccontextmanager
async def serve(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def finish(scene: Scene) -> None:
    """The model ends its answer, and the client reads it to the end."""
    writer = scene.writer
    scene.write(writer.feed(UsageReported(Usage(1, 1))) + writer.feed(Ended(Verdict("whole"))))
    scene.reading.put_nowait(None)
    await scene.read()


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_client_is_not_left_in_silence_while_a_call_is_written(
    client: str, upstream: str, serial: bool
) -> None:
    async with slow_model(client, upstream, serial=serial) as scene:
        await scene.until(lambda data: b"look." in data)
        shown = len(scene.received)
        scene.write(scene.writer.open_call("call_q7Zp2mX91aKd", "get_weather") + scene.writer.grow_call(ARGUMENTS[:8]))
        await scene.until(lambda data: data[shown:].count(ALIVE[client]) >= 3)
        assert b"call_q7Zp" not in scene.received
        scene.write(scene.writer.grow_call(ARGUMENTS[8:]) + scene.writer.close_call(True))
        await finish(scene)
    decoder = Decoder(client)
    decoder.feed(scene.received)
    response = decoder.response()
    assert response.verdict.whole, response.verdict
    assert response.text == "Let me look."
    assert [(call.name, call.arguments) for call in response.calls] == [("get_weather", {"city": "Rome"})]


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize(("client", "upstream"), PINGED)
async def test_signs_of_life_of_the_model_reach_the_client_at_once(client: str, upstream: str, serial: bool) -> None:
    ping = PINGS[upstream]
    assert is_only_alive(ping)
    async with slow_model(client, upstream, serial=serial, keep_alive=None) as scene:
        await scene.until(lambda data: b"look." in data)
        scene.write(scene.writer.open_call("call_q7Zp2mX91aKd", "get_weather") + scene.writer.grow_call(ARGUMENTS[:8]))

        async def pinging() -> None:
            while True:  # again and again: two writes may arrive as one
                scene.write(ping)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(pinging())
        for _ in range(3):
            shown = len(scene.received)
            await scene.until(lambda data, shown=shown: len(data) > shown)
        task.cancel()
        assert b"call_q7Zp" not in scene.received
        scene.write(scene.writer.grow_call(ARGUMENTS[8:]) + scene.writer.close_call(True))
        await finish(scene)
    decoder = Decoder(client)
    decoder.feed(scene.received)
    assert [call.arguments for call in decoder.response().calls] == [{"city": "Rome"}]


@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_a_call_is_handed_on_though_the_next_one_begins_in_the_same_read(client: str, upstream: str) -> None:
    async with slow_model(client, upstream, serial=False) as scene:
        await scene.until(lambda data: b"look." in data)
        writer = scene.writer
        first = writer.open_call("call_q7Zp2mX91aKd", "get_weather") + writer.grow_call(ARGUMENTS)
        first += writer.close_call(True)
        second = writer.open_call("call_w8Lr5nB02cVe", "get_weather") + writer.grow_call(ARGUMENTS[:8])
        scene.write(first + second)
        received = await scene.until(lambda data: b"Rome" in data)
        assert received.count(b"Rome") >= 1
        scene.write(writer.grow_call(ARGUMENTS[8:]) + writer.close_call(True))
        await finish(scene)
    decoder = Decoder(client)
    decoder.feed(scene.received)
    assert len(decoder.response().calls) == 2


async def test_a_client_that_takes_an_array_gets_white_space() -> None:
    reading: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def answer(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        while (data := await reading.get()) is not None:
            await response.write(data)
        return response

    writer = find_wire("openai-chat").provider_writer(ASKED, "id_1")
    async with serve(answer) as url:
        row = UpstreamSettings("m", "openai-chat:big-model", base_url=f"{url}/v1", options={"attempts": 1})
        async with serving(settings_for(row, keep_alive=EVERY)) as gateway, aiohttp.ClientSession() as session:
            reading.put_nowait(writer.begin() + writer.feed(TextDelta("Hello.")))
            body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
            async with session.post(f"{gateway}/v1beta/models/m:streamGenerateContent", json=body) as answered:
                received = b""
                while not received.endswith(b"\n\n\n"):
                    received += await answered.content.readany()
                reading.put_nowait(writer.feed(Ended(Verdict("whole"))))
                reading.put_nowait(None)
                received += await answered.read()
    parts = [chunk["candidates"][0]["content"]["parts"] for chunk in json.loads(received) if chunk.get("candidates")]
    assert "".join(part.get("text", "") for each in parts for part in each) == "Hello."


async def test_nothing_is_sent_before_the_model_begins_to_answer() -> None:
    """The status of a request that fails late is still its own."""

    async def answer(http: web.Request) -> web.StreamResponse:
        await asyncio.sleep(6 * EVERY)
        return web.json_response({"error": {"message": "no more", "type": "overloaded"}}, status=529)

    async with serve(answer) as url:
        options = {"attempts": 1}
        row = UpstreamSettings("m", "anthropic:claude-opus-4-6", base_url=url, options=options)
        async with serving(settings_for(row, keep_alive=EVERY)) as gateway:
            reply = await Client(gateway, "anthropic-messages", stream=True, parallel=None).ask(User.of("Hi"))
    assert reply.status == 529
