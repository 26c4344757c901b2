"""The Responses API on our store, token counts, lists of models, and forwarding of OpenAI's other paths."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from gateway_client import (
    CITIES,
    THREE_CALLS,
    WEATHER,
    Client,
    Reply,
    plain,
    result_of,
    run,
    serving,
    settings_for,
    upstream_settings,
)
from gateway_upstreams import Asked, Told, events, telling

from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import Assistant, Message, System, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
UPSTREAM = pytest.mark.parametrize("upstream_wire", WIRES)
RESPONSES = "openai-responses"


def response_id(reply: Reply) -> str:
    """As a client of the wire has it: from the first event, or from the body."""
    assert reply.status == 200, reply.data
    text = reply.data.split(b"data: ", 2)[1].split(b"\n\n")[0] if reply.data.startswith(b"event:") else reply.data
    body = json.loads(text)
    return body.get("response", body)["id"]


class Chained:
    """A client that sends only what is new, and continues from the previous response."""

    def __init__(self, url: str, stream: bool, **more: Any) -> None:
        self._client = Client(url, RESPONSES, stream, parallel=None)
        self._more = more
        self.last = ""

    async def ask(self, *said: Object, **more: Any) -> Reply:
        body: Object = {**self._client.body([User.of("x")]), "input": list(said), **self._more, **more}
        if self.last:
            body["previous_response_id"] = self.last
        reply = await self._client.post(body)
        if reply.status == 200:
            self.last = response_id(reply)
        return reply

    async def answer(self, reply: Reply, **more: Any) -> Reply:
        outputs: list[Object] = [
            {"type": "function_call_output", "call_id": call.id, "output": result_of(call).text}
            for call in reply.response.calls
        ]
        return await self.ask(*outputs, **more)


def user(text: str) -> Object:
    return {"role": "user", "content": text}


TURN = Assistant("Let me look.", tuple(ToolCall("", "get_weather", {"city": city}) for city in CITIES))
RESULTS = ToolMessage(tuple(ToolResult("", (Text(f"Sunny in {city}."),)) for city in CITIES))


@STREAMED
@pytest.mark.parametrize("serial", [False, True], ids=["at-once", "one-by-one"])
@UPSTREAM
def test_a_conversation_continues_from_the_previous_response(upstream_wire: str, serial: bool, stream: bool) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Sunny everywhere.", "You are welcome.", "Yes?") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire, serial=serial))) as url:
                client = Chained(url, stream, instructions="Be brief.")
                reply = await client.ask(user("Three cities?"))
                while reply.response.calls:
                    reply = await client.answer(reply)
                assert reply.response.text == "Sunny everywhere."
                middle = client.last
                reply = await client.ask(user("Thank you."))
                assert reply.response.text == "You are welcome."
                # back to where it was, and another way from there
                client.last = middle
                await client.ask(user("Wait."), instructions="Be long.")
            told: list[Message] = [System.of("Be brief."), User.of("Three cities?"), TURN, RESULTS]
            told += [Assistant("Sunny everywhere."), User.of("Thank you.")]
            assert [plain(message) for message in upstream.requests[2].messages] == told
            told[0], told[-1] = System.of("Be long."), User.of("Wait.")
            assert [plain(message) for message in upstream.requests[3].messages] == told
            assert not [body for body in upstream.bodies if "previous_response_id" in body]

    run(story)


@STREAMED
@UPSTREAM
def test_a_response_that_was_not_stored_is_not_found(upstream_wire: str, stream: bool) -> None:
    async def story() -> None:
        async with ScriptedServer("One.", "Two.", "Three.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, upstream_wire))) as url:
                client = Chained(url, stream)
                await client.ask(user("One?"), store=False)
                refused = await client.ask(user("Two?"))
                assert refused.status == 400
                message = refused.body["error"]["message"]
                assert client.last in message
                assert "store=false" in message
                client.last = "resp_unknown"
                refused = await client.ask(user("Two?"))
                assert (refused.status, "resp_unknown" in refused.body["error"]["message"]) == (400, True)
            assert len(upstream.requests) == 1

    run(story)


def test_the_responses_of_one_key_are_not_found_by_another(tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    ann, bob = (create_key(file, GatewayKey(name)) for name in ("ann", "bob"))

    async def story() -> None:
        async with ScriptedServer("One.", "Two.") as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), keys=True, keys_file=str(file))
            async with serving(settings) as url:
                client = Client(url, RESPONSES, parallel=None, headers={"Authorization": f"Bearer {ann}"})
                last = response_id(await client.post({"model": "m", "input": "A secret of Ann's."}))
                client.headers = {"Authorization": f"Bearer {bob}"}
                refused = await client.post({"model": "m", "input": "Go on.", "previous_response_id": last})
                assert refused.status == 400
            assert len(upstream.requests) == 1

    run(story)


def test_input_may_be_a_string() -> None:
    async def story() -> None:
        async with ScriptedServer("One.", "Two.") as upstream:
            async with serving(settings_for(upstream_settings(upstream, "gemini"))) as url:
                client = Client(url, RESPONSES, parallel=None)
                last = response_id(await client.post({"model": "m", "input": "One?"}))
                reply = await client.post({"model": "m", "input": "Two?", "previous_response_id": last})
                assert reply.response.text == "Two."
            heard = [User.of("One?"), Assistant("One."), User.of("Two?")]
            assert list(upstream.requests[1].messages) == heard

    run(story)


@STREAMED
def test_signatures_of_a_provider_are_sent_back_along_the_chain(stream: bool) -> None:
    """The client never sees the signature, and sends only what is new."""
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM1gbcDa9GJw=="},
        {"type": "tool_use", "id": "toolu_01A09q90qw90lq917835", "name": "get_weather", "input": {"city": "Oslo"}},
    ]
    answer = {"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}

    async def story() -> None:
        whole = Told(json.dumps(answer).encode())
        async with telling(whole) as upstream, serving(settings_for(upstream.settings("anthropic-messages"))) as url:
            client = Chained(url, stream)
            await client.answer(await client.ask(user("Oslo?")))
            assert upstream.asked[1].body["messages"][1]["content"] == blocks

    run(story)


ELSEWHERE: dict[str, Object] = {
    "conversation": {"input": "Go on.", "conversation": "conv_1"},
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "compaction": {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}, user("Go on.")]},
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_ids_that_only_openai_knows_are_refused_for_another_wire(what: str) -> None:
    """Continuing without it would answer another question."""

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True, strict=False) as upstream:
            aliases = [upstream_settings(upstream, wire, alias=wire) for wire in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for wire in WIRES:
                    reply = await Client(url, RESPONSES, parallel=None).post({"model": wire, **ELSEWHERE[what]})
                    if wire == RESPONSES:
                        assert reply.status == 200
                    else:
                        assert (reply.status, what in reply.body["error"]["message"]) == (400, True), wire
            assert upstream.bodies == [{"model": "big-model", **ELSEWHERE[what]}]

    run(story)


# Counting


def test_tokens_are_counted_by_a_provider_that_can_and_otherwise_estimated() -> None:
    async def story() -> None:
        async with telling(Told(b'{"input_tokens": 14, "x_more": 1}')) as upstream:
            aliases = [upstream.settings(wire, wire) for wire in WIRES]
            async with serving(settings_for(*aliases)) as url, aiohttp.ClientSession(url) as session:
                body: Object = {
                    "model": "anthropic-messages",
                    "system": "Be brief.",
                    "messages": [{"role": "user", "content": "Hello there, how are you?"}],
                    "tools": [{"name": "get_weather", "input_schema": dict(WEATHER.parameters)}],
                    "x_unknown": 2**70,
                }
                headers = {"anthropic-beta": "token-counting-x", "x-api-key": "client-secret"}
                path = "/v1/messages/count_tokens"
                async with session.post(path, json=body, headers=headers) as answer:
                    assert await answer.json() == {"input_tokens": 14, "x_more": 1}
                    assert "x-unbroken-estimated" not in answer.headers
                (asked,) = upstream.asked
                assert asked.path == path
                assert asked.body == {**body, "model": "big-model"}
                assert asked.headers["anthropic-beta"] == "token-counting-x"
                assert "client-secret" not in str(asked.headers)

                for other in ("openai-chat", RESPONSES, "gemini"):
                    async with session.post(path, json={**body, "model": other}) as answer:
                        counted = await answer.json()
                        assert answer.headers["x-unbroken-estimated"] == "true"
                    assert counted.keys() == {"input_tokens"}
                    assert 20 < counted["input_tokens"] < 80
                contents = {"contents": [{"role": "user", "parts": [{"text": "Hello there, how are you?"}]}]}
                async with session.post("/v1beta/models/openai-chat:countTokens", json=contents) as answer:
                    counted = await answer.json()
                    assert answer.headers["x-unbroken-estimated"] == "true"
                assert 4 < counted["totalTokens"] < 20
                assert len(upstream.asked) == 1

                nested = {"generateContentRequest": {"model": "models/m", **contents}}  # the other form of the API
                async with session.post("/v1beta/models/openai-chat:countTokens", json=nested) as answer:
                    assert (answer.status, (await answer.json())["totalTokens"]) == (200, counted["totalTokens"])

    run(story)


def test_tokens_of_a_responses_request_are_counted_with_the_conversation_that_it_continues() -> None:
    async def story() -> None:
        counted = b'{"object": "response.input_tokens", "input_tokens": 14}'

        said = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi."}],
        }
        answer = {"id": "resp_01", "object": "response", "status": "completed", "output": [said]}

        async with telling(Told(json.dumps(answer).encode()), Told(counted)) as upstream:
            aliases = [upstream.settings(wire, wire) for wire in (RESPONSES, "openai-chat")]
            async with serving(settings_for(*aliases)) as url, aiohttp.ClientSession(url) as session:
                path, body = "/v1/responses/input_tokens", {"input": "Hello there, how are you?"}
                async with session.post("/v1/responses", json={"model": RESPONSES, "input": "First."}) as made:
                    id = (await made.json())["id"]
                more = {**body, "model": RESPONSES, "previous_response_id": id}
                async with session.post(path, json=more) as told:
                    assert await told.json() == {"object": "response.input_tokens", "input_tokens": 14}
                    assert "x-unbroken-estimated" not in told.headers
                assert upstream.asked[-1].path == "/v1/responses/input_tokens"
                assert "First." in str(upstream.asked[-1].body["input"])
                assert "previous_response_id" not in upstream.asked[-1].body
                estimates: list[int] = []
                for fields in ({}, {"previous_response_id": id}):
                    async with session.post(path, json={**body, "model": "openai-chat", **fields}) as told:
                        assert told.headers["x-unbroken-estimated"] == "true"
                        estimated = await told.json()
                    assert estimated["object"] == "response.input_tokens"
                    estimates.append(estimated["input_tokens"])
                assert estimates[0] < estimates[1]

    run(story)


def test_tokens_are_estimated_if_a_server_of_the_responses_api_does_not_count() -> None:
    async def story() -> None:
        async with (
            telling(Told(b'{"error": {"message": "no such path"}}', 404)) as upstream,
            serving(settings_for(upstream.settings(RESPONSES))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            async with session.post("/v1/responses/input_tokens", json={"model": "m", "input": "Hello."}) as answer:
                assert (answer.status, answer.headers["x-unbroken-estimated"]) == (200, "true")
            async with session.post("/v1/responses/input_tokens", json={"model": "m"}) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (400, "invalid_request_error")

    run(story)


def test_a_count_that_the_provider_refuses_is_refused_with_its_message() -> None:
    async def story() -> None:
        told = Told(b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}', 400)
        async with (
            telling(told) as upstream,
            serving(settings_for(upstream.settings("anthropic-messages"))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
            async with session.post("/v1/messages/count_tokens", json=body) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["message"] == "no"
            async with session.post("/v1/messages/count_tokens", json={"model": "m"}) as answer:
                assert answer.status == 400
                assert (await answer.json())["type"] == "error"

    run(story)


# Gemini


def test_a_gemini_stream_is_one_array_unless_events_were_requested() -> None:
    async def story() -> None:
        async with ScriptedServer(*[THREE_CALLS] * len(WIRES)) as upstream:
            aliases = [upstream_settings(upstream, wire, alias=wire) for wire in WIRES]
            async with serving(settings_for(*aliases)) as url, aiohttp.ClientSession(url) as session:
                for wire in WIRES:
                    body = Client(url, "gemini", parallel=None).body([User.of("Three cities?")])
                    async with session.post(f"/v1beta/models/{wire}:streamGenerateContent", json=body) as answer:
                        assert answer.content_type == "application/json"
                        chunks = await answer.json()
                    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"].get("parts", [])]
                    assert "".join(part.get("text", "") for part in parts) == "Let me look."
                    assert [part["functionCall"]["args"]["city"] for part in parts if "functionCall" in part] == list(
                        CITIES
                    )
                    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"

    run(story)


def test_an_error_in_such_a_stream_leaves_valid_json() -> None:
    event = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "index": 0}]}
    data = f"data: {json.dumps(event)}\n\n".encode()

    async def story() -> None:
        async with (
            telling(Told([data], cut=True)) as upstream,
            serving(settings_for(upstream.settings("gemini"))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            body = {"contents": [{"role": "user", "parts": [{"text": "Hello."}]}]}
            async with session.post("/v1beta/models/m:streamGenerateContent", json=body) as answer:
                first, *_, last = await answer.json()
                assert first == event
                assert last["error"]["status"]

    run(story)


# Lists


def test_the_list_of_models_is_read_by_the_clients_of_all_wires() -> None:
    async def story() -> None:
        async with ScriptedServer() as upstream:
            aliases = [upstream_settings(upstream, "gemini", alias=alias) for alias in ("fast", "smart")]
            async with serving(settings_for(*aliases)) as url, aiohttp.ClientSession(url) as session:
                async with session.get("/v1/models") as answer:
                    body = await answer.json()
                assert body["object"] == "list"
                assert [(model["id"], model["object"]) for model in body["data"]] == [
                    ("fast", "model"),
                    ("smart", "model"),
                ]
                assert all(isinstance(model["created"], int) for model in body["data"])
                assert all(model["owned_by"] for model in body["data"])
                assert [model["type"] for model in body["data"]] == ["model", "model"]
                assert all(model["created_at"].endswith("Z") for model in body["data"])
                assert [body["first_id"], body["last_id"], body["has_more"]] == ["fast", "smart", False]
                async with session.get("/v1beta/models") as answer:
                    listed = (await answer.json())["models"]
                assert [model["name"] for model in listed] == ["models/fast", "models/smart"]
                assert all("generateContent" in model["supportedGenerationMethods"] for model in listed)
                for path in ("/v1/models/fast", "/v1beta/models/fast"):
                    async with session.get(path) as answer:
                        assert answer.status == 200, path
                        one = await answer.json()
                        # What the packages `openai`, `anthropic` (in its strict mode) and `google-genai` require.
                        assert (one["id"], one["object"], one["type"]) == ("fast", "model", "model")
                        assert (one["display_name"], one["lifecycle"]) == ("fast", "active")
                        assert (one["name"], one["displayName"]) == ("models/fast", "fast")
                        assert one["created_at"].endswith("Z")
                async with session.get("/v1/models/none") as answer:
                    assert answer.status == 404

    run(story)


# Other paths


def embeddings(asked: Asked) -> Told:
    return Told(json.dumps({"object": "list", "path": asked.path, "query": asked.query}).encode())


@pytest.fixture
def key_file(tmp_path: Any) -> str:
    file = tmp_path / "key"
    file.write_text("sk-upstream-key\n")
    return str(file)


def test_forwarded_requests_and_their_failures_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with telling(embeddings, Told(b"{}", 503), Told(b"{}", 404)) as upstream:
            gone = UpstreamSettings("gone", "openai-chat:x", base_url="http://127.0.0.1:1/v1")
            settings = settings_for(upstream.settings("openai-chat", "one"), gone)
            async with serving(settings) as url, aiohttp.ClientSession(url) as session:
                for status in (200, 503, 404):
                    async with session.post("/v1/embeddings", json={"model": "one", "input": "Hello."}) as answer:
                        assert answer.status == status
                async with session.post("/v1/embeddings", json={"model": "gone", "input": "Hello."}) as answer:
                    assert (answer.status, (await answer.json())["error"]["type"]) == (502, "server_error")
                async with session.get("/metrics") as answer:
                    metrics = await answer.text()
                async with session.get("/status.json") as answer:
                    told = (await answer.json())["status"]
        for alias, status in (("one", 200), ("one", 503), ("one", 404), ("gone", 502)):
            labels = f'alias="{alias}",client="passed",status="{status}",upstream="openai-chat"'
            assert f"unbroken_requests_total{{{labels}}} 1.0" in metrics
        assert 'unbroken_upstream_errors_total{alias="one",kind="unavailable"} 1.0' in metrics
        assert 'unbroken_upstream_errors_total{alias="gone",kind="unreachable"} 1.0' in metrics
        assert "unbroken_requests_in_flight 0.0" in metrics
        assert [request["client_wire"] for request in told["recent"]] == ["passed"] * 4
        assert [(one["alias"], one["requests"], one["errors"]) for one in told["upstreams"]] == [
            ("one", 3, 1),
            ("gone", 1, 1),
        ]

    run(story)
    assert "a model failed alias=gone key=-: provider `openai-chat` cannot be reached" in caplog.text


@STREAMED
def test_a_response_is_found_by_its_own_id_even_if_another_comes_first(stream: bool) -> None:
    item = {"id": "msg_0001", "type": "message", "role": "assistant", "status": "completed"}
    said_so: Object = {**item, "content": [{"type": "output_text", "text": "Fine.", "annotations": []}]}
    whole: Object = {"output": [said_so], "prompt": {"id": "pmpt_1"}, "id": "resp_0001", "object": "response"}
    whole |= {"status": "completed", "model": "big-model", "usage": {"input_tokens": 1, "output_tokens": 1}}
    begun: Object = {**whole, "status": "in_progress", "output": [], "usage": None}
    where: Object = {"output_index": 0, "item_id": "msg_0001"}
    steps: list[Object] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", "content_index": 0, "delta": "Fine.", **where},
        {"type": "response.output_item.done", "output_index": 0, "item": said_so},
        {"type": "response.completed", "response": whole},
    ]
    told = Told(events(*steps, named=True) if stream else json.dumps(whole).encode())

    async def story() -> None:
        async with telling(told) as upstream, serving(settings_for(upstream.settings(RESPONSES))) as url:
            client = Chained(url, stream)
            await client.ask(user("Hello."))
            assert client.last == "resp_0001"
            assert (await client.ask(user("And now?"))).status == 200
            assert len(upstream.asked[1].body["input"]) == 3

    run(story)


def test_other_paths_go_to_the_provider_with_its_key_and_not_the_clients(key_file: str, tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    listed = ("POST /v1/embeddings", "GET /v1/files", "POST /v1/files", "DELETE /v1/files/*")
    secret = create_key(file, GatewayKey("ann", passes=tuple(map(read_rule, listed))))
    made = Told(b'{"id": "file-abc123def", "object": "file"}')

    async def story() -> None:
        async with telling(embeddings, made, embeddings) as first, telling(embeddings) as second:
            aliases = [
                first.settings("anthropic-messages", "claude"),
                first.settings("openai-chat", "one", api_key_file=key_file),
                second.settings(RESPONSES, "two", api_key_file=key_file),
            ]
            settings = settings_for(*aliases, keys=True, keys_file=str(file))
            headers = {"Authorization": f"Bearer {secret}", "Cookie": "session=1", "OpenAI-Beta": "assistants=v2"}
            async with serving(settings) as url, aiohttp.ClientSession(url, headers=headers) as session:
                body = {"model": "two", "input": "Hello.", "x_unknown": 2**70}
                async with session.post("/v1/embeddings", json=body) as answer:
                    assert (await answer.json())["path"] == "/v1/embeddings"
                assert second.asked[0].body == {**body, "model": "big-model"}
                async with session.get("/v1/files?limit=2&after=a%20b") as answer:
                    assert (await answer.json())["path"] == "/v1/files"
                assert first.asked[0].query in ("limit=2&after=a%20b", "limit=2&after=a+b")
                form = aiohttp.FormData({"purpose": "batch"})
                form.add_field("file", b"\x00\xff", filename="a.bin")
                async with session.post("/v1/files", data=form) as answer:
                    assert answer.status == 200
                assert first.asked[1].headers["content-type"].startswith("multipart/form-data")
                assert b"\x00\xff" in first.asked[1].data
                async with session.delete("/v1/files/file-abc123def") as answer:
                    assert answer.status == 200
                assert [asked.method for asked in first.asked] == ["GET", "POST", "DELETE"]
                async with session.get(f"/v1/files?key={secret}&limit=1", headers={"Authorization": ""}) as answer:
                    assert answer.status == 200
                assert "limit=1" in first.asked[3].query
                for asked in (*first.asked, *second.asked):
                    assert asked.headers["authorization"] == "Bearer sk-upstream-key"
                    assert secret not in f"{asked.headers} {asked.query} {asked.path}"
                    assert "cookie" not in asked.headers
                    assert asked.headers["openai-beta"] == "assistants=v2"

    run(story)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin",
        "/v1/files/../../admin",
        "/v1/files/..",
        "/v1/%2e%2e/admin",
        "/v1/files/%2e%2e%2f%2e%2e%2fadmin",
        "/v1//evil.example/x",
        "/v1/\\..\\admin",
        "/v1/files/.%2e/x",
        "/v1/%2Fevil.example",
        "//evil.example/v1/files",
        "http://evil.example/v1/files",
    ],
)
def test_a_path_that_leads_elsewhere_is_not_forwarded(path: str) -> None:
    async def story() -> None:
        async with (
            telling(embeddings) as upstream,
            serving(settings_for(upstream.settings("openai-chat"), passes=("GET /v1/files", "GET /v1/files/*"))) as url,
        ):
            reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            status = int(answer.split(b" ")[1])
            if path == "http://evil.example/v1/files":  # the absolute form: only its path counts
                assert [asked.path for asked in upstream.asked] == ["/v1/files"]
            else:
                assert status in (400, 403, 404), answer
                assert upstream.asked == []

    run(story)


def test_a_redirect_of_the_provider_is_not_followed() -> None:
    async def story() -> None:
        async with telling(embeddings) as other:
            for status in (301, 302, 303, 307, 308):
                moved = Told(b"", status, {"Location": f"{other.url}/v1/embeddings"})
                async with telling(moved) as upstream, serving(settings_for(upstream.settings("openai-chat"))) as url:
                    async with (
                        aiohttp.ClientSession(url) as session,
                        session.post("/v1/embeddings", json={"model": "m"}, allow_redirects=False) as answer,
                    ):
                        assert answer.status == 502
                        assert "redirect" in (await answer.json())["error"]["message"]
                        assert "Location" not in answer.headers
                    reply = await Client(url, "openai-chat", parallel=None).ask(User.of("Hello."))
                    assert reply.status >= 400
            assert other.asked == []

    run(story)


def test_a_path_that_no_upstream_supports_is_not_found() -> None:
    async def story() -> None:
        async with telling(embeddings) as upstream, serving(settings_for(upstream.settings("gemini"))) as url:
            async with aiohttp.ClientSession(url) as session, session.post("/v1/embeddings", json={}) as answer:
                assert answer.status == 404
                assert "OpenAI" in (await answer.json())["error"]["message"]
            assert upstream.asked == []

    run(story)


def test_a_key_reaches_only_its_own_models_on_other_paths_too(tmp_path: Any) -> None:
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("ann", aliases=("cheap",)))

    async def story() -> None:
        async with telling(embeddings) as upstream:
            aliases = [upstream.settings("openai-chat", "dear"), upstream.settings("openai-chat", "cheap")]
            settings = settings_for(*aliases, keys=True, keys_file=str(file))
            headers = {"Authorization": f"Bearer {secret}"}
            async with serving(settings) as url, aiohttp.ClientSession(url, headers=headers) as session:
                for model in ("dear", "the-providers-dearest"):
                    async with session.post("/v1/completions", json={"model": model, "prompt": "x"}) as answer:
                        assert answer.status == 404, model
                async with session.post("/v1/completions", json={"model": "cheap", "prompt": "x"}) as answer:
                    assert answer.status == 200
            assert [asked.body["model"] for asked in upstream.asked] == ["big-model"]

    run(story)


def test_a_stream_of_a_provider_on_another_path_is_forwarded_unchanged() -> None:
    async def story() -> None:
        data = [b"data: one\n\n", b"data: two\n\n", b"\x00\xff"]
        told = Told(data, 200, {"Content-Disposition": "attachment", "Set-Cookie": "a=1", "Server": "x"})
        async with (
            telling(told) as upstream,
            serving(settings_for(upstream.settings("openai-chat"))) as url,
            aiohttp.ClientSession(url) as session,
            session.post("/v1/audio/speech", json={"model": "m"}) as answer,
        ):
            assert await answer.read() == b"".join(data)
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.headers["Content-Disposition"] == "attachment"
            assert "Set-Cookie" not in answer.headers

    run(story)
