"""Reads what was spent from a store: by day, key, team, alias and model, or added up by some of these."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias, get_args

from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.allowance import dollars
from unbroken_gateway.spending.budgets import BudgetStatus, all_budgets, reserved_groups
from unbroken_gateway.stores import Store

SPEND_GROUP = "spend:"
"""Before the day: the group of its counters. The name of a counter is its kind and a JSON list of the key's id and
name, the team, the alias and the model."""

By: TypeAlias = Literal["day", "key", "team", "alias", "model"]
BYS: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True)
class Spend:
    """What was spent. Fields that it is not separated by are empty."""

    day: str = ""
    key_id: str = ""
    key: str = ""
    """The name of the key when it was used; empty: a gateway without keys."""
    team: str = ""
    alias: str = ""
    model: str = ""
    """The model that really answered, `openai:gpt-5`."""
    requests: int = 0
    """Answers for which a provider reported usage, attempts that failed included."""
    input: int = 0
    """Tokens, those from a cache included."""
    cached: int = 0
    cache_write: int = 0
    output: int = 0
    """Tokens, those of reasoning included."""
    reasoning: int = 0
    cost: int = 0
    """In nano-dollars, without those whose price is not known."""
    unpriced: int = 0
    """How many of the requests have no known price."""
    unreported: int = 0
    """Answers for which no usage was reported and none can be estimated, such as speech."""
    estimated: int = 0
    """Answers of which a part was not reported, such as those that a client did not wait for."""
    estimated_input: int = 0
    """Tokens, by estimate, which `input` does not include. The same for the next two."""
    estimated_output: int = 0
    estimated_cost: int = 0


_COUNTS = tuple(field.name for field in fields(Spend) if field.type == "int")


def estimate_in_words(row: Spend) -> str:
    """`0.0042 USD for 3 answers`; empty if nothing is estimated."""
    if not row.estimated:
        return ""
    tokens = f"{row.estimated_input + row.estimated_output:,} tokens"
    amount = dollars(row.estimated_cost) if row.estimated_cost else tokens
    return f"{amount} for {row.estimated:,} {'answer' if row.estimated == 1 else 'answers'}"


def day_of(now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


def days_between(first: date, last: date) -> list[str]:
    return [f"{first + timedelta(days=each):%Y-%m-%d}" for each in range((last - first).days + 1)]


async def read_spend(store: Store, days: Sequence[str], key_id: str = "") -> list[Spend]:
    """What was spent on these days, in their order: one row for each key, team, alias and model. `key_id`: of this key
    alone. Raises `StoreUnavailable`."""
    groups = await store.counters([f"{SPEND_GROUP}{day}" for day in days])
    rows = [row for day, counters in zip(days, groups, strict=True) for row in _rows(day, counters.items())]
    return [row for row in rows if not key_id or row.key_id == key_id]


def _rows(day: str, counters: Iterable[tuple[str, int]]) -> Iterator[Spend]:
    found: dict[str, dict[str, int]] = {}
    for name, amount in counters:
        kind, _, row = name.partition(" ")
        if kind in _COUNTS:
            found.setdefault(row, {})[kind] = amount
    for row, counts in sorted(found.items()):
        key_id, key, team, alias, model = json.loads(row)
        yield Spend(day, key_id, key, team, alias, model, **counts)


def add_up(rows: Iterable[Spend], by: Sequence[By]) -> list[Spend]:
    """The sums of rows that are equal in `by`, in the order of these fields; without any, one row for everything."""
    sums: dict[tuple[str, ...], Spend] = {}
    for row in rows:
        names = {each: getattr(row, each) for each in by}
        if "key" in by:
            names["key_id"] = row.key_id
        place = tuple(names.values())
        before = sums.get(place) or Spend(**names)
        sums[place] = replace(before, **{kind: getattr(before, kind) + getattr(row, kind) for kind in _COUNTS})
    return [sums[place] for place in sorted(sums)]


async def read_budgets(
    store: Store, settings: GatewaySettings, keys: Iterable[GatewayKey], now: float
) -> list[BudgetStatus]:
    """All budgets of the configuration and of these keys, with what is spent of each. Raises `StoreUnavailable`."""
    budgets = all_budgets(settings, keys)
    reserved = reserved_groups(now)
    groups = list(dict.fromkeys([*(cap.group(now) for cap, _ in budgets), *reserved]))
    names = list(dict.fromkeys(cap.counter for cap, _ in budgets))
    found = dict(zip(groups, await store.counters(groups, names), strict=True)) if budgets else {}
    return [
        BudgetStatus(
            cap.name,
            words,
            cap.unit,
            cap.period,
            cap.most,
            found[cap.group(now)].get(cap.counter, 0),
            sum(max(0, found[group].get(cap.counter, 0)) for group in reserved),
            None if cap.period == "total" else cap.resets(now),
        )
        for cap, words in budgets
    ]
