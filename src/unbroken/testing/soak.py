"""Jobs for a crowd whose responses break at random, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from unbroken.messages import Request
from unbroken.testing.crowd import Breaks, Job
from unbroken.testing.faults import FAULTS, Fault
from unbroken.wires import WIRES

BROKEN = 0.3
"""How likely each response is to break."""
SILENCE = 0.5
_ANYWHERE = ("close", "reset", "stall", "garbage")
_FURTHEST = 4000
_MANY = [fault for fault in FAULTS.values() if fault.longest is None]


def random_jobs(seed: int, count: int, likely: float = BROKEN) -> Iterator[Job]:
    """Each on some wire, streamed or whole; a second answer in the same words, or in others."""
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        wire = chance.choice(list(WIRES))
        breaks = _at_random(f"{seed}-{number}", wire, likely)
        yield Job(f"run-{number}", wire, breaks, chance.random() < 0.5, chance.random() < 0.8, SILENCE)


def _at_random(seed: str, wire: str, likely: float) -> Breaks:
    def breaks(answer: int, attempt: int, request: Request) -> Fault | None:
        # Of its own place only: how the runs take turns must not matter.
        chance = random.Random(f"{seed}-{answer}-{attempt}")
        if chance.random() >= likely:
            return None
        fault = chance.choice([fault for fault in _MANY if fault.fits(wire, request.stream)])
        return fault.at(after=chance.randrange(_FURTHEST)) if fault.name in _ANYWHERE else fault

    return breaks
