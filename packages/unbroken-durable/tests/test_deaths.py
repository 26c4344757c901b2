"""Runs whose drivers die: they are driven behind the others, then alone and later, then not at all until somebody
starts them again. Here a driver dies when its journal is closed; `tests/torture` kills real processes."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from durable_runs import in_a_child
from in_loop import in_loop

from unbroken import Agent, ScriptedModel, tool
from unbroken.errors import UserError
from unbroken.events import Event, RunFailed
from unbroken.models.scripted import Answer, Call
from unbroken_durable import Busy, Journal, UnknownAgent, Worker, drive, open_journal
from unbroken_durable.deaths import OVERDUE
from unbroken_durable.journal_metrics import JournalMetrics
from unbroken_durable.records import Claim, RunRow
from unbroken_testing import run_virtual
from unbroken_wires.messages import Assistant, Request


def agents() -> dict[str, Agent]:
    return {"a": Agent(ScriptedModel(lambda request: "Hello."))}


async def die(journal: Journal, url: str, run_id: str, deaths: int = 3) -> None:
    """A driver takes the run, and its process ends."""
    dying = await open_journal(url, deaths=deaths)
    claim = await dying.claim(run_id)
    assert isinstance(claim, Claim)
    driver = await dying.work(lambda database: database.driver)
    await dying.close()
    while await journal.work(lambda database: database.is_locked(driver)):
        await asyncio.sleep(0.01)  # a server notices it a moment later


def in_journal(tmp_path: Path, work: Callable[[Journal, str], Any]) -> Any:
    """On virtual time."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def main() -> Any:
        async with await open_journal(url) as journal:
            for name in ("bad", "good", "better"):
                await journal.start("a", "Hi.", run_id=name)
            return await work(journal, url)

    return run_virtual(main)


async def ids(journal: Journal, **options: Any) -> list[str]:
    return [row.run_id for row in await journal.drivable(**options)]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@in_loop
async def test_a_run_whose_drivers_died_fails_with_its_own_error_and_can_be_started_again(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres_server.empty_url()
    async with await open_journal(url, deaths=1) as journal:
        await journal.start("a", "Hi.", run_id="bad")
        await die(journal, url, "bad", deaths=1)
        with pytest.raises(Busy, match="its last 1 drivers have died, so it is driven alone, and later"):
            await drive(agents(), journal, "bad")
        while not await journal.drivable():
            await asyncio.sleep(0.05)
        await die(journal, url, "bad", deaths=1)
        for _ in range(2):
            outcome = await drive({"a": Agent(ScriptedModel())}, journal, "bad")
            assert (outcome.state, outcome.result) == ("failed", None)
            assert outcome.error.startswith("DriversDied: 2 processes died in a row while they drove it")
            assert "`unbroken runs retry bad`" in outcome.error
        assert await journal.drivable() == []
        await journal.retry("bad")
        assert (await drive(agents(), journal, "bad")).state == "answered"
        row = await journal.run("bad")
        assert (row.deaths, row.fruitless, row.drives) == (2, 0, 4)
        with pytest.raises(UserError, match="cannot be retried: it is answered, and only failed runs can"):
            await journal.retry("bad")
    deaths = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert deaths == [
        f"run bad: its driver has died: {count} by now, {count} in a row without a result of a call" for count in (1, 2)
    ]


def test_the_pause_before_a_run_is_driven_alone_grows(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> None:
        await drive(agents(), journal, "good")
        await drive(agents(), journal, "better")
        for _ in range(3):
            assert await ids(journal) == ["bad"]
            await die(journal, url, "bad")
        for pause in (1, 2, 4):
            await asyncio.sleep(pause - 0.1)
            assert await ids(journal) == []
            await asyncio.sleep(0.1)
            assert await ids(journal) == ["bad"]
            await die(journal, url, "bad")
        assert (await drive(agents(), journal, "bad")).state == "failed"

    in_journal(tmp_path, work)


def test_an_orphan_comes_behind_runs_that_are_ready_unless_it_has_waited_long(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> None:
        await die(journal, url, "bad")
        assert await ids(journal) == ["good", "better", "bad"]
        await asyncio.sleep(OVERDUE)
        assert await ids(journal) == ["bad", "good", "better"]

    in_journal(tmp_path, work)


def test_nothing_else_is_driven_beside_a_run_that_is_driven_alone(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> None:
        for _ in range(3):
            await die(journal, url, "bad")
        await asyncio.sleep(1)
        assert await ids(journal) == ["good", "better"]
        other = await journal.claim("good")
        assert isinstance(other, Claim)
        with pytest.raises(Busy, match="driven alone, and later"):
            await journal.claim("bad")
        await journal.leave(other, "ready")
        alone = await journal.claim("bad")
        assert isinstance(alone, Claim)
        assert await ids(journal) == []
        with pytest.raises(Busy, match="a run whose drivers have died is driven alone here"):
            await journal.claim("good")
        await journal.leave(alone, "ready")
        assert (await journal.run("bad")).fruitless == 0  # that one lived
        assert {*await ids(journal)} == {"bad", "good", "better"}

    in_journal(tmp_path, work)


def test_a_run_that_has_waited_long_to_be_driven_alone_is_next_and_waits_for_those_that_are_driven(
    tmp_path: Path,
) -> None:
    async def work(journal: Journal, url: str) -> None:
        for _ in range(3):
            await die(journal, url, "bad")
        other = await journal.claim("good")
        assert isinstance(other, Claim)
        await asyncio.sleep(OVERDUE + 1)
        assert await ids(journal, limit=1) == ["bad"]
        claiming = asyncio.create_task(journal.claim("bad"))
        await asyncio.sleep(5)
        assert not claiming.done()
        assert await ids(journal) == []
        await journal.leave(other, "ready")
        assert isinstance(await claiming, Claim)

    in_journal(tmp_path, work)


def test_a_worker_ends_all_runs_though_the_drivers_of_each_had_died(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> list[RunRow]:
        for name in ("bad", "good", "better"):
            for _ in range(3):
                await die(journal, url, name)
        worker = Worker(agents(), journal)
        working = asyncio.create_task(worker.run())
        while len(await journal.runs(state="answered")) < 3:
            await asyncio.sleep(0.5)
        worker.stop()
        await working
        return await journal.runs()

    rows = in_journal(tmp_path, work)
    assert [(row.deaths, row.fruitless) for row in rows] == [(3, 0)] * 3


@pytest.mark.parametrize(("dies", "calls", "counts"), [(False, 2, [2, 2, 0]), (True, 1, [1])])
def test_a_result_of_a_call_is_progress_and_an_unknown_outcome_is_none(
    dies: bool, calls: int, counts: list[int], tmp_path: Path
) -> None:
    """How many drivers have died in a row, at each request of the last one."""
    path, seen, url = tmp_path / "runs.db", list[int](), f"sqlite:///{tmp_path}/runs.db"

    def answer(request: Request) -> Answer:
        with closing(sqlite3.connect(path)) as connection:
            seen.append(connection.execute("SELECT fruitless FROM unbroken_runs").fetchone()[0])
        said = sum(isinstance(each, Assistant) for each in request.messages)
        return [Call("pay")] if said < calls else "Paid."

    @tool
    async def pay() -> str:
        """Pay."""
        if dies:
            os._exit(1)
        return "paid"

    async def main() -> None:
        async with await open_journal(url) as journal:
            await journal.start("a", "Pay.", run_id="r")
            await drive({"a": Agent(ScriptedModel(answer), [pay])}, journal, "r")

    async def twice() -> None:
        async with await open_journal(url) as journal:
            await journal.start("a", "Pay.", run_id="r")
            for _ in range(2):
                await die(journal, url, "r")

    if dies:
        in_a_child(lambda: asyncio.run(main()))
    else:
        asyncio.run(twice())
    asyncio.run(main())
    assert seen == counts


def test_a_driver_without_the_agent_changes_nothing(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> None:
        await die(journal, url, "bad")
        with pytest.raises(UnknownAgent, match="run `bad` is of agent `a`"):
            await drive({"b": Agent(ScriptedModel())}, journal, "bad")
        row = await journal.run("bad")
        assert (row.state, row.drives, row.deaths) == ("running", 1, 0)

    in_journal(tmp_path, work)


def test_a_run_is_cancelled_whatever_its_drivers_did_and_its_recording_says_so(tmp_path: Path) -> None:
    async def work(journal: Journal, url: str) -> None:
        for _ in range(3):
            await die(journal, url, "bad")
        assert (await journal.cancel("bad")).state == "cancelled"
        assert await ids(journal) == ["good", "better"]

    in_journal(tmp_path, work)


def test_the_recording_of_a_run_that_failed_so_ends_with_its_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    @tool
    async def crash() -> None:
        """Ends the process."""
        os._exit(1)

    async def main(deaths: int = 3) -> list[Event]:
        async with await open_journal(url, deaths=deaths) as journal:
            await journal.start("a", "Go.", run_id="r")
            await drive({"a": Agent(ScriptedModel(lambda request: [Call("crash")]), [crash])}, journal, "r")
            return [event async for event in journal.events("r")]

    for _ in range(2):
        in_a_child(lambda: asyncio.run(main()))
    last = asyncio.run(main(deaths=1))[-1]
    assert isinstance(last, RunFailed)
    assert (last.error, last.message[:36]) == ("DriversDied", "2 processes died in a row while they")


@in_loop
async def test_deaths_are_a_metric(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with await open_journal(url) as journal:
        for name in ("a", "b"):
            await journal.start("a", "Hi.", run_id=name)
            await die(journal, url, name)
            await drive(agents(), journal, name)
        metrics = JournalMetrics(journal)
        text = (await metrics.text()).decode()
        metrics.close()
    assert "unbroken_deaths_total 2.0" in text
