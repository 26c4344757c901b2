"""Durable runs on a real Temporal server, whose workers are killed, paused and restarted."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger
from servers import PostgresServer, Process, Processes, TemporalServer, processes, wait_for
from temporalio.client import Client, WorkflowFailureError
from worker_agents import LARGE

from unbroken import Allow
from unbroken.durable import AlreadyAnswered, Journal, open_journal
from unbroken.durable.temporal import answer_run, cancel_run, start_run, workflow_id
from unbroken.events import CallFinished, CallProgress

Act = Callable[[Client, Journal], Awaitable[None]]


class Scene:
    """A Temporal server, a journal, a ledger, and workers that can be killed."""

    def __init__(self, started: Processes, url: str) -> None:
        self.url = url
        self.ledger_path = str(started.folder / "ledger.db")
        self.ledger = Ledger(self.ledger_path)
        self.server = TemporalServer(started)
        self._started = started

    def worker(self, what: str = "runs", seconds: float = 0.2) -> Process:
        arguments = (what, self.server.address, self.url, self.ledger_path, str(seconds))
        return self._started.worker("temporal_process.py", *arguments)

    def play(self, act: Act) -> None:
        async def main() -> None:
            client = await Client.connect(self.server.address)
            async with await open_journal(self.url) as journal, asyncio.timeout(120):
                await act(client, journal)

        asyncio.run(main())

    async def until(self, count: int, tool: str) -> None:
        """Until so many calls of the tool have started."""
        look: Callable[[], bool] = lambda: len(self.ledger.executions(tool)) >= count  # noqa: E731
        await asyncio.to_thread(wait_for, look, 60, f"call {count} of {tool}")


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    with processes(tmp_path) as started:
        yield Scene(started, f"sqlite:///{tmp_path}/runs.db")


@pytest.fixture(params=["sqlite", "postgresql"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Scene]:
    """With a journal of each kind."""
    with processes(tmp_path) as started:
        postgres = PostgresServer(tmp_path / "postgres") if request.param == "postgresql" else None
        try:
            yield Scene(started, postgres.new_database() if postgres else f"sqlite:///{tmp_path}/runs.db")
        finally:
            started.end()
            if postgres:
                postgres.stop()


async def ended(client: Client, run_id: str) -> str:
    return await client.get_workflow_handle(workflow_id(run_id)).result()


async def results(journal: Journal, run_id: str) -> list[str]:
    """How the calls of the run ended, by their ids. A driver that continues a run repeats the event of a
    call that had ended in the last round."""
    events = (await journal.recording(run_id)).events
    found = {event.call_id: event.outcome for event in events if isinstance(event, CallFinished)}
    return [*found.values()]


async def waits(journal: Journal, run_id: str, state: str = "waiting") -> Any:
    while (row := await journal.run(run_id)).state != state:
        await journal.changed(1)
    return row


def test_a_second_worker_finishes_the_run_of_a_killed_one(both: Scene) -> None:
    scene = both

    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 8", run_id="r", lost_after=3)
        await scene.until(4, "step")
        first.kill()
        scene.worker(seconds=0.4)
        assert await ended(client, run_id) == "answered"
        outcomes = await results(journal, run_id)
        assert len(outcomes) == 16
        assert outcomes.count("done") == 15  # the write that was cut is reported, and does not run again
        assert outcomes.count("unknown") == 1

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_worker_that_stops_lets_its_call_finish_and_another_one_continues(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 6", run_id="r")
        await scene.until(3, "step")
        await asyncio.to_thread(first.stop)
        scene.worker(seconds=0.4)
        assert await ended(client, run_id) == "answered"
        assert await results(journal, run_id) == ["done"] * 12
        assert (await journal.run(run_id)).supersessions == 0

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    assert set(scene.ledger.executions("step").values()) == {1}


def test_a_worker_that_was_paused_past_its_heartbeat_adds_nothing(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 6", run_id="r", lost_after=3)
        await scene.until(3, "step")
        first.pause()
        scene.worker(seconds=0.4)
        assert await ended(client, run_id) == "answered"
        chunks = (await journal.run(run_id)).chunks
        first.go_on()
        await asyncio.sleep(2)
        row = await journal.run(run_id)
        assert row.chunks == chunks
        assert row.supersessions == 1

    scene.play(act)
    assert set(scene.ledger.executions("step").values()) == {1}


def test_a_run_survives_a_restart_of_the_server(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker(seconds=0.4)
        run_id = await start_run(client, journal, "worker", "steps 8", run_id="r", lost_after=60)
        await scene.until(3, "step")
        scene.server.kill()
        await asyncio.sleep(1)
        scene.server.start()
        assert await ended(await Client.connect(scene.server.address), run_id) == "answered"
        assert await results(journal, run_id) == ["done"] * 16

    scene.play(act)
    assert set(scene.ledger.executions("step").values()) == {1}
    assert len(scene.ledger.executions("step")) == 8


def test_an_approval_wakes_the_run(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker()
        run_id = await start_run(client, journal, "worker", "pay 5", run_id="r", tenant="acme")
        row = await waits(journal, run_id)
        await found(client, "UnbrokenTenant = 'acme' AND UnbrokenState = 'waiting' AND UnbrokenAgent = 'worker'")
        first.kill()  # a waiting run needs no worker
        await answer_run(client, journal, run_id, {row.pending[0]["id"]: Allow()})
        with pytest.raises(AlreadyAnswered):
            await answer_run(client, journal, run_id, {row.pending[0]["id"]: Allow()})
        scene.worker()
        assert await ended(client, run_id) == "answered"
        await found(client, "UnbrokenState = 'answered'")
        assert await results(journal, run_id) == ["done"]

    async def found(client: Client, query: str) -> None:
        while [each.id async for each in client.list_workflows(query)] != [workflow_id("r")]:
            await asyncio.sleep(0.1)

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]


def test_an_answer_without_a_signal_is_found_by_a_worker(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        run_id = await start_run(client, journal, "worker", "pay 5", run_id="r")
        row = await waits(journal, run_id)
        await journal.answer(run_id, {row.pending[0]["id"]: Allow()})
        await journal.start("worker", "steps 1", run_id="never sent to Temporal")
        assert await ended(client, run_id) == "answered"
        await waits(journal, "never sent to Temporal", "answered")

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]
    assert [*scene.ledger.executions("step").values()] == [1]


def test_an_approval_that_does_not_come_expires_by_a_timer(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        run_id = await start_run(client, journal, "worker", "pay 5", run_id="r", answer_within=2)
        assert await ended(client, run_id) == "answered"
        assert await results(journal, run_id) == ["not_executed"]
        row = await journal.run(run_id)
        assert row.updated - row.created >= 2

    scene.play(act)
    assert scene.ledger.executions("pay") == {}


@pytest.mark.parametrize("by", ["cancel_run", "workflow"])
def test_a_run_is_cancelled_from_another_machine(scene: Scene, by: str) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker(seconds=30)
        run_id = await start_run(client, journal, "worker", "steps 8", run_id="r", lost_after=3)
        await scene.until(1, "step")
        if by == "workflow":
            await client.get_workflow_handle(workflow_id(run_id)).cancel()
        else:
            await cancel_run(client, journal, run_id)
        await waits(journal, run_id, "cancelled")
        await asyncio.to_thread(wait_for, lambda: scene.ledger.rows("stopped", "stopped = 1"), 10, "the stop")
        if by == "workflow":
            with pytest.raises(WorkflowFailureError):
                await ended(client, run_id)

    scene.play(act)
    assert scene.ledger.rows("stopped", "tool = 'step'") == [(1,)]


def test_a_run_that_failed_is_driven_again_when_it_is_started_again(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        down = scene.ledger.folder / "down"
        down.touch()
        scene.worker()
        run_id = await start_run(client, journal, "worker", "steps 1", run_id="r")
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(client, run_id)
        assert "the provider is down" in str(failed.value.cause)
        assert (await journal.run(run_id)).state == "failed"
        down.unlink()
        assert await start_run(client, journal, "worker", "steps 1", run_id="r") == run_id
        assert await ended(client, run_id) == "answered"
        assert await results(journal, run_id) == ["done", "done"]

    scene.play(act)
    assert [*scene.ledger.executions("step").values()] == [1]


# Tools on other machines


def test_calls_elsewhere_run_once_though_their_run_is_killed_with_two_in_flight(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker()
        scene.worker("tools", seconds=2)
        run_id = await start_run(client, journal, "worker", "render 2", run_id="acme-1", tenant="acme", lost_after=3)
        await scene.until(2, "render")
        first.kill()
        scene.worker()
        assert await ended(client, run_id) == "answered"
        assert await results(journal, run_id) == ["done", "done"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1, 1]


def test_no_tenant_has_more_than_two_calls_at_once_on_all_workers(both: Scene) -> None:
    scene = both

    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools", seconds=0.5)
        scene.worker("tools", seconds=0.5)
        ids = [
            await start_run(client, journal, "worker", "render 6", run_id=f"{tenant}-{each}", tenant=tenant)
            for tenant in ("acme", "best")
            for each in range(2)
        ]
        assert {await ended(client, run_id) for run_id in ids} == {"answered"}
        for run_id in ids:
            assert await results(journal, run_id) == ["done"] * 6

    scene.play(act)
    assert scene.ledger.most_at_once("tenant = 'acme'") == 2
    assert scene.ledger.most_at_once("tenant = 'best'") == 2
    assert scene.ledger.most_at_once() > 2
    assert set(scene.ledger.executions("render").values()) == {1}
    assert len(scene.ledger.processes()) == 2


def test_a_call_whose_worker_is_killed_is_reported_and_does_not_run_again(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        lost = scene.worker("tools", seconds=60)
        run_id = await start_run(client, journal, "worker", "render 1", run_id="acme-1")
        await scene.until(1, "render")
        lost.kill()
        scene.worker("tools")
        assert await ended(client, run_id) == "answered"
        assert await results(journal, run_id) == ["unknown"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1]


def test_a_result_of_10_mb_comes_back(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools")
        run_id = await start_run(client, journal, "worker", "large", run_id="r")
        assert await ended(client, run_id) == "answered"
        messages = (await journal.recording(run_id)).requests[-1].messages
        assert max(len(str(message)) for message in messages) > LARGE

    scene.play(act)
    assert [*scene.ledger.executions("large").values()] == [1]


def test_progress_and_cancellation_travel(scene: Scene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools")
        run_id = await start_run(client, journal, "worker", "slow", run_id="r")
        async for event in journal.events(run_id):
            if isinstance(event, CallProgress):
                assert (event.message, event.done) == ("rendering", 0.5)
                break
        await cancel_run(client, journal, run_id)
        await asyncio.to_thread(wait_for, lambda: scene.ledger.rows("stopped", "stopped = 1"), 10, "the stop")

    scene.play(act)
    assert scene.ledger.rows("tool, stopped") == [("slow", 1)]
