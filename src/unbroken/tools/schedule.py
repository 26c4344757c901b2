"""How the calls of one message run: a value that users choose. What it means is done in `execution`."""

from __future__ import annotations

from enum import Enum


class Schedule(Enum):
    """How the calls of one message run."""

    SEQUENTIAL = "sequential"
    """One after another, in call order."""
    PARALLEL = "parallel"
    """All together, when the response has ended."""
    EAGER = "eager"
    """As PARALLEL, but reads start as soon as they are complete, while the response is still being written."""

    @property
    def early(self) -> bool:
        return self is Schedule.EAGER

    @property
    def serial(self) -> bool:
        return self is Schedule.SEQUENTIAL
