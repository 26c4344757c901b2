"""`unbroken stats DIR|FILE|URL…`: statistics of many recorded runs. This module reads and adds up; `stats_tables`
draws."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from unbroken.agent.limits import Prices
from unbroken.errors import UserError
from unbroken.trajectory.alerts import ALERTS, Alert, fired
from unbroken.trajectory.metrics import Metrics
from unbroken.trajectory.recording import SUFFIX, Recording, has_own_prices, read_recording
from unbroken_cli.exits import ANSWERED, INTERRUPTED, MISUSED, print_line
from unbroken_cli.journal_runs import RecordedRun, open_journal
from unbroken_cli.options import is_journal, shown_place
from unbroken_cli.progress_line import progress
from unbroken_cli.stats_tables import Counted, LeftOut, show_json, show_plain, show_tables
from unbroken_cli.streams import is_terminal

FIRED = 1
_MOST_NAMED = 20
"""How many skipped files a terminal lists by name."""
_BY = ("model", "agent")
_DEAREST = 1e9
"""The highest accepted price of a million tokens, in any currency."""


def stats_command(
    paths: Annotated[
        list[str], typer.Argument(metavar="DIR|FILE|URL…", help="Recordings, folders of them, or journals.")
    ],
    by: Annotated[
        str, typer.Option(metavar="model|agent", help="One column for each of them, and one for the total.")
    ] = "",
    prices: Annotated[
        str | None, typer.Option(metavar="IN,OUT[,CACHED]", help="The prices of a million tokens, for all runs.")
    ] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=N", help="Warn if a metric is above this, instead of its default threshold."),
    ] = None,
    least: Annotated[int, typer.Option(metavar="N", help="Do not warn if fewer queries ended.", min=1)] = 1,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if there is a warning.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Add up recorded runs: rounds, calls, failures, latency, tokens, cost, time in tools, and warnings.

    A file that is not a recording is named, and the others are counted. Exit codes: 0; 1 with --check, if a metric is
    above its threshold; 2 wrong use, or there is nothing to count; 130 interrupted.
    """
    if by and by not in _BY:
        raise UserError(f"--by {by}: give one of {', '.join(_BY)}")
    watched = _alerts(alert or ())
    priced = _prices(prices)
    try:
        with ExitStack() as opened:
            found = _read(_files(paths, opened), by, priced)
    except KeyboardInterrupt:
        print_line("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    counted = Counted(
        found.all,
        found.groups,
        by,
        found.recordings,
        tuple(found.left_out),
        tuple(fired(found.all, watched, least=least)),
        "" if priced is not None or found.own_prices else "$",
    )
    if json:
        show_json(counted)
    else:
        _print_left_out(found.left_out)
        if found.recordings:
            (show_tables if is_terminal(sys.stdout) else show_plain)(counted)
    if not found.recordings:
        below = sorted(
            {str(file.parent) for path in paths for file in Path(path).glob(f"*/*{SUFFIX}") if not is_journal(path)}
        )
        hint = f"; some are in {below[0]}: name that folder" if below else ""
        print_line(f"nothing to count in {' '.join(map(shown_place, paths))}: no recording could be read{hint}")
        raise typer.Exit(MISUSED)
    if check and not found.all.queries:
        print_line(
            "no query ended in these recordings, so there is nothing to check: --check needs runs (Agent(record=DIR))"
        )
        raise typer.Exit(MISUSED)
    raise typer.Exit(FIRED if check and counted.fired else ANSWERED)


def _prices(given: str | None) -> Prices | None:
    if given is None:
        return None
    try:
        numbers = [float(number) for number in given.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or not all(0 <= number <= _DEAREST for number in numbers):
        raise UserError(f"--prices {given}: give the prices of a million tokens, in and out, as in 2.50,10")
    return Prices(*numbers)


def _alerts(given: Sequence[str]) -> list[Alert]:
    watched = list(ALERTS)
    for each in given:
        metric, _, number = each.partition("=")
        try:
            above = float(number)
        except ValueError:
            raise UserError(f"--alert {each}: give METRIC=NUMBER, as in avg_query_latency=8") from None
        same = [place for place, alert in enumerate(watched) if alert.metric == metric]
        for place in same:
            watched[place] = replace(watched[place], above=above, words="")
        if not same:
            watched.append(Alert(metric, metric, above))
    return watched


@dataclass
class _Found:
    all: Metrics
    groups: dict[str, Metrics] = field(default_factory=dict[str, Metrics])
    recordings: int = 0
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    own_prices: bool = False
    """One of the runs had prices of its own."""


def _read(files: Sequence[Path | RecordedRun], by: str, prices: Prices | None) -> _Found:
    found = _Found(Metrics(prices=prices))
    with progress("reading recordings") as line:
        for done, file in enumerate(files):
            line.words = f"{done:,} of {len(files):,} recordings read"
            try:
                recording = _recording(file)
            except UserError as error:
                found.left_out.append(LeftOut(file, str(error)))
                continue
            one = Metrics.of(recording.events, prices=prices)
            found.recordings += 1
            found.own_prices = found.own_prices or has_own_prices(recording.head)
            found.all += one
            if by:
                group = found.groups.setdefault(_group(recording, by), Metrics(prices=prices))
                group += one
    return found


def _recording(file: Path | RecordedRun) -> Recording:
    if not isinstance(file, Path):  # a run of a journal
        return file.read()
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is not a file but a pipe or a device, which could block for ever")
    return read_recording(file)


def _group(recording: Recording, by: str) -> str:
    return (recording.model if by == "model" else recording.agent_name) or "?"


def _files(places: Sequence[str], opened: ExitStack) -> list[Path | RecordedRun]:
    """Each file once, in the order given; those of a folder by name. And the runs of journals, the latest first."""
    files: dict[Path | RecordedRun, None] = {}
    for place in places:
        if is_journal(place):
            files |= dict.fromkeys(opened.enter_context(open_journal(place)).runs())
            continue
        path = Path(place)
        if not path.is_dir():
            files[path] = None
            continue
        try:
            names = sorted(entry.name for entry in os.scandir(path) if entry.name.endswith(SUFFIX) and _is_file(entry))
        except OSError as error:
            raise UserError(f"{path} cannot be listed: {error.strerror or error}; name another folder") from None
        files |= dict.fromkeys(path / name for name in names)
    return list(files)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself: it is reported as unreadable, with the reason
        return True


def _print_left_out(left_out: Sequence[LeftOut]) -> None:
    shown = left_out[:_MOST_NAMED] if is_terminal(sys.stderr) else left_out
    for each in shown:
        print_line(f"skipped: {each.reason}")
    if len(shown) < len(left_out):
        print_line(f"skipped: {len(left_out) - len(shown):,} more files; --json names them all")
