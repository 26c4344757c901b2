"""`unbroken top DIR|URL`: the runs that are running or waiting now, as a table that refreshes itself."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import orjson
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from unbroken.errors import UserError
from unbroken.run_view import shown_cost
from unbroken_cli.exits import print_line
from unbroken_cli.options import shown_place
from unbroken_cli.progress_line import progress
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean_line, one_line
from unbroken_cli.view import opened
from unbroken_viewer.listing import Listing, Row, shown_end

STILL = 15.0
"""Seconds without a new line, after which a run without an end is no longer called running."""
_GOING = ("running", "waiting", "ready", "stopped")
_COLUMNS = {
    "state": 0,
    "run": 80,
    "agent": 60,
    "asked": 0,
    "time": 36,
    "rounds": 70,
    "calls": 50,
    "tokens": 90,
    "cost": 90,
}
"""The columns, and the width that a terminal needs to show each."""
_ALWAYS = ("state", "asked", "time")
_NOTHING = ("", shown_cost(None))
"""A column that has nothing else is not shown."""
_NUMBERS = ("time", "rounds", "calls", "tokens", "cost")
_COLOURS = {"running": "green", "waiting": "yellow", "stopped": "red"}


def top_command(
    place: Annotated[str, typer.Argument(metavar="DIR|URL", help="A folder of recordings, or a journal.")],
    every: Annotated[float, typer.Option(metavar="S", help="Seconds between two looks.", min=0.2)] = 1.0,
    all: Annotated[bool, typer.Option("--all", help="Also list runs that have ended.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the table once.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the runs once, as JSON.")] = False,
) -> None:
    """Show the runs that are running or waiting now, until Ctrl-C. In a pipe the table is printed once.

    A run of a folder without an end is running while lines are added to its recording. If there are none for 15
    seconds it is called stopped: its process died, or it waits for a slow tool or model.

    Exit codes: 0 shown; 2 there is no such folder or journal.
    """
    with opened(place) as listing:
        if listing.one:
            raise UserError(f"{listing.name} is one run: name its folder or its journal; `unbroken view` shows one run")
        with progress(f"reading {shown_place(place)}"):
            listing.rows(0)  # the first look reads every file, later ones only what has changed
        if json:
            typer.echo(orjson.dumps([asdict(run) for run in _runs(listing, all)]).decode())
        elif once or not is_terminal(sys.stdout):
            _print(listing, all)
        else:
            _watch(listing, all, every)


def _runs(listing: Listing, all: bool) -> list[Row]:
    return [row for row in listing.rows(0) if not row.problem and (all or state_of(row) in _GOING)]


def state_of(row: Row, now: float | None = None) -> str:
    """The state for this table: a run without an end is `running`, or `stopped` if nothing was added for a while."""
    if row.state != "unfinished":
        return shown_end(row.state, row.agent)
    return "running" if (time.time() if now is None else now) - row.changed < STILL else "stopped"


def _watch(listing: Listing, all: bool, every: float) -> None:
    console = Console()
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(_screen(_runs(listing, all), console), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        pass


def _print(listing: Listing, all: bool) -> None:
    runs = _runs(listing, all)
    if is_terminal(sys.stdout):
        console = Console()
        console.print(_table(runs, time.time(), console.width))
    else:
        for cells in [tuple(_COLUMNS), *(_cells(row, time.time()) for row in runs)]:
            typer.echo("\t".join(map(clean_line, cells)))
    if not runs:
        print_line("no run is running or waiting; --all lists the others")


def _screen(runs: Sequence[Row], console: Console) -> Group:
    now = time.time()
    counts = Counter(state_of(row, now) for row in runs)
    told = ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no run is running or waiting"
    room = max(console.height - 5, 1)
    more = f"; {len(runs) - room} more are not shown" if len(runs) > room else ""
    head = Text.assemble((time.strftime("%H:%M:%S"), "dim"), f"  {told}{more}", ("    Ctrl-C ends", "dim"))
    head.no_wrap, head.overflow = True, "ellipsis"
    return Group(head, _table(runs[:room], now, console.width))


def _table(runs: Sequence[Row], now: float, width: int) -> Table:
    """The columns that fit into this width, without those that are empty."""
    rows = [_cells(row, now) for row in runs]
    shown = [
        at
        for at, (name, least) in enumerate(_COLUMNS.items())
        if width >= least and (name in _ALWAYS or any(row[at] not in _NOTHING for row in rows))
    ]
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for at in shown:
        name = [*_COLUMNS][at]
        table.add_column(
            name, justify="right" if name in _NUMBERS else "left", no_wrap=True, ratio=1 if name == "asked" else None
        )
    for row in rows:
        table.add_row(*(Text(row[at], _COLOURS.get(row[0], "") if at == 0 else "") for at in shown))
    return table


def _cells(row: Row, now: float) -> tuple[str, ...]:
    state = state_of(row, now)
    seconds = row.seconds
    if row.time and state in ("running", "stopped"):
        seconds = max((now if state == "running" else row.changed) - row.time, seconds)
    return (
        state,
        one_line(row.run or row.name),
        one_line("" if row.agent == "main" else row.agent),
        one_line(row.prompt),
        _time(seconds),
        "" if row.rounds is None else str(row.rounds),
        "" if row.calls is None else str(row.calls),
        f"{row.tokens:,}" if row.tokens else "",
        shown_cost(row.cost, row.currency),
    )


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
