"""A process that drives a run is killed (SIGKILL) before or after an append. The next driver ends with the same
answer; the tools' own ledger shows what ran. Every append, and PostgreSQL: `make test-durable`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from durable_runs import OFTEN, Ledger, agents_of, all_events, check, count_appends, drive_to_the_end, run_in_a_child

from unbroken_durable import open_journal

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def finish(url: str, ledger: Ledger, run_id: str) -> None:
    async def main() -> None:
        async with await open_journal(url, deaths=OFTEN) as journal:
            outcome = await drive_to_the_end(journal, agents_of(ledger), run_id)
            check(outcome, await all_events(journal, run_id), ledger)

    asyncio.run(main())


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_a_run_killed_at_an_append_ends_as_if_nothing_had_happened(after: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    appends = count_appends(url, Ledger(tmp_path / "counted.db"))
    assert appends >= 10
    ended: list[int] = []
    for number in range(1 + after, appends - 3, 3):
        ledger = Ledger(tmp_path / f"ledger-{number}.db")
        ended.append(run_in_a_child(url, ledger, f"run-{number}", (number, after)))
        finish(url, ledger, f"run-{number}")
    assert ended == [signal.SIGKILL] * len(ended)


def test_a_run_may_be_killed_again_and_again(tmp_path: Path) -> None:
    url, ledger = f"sqlite:///{tmp_path / 'runs.db'}", Ledger(tmp_path / "ledger.db")
    for number in (2, 1, 3, 2, 4, 1, 3):
        assert run_in_a_child(url, ledger, "run", (number, number % 2 == 0)) in (signal.SIGKILL, 0)
    finish(url, ledger, "run")
