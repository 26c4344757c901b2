"""`unbroken spend`: what the requests of a gateway cost, by key, team, model and day, and what is left of budgets. It
reads the gateway's store, so the gateway need not run."""

from __future__ import annotations

import asyncio
import csv
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from json import dumps
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from unbroken.errors import UserError
from unbroken_cli.exits import print_line
from unbroken_cli.streams import is_terminal
from unbroken_gateway.config import FILE, read_config
from unbroken_gateway.keys import list_keys
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.allowance import NANO, dollars
from unbroken_gateway.spending.budgets import BudgetStatus, amount_of, moment
from unbroken_gateway.spending.report import (
    BYS,
    By,
    Spend,
    add_up,
    days_between,
    estimate_in_words,
    read_budgets,
    read_spend,
)
from unbroken_gateway.stores import StoreUnavailable, open_store, store_url

_COUNTS = ("requests", "input", "cached", "output", "reasoning")
_ESTIMATES = ("estimated", "estimated_input", "estimated_output")
_MOST_DAYS = 3660


def spend_command(
    by: Annotated[
        str, typer.Option(metavar="FIELDS", help="What to add up by: day, key, team, alias, model, with commas.")
    ] = "day,alias",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="The first day: 30d for the last thirty, or 2026-11-01.")
    ] = "30d",
    until: Annotated[str, typer.Option(metavar="DAY", help="The last day, 2026-11-30.", show_default="today")] = "",
    key: Annotated[str, typer.Option(metavar="NAME", help="Only this key.", show_default="all")] = "",
    team: Annotated[str, typer.Option(metavar="NAME", help="Only this team.", show_default="all")] = "",
    budgets: Annotated[bool, typer.Option("--budgets", help="What is spent of each budget, instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a head instead of a table.")] = False,
    store: Annotated[
        str, typer.Option(metavar="URL", help="The gateway's store.", show_default="that of the configuration")
    ] = "",
    config: Annotated[
        str, typer.Option(metavar="FILE", help="The gateway's configuration.", show_default=f"{FILE}, if it is there")
    ] = "",
) -> None:
    """Show what the requests of a gateway cost, as it counts with `[spend]`. Days are those of UTC."""
    settings = read_config(config or FILE) if config or Path(FILE).is_file() else GatewaySettings(())
    url = _url(store or store_url(settings.store))
    if budgets:
        _print_budgets(asyncio.run(_budgets(url, settings)), json)
        return
    fields = _fields(by)
    today = datetime.now(UTC).date()
    first, last = _day(since, today, "--since"), _day(until, today, "--until") if until else today
    if not 0 <= (last - first).days < _MOST_DAYS:
        raise UserError(f"--since {since}: it has to be before the last day, {last}, by at most ten years")
    rows = asyncio.run(_rows(url, days_between(first, last)))
    rows = [row for row in rows if (not key or row.key == key) and (not team or row.team == team)]
    shown = add_up(rows, fields)
    if json:
        typer.echo(dumps([_as_json(row, fields) for row in shown], ensure_ascii=False, indent=2))
    elif as_csv:
        writer = csv.writer(sys.stdout)
        head = [*fields, *_COUNTS, "cost_usd", "unpriced", "unreported", *_ESTIMATES, "estimated_cost_usd"]
        writer.writerow(head)
        for row in shown:
            cells = [getattr(row, name) for name in (*fields, *_COUNTS)]
            estimates = [*(getattr(row, name) for name in _ESTIMATES), _usd(row.estimated_cost)]
            writer.writerow([*cells, _cost(row), row.unpriced, row.unreported, *estimates])
    elif not shown:
        print_line(f"nothing was spent from {first} to {last}; a gateway counts if [spend] has enabled = true")
    else:
        _print_rows(shown, fields, first, last)


async def _rows(url: str, days: Sequence[str]) -> list[Spend]:
    store = open_store(url)
    try:
        return await read_spend(store, days)
    except StoreUnavailable as error:
        raise UserError(str(error)) from None
    finally:
        await store.aclose()


async def _budgets(url: str, settings: GatewaySettings) -> list[BudgetStatus]:
    keys = list_keys(settings.keys_file) if settings.keys or Path(settings.keys_file).is_file() else ()
    store = open_store(url)
    try:
        return await read_budgets(store, settings, keys, time.time())
    except StoreUnavailable as error:
        raise UserError(str(error)) from None
    finally:
        await store.aclose()


def _url(url: str) -> str:
    if url.startswith("memory"):
        raise UserError("the gateway's store is in its memory: open /spend of the gateway, or give it another store")
    path = url.removeprefix("sqlite:")
    if not re.match(r"[A-Za-z]{2,}:", path) and not Path(path).expanduser().is_file():
        raise UserError(f"there is no store {path}: name that of the gateway with --store or --config")
    return url


def _fields(by: str) -> tuple[By, ...]:
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in BYS:
            raise UserError(f"--by {by}: `{name}` is not one of {', '.join(BYS)}")
    return cast("tuple[By, ...]", tuple(dict.fromkeys(names)))


def _day(text: str, today: date, option: str) -> date:
    if found := re.fullmatch(r"(\d{1,4})d", text.strip()):
        return today - timedelta(days=max(int(found[1]) - 1, 0))
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise UserError(f"{option} {text!r}: give a number of days like 30d, or a day like 2026-11-01") from None


def _cost(row: Spend) -> str:
    """In dollars. Empty if no answer of the row has a known price."""
    return "" if row.unpriced == row.requests and not row.cost else _usd(row.cost)


def _usd(nano: int) -> str:
    return f"{Decimal(nano) / NANO:.9f}"


def _cost_in_words(row: Spend) -> str:
    if row.unpriced and row.unpriced == row.requests:
        return "unknown"
    return f"{dollars(row.cost)}{f' + {row.unpriced:,} unknown' if row.unpriced else ''}"


def _as_json(row: Spend, fields: Sequence[By]) -> dict[str, Any]:
    cost = _cost(row)
    names: dict[str, Any] = {each: getattr(row, each) for each in fields}
    counts = {name: getattr(row, name) for name in (*_COUNTS, "cache_write", "unpriced", "unreported", *_ESTIMATES)}
    costs = {"cost_usd": float(cost) if cost else None, "estimated_cost_usd": float(_usd(row.estimated_cost))}
    return {**names, **counts, **costs}


def _print_rows(rows: Sequence[Spend], fields: Sequence[By], first: date, last: date) -> None:
    def cells(row: Spend) -> list[str]:
        named = [getattr(row, each) or "none" for each in fields]
        return [*named, *(f"{getattr(row, name):,}" for name in _COUNTS), _cost_in_words(row)]

    (total,) = add_up(rows, ())
    if not is_terminal(sys.stdout):
        for row in rows:
            typer.echo("\t".join([*cells(row), *([estimate_in_words(row)] if total.estimated else [])]))
        return
    named = (Column(name, overflow="fold") for name in fields)
    table = Table(*named, box=None, pad_edge=False, show_footer=len(rows) > 1)
    if fields:
        table.columns[0].footer = "all"
    for name in _COUNTS:
        table.add_column(name, f"{getattr(total, name):,}", justify="right", no_wrap=True)
    table.add_column("cost", _cost_in_words(total), justify="right")
    if total.estimated:
        table.add_column("estimated beside", estimate_in_words(total), justify="right")
    for row in rows:
        table.add_row(*map(escape, cells(row)), *([estimate_in_words(row)] if total.estimated else []))
    console = Console(highlight=False)
    console.print(table)
    if total.unpriced:
        console.print(f"{total.unpriced:,} answers have no known price: give their models a `price`")
    if total.unreported:
        console.print(f"{total.unreported:,} more answers were not counted: no usage was reported for them")


def _print_budgets(budgets: Sequence[BudgetStatus], json: bool) -> None:
    if json:
        typer.echo(dumps([asdict(each) for each in budgets], ensure_ascii=False, indent=2))
        return
    if not budgets:
        print_line("there are no budgets: [[budgets]] in the configuration, or `unbroken keys create --budget`")
        return
    rows = [
        (
            each.name,
            each.whose,
            amount_of(each.unit, each.spent),
            amount_of(each.unit, each.amount),
            f"{100 * each.share:.0f} %",
            "never" if each.resets is None else moment(each.resets),
        )
        for each in budgets
    ]
    if not is_terminal(sys.stdout):
        for row in rows:
            typer.echo("\t".join(row))
        return
    table = Table(Column("budget", overflow="fold"), Column("of", overflow="fold"), box=None, pad_edge=False)
    for name in ("spent", "amount", "%"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("starts again", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(highlight=False).print(table)
