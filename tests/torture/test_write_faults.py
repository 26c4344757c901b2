"""A few of the failing writes of `make torture`, which tries every one: in a recording, and in SQLite's own code."""

from __future__ import annotations

import sys

import pytest

from torture.checker import Report
from torture.history import Record
from torture.write_faults import HOWS, SCENARIOS, Trial, build, check_store, compiler, sweep

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None, reason="a library is built with gcc here and preloaded"
)

NUMBERS = {"recording": (2, 9), "sqlite": (1, 12, 60)}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    folder = tmp_path_factory.mktemp("trials")
    return [*sweep(folder, build(folder), NUMBERS)]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_write_that_fails_once_breaks_no_promise(name: str, how: str, trials: list[Trial]) -> None:
    reports = [trial.report for trial in trials if (trial.name, trial.how) == (name, how)]
    assert [violation for report in reports for violation in report.violations] == []
    assert sum(report.counts["reached"] for report in reports) == len(NUMBERS[name])


@pytest.mark.parametrize(
    ("there", "right", "confirmed", "kind"),
    [
        ([True, True], [True, False], False, "damaged"),
        ([True, False], [True, False], False, "torn"),
        ([False, False], [False, False], True, "lost"),
        ([False, False], [False, False], False, None),
        ([True, True], [True, True], True, None),
    ],
)
def test_the_checker_notices_what_a_store_must_not_do(
    there: list[bool], right: list[bool], confirmed: bool, kind: str | None
) -> None:
    records: list[Record] = [{"op": "found", "number": 0, "there": there, "right": right}]
    records += [{"op": "put", "number": 0}] if confirmed else []
    records.append({"op": "usable", "right": True})
    report = Report()
    check_store(report, "here", records)
    assert [violation.kind for violation in report.violations] == ([] if kind is None else [kind])
