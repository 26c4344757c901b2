"""Keys of providers and of clients stay secret: they are in no answer, error, log, metric or store."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from gateway_client import THREE_CALLS, Client, run, serving, settings_for, upstream_settings
from gateway_upstreams import Asked, Told, telling

from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import User
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.framing import SSE
from unbroken_wires.wires.jsontext import dumps

KEY = "sk-upstream-7f3kQ9zLmN2pXw8vRt"
PAGES = ("/", "/status.json", "/metrics", "/healthz", "/readyz", "/openapi.json", "/v1/models", "/v1beta/models")


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "provider.key"
    file.write_text(f"{KEY}\n")
    return str(file)


async def everything_told(url: str, secret: str = "") -> str:
    """Everything that the gateway reports about itself, with headers."""
    told: list[str] = []
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {secret}"} if secret else {}) as session:
        for path in PAGES:
            async with session.get(path) as answer:
                assert answer.status == 200, path
                told.append(f"{answer.headers}{await answer.text()}")
    return "".join(told)


def quoting(status: int) -> Callable[[Asked], Told]:
    """A provider that quotes the key in its error, as some do."""

    def answer(asked: Asked) -> Told:
        error = {"message": f"Incorrect key: {KEY}", "type": KEY, "headers": dict(asked.headers)}
        return Told(json.dumps({"type": "error", "error": error, "detail": KEY}).encode(), status)

    return answer


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_key_that_a_provider_quotes_is_shown_to_nobody(
    status: int, key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def story() -> None:
        async with telling(quoting(status)) as upstream:
            aliases = [upstream.settings(wire, wire, api_key_file=key_file) for wire in WIRES]
            async with serving(settings_for(*aliases)) as url:
                for wire in WIRES:
                    for other in WIRES:
                        for stream in (False, True):
                            client = Client(url, wire, stream, parallel=None, model=other)
                            reply = await client.ask(User.of("Hello."))
                            assert reply.status == status
                            assert KEY not in f"{reply.data.decode()}{reply.headers}"
                assert KEY in str([asked.headers for asked in upstream.asked])  # or nothing was tested
                assert KEY not in await everything_told(url)
        assert KEY not in caplog.text

    run(story)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens"])
def test_a_key_that_a_provider_quotes_on_another_path_is_shown_to_nobody(
    path: str, key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wire = "anthropic-messages" if path.startswith("/v1/messages") else "openai-chat"

    async def story() -> None:
        async with (
            telling(quoting(401)) as upstream,
            serving(settings_for(upstream.settings(wire, api_key_file=key_file))) as url,
        ):
            async with aiohttp.ClientSession(url) as session:
                body = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "input": "Hello."}
                async with session.post(path, json=body) as answer:
                    assert answer.status == 401
                    assert KEY not in await answer.text()
            assert KEY in str(upstream.asked[0].headers)
            assert KEY not in await everything_told(url)
        assert KEY not in caplog.text

    run(story)


SHAPELESS = "0a1b2c3d4e5f/60718293a4b5c6d7e8f9"
"""A key that looks like any other text."""


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize(
    "quoted",
    [
        SHAPELESS,
        quote(SHAPELESS, safe=""),
        b64encode(f"user:{SHAPELESS}".encode()).decode(),
        SHAPELESS.encode().hex(),
        SHAPELESS.replace("/", "\\/"),
    ],
    ids=["plain", "percent", "base64", "hex", "escaped"],
)
def test_a_key_of_any_form_in_any_error_on_any_path_is_shown_to_nobody(
    status: int, quoted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "provider.key").write_text(SHAPELESS)
    error = Told(json.dumps({"error": {"message": f"no such key: {quoted}"}}).encode(), status)
    ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", ask),
        ("/v1/chat/completions", {**ask, "stream": True}),
        ("/v1/messages", {**ask, "max_tokens": 5}),
        ("/v1/embeddings", {"model": "m", "input": "Hello."}),
    ]

    async def story() -> None:
        async with (
            telling(error) as upstream,
            serving(settings_for(upstream.settings("openai-chat", api_key_file=str(tmp_path / "provider.key")))) as url,
            aiohttp.ClientSession(url) as session,
        ):
            for path, body in requests:
                async with session.post(path, json=body) as answer:
                    said = (await answer.text()).replace("\\", "")
                    assert "***" in said, path
                    assert quoted.replace("\\", "") not in said, path
            told = await everything_told(url)
            assert quoted not in told
            assert SHAPELESS not in told
        assert quoted not in caplog.text

    run(story)


@pytest.mark.parametrize(
    "body", [b'{"data": [], "error": null}', b'{ "note": "the \\"error\\" of it"}', b"[1]", b"{", b""]
)
def test_other_responses_on_other_paths_are_not_changed(body: bytes) -> None:
    async def story() -> None:
        async with (
            telling(Told(body)) as upstream,
            serving(settings_for(upstream.settings("openai-chat"))) as url,
            aiohttp.ClientSession(url) as session,
            session.post("/v1/embeddings", json={"model": "m", "input": "Hello."}) as answer,
        ):
            assert await answer.read() == body

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_a_key_that_a_provider_quotes_inside_a_stream_is_shown_to_nobody(
    wire: str, key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    firsts: dict[str, Any] = {
        "openai-chat": {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]},
        "openai-responses": {
            "type": "response.output_text.delta",
            "output_index": 0,
            "content_index": 0,
            "delta": "Hi",
        },
        "anthropic-messages": {"type": "message_start", "message": {"role": "assistant", "content": []}},
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}}]},
        "ollama": {"message": {"role": "assistant", "content": "Hi"}, "done": False},
        "cohere-v2": {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hi"}}}},
        "bedrock-converse": {"contentBlockDelta": {"delta": {"text": "Hi"}, "contentBlockIndex": 0}},
    }
    first = firsts[wire]
    words = f"the key {KEY} is not known"
    errors: dict[str, Any] = {
        "ollama": {"error": words},
        "bedrock-converse": {"internalServerException": {"message": words}},
    }
    error = errors.get(wire, {"type": "error", "error": {"type": "api_error", "message": words}})
    framing = find_wire(wire).framing

    async def story() -> None:
        for name in ("", "event: error\n") if framing is SSE else ("",):
            data = [framing.write(dumps(first)), name.encode() + framing.write(dumps(error))]
            async with (
                telling(Told(data)) as upstream,
                serving(settings_for(upstream.settings(wire, api_key_file=key_file))) as url,
            ):
                for client_wire in WIRES:
                    reply = await Client(url, client_wire, stream=True, parallel=None).ask(User.of("Hello."))
                    assert KEY.encode() not in reply.data, client_wire
                    assert b"is not known" in reply.data, client_wire
                assert KEY not in await everything_told(url)
        assert KEY not in caplog.text

    run(story)


@pytest.mark.parametrize("wire", WIRES)
def test_keys_are_in_no_store_no_page_and_no_log(
    wire: str, key_file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = tmp_path / "keys.json"
    secret = create_key(keys, GatewayKey("ann", operator=True))

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.", api_key=KEY) as upstream:
            settings = settings_for(
                upstream_settings(upstream, wire, serial=True, api_key_file=key_file),
                keys=True,
                keys_file=str(keys),
                store=f"sqlite:{tmp_path / 'kept.db'}",
            )
            async with serving(settings) as url:
                headers = {"Authorization": f"Bearer {secret}"}
                client = Client(url, wire, headers=headers)
                replies = await client.converse()
                assert replies[-1].response.text == "Done."
                told = "".join(f"{reply.data.decode()}{reply.headers}" for reply in replies)
                told += await everything_told(url, secret)
        kept = b"".join(file.read_bytes() for file in tmp_path.glob("kept.db*"))
        assert len(kept) > 1000
        for hidden in (KEY, secret):
            assert hidden not in told
            assert hidden not in caplog.text
            assert hidden.encode() not in kept
        assert secret not in keys.read_text()
        assert secret not in str(upstream.headers)

    run(story)


def test_without_a_key_nothing_about_requests_is_visible(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secret = create_key(keys, GatewayKey("ann"))

    async def story() -> None:
        async with ScriptedServer("Fine.") as upstream:
            settings = settings_for(
                upstream_settings(upstream, "openai-chat", alias="hidden-alias"), keys=True, keys_file=str(keys)
            )
            async with serving(settings) as url:
                client = Client(url, "openai-chat", parallel=None, model="hidden-alias")
                client.headers = {"Authorization": f"Bearer {secret}"}
                await client.ask(User.of("Hello."))
                async with aiohttp.ClientSession(url) as session:
                    for path in ("/status.json", "/metrics", "/v1/models", "/v1beta/models", "/v1/files"):
                        async with session.get(path) as answer:
                            assert answer.status == 401, path
                            assert "hidden-alias" not in await answer.text()
                    for path in ("/", "/healthz", "/readyz", "/openapi.json"):
                        async with session.get(path) as answer:
                            text = await answer.text()
                            assert answer.status == 200, path
                            assert not [
                                word
                                for word in ("hidden-alias", "big-model", "ann", upstream.url)
                                if word in text.split()
                            ]
                            assert "hidden-alias" not in text, path

    run(story)


def test_content_is_on_no_page_and_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Messages, arguments and results belong to the client and the model."""
    caplog.set_level(logging.DEBUG)

    async def story() -> None:
        async with (
            ScriptedServer(THREE_CALLS, "The answer is Zanzibar.") as upstream,
            serving(settings_for(upstream_settings(upstream, "anthropic-messages", serial=True))) as url,
        ):
            await Client(url, "openai-chat").converse("Is it Timbuktu?")
            told = await everything_told(url)
        for words in ("Zanzibar", "Timbuktu", "Shanghai", "Sunny"):
            assert words not in told
            assert words not in caplog.text
        assert "get_weather" in told  # names of tools are shown

    run(story)


def test_a_key_in_the_address_of_a_provider_is_shown_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def story(options: dict[str, Any]) -> None:
        alias = UpstreamSettings(
            "m", "openai-chat:x", base_url="http://127.0.0.1:1/v1", options={"attempts": 1, **options}
        )
        async with serving(settings_for(alias)) as url:
            reply = await Client(url, "gemini", parallel=None).ask(User.of("Hello."))
            assert reply.status == 502
            assert KEY not in reply.data.decode()
            assert KEY not in await everything_told(url)

    run(lambda: story({"query": {"key": KEY}}))
    run(lambda: story({"headers": {"Authorization": f"Bearer {KEY}"}}))
    assert KEY not in caplog.text


@pytest.mark.parametrize("keys", [True, False], ids=["keys", "no keys"])
def test_the_address_of_a_provider_is_logged_and_not_shown_to_a_client(
    keys: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = create_key(tmp_path / "keys.json", GatewayKey("ann", operator=True))
    alias = UpstreamSettings("m", "openai-chat:x", base_url="http://127.0.0.1:1/v1", options={"attempts": 1})

    async def story() -> None:
        async with serving(settings_for(alias, keys=keys, keys_file=str(tmp_path / "keys.json"))) as url:
            client = Client(url, "openai-chat", parallel=None)
            client.headers = {"Authorization": f"Bearer {secret}"}
            reply = await client.ask(User.of("Hello."))
            told = reply.body["error"]["message"]
            assert told.startswith("provider `openai-chat` cannot be reached")
            assert ("127.0.0.1" in told) is not keys
            assert ("127.0.0.1:1" in await everything_told(url, secret)) is not keys

    run(story)
    assert f"a model failed alias=m key={'ann' if keys else '-'}: provider `openai-chat`" in caplog.text
    assert "cannot be reached at http://127.0.0.1:1/" in caplog.text
