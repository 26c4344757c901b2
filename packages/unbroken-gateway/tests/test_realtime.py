"""The Realtime API, passed through as a WebSocket: whose key, which deployment, which rules, and how it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_client import run, serving, settings_for
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from unbroken_gateway.app import Gateway
from unbroken_gateway.keys import GatewayKey, create_key, revoke_key
from unbroken_gateway.relay import realtime
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.settings import DeploymentSettings, GatewaySettings, GuardrailSettings, UpstreamSettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.spending.report import Spend, day_of, read_spend

RULES = (read_rule(realtime.RULE),)


class Provider:
    """Accepts only what OpenAI accepts: its own key, a model, JSON events."""

    def __init__(self, refuses: int = 0) -> None:
        self.url = ""
        self.refuses = refuses
        self.usage: Any = None
        self.heard: list[Any] = []
        self.asked: list[web.Request] = []

    async def answer(self, http: web.Request) -> web.StreamResponse:
        self.asked.append(http)
        if self.refuses == 302:
            raise web.HTTPFound("/v1/elsewhere")
        if self.refuses:
            return web.json_response({"error": {"message": "no"}}, status=self.refuses)
        if http.headers.get("Authorization") != "Bearer sk-provider" or not http.query.get("model"):
            return web.json_response({"error": {"message": "who are you?"}}, status=401)
        socket = web.WebSocketResponse(protocols=("realtime",))
        await socket.prepare(http)
        await socket.send_json({"type": "session.created", "session": {"model": http.query["model"]}})
        async for message in socket:
            event = json.loads(message.data)
            self.heard.append(event)
            if event["type"] == "bye":
                await socket.close(code=1000)
            elif event["type"] == "fail":
                await socket.send_json({"type": "error", "error": {"message": "bad key sk-provider"}})
            elif event["type"] == "long":
                await socket.send_json({"type": "response.created", "response": {"id": "resp_1"}})
                await socket.send_json({"type": "response.output_text.delta", "delta": "word " * 8})
                await socket.send_json({"type": "response.output_audio.delta", "delta": "A" * 6400})
            elif event["type"] != "input_audio_buffer.append":
                await socket.send_json({"type": "response.done", "echo": event, "response": {"usage": self.usage}})
        return socket


@asynccontextmanager
async def providing(provider: Provider) -> AsyncGenerator[Provider]:
    app = web.Application()
    app.router.add_get("/v1/realtime", provider.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield provider
    finally:
        await runner.cleanup()


def settings(monkeypatch: pytest.MonkeyPatch, *providers: Provider, **more: Any) -> GatewaySettings:
    monkeypatch.setenv("PROVIDER_KEY", "sk-provider")
    deployments = tuple(
        DeploymentSettings(
            f"openai:gpt-realtime-{at}", f"d{at}", each.url, "PROVIDER_KEY", wire="openai-responses", priority=at
        )
        for at, each in enumerate(providers, 1)
    )
    upstream = UpstreamSettings("voice", deployments[0].model, deployments=deployments)
    return settings_for(upstream, passes=(realtime.RULE,), look_every=0.02, **more)


def test_messages_go_both_ways_with_the_providers_key_and_a_deployment_that_refuses_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with (
            providing(Provider(refuses=429)) as first,
            providing(Provider()) as second,
            serving(settings(monkeypatch, first, second)) as url,
            aiohttp.ClientSession(url) as session,
        ):
            address = f"{url}/v1/realtime?model=voice".replace("http", "ws")
            headers = {"Authorization": "Bearer of-the-client", "OpenAI-Beta": "realtime=v1"}
            async with connect(address, additional_headers=headers, subprotocols=["realtime"]) as socket:  # pyright: ignore[reportArgumentType] - a plain text is a Subprotocol
                assert socket.subprotocol == "realtime"
                assert json.loads(await socket.recv())["session"]["model"] == "gpt-realtime-2"
                for at in range(3):
                    await socket.send(json.dumps({"type": "response.create", "at": at}))
                    assert json.loads(await socket.recv())["echo"]["at"] == at
                await socket.send(json.dumps({"type": "fail"}))
                assert "sk-provider" not in await socket.recv(decode=True)
                await socket.send(json.dumps({"type": "bye"}))
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1000
            assert len(first.asked) == 1
            assert second.asked[0].headers["OpenAI-Beta"] == "realtime=v1"
            assert "of-the-client" not in str(second.asked[0].headers)
            async with session.get("/metrics") as answer:
                page = await answer.text()
            assert 'status="101"' in page
            assert 'unbroken_deployment_failures_total{alias="voice",deployment="d1",kind="limited"} 1.0' in page
            assert 'unbroken_deployment_requests_in_flight{alias="voice",deployment="d2"} 0.0' in page

    run(story)


def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with providing(Provider(refuses=302)) as provider, serving(settings(monkeypatch, provider)) as url:
            with pytest.raises(InvalidStatus) as error:
                async with connect(f"{url}/v1/realtime?model=voice".replace("http", "ws")):
                    pass
            assert error.value.response.status_code == 502
            assert len(provider.asked) == 1

    run(story)


def test_a_rule_and_a_model_are_needed_and_a_revoked_key_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        ann = create_key(file, GatewayKey("ann"))
        bob = create_key(file, GatewayKey("bob", passes=()))
        eve = create_key(file, GatewayKey("eve", ("voice",), passes=RULES))
        async with (
            providing(Provider()) as provider,
            serving(settings(monkeypatch, provider, keys=True, keys_file=str(file))) as url,
        ):
            base = f"{url}/v1/realtime".replace("http", "ws")

            async def refused(path: str, key: str) -> int:
                with pytest.raises(InvalidStatus) as error:
                    async with connect(f"{base}{path}", additional_headers={"Authorization": f"Bearer {key}"}):
                        pass
                return error.value.response.status_code

            assert await refused("?model=voice", "wrong") == 401
            assert await refused("?model=voice", bob) == 403
            assert await refused("?model=other", ann) == 404
            assert await refused("", ann) == 404
            assert provider.asked == []
            async with connect(f"{base}?model=voice", additional_headers={"Authorization": f"Bearer {eve}"}) as socket:
                await socket.recv()
                await socket.send(json.dumps({"type": "session.update", "session": {"model": "dear"}}))
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
            async with connect(f"{base}?model=voice", additional_headers={"Authorization": f"Bearer {ann}"}) as socket:
                await socket.recv()
                prompt = {"type": "session.update", "session": {"prompt": {"id": "pmpt_of_another"}}}
                await socket.send(json.dumps(prompt))
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert provider.heard == []
            async with connect(f"{base}?model=voice", additional_headers={"Authorization": f"Bearer {ann}"}) as socket:
                await socket.recv()
                revoke_key(file, "ann")
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008

    run(story)


def test_what_a_connection_uses_is_counted_and_ends_it_when_a_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        amount = (read_allowance("100tokens/day"),)
        headers = {"Authorization": f"Bearer {create_key(file, GatewayKey('ann', budgets=amount))}"}
        async with providing(Provider()) as provider:
            options = settings(monkeypatch, provider, keys=True, keys_file=str(file))
            gateway = Gateway(options)
            provider.usage = {"input_tokens": 50, "output_tokens": 9, "input_token_details": {"cached_tokens": 5}}
            async with serving(options, gateway=gateway) as url:
                address = f"{url}/v1/realtime?model=voice".replace("http", "ws")
                async with connect(address, additional_headers=headers) as socket:
                    await socket.recv()
                    for conversation in ("none", "auto"):
                        said = {"type": "response.create", "response": {"conversation": conversation}}
                        await socket.send(json.dumps(said))
                        await socket.recv()
                    with pytest.raises(ConnectionClosed) as closed:
                        await socket.recv()
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == 1008
                    assert closed.value.rcvd.reason.startswith("the budget is spent: ann 100tokens/day: 118 tokens")
                with pytest.raises(InvalidStatus) as refused:
                    await connect(address, additional_headers=headers)
                assert refused.value.response.status_code == 402
                assert gateway.metering is not None
                await gateway.metering.ledger.flush()
                (row,) = await read_spend(gateway.store, [day_of(time.time())])
                counted = (row.key, row.alias, row.model, row.requests, row.input, row.cached, row.output)
                assert counted == ("ann", "voice", "openai:gpt-realtime-1", 2, 100, 10, 18)

    run(story)


def test_an_answer_that_a_connection_leaves_is_estimated_with_the_conversation_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        amount = (read_allowance("200tokens/day"),)
        headers = {"Authorization": f"Bearer {create_key(file, GatewayKey('ann', budgets=amount))}"}
        async with providing(Provider()) as provider:
            options = settings(monkeypatch, provider, keys=True, keys_file=str(file))
            gateway = Gateway(options)
            provider.usage = {"input_tokens": 50, "output_tokens": 9}
            async with serving(options, gateway=gateway) as url:
                address = f"{url}/v1/realtime?model=voice".replace("http", "ws")
                async with connect(address, additional_headers=headers) as socket:
                    await socket.recv()
                    await socket.send(json.dumps({"type": "response.create"}))
                    await socket.recv()
                    said = {"type": "message", "content": [{"type": "input_text", "text": "Hello, it is me, Ann."}]}
                    await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 64_000}))
                    await socket.send(json.dumps({"type": "long", "item": said}))
                    for _ in range(3):
                        await socket.recv()
                row = await estimated(gateway, 1)
                assert (row.model, row.requests, row.input, row.output) == ("openai:gpt-realtime-1", 1, 50, 9)
                assert (row.estimated, row.estimated_input, row.estimated_output) == (1, 59 + 6 + 10, 10 + 2)
                async with connect(address, additional_headers=headers) as socket:
                    await socket.recv()
                    await socket.send(json.dumps({"type": "long", "text": "word " * 80}))
                    await socket.recv()
                await estimated(gateway, 2)
                with pytest.raises(InvalidStatus) as refused:
                    await connect(address, additional_headers=headers)
                assert refused.value.response.status_code == 402

    run(story)


def test_each_answer_of_a_connection_reserves_when_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        amount = (read_allowance("900tokens/day"),)
        headers = {"Authorization": f"Bearer {create_key(file, GatewayKey('ann', budgets=amount))}"}
        async with providing(Provider()) as provider:
            options = settings(monkeypatch, provider, keys=True, keys_file=str(file))
            provider.usage = {"input_tokens": 50, "output_tokens": 9}
            async with serving(options, gateway=Gateway(options)) as url:
                address = f"{url}/v1/realtime?model=voice".replace("http", "ws")
                async with (
                    connect(address, additional_headers=headers) as first,
                    connect(address, additional_headers=headers) as second,
                ):
                    await second.recv()
                    await first.send('{"type": "long"}')
                    for _ in range(4):
                        await first.recv()
                    with pytest.raises(InvalidStatus) as refused:
                        await connect(address, additional_headers=headers)
                    assert refused.value.response.status_code == 429
                    await second.send('{"type": "long"}')
                    with pytest.raises(ConnectionClosed) as closed:
                        await second.recv()
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.reason.startswith("what is left of the budget is reserved")
                    await first.send('{"type": "response.create"}')  # its own reservation does not end it
                    assert json.loads(await first.recv())["type"] == "response.done"
                    async with connect(address, additional_headers=headers) as third:
                        await third.recv()

    run(story)


async def estimated(gateway: Gateway, answers: int) -> Spend:
    """Once so many answers were estimated."""
    assert gateway.metering is not None
    while True:
        await gateway.metering.ledger.flush()
        for row in await read_spend(gateway.store, [day_of(time.time())]):
            if row.estimated == answers:
                return row
        await asyncio.sleep(0.01)


def test_a_model_with_guardrails_is_not_reached_and_every_part_of_a_message_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story() -> None:
        file = tmp_path / "keys"
        headers = {"Authorization": f"Bearer {create_key(file, GatewayKey('ann', ('voice',), passes=RULES))}"}
        async with providing(Provider()) as provider:
            options = settings(monkeypatch, provider, keys=True, keys_file=str(file))
            guard = GuardrailSettings("redact", "cards", pattern="4111")
            guarded = replace(options, upstreams=(replace(options.upstreams[0], guardrails=(guard,)),))
            async with serving(guarded) as url:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(f"{url}/v1/realtime?model=voice".replace("http", "ws"), additional_headers=headers)
                assert refused.value.response.status_code == 403
                assert provider.asked == []
            others = {"session": {"a": 1}, "response": {"prompt": {"id": "pmpt_of_another"}}}
            async with serving(options) as url:
                for said in (others, {"session": {"model" + "\u6a21" * 100: "dear"}}):
                    address = f"{url}/v1/realtime?model=voice".replace("http", "ws")
                    async with connect(address, additional_headers=headers) as socket:
                        await socket.recv()
                        await socket.send(json.dumps({"type": "response.create", **said}))
                        with pytest.raises(ConnectionClosed) as closed:
                            await socket.recv()
                        assert closed.value.rcvd is not None
                        assert closed.value.rcvd.code == 1008
            assert provider.heard == []

    run(story)
