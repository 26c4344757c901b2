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
from engine_scenes import CeleryScene, results, valkey
from servers import Process, processes

from unbroken.durable import Journal


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
