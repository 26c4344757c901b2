"""The page of what was spent, in the look of the status page, and its data. Pure but for reading the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from unbroken_gateway.admin.status_page import Cell, Fact, Table, View
from unbroken_gateway.keys import GatewayKey
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.allowance import dollars
from unbroken_gateway.spending.budgets import BudgetStatus, amount_of, moment
from unbroken_gateway.spending.report import (
    By,
    Spend,
    add_up,
    day_of,
    days_between,
    estimate_in_words,
    read_budgets,
    read_spend,
)
from unbroken_gateway.stores import Store

DAYS = 31


async def read_page(
    store: Store,
    settings: GatewaySettings,
    keys: Iterable[GatewayKey],
    now: float,
    own: GatewayKey | None,
    counts: bool,
) -> tuple[View, dict[str, Any]]:
    """What the page shows, and the data behind it: of the last 31 days. `own`: of this key alone. `counts`: the gateway
    counts what requests cost. Raises `StoreUnavailable`."""
    today = datetime.fromtimestamp(now, UTC).date()
    days = days_between(today - timedelta(days=DAYS - 1), today)
    rows = await read_spend(store, days, own.id if own is not None else "")
    if own is None:
        budgets = await read_budgets(store, settings, keys, now)
    else:
        shown = await read_budgets(store, settings, [own], now)
        budgets = [each for each in shown if each.whose == f"key {own.name}"]
    data = {"spend": [asdict(row) for row in rows], "budgets": [asdict(each) for each in budgets]}
    return _view(rows, budgets, day_of(now), own, counts), data


def _view(
    rows: Sequence[Spend], budgets: Sequence[BudgetStatus], today: str, own: GatewayKey | None, counts: bool
) -> View:
    whose = "of all keys" if own is None else f"of key {own.name}"
    words = f"what requests {whose} cost in the last {DAYS} days, as the providers reported it; days are those of UTC"
    if not counts:
        words = "this gateway does not count what requests cost: [spend] needs enabled = true"
    tables = [_budgets(budgets)] if budgets else []
    tables += [_table("Models", rows, ("alias", "model"))]
    if own is None:
        tables += [_table("Keys", rows, ("key", "team"))]
        tables += [_table("Teams", rows, ("team",))] if any(row.team for row in rows) else []
    days = _table("Days", rows, ("day",))
    tables.append(Table(days.title, days.columns, tuple(reversed(days.rows)), days.empty))
    return View(words, tuple(_facts(rows, today)), tuple(tables))


def _facts(rows: Sequence[Spend], today: str) -> Sequence[Fact]:
    month = today[:7]
    facts = [
        _fact("Today", [row for row in rows if row.day == today]),
        _fact("This month", [row for row in rows if row.day.startswith(month)]),
        _fact(f"Last {DAYS} days", rows),
    ]
    (total,) = add_up(rows, ()) or [Spend()]
    if total.estimated:
        answers = f"{total.estimated:,} answers that were not reported completely"
        facts.append(Fact("Estimated", Cell(dollars(total.estimated_cost), answers)))
    missing = total.unpriced + total.unreported
    words = [f"{total.unpriced:,} without a price"] if total.unpriced else []
    words += [f"{total.unreported:,} without usage"] if total.unreported else []
    return [*facts, Fact("Not counted", Cell(f"{missing:,}", ", ".join(words) or "answers", "warn" if missing else ""))]


def _fact(name: str, rows: Sequence[Spend]) -> Fact:
    (total,) = add_up(rows, ()) or [Spend()]
    return Fact(name, Cell(_cost(total), f"{total.requests:,} answers"))


def _table(title: str, rows: Sequence[Spend], by: tuple[By, ...]) -> Table:
    added = add_up(rows, by)
    estimated = any(row.estimated for row in added)
    if "day" not in by:
        added.sort(key=lambda row: (-row.cost, -row.input))

    def cells(row: Spend) -> tuple[Cell, ...]:
        cached = f"{row.cached:,} from a cache" if row.cached else ""
        thought = f"{row.reasoning:,} of them reasoning" if row.reasoning else ""
        return (
            *(Cell(getattr(row, each) or "none", state="" if getattr(row, each) else "quiet") for each in by),
            Cell(f"{row.requests:,}", f"{row.unreported:,} more without usage" if row.unreported else ""),
            Cell(f"{row.input:,}", cached),
            Cell(f"{row.output:,}", thought),
            *([Cell(estimate_in_words(row))] if estimated else []),
            Cell(
                _cost(row), f"{row.unpriced:,} without a price" if row.unpriced else "", "warn" if row.unpriced else ""
            ),
        )

    names = {"alias": "Alias", "model": "Model", "key": "Key", "team": "Team", "day": "Day"}
    more = ("Estimated beside",) if estimated else ()
    columns = (*(names[each] for each in by), "Answers", "Input tokens", "Output tokens", *more, "Cost")
    return Table(title, columns, tuple(map(cells, added)), "Nothing was counted yet.")


def _cost(row: Spend) -> str:
    return "unknown" if row.unpriced and row.unpriced == row.requests else dollars(row.cost)


def _budgets(budgets: Sequence[BudgetStatus]) -> Table:
    def cells(each: BudgetStatus) -> tuple[Cell, ...]:
        state = "bad" if each.share >= 1 else "warn" if each.share >= 0.8 else "good"
        reserved = f", {amount_of(each.unit, each.reserved)} more reserved" if each.reserved else ""
        return (
            Cell(each.name),
            Cell(each.whose),
            Cell(amount_of(each.unit, each.spent), f"{100 * each.share:.0f} %{reserved}", state),
            Cell(amount_of(each.unit, each.amount)),
            Cell(moment(inf if each.resets is None else each.resets)),
        )

    return Table("Budgets", ("Budget", "Of", "Spent", "Amount", "Starts again"), tuple(map(cells, budgets)), "")
