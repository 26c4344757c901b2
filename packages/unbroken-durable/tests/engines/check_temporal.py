"""Durable runs on a real Temporal server, whose workers are killed, paused and restarted."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from engine_scenes import TemporalScene, results, until_state
from postgres_server import empty_url
from servers import processes, wait_for
from temporalio.client import Client, WorkflowFailureError

from unbroken import Allow
from unbroken_durable import Journal, open_journal
from unbroken_durable.temporal import answer_run, cancel_run, workflow_id


@pytest.fixture
def scene(tmp_path: Path) -> Generator[TemporalScene]:
    with processes(tmp_path) as started:
        yield TemporalScene(started, f"sqlite:///{tmp_path}/runs.db")


@pytest.fixture(params=["sqlite", "postgresql"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[TemporalScene]:
    """With a journal of each kind."""
    with processes(tmp_path) as started:
        yield TemporalScene(started, f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else empty_url())


def test_a_second_worker_finishes_the_run_of_a_killed_one(both: TemporalScene) -> None:
    scene = both

    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await scene.start(client, journal, "steps 8")
        await scene.until(4, "step")
        first.kill()
        scene.worker(seconds=0.4)
        await scene.end_of(client, journal, run_id)
        outcomes = await results(journal, run_id)
        assert len(outcomes) == 16
        assert outcomes.count("done") == 15  # the write that was cut is reported, and does not run again
        assert outcomes.count("unknown") == 1

    scene.play(act)
    assert len(scene.ledger.processes()) == 2
    executions = scene.ledger.executions("step")
    assert len(executions) == 8
    assert set(executions.values()) == {1}


def test_a_worker_that_was_paused_past_its_heartbeat_adds_nothing(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await scene.start(client, journal, "steps 6")
        await scene.until(3, "step")
        first.pause()
        scene.worker(seconds=0.4)
        await scene.end_of(client, journal, run_id)
        chunks = (await journal.run(run_id)).chunks
        first.go_on()
        await asyncio.sleep(2)
        row = await journal.run(run_id)
        assert row.chunks == chunks
        assert row.supersessions == 1

    scene.play(act)
    assert set(scene.ledger.executions("step").values()) == {1}


def test_a_worker_that_is_paused_for_half_of_that_time_keeps_its_run(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        worker = scene.worker(seconds=0.7)
        run_id = await scene.start(client, journal, "steps 8", lost_after=4)
        for count in range(1, 6):
            await scene.until(count, "step")
            worker.pause()
            await asyncio.sleep(2)
            worker.go_on()
        await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["done"] * 16
        assert (await journal.run(run_id)).drives == 1

    scene.play(act)
    assert len(scene.ledger.executions("step")) == 8


def test_a_run_survives_a_restart_of_the_server(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker(seconds=0.4)
        run_id = await scene.start(client, journal, "steps 8", lost_after=60)
        await scene.until(3, "step")
        scene.server.kill()
        await asyncio.sleep(1)
        scene.server.start()
        await scene.end_of(await Client.connect(scene.server.address), journal, run_id)
        assert await results(journal, run_id) == ["done"] * 16

    scene.play(act)
    assert set(scene.ledger.executions("step").values()) == {1}
    assert len(scene.ledger.executions("step")) == 8


def test_workflows_are_found_by_the_state_of_their_runs(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        run_id = await scene.start(client, journal, "pay 5", tenant="acme")
        row = await until_state(journal, run_id, "waiting")
        id = workflow_id(journal, run_id)
        await found(client, id, "UnbrokenTenant = 'acme' AND UnbrokenState = 'waiting' AND UnbrokenAgent = 'worker'")
        await answer_run(client, journal, run_id, {row.pending[0].id: Allow()})
        await scene.end_of(client, journal, run_id)
        await found(client, id, "UnbrokenState = 'answered'")

    async def found(client: Client, id: str, query: str) -> None:
        while [each.id async for each in client.list_workflows(query)] != [id]:
            await asyncio.sleep(0.1)

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]


def test_an_answer_without_a_signal_is_found_by_a_worker(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        run_id = await scene.start(client, journal, "pay 5")
        row = await until_state(journal, run_id, "waiting")
        await journal.answer(run_id, {row.pending[0].id: Allow()})
        await journal.start("worker", "steps 1", run_id="never sent to Temporal")
        await scene.end_of(client, journal, run_id)
        await until_state(journal, "never sent to Temporal", "answered")

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]
    assert [*scene.ledger.executions("step").values()] == [1]


def test_a_workflow_that_is_cancelled_cancels_its_run(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker(seconds=30)
        run_id = await scene.start(client, journal, "steps 8")
        await scene.until(1, "step")
        await client.get_workflow_handle(workflow_id(journal, run_id)).cancel()
        await until_state(journal, run_id, "cancelled")
        await scene.until_stopped()
        with pytest.raises(WorkflowFailureError):
            await client.get_workflow_handle(workflow_id(journal, run_id)).result()

    scene.play(act)
    assert scene.ledger.rows("stopped", "tool = 'step'") == [(1,)]


def test_a_run_that_failed_is_driven_again_when_it_is_started_again(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        down = scene.ledger.folder / "down"
        down.touch()
        scene.worker()
        run_id = await scene.start(client, journal, "steps 1")
        with pytest.raises(WorkflowFailureError) as failed:
            await client.get_workflow_handle(workflow_id(journal, run_id)).result()
        assert "the provider is down" in str(failed.value.cause)
        assert (await journal.run(run_id)).state == "failed"
        down.unlink()
        assert await scene.start(client, journal, "steps 1") == run_id
        await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["done", "done"]

    scene.play(act)
    assert [*scene.ledger.executions("step").values()] == [1]


def test_the_workflow_of_a_run_that_was_cancelled_without_temporal_ends(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        worker = scene.worker()
        for run_id in ("r", "s"):
            await scene.start(client, journal, "pay 5", run_id)
            await until_state(journal, run_id, "waiting")
        await journal.cancel("r")
        assert await client.get_workflow_handle(workflow_id(journal, "r")).result() == "cancelled"
        worker.kill()
        await journal.cancel("s")
        await cancel_run(client, journal, "s")
        scene.worker()
        with pytest.raises(WorkflowFailureError):
            await client.get_workflow_handle(workflow_id(journal, "s")).result()

    scene.play(act)
    assert scene.ledger.executions("pay") == {}


def test_two_journals_in_a_namespace_have_runs_of_the_same_id(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        scene.worker()
        await scene.start(client, journal, "pay 5")
        await until_state(journal, "r", "waiting")
        scene.url = f"sqlite:///{scene.ledger.folder}/others.db"
        async with await open_journal(scene.url) as others:
            scene.worker(task_queue="others")
            await scene.start(client, others, "steps 1", task_queue="others")
            await scene.end_of(client, others, "r")
        assert (await journal.run("r")).state == "waiting"

    scene.play(act)
    assert [*scene.ledger.executions("step").values()] == [1]


def test_a_run_that_temporal_refuses_does_not_keep_others_from_being_woken(scene: TemporalScene) -> None:
    async def act(client: Client, journal: Journal) -> None:
        await journal.start("worker", "steps 1", run_id="refused")
        long = "é" * 500  # as a journal of an earlier version may have it
        await journal.work(lambda database: database.change("UPDATE unbroken_runs SET run_id = ?", long))
        await journal.start("worker", "steps 1", run_id="r")
        worker = scene.worker()
        await until_state(journal, "r", "answered")
        await asyncio.to_thread(wait_for, lambda: f"run {long} is ready and cannot be woken now" in worker.log)

    scene.play(act)
    assert [*scene.ledger.executions("step").values()] == [1]
