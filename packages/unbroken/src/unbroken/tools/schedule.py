"""`Schedule`: how the calls of one message run, a value that users choose. `order` has the rules behind it."""

from __future__ import annotations

from enum import Enum


class Schedule(Enum):
    """How the calls of one message run."""

    SEQUENTIAL = "sequential"
    """One after another, in call order."""
    PARALLEL = "parallel"
    """All together, when the response has ended; only equal keys and exclusive calls wait."""
    EAGER = "eager"
    """Reads run together and start as soon as they are complete, while the response is still being written. Everything
    else runs in call order, unless the tools declare that their calls may overlap."""

    @property
    def early(self) -> bool:
        return self is Schedule.EAGER

    @property
    def ordered(self) -> bool:
        """Does a write wait for the end of the calls before it?"""
        return self is not Schedule.PARALLEL

    @property
    def serial(self) -> bool:
        return self is Schedule.SEQUENTIAL
