"""`make torture`: all rounds, a table of what they found, and exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torture.checker import Report
from torture.overrun import torture_budgets
from torture.plan import ROUNDS, plan_rounds
from torture.processes import SmallDisk
from torture.recorded_runs import torture_run
from torture.rounds import Skipped, run_round, write_violations
from torture.write_faults import build, compiler, sweep

RUNS = "recorded-runs"
WRITES = "write-faults"
OVERRUN = "overrun"
_OTHERS = (RUNS, WRITES, OVERRUN)
SHOWN = 12
"""Violations that are printed; all of them are in the folder."""


def main() -> int:
    options = _options()
    console = Console()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="unbroken-torture-"))
    console.print(f"seed {options.seed}; histories in {folder}", soft_wrap=True)
    outcomes: dict[str, Report | str] = {}
    for name, outcome in _outcomes(options, folder, console):
        outcomes[name] = outcome
        console.print(f"{name}: {_found(outcome)}", soft_wrap=True)
    console.print(_table(outcomes))
    reports = [report for report in outcomes.values() if isinstance(report, Report)]
    violations = [violation for report in reports for violation in report.violations]
    for violation in violations[:SHOWN]:
        console.print(f"{violation.kind}: {violation.where}: {violation.words}", style="red", markup=False)
    if violations:
        console.print(f"{len(violations)} violations; each with its records in {folder}/*/violations.txt")
    return 1 if violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="for all rounds together, without their ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=[*(one.name for one in ROUNDS), *_OTHERS])
    parser.add_argument("--folder", default="", help="where the histories are left")
    return parser.parse_args()


def _outcomes(options: argparse.Namespace, folder: Path, console: Console) -> Generator[tuple[str, Report | str]]:
    """The result of each round, as it ends; a text explains why one was skipped."""
    seconds, only = options.seconds, [name for name in options.only if name not in _OTHERS]
    if only or not options.only:
        for one in plan_rounds(options.seed, seconds, only):
            with console.status(f"{one.name}: {one.about} ({one.seconds:.0f} s)"):
                try:
                    outcome: Report | str = run_round(one, options.seed, folder / one.name)
                except Skipped as reason:
                    outcome = str(reason)
            yield one.name, outcome
    if RUNS in options.only or not options.only:
        share = seconds if options.only else seconds / len(ROUNDS)
        with console.status(f"{RUNS}: processes that record are killed, and several resume ({share:.0f} s)"):
            yield RUNS, torture_runs(folder / RUNS, options.seed, share)
    if OVERRUN in options.only or not options.only:
        with console.status(f"{OVERRUN}: many clients spend a budget and a limit per minute"):
            yield OVERRUN, torture_overrun(folder / OVERRUN)
    if WRITES in options.only or not options.only:
        with console.status(f"{WRITES}: every write, sync and opening of recordings and SQLite fails once"):
            yield WRITES, fail_every_write(folder / WRITES) if compiler() else "no C compiler is here"


def torture_overrun(folder: Path) -> Report:
    """Long enough for two minutes of the clock."""
    report = torture_budgets(folder, 70.0)
    write_violations(report, folder)
    return report


def fail_every_write(folder: Path) -> Report:
    """All of them, however long it takes: a few minutes."""
    total = Report()
    folder.mkdir()
    for trial in sweep(folder, build(folder)):
        total.violations += trial.report.violations
        total.counts += trial.report.counts
        total.counts["faults"] += trial.report.counts["reached"]
    write_violations(total, folder)
    return total


def torture_runs(folder: Path, seed: int, seconds: float) -> Report:
    """One recorded run after another, at least two, until the time is over; every other one on a disk that is filled,
    where this machine allows for one."""
    total = Report()
    began, number = time.monotonic(), 0
    disk = SmallDisk.mounted(folder / "disk")
    try:
        while number < 2 or time.monotonic() < began + seconds:
            report = torture_run(folder / f"run-{number}", f"{seed}/{number}", disk if number % 2 else None)
            total.violations += report.violations
            total.counts += report.counts
            number += 1
    finally:
        if disk is not None:
            disk.close()
    total.counts["start"] = number
    write_violations(total, folder)
    return total


def _found(outcome: Report | str) -> str:
    if isinstance(outcome, str):
        return f"skipped: {outcome}"
    return ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.by_kind.items())) or "nothing broken"


def _table(outcomes: dict[str, Report | str]) -> Table:
    table = Table("round", "talks", "requests", "errors", "told", "faults", "/healthz", "broken")
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            table.add_row(name, "", "", "", "", "", "", "skipped")
            continue
        counts = outcome.counts
        faults = counts["fault"] + counts["killed"]
        numbers = [counts["start"], counts["invoke"], counts["fail"] + counts["info"], counts["told"], faults]
        slowest = (
            "busy" if counts["starved"] else f"{outcome.slowest_health:.2f} s"
        )  # too busy to be judged by the clock
        health = slowest if counts["health"] else ""
        table.add_row(name, *map(str, numbers), health, _found(outcome))
    return table


if __name__ == "__main__":
    sys.exit(main())
