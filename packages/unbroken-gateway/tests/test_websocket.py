"""The Responses API over a WebSocket: the same events as over HTTP, one message each, several requests in a row on one
connection, and what a connection remembers of a response that is not stored."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import Stage, plain, run, serving, settings_for, stage, upstream_settings
from open_responses import ENDS, PRESENT, assert_socket_error, assert_stream

from unbroken.errors import ProviderError
from unbroken.models.scripted import Line
from unbroken_gateway import GatewaySettings, UpstreamSettings, running
from unbroken_gateway.keys import GatewayKey, create_key, revoke_key
from unbroken_testing import Break, Call, Fail, Say, ScriptedServer, Uses
from unbroken_wires.messages import Assistant, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import WIRES

pytest.importorskip("websockets", reason="the package is in the extra `gateway`")

Object = dict[str, Any]
UPSTREAM = pytest.mark.parametrize("upstream_wire", WIRES)
WEATHER: Object = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


class Connection:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, **body: Any) -> None:
        await self.socket.send_str(json.dumps({"type": "response.create", "model": "m", **body}))

    async def begin(self, size: int) -> None:
        """The first bytes of a message of 30 MB."""
        socket = self.socket.get_extra_info("socket")
        assert socket is not None
        frame = b"\x81\xff" + (30 << 20).to_bytes(8, "big") + bytes(4) + b" " * size
        while frame:
            with suppress(BlockingIOError):
                frame = frame[os.write(socket.fileno(), frame) :]
            await asyncio.sleep(0)

    async def receive(self) -> list[Object]:
        """The events up to the end of the next answer."""
        events: list[Object] = []
        while not events or events[-1]["type"] not in (*ENDS, "error"):
            events.append(await self.socket.receive_json())
        return events

    async def create(self, **body: Any) -> Object:
        """The final response."""
        await self.send(**body)
        events = await self.receive()
        assert events[-1]["type"] != "error", events
        return assert_stream(events) if PRESENT else events[-1]["response"]

    async def refused(self, **body: Any) -> Object:
        """The error."""
        await self.send(**body)
        (event,) = await self.receive()
        if PRESENT:
            assert_socket_error(event)
        return {"status": event["status"], **event["error"]}


@asynccontextmanager
async def connecting(url: str, path: str = "/v1/responses", **headers: str) -> AsyncGenerator[Connection]:
    async with aiohttp.ClientSession(url) as session, session.ws_connect(path, headers=headers) as socket:
        yield Connection(socket)


@asynccontextmanager
async def connected(wire: str, *answers: Line, **settings: Any) -> AsyncGenerator[tuple[Connection, Stage]]:
    async with stage(wire, *answers, **settings) as at, connecting(at.url) as connection:
        yield connection, at


def text_of(response: Object) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


@UPSTREAM
def test_events_are_messages_and_requests_follow_each_other(upstream_wire: str) -> None:
    async def story() -> None:
        calls = [Say("Let me look."), Call("get_weather", city="Oslo"), Uses(9, 4)]
        async with connected(upstream_wire, "First.", calls, "Third.") as (connection, at):
            assert text_of(await connection.create(input="One?", temperature=0.5)) == "First."
            response = await connection.create(input="Two?", tools=[WEATHER])
            assert [item["type"] for item in response["output"]] == ["message", "function_call"]
            assert text_of(await connection.create(input="Three?")) == "Third."
            assert [list(asked) for asked in at.asked[::2]] == [[User.of("One?")], [User.of("Three?")]]
            assert not [body for body in at.upstream.bodies if "type" in body]

    run(story)


@UPSTREAM
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_connection_continues_from_its_last_response(upstream_wire: str, store: bool) -> None:
    async def story() -> None:
        first = [Say("Let me look."), Call("get_weather", city="Oslo", id="call_q7Zp2mX91aKd")]
        async with connected(upstream_wire, first, "Sunny.", "Welcome.") as (connection, at):
            made = await connection.create(input="Oslo?", tools=[WEATHER], store=store)
            output = {"type": "function_call_output", "call_id": made["output"][1]["call_id"], "output": "Sun"}
            more: Object = {"tools": [WEATHER], "store": store}
            made = await connection.create(input=[output], previous_response_id=made["id"], **more)
            await connection.create(input="Thanks.", previous_response_id=made["id"], **more)
            assert [plain(said) for said in at.asked[2]] == [
                User.of("Oslo?"),
                Assistant("Let me look.", (ToolCall("", "get_weather", {"city": "Oslo"}),)),
                ToolMessage((ToolResult("", (Text("Sun"),)),)),
                Assistant("Sunny."),
                User.of("Thanks."),
            ]

    run(story)


def test_a_stored_response_after_one_that_is_not_has_the_complete_conversation() -> None:
    async def story() -> None:
        async with connected("gemini", "One.", "Two.", "Three.") as (connection, at):
            first = await connection.create(input="One?", store=False)
            second = await connection.create(input="Two?", previous_response_id=first["id"])
            async with connecting(at.url) as other:
                await other.create(input="Three?", previous_response_id=second["id"])
            said = [User.of("One?"), Assistant("One."), User.of("Two?"), Assistant("Two."), User.of("Three?")]
            assert at.asked[2] == said

    run(story)


def test_another_connection_does_not_find_what_is_not_stored() -> None:
    async def story() -> None:
        async with connected("openai-chat", "One.", "Two.") as (connection, at):
            made = await connection.create(input="One?", store=False)
            async with connecting(at.url) as other:
                error = await other.refused(input="Two?", previous_response_id=made["id"], store=False)
                assert (error["status"], error["code"]) == (400, "previous_response_not_found")
                assert text_of(await other.create(input="Two?", store=False)) == "Two."  # it is still open

    run(story)


@pytest.mark.parametrize(
    "answers", [("One.",), ("One.", [Fail(ProviderError("no", status=500))]), ("One.", [Say("Tw"), Break()])]
)
def test_a_request_that_fails_evicts_what_it_continued_from(answers: tuple[Line, ...]) -> None:
    """Without a second answer, the request itself is wrong: it has the result of a call that nobody made."""

    async def story() -> None:
        async with connected("anthropic-messages", *answers) as (connection, at):
            made = await connection.create(input="One?", store=False)
            output = {"type": "function_call_output", "call_id": "call_missing", "output": "?"}
            said = "Two?" if len(answers) > 1 else [output]
            await connection.send(input=said, previous_response_id=made["id"], store=False)
            failed = (await connection.receive())[-1]
            assert failed["type"] in ("error", "response.failed")
            error = await connection.refused(input="Three?", previous_response_id=made["id"], store=False)
            assert error["code"] == "previous_response_not_found"
            assert len(at.upstream.requests) == len(answers)

    run(story)


def test_a_request_without_generation_prepares_the_next() -> None:
    async def story() -> None:
        async with connected("openai-responses", "Yes.") as (connection, at):
            made = await connection.create(input="One?", generate=False, store=False)
            assert (made["output"], made["status"]) == ([], "completed")
            await connection.create(input="Two?", previous_response_id=made["id"], store=False)
            assert at.asked == [[User.of("One?"), User.of("Two?")]]
            assert "generate" not in at.upstream.bodies[0]

    run(story)


def test_a_message_that_is_no_request_is_an_error_and_the_connection_stays_open() -> None:
    async def story() -> None:
        async with connected("openai-chat", "Yes.") as (connection, _):
            for text in ("not JSON", "[]", '{"type": "response.cancel"}', '{"model": "m", "input": "x"}'):
                await connection.socket.send_str(text)
                (event,) = await connection.receive()
                assert (event["type"], event["status"]) == ("error", 400)
            wrong: list[Object] = [{"model": "unknown"}, {"input": []}, {"background": True}]
            for body in wrong:
                assert (await connection.refused(**{"input": "x", **body}))["status"] in (400, 404)
            await connection.socket.send_bytes(b'{"type": "response.create", "model": "m", "input": "x"}')
            assert (await connection.receive())[-1]["type"] == "response.completed"

    run(story)


def test_requests_that_are_sent_at_once_are_answered_in_their_order() -> None:
    async def story() -> None:
        async with connected("openai-chat", "1.", "2.", "3.") as (connection, _):
            for number in range(3):
                await connection.send(input=str(number))
            answers = [text_of((await connection.receive())[-1]["response"]) for _ in range(3)]
            assert answers == ["1.", "2.", "3."]

    run(story)


def test_a_client_that_leaves_ends_its_request_to_the_model() -> None:
    async def story() -> None:
        async with stage("openai-chat", [Say("Wait", after=0.0), Say(" for it.", after=30.0)]) as at:
            async with connecting(at.url) as connection:
                await connection.send(input="One?")
                while (await connection.socket.receive_json())["type"] != "response.output_text.delta":
                    pass
            async with asyncio.timeout(5):
                while await in_flight(at.url):
                    await asyncio.sleep(0.01)

    run(story)


async def in_flight(url: str) -> float:
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("unbroken") and "in_flight" in line)


def test_a_connection_needs_a_key_and_sees_only_its_own_responses(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ann, bob = (create_key(file, GatewayKey(name)) for name in ("ann", "bob"))

    async def story() -> None:
        async with ScriptedServer("A secret.") as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), keys=True, keys_file=str(file))
            async with serving(settings) as url:
                for headers in ({}, {"Authorization": "Bearer wrong"}):
                    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                        async with connecting(url, **headers):
                            pass
                    assert refused.value.status == 401
                async with connecting(url, Authorization=f"Bearer {ann}") as connection:
                    made = await connection.create(input="One?")
                async with connecting(url, Authorization=f"Bearer {bob}") as connection:
                    error = await connection.refused(input="Two?", previous_response_id=made["id"])
                    assert error["code"] == "previous_response_not_found"

    run(story)


def test_a_connection_whose_key_is_revoked_is_closed_at_its_next_request(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ann = create_key(file, GatewayKey("ann"))

    async def story(connection: Connection) -> None:
        assert "wrong key" in (await connection.refused(input="One?"))["message"]  # of the provider
        assert text_of(await connection.create(input="Two?")) == "Fine."
        revoke_key(file, "ann")
        assert (await connection.refused(input="Three?"))["status"] == 401
        closed = await connection.socket.receive()
        assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        assert closed.extra == "the key of this connection is not valid any more"

    async def with_gateway() -> None:
        wrong = Fail(ProviderError("wrong key", status=401))
        async with (
            stage("openai-chat", wrong, "Fine.", keys=True, keys_file=str(file), look_every=1e-9) as at,
            connecting(at.url, Authorization=f"Bearer {ann}") as connection,
        ):
            await story(connection)

    run(with_gateway)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/chat/completions", {}, 404),
        ("/nowhere", {}, 404),
        ("/v1/responses", {"Origin": "https://elsewhere.example"}, 403),
    ],
)
def test_other_paths_and_foreign_pages_get_no_connection(path: str, headers: dict[str, str], status: int) -> None:
    async def story() -> None:
        async with stage("openai-chat") as at:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with connecting(at.url, path, **headers):
                    pass
            assert refused.value.status == status

    run(story)


def test_a_message_beyond_the_limit_of_a_body_closes_the_connection() -> None:
    async def story() -> None:
        async with connected("openai-chat", max_body=4096) as (connection, at):
            await connection.send(input="x" * 5000)
            closed = await connection.socket.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1009)
            assert not at.upstream.requests

    run(story)


def test_a_gateway_that_stops_lets_the_answer_end() -> None:
    async def story() -> None:
        async with ScriptedServer([Say("One two three.", over=0.3)]) as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"))
            serving_it = serving(settings)
            url = await serving_it.__aenter__()
            async with connecting(url) as connection:
                await connection.send(input="Count.")
                first = await connection.socket.receive_json()
                stopped = asyncio.create_task(serving_it.__aexit__(None, None, None))
                events = [first, *await connection.receive()]
                assert events[-1]["type"] == "response.completed"
                closed = await connection.socket.receive()
                assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1012)
            await stopped

    run(story)


def test_a_gateway_that_serves_as_a_process_does_has_connections() -> None:
    """`serve` and `running` set up the server in one place."""

    async def story(url: str) -> None:
        async with connecting(url, "/responses") as connection:
            assert text_of(await connection.create(model="demo", input="Hello"))

    settings = GatewaySettings((UpstreamSettings("demo", "demo"),), store="memory:", port=0)
    with running(settings) as url:
        run(lambda: story(url))


def test_a_handshake_with_too_many_headers_is_refused() -> None:
    async def story() -> None:
        async with stage("openai-chat", max_headers=4096) as at:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with connecting(at.url, **{"X-More": "x" * 5000}):
                    pass
            assert refused.value.status == 431

    run(story)


def test_a_connection_without_requests_is_closed_in_the_end() -> None:
    async def story() -> None:
        async with connected("openai-chat", websocket_idle=0.05) as (connection, _):
            closed = await connection.socket.receive()
            assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1001)

    run(story)


def test_requests_that_wait_count_for_the_memory_of_large_bodies() -> None:
    async def story() -> None:
        slow = [Say("Wait", after=0.0), Say(" for it.", after=30.0)]
        async with connected("openai-chat", slow, large_bodies=1 << 20) as (connection, _):
            await connection.send(input="x")
            for size in (600_000, 600_000):
                await connection.send(input="x" * size)
            refused = await connection.socket.receive_json()
            while refused["type"] != "error":
                refused = await connection.socket.receive_json()
            assert (refused["status"], "memory" in refused["error"]["message"]) == (503, True)

    run(story)


def test_a_message_that_is_not_completed_in_time_ends_the_connection() -> None:
    async def story() -> None:
        async with stage("openai-chat", body_timeout=0.2) as at, connecting(at.url) as connection:
            await connection.begin(9)
            assert (await connection.socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)

    run(story)


def test_unfinished_messages_are_bounded_together() -> None:
    async def story() -> None:
        async with stage("openai-chat", "Fine.", large_bodies=1 << 20, body_timeout=0.5) as at:
            async with connecting(at.url) as one, connecting(at.url) as two:
                for connection in (one, two):
                    await connection.begin(600_000)
                ends = [await each.socket.receive() for each in (one, two)]
                assert sorted(end.type for end in ends) == [aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED]
                assert [end.data for end in ends if end.type == aiohttp.WSMsgType.CLOSE] == [1013]
            async with connecting(at.url) as three:  # the memory of both is free again
                await three.begin(600_000)
                assert (await three.socket.receive()).type == aiohttp.WSMsgType.CLOSED

    run(story)


def test_a_text_that_is_not_utf_8_is_an_error_of_the_request() -> None:
    async def story() -> None:
        async with stage("openai-chat", "Fine.") as at, connecting(at.url) as connection:
            transport = connection.socket.get_extra_info("socket")
            assert transport is not None
            os.write(transport.fileno(), b"\x81\x82" + bytes(4) + b"\xff\xfe")
            assert (await connection.socket.receive_json())["status"] == 400
            assert text_of(await connection.create(input="Hello.")) == "Fine."

    run(story)
