"""Durable runs on DBOS, on PostgreSQL and on SQLite, whose workers are killed and restarted."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from dbos import DBOSClient
from engine_scenes import DBOSScene, results, until_state
from postgres_server import empty_url
from servers import processes

from unbroken import Allow
from unbroken_durable import AlreadyAnswered, Journal
from unbroken_durable.dbos import answer_run


@pytest.fixture
def scene(tmp_path: Path) -> Generator[DBOSScene]:
    with processes(tmp_path) as started:
        yield DBOSScene(started, empty_url(), empty_url())


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Generator[DBOSScene]:
    with processes(tmp_path) as started:
        yield DBOSScene(started, f"sqlite:///{tmp_path}/runs.db", f"sqlite:///{tmp_path}/dbos.db")


@pytest.mark.parametrize("executor", ["one", "two"])
def test_the_run_of_a_killed_worker_is_continued_by_the_same_executor_and_by_another(
    scene: DBOSScene, executor: str
) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = scene.worker(seconds=0.4, name="one")
        run_id = await scene.start(client, journal, "steps 8")
        await scene.until(4, "step")
        first.kill()
        scene.worker(name=executor, seconds=0.4)
        await scene.end_of(client, journal, run_id)
        outcomes = await results(journal, run_id)
        assert (len(outcomes), outcomes.count("done"), outcomes.count("unknown")) == (16, 15, 1)

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_run_is_driven_after_wake_ups_that_found_nothing_to_do(on_sqlite: DBOSScene) -> None:
    scene = on_sqlite

    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker(seconds=3)
        run_id = await scene.start(client, journal, "pays 2", tenant="acme")
        row = await until_state(journal, run_id, "waiting")
        await scene.start(client, journal, "pays 2", tenant="acme")
        first, second = (call.id for call in row.pending)
        await answer_run(client, journal, run_id, {first: Allow()})
        await scene.until(1, "pay")
        await until_state(journal, run_id, "waiting")
        with pytest.raises(AlreadyAnswered):
            await answer_run(client, journal, run_id, {first: Allow()})
        await asyncio.sleep(2)  # a wake-up is not left in the queue
        await answer_run(client, journal, run_id, {second: Allow()})
        await scene.start(client, journal, "steps 1", "busy")
        await scene.until(1, "step")
        await scene.start(client, journal, "steps 1", "busy")
        await scene.end_of(client, journal, run_id)
        await scene.end_of(client, journal, "busy")

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1, 1]
    assert [*scene.ledger.executions("step").values()] == [1]


def test_a_drive_that_ended_without_driving_is_followed_by_another(on_sqlite: DBOSScene) -> None:
    """As if the database had been away: the workflow has failed, and the run is as it was."""

    async def act(client: DBOSClient, journal: Journal) -> None:
        on_sqlite.worker().stop()
        run_id = await on_sqlite.start(client, journal, "steps 1")
        drives = await client.list_workflows_async(name="unbroken-drive")
        await client.cancel_workflow_async(drives[0].workflow_id)
        on_sqlite.worker()
        await on_sqlite.end_of(client, journal, run_id)

    on_sqlite.play(act)
    assert [*on_sqlite.ledger.executions("step").values()] == [1]


def test_a_run_that_is_started_before_any_worker_is_driven_by_the_first(
    on_sqlite: DBOSScene, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        run_id = await on_sqlite.start(client, journal, "steps 1")
        assert "its tables do not exist yet: start one with run_worker" in caplog.text
        on_sqlite.worker()
        await on_sqlite.end_of(client, journal, run_id)

    on_sqlite.play(act)
    assert [*on_sqlite.ledger.executions("step").values()] == [1]


def test_a_killed_worker_on_sqlite_is_restarted(on_sqlite: DBOSScene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = on_sqlite.worker(seconds=0.4)
        run_id = await on_sqlite.start(client, journal, "steps 6")
        await on_sqlite.until(3, "step")
        first.kill()
        on_sqlite.worker(seconds=0.4)
        await on_sqlite.end_of(client, journal, run_id)

    on_sqlite.play(act)
    assert set(on_sqlite.ledger.executions("step").values()) == {1}
    assert len(on_sqlite.ledger.executions("step")) == 6
