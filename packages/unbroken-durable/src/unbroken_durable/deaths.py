"""Which runs are driven next, and which alone: a run that ends the processes that drive it must not harm the others.

Nobody knows which run of a process has ended it. So the driver's death counts for all that it drove and that got no
result from it. A run so many of whose drivers have died in a row is driven alone, after a pause that grows. If drivers
die then too, it is the run, and it fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken_durable.records import RunRow

DEATHS = 3
OVERDUE = 60.0
"""Seconds after which a run whose driver has died comes before those that are ready."""


@dataclass(frozen=True, slots=True)
class Deaths:
    """What follows from the number of drivers of a run that have died in a row."""

    limit: int = DEATHS
    """After so many a run is driven alone; after as many again it fails."""

    def are_final(self, fruitless: int) -> bool:
        return fruitless >= 2 * self.limit

    def isolate(self, fruitless: int) -> bool:
        """Is a run driven alone after so many?"""
        return self.limit <= fruitless < 2 * self.limit

    def waited(self, row: RunRow, fruitless: int, now: float) -> float:
        """For how many seconds it could have been driven; negative: not yet. The pause before it is driven alone is one
        second, and twice as long each time."""
        pause = min(2.0 ** (fruitless - self.limit), OVERDUE) if self.isolate(fruitless) else 0.0
        return now - row.updated - pause

    def in_turn(self, ready: list[RunRow], orphans: list[RunRow], now: float, *, busy: bool) -> list[RunRow]:
        """Those whose drivers have died come last, unless they have waited long; of those that are driven alone one, if
        there is nothing else, and the process is not `busy` with others."""
        overdue, behind, alone = list[RunRow](), list[RunRow](), list[RunRow]()
        for row in sorted(orphans, key=lambda row: row.updated):
            fruitless = row.fruitless + 1  # the last one is counted by the next driver
            waited = self.waited(row, fruitless, now)
            if waited >= OVERDUE:
                overdue.append(row)
            elif not self.isolate(fruitless):
                behind.append(row)
            elif waited >= 0:
                alone.append(row)
        return [*overdue, *ready, *behind] or ([] if busy else alone[:1])
