"""Prints the statistics of many runs: tables and histograms on a terminal, plain lines in a pipe, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from json import dumps
from math import inf
from pathlib import Path

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unbroken.run_view import counted as plural
from unbroken.run_view import shown_cost
from unbroken.trajectory.alerts import Fired
from unbroken.trajectory.histogram import Histogram
from unbroken.trajectory.metrics import Metrics, ToolMetrics
from unbroken_cli.journal_runs import RecordedRun
from unbroken_cli.terminal_text import one_line

_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NONE = "-"
"""Shown for the mean of nothing."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    path: Path | RecordedRun
    reason: str


@dataclass(frozen=True, slots=True)
class Counted:
    all: Metrics
    groups: Mapping[str, Metrics]
    by: str
    recordings: int
    left_out: tuple[LeftOut, ...]
    fired: tuple[Fired, ...]
    currency: str = "$"
    """Of the cost; empty if there are prices of somebody's own, which may be of any."""

    @property
    def columns(self) -> dict[str, Metrics]:
        return {**{name: self.groups[name] for name in sorted(self.groups)}, "all": self.all}


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 1 else f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def _number(value: float, among: int) -> str:
    return f"{value:.2f}" if among else _NONE


def _latency(metrics: Metrics, value: float) -> str:
    return _seconds(value) if metrics.latency.count else _NONE


def _and_share(count: int, share: float) -> str:
    return f"{count:,} ({_share(share)})"


_ROWS: tuple[tuple[str, str | Callable[[Metrics], str]], ...] = (
    ("queries that ended", "queries"),
    ("  answered", "answered"),
    ("    in the final request", lambda each: f"{each.answered - each.outcomes.get('answered', 0):,}"),
    ("  cut off", "cut_off"),
    ("  failed", "failed"),
    ("  cancelled", lambda each: f"{each.outcomes.get('cancelled', 0):,}"),
    ("runs that are waiting", "waiting"),
    ("runs that did not end", "unended"),
    ("latency, mean", lambda each: _latency(each, each.avg_query_latency)),
    ("  p50", lambda each: _latency(each, each.latency.quantile(0.5))),
    ("  p95", lambda each: _latency(each, each.latency.quantile(0.95))),
    ("  max", lambda each: _latency(each, each.latency.max)),
    ("rounds per query", lambda each: _number(each.avg_tool_rounds_per_query, each.queries)),
    ("  queries with 2 rounds", lambda each: _two_rounds(each)),
    ("requests", "requests"),
    ("  retried, the answer broke off", "restarts"),
    ("broken chains", lambda each: _and_share(each.tool_chain_broken, each.tool_chain_broken_rate)),
    ("tool calls", "tool_calls"),
    ("  per turn with calls", lambda each: _number(each.tool_calls_per_turn, each.tool_calls)),
    ("  turns with several", "multi_tool_call_count"),
    ("  duplicates shared", "duplicates_shared"),
    ("  refused", "refused"),
    ("  uncertain", "uncertain"),
    ("tool executions", "tool_executions"),
    ("  failures", lambda each: _and_share(each.tool_failures, each.tool_failure_rate)),
    ("  time, total", lambda each: _seconds(each.tool_execution_time_total)),
    ("  time, max", lambda each: _seconds(each.tool_execution_time_max)),
    ("  saved by early starts", lambda each: _seconds(each.early_seconds_saved)),
    ("tokens in", lambda each: f"{_about(each)}{each.input_tokens:,}"),
    ("tokens out", lambda each: f"{_about(each)}{each.output_tokens:,}"),
)
"""A number is written by its name."""

_TOOL_HEAD = ("tool", "calls", "ran", "failed", "refused", "shared", "mean", "p95", "max", "total")
_DROPPED_FIRST = ("shared", "refused", "total", "p95", "ran", "calls", "mean")
"""The columns that are left out on a narrow terminal, in this order."""
_GAP = 2
_MIN_NAME = 16
"""Columns that a name gets before other columns are left out."""


def _two_rounds(metrics: Metrics) -> str:
    count = metrics.rounds.get(2, 0)
    return _and_share(count, count / metrics.queries) if metrics.queries else _NONE


def _about(metrics: Metrics) -> str:
    return "about " if metrics.tokens_estimated else ""


def _cost(metrics: Metrics, currency: str) -> str:
    if metrics.cost is None:
        return shown_cost(None)
    unknown = f" ({metrics.unpriced:,} unknown)" if metrics.unpriced else ""
    return f"{_about(metrics)}{shown_cost(metrics.cost, currency)}{unknown}"


def _rows(counted: Counted) -> list[list[str]]:
    columns = list(counted.columns.values())
    return [
        *([name, *(_value(each, value) for each in columns)] for name, value in _ROWS),
        ["cost", *(_cost(each, counted.currency) for each in columns)],
        ["  saved by the cache", *(shown_cost(each.cache_saving, counted.currency) for each in columns)],
    ]


def _value(metrics: Metrics, value: str | Callable[[Metrics], str]) -> str:
    return f"{getattr(metrics, value):,}" if isinstance(value, str) else value(metrics)


def _tool_row(name: str, tool: ToolMetrics) -> list[str]:
    took = tool.seconds
    return [
        one_line(name, 60),
        f"{tool.calls:,}",
        f"{tool.executions:,}",
        _and_share(tool.failures, tool.failure_rate) if tool.failures else "0",
        f"{tool.refused:,}",
        f"{tool.duplicates:,}",
        *(
            _seconds(value) if took.count else _NONE
            for value in (took.mean, took.quantile(0.95), took.max, took.seconds)
        ),
    ]


def _tools(metrics: Metrics) -> list[list[str]]:
    """The tools, those with the most time first."""
    ranked = sorted(metrics.tools.items(), key=lambda each: (-each[1].seconds.total, -each[1].calls, each[0]))
    return [_tool_row(name, tool) for name, tool in ranked]


def latency_bars(latency: Histogram) -> list[tuple[str, int]]:
    """How many queries took how long, from the first non-empty step to the last."""
    below = [0, *latency.cumulative(_BOUNDS), latency.count]
    names = [f"up to {bound:g} s" for bound in _BOUNDS] + [f"over {_BOUNDS[-1]:g} s"]
    bars = [(name, more - less) for name, (less, more) in zip(names, pairwise(below), strict=True)]
    return _trimmed(bars)


def rounds_bars(rounds: Mapping[int, int]) -> list[tuple[str, int]]:
    if not rounds:
        return []
    every = range(max(rounds) + 1) if max(rounds) <= 20 else sorted(rounds)
    return _trimmed([(plural(n, "round"), rounds.get(n, 0)) for n in every])


def _trimmed(bars: list[tuple[str, int]]) -> list[tuple[str, int]]:
    full = [place for place, (_, count) in enumerate(bars) if count]
    return bars[full[0] : full[-1] + 1] if full else []


def bar(count: int, most: int, blocks: bool, width: int = _WIDTH) -> str:
    """A bar of at most `width` columns. It is never empty unless the count is 0."""
    if not count:
        return ""
    if not blocks:
        return "#" * max(round(width * count / most), 1)
    whole, eighths = divmod(max(round(8 * width * count / most), 1), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _title(counted: Counted) -> str:
    skipped = f", {len(counted.left_out):,} skipped" if counted.left_out else ""
    return f"{plural(counted.recordings, 'recording')}{skipped}"


def _histograms(counted: Counted) -> list[tuple[str, list[tuple[str, int]]]]:
    bars = [("latency", latency_bars(counted.all.latency)), ("rounds", rounds_bars(counted.all.rounds))]
    return [(title, each) for title, each in bars if each]


def show_json(counted: Counted) -> None:
    value = {
        "recordings": counted.recordings,
        "left_out": [{"path": str(each.path), "reason": each.reason} for each in counted.left_out],
        "all": counted.all.to_json(),
        **({"by": {counted.by: {name: each.to_json() for name, each in counted.groups.items()}}} if counted.by else {}),
        "alerts": [_alert_fields(each) for each in counted.fired],
    }
    typer.echo(dumps(value, ensure_ascii=False))


def _alert_fields(fired: Fired) -> dict[str, object]:
    alert = fired.alert
    above = alert.above if abs(alert.above) != inf else str(alert.above)
    return {"name": alert.name, "metric": alert.metric, "value": fired.value, "above": above, "words": alert.words}


def show_plain(counted: Counted) -> None:
    """For `cut` and `awk`: fields separated by tabs, and our own text in ASCII only."""
    typer.echo(_title(counted))
    if counted.by:
        typer.echo("\t".join([counted.by, *(one_line(name) for name in counted.columns)]))
    for row in _rows(counted):
        typer.echo("\t".join(row))
    tools = _tools(counted.all)
    if tools:
        typer.echo("\n" + "\t".join(_TOOL_HEAD))
        for row in tools:
            typer.echo("\t".join(row))
    for title, bars in _histograms(counted):
        typer.echo(f"\n{title}")
        most = max(count for _, count in bars)
        for name, count in bars:
            typer.echo(f"{name:<14} {count:>6,} {bar(count, most, blocks=False)}".rstrip())
    if counted.fired:
        typer.echo("")
    for fired in counted.fired:
        typer.echo(f"alert {fired}")


def show_tables(counted: Counted) -> None:
    console = Console(highlight=False)
    blocks = (console.encoding or "").lower().startswith("utf")
    console.print(Text(_title(counted), "bold"))
    for table in _all_tables(counted, console.width):
        console.print(table)
    tools = _tools(counted.all)
    if tools:
        console.print()
        chosen, room = _columns(tools, console.width)
        table = _table([_TOOL_HEAD[place] for place in chosen])
        for name, *values in tools:
            cells = [name if cell_len(name) <= room else f"{set_cell_size(name, room - 1).rstrip()}…", *values]
            table.add_row(*(escape(cells[place]) for place in chosen), style="" if values[2] == "0" else "yellow")
        console.print(table)
    room = max(min(_WIDTH, console.width - 23), 1)
    for title, bars in _histograms(counted):
        console.print(Text(f"\n{title}", "bold"))
        most = max(count for _, count in bars)
        for name, count in bars:
            console.print(Text.assemble(f"{name:>14} {count:>6,} ", (bar(count, most, blocks, room), "cyan")))
    if counted.fired:
        console.print()
    for fired in counted.fired:
        console.print(Text(f"{'▲' if blocks else '!'} {fired}", "yellow"))


def _all_tables(counted: Counted, width: int) -> Iterator[Table]:
    """One table, or several below each other if the columns do not fit side by side."""
    names, rows = [one_line(name, 40) for name in counted.columns], _rows(counted)
    widths = [
        max(cell_len(name) * bool(counted.by), *(cell_len(row[place]) for row in rows)) + _GAP
        for place, name in enumerate(names, start=1)
    ]
    room = width - max(len(row[0]) for row in rows)
    first = 0
    while first < len(names):
        last = first + 1
        while last < len(names) and sum(widths[first : last + 1]) <= room:
            last += 1
        table = _table(["", *names[first:last]])
        table.show_header = bool(counted.by)
        for name, *values in rows:
            table.add_row(name, *map(escape, values[first:last]), style="" if not name.startswith(" ") else "dim")
        yield table
        first = last


def _columns(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """The columns that fit, and the space for names: a name may be truncated, a number never."""
    name, *numbers = [max(map(cell_len, column)) for column in zip(_TOOL_HEAD, *rows, strict=True)]
    chosen = list(range(len(_TOOL_HEAD)))

    def room() -> int:
        return width - sum(numbers[place - 1] + _GAP for place in chosen[1:])

    for column in _DROPPED_FIRST:
        if room() >= min(name, _MIN_NAME):
            break
        chosen.remove(_TOOL_HEAD.index(column))
    return chosen, max(room(), 2)


def _table(head: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(escape(name), justify="left" if place == 0 else "right", no_wrap=True)
    return table
