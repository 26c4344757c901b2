"""Invalid input of clients: each request gets the right status, in the format of its path's wire, and none causes a
failure of the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Generator, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from gateway_client import (
    MODEL_IN_PATH,
    WEATHER,
    Client,
    Reply,
    assert_error,
    error_in,
    path_of,
    result_of,
    run,
    serving,
    settings_for,
    stage,
    upstream_settings,
)
from gateway_upstreams import FIELDS

from unbroken_gateway.keys import GatewayKey, create_key, revoke_key
from unbroken_testing import Pause, Say, ScriptedServer
from unbroken_wires.messages import Assistant, Media, System, ToolCall, ToolMessage, User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]
WIRE = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture(autouse=True)
def nothing_fails_inside(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """A traceback in the log is our failure, whatever a client has sent."""
    caplog.set_level(logging.INFO)
    yield
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


NO_JSON = {
    "nothing": b"",
    "no JSON": b"{model:",
    "half of it": b'{"model": "m", "messages": [{"role": "user"',
    "a list": b"[]",
    "a text": b'"m"',
    "a null": b"null",
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "another encoding": '{"model": "m"}'.encode("utf-16"),
    "two of them": b'{"model": "m"}{"model": "m"}',
    "not a number": b'{"model": "m", "temperature": nan}',
}


@WIRE
def test_a_body_that_is_not_a_json_object_is_refused(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer() as upstream, serving(settings_for(upstream_settings(upstream, wire))) as url:
            for what, data in NO_JSON.items():
                error = assert_error(wire, await Client(url, wire).post(data), 400, "the body is not")
                kind = error.get("status" if wire == "gemini" else "type")
                assert kind in (None, "INVALID_ARGUMENT" if wire == "gemini" else "invalid_request_error"), what
            deep = b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            assert_error(wire, await Client(url, wire).post(deep), 400, "nested deeper")
            brackets = json.dumps({"model": "m", FIELDS[wire]: "[" * 100_000}).encode()
            assert "nested" not in (await Client(url, wire).post(brackets)).data.decode()
            assert upstream.bodies == [] or wire == "openai-responses"

    run(story)


NOTHING: list[Any] = [None, "", 5, [], {}]
NO_LIST: list[Any] = [5, {}, True]


@WIRE
def test_a_request_without_model_or_messages_names_what_is_missing(wire: str) -> None:
    field = FIELDS[wire]

    async def story() -> None:
        async with ScriptedServer() as upstream, serving(settings_for(upstream_settings(upstream, wire))) as url:
            client = Client(url, wire)
            body = client.body([User.of("Hello.")])
            if wire not in MODEL_IN_PATH:
                for value in NOTHING:
                    error = assert_error(wire, await client.post({**body, "model": value}), 400, "`model`")
                    assert "/v1/models" in error["message"]
            without = {name: value for name, value in body.items() if name != field}
            assert_error(wire, await client.post(without), 400, f"`{field}` is missing")
            for wrong in NO_LIST:
                assert_error(wire, await client.post({**body, field: wrong}), 400, f"`{field}`", "list")
            assert_error(wire, await client.post({**body, field: []}), 400, f"`{field}` is empty")
            assert_error(wire, await client.post({**body, field: [5]}), 400, f"`{field}[0]`")
            assert upstream.bodies == []

    run(story)


@WIRE
def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer() as upstream:
            aliases = [upstream_settings(upstream, wire, alias=alias) for alias in ("fast", "smart")]
            async with serving(settings_for(*aliases)) as url:
                for name in ("slow", "fast ", "FAST", "models/slow", "x" * 5000, "a\tb", "../fast"):
                    client = Client(url, wire, model=name if wire not in MODEL_IN_PATH else name.replace("/", "%2F"))
                    body = client.body([User.of("Hello.")])
                    if wire == "gemini":
                        body.pop("model", None)
                    error = assert_error(wire, await client.post(body), 404, "fast, smart")
                    assert len(error["message"]) < 500
                    kinds = {"anthropic-messages": ("type", "not_found_error"), "gemini": ("status", "NOT_FOUND")}
                    key, kind = kinds.get(wire, ("code", "model_not_found"))
                    assert error.get(key, kind) == kind
            assert upstream.bodies == []

    run(story)


WRONG: list[Any] = [True, -1, 1.5, 2**70, "x", "\x00", [1], [None], {"a": 1}, "\ud800", [[]]]
TYPED = {
    "openai-chat": (
        "stream",
        "tools",
        "stream_options",
        "parallel_tool_calls",
        "temperature",
        "max_tokens",
        "metadata",
        "tool_choice",
        "reasoning_effort",
        "stop",
        "seed",
    ),
    "openai-responses": (
        "stream",
        "tools",
        "parallel_tool_calls",
        "temperature",
        "max_output_tokens",
        "metadata",
        "instructions",
        "tool_choice",
        "reasoning",
        "text",
        "store",
    ),
    "anthropic-messages": (
        "stream",
        "tools",
        "temperature",
        "top_p",
        "max_tokens",
        "metadata",
        "system",
        "thinking",
        "stop_sequences",
    ),
    "gemini": ("tools", "generationConfig", "systemInstruction", "system_instruction", "toolConfig"),
    "ollama": ("stream", "tools", "options", "think", "format"),
    "cohere-v2": ("stream", "tools", "tool_choice", "strict_tools", "temperature", "p", "seed", "stop_sequences"),
    "bedrock-converse": ("system", "inferenceConfig", "toolConfig", "additionalModelRequestFields"),
}
KINDS: dict[str, type | tuple[type, ...]] = {
    "stream": bool,
    "parallel_tool_calls": bool,
    "tools": list,
    "temperature": (int, float),
    "top_p": (int, float),
    "max_tokens": int,
    "max_output_tokens": int,
    "stream_options": dict,
    "metadata": dict,
    "generationConfig": dict,
    "tool_choice": (str, dict),
    "reasoning_effort": str,
    "stop": (str, list),
    "seed": int,
    "instructions": str,
    "reasoning": dict,
    "text": dict,
    "store": bool,
    "system": (str, list),
    "thinking": dict,
    "stop_sequences": list,
    "systemInstruction": (str, dict),
    "system_instruction": (str, dict),
    "toolConfig": dict,
    "options": dict,
    "think": (bool, str),
    "format": (str, dict),
    "strict_tools": bool,
    "p": (int, float),
    "inferenceConfig": dict,
    "additionalModelRequestFields": dict,
}


@WIRE
def test_fields_of_a_wrong_type_are_named(wire: str) -> None:
    def wrong(client: Client) -> Iterator[tuple[Object, str]]:
        for field in TYPED[wire]:
            kinds = KINDS[field]
            takes_flags = kinds is bool or (isinstance(kinds, tuple) and bool in kinds)
            for value in WRONG:
                right = isinstance(value, kinds) and not (isinstance(value, bool) and not takes_flags)
                if not right and not ((wire, field) == ("bedrock-converse", "system") and isinstance(value, list)):
                    yield {**client.body([User.of("Hello.")]), field: value}, field

    run(partial(all_are_refused, wire, wrong))


async def all_are_refused(wire: str, bodies: Callable[[Client], Iterator[tuple[Object, str]]]) -> None:
    """For every upstream wire: each body, with the name of what is wrong in it."""
    async with ScriptedServer("Fine.", loop_last=True, strict=False) as upstream:
        aliases = [upstream_settings(upstream, other, alias=other, options={"attempts": 1}) for other in WIRES]
        async with serving(settings_for(*aliases)) as url:
            for other in WIRES:
                client = Client(url, wire, parallel=None, model=other)
                for body, name in bodies(client):
                    assert_error(wire, await client.post(json.dumps(body).encode()), 400, f"`{name}`")
        assert upstream.bodies == []


LOST: dict[str, list[tuple[str, Object | str]]] = {
    "openai-chat": [
        ("messages[0].role", {"role": 5, "content": "Hello."}),
        ("messages[0].content", {"role": "user", "content": 5}),
        ("messages[0].content", {"role": "user", "content": {"type": "text", "text": "Hello."}}),
        ("messages[0].content[0]", {"role": "user", "content": [5]}),
        ("messages[0].content[0].text", {"role": "user", "content": [{"type": "text", "text": ["Hello."]}]}),
        ("messages[0].tool_calls", {"role": "assistant", "tool_calls": {"id": "a"}}),
    ],
    "openai-responses": [
        ("input[0]", "Hello."),
        ("input[0]", {"content": "Hello."}),
        ("input[0]", {"role": "visitor", "content": "Hello."}),
        ("input[0].content", {"role": "user", "content": 5}),
        ("input[0].content[0]", {"role": "user", "content": ["Hello."]}),
        ("input[0].content[0].text", {"role": "user", "content": [{"type": "input_text", "text": 5}]}),
        ("input[0]", {"type": "function_call_output", "call_id": "a", "output": {"sum": 5}}),
    ],
    "anthropic-messages": [
        ("messages[0].content", {"role": "user", "content": 5}),
        ("messages[0].content[0]", {"role": "user", "content": ["Hello."]}),
        ("messages[0].content[0].text", {"role": "user", "content": [{"type": "text", "text": 5}]}),
        ("messages[0]", {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 5}]}),
    ],
    "gemini": [
        ("contents[0].parts", {"role": "user", "parts": 5}),
        ("contents[0].parts[0]", {"role": "user", "parts": ["Hello."]}),
        ("contents[0].parts[0].text", {"role": "user", "parts": [{"text": 5}]}),
    ],
    "ollama": [
        ("messages[0].role", {"role": 5, "content": "Hello."}),
        ("messages[0].content", {"role": "user", "content": [{"type": "text", "text": "Hello."}]}),
        ("messages[0].images", {"role": "user", "content": "", "images": "AAAA"}),
        ("messages[0].tool_calls", {"role": "assistant", "tool_calls": {"id": "a"}}),
    ],
    "cohere-v2": [
        ("messages[0].content", {"role": "user", "content": 5}),
        ("messages[0].content[0]", {"role": "user", "content": ["Hello."]}),
        ("messages[0].content[0].text", {"role": "user", "content": [{"type": "text", "text": 5}]}),
        ("messages[0].tool_calls", {"role": "assistant", "tool_calls": {"id": "a"}}),
    ],
    "bedrock-converse": [
        ("messages[0].content", {"role": "user", "content": "Hello."}),
        ("messages[0].content[0]", {"role": "user", "content": ["Hello."]}),
        ("messages[0].content[0].text", {"role": "user", "content": [{"text": 5}]}),
        ("messages[0].content[0].toolResult", {"role": "user", "content": [{"toolResult": "ok"}]}),
    ],
}


@WIRE
def test_a_message_that_would_be_lost_because_of_a_wrong_type_is_named(wire: str) -> None:
    def lost(client: Client) -> Iterator[tuple[Object, str]]:
        for place, message in LOST[wire]:
            yield {**client.body([User.of("Hello.")]), place.partition("[")[0]: [message]}, place

    run(partial(all_are_refused, wire, lost))


ANYTHING: list[Any] = [
    *WRONG,
    None,
    0,
    "",
    [],
    {},
    [{"a": 1}],
    {"type": "text"},
    {"type": "tool_use"},
    {"functionCall": {}},
    {"functionResponse": None},
    [{"type": 5}],
    {"role": "tool"},
]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in cast("Object", value).items():
            yield from places_in(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(cast("list[Any]", value)):
            yield from places_in(inner, (*path, at))


def with_something_else(body: Object, chance: random.Random) -> Object:
    bent = json.loads(json.dumps(body))
    for _ in range(chance.choice((1, 1, 2, 3))):
        *above, last = chance.choice(list(places_in(bent)))
        inside: Any = bent
        for key in above:
            inside = inside[key]
        inside[last] = deepcopy(chance.choice(ANYTHING))  # else it could be put into itself
    return bent


@WIRE
def test_a_null_in_place_of_a_list_is_no_list_and_the_model_is_asked_without_it(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer([Say("Hello.")]) as upstream:
            async with serving(settings_for(upstream_settings(upstream, wire))) as url:
                client = Client(url, wire)
                body = client.body([User.of("Hi"), Assistant("Hello."), User.of("Hi")])
                body.pop("tool_choice", None)
                lists = [name for name, types in WIRES[wire].http.message_fields.items() if types == (list,)]
                nulls = dict.fromkeys(name for name in lists if name != "content")
                said = body[FIELDS[wire]]
                messages = [said[0], {**said[1], **nulls}, *said[2:]]
                reply = await client.post({**body, "tools": None, FIELDS[wire]: messages})
            assert reply.status == 200, reply.data
            (sent,) = upstream.bodies
            assert "tools" not in sent
            assert not any(value is None for message in sent[FIELDS[wire]] for value in message.values())

    run(story)


REFUSES_EMPTY = ("anthropic-messages", "gemini", "cohere-v2", "bedrock-converse")


@WIRE
def test_a_user_message_without_content_is_named_where_its_provider_refuses_it(wire: str) -> None:
    async def story() -> None:
        server = ScriptedServer("Hello.", loop_last=True)
        async with server as upstream, serving(settings_for(upstream_settings(upstream, wire))) as url:
            client = Client(url, wire)
            body, parts = client.body([User.of("Hi")]), WIRES[wire].http.parts_field
            empty: str | list[Object] = [] if wire == "bedrock-converse" else ""
            for content in (None, empty):
                reply = await client.post({**body, FIELDS[wire]: [{"role": "user", parts: content}]})
                if wire in REFUSES_EMPTY or (content is None and wire != "ollama"):
                    assert_error(wire, reply, 400, "is a user message without content")
                else:
                    assert reply.status == 200, reply.data

    run(story)


@pytest.mark.parametrize("model", REFUSES_EMPTY)
def test_a_request_with_nothing_but_empty_messages_is_refused_before_a_model_that_takes_none(model: str) -> None:
    async def story() -> None:
        async with stage(model, "Hello.") as scene:
            client = scene.client("openai-chat", False, parallel=None)
            reply = await client.post({**client.body([User.of("Hi")]), "messages": [{"role": "user", "content": ""}]})
        assert_error("openai-chat", reply, 400, "all messages are empty")

    run(story)


@WIRE
def test_invalid_bodies_never_cause_a_failure_of_the_gateway(wire: str) -> None:
    chance = random.Random(wire)
    call = ToolCall("call_Zq8wLk3vTb", "get_weather", {"city": "Oslo"})
    history = [
        System.of("Be brief."),
        User.of("Oslo?", Media(mime="image/png", data="AAAA")),
        Assistant("I look.", (call, ToolCall("b2", "get_weather", {"city": "Lima"}))),
        ToolMessage((result_of(call), result_of(ToolCall("b2", "get_weather", {}), "Error: no"))),
        User.of("And?"),
    ]

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [upstream_settings(upstream, other, alias=other, options={"attempts": 1}) for other in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for number in range(240):
                    model = chance.choice(list(WIRES))
                    client = Client(url, wire, number % 3 == 0, parallel=chance.choice((None, False)), model=model)
                    body = with_something_else(client.body(list(history)), chance)
                    reply = await client.post(json.dumps(body).encode())
                    assert reply.status in (200, 400, 404), (reply.status, reply.data, json.dumps(body))

    run(story)


@WIRE
def test_an_id_of_thousands_of_characters_is_accepted_and_a_huge_one_is_not(wire: str) -> None:
    call = ToolCall("MARK", "get_weather", {"city": "Oslo"})

    async def story() -> None:
        async with (
            ScriptedServer("Fine.", loop_last=True, strict=False) as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"))) as url,
        ):
            client = Client(url, wire, parallel=None)
            body = json.dumps(client.body([User.of("Oslo?"), Assistant("", (call,)), ToolMessage((result_of(call),))]))
            assert (await client.post(body.replace("MARK", "a1" * 10_000).encode())).status == 200
            refused = await client.post(body.replace("MARK", "a1" * 450_000).encode())
            assert_error(wire, refused, 400, "the id of a call has 900,000 characters")

    run(story)


def test_a_number_that_is_too_long_is_named_as_such() -> None:
    async def story() -> None:
        async with (
            ScriptedServer("Fine.") as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"))) as url,
        ):
            for size in (60_000, 2_000_000):  # a large body is read in pieces
                head = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "seed": '
                reply = await Client(url, "openai-chat").post(head + b"9" * size + b"}")
                assert_error("openai-chat", reply, 400, "a number has more than 4,300 digits")

    run(story)


def test_a_character_that_json_cannot_represent_does_not_reach_the_model() -> None:
    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [upstream_settings(upstream, wire, alias=wire) for wire in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for wire in WIRES:
                    for other in WIRES:
                        client = Client(url, wire, parallel=None, model=other)
                        data = json.dumps(client.body([User.of("MARK")])).replace("MARK", r"a\ud800b\u0000c 🙂")
                        reply = await client.post(data.encode())
                        assert reply.status == 200, reply.data
                        heard = upstream.requests[-1].messages[0]
                        assert isinstance(heard, User)
                        assert heard.text == "a\ufffdb\x00c 🙂"

    run(story)


@WIRE
def test_a_body_that_is_too_large_is_refused_unread(wire: str) -> None:
    async def story() -> None:
        async with ScriptedServer() as upstream:
            settings = settings_for(upstream_settings(upstream, wire), max_body=10_000)
            async with serving(settings) as url:
                client = Client(url, wire)
                error = assert_error(wire, await client.post(b" " * 10_001), 413, "10,001", "10,000", "`max_body`")
                if wire == "anthropic-messages":
                    assert error["type"] == "request_too_large"

                async def dripping() -> Any:
                    for _ in range(20):
                        yield b" " * 1000

                path = path_of(wire)
                async with aiohttp.ClientSession() as session, session.post(url + path, data=dripping()) as answer:
                    assert (answer.status, "`max_body`" in await answer.text()) == (413, True)
                assert upstream.bodies == []

    run(story)


# Keys


KEYS = pytest.mark.parametrize(
    "header", ["Authorization", "x-api-key", "x-goog-api-key", "api-key", "?key="], ids=lambda name: name.strip("?=")
)


async def ask(url: str, wire: str, key: str, header: str = "Authorization", **more: Any) -> Reply:
    headers = {header: f"Bearer {key}" if header == "Authorization" else key} if key else {}
    return await Client(url, wire, parallel=None, headers=headers, **more).ask(User.of("Hello."))


@KEYS
def test_a_key_is_found_wherever_clients_put_it(header: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("ann"))

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), keys=True, keys_file=str(file))
            async with serving(settings) as url:
                for wire in WIRES:
                    if header == "?key=":
                        path = path_of(wire)
                        data = json.dumps(Client(url, wire).body([User.of("Hello.")])).encode()
                        address = f"{url}{path}?key={secret}"
                        async with aiohttp.ClientSession() as session, session.post(address, data=data) as answer:
                            assert answer.status == 200
                    else:
                        assert (await ask(url, wire, secret, header)).status == 200
            assert secret not in str(upstream.headers)
            assert secret not in str(upstream.bodies)

    run(story)


@WIRE
def test_no_key_or_a_wrong_one_is_unauthorized(wire: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("ann"))

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            settings = settings_for(upstream_settings(upstream, wire), keys=True, keys_file=str(file), look_every=1e-9)
            async with serving(settings) as url:
                kinds = {
                    "anthropic-messages": ("type", "authentication_error"),
                    "gemini": ("status", "UNAUTHENTICATED"),
                }
                key, kind = kinds.get(wire, ("code", "invalid_api_key"))
                for wrong in ("", "ub-wrong", secret[:-1], secret + "x", "x" * 5000):
                    error = assert_error(wire, await ask(url, wire, wrong), 401, "key")
                    assert error.get(key, kind) == kind
                    assert not wrong or wrong not in error["message"]
                assert (await ask(url, wire, secret)).status == 200
                revoke_key(file, "ann")
                assert_error(wire, await ask(url, wire, secret), 401)
                # before the body is read: a client without a key learns nothing
                assert (await Client(url, wire).post(b"{")).status == 401
        assert secret not in caplog.text
        assert "ub-wrong" not in caplog.text

    run(story)


@WIRE
def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(wire: str, tmp_path: Path) -> None:
    """Not "forbidden": as with OpenAI, a client without access does not learn what exists."""
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("ann", aliases=("fast",)))

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            aliases = [upstream_settings(upstream, wire, alias=alias) for alias in ("fast", "smart")]
            async with serving(settings_for(*aliases, keys=True, keys_file=str(file))) as url:
                assert (await ask(url, wire, secret, model="fast")).status == 200
                error = assert_error(wire, await ask(url, wire, secret, model="smart"), 404, "there are: fast")
                other = assert_error(wire, await ask(url, wire, secret, model="none"), 404)
                assert error["message"].replace("smart", "none") == other["message"]
                headers = {"Authorization": f"Bearer {secret}"}
                async with (
                    aiohttp.ClientSession(headers=headers) as session,
                    session.get(f"{url}/v1/models") as answer,
                ):
                    listed = await answer.json()
                assert [model["id"] for model in listed["data"]] == ["fast"]

    run(story)


@WIRE
def test_a_client_that_asks_too_often_learns_when_to_come_back(wire: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    often = create_key(file, GatewayKey("often", requests_per_minute=2))
    other = create_key(file, GatewayKey("other"))

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            settings = settings_for(upstream_settings(upstream, wire), keys=True, keys_file=str(file))
            async with serving(settings) as url:
                assert [(await ask(url, wire, often)).status for _ in range(2)] == [200, 200]
                reply = await ask(url, wire, often)
                error = assert_error(wire, reply, 429, "`often`", "2 requests a minute")
                assert 50 <= int(reply.headers["Retry-After"]) <= 60
                kinds = {
                    "anthropic-messages": ("type", "rate_limit_error"),
                    "gemini": ("status", "RESOURCE_EXHAUSTED"),
                }
                key, kind = kinds.get(wire, ("code", "rate_limit_exceeded"))
                assert error.get(key, kind) == kind
                assert (await ask(url, wire, other)).status == 200

    run(story)


@WIRE
def test_a_client_with_too_many_requests_in_flight_waits_for_one_to_end(wire: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = create_key(file, GatewayKey("ann", in_flight=1))

    async def story() -> None:
        async with ScriptedServer([Pause(0.2), Say("Slow.")], "Fine.", loop_last=True) as upstream:
            settings = settings_for(upstream_settings(upstream, wire), keys=True, keys_file=str(file))
            async with serving(settings) as url:
                first = asyncio.create_task(ask(url, wire, secret))
                while not upstream.requests:
                    await asyncio.sleep(0.005)
                refused = await ask(url, wire, secret)
                assert_error(wire, refused, 429, "in flight")
                assert refused.headers["Retry-After"] == "1"
                assert (await first).response.text == "Slow."
                assert (await ask(url, wire, secret)).response.text == "Fine."

    run(story)


# HTTP


async def over_the_line(url: str, data: bytes, wait: float = 5.0) -> bytes:
    """Raw bytes on a separate connection; returns everything that comes back until it is closed."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        async with asyncio.timeout(wait):
            return await reader.read()
    finally:
        writer.close()


def test_a_wrong_method_or_path_names_the_right_one() -> None:
    async def story() -> None:
        async with (
            ScriptedServer() as upstream,
            serving(settings_for(upstream_settings(upstream, "gemini"))) as url,
            aiohttp.ClientSession(url) as session,
        ):

            async def told(method: str, path: str) -> tuple[int, Any]:
                async with session.request(method, path) as answer:
                    return answer.status, await answer.json()

            for wire in WIRES:
                path = path_of(wire)
                for method in ("GET", "PUT", "DELETE", "PATCH"):
                    status, body = await told(method, path)
                    assert (status, "POST" in error_in(wire, body, 405)["message"]) == (405, True), (method, path)
            for path in ("/healthz", "/readyz", "/metrics", "/v1/models", "/", "/openapi.json"):
                assert (await told("POST", path))[0] == 405, path
            status, body = await told("POST", "/chat")
            assert (status, "GET /openapi.json" in body["error"]["message"]) == (404, True)
            status, body = await told("POST", "/v1beta/nothing")
            assert (status, body["error"]["status"]) == (404, "NOT_FOUND")
            status, body = await told("POST", "/v1/messages/batches")
            assert (status, body["type"]) == (403, "error")
            status, body = await told("GET", "/v1/files")
            assert (status, body["error"]["type"]) == (403, "permission_error")
            assert "`paths` in [passing]" in body["error"]["message"]

    run(story)


def test_a_wrong_method_names_the_right_one_in_its_header() -> None:
    async def story() -> None:
        async with (
            ScriptedServer() as upstream,
            serving(settings_for(upstream_settings(upstream, "gemini"))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            async with session.get("/v1/messages") as answer:
                assert (answer.status, answer.headers.get("Allow")) == (405, "POST")
            async with session.post("/healthz") as answer:
                assert (answer.status, answer.headers.get("Allow")) == (405, "GET, HEAD")

    run(story)


def test_head_requests_get_no_body() -> None:
    async def story() -> None:
        async with (
            ScriptedServer() as upstream,
            serving(settings_for(upstream_settings(upstream, "openai-chat"))) as url,
        ):
            for path in ("/", "/healthz", "/readyz", "/v1/models"):
                answer = await over_the_line(
                    url, f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
                )
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), path
                assert body == b"", path

    run(story)


@WIRE
def test_half_a_request_leaves_nothing_behind(wire: str) -> None:
    path = path_of(wire)

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True) as upstream:
            async with serving(settings_for(upstream_settings(upstream, wire))) as url:
                host, port = url.removeprefix("http://").split(":")
                for part in (b"POST", f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode()):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    writer.transport.abort()
                assert (await Client(url, wire, parallel=None).ask(User.of("Hello."))).status == 200
                async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
                    assert "unbroken_requests_in_flight 0.0" in await answer.text()
            assert len(upstream.requests) == 1

    run(story)


@WIRE
def test_a_body_that_arrives_too_slowly_is_abandoned(wire: str) -> None:
    path = path_of(wire)

    async def story() -> None:
        async with ScriptedServer() as upstream:
            settings = settings_for(upstream_settings(upstream, wire), body_timeout=0.05)
            async with serving(settings) as url:
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n{{"
                answer = await over_the_line(url, head.encode())
                assert answer.startswith(b"HTTP/1.1 408"), answer
                assert b"within 0.05 s" in answer

    run(story)


def test_a_client_that_never_reads_is_disconnected_and_the_model_with_it() -> None:
    async def story() -> None:
        over = asyncio.Event()
        endless = [Say("word " * 20_000, chunks=10)] * 400  # 40 MB, more than all buffers in between hold
        async with ScriptedServer(endless, on_sent=lambda _: over.set()) as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), write_timeout=0.1)
            async with serving(settings) as url:
                data = json.dumps(Client(url, "openai-chat", stream=True).body([User.of("Hello.")])).encode()
                host, port = url.removeprefix("http://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
                writer.write(head.encode() + data)
                await reader.readline()
                async with asyncio.timeout(20):
                    await over.wait()
                writer.transport.abort()
            assert len(upstream.sent[0].data) < 30_000_000

    run(story)


@WIRE
def test_a_client_that_disconnects_ends_the_request_to_the_model(wire: str) -> None:
    async def story() -> None:
        over = asyncio.Event()
        slow = [Say("One. "), Pause(30), Say("Two.")]
        async with (
            ScriptedServer(slow, loop_last=True, on_sent=lambda _: over.set()) as upstream,
            serving(settings_for(upstream_settings(upstream, wire))) as url,
        ):
            for stream in (True, False):
                over.clear()
                upstream.sent.clear()
                asked = asyncio.create_task(Client(url, wire, stream, parallel=None).ask(User.of("Hello.")))
                while not upstream.sent:
                    await asyncio.sleep(0.005)
                asked.cancel()
                async with asyncio.timeout(5):
                    await over.wait()
                assert b"Two." not in upstream.sent[0].data
            gone = ""
            while not ("unbroken_requests_in_flight 0.0" in gone and f'client="{wire}",status="499"' in gone):
                await asyncio.sleep(0.005)
                async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
                    gone = await answer.text()

    run(story)


def test_a_bomb_of_headers_is_refused() -> None:
    async def story() -> None:
        async with ScriptedServer() as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), max_headers=8192)
            async with serving(settings) as url:
                many = "".join(f"x-h{n}: {'v' * 50}\r\n" for n in range(1000))
                for headers in (many, f"x-h: {'v' * 100_000}\r\n", f"{'h' * 100_000}: v\r\n"):
                    answer = await over_the_line(
                        url, f"POST /v1/messages HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()
                    )
                    assert answer.startswith(b"HTTP/1.1 431"), answer[:100]
                long = await over_the_line(url, f"GET /{'p' * 100_000} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert long.startswith((b"HTTP/1.1 414", b"HTTP/1.1 431")), long[:100]
                assert (await over_the_line(url, b"\x16\x03\x01 no HTTP at all\r\n\r\n")).startswith(b"HTTP/1.1 400")
                assert upstream.bodies == []

    run(story)


def test_tools_that_no_wire_could_send_are_refused_or_sent() -> None:
    """Names and schemas of any kind: never our failure, and the model gets what was meant."""
    odd: list[Object] = [
        {"type": "function"},
        {"type": "function", "function": {"name": ""}},
        {"type": "function", "function": {"name": "a b", "parameters": None}},
        {"type": "function", "function": {"name": "x" * 300, "parameters": {"type": "string"}}},
        {"type": "function", "function": {"name": "r", "parameters": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}},
    ]

    async def story() -> None:
        async with ScriptedServer("Fine.", loop_last=True, strict=False) as upstream:
            aliases = [upstream_settings(upstream, other, alias=other, options={"attempts": 1}) for other in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for other in WIRES:
                    for tool in odd:
                        client = Client(url, "openai-chat", parallel=None, model=other, tools=(WEATHER,))
                        body = client.body([User.of("Hello.")])
                        reply = await client.post({**body, "tools": [*body["tools"], tool]})
                        assert reply.status in (200, 400), (other, tool, reply.data)

    run(story)


@pytest.mark.parametrize(
    "names", [["a\x00b"], ["a\x7f\r\nx-evil: 1"], ["x" * 70_000], [f"field{at}" for at in range(5000)]]
)
def test_any_name_of_a_field_that_is_left_out_can_be_reported_in_a_header(names: list[str]) -> None:
    async def story() -> None:
        body = {"messages": [{"role": "user", "content": [{"text": "Hello."}]}], **dict.fromkeys(names, 1)}
        async with (
            stage("openai-chat", "Fine.") as at,
            aiohttp.ClientSession(at.url) as session,
            session.post("/model/m/converse", json=body) as answer,
        ):
            assert (answer.status, "x-evil" in answer.headers) == (200, False)
            assert names[0][:1] in answer.headers["x-unbroken-dropped"]
            assert len(answer.headers["x-unbroken-dropped"]) < 4000

    run(story)
