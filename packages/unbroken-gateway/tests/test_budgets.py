"""Budgets and limits per minute: who is refused, when and how, and what gateways that share a store agree on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import valkey_server
from gateway_client import Client, Clock, Reply, assert_error, run, serving, settings_for, upstream_settings

from unbroken.errors import UserError
from unbroken_gateway.app import Gateway
from unbroken_gateway.config import read_config
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.settings import BudgetSettings, TeamSettings
from unbroken_gateway.spending.allowance import NANO, read_allowance
from unbroken_gateway.spending.budgets import Budgets
from unbroken_gateway.spending.report import read_budgets
from unbroken_gateway.stores import MemoryStore, Store, StoreUnavailable, open_store
from unbroken_gateway.stores.store import Addition, Limit
from unbroken_testing import Say, ScriptedServer, Uses
from unbroken_wires.messages import User
from unbroken_wires.wires import WIRES

PRICE = {"input": 1000.0, "output": 1000.0}
"""A tenth of a cent for each token."""
ANSWER = [Say("Hello."), Uses(input=90, output=10)]
"""10 cents."""


def budget(amount: str, **whose: Any) -> BudgetSettings:
    return BudgetSettings(f"the {amount}", read_allowance(amount), **whose)


@dataclass
class Shop:
    gateways: Sequence[tuple[str, Gateway]]
    keys: dict[str, str]
    clock: Clock

    async def ask(self, key: str, at: int = 0, wire: str = "openai-chat", model: str = "m") -> Reply:
        reply = await self.ask_only(key, at, wire, model)
        await self.flush()
        return reply

    async def ask_only(self, key: str, at: int = 0, wire: str = "openai-chat", model: str = "m") -> Reply:
        headers = {"Authorization": f"Bearer {self.keys[key]}"} if key else {}
        client = Client(self.gateways[at][0], wire, parallel=None, tools=(), headers=headers, model=model)
        return await client.ask(User.of("Hi"))

    async def flush(self) -> None:
        for _, gateway in self.gateways:
            if gateway.metering is not None:
                await gateway.metering.ledger.flush()


@asynccontextmanager
async def shop(
    tmp_path: Path, *keys: GatewayKey, stores: Sequence[Store] = (), wire: str = "openai-chat", **settings: Any
) -> AsyncGenerator[Shop]:
    secrets = {key.name: create_key(tmp_path / "keys.json", key) for key in keys}
    clock = Clock()
    async with ScriptedServer(ANSWER, loop_last=True) as server:
        models = [replace(upstream_settings(server, wire, alias), price=PRICE) for alias in ("m", "n")]
        options = settings_for(*models, keys=bool(keys), keys_file=str(tmp_path / "keys.json"), **settings)
        gateways = [Gateway(options, store, clock) for store in stores or [None]]
        if len(gateways) == 1:
            async with serving(options, gateway=gateways[0]) as url:
                yield Shop([(url, gateways[0])], secrets, clock)
        else:
            async with serving(options, gateway=gateways[0]) as one, serving(options, gateway=gateways[1]) as two:
                yield Shop([(one, gateways[0]), (two, gateways[1])], secrets, clock)


@pytest.mark.parametrize("wire", WIRES)
def test_a_spent_budget_is_refused_in_the_clients_wire_and_starts_again_the_next_day(tmp_path: Path, wire: str) -> None:
    async def story() -> None:
        ann = GatewayKey("ann", budgets=(read_allowance("0.2usd/day"),))
        async with shop(tmp_path, ann, GatewayKey("bob")) as it:
            assert "x-unbroken-budget" not in (await it.ask("ann", wire=wire)).headers
            assert (await it.ask("ann", wire=wire)).status == 200
            refused = await it.ask("ann", wire=wire)
            state = "ann 0.2usd/day: 0.20 USD of 0.20 USD spent, resets 2023-11-15T00:00:00Z"
            error = assert_error(wire, refused, 402, f"the budget is spent: {state}")
            assert refused.headers["x-should-retry"] == "false"
            assert "Retry-After" not in refused.headers
            assert refused.headers["x-unbroken-budget"] == state
            assert wire != "openai-chat" or error["code"] == "insufficient_quota"
            assert wire != "anthropic-messages" or error["type"] == "billing_error"
            assert (await it.ask("bob", wire=wire)).status == 200
            gateway = it.gateways[0][1]
            await gateway.use(gateway.settings)
            assert gateway.metering is not None
            assert gateway.metering.records  # a reload forgets no request of such a key that is in flight
            it.clock.time += 86400
            assert (await it.ask("ann", wire=wire)).status == 200

    run(story)


@pytest.mark.parametrize(
    ("whose", "asked", "refused"),
    [
        ({}, [("ann", "m"), ("bob", "n")], [("ann", "n"), ("eve", "m")]),
        ({"team": "search"}, [("ann", "m"), ("bob", "n"), ("eve", "m")], [("ann", "m"), ("bob", "m")]),
        ({"model": "m"}, [("ann", "m"), ("eve", "m"), ("ann", "n")], [("ann", "m"), ("eve", "m")]),
        ({"key": "ann"}, [("ann", "m"), ("ann", "n"), ("bob", "m")], [("ann", "m"), ("ann", "n")]),
    ],
)
def test_a_budget_is_for_all_a_team_a_model_or_a_key(
    tmp_path: Path, whose: dict[str, str], asked: list[tuple[str, str]], refused: list[tuple[str, str]]
) -> None:
    async def story() -> None:
        keys = [GatewayKey("ann", team="search"), GatewayKey("bob", team="search"), GatewayKey("eve")]
        async with shop(tmp_path, *keys, budgets=(budget("0.2usd/month", **whose),)) as it:
            for key, model in asked:
                assert (await it.ask(key, model=model)).status == 200
            for key, model in refused:
                assert (await it.ask(key, model=model)).status == 402

    run(story)


def test_a_budget_warns_in_a_header_in_the_log_and_in_the_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with shop(tmp_path, budgets=(budget("1000tokens/total", warn_at=0.2),)) as it:
            replies = [await it.ask("") for _ in range(4)]
            told = [reply.headers.get("x-unbroken-budget", "") for reply in replies]
            words = "the 1000tokens/total: {} tokens of 1,000 tokens spent, resets never"
            assert told == ["", "", words.format(200), words.format(300)]
            warned = [record.message for record in caplog.records if "budget_warning" in record.message]
            assert warned == [f"budget_warning {words.format(200)}"]
            gateway = it.gateways[0][1]
            (status,) = await read_budgets(gateway.store, gateway.settings, (), it.clock())
            assert (status.spent, status.amount, status.whose, status.resets) == (400, 1000, "all", None)

    caplog.set_level(logging.WARNING)
    run(story)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_gateways_that_share_a_store_share_budgets_and_limits(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else valkey_server.empty_url()

    async def story() -> None:
        ann = GatewayKey("ann", budgets=(read_allowance("0.3usd/day"),))
        keys = [ann, GatewayKey("bob", requests_per_minute=3), GatewayKey("eve", tokens_per_minute=200)]
        stores = [open_store(url), open_store(url)]
        async with shop(tmp_path, *keys, stores=stores, store="sqlite:x") as it:
            for key in ("ann", "bob"):
                statuses = [(await it.ask(key, at)).status for at in (0, 1, 0, 1, 0)]
                assert statuses == [200, 200, 200, *([402] if key == "ann" else [429]) * 2]
            assert [(await it.ask("eve", at)).status for at in (0, 1, 0, 1)] == [200, 200, 429, 429]

    run(story)


def test_limits_per_minute_of_a_key_and_of_a_team_and_the_exact_wait(tmp_path: Path) -> None:
    async def story() -> None:
        teams = (TeamSettings("search", requests_per_minute=2), TeamSettings("shop", tokens_per_minute=150))
        keys = [GatewayKey("ann", team="search"), GatewayKey("bob", team="search"), GatewayKey("eve", team="shop")]
        async with shop(tmp_path, *keys, GatewayKey("dan", tokens_per_minute=100), teams=teams) as it:
            it.clock.time = 1_700_000_040.0 + 17.5  # 42.5 s are left of the minute
            assert [(await it.ask(key)).status for key in ("ann", "bob")] == [200, 200]
            refused = await it.ask("ann")
            assert_error("openai-chat", refused, 429, "team `search` may use 2 requests a minute: wait 42 s")
            assert refused.headers["Retry-After"] == "43"
            assert [(await it.ask("eve")).status for _ in range(3)] == [200, 200, 429]
            assert [(await it.ask("dan")).status for _ in range(2)] == [200, 429]
            it.clock.time += 42.4
            assert (await it.ask("ann")).headers["Retry-After"] == "1"
            it.clock.time += 0.1
            assert [(await it.ask(key)).status for key in ("ann", "eve", "dan")] == [200, 200, 200]

    run(story)


class Away(MemoryStore):
    """A store whose counters cannot be used."""

    async def add(self, additions: Sequence[Addition], once: str = "") -> list[dict[str, int]]:
        raise StoreUnavailable("away")

    async def reserve(self, additions: Sequence[Addition], limits: Sequence[Limit]) -> list[list[int]]:
        raise StoreUnavailable("away")


def test_without_a_store_each_gateway_counts_for_itself_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(it: Shop) -> int:
        client = Client(it.gateways[0][0], "openai-chat", parallel=None, tools=())
        return (await client.ask(User.of("Hi"))).status

    async def story() -> None:
        async with shop(tmp_path, stores=[Away()], budgets=(budget("0.2usd/day"),)) as it:
            assert [await ask(it) for _ in range(3)] == [200, 200, 402]
        assert [record.message for record in caplog.records if "limits_local" in record.message] != []
        assert "spend_lost" in caplog.text
        refusing = shop(tmp_path, stores=[Away()], budgets=(budget("0.2usd/day"),), without_store="refuse")
        async with refusing as it:
            assert await ask(it) == 503

    run(story)


@pytest.mark.parametrize("away", [False, True], ids=["refused", "without a store"])
def test_what_happens_with_each_request_is_logged_once_a_minute_for_each_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    async def story() -> None:
        keys = [GatewayKey(name, budgets=(read_allowance("0.1usd"),)) for name in ("ann", "bob")]
        async with shop(tmp_path, *keys, stores=[Away()] if away else ()) as it:
            for key in ("ann", "bob"):
                for _ in range(10):
                    await it.ask_only(key)
                    if not away:
                        await it.flush()
            it.clock.time += 61
            await it.ask_only("ann")

    run(story)
    event = "limits_local" if away else "budget_refused"
    lines = [message for message in caplog.messages if message.startswith(event)]
    left_out = 9 if away else 8  # of ten requests the first was answered
    assert [line.partition(":")[0] for line in lines] == [
        f"{event} key=ann left_out=0",
        f"{event} key=bob left_out=0",
        f"{event} key=ann left_out={left_out}",
    ]


def test_a_request_is_refused_before_it_is_answered_and_never_in_the_middle(tmp_path: Path) -> None:
    """Those that begin while the rest of a budget is reserved may try again; when it is spent, not."""

    async def story() -> None:
        async with shop(tmp_path, budgets=(budget("0.1usd/day"),)) as it:
            client = Client(it.gateways[0][0], "openai-chat", True, parallel=None, tools=())
            replies = await asyncio.gather(*(replace(client, messages=[]).ask(User.of("Hi")) for _ in range(4)))
            answered, *refused = sorted(replies, key=lambda reply: reply.status)
            assert answered.response.text == "Hello."
            state = "the 0.1usd/day: 0.00 USD of 0.10 USD spent, resets 2023-11-15T00:00:00Z"
            words = f"what is left of the budget is reserved for requests in flight: {state}; try again when they end"
            for reply in refused:
                assert_error("openai-chat", reply, 429, words)
                assert (reply.headers["Retry-After"], reply.headers["x-unbroken-budget"]) == ("1", state)
            assert (await it.ask("")).status == 402

    run(story)


def test_budgets_and_teams_in_a_file_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "unbroken.toml"
    path.write_text(
        '[[models]]\nmodel = "demo"\nprice = { input = 1, output = 2.5 }\n[spend]\nkeep = "30d"\n'
        '[[budgets]]\namount = "20usd/day"\n[[budgets]]\nteam = "a"\namount = "$5"\nwarn_at = 0.5\n'
        '[[teams]]\nname = "a"\ntokens_per_minute = 5\n'
    )
    settings = read_config(path)
    assert settings.upstreams[0].price == {"input": 1.0, "output": 2.5}
    assert settings.budgets == (
        BudgetSettings("all, usd per day", read_allowance("20usd/day")),
        BudgetSettings("team a, usd in total", read_allowance("5usd/total"), team="a", warn_at=0.5),
    )
    assert settings.teams == (TeamSettings("a", tokens_per_minute=5),)
    path.write_text(
        '[[models]]\nmodel = "demo"\nprice = { input = 1 }\n'
        '[[budgets]]\namount = "20"\n[[budgets]]\nkey = "a"\nteam = "b"\n[[budgets]]\namount = "1usd"\n'
        '[[budgets]]\namount = "2usd"\n[[teams]]\n[[teams]]\nname = "a"\n[[teams]]\nname = "a"\n'
    )
    with pytest.raises(UserError) as raised:
        read_config(path)
    lines = [line.partition(": ")[2] for line in str(raised.value).splitlines()]
    expected = [
        "[[models]] 1: `price` has to be what a million tokens cost in dollars",
        "[[budgets]] 1: `amount` has to be an amount like 20usd/day",
        '[[budgets]] 2: `amount` is missing: write it like amount = "20usd/day"',
        "[[budgets]] 2: it has `key` and `team`: give one of them, or none for all",
        "[[budgets]] 4: there is a budget `all, usd in total` already",
        '[[teams]] 1: `name` is missing: write it like name = "search"',
        "[[teams]] 3: its name `a` is taken: give it one of its own",
    ]
    assert len(lines) == len(expected), lines
    assert [line for line, words in zip(lines, expected, strict=True) if not line.startswith(words)] == []


def test_an_operator_sees_all_spending_and_a_key_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        ann = GatewayKey("ann", budgets=(read_allowance("5usd/day"),))
        keys = [ann, GatewayKey("bob"), GatewayKey("ops", operator=True)]
        async with shop(tmp_path, *keys, spend=True) as it, aiohttp.ClientSession() as session:

            async def get(path: str, key: str = "") -> tuple[int, str]:
                headers = {"Authorization": f"Bearer {it.keys[key]}"} if key else {}
                async with session.get(it.gateways[0][0] + path, headers=headers) as answer:
                    return answer.status, await answer.text()

            for key in ("ann", "ann", "bob"):
                await it.ask(key)
            seen = {key: json.loads((await get("/spend.json", key))[1]) for key in it.keys}
            assert {key: {row["key"] for row in data["spend"]} for key, data in seen.items()} == {
                "ann": {"ann"},
                "bob": {"bob"},
                "ops": {"ann", "bob"},
            }
            assert {key: [each["spent"] for each in data["budgets"]] for key, data in seen.items()} == {
                "ann": [NANO // 5],
                "bob": [],
                "ops": [NANO // 5],
            }
            assert (await get("/spend.json"))[0] == 401
            status, page = await get("/spend", "ops")
            assert status == 200
            assert "0.30 USD" in page
            assert "USD" not in (await get("/spend"))[1].partition("<main>")[2].partition("</main>")[0]
            recent = json.loads((await get("/status.json", "bob"))[1])["status"]
            assert (recent["cost"], [request["cost"] for request in recent["recent"]]) == (NANO // 10, [NANO // 10])

    run(story)


def test_a_key_sees_the_amounts_of_its_own_budgets_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a team or the whole gateway spends is not for each of its keys."""

    async def story() -> None:
        keys = [
            GatewayKey("ann", team="search", budgets=(read_allowance("0.4usd/day"),)),
            GatewayKey("bob", team="search"),
            GatewayKey("eve", operator=True),
        ]
        budgets = (
            BudgetSettings("search", read_allowance("0.3usd/day"), team="search", warn_at=0.1),
            BudgetSettings("all", read_allowance("0.3usd/day"), warn_at=0.1),
        )
        async with shop(tmp_path, *keys, budgets=budgets, warn_at=0.2) as it:
            await it.ask("ann")
            reset = "resets 2023-11-15T00:00:00Z"
            warned = (await it.ask("ann")).headers["x-unbroken-budget"]
            assert warned == (
                f"search: nearly used up, {reset}; all: nearly used up, {reset}; "
                f"ann 0.4usd/day: 0.10 USD of 0.40 USD spent, {reset}"
            )
            await it.ask("bob")
            refused = await it.ask("bob")
            assert_error("openai-chat", refused, 402, f"the budget is spent: search: used up, {reset}")
            assert refused.headers["x-unbroken-budget"] == f"search: used up, {reset}"
            operator = await it.ask("eve")
            assert operator.headers["x-unbroken-budget"] == f"all: 0.30 USD of 0.30 USD spent, {reset}"
            assert any("search: 0.30 USD of 0.30 USD" in record.message for record in caplog.records)

    run(story)


def test_a_request_does_not_look_at_the_budgets_of_other_teams() -> None:
    """What a request costs must not grow with the number of teams."""
    looks: list[str] = []

    class Looked(BudgetSettings):
        def __getattribute__(self, name: str) -> Any:
            looks.append(name)
            return super().__getattribute__(name)

    teams = [Looked(f"b{at}", read_allowance("1usd/day"), team=f"t{at}") for at in range(300)]
    shared = BudgetSettings("all", read_allowance("2usd/day"))
    mixed = (*teams[:200], shared, *teams[200:], BudgetSettings("m", read_allowance("3usd/day"), model="m"))
    limits = tuple(TeamSettings(f"t{at}", tokens_per_minute=10) for at in range(300))
    budgets = Budgets(settings_for(budgets=mixed, teams=limits))
    looks.clear()
    caps = budgets.caps_of(GatewayKey("ann", team="t250", id="1"), "m")
    assert [cap.name for cap in caps] == ["all", "b250", "m", "team `t250`"]  # in the order of the file
    assert len(looks) < 10
