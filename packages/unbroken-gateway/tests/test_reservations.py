"""What a request reserves before a model is asked, what the next one expects, and how it is settled: money and tokens
of a budget are never used by more requests than it has room for, in however many processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
import valkey_server
from gateway_client import Client, Clock, run, serving, settings_for

from unbroken.asgi import Refused
from unbroken.errors import ProviderError
from unbroken.models.model import ResponseHead
from unbroken_gateway.app import Gateway
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.relay.exchange import Outcome
from unbroken_gateway.settings import BudgetSettings, UpstreamSettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.spending.budgets import HELD_FOR
from unbroken_gateway.spending.estimates import FIRST_OUTPUT, Average, Tally, most_output
from unbroken_gateway.spending.ledger import Ledger
from unbroken_gateway.spending.metering import Metering
from unbroken_gateway.spending.prices import Prices
from unbroken_gateway.spending.report import read_budgets
from unbroken_gateway.stores import MemoryStore, Store, StoreUnavailable, open_store
from unbroken_gateway.stores.marked import MarkedStore
from unbroken_gateway.stores.store import Addition, Limit
from unbroken_testing import Fail, Say, ScriptedServer, Uses
from unbroken_wires.messages import Usage, User

NOBODY = GatewayKey("nobody", id="0" * 32, operator=True)
ALL = "all, usd in total"


@dataclass
class Desk:
    """Requests of one worker, without HTTP: each has 100 tokens of input, and each token costs a cent."""

    gateway: Gateway
    clock: Clock

    @property
    def metering(self) -> Metering:
        found = self.gateway.metering
        assert found is not None
        return found

    async def begin(self, key: GatewayKey = NOBODY, most: float = 50) -> Tally:
        """Reserves for a request; its answer has at most so many tokens."""
        tally = self.metering.tally()
        tally.model_name, tally.size, tally.most_output = "demo", 400, most
        await self.metering.check(key, "m", tally)
        return tally

    async def end(self, tally: Tally, usage: Usage | None, key: GatewayKey = NOBODY) -> None:
        head = ResponseHead()
        head.model = "demo"
        self.metering.charge(key, "m", Outcome(0.0, usage=usage, tally=tally), head, answered=usage is not None)
        await self.metering.ledger.flush()

    async def spent(self) -> dict[str, tuple[int, int]]:
        """By budget: the tokens, or cents, that are spent and reserved."""
        await self.metering.ledger.flush()
        found = await read_budgets(self.gateway.store, self.gateway.settings, (), self.clock())
        cents = {"usd": 10_000_000, "tokens": 1}
        return {each.name: (each.spent // cents[each.unit], each.reserved // cents[each.unit]) for each in found}


def budgets(**amounts: str) -> tuple[BudgetSettings, ...]:
    return tuple(BudgetSettings(name, read_allowance(amount)) for name, amount in amounts.items())


@asynccontextmanager
async def desks(*stores: Store, **settings: Any) -> AsyncGenerator[Sequence[Desk]]:
    """Workers on these stores, which are one."""
    model = UpstreamSettings("m", "demo", price={"input": 10_000.0, "output": 10_000.0})
    options = replace(settings_for(model, **settings), store="sqlite:x")
    clock = Clock()
    workers = [Desk(Gateway(options, store, clock), clock) for store in stores]
    try:
        yield workers
    finally:
        for worker in workers:
            await worker.gateway.aclose()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_workers_on_one_store_let_no_more_begin_than_a_budget_has_room_for(kind: str, tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else valkey_server.empty_url()

    async def story() -> None:
        stores = [open_store(url) for _ in range(3)]
        async with desks(*stores, budgets=budgets(day="4usd/day", total="5000tokens/total")) as workers:
            asked = await asyncio.gather(
                *(worker.begin() for worker in workers for _ in range(20)), return_exceptions=True
            )
            begun = [each for each in asked if isinstance(each, Tally)]
            refused = [each for each in asked if isinstance(each, Refused)]
            assert (len(begun), len(refused)) == (3, 57)  # 1.50 USD each: the third is the last that begins below 4
            assert {(each.status, each.headers["retry-after"]) for each in refused} == {(429, "1")}
            assert await workers[0].spent() == {"day": (0, 450), "total": (0, 450)}
            for tally in begun:
                await workers[0].end(tally, Usage(100, 20))
            assert await workers[1].spent() == {"day": (360, 0), "total": (360, 0)}
            await workers[2].begin()  # 0.40 are left
            with pytest.raises(Refused, match=r"is reserved for requests in flight: day: 3\.60 USD of 4\.00 USD spent"):
                await workers[1].begin()

    run(story)


@pytest.mark.parametrize("ends", ["with an answer", "with an error"])
def test_what_is_settled_is_what_was_used_and_the_rest_is_free_again(ends: str) -> None:
    async def story() -> None:
        async with desks(MemoryStore(), budgets=budgets(day="2usd/day")) as (worker,):
            tally = await worker.begin()
            assert await worker.spent() == {"day": (0, 150)}
            await worker.end(tally, Usage(100, 3) if ends == "with an answer" else None)
            assert await worker.spent() == {"day": (103 if ends == "with an answer" else 0, 0)}
            await worker.end(tally, None)  # once
            assert await worker.spent() == {"day": (103 if ends == "with an answer" else 0, 0)}

    run(story)


def test_a_request_that_ends_on_the_next_day_is_spent_then_and_reserved_until_then() -> None:
    async def story() -> None:
        async with desks(MemoryStore(), budgets=budgets(day="2usd/day", month="9usd/month")) as (worker,):
            worker.clock.time += 6000  # 23:53
            tally = await worker.begin()
            worker.clock.time += 600
            assert await worker.spent() == {"day": (0, 150), "month": (0, 150)}
            await worker.end(tally, Usage(100, 60))
            assert await worker.spent() == {"day": (160, 0), "month": (160, 0)}
            worker.clock.time -= 600
            assert await worker.spent() == {"day": (0, 0), "month": (160, 0)}

    run(story)


def test_what_a_killed_gateway_had_reserved_is_held_for_an_hour_and_not_for_ever() -> None:
    async def story() -> None:
        store = MemoryStore()
        async with desks(store, store, budgets=budgets(total="1usd/total")) as (killed, other):
            tally = await killed.begin()
            for _ in range(2):
                with pytest.raises(Refused, match="reserved for requests in flight"):
                    await other.begin()
                other.clock.time += HELD_FOR
            other.clock.time += HELD_FOR
            assert await other.spent() == {"total": (0, 0)}
            await other.begin()
            await killed.end(tally, Usage(100, 20))  # it was only slow: nothing is released twice
            assert await other.spent() == {"total": (120, 150)}

    run(story)


def test_tokens_count_in_the_minute_in_which_they_were_reserved_and_what_is_more_when_it_ends() -> None:
    async def story() -> None:
        async with desks(MemoryStore(), spend=True) as (worker,):
            ann = GatewayKey("ann", id="a" * 32, tokens_per_minute=300)
            worker.clock.time = minute = 1_700_000_040.0
            first, second = [await worker.begin(ann) for _ in range(2)]
            with pytest.raises(Refused, match="key `ann` may use 300 tokens a minute: wait 60 s"):
                await worker.begin(ann)
            await worker.end(first, Usage(100, 20), ann)
            worker.clock.time = minute + 61
            await worker.end(second, Usage(100, 90), ann)
            counted = await worker.gateway.store.counters([f"minute:{int((minute + at) // 60)}" for at in (0, 61)])
            assert [sum(each.values()) for each in counted] == [120 + 150, 40]
            await worker.begin(ann)
            with pytest.raises(Refused, match="20 tokens a minute"):
                await worker.begin(replace(ann, tokens_per_minute=20))  # it was changed meanwhile

    run(story)


class Slow(MemoryStore):
    """Reserves when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        self.asked.set()
        await self.go.wait()
        return await super().reserve(additions, limits)


def test_a_client_that_leaves_while_the_store_reserves_leaves_nothing_reserved() -> None:
    async def story() -> None:
        store = Slow()
        async with desks(store, budgets=budgets(total="1usd/total")) as (worker,):
            asking = asyncio.create_task(worker.begin())
            await store.asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            store.go.set()
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
            await asyncio.sleep(0)  # what is called when it is done
            assert await worker.spent() == {"total": (0, 0)}
            for group in await store.counters([f"reserved:{int(worker.clock() // HELD_FOR)}"]):
                assert group == {"usd all": 0}  # it was reserved, and is released

    run(story)


def test_while_the_store_is_away_a_worker_counts_with_what_it_last_knew() -> None:
    class Leaving(MemoryStore):
        away = False

        async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
            if self.away:
                raise StoreUnavailable("away")
            return await super().reserve(additions, limits)

    async def story() -> None:
        store = Leaving()
        async with desks(store, store, budgets=budgets(total="4usd/total")) as (one, other):
            await other.end(await other.begin(), Usage(100, 50))
            await one.end(await one.begin(), Usage(100, 50))
            store.away = True
            tally = await one.begin()
            with pytest.raises(Refused, match=r"is reserved for requests in flight: total: 3\.00 USD"):
                await one.begin()
            await one.end(tally, Usage(100, 50))
            with pytest.raises(Refused, match=r"the budget is spent: total: 4\.50 USD"):
                await one.begin()
            store.away = False
            assert await other.spent() == {"total": (450, 0)}

    run(story)


def test_a_model_without_a_known_price_reserves_what_its_answers_have_cost() -> None:
    async def story() -> None:
        agent = UpstreamSettings("m", "demo")
        options = settings_for(agent, store="sqlite:x", budgets=budgets(total="2usd/total"))
        worker = Desk(Gateway(options, MemoryStore(), Clock()), Clock())
        await worker.end(await worker.begin(), Usage(100, 20, cost=0.3))
        assert await worker.spent() == {"total": (30, 0)}
        await worker.begin()
        assert await worker.spent() == {"total": (30, 30)}
        await worker.gateway.aclose()

    run(story)


# What a request is expected to use


def tally_of(entered: int, most: float = float("inf"), choices: int = 1) -> Tally:
    tally = Tally(None, Prices((), {}))
    tally.entered, tally.most_output, tally.choices = entered, most, choices
    return tally


def test_a_request_is_expected_to_use_what_recent_answers_did_and_never_more_than_it_allows() -> None:
    average = Average()
    assert average.expect(tally_of(50)) == Usage(50, FIRST_OUTPUT, estimated=True)
    assert average.expect(tally_of(50, most=128_000)).output_tokens == FIRST_OUTPUT
    assert average.expect(tally_of(50, most=16, choices=3)).output_tokens == 48
    average.learn(tally_of(50), [Usage(60, 30, 45), Usage(20, 10, 15)], 7)
    assert average.expect(tally_of(100)) == Usage(130, 40, int(130 * 0.75), estimated=True)
    assert average.expect(tally_of(50, most=16)).output_tokens == 16
    for _ in range(100):
        average.learn(tally_of(1000, choices=2), [Usage(900, 600)], 7)
    expected = average.expect(tally_of(1000))
    assert (expected.input_tokens, expected.cached_tokens) == (900, 0)
    assert 299 <= expected.output_tokens <= 301
    assert average.expect(tally_of(10)).input_tokens == 1  # never less


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, float("inf")),
        ({"max_tokens": 9}, 9),
        ({"max_tokens": 9, "max_completion_tokens": 900}, 900),
        ({"max_tokens": None, "max_completion_tokens": 8}, 8),
        ({"max_output_tokens": 7, "max_tokens": "7"}, 7),
        ({"generationConfig": {"maxOutputTokens": 6}}, 6),
        ({"generationConfig": [], "max_tokens": 0}, float("inf")),
    ],
)
def test_the_most_that_an_answer_may_have_is_read_in_every_wire(body: Any, most: float) -> None:
    assert most_output(body) == most


# Over HTTP


def test_each_request_over_http_is_settled_however_it_ends() -> None:
    async def story() -> None:
        script = [[Say("Hi."), Uses(10, 5)], Fail(ProviderError("no", status=400)), [Say("Hi."), Uses(10, 5)]]
        async with ScriptedServer(*script, loop_last=True) as server:
            model = UpstreamSettings("m", "openai:m", base_url=server.base_url("openai-chat"))
            options = settings_for(model, budgets=budgets(total="100000tokens/total"), passes=("POST /v1/embeddings",))
            gateway, clock = Gateway(options), Clock()
            async with serving(options, gateway=gateway) as url, aiohttp.ClientSession(url) as session:
                client = Client(url, "openai-chat", parallel=None, tools=())
                statuses = [(await client.ask(User.of("Hi"))).status for _ in range(3)]
                async with session.post("/v1/embeddings", json={"model": "m", "input": "Hi"}) as answer:
                    statuses.append(answer.status)
                assert statuses == [200, 400, 200, 404]
                assert await Desk(gateway, clock).spent() == {"total": (30, 0)}

    run(story)


def test_a_ledger_forgets_the_values_that_are_oldest() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.add([Addition("g", {"a": 1, "b": 2, "c": 3}, 60)])
        ledger, limits = Ledger(store, 1.0, most_known=2), [Limit((("g", name),), 9) for name in "abc"]
        assert await ledger.reserve([], limits) == [[1], [2], [3]]
        assert ledger.reserve_here([], limits) == [[0], [2], [3]]

    run(story)


def test_what_is_spent_of_an_emptied_store_leaves_no_room_for_a_reservation() -> None:
    class Losing(MemoryStore):
        def lose_everything(self) -> None:
            MemoryStore.__init__(self)

    async def story() -> None:
        store = Losing()
        marked, limit = MarkedStore(store), Limit((("spent:total", "usd all"),), 100)
        one = [Addition("reserved:1", {"usd all": 5}, 60)]
        await marked.add([Addition("spent:total", {"usd all": 98}, 60)])
        assert await marked.reserve(one, [limit]) == [[98]]
        await marked.add([Addition("spent:total", {"usd all": 5}, 60)])
        for lost in (True, False):
            if lost:
                store.lose_everything()
            assert await marked.reserve(one, [limit]) == [[103]]
            assert await marked.counters(["reserved:1"], ["usd all"]) == [{"usd all": 0}]
        await marked.decide("restore")
        assert await marked.reserve(one, [limit]) == [[103]]
        assert await store.counters(["reserved:1"], ["usd all"]) == [{"usd all": 0}]

    run(story)
