"""`Histogram` counts durations in fixed steps of two significant digits, in whole nanoseconds, so that sums are the
same in any order. There are at most some 900 steps, so a histogram does not grow with what it has seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from unbroken_wires.messages import Json

NANOSECONDS = 1_000_000_000
_SHORTEST, _LONGEST = 10_000, 1_000_000 * NANOSECONDS
"""Shorter and longer durations are counted as these limits."""


def nanoseconds(seconds: float) -> int:
    return round(max(seconds, 0.0) * NANOSECONDS)  # a clock may have been set back


@dataclass(slots=True)
class Histogram:
    count: int = 0
    total: int = 0
    """Nanoseconds, as `longest`."""
    longest: int = 0
    steps: dict[int, int] = field(default_factory=dict[int, int])
    """By the upper end of each step, which belongs to it: how many are in it."""

    def add(self, duration: int) -> None:
        self.count += 1
        self.total += duration
        self.longest = max(self.longest, duration)
        step = _step(duration)
        self.steps[step] = self.steps.get(step, 0) + 1

    def __add__(self, other: Histogram) -> Histogram:
        steps = dict(self.steps)
        for step, times in other.steps.items():
            steps[step] = steps.get(step, 0) + times
        return Histogram(self.count + other.count, self.total + other.total, max(self.longest, other.longest), steps)

    @property
    def mean(self) -> float:
        """Seconds; 0 if there was none."""
        return self.total / self.count / NANOSECONDS if self.count else 0.0

    @property
    def seconds(self) -> float:
        return self.total / NANOSECONDS

    @property
    def max(self) -> float:
        return self.longest / NANOSECONDS

    def quantile(self, share: float) -> float:
        """The seconds that this share of the durations did not exceed: exact, or at most a tenth too high."""
        wanted = max(ceil(share * self.count), 1)
        for step in sorted(self.steps):
            wanted -= self.steps[step]
            if wanted <= 0:
                return min(step, self.longest) / NANOSECONDS
        return 0.0

    def cumulative(self, bounds: Iterable[float]) -> list[int]:
        """How many took at most each bound in seconds: exact if a bound has two significant digits."""
        ends = [nanoseconds(bound) for bound in bounds]
        return [sum(count for step, count in self.steps.items() if step <= end) for end in ends]

    def to_json(self) -> dict[str, Json]:
        return {
            "count": self.count,
            "seconds": self.seconds,
            "mean": self.mean,
            "p50": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "max": self.max,
            "steps": [[step / NANOSECONDS, self.steps[step]] for step in sorted(self.steps)],
        }


def _step(duration: int) -> int:
    duration = min(max(duration, _SHORTEST), _LONGEST)
    width = int(10 ** (len(str(duration)) - 2))
    return -(-duration // width) * width
