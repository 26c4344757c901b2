"""Durable runs on Celery, with a real Valkey as broker, whose workers are killed."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from celery import Celery
from celery_process import VISIBLE
from engine_scenes import CeleryScene, results, until_state, valkey
from postgres_server import close_database, empty_url, open_database
from servers import Process, processes, wait_for

from unbroken import Allow
from unbroken_durable import Journal


@pytest.fixture
def scene(tmp_path: Path) -> Generator[CeleryScene]:
    with valkey() as broker, processes(tmp_path) as started:
        yield CeleryScene(started, f"sqlite:///{tmp_path}/runs.db", broker)


def test_another_worker_finishes_the_run_of_a_killed_one(scene: CeleryScene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await scene.start(app, journal, "steps 8")
        await scene.until(4, "step")
        first.kill()
        await asyncio.sleep(VISIBLE)  # a worker looks for lost tasks when it starts, and then every 100 seconds
        scene.worker(seconds=0.4)
        await scene.end_of(app, journal, run_id)
        outcomes = await results(journal, run_id)
        assert (len(outcomes), outcomes.count("done"), outcomes.count("unknown")) == (16, 15, 1)

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_worker_whose_child_is_killed_continues_at_once(scene: CeleryScene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        scene.worker(seconds=0.4)
        run_id = await scene.start(app, journal, "steps 6")
        await scene.until(3, "step")
        (child,) = scene.ledger.processes()
        os.kill(child, signal.SIGKILL)
        await scene.end_of(app, journal, run_id)
        assert (await results(journal, run_id)).count("unknown") == 1

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    assert set(scene.ledger.executions("step").values()) == {1}


def test_a_task_that_is_delivered_twice_drives_the_run_once(scene: CeleryScene) -> None:
    """The run takes longer than the broker's visibility time-out."""

    workers: list[Process] = []

    async def act(app: Celery, journal: Journal) -> None:
        workers.append(scene.worker(seconds=1))
        run_id = await scene.start(app, journal, "steps 8")
        await scene.until(VISIBLE + 1, "step")
        workers.append(scene.worker(seconds=1))
        row = await scene.end_of(app, journal, run_id)
        assert (row.drives, row.supersessions) == (1, 0)
        assert await results(journal, run_id) == ["done"] * 16

    scene.play(act)
    assert "another driver has it, and is alive" in workers[1].log
    assert set(scene.ledger.executions("step").values()) == {1}


def test_runs_of_a_lost_worker_and_runs_without_a_task_are_found_by_another(scene: CeleryScene) -> None:
    """Those that were started or answered over HTTP have no task."""

    async def act(app: Celery, journal: Journal) -> None:
        first = scene.worker(seconds=0.4, look=1)
        run_id = await scene.start(app, journal, "steps 6")
        await scene.until(3, "step")
        scene.worker(seconds=0.4, look=1)
        first.kill()
        await scene.end_of(app, journal, run_id)
        await journal.start("worker", "pay 5", run_id="no task")
        row = await until_state(journal, "no task", "waiting")
        await journal.answer("no task", {row.pending[0].id: Allow()})
        await scene.end_of(app, journal, "no task")

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]
    assert [*scene.ledger.executions("step").values()] == [1] * 6


def test_a_task_is_kept_until_a_worker_has_the_agent(scene: CeleryScene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        old = scene.ledger.folder / "old"
        old.touch()
        worker = scene.worker(look=None)
        run_id = await scene.start(app, journal, "steps 1")
        await asyncio.to_thread(wait_for, lambda: "Retry in 5" in worker.log)
        await asyncio.to_thread(worker.stop)
        assert (await journal.run(run_id)).drives == 0
        old.unlink()
        scene.worker(look=None)
        await scene.end_of(app, journal, run_id)

    scene.play(act)
    assert [*scene.ledger.executions("step").values()] == [1]


def test_a_task_is_kept_until_the_database_is_back(tmp_path: Path) -> None:
    with valkey() as broker, processes(tmp_path) as started:
        scene = CeleryScene(started, empty_url(), broker)

        async def act(app: Celery, journal: Journal) -> None:
            run_id = await scene.start(app, journal, "steps 1")
            close_database(scene.url)
            worker = scene.worker(look=None)
            await asyncio.to_thread(wait_for, lambda: "Retry in 5" in worker.log)
            open_database(scene.url)
            await scene.end_of(app, journal, run_id)

        scene.play(act)
        assert [*scene.ledger.executions("step").values()] == [1]


def test_however_many_workers_look_one_task_is_sent_for_a_run(scene: CeleryScene) -> None:
    workers: list[Process] = []

    async def act(app: Celery, journal: Journal) -> None:
        for number in range(10):
            await journal.start("worker", "steps 1", run_id=f"found-{number}")
        workers.extend(scene.worker(seconds=0.5, look=0.3) for _ in range(2))
        for number in range(10):
            await scene.start(app, journal, "steps 1", f"sent-{number}")
        for run_id in (f"{kind}-{number}" for kind in ("found", "sent") for number in range(10)):
            await until_state(journal, run_id, "answered")

    scene.play(act)
    assert sum(worker.log.count("unbroken.drive") for worker in workers if worker.log) > 0
    assert sum(worker.log.count("received") for worker in workers) == 20
