"""Keys of one gateway share the provider's key and nothing else: no models, no objects at the provider, no status, and
no held calls of a key that had the same name."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import MODEL_IN_PATH, THREE_CALLS, Client, path_of, run, serving, settings_for, upstream_settings
from gateway_upstreams import FIELDS, Told, Upstream, events, telling

from unbroken import UserError
from unbroken.asgi import Refused
from unbroken_gateway.config import settings_from_options
from unbroken_gateway.config.reading import read_config
from unbroken_gateway.keys import GatewayKey, create_key, list_keys, revoke_key
from unbroken_gateway.relay.forms import read_form, write_form
from unbroken_gateway.relay.passthrough import permit
from unbroken_gateway.relay.references import MODEL_PATHS, read_path, read_rule
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import User
from unbroken_wires.wires import WIRES

Object = dict[str, Any]
WIRE = pytest.mark.parametrize("wire", WIRES)

OTHER_MODELS: tuple[Object, ...] = (
    {"models": ["openai/gpt-5-pro"]},
    {"Models": ["openai/gpt-5-pro"]},
    {"model\u017f": ["openai/gpt-5-pro"]},
    {"Model": "gpt-5-pro"},
    {"route": "fallback"},
    {"fallbacks": [{"model": "gpt-5-pro"}]},
    {"preset": "dear"},
    {"plugins": [{"id": "auto-router", "allowed_models": ["openai/*"]}]},
    {"extra_body": {"models": ["x"]}},
    {"tools": [{"type": "image_generation", "model": "gpt-image-1"}]},
    {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "dearest"}]},
    {"api_base": "http://127.0.0.1:1"},
    {"api-base": "http://127.0.0.1:1"},
    {"baseURL": "http://127.0.0.1:1"},
    {"modelId": "gpt-5-pro"},
    {"mode\u217c": "gpt-5-pro"},
    {"model[0]": "gpt-5-pro"},
    {"draft_model": "gpt-5-pro"},
    {"adapters": ["other"]},
    {"azure_endpoint": "https://other.example"},
    {"inference_profile": "other"},
    {"deployment": "dear"},
    {"custom_llm_provider": "dear"},
    {"adapter_id": "dear"},
    {"agent_id": "dear"},
    {"headers": {"x-model": "dear"}},
    {"extra_headers": {"x-model": "dear"}},
    {"extra_body": {"parameters": {"model": "x"}}},
    {"extra_body": {"metadata": {"deep": [{"models": ["x"]}]}}},
    {"extra_body": {"headers": {"x-model": "dear"}}},
)
HARMLESS: tuple[Object, ...] = (
    {"user_agent": "my-app/1.0"},
    {"labels": {"model": "x", "agent": "y"}},
    {"chat_template_kwargs": {"model_identity": "You are kind."}},
    {"x_schema": {"properties": {"car_model": {"type": "string"}}}},
    {"provider": {"order": ["dear"]}},
    {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://x.example", "headers": {"a": "b"}}]},
)
_GS = {"type": "image_url", "image_url": {"url": "gs://bucket/secret"}}
_FILE = "https://generativelanguage.googleapis.com:443/v1beta/%66iles/abc"
_S3 = {"s3Location": {"uri": "s3://bucket/secret"}}
HELD: Mapping[str, tuple[Object, ...]] = {
    "openai-chat": (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-abc123def"}}]}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "audio": {"id": "audio_abc123"}}]},
        {"messages": [{"role": "user", "content": [_GS]}]},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": _FILE}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": _FILE}}]}]},
    ),
    "openai-responses": (
        {"conversation": "conv_abc123def"},
        {"conversation": {"id": "conv_abc123def"}},
        {"prompt": {"id": "pmpt_abc123def"}},
        {"input": [{"type": "item_reference", "id": "msg_abc123def"}]},
        {"input": [{"id": "msg_abc123def"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-abc123def"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file\\u005fid": "file-abc123def"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": " GS://bucket/secret"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "s3://bucket/secret"}]}]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_abc123def"]}]},
        {"tools": [{"type": "code_interpreter", "container": "cntr_abc123def"}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-abc123def"]}}]},
    ),
    "anthropic-messages": (
        {"container": "container_abc123"},
        {"container": {"id": "container_abc123"}},
        {"container": {"skills": [{"type": "custom", "skill_id": "skill_abc123"}]}},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "document", "source": {"type": "file", "file_id": "file_abc123"}}],
                }
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "file_abc123"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "gs://b/c"}}]}]},
    ),
    "gemini": (
        {"cachedContent": "cachedContents/abc"},
        {"cached_content": "cachedContents/abc"},
        {"contents": [{"parts": [{"fileData": {"fileUri": "gs://bucket/secret"}}]}]},
        {
            "contents": [
                {"parts": [{"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}}]}
            ]
        },
    ),
    "ollama": (),
    "cohere-v2": ({"messages": [{"role": "user", "content": [_GS]}]},),
    "bedrock-converse": (
        {"messages": [{"role": "user", "content": [{"document": {"name": "d", "source": _S3}}]}]},
        {"messages": [{"role": "user", "content": [{"video": {"format": "mp4", "source": _S3}}]}]},
        {"guardrailConfig": {"guardrailIdentifier": "arn:aws:bedrock:eu-west-1:1:guardrail/abc"}},
    ),
}


PART = b'--b\r\nContent-Disposition: form-data; name="x"'


def question(wire: str, model: str = "m") -> Object:
    said = {
        "gemini": {"role": "user", "parts": [{"text": "Hello."}]},
        "bedrock-converse": {"role": "user", "content": [{"text": "Hello."}]},
    }.get(wire, {"role": "user", "content": "Hello."})
    body: Object = {FIELDS[wire]: [said]}
    return body if wire in MODEL_IN_PATH else {"model": model, "max_tokens": 9, **body}


class Tenant:
    def __init__(self, session: aiohttp.ClientSession, secret: str) -> None:
        self._session = session
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    async def ask(self, path: str, body: Object | bytes | None = None, method: str = "POST") -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self._session.request(method, path, data=data, headers=self._headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text


@asynccontextmanager
async def house(
    file: Path, wire: str, *answers: Told, keys: tuple[GatewayKey, ...], **more: Any
) -> AsyncGenerator[tuple[Upstream, list[Tenant]]]:
    secrets = [create_key(file, key) for key in keys]
    async with telling(*answers) as upstream:
        rows = (upstream.settings(wire), upstream.settings(wire, "dear"))
        settings = settings_for(*rows, keys=True, keys_file=str(file), **more)
        async with serving(settings) as url, aiohttp.ClientSession(url) as session:
            yield upstream, [Tenant(session, secret) for secret in secrets]


@WIRE
def test_a_key_limited_to_models_cannot_choose_another_one_anywhere_in_the_body(wire: str, tmp_path: Path) -> None:
    async def story() -> None:
        keys = (GatewayKey("ann", ("m",)), GatewayKey("bob"))
        async with house(tmp_path / "k", wire, Told(b"{}", 418), keys=keys) as (upstream, (ann, bob)):
            path = path_of(wire)
            for more in OTHER_MODELS:
                for spelled in (json.dumps({**question(wire), **more}), _escaped({**question(wire), **more})):
                    status, told = await ann.ask(path, spelled.encode())
                    assert (status, "another model" in str(told)) == (403, True), (more, told)
            assert upstream.asked == []
            assert (await bob.ask(path, {**question(wire), "models": ["x"]}))[0] == 418
            assert len(upstream.asked) == 1

    run(story)


def _escaped(body: Object) -> str:
    r"""Every `m` and `r` of a name as `\u006d`: the same JSON, and no search for a name finds it."""
    return json.dumps(body).replace("models", "\\u006dodels").replace("route", "\\u0072oute")


@WIRE
def test_names_of_models_and_files_in_content_are_not_a_choice(wire: str, tmp_path: Path) -> None:
    properties = {"model": {"type": "string"}, "file_id": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "$defs": {"Model": {"type": "string"}}}
    tools: Object = {
        "openai-chat": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "openai-responses": [{"type": "function", "name": "f", "parameters": schema}],
        "anthropic-messages": [{"name": "f", "input_schema": schema}],
        "gemini": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}],
        "ollama": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "cohere-v2": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    offered: Object = {"tools": tools.get(wire)}
    if wire == "bedrock-converse":
        offered = {
            "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": schema}}}]},
            "additionalModelRequestFields": {"thinking": {"type": "adaptive"}},
            "additionalModelResponseFieldPaths": ["/stop_sequence"],
        }
        use = {"toolUse": {"toolUseId": "a", "name": "f", "input": {"file_id": "x"}}}
        result = {"toolResult": {"toolUseId": "a", "content": [{"json": {"file_id": "x", "url": "files/x"}}]}}
        said = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        offered["messages"] = [*question(wire)["messages"], *said]
    elif wire == "ollama":
        offered["format"] = schema

    async def story() -> None:
        async with house(tmp_path / "k", wire, Told(b"{}", 418), keys=(GatewayKey("ann", ("m",)),)) as (_, (ann,)):
            path = path_of(wire)
            body = {**question(wire), **offered, "metadata": {"model": "x", "route": "y"}}
            for more in ({}, *HARMLESS):
                status, told = await ann.ask(path, {**body, **more})
                assert status == 418, told

    run(story)


@WIRE
def test_objects_of_the_provider_belong_to_the_key_that_created_them(wire: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with house(tmp_path / "k", wire, Told(b"{}", 418), keys=(GatewayKey("ann"),)) as (upstream, (ann,)):
            path = path_of(wire)
            for more in HELD[wire]:
                data = json.dumps({**question(wire), **more}).replace("\\\\u005f", "\\u005f").encode()
                status, told = await ann.ask(path, data)
                assert (status, "this key did not get" in str(told)) == (404, True), (more, told)
                if wire.startswith("openai"):
                    assert told["error"]["code"] is None  # no model is missing
            assert upstream.asked == []

    run(story)


def test_with_shared_ids_every_key_can_use_them(tmp_path: Path) -> None:
    async def story() -> None:
        keys = (GatewayKey("ann"),)
        async with house(tmp_path / "k", "openai-responses", Told(b"{}", 418), keys=keys, shared_ids=True) as (
            _,
            (ann,),
        ):
            for more in HELD["openai-responses"]:
                assert (await ann.ask("/v1/responses", {**question("openai-responses"), **more}))[0] == 418, more

    run(story)


def test_a_file_can_only_be_used_and_deleted_by_the_key_that_uploaded_it(tmp_path: Path) -> None:
    listed = ("POST /v1/files", "GET /v1/files/*", "DELETE /v1/files/*", "POST /v1/batches")
    keys = tuple(GatewayKey(name, passes=tuple(map(read_rule, listed))) for name in ("ann", "bob"))
    made = Told(b'{"object": "file", "id": "file-abc123def"}')

    async def story() -> None:
        async with house(tmp_path / "k", "openai-responses", made, keys=keys) as (upstream, (ann, bob)):
            assert (await ann.ask("/v1/files", {"purpose": "x"}))[0] == 200
            for method, path, body in (
                ("GET", "/v1/files/file-abc123def", None),
                ("DELETE", "/v1/files/file-abc123def", None),
                ("POST", "/v1/batches", {"input_file_id": "file-abc123def"}),
                ("POST", "/v1/batches", {"input_file_id": " file-abc123def\n"}),
                ("POST", "/v1/batches?after=%20file-abc123def", {}),
                ("POST", "/v1/responses", {**question("openai-responses"), **HELD["openai-responses"][5]}),
            ):
                assert (await bob.ask(path, body, method))[0] == 404, path
                assert len(upstream.asked) == 1, path
            assert (await ann.ask("/v1/files/file-abc123def", None, "DELETE"))[0] == 200
            assert (await ann.ask("/v1/batches", {"input_file_id": "file-abc123def"}))[0] == 200
            assert [asked.method for asked in upstream.asked] == ["POST", "DELETE", "POST"]

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_container_named_in_an_answer_belongs_to_that_key(stream: bool, tmp_path: Path) -> None:
    message: Object = {"id": "msg_1", "type": "message", "role": "assistant", "model": "x", "content": [], "usage": {}}
    held = {"container": {"id": "container_abc123", "expires_at": "x"}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"file_id": "file_victim1"}}
    if stream:
        told = events(
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", **held}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
            named=True,
        )
    else:
        told = json.dumps({**message, **held, "content": [call], "stop_reason": "tool_use"}).encode()
    body: Object = {
        **question("anthropic-messages"),
        "stream": stream,
        "tools": [{"type": "code_execution_20250825", "name": "code_execution"}, {"name": "f", "input_schema": {}}],
    }

    async def story() -> None:
        keys = (GatewayKey("ann"), GatewayKey("bob"))
        async with house(tmp_path / "k", "anthropic-messages", Told(told), keys=keys) as (_, (ann, bob)):
            assert (await ann.ask("/v1/messages", body))[0] == 200
            assert (await ann.ask("/v1/messages", {**body, "container": "container_abc123"}))[0] == 200
            assert (await bob.ask("/v1/messages", {**body, "container": "container_abc123"}))[0] == 404
            # The arguments of a call are text of the model: they give nobody access to an id.
            victim = {"role": "user", "content": [{"type": "container_upload", "file_id": "file_victim1"}]}
            assert (await ann.ask("/v1/messages", {**body, "messages": [victim]}))[0] == 404

    run(story)


@pytest.mark.parametrize("spelled", ["file-victim123", "file-\\u0076ictim123"])
def test_an_id_that_the_provider_only_repeats_is_assigned_to_nobody(spelled: str, tmp_path: Path) -> None:
    tool: Object = {"type": "function", "name": "f", "parameters": {}, "id": "file-victim123"}
    told: Object = {"id": "resp_abc123def", "object": "response", "status": "completed", "output": [], "tools": [tool]}
    body: Object = {**question("openai-responses"), "tools": [tool]}
    used = {"role": "user", "content": [{"type": "input_file", "file_id": "file-victim123"}]}

    async def story() -> None:
        answer = Told(json.dumps(told).encode())
        async with house(tmp_path / "k", "openai-responses", answer, keys=(GatewayKey("ann"),)) as (_, (ann,)):
            asked = json.dumps(body).replace("file-victim123", spelled).encode()
            assert (await ann.ask("/v1/responses", asked))[0] == 200
            assert (await ann.ask("/v1/responses", {**body, "input": [used]}))[0] == 404

    run(story)


def test_a_new_key_with_a_revoked_name_gets_nothing_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = create_key(file, GatewayKey("ann"))

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Fine.") as upstream:
            row = upstream_settings(upstream, "openai-chat", options={"attempts": 1})
            async with serving(settings_for(row, keys=True, keys_file=str(file))) as url:
                client = Client(url, "openai-chat", headers={"Authorization": f"Bearer {first}"})
                assert len((await client.ask(User.of("The weather?"))).calls) == 1
                revoke_key(file, "ann")
                second = create_key(file, GatewayKey("ann"))
                client.headers["Authorization"] = f"Bearer {second}"
                while (reply := await client.branch().answer_calls()).status == 401:
                    pass  # the file is checked again after a second
                assert reply.calls == []
                async with aiohttp.ClientSession(url) as session:
                    _, told = await Tenant(session, second).ask("/status.json", None, "GET")
                assert len(told["status"]["recent"]) == 1

    run(story)


def test_a_key_sees_its_own_models_and_requests_and_an_operator_all(tmp_path: Path) -> None:
    keys = (GatewayKey("ann", ("m",)), GatewayKey("bob-the-other"), GatewayKey("ops", operator=True))

    async def story() -> None:
        async with house(tmp_path / "k", "openai-chat", Told(b"{}", 500), keys=keys) as (_, (ann, bob, ops)):
            await bob.ask("/v1/chat/completions", question("openai-chat", "dear"))
            await bob.ask("/v1/chat/completions", question("openai-chat", "m"))
            await ann.ask("/v1/embeddings", {"model": "m"})
            for path in ("/status.json", "/", "/v1/models", "/v1beta/models", "/openapi.json"):
                status, told = await ann.ask(path, None, "GET")
                assert status == 200, path
                assert "bob-the-other" not in str(told), path
                assert "dear" not in str(told), path
            _, told = await ann.ask("/status.json", None, "GET")
            assert [(one["alias"], one["requests"]) for one in told["status"]["upstreams"]] == [("m", 1)]
            assert [one["key"] for one in told["status"]["recent"]] == ["ann"]
            assert told["status"]["store"] is None
            _, told = await bob.ask("/status.json", None, "GET")
            assert [one["key"] for one in told["status"]["recent"]] == ["bob-the-other"] * 2
            assert (await ann.ask("/metrics", None, "GET"))[0] == 403
            assert (await ops.ask("/metrics", None, "GET"))[0] == 200
            _, told = await ops.ask("/status.json", None, "GET")
            assert [one["key"] for one in told["status"]["recent"]] == ["ann", "bob-the-other", "bob-the-other"]
            assert [one["requests"] for one in told["status"]["upstreams"]] == [2, 1]

    run(story)


def test_the_model_in_a_field_of_a_form_is_checked_and_replaced(tmp_path: Path) -> None:
    def form(*models: str, **more: str) -> aiohttp.FormData:
        data = aiohttp.FormData(more)
        for model in models:
            data.add_field("model", model)
        data.add_field("file", b"RIFF\r\n--x\r\n\x00\xff", filename="a.wav", content_type="audio/wav")
        return data

    file = tmp_path / "keys.json"
    headers = {"Authorization": f"Bearer {create_key(file, GatewayKey('ann', ('m',)))}"}

    async def story() -> None:
        async with telling(Told(b'{"text": "Hi."}')) as upstream:
            rows = (upstream.settings("openai-chat"), upstream.settings("openai-chat", "dear"))
            async with (
                serving(settings_for(*rows, keys=True, keys_file=str(file))) as url,
                aiohttp.ClientSession(url, headers=headers) as session,
            ):
                for status, data in (
                    (404, form("dear")),
                    (400, form()),
                    (400, form("m", "dear")),
                    (403, form("m", models="dear")),
                    (415, b"\x00"),
                    (200, form("m", language="en")),
                ):
                    async with session.post("/v1/audio/transcriptions", data=data) as answer:
                        assert answer.status == status, await answer.text()
                        assert len(upstream.asked) == (status == 200)
        (asked,) = upstream.asked
        parts = {part.name: part for part in read_form(asked.headers["content-type"], asked.data)}
        assert parts["model"].data == b"big-model"
        assert parts["language"].data == b"en"
        assert parts["file"].data == b"RIFF\r\n--x\r\n\x00\xff"
        assert (parts["file"].file, parts["file"].content_type) == ('filename="a.wav"', "audio/wav")

    run(story)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"--b--\r\n\r\nx",
        b"--b\r\n\r\nx\r\n--b--\r\n",
        b'--b\nContent-Disposition: form-data; name="model"\n\nm\n--b--\n',
        b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="x"; name="model"\r\n\r\nm\r\n--b--\r\n',
        b"--b\r\nContent-Disposition: form-data; name*=utf-8''model\r\n\r\nm\r\n--b--\r\n",
        PART + b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
        PART + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nbQ==\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\nm\r\n',
        b'--bb\r\nContent-Disposition: form-data; name="x"\r\n\r\nm\r\n--bb--\r\n',
    ],
)
def test_a_form_that_two_parsers_could_read_differently_is_refused(data: bytes) -> None:
    with pytest.raises(UserError):
        read_form("multipart/form-data; boundary=b", data)


def test_a_form_is_written_as_it_was_read() -> None:
    data = b'--b\r\nContent-Disposition: form-data; name="x"; filename="\xc3\xa9.bin"\r\n\r\n\r\n--c\r\n\r\n--b--\r\n'
    parts = read_form('multipart/form-data; boundary="b"', data)
    assert [(part.name, part.data) for part in parts] == [("x", b"\r\n--c\r\n")]
    assert read_form(*write_form(parts)) == parts


@pytest.mark.parametrize(
    "rule",
    ["", "GET", "/v1/files", "get /v1/files", "GET /v1", "GET /files", "TRACE /v1/x", "GET /v1/../x", "GET /v1/a b"],
)
def test_a_rule_without_a_request_is_an_error_with_a_hint(rule: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"like `GET /v1/files/\*`"):
        read_rule(rule)
    config = tmp_path / "unbroken.toml"
    config.write_text(f'[passing]\npaths = ["{rule}"]\n[[models]]\nmodel = "demo"\n')
    with pytest.raises(UserError, match=r"unbroken\.toml:2: \[passing\]: `paths` has an entry that cannot be read"):
        read_config(config)


def test_the_list_of_the_gateway_replaces_the_default(tmp_path: Path) -> None:
    config = tmp_path / "unbroken.toml"
    config.write_text('[passing]\npaths = ["GET /v1/files"]\n[[models]]\nmodel = "demo"\n')
    assert read_config(config).passes == ("GET /v1/files",)
    assert settings_from_options().passes == MODEL_PATHS


def test_the_list_and_rights_of_a_key_are_in_the_file_and_a_file_without_them_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    create_key(file, GatewayKey("ann", passes=(read_rule("GET /v1/files/*"),)))
    create_key(file, GatewayKey("ops", operator=True, passes=()))
    ann, ops = list_keys(file)
    assert (ann.passes, ann.operator) == ((read_rule("GET /v1/files/*"),), False)
    assert (ops.passes, ops.operator) == ((), True)
    saved = json.loads(file.read_text())
    for key in saved["keys"]:
        del key["pass"], key["operator"]
    file.write_text(json.dumps({**saved, "version": 1}))
    assert [(key.passes, key.operator, key.id) for key in list_keys(file)] == [
        (None, False, ann.id),
        (None, False, ops.id),
    ]


@pytest.mark.parametrize(
    "raw", [b"", b"v1", b"/v1/", b"/v1//x", b"/v1/.", b"/v1/%2E%2e", b"/v1/a%2Fb", b"/v1/a;b", b"/v1/%"]
)
def test_a_path_that_servers_read_differently_is_refused(raw: bytes) -> None:
    assert read_path(raw) is None
    assert read_path(b"/v1/models/ft%3Agpt:x") == ("v1", "models", "ft:gpt:x")


def test_a_key_with_its_own_list_is_refused_with_a_hint_how_to_change_it() -> None:
    scope = {"method": "GET", "path": "/v1/batches", "raw_path": b"/v1/batches", "query_string": b""}
    for key, way_out in (
        (GatewayKey("ann", passes=()), "this key has its own list: its operator can revoke it and create it again"),
        (GatewayKey("bob"), "its operator can list it, under `paths` in [passing] or with `unbroken keys create"),
        (None, "its operator can list it, under `paths` in [passing] or with `unbroken keys create"),
    ):
        with pytest.raises(Refused) as refused:
            permit(scope, key, ())
        assert (refused.value.status, way_out in str(refused.value)) == (403, True)
