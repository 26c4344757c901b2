"""`unbroken spend`: tables, tabs, JSON and CSV from a gateway's store, and what is wrong with the options."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal
from typer.testing import CliRunner, Result

from unbroken_cli.commands import build
from unbroken_gateway.spending.allowance import NANO
from unbroken_gateway.stores import open_store
from unbroken_gateway.stores.store import Addition

TODAY = datetime.now(UTC)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(build("spend"), ["spend", *words])


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = '[[models]]\nmodel = "demo"\n[[budgets]]\nteam = "search"\namount = "4usd/total"\n'
    Path("unbroken.toml").write_text(config)

    def row(key: str, team: str, alias: str, **counts: int) -> dict[str, int]:
        name = json.dumps([f"id-{key}", key, team, alias, f"openai:{alias}"], separators=(",", ":"))
        return {f"{kind} {name}": amount for kind, amount in counts.items()}

    async def write() -> None:
        store = open_store("sqlite:unbroken-gateway.db")
        today, before = f"{TODAY:%Y-%m-%d}", f"{TODAY - timedelta(days=40):%Y-%m-%d}"
        first = row("ann", "search", "smart", requests=2, input=1500, cached=500, output=30, cost=NANO // 4)
        other = row("bob", "", "local", requests=1, input=7, output=1, unpriced=1, unreported=2)
        old = row("ann", "search", "smart", requests=1, input=10, output=1, cost=2 * NANO)
        await store.add(
            [
                Addition(f"spend:{today}", {**first, **other}, 1e6),
                Addition(f"spend:{before}", old, 1e6),
                Addition("spent:total", {"usd team:search": 3 * NANO}, 1e6),
            ]
        )
        await store.aclose()

    asyncio.run(write())


def test_rows_are_added_up_and_an_unknown_price_is_unknown() -> None:
    today = f"{TODAY:%Y-%m-%d}"
    assert invoke().stdout.splitlines() == [
        f"{today}\tlocal\t1\t7\t0\t1\t0\tunknown",
        f"{today}\tsmart\t2\t1,500\t500\t30\t0\t0.25 USD",
    ]
    assert invoke("--by", "team", "--since", "60d").stdout.splitlines() == [
        "none\t1\t7\t0\t1\t0\tunknown",
        "search\t3\t1,510\t500\t31\t0\t2.25 USD",
    ]
    assert invoke("--by", "key", "--key", "bob").stdout == "bob\t1\t7\t0\t1\t0\tunknown\n"
    assert invoke("--by", "key", "--team", "none").stderr.startswith("unbroken: nothing was spent from ")


def test_programs_read_json_and_csv() -> None:
    rows: list[dict[str, Any]] = json.loads(invoke("--by", "key,model", "--json").stdout)
    assert [(row["key"], row["model"], row["cost_usd"]) for row in rows] == [
        ("ann", "openai:smart", 0.25),
        ("bob", "openai:local", None),
    ]
    assert (rows[1]["unpriced"], rows[1]["unreported"]) == (1, 2)
    assert invoke("--by", "alias", "--csv").stdout.splitlines() == [
        "alias,requests,input,cached,output,reasoning,cost_usd,unpriced,unreported,"
        "estimated,estimated_input,estimated_output,estimated_cost_usd",
        "local,1,7,0,1,0,,1,2,0,0,0,0.000000000",
        "smart,2,1500,500,30,0,0.250000000,0,0,0,0,0,0.000000000",
    ]


def test_estimates_have_columns_of_their_own() -> None:
    async def write() -> None:
        store = open_store("sqlite:unbroken-gateway.db")
        name = '["id-ann","ann","search","smart","openai:smart"]'
        counts = {"estimated": 3, "estimated_input": 900, "estimated_output": 100, "estimated_cost": NANO // 2}
        amounts = {f"{kind} {name}": amount for kind, amount in counts.items()}
        await store.add([Addition(f"spend:{TODAY:%Y-%m-%d}", amounts, 1e6)])
        await store.aclose()

    asyncio.run(write())
    assert invoke("--by", "alias").stdout.splitlines() == [
        "local\t1\t7\t0\t1\t0\tunknown\t",
        "smart\t2\t1,500\t500\t30\t0\t0.25 USD\t0.50 USD for 3 answers",
    ]
    row = json.loads(invoke("--by", "", "--key", "ann", "--json").stdout)[0]
    assert (row["input"], row["cost_usd"]) == (1500, 0.25)
    assert (row["estimated"], row["estimated_input"], row["estimated_cost_usd"]) == (3, 900, 0.5)


def test_budgets_are_listed_with_what_is_spent() -> None:
    shown = invoke("--budgets").stdout
    assert shown == "team search, usd in total\tteam search\t3.00 USD\t4.00 USD\t75 %\tnever\n"
    assert json.loads(invoke("--budgets", "--json").stdout)[0]["spent"] == 3 * NANO


def test_on_a_terminal_amounts_stand_under_their_names_and_brackets_in_names_are_shown(tmp_path: Path) -> None:
    with (tmp_path / "unbroken.toml").open("a") as file:
        file.write('[[budgets]]\nname = "[/all] of us"\namount = "400usd/total"\n')
    with Terminal("spend", "--budgets", "--config", str(tmp_path / "unbroken.toml")) as terminal:
        assert terminal.end() == 0
        lines = [line.rstrip() for line in terminal.plain.splitlines()]
    assert lines[:3] == [
        "budget                     of              spent      amount     %  starts again",
        "team search, usd in total  team search  3.00 USD    4.00 USD  75 %  never",
        "[/all] of us               all          0.00 USD  400.00 USD   0 %  never",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "day,colour"], "--by day,colour: `colour` is not one of day, key, team, alias, model"),
        (["--since", "yesterday"], "--since 'yesterday': give a number of days like 30d, or a day like 2026-11-01"),
        (["--since", "2999-01-01"], "--since 2999-01-01: it has to be before the last day"),
        (["--store", "memory:"], "the gateway's store is in its memory"),
        (["--store", "other.db"], "there is no store other.db: name that of the gateway"),
    ],
)
def test_a_mistake_is_explained(words: list[str], told: str) -> None:
    assert str(invoke(*words).exception).startswith(told)
