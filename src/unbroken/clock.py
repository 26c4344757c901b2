"""Time as an argument: the real clock, and a virtual one that moves only when told.

Nothing else in the package reads the time. The virtual clock is what makes a run with time-outs and durations repeat
to the byte.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, for people and for records."""
        ...

    def elapsed(self) -> float:
        """Seconds from an arbitrary start that never go back, for durations."""
        ...


class RealClock:
    def now(self) -> float:
        """Seconds since the epoch, by the clock of the system, which somebody may set."""
        return time.time()

    def elapsed(self) -> float:
        """Seconds that never go back, whoever sets the clock."""
        return time.monotonic()


class VirtualClock:
    """Starts at `start` and stands still until `advance`. It counts whole nanoseconds, so that 0.1 and 0.2 make 0.3."""

    def __init__(self, start: float = 0.0) -> None:
        self.start = start
        self._elapsed = 0.0

    def now(self) -> float:
        """`start`, and the seconds since."""
        return self.start + self._elapsed

    def elapsed(self) -> float:
        """All that it was advanced, in seconds."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """So many seconds pass, at once. `ValueError` if they are less than 0."""
        if seconds < 0:
            raise ValueError(f"time cannot go back: advance({seconds})")
        self._elapsed = round(self._elapsed + seconds, 9)


_REAL = RealClock()


def current_clock() -> Clock:
    """The clock of the running loop, if it brings one (a virtual loop has its own `clock`); else the real one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _REAL
    return getattr(loop, "clock", _REAL)
