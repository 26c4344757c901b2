"""Many runs at once against a provider that breaks three responses in ten: `make faults`.

Every run has to end with an answer or with a typed error, and everything that must be true of a run is checked for each
of them; after that no task may be left, and memory must not have grown. The seed is fixed, so it is the same each time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from crowd import Crowd, random_jobs

from unbroken_testing.matrix import tasks_left

SEED = 4
WARM_UP = 250
GROWTH = 20.0
"""MB that memory may grow by after the first runs."""


def megabytes() -> float:
    """What the process holds now; where that cannot be known, the most that it ever held."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1024 / 1024


async def soak(runs: int, at_once: int) -> int:
    before = asyncio.all_tasks()
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    wrong: list[str] = []
    warm = 0.0
    began = time.perf_counter()
    async for done in Crowd(random_jobs(SEED, runs), at_once).run():
        outcomes[done.run.outcome] += 1
        faults.update(sent.fault for sent in done.run.sent if sent.fault)
        if done.problems or not done.run.outcome.startswith(("answered", "reported", "typed:")):
            wrong.append(f"{done.job.name}: {done.run.outcome}: {'; '.join(done.problems)}")
        if outcomes.total() == WARM_UP:
            warm = megabytes()
    took = time.perf_counter() - began
    grown = megabytes() - warm if warm else 0.0
    left = await tasks_left(before)
    print(
        f"{outcomes.total()} runs, {at_once} at a time, {took:.0f} s; "
        f"{faults.total()} responses broken in {len(faults)} ways"
    )
    for outcome, count in outcomes.most_common():
        print(f"  {count:6} {outcome}")
    print(f"  memory: {warm:.0f} MB after {WARM_UP} runs, {grown:+.1f} MB since then (at most {GROWTH:+.0f})")
    print(f"  tasks left: {len(left)}")
    for line in wrong:
        print(f"  ! {line}")
    return 1 if wrong or left or grown > GROWTH else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=50)
    given = parser.parse_args()
    sys.exit(asyncio.run(soak(given.runs, given.at_once)))
