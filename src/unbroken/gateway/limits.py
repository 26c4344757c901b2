"""How often a key may ask, and how many of its requests may run at once. Counted in this process: with several workers
each has its own count, so a key may get as many times its limit as there are workers.

Pure: time comes from a clock, nothing waits. A request that is refused counts for nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from unbroken.clock import Clock, RealClock
from unbroken.gateway.keys import GatewayKey

MINUTE = 60.0
SOON = 1.0
"""Seconds after which one may ask again who has too many requests in flight: when one ends is not known."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not now: `words` for the client, and the seconds that it should wait (Retry-After)."""

    words: str
    retry_after: float


@dataclass(slots=True)
class _Count:
    times: deque[float] = field(default_factory=deque[float])
    """When each request of the last minute began."""
    in_flight: int = 0


class KeyLimits:
    """`with limits.admit(key) as refused:` counts the request as in flight until the block is left, unless it gives a
    `Refused`. No more than the key's requests begin in any 60 seconds."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or RealClock()
        self._counts: dict[str, _Count] = {}

    def admit(self, key: GatewayKey) -> Admission:
        count = self._counts.get(key.name)
        if count is None:
            count = self._counts[key.name] = _Count()
        if key.in_flight is not None and count.in_flight >= key.in_flight:
            words = f"key `{key.name}` has {count.in_flight} requests in flight and may have {key.in_flight}"
            return Admission(None, Refused(f"{words}: wait until one has ended", SOON))
        if (wait := self._begin(key, count)) > 0:
            words = f"key `{key.name}` may begin {key.requests_per_minute} requests a minute"
            return Admission(
                None, Refused(f"{words}: wait {wait:.0f} s" if wait >= 1 else f"{words}: wait a second", wait)
            )
        return Admission(count, None)

    def _begin(self, key: GatewayKey, count: _Count) -> float:
        """0.0, and it has begun; or the seconds until it may."""
        if key.requests_per_minute is None:
            return 0.0
        now, times = self._clock.elapsed(), count.times
        while times and times[0] <= now - MINUTE:
            times.popleft()
        if len(times) >= key.requests_per_minute:
            return times[len(times) - key.requests_per_minute] + MINUTE - now
        times.append(now)
        return 0.0


class Admission:
    """Not a generator: it is made for each request."""

    __slots__ = ("_count", "refused")

    def __init__(self, count: _Count | None, refused: Refused | None) -> None:
        self._count = count
        self.refused = refused

    def __enter__(self) -> Refused | None:
        if self._count is not None:
            self._count.in_flight += 1
        return self.refused

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._count is not None:
            self._count.in_flight -= 1


UNLIMITED = Admission(None, None)
"""Of somebody without a key: it counts nothing."""
