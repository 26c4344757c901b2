"""A hundred runs at once against a provider that breaks three responses in ten. `make faults` runs two thousand, with
responses that stall."""

from __future__ import annotations

import asyncio
from collections import Counter

from crowd import Crowd, Done, random_jobs

from unbroken_testing.matrix import tasks_left


async def soak(seed: int, runs: int, at_once: int) -> list[Done]:
    before = asyncio.all_tasks()
    done = [done async for done in Crowd(random_jobs(seed, runs, stalls=False), at_once).run()]
    assert await tasks_left(before) == []
    return done


def test_every_run_ends_with_an_answer_or_a_typed_error_and_leaves_nothing() -> None:
    done = asyncio.run(soak(seed=11, runs=100, at_once=50))
    assert [(each.job.name, each.problems) for each in done if each.problems] == []
    ends = Counter(each.run.outcome.partition(":")[0] for each in done)
    assert set(ends) <= {"answered", "reported", "typed"}
    assert ends["answered"] > 80
    assert sum(bool(sent.fault) for each in done for sent in each.run.sent) > 40
