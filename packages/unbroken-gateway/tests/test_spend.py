"""What requests cost: exactly what the providers reported, to the token, whichever way a request took."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_client import (
    SOME_PAIRS,
    THREE_CALLS,
    Client,
    Clock,
    run,
    serving,
    settings_for,
    upstream_settings,
)

from unbroken.errors import ProviderError
from unbroken_gateway.app import Gateway
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings
from unbroken_gateway.spending.allowance import NANO
from unbroken_gateway.spending.prices import Prices
from unbroken_gateway.spending.report import Spend, add_up, read_spend
from unbroken_gateway.stores import MemoryStore, Store, StoreUnavailable, open_store
from unbroken_gateway.stores.store import Addition
from unbroken_gateway.upstreams.upstream import open_upstreams
from unbroken_testing import Break, Fail, Say, ScriptedServer, Uses
from unbroken_wires.messages import Usage, User

DAY = "2023-11-14"
"""Of the tests' clock."""
PRICE = {"input": 2.0, "output": 10.0, "cached": 0.5}


@asynccontextmanager
async def spending(
    *upstreams: UpstreamSettings, store: Store | None = None, **settings: Any
) -> AsyncGenerator[tuple[str, Gateway]]:
    options = settings_for(*(replace(each, price=PRICE) for each in upstreams), spend=True, **settings)
    gateway = Gateway(options, store, Clock())
    async with serving(options, gateway=gateway) as url:
        yield url, gateway


async def rows_of(gateway: Gateway, *by: Any) -> list[Spend]:
    assert gateway.metering is not None
    await gateway.metering.ledger.flush()
    return add_up(await read_spend(gateway.store, [DAY]), by)


def cost_of(*reports: Uses) -> int:
    return sum(
        round(((each.input - each.cached) * 2.0 + each.cached * 0.5 + each.output * 10.0) / 1e6 * NANO)
        for each in reports
    )


def as_spend(*reports: Uses) -> Spend:
    return Spend(
        requests=len(reports),
        input=sum(each.input for each in reports),
        cached=sum(each.cached for each in reports),
        output=sum(each.output for each in reports),
        reasoning=sum(each.reasoning for each in reports),
        cost=cost_of(*reports),
    )


@pytest.mark.parametrize(("client_wire", "upstream_wire"), SOME_PAIRS)
def test_each_token_that_a_provider_reports_is_counted_once(client_wire: str, upstream_wire: str) -> None:
    reports = [Uses(input=101 + n, output=23 * n, cached=7) for n in range(4)]

    async def story() -> None:
        async with (
            ScriptedServer(*([Say("Hello."), report] for report in reports)) as server,
            spending(upstream_settings(server, upstream_wire)) as (url, gateway),
        ):
            for stream in (False, True, True, False):
                client = Client(url, client_wire, stream, parallel=None, tools=())
                assert (await client.ask(User.of("Hi"))).status == 200
            (row,) = await rows_of(gateway)
            if upstream_wire in ("ollama", "cohere-v2"):  # no cache is reported on these wires
                row = replace(row, cached=28, cost=cost_of(*reports))
            assert row == as_spend(*reports)
            named = (await rows_of(gateway, "alias", "model"))[0]
            assert (named.alias, named.model.partition(":")[2]) == ("m", "big-model")

    run(story)


def test_a_client_that_does_not_want_its_usage_gets_none_and_it_is_counted() -> None:
    async def story() -> None:
        report = Uses(input=50, output=6, reasoning=4)
        async with (
            ScriptedServer([Say("Hello there."), report], [Say("Hello there."), report]) as server,
            spending(upstream_settings(server, "openai-chat")) as (url, gateway),
        ):
            client = Client(url, "openai-chat", True, parallel=None, tools=())
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "logprobs": True}
            plain = await client.post(body)
            events = [json.loads(line[6:]) for line in plain.data.splitlines() if line.startswith(b"data: {")]
            assert all(event["choices"] and not event.get("usage") for event in events)
            assert plain.data.endswith(b"data: [DONE]\n\n")
            assert plain.response.text == "Hello there."
            assert server.bodies[0]["stream_options"] == {"include_usage": True}
            asked = await client.post({**body, "stream_options": {"include_usage": True}})
            used = asked.response.usage
            assert used is not None
            assert (used.input_tokens, used.output_tokens, used.reasoning_tokens) == (50, 6, 4)
            assert await rows_of(gateway) == [as_spend(report, report)]

    run(story)


def test_a_released_call_costs_nothing() -> None:
    async def story() -> None:
        done = [Say("Sunny."), Uses(input=300, output=9)]
        async with (
            ScriptedServer(THREE_CALLS, done) as server,
            spending(upstream_settings(server, "anthropic-messages", serial=True)) as (url, gateway),
        ):
            replies = await Client(url, "openai-chat").converse()
            assert len(replies) == 4
            assert await rows_of(gateway) == [as_spend(Uses(100, 20), Uses(300, 9))]

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_the_usage_of_failed_attempts_counts_for_the_model_that_reported_it(stream: bool) -> None:
    async def story() -> None:
        broken = [Uses(input=40, output=2), Say("Hel"), Break()]
        async with (
            ScriptedServer(broken, loop_last=True) as first,
            ScriptedServer([Say("Hello."), Uses(input=41, output=3)]) as second,
        ):
            models = (
                upstream_settings(first, "anthropic-messages", fallback=("other",), options={"attempts": 2}),
                replace(upstream_settings(second, "openai-chat", "other"), model="openai-chat:other-model"),
            )
            async with spending(*models) as (url, gateway):
                reply = await Client(url, "openai-chat", stream, parallel=None, tools=()).ask(User.of("Hi"))
                assert reply.response.text == "Hello."
                rows = {"anthropic:big-model": Spend()} | {row.model: row for row in await rows_of(gateway, "model")}
                assert rows["openai-chat:other-model"].input == 41
                asked = [sent for sent in first.sent if b'"input_tokens":40' in sent.data.replace(b" ", b"")]
                assert bool(asked) == stream  # a body that breaks off has no usage
                assert rows["anthropic:big-model"].requests == len(asked)
                assert rows["anthropic:big-model"].input == 40 * len(asked)
                assert sum(row.requests for row in rows.values()) == len(asked) + 1

    run(story)


def test_a_request_that_fails_costs_nothing_and_an_answer_without_usage_is_estimated() -> None:
    async def story() -> None:
        failure = Fail(ProviderError("no", status=400))
        async with (
            ScriptedServer([failure], [Say("Hello.")], [Say("Hello.")]) as server,
            spending(upstream_settings(server, "openai-chat")) as (url, gateway),
        ):
            client = Client(url, "openai-chat", parallel=None, tools=())
            assert (await client.ask(User.of("Hi"))).status == 400
            assert await rows_of(gateway) == []
            for stream in (True, False):
                await client.post({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream})
            guess = Spend(estimated=2, estimated_input=4, estimated_output=4, estimated_cost=48_000)
            assert await rows_of(gateway) == [guess]

    run(story)


def test_what_a_provider_reported_counts_even_if_the_client_goes_away() -> None:
    async def story() -> None:
        long = [Uses(input=77, output=1), *(Say(f"word {n} ") for n in range(400))]
        async with (
            ScriptedServer(long, chunk_delay=0.01) as server,
            spending(upstream_settings(server, "anthropic-messages")) as (url, gateway),
        ):
            body = Client(url, "anthropic-messages", True, parallel=None, tools=()).body([User.of("Hi")])
            async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/messages", json=body) as answer:
                await answer.content.readany()
            rows: list[Spend] = []
            while not rows:
                await asyncio.sleep(0.01)
                rows = await rows_of(gateway)
            assert (rows[0].input, rows[0].requests) == (77, 1)

    run(story)


def test_passed_through_compacted_counted_and_socket_requests_are_counted() -> None:
    embedded = {"data": [{"embedding": [0.5] * 30_000}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}

    async def embed(request: web.Request) -> web.Response:
        return web.json_response(embedded)

    async def speak(request: web.Request) -> web.Response:
        return web.Response(body=b"\xff\xfb" * 1000, content_type="audio/mpeg")

    async def complete(request: web.Request) -> web.Response:
        events: list[dict[str, Any]] = [
            {"choices": [{"text": "a"}], "usage": None},
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        ]
        return web.Response(text="".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    async def story() -> None:
        app = web.Application()
        app.router.add_post("/v1/embeddings", embed)
        app.router.add_post("/v1/audio/speech", speak)
        app.router.add_post("/v1/completions", complete)
        app.router.add_get("/v1/batches/{id}", embed)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        passed = UpstreamSettings("m", "openai-chat:big-model", base_url=address)
        summary = [Say("A summary."), Uses(input=90, output=11)]
        async with (
            ScriptedServer(summary, [Say("Hi."), Uses(input=12, output=3)]) as server,
            spending(
                passed,
                upstream_settings(server, "anthropic-messages", "n"),
                passes=(*GatewaySettings(()).passes, "GET /v1/batches/*"),
            ) as (url, gateway),
        ):
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{url}/v1/batches/batch_1") as answer:  # it is not spent by reading it
                    assert (answer.status, await answer.json()) == (200, embedded)

                async def post(path: str, **body: Any) -> int:
                    async with session.post(f"{url}/v1{path}", json=body) as answer:
                        await answer.read()
                        return answer.status

                assert await post("/embeddings", model="m", input="a") == 200
                assert await post("/completions", model="m", prompt="a", stream=True) == 200
                assert await post("/audio/speech", model="m", input="a", voice="b") == 200
                assert await post("/responses/compact", model="n", input="Hello") == 200
                assert await post("/responses/input_tokens", model="n", input="a") == 200
                async with session.ws_connect(f"{url}/v1/responses") as socket:
                    await socket.send_json({"type": "response.create", "model": "n", "input": "Hi", "store": False})
                    while (await socket.receive_json())["type"] != "response.completed":
                        pass
            own, others = await rows_of(gateway, "alias")
            assert own == replace(as_spend(Uses(8, 0), Uses(5, 2)), alias="m", unreported=1)
            assert others == replace(as_spend(Uses(90, 11), Uses(12, 3)), alias="n")
        await runner.cleanup()

    run(story)


def test_counts_survive_a_restart_and_gateways_that_share_a_store_agree(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"

    async def story() -> None:
        async with ScriptedServer([Say("Hello."), Uses(input=10, output=1)], loop_last=True) as server:
            model = upstream_settings(server, "openai-chat")
            for _ in range(2):
                async with (
                    spending(model, store=open_store(store)) as (one, first),
                    spending(model, store=open_store(store)) as (two, second),
                ):
                    clients = [Client(url, "openai-chat", parallel=None, tools=()) for url in (one, two) * 10]
                    await asyncio.gather(*(client.ask(User.of("Hi")) for client in clients))
                    assert await rows_of(first) != []
                    assert await rows_of(second) == await rows_of(first)
            kept = open_store(store)
            assert add_up(await read_spend(kept, [DAY]), []) == [as_spend(*[Uses(10, 1)] * 40)]
            await kept.aclose()

    run(story)


class _Forgetful(MemoryStore):
    """Writes, and then does not answer, as if the connection was lost."""

    failures = 2

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        values = await super().add(additions, once)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no answer")
        return values


def test_a_batch_whose_confirmation_was_lost_is_repeated_and_counts_once() -> None:
    async def story() -> None:
        async with (
            ScriptedServer([Say("Hello."), Uses(input=10, output=1)], loop_last=True) as server,
            spending(upstream_settings(server, "openai-chat"), store=_Forgetful()) as (url, gateway),
        ):
            client = Client(url, "openai-chat", parallel=None, tools=())
            for _ in range(2):
                await client.ask(User.of("Hi"))
                with pytest.raises(StoreUnavailable):
                    await rows_of(gateway)
            assert await rows_of(gateway) == [as_spend(Uses(10, 1), Uses(10, 1))]

    run(story)


def test_an_own_price_comes_first_and_an_unknown_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    models = (
        UpstreamSettings("listed", "openai:gpt-4o-mini"),
        UpstreamSettings("own", "openai:gpt-4o-mini", price=PRICE),
        UpstreamSettings("unknown", "openai:gpt-99-imaginary"),
    )
    prices = Prices(models, open_upstreams(models))
    usage = Usage(1_000_000, 100_000, cached_tokens=200_000)
    assert prices.cost("own", "openai:gpt-4o-mini", usage, 0.0) == 2_700_000_000
    assert prices.cost("unknown", "openai:gpt-99-imaginary", usage, 0.0) is None
    assert prices.cost("unknown", "openai:gpt-4o-mini", usage, 0.0) == 2_700_000_000  # `own` as its fallback
    pytest.importorskip("genai_prices")
    assert prices.cost("listed", "openai:gpt-4o-mini", usage, 1_700_000_000.0) == 195_000_000
    only_listed = Prices(models[:1], open_upstreams(models[:1]))
    assert only_listed.cost("listed", "openai:gpt-4o-mini", usage, 1_700_000_000.0) == 195_000_000


def test_nothing_is_counted_or_loaded_by_default() -> None:
    assert Gateway(GatewaySettings((UpstreamSettings("m", "demo"),), store="memory:")).metering is None


def test_an_impossible_report_does_not_spoil_the_counts(tmp_path: Path) -> None:
    async def story() -> None:
        wrong = [[Say("Hello."), report] for report in (Uses(2**62, 2**62), Uses(-5000, 1))]
        store = open_store(f"sqlite:{tmp_path}/store.db")
        async with (
            ScriptedServer(*wrong, [Say("Hello."), Uses(input=10, output=1)]) as server,
            spending(upstream_settings(server, "openai-chat"), store=store) as (url, gateway),
        ):
            for _ in range(3):
                client = Client(url, "openai-chat", parallel=None, tools=())
                assert (await client.ask(User.of("Hi"))).status == 200
            assert await rows_of(gateway) == [replace(as_spend(Uses(10, 1)), unreported=2)]
            async with aiohttp.ClientSession(url) as session, session.get("/metrics") as answer:
                assert 'unbroken_tokens_total{alias="m",kind="input"} 10.0' in await answer.text()

    run(story)
