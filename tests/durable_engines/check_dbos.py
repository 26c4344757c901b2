"""Durable runs on DBOS, on PostgreSQL and on SQLite, whose workers are killed and restarted."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from dbos import DBOSClient
from engine_scenes import DBOSScene, results
from postgres_server import empty_url
from servers import processes

from unbroken.durable import Journal


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
