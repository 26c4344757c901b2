"""What is spent although no provider reports it: answers that a client leaves, and prices that a reload removes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_client import Client, Clock, run, serving, settings_for, upstream_settings

from unbroken_gateway.app import Gateway
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.settings import UpstreamSettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.spending.estimates import FILE_TOKENS, choices_in, input_tokens
from unbroken_gateway.spending.report import Spend, add_up, estimate_in_words, read_spend
from unbroken_testing import Call, Say, ScriptedServer, Step, Uses
from unbroken_wires.messages import Assistant, Media, Request, System, ToolCall, ToolMessage, ToolResult, ToolSpec, User

DAY = "2023-11-14"
PRICE = {"input": 1000.0, "output": 1000.0}
"""A tenth of a cent for each token."""
WORDS = [Say("word " * 4) for _ in range(400)]
"""5 tokens each."""
LONG: list[str | Step] = [*WORDS, Uses(input=90, output=2000)]


@asynccontextmanager
async def counting(*models: UpstreamSettings, **more: Any) -> AsyncGenerator[tuple[str, Gateway]]:
    options = settings_for(*(replace(each, price=each.price or PRICE) for each in models), spend=True, **more)
    gateway = Gateway(options, None, Clock())
    async with serving(options, gateway=gateway) as url:
        yield url, gateway


async def leave(client: Client, text: str = "Hi", after: int = 1500, wait: float = 0.0) -> None:
    """Reads some bytes of an answer, waits, and closes the connection. `after` 0: without an answer."""
    assert isinstance(client.url, str)
    path, query = client.path()
    body = client.body([User.of(text)])
    async with aiohttp.ClientSession(client.url) as session:
        asking = asyncio.create_task(session.post(f"{path}?{query}", json=body, headers=client.headers))
        if after:
            answer = await asking
            assert answer.status == 200
            await answer.content.readexactly(after)
            await asyncio.sleep(wait)
            answer.close()
        else:
            await asyncio.sleep(0.2)
            asking.cancel()
            await asyncio.wait([asking])


async def spent(gateway: Gateway, answers: int = 1) -> Spend:
    """Once so many answers were counted."""
    assert gateway.metering is not None
    while True:
        await gateway.metering.ledger.flush()
        rows = add_up(await read_spend(gateway.store, [DAY]), ())
        if rows and rows[0].estimated >= answers:
            return rows[0]
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("client_wire", "upstream_wire"),
    [
        ("openai-chat", "openai-chat"),
        ("openai-responses", "openai-responses"),
        ("gemini", "openai-chat"),
        ("openai-chat", "openai-responses"),
    ],
)
def test_an_answer_that_a_client_leaves_before_its_usage_is_estimated(client_wire: str, upstream_wire: str) -> None:
    async def story() -> None:
        async with (
            ScriptedServer(LONG, chunk_delay=0.005) as server,
            counting(upstream_settings(server, upstream_wire)) as (url, gateway),
        ):
            client = Client(url, client_wire, True, parallel=None, tools=())
            await leave(client, "please " * 400)
            row = await spent(gateway)
            assert (row.requests, row.input, row.output, row.cost, row.unreported) == (0, 0, 0, 0, 0)
            assert row.estimated == 1
            assert 700 <= row.estimated_input <= 710
            assert 0 < row.estimated_output < 1900
            assert row.estimated_cost == (row.estimated_input + row.estimated_output) * 1_000_000
            assert estimate_in_words(row).endswith(" USD for 1 answer")
            async with aiohttp.ClientSession(url) as session:
                async with session.get("/status.json") as answer:
                    recent = (await answer.json())["status"]["recent"][0]
                async with session.get("/metrics") as answer:
                    metrics = await answer.text()
                async with session.get("/spend.json") as answer:
                    page = await answer.json()
            assert (recent["cost"], recent["is_estimated"]) == (row.estimated_cost, True)
            assert page["spend"][0]["estimated_cost"] == row.estimated_cost
            assert "Estimated beside" in page["view"]["tables"][0]["columns"]
            assert 'unbroken_estimated_answers_total{alias="m"} 1.0' in metrics
            assert f'unbroken_estimated_tokens_total{{alias="m",kind="input"}} {row.estimated_input}.0' in metrics

    run(story)


def test_an_answer_in_several_choices_is_estimated_for_all_of_them() -> None:
    async def story() -> None:
        async with (
            ScriptedServer(LONG, chunk_delay=0.005) as server,
            counting(upstream_settings(server, "openai-chat")) as (url, gateway),
            aiohttp.ClientSession(url) as session,
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "n": 128}
            async with session.post("/v1/chat/completions", json=body) as answer:
                await answer.content.readexactly(1500)
                answer.close()
            assert (await spent(gateway)).estimated_output > 128 * 5
        assert [choices_in(asked) for asked in ({}, {"n": -1}, {"n": "x"}, {"n": 10**9})] == [1, 1, 1, 128]
        assert choices_in({"generationConfig": {"candidateCount": 3}}) == 3

    run(story)


def test_what_anthropic_reports_at_the_beginning_is_exact_and_only_the_rest_is_estimated() -> None:
    async def story() -> None:
        async with (
            ScriptedServer([Uses(input=77, output=1), *WORDS], chunk_delay=0.005) as server,
            counting(upstream_settings(server, "anthropic-messages")) as (url, gateway),
        ):
            await leave(Client(url, "anthropic-messages", True, parallel=None, tools=()))
            row = await spent(gateway)
            assert (row.requests, row.input, row.output, row.cost) == (1, 77, 0, 77_000_000)
            assert row.estimated_input == 0
            assert row.estimated_cost == row.estimated_output * 1_000_000 > 0

    run(story)


def test_half_a_call_that_a_client_leaves_is_estimated_too() -> None:
    async def story() -> None:
        call = Call("get_weather", city="Beijing " * 2000, id="call_1", pieces=500)
        async with (
            ScriptedServer([Say("Let me look."), call], chunk_delay=0.004) as server,
            counting(upstream_settings(server, "openai-chat")) as (url, gateway),
        ):
            await leave(Client(url, "openai-chat", True, parallel=None), after=20, wait=0.3)
            assert 50 < (await spent(gateway)).estimated_output < 4000

    run(story)


def test_a_key_that_always_leaves_early_reaches_its_budget(tmp_path: Path) -> None:
    async def story() -> None:
        key = GatewayKey("ann", budgets=(read_allowance("0.3usd/day"),))
        secret = create_key(tmp_path / "keys.json", key)
        async with (
            ScriptedServer(LONG, loop_last=True, chunk_delay=0.002) as server,
            counting(upstream_settings(server, "openai-chat"), keys=True, keys_file=str(tmp_path / "keys.json")) as (
                url,
                gateway,
            ),
        ):
            headers = {"Authorization": f"Bearer {secret}"}
            client = Client(url, "openai-chat", True, parallel=None, tools=(), headers=headers)
            for times in (1, 2):
                await leave(client, "please " * 100)
                await spent(gateway, times)
            refused = await client.ask(User.of("Hi"))
            assert refused.status == 402
            assert "ann 0.3usd/day" in refused.headers["x-unbroken-budget"]

    run(story)


def test_a_request_without_an_answer_counts_if_the_provider_had_it_and_not_if_it_refused() -> None:
    async def hang(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(30)
        return web.Response()

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "later"}}, status=503, headers={"retry-after": "20"})

    async def story() -> None:
        app = web.Application()
        app.router.add_post("/hang/chat/completions", hang)
        app.router.add_post("/hang/embeddings", hang)
        app.router.add_post("/refuse/chat/completions", refuse)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        models = [UpstreamSettings(name, "openai-chat:m", base_url=f"{address}/{name}") for name in ("hang", "refuse")]
        async with counting(*models) as (url, gateway):
            clients = [
                Client(url, "openai-chat", stream, parallel=None, tools=(), model=model)
                for model in ("refuse", "hang")
                for stream in (True, False)
            ]
            await asyncio.gather(*(leave(client, "please " * 100, after=0) for client in clients))
            row = await spent(gateway, 2)
            assert row.estimated == 2  # the provider that refused has not counted it
            assert 2 * 175 <= row.estimated_input <= 2 * 180
            assert row.estimated_output == row.requests == 0
            async with aiohttp.ClientSession(url) as session:
                body = {"model": "hang", "input": "please " * 100}
                asking = asyncio.create_task(session.post("/v1/embeddings", json=body))
                await asyncio.sleep(0.2)
                asking.cancel()
                await asyncio.wait([asking])
            assert (await spent(gateway, 3)).estimated_input > row.estimated_input + 170
        await runner.cleanup()

    run(story)


def test_a_request_keeps_its_price_if_a_reload_removes_its_alias() -> None:
    async def story() -> None:
        short = [*WORDS[:20], Uses(input=90, output=10)]
        async with (
            ScriptedServer(short, chunk_delay=0.02) as server,
            counting(upstream_settings(server, "openai-chat"), UpstreamSettings("other", "demo", price=PRICE)) as (
                url,
                gateway,
            ),
        ):
            asking = asyncio.create_task(Client(url, "openai-chat", True, parallel=None, tools=()).ask(User.of("Hi")))
            while not server.sent:
                await asyncio.sleep(0.005)
            await gateway.use(replace(gateway.settings, upstreams=gateway.settings.upstreams[1:]))
            assert (await asking).status == 200
            assert gateway.metering is not None
            await gateway.metering.ledger.flush()
            (row,) = add_up(await read_spend(gateway.store, [DAY]), ())
            assert (row.requests, row.unpriced, row.cost) == (1, 0, 100_000_000)

    run(story)


def test_the_input_is_estimated_from_all_that_is_sent() -> None:
    call = ToolCall("1", "look", {}, '{"at": "here"}')
    messages = (
        System.of("Be kind."),
        User.of("Hello", Media("text/plain", data="aGVsbG8gd29ybGQ="), Media("image/png", data="AAAA")),
        Assistant("Fine.", (call,), "I think."),
        ToolMessage((ToolResult.of(call, "It is here."),)),
    )
    tool = ToolSpec("look", "Looks.", {"type": "object"})
    sizes = [8, 5, 11, 5, 8, 4, 14, 11, 4, 6, 18]
    assert input_tokens(Request(messages, (tool,))) == -(-sum(sizes) // 4) + FILE_TOKENS + 1
    assert input_tokens(Request((User.of("你好世界" * 100),))) == 301
