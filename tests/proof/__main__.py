"""Replays every task in every schedule, prints a table, and exits with 1 if something differs that is not explained."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from proof import bfcl, dojo
from proof.replaying import Counts, Declared, Player, Task
from unbroken import Schedule

WRONG_TYPE = "close_ticket gets the text 'ticket_001', its signature says int: we refuse such a call"
WIDTH = 100
"""Columns that the table needs."""
EXPLAINED = {f"multi_turn_{category}_173": WRONG_TYPE for category in bfcl.CATEGORIES}
"""Tasks that differ in every schedule, and why. One that does not differ any more is an error too."""


@dataclass(slots=True)
class Suite:
    """A set of tasks, and what each schedule made of it."""

    name: str
    tasks: list[Task]
    counts: dict[str, Counts] = field(default_factory=dict[str, Counts])


def main() -> int:
    options = _options()
    console = Console(width=max(Console().width, WIDTH))
    suites = [suite for suite in _suites() if not options.only or options.only in suite.name]
    started = time.perf_counter()
    asyncio.run(_play_all(suites, console))
    console.print(_table(suites))
    console.print(f"{time.perf_counter() - started:.0f} s")
    for task in [task.id for suite in suites for task in suite.tasks if task.id in EXPLAINED]:
        console.print(f"{task} differs: {EXPLAINED[task]}", markup=False, soft_wrap=True)
    problems = list(_problems(suites))
    if not options.only and not any(_control(suite).differences for suite in suites):
        problems.append("the control differs nowhere: a wrong order would not be noticed")
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only suites with this text in their name")
    return parser.parse_args()


def _suites() -> Iterator[Suite]:
    for category in bfcl.CATEGORIES:
        yield Suite(f"bfcl {category}", bfcl.tasks(category))
    for name in dojo.SUITES:
        yield Suite(f"agentdojo {name}", dojo.tasks(name))


async def _play_all(suites: list[Suite], console: Console) -> None:
    rows: list[tuple[Schedule, Declared]] = [(schedule, "right") for schedule in Schedule]
    rows.append((Schedule.PARALLEL, "wrong"))
    async with Player() as player:
        for suite in suites:
            for schedule, declared in rows:
                counts = Counts()
                suite.counts[f"{schedule.name} {declared}"] = counts
                for at, task in enumerate(suite.tasks):
                    await player.play(at, task, schedule, declared, counts)
                words = "" if declared == "right" else ", declared wrongly"
                console.print(f"{suite.name}, {schedule.name}{words}: {counts.same} of {counts.runs} the same")


def _table(suites: list[Suite]) -> Table:
    """`early`: calls that EAGER started before their message was complete; `beside`: calls that PARALLEL started while
    another one ran; `control`: tasks that come out the same if every tool is declared as a read without a key."""
    schedules = [schedule.name for schedule in Schedule]
    table = Table("suite", "tasks", "calls", *schedules, "early", "beside", "control", box=SIMPLE)
    rows = [[suite.name, *_numbers(suite)] for suite in suites]
    total = [str(sum(int(row[at]) for row in rows)) for at in range(1, len(rows[0]))]
    for row in [*rows, ["together", *total]]:
        table.add_row(*row)
    return table


def _numbers(suite: Suite) -> list[str]:
    right = {schedule: suite.counts[f"{schedule.name} right"] for schedule in Schedule}
    calls = sum(len(step.calls) for task in suite.tasks for step in task.steps)
    early, beside = right[Schedule.EAGER].early, right[Schedule.PARALLEL].beside
    same = [counts.same for counts in right.values()]
    return [str(number) for number in (len(suite.tasks), calls, *same, early, beside, _control(suite).same)]


def _control(suite: Suite) -> Counts:
    return suite.counts["PARALLEL wrong"]


def _problems(suites: list[Suite]) -> Iterator[str]:
    for suite in suites:
        for schedule in Schedule:
            differences = suite.counts[f"{schedule.name} right"].differences
            for task, difference in differences.items():
                if task not in EXPLAINED:
                    yield f"{task} in {schedule.name}: {difference}"
            for task in suite.tasks:
                if task.id in EXPLAINED and task.id not in differences:
                    yield f"{task.id} in {schedule.name}: it does not differ any more; take it out of EXPLAINED"


if __name__ == "__main__":
    sys.exit(main())
