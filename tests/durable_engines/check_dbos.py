"""Durable runs on DBOS, on PostgreSQL and on SQLite, whose workers are killed and restarted."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from dbos import DBOSClient
from ledger import Ledger
from servers import PostgresServer, Process, Processes, processes, wait_for
from worker_agents import LARGE

from unbroken import Allow
from unbroken.durable import Journal, open_journal
from unbroken.durable.dbos import answer_run, cancel_run, start_run
from unbroken.events import CallFinished, CallProgress

Act = Callable[[DBOSClient, Journal], Awaitable[None]]


class Scene:
    """Databases, a ledger, and workers that can be killed."""

    def __init__(self, started: Processes, database: str, url: str) -> None:
        self.database = database
        self.url = url
        self.ledger_path = str(started.folder / "ledger.db")
        self.ledger = Ledger(self.ledger_path)
        self._started = started

    def worker(self, what: str = "runs", executor: str = "one", seconds: float = 0.2) -> Process:
        arguments = (what, executor, self.database, self.url, self.ledger_path, str(seconds))
        return self._started.worker("dbos_process.py", *arguments)

    def play(self, act: Act) -> None:
        async def main() -> None:
            client = DBOSClient(system_database_url=self.database, application_name="checks")
            try:
                async with await open_journal(self.url) as journal, asyncio.timeout(120):
                    await act(client, journal)
            finally:
                client.destroy()

        asyncio.run(main())

    async def until(self, count: int, tool: str) -> None:
        """Until so many calls of the tool have started."""
        look: Callable[[], bool] = lambda: len(self.ledger.executions(tool)) >= count  # noqa: E731
        await asyncio.to_thread(wait_for, look, 60, f"call {count} of {tool}")


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Generator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture
def scene(tmp_path: Path, postgres: PostgresServer) -> Generator[Scene]:
    with processes(tmp_path) as started:
        yield Scene(started, postgres.new_database(), postgres.new_database())


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Generator[Scene]:
    with processes(tmp_path) as started:
        yield Scene(started, f"sqlite:///{tmp_path}/dbos.db", f"sqlite:///{tmp_path}/runs.db")


async def ends(journal: Journal, run_id: str, state: str = "answered") -> Any:
    while (row := await journal.run(run_id)).state != state:
        assert row.state != "failed", row.error
        await journal.changed(1)
    return row


async def results(journal: Journal, run_id: str) -> list[str]:
    """How the calls of the run ended, by their ids."""
    events = (await journal.recording(run_id)).events
    return [*{event.call_id: event.outcome for event in events if isinstance(event, CallFinished)}.values()]


@pytest.mark.parametrize("executor", ["one", "two"])
def test_a_run_of_a_killed_worker_is_continued_by_the_same_executor_and_by_another(scene: Scene, executor: str) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 8", run_id="r")
        await scene.until(4, "step")
        first.kill()
        scene.worker(executor=executor, seconds=0.4)
        await ends(journal, run_id)
        outcomes = await results(journal, run_id)
        assert (len(outcomes), outcomes.count("done"), outcomes.count("unknown")) == (16, 15, 1)

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_killed_worker_on_sqlite_is_restarted(on_sqlite: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = on_sqlite.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 6", run_id="r")
        await on_sqlite.until(3, "step")
        first.kill()
        on_sqlite.worker(seconds=0.4)
        await ends(journal, run_id)

    on_sqlite.play(act)
    assert set(on_sqlite.ledger.executions("step").values()) == {1}
    assert len(on_sqlite.ledger.executions("step")) == 6


def test_a_worker_that_stops_lets_its_call_finish_and_another_one_continues(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 6", run_id="r")
        await scene.until(3, "step")
        await asyncio.to_thread(first.stop)
        scene.worker(executor="two", seconds=0.4)
        await ends(journal, run_id)
        assert await results(journal, run_id) == ["done"] * 12

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    assert set(scene.ledger.executions("step").values()) == {1}


def test_an_approval_puts_the_run_into_the_queue_again(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = scene.worker()
        run_id = await start_run(client, journal, "worker", "pay 5", run_id="r")
        row = await ends(journal, run_id, "waiting")
        first.kill()
        await answer_run(client, journal, run_id, {row.pending[0]["id"]: Allow()})
        scene.worker(executor="two")
        await ends(journal, run_id)
        assert await results(journal, run_id) == ["done"]

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]


def test_an_approval_that_does_not_come_expires(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker()
        run_id = await start_run(client, journal, "worker", "pay 5", run_id="r", answer_within=2)
        row = await ends(journal, run_id)
        assert await results(journal, run_id) == ["not_executed"]
        assert row.updated - row.created >= 2

    scene.play(act)
    assert scene.ledger.executions("pay") == {}


def test_a_run_is_cancelled_from_another_machine(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker(seconds=30)
        run_id = await start_run(client, journal, "worker", "steps 8", run_id="r")
        await scene.until(1, "step")
        await cancel_run(client, journal, run_id)
        await asyncio.to_thread(wait_for, lambda: scene.ledger.rows("stopped", "stopped = 1"), 10, "the stop")
        assert (await journal.run(run_id)).state == "cancelled"

    scene.play(act)
    assert scene.ledger.rows("stopped", "tool = 'step'") == [(1,)]


# Tools on other machines


def test_calls_elsewhere_run_once_though_their_run_is_killed_with_two_in_flight(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        first = scene.worker()
        scene.worker("tools", "gpu", seconds=2)
        run_id = await start_run(client, journal, "worker", "render 2", run_id="acme-1", tenant="acme")
        await scene.until(2, "render")
        first.kill()
        scene.worker()
        await ends(journal, run_id)
        assert await results(journal, run_id) == ["done", "done"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1, 1]


def test_no_tenant_has_more_than_two_calls_at_once_on_all_workers(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools", "gpu-1", seconds=0.5)
        scene.worker("tools", "gpu-2", seconds=0.5)
        ids = [
            await start_run(client, journal, "worker", "render 6", run_id=f"{tenant}-{each}", tenant=tenant)
            for tenant in ("acme", "best")
            for each in range(2)
        ]
        for run_id in ids:
            await ends(journal, run_id)
            assert await results(journal, run_id) == ["done"] * 6

    scene.play(act)
    assert scene.ledger.most_at_once("tenant = 'acme'") == 2
    assert scene.ledger.most_at_once("tenant = 'best'") == 2
    assert scene.ledger.most_at_once() > 2
    assert set(scene.ledger.executions("render").values()) == {1}


@pytest.mark.parametrize("executor", ["gpu", "another"])
def test_a_call_whose_worker_is_killed_is_reported_and_does_not_run_again(scene: Scene, executor: str) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker()
        lost = scene.worker("tools", "gpu", seconds=60)
        run_id = await start_run(client, journal, "worker", "render 1", run_id="acme-1")
        await scene.until(1, "render")
        lost.kill()
        scene.worker("tools", executor)
        await ends(journal, run_id)
        assert await results(journal, run_id) == ["unknown"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1]


def test_a_result_of_10_mb_comes_back_and_progress_and_cancellation_travel(scene: Scene) -> None:
    async def act(client: DBOSClient, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools", "gpu")
        run_id = await start_run(client, journal, "worker", "large", run_id="r")
        await ends(journal, run_id)
        messages = (await journal.recording(run_id)).requests[-1].messages
        assert max(len(str(message)) for message in messages) > LARGE
        run_id = await start_run(client, journal, "worker", "slow", run_id="s")
        async for event in journal.events(run_id):
            if isinstance(event, CallProgress):
                assert (event.message, event.done) == ("rendering", 0.5)
                break
        await cancel_run(client, journal, run_id)
        await asyncio.to_thread(wait_for, lambda: scene.ledger.rows("stopped", "stopped = 1"), 10, "the stop")

    scene.play(act)
    assert scene.ledger.rows("tool, stopped") == [("large", 0), ("slow", 1)]
