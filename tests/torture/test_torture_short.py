"""A few seconds of the torture test: gateways are killed while their store is paused and emptied, and recorded runs are
killed and resumed by several processes. `make torture` takes minutes, with more faults."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torture.overrun import torture_budgets
from torture.plan import ROUNDS, Round, plan_rounds
from torture.poison_runs import torture_poison
from torture.recorded_runs import torture_run
from torture.rounds import run_round

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, paused and killed here")

SEED = 1
SHORT = (
    Round(
        "short-valkey", "faults of everything but the disk", "valkey", ("pause store", "kill gateway", "flush store")
    ),
    Round(
        "short-sqlite", "clocks that differ by two minutes", "sqlite", ("kill gateway", "pause gateway"), (-60.0, 60.0)
    ),
)


@pytest.mark.parametrize(
    "one", [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.store == "valkey")) for one in SHORT]
)
def test_no_promise_is_broken_by_a_few_seconds_of_faults(one: Round, tmp_path: Path) -> None:
    (planned,) = plan_rounds(SEED, 5.0, rounds=(one,))
    report = run_round(planned, SEED, tmp_path, crowd=5, processes=1)
    assert report.violations == []
    assert report.counts["ok"] > 10
    assert report.counts["healed"] > 0
    assert report.counts["health"] > 0


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_recorded_run_that_is_killed_and_resumed_by_several_writes_nothing_twice(number: int, tmp_path: Path) -> None:
    report = torture_run(tmp_path, f"{SEED}/{number}")
    assert report.violations == []
    assert report.counts["killed"] > 0
    assert report.counts["effect"] > 0


@pytest.mark.slow
def test_many_clients_of_four_workers_spend_a_budget_to_its_end_and_no_further(tmp_path: Path) -> None:
    report = torture_budgets(tmp_path, 60.0, kills=False)
    assert report.violations == []
    assert report.counts["money 402"] > 0
    assert report.counts["tokens 429"] > 1


def test_a_run_that_ends_its_workers_fails_and_harms_no_other(tmp_path: Path) -> None:
    report = torture_poison(tmp_path, bad=("read",), others=10, deaths=1, known=True)
    assert report.violations == []
    assert report.counts["killed"] == 2


def test_the_plan_of_a_round_depends_only_on_its_seed() -> None:
    assert plan_rounds(7, 240.0) == plan_rounds(7, 240.0)
    assert plan_rounds(7, 240.0) != plan_rounds(8, 240.0)
    assert {one.name for one in plan_rounds(7, 240.0)} == {one.name for one in ROUNDS}
