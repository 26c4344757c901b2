"""Stored responses of the Responses API: read again, listed, deleted, continued, and referred to item by item, with
models of all four wires."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import plain, run, serving, settings_for, stage, upstream_settings
from gateway_upstreams import Told, telling
from open_responses import PRESENT, assert_response, events_of

from unbroken.models.scripted import Line
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.relay.references import read_rule
from unbroken_testing import Call, Say, ScriptedServer, Think, Uses
from unbroken_wires.messages import Assistant, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
UPSTREAM = pytest.mark.parametrize("upstream_wire", WIRES)
OTHERS = [wire for wire in WIRES if wire != "openai-responses"]
WEATHER: Object = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


class Caller:
    """A client that sends requests to one gateway, perhaps with a key."""

    def __init__(self, session: aiohttp.ClientSession, key: str = "") -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(self, method: str, path: str, body: Object | None = None) -> tuple[int, Any]:
        async with self._session.request(method, path, json=body, headers=self._headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def create(self, stream: bool = False, **body: Any) -> Object:
        """The final response object."""
        path = "/v1/responses"
        async with self._session.post(
            path, json={"model": "m", "stream": stream, **body}, headers=self._headers
        ) as answer:
            data = await answer.read()
            assert answer.status == 200, data
        return events_of(data)[-1]["response"] if stream else json.loads(data)


@asynccontextmanager
async def calling(upstream_wire: str, *answers: Line, **settings: Any) -> AsyncGenerator[tuple[Caller, Any]]:
    async with stage(upstream_wire, *answers, **settings) as at, aiohttp.ClientSession(at.url) as session:
        yield Caller(session), at


def user(text: str) -> Object:
    return {"role": "user", "content": text}


@STREAMED
@UPSTREAM
def test_a_response_can_be_read_again_as_it_was(upstream_wire: str, stream: bool) -> None:
    async def story() -> None:
        answer = [Think("Hm."), Say("Let me look."), Call("get_weather", city="Oslo"), Uses(10, 5)]
        async with calling(upstream_wire, answer) as (caller, _):
            made = await caller.create(stream, input="The weather?", tools=[WEATHER], metadata={"team": "blue"})
            status, found = await caller.ask("GET", f"/v1/responses/{made['id']}")
            assert (status, found) == (200, made)
            if PRESENT:
                assert_response(found)
            assert (await caller.ask("GET", f"/responses/{made['id']}"))[1] == made

    run(story)


@UPSTREAM
def test_its_input_items_are_what_the_model_was_given(upstream_wire: str) -> None:
    async def story() -> None:
        async with calling(upstream_wire, "One.", "Two.") as (caller, _):
            first = await caller.create(input="One?", instructions="Be brief.")
            second = await caller.create(input=[user("Two?")], previous_response_id=first["id"])
            path = f"/v1/responses/{second['id']}/input_items"
            status, listed = await caller.ask("GET", f"{path}?order=asc")
            assert (status, listed["object"], listed["has_more"]) == (200, "list", False)
            texts = [(item["role"], item["content"][0]["text"]) for item in listed["data"]]
            assert texts == [("user", "One?"), ("assistant", "One."), ("user", "Two?")]
            ids = [item["id"] for item in listed["data"]]
            assert (listed["first_id"], listed["last_id"], len({*ids})) == (ids[0], ids[-1], 3)
            _, newest = await caller.ask("GET", f"{path}?limit=2")
            assert ([item["id"] for item in newest["data"]], newest["has_more"]) == (ids[:0:-1], True)
            _, rest = await caller.ask("GET", f"{path}?limit=2&after={newest['last_id']}")
            assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (ids[:1], False)
            assert (await caller.ask("GET", f"{path}?limit=0"))[0] == 400
            assert (await caller.ask("GET", f"{path}?order=up"))[0] == 400

    run(story)


def test_a_stored_response_cannot_be_streamed_and_the_error_says_what_can_be_done() -> None:
    async def story() -> None:
        async with calling("openai-chat", "Hello.") as (caller, _):
            made = await caller.create(True, input="Hi")
            path = f"/v1/responses/{made['id']}"
            for query in ("?stream=true", "?stream=true&starting_after=3"):
                status, body = await caller.ask("GET", path + query)
                assert (status, body["error"]["type"]) == (400, "invalid_request_error")
                assert "Retrieve it without `stream`" in body["error"]["message"]
            assert await caller.ask("GET", f"{path}?stream=false") == (200, made)
            assert (await caller.ask("GET", "/v1/responses/resp_unknown?stream=true"))[0] == 404

    run(story)


def test_a_deleted_response_is_gone() -> None:
    async def story() -> None:
        async with calling("openai-chat", "One.", "One.") as (caller, at):
            made = await caller.create(input="One?")
            same = await caller.create(input="One?")
            path = f"/v1/responses/{made['id']}"
            assert await caller.ask("DELETE", path) == (200, {"id": made["id"], "object": "response", "deleted": True})
            for method, where in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)):
                status, body = await caller.ask(method, where)
                assert (status, body["error"]["message"]) == (404, f"Response with id '{made['id']}' not found.")
            status, _ = await caller.ask("POST", "/v1/responses", {"model": "m", "previous_response_id": made["id"]})
            assert status == 400
            reference = {"type": "item_reference", "id": made["output"][0]["id"]}
            status, _ = await caller.ask("POST", "/v1/responses", {"model": "m", "input": [reference, user("Two?")]})
            assert status == 404
            assert len(at.upstream.requests) == 2
            assert (await caller.ask("GET", f"/v1/responses/{same['id']}"))[1] == same  # the same words, another answer

    run(story)


def test_a_response_that_continued_from_a_deleted_one_can_be_read_and_says_why_its_items_cannot() -> None:
    async def story() -> None:
        async with calling("openai-chat", "One.", "Two.") as (caller, _):
            first = await caller.create(input="One?")
            second = await caller.create(input="Two?", previous_response_id=first["id"])
            path = f"/v1/responses/{second['id']}"
            await caller.ask("DELETE", f"/v1/responses/{first['id']}")
            assert await caller.ask("GET", path) == (200, second)
            status, body = await caller.ask("GET", f"{path}/input_items")
            assert status == 404
            assert "a response that it continues was deleted" in body["error"]["message"]
            more = {"model": "m", "input": "Three?", "previous_response_id": second["id"]}
            status, body = await caller.ask("POST", "/v1/responses", more)
            assert status == 400
            assert "one that it continues" in body["error"]["message"]

    run(story)


@STREAMED
@UPSTREAM
def test_a_response_that_is_not_stored_cannot_be_read(upstream_wire: str, stream: bool) -> None:
    async def story() -> None:
        async with calling(upstream_wire, "One.") as (caller, _):
            made = await caller.create(stream, input="One?", store=False)
            assert (await caller.ask("GET", f"/v1/responses/{made['id']}"))[0] == 404
            assert (await caller.ask("GET", "/v1/responses/resp_unknown"))[0] == 404

    run(story)


def test_a_response_is_stored_for_the_time_that_the_store_has() -> None:
    async def story() -> None:
        async with calling("gemini", "One.", ttl=3600) as (caller, at):
            made = await caller.create(input="One?")
            at.clock.time += 3500
            assert (await caller.ask("GET", f"/v1/responses/{made['id']}"))[0] == 200
            at.clock.time += 200
            assert (await caller.ask("GET", f"/v1/responses/{made['id']}"))[0] == 404

    run(story)


def test_only_the_key_that_made_a_response_can_use_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ann, bob = (create_key(file, GatewayKey(name)) for name in ("ann", "bob"))

    async def story() -> None:
        async with ScriptedServer("A secret.", "Two.") as upstream:
            settings = settings_for(upstream_settings(upstream, "anthropic-messages"), keys=True, keys_file=str(file))
            async with serving(settings) as url, aiohttp.ClientSession(url) as session:
                made = await Caller(session, ann).create(input="One?")
                path, other = f"/v1/responses/{made['id']}", Caller(session, bob)
                for method, where in (("GET", path), ("GET", f"{path}/input_items"), ("DELETE", path)):
                    assert (await other.ask(method, where))[0] == 404
                reference = {"type": "item_reference", "id": made["output"][0]["id"]}
                body: Object = {"model": "m", "input": [user("One?"), reference, user("Go on.")]}
                assert (await other.ask("POST", "/v1/responses", body))[0] == 404
                assert (await Caller(session).ask("GET", path))[0] == 401
                assert (await Caller(session, ann).ask("GET", path))[0] == 200
                assert (await Caller(session, ann).ask("POST", "/v1/responses", body))[0] == 200
            assert len(upstream.requests) == 2

    run(story)


@STREAMED
@pytest.mark.parametrize("upstream_wire", OTHERS)
def test_references_to_items_are_resolved(upstream_wire: str, stream: bool) -> None:
    """As the AI SDK sends a history by default: items of the model by their ids alone."""

    async def story() -> None:
        first = [Say("Let me look."), Call("get_weather", city="Oslo", id="call_q7Zp2mX91aKd")]
        async with calling(upstream_wire, first, "Sunny.") as (caller, at):
            made = await caller.create(stream, input="The weather?", tools=[WEATHER])
            text, call = made["output"]
            await caller.create(
                stream,
                tools=[WEATHER],
                input=[
                    user("The weather?"),
                    {"type": "item_reference", "id": text["id"]},
                    {"id": call["id"]},
                    {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny."},
                ],
            )
            assert [plain(message) for message in at.asked[1]] == [
                User.of("The weather?"),
                Assistant("Let me look.", (ToolCall("", "get_weather", {"city": "Oslo"}),)),
                ToolMessage((ToolResult("", (Text("Sunny."),)),)),
            ]

    run(story)


@pytest.mark.parametrize("upstream_wire", OTHERS)
def test_an_unknown_reference_is_an_error_in_the_words_of_openai(upstream_wire: str) -> None:
    async def story() -> None:
        async with calling(upstream_wire) as (caller, at):
            body = {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}, user("Go on.")]}
            status, answer = await caller.ask("POST", "/v1/responses", body)
            error = answer["error"]
            assert (status, error["type"], error["param"]) == (404, "invalid_request_error", "input")
            assert error["message"].startswith("Item with id 'msg_1' not found.")
            assert not at.upstream.requests

    run(story)


def test_a_reference_that_only_the_provider_knows_goes_to_it() -> None:
    async def story() -> None:
        async with ScriptedServer("Fine.", strict=False) as upstream:
            async with (
                serving(settings_for(upstream_settings(upstream, "openai-responses"))) as url,
                aiohttp.ClientSession(url) as session,
            ):
                said = [{"type": "item_reference", "id": "msg_1"}, user("Go on.")]
                await Caller(session).create(input=said)
            assert upstream.bodies[0]["input"] == said

    run(story)


def test_an_item_id_that_two_answers_share_is_not_resolved() -> None:
    """Some servers begin to count again with each response."""
    items = [
        {"id": "msg_0", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        for text in ("Ann's answer.", "Bob's answer.")
    ]
    bodies = [
        {"id": f"resp_{at}", "object": "response", "status": "completed", "output": [item]}
        for at, item in enumerate(items)
    ]

    async def story() -> None:
        async with telling(*(Told(json.dumps(body).encode()) for body in bodies)) as upstream:
            aliases = [upstream.settings("openai-responses"), upstream.settings("openai-chat", "other")]
            async with serving(settings_for(*aliases)) as url, aiohttp.ClientSession(url) as session:
                caller = Caller(session)
                for question in ("Ann?", "Bob?"):
                    await caller.create(input=question)
                said = [{"type": "item_reference", "id": "msg_0"}, user("Go on.")]
                status, _ = await caller.ask("POST", "/v1/responses", {"model": "other", "input": said})
                assert status == 404
            assert len(upstream.asked) == 2

    run(story)


@UPSTREAM
def test_background_is_refused_with_a_way_out(upstream_wire: str) -> None:
    async def story() -> None:
        async with calling(upstream_wire) as (caller, at):
            body = {"model": "m", "input": "Go.", "background": True}
            status, answer = await caller.ask("POST", "/v1/responses", body)
            assert (status, "`stream`" in answer["error"]["message"]) == (400, True)
            assert (await caller.ask("POST", "/v1/responses/resp_1/cancel"))[0] == 400
            assert not at.upstream.requests

    run(story)


def test_an_unknown_previous_response_has_the_code_of_openai() -> None:
    async def story() -> None:
        async with calling("gemini") as (caller, _):
            body = {"model": "m", "input": "Go on.", "previous_response_id": "resp_unknown"}
            status, answer = await caller.ask("POST", "/v1/responses", body)
            error = answer["error"]
            assert (status, error["code"]) == (400, "previous_response_not_found")
            assert error["param"] == "previous_response_id"

    run(story)


def test_a_response_that_is_not_stored_here_is_read_from_the_provider_if_a_rule_says_so() -> None:
    async def story() -> None:
        async with telling(Told(b'{"id": "resp_theirs", "object": "response"}')) as upstream:
            rules = ("GET /v1/responses/*",)
            settings = settings_for(upstream.settings("openai-responses"), passes=rules)
            async with serving(settings) as url, aiohttp.ClientSession(url) as session:
                status, body = await Caller(session).ask("GET", "/v1/responses/resp_theirs")
                assert (status, body["id"]) == (200, "resp_theirs")
                assert (await Caller(session).ask("DELETE", "/v1/responses/resp_theirs"))[0] == 404
            assert [str(read_rule(rules[0]))] == list(rules)
            assert [(asked.method, asked.path) for asked in upstream.asked] == [("GET", "/v1/responses/resp_theirs")]

    run(story)


REPEATED: tuple[Object, ...] = (
    {"metadata": {"id": "msg_victim123"}},
    {"tools": [{"type": "function", "name": "f", "parameters": {"properties": {"id": "msg_victim123"}}}]},
)


@pytest.mark.parametrize("repeated", REPEATED, ids=["metadata", "tools"])
@pytest.mark.parametrize("upstream_wire", ["openai-responses", "openai-chat"])
def test_an_id_in_a_setting_that_a_response_repeats_is_no_item_of_its_key(
    upstream_wire: str, repeated: Object, tmp_path: Path
) -> None:
    """Otherwise a key could make the items of all others its own, and the provider would read them to it."""
    text: Object = {"type": "output_text", "text": "Hello.", "annotations": []}
    message: Object = {"id": "msg_own123", "type": "message", "role": "assistant", "content": [text]}
    told: Object = {"id": "resp_1", "object": "response", "status": "completed", "output": [message], **repeated}
    chat = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}
    answer = Told(json.dumps(told if upstream_wire == "openai-responses" else chat).encode())
    key = create_key(tmp_path / "keys", GatewayKey("mallory"))

    async def story() -> None:
        async with telling(answer) as upstream, telling(Told(json.dumps(told).encode())) as victims:
            rows = (upstream.settings(upstream_wire), victims.settings("openai-responses", "victims"))
            settings = settings_for(*rows, keys=True, keys_file=str(tmp_path / "keys"))
            async with serving(settings) as url, aiohttp.ClientSession(url) as session:
                mallory = Caller(session, key)
                made = await mallory.create(input="Hello.", **repeated)
                for id, expected in (("msg_victim123", 404), (made["output"][0]["id"], 200)):
                    said = [{"type": "item_reference", "id": id}, user("Repeat it.")]
                    status, _ = await mallory.ask("POST", "/v1/responses", {"model": "victims", "input": said})
                    assert (id, status) == (id, expected)

    run(story)


def test_a_page_of_input_items_with_an_endless_limit_is_refused() -> None:
    async def story() -> None:
        async with calling("openai-chat", "Hello.") as (caller, _):
            made = await caller.create(input="Hello.")
            path = f"/v1/responses/{made['id']}/input_items?limit={'9' * 5000}"
            status, told = await caller.ask("GET", path)
            assert (status, "limit" in told["error"]["message"]) == (400, True)

    run(story)
