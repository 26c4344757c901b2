"""What every engine does: the table of docs/engines.md, column by column. What is special about one of them is in a
check of its own."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from engine_scenes import CeleryScene, DBOSScene, Scene, TemporalScene, results, until_state, valkey
from postgres_server import empty_url
from servers import processes
from worker_agents import LARGE

from unbroken import Allow
from unbroken.events import CallProgress
from unbroken_durable import AlreadyAnswered, Journal


@pytest.fixture(params=["temporal", "dbos", "celery"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Scene]:
    yield from open_scene(tmp_path, request.param)


@pytest.fixture(params=["temporal", "dbos"])
def with_tools(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Scene]:
    """Those whose tools may run on other machines."""
    yield from open_scene(tmp_path, request.param)


def open_scene(folder: Path, engine: str) -> Generator[Scene]:
    with ExitStack() as stack:
        broker = stack.enter_context(valkey()) if engine == "celery" else ""
        started = stack.enter_context(processes(folder))
        if engine == "temporal":
            yield TemporalScene(started, f"sqlite:///{folder}/runs.db")
        elif engine == "dbos":
            yield DBOSScene(started, empty_url(), empty_url())
        else:
            yield CeleryScene(started, f"sqlite:///{folder}/runs.db", broker)


def test_a_worker_that_stops_lets_its_calls_finish_and_another_one_continues(scene: Scene) -> None:
    """On Celery it finishes the task, which is all of the run."""

    async def act(client: Any, journal: Journal) -> None:
        first = scene.worker(seconds=0.4)
        run_id = await scene.start(client, journal, "steps 6")
        await scene.until(3, "step")
        await asyncio.to_thread(first.stop)
        state = (await journal.run(run_id)).state
        assert state == ("answered" if isinstance(scene, CeleryScene) else "ready")
        scene.worker(seconds=0.4, name="another")
        row = await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["done"] * 12
        assert row.supersessions == 0

    scene.play(act)
    assert len(scene.ledger.processes()) == (1 if isinstance(scene, CeleryScene) else 2)
    assert set(scene.ledger.executions("step").values()) == {1}


def test_an_answer_continues_the_run(scene: Scene) -> None:
    async def act(client: Any, journal: Journal) -> None:
        first = scene.worker()
        run_id = await scene.start(client, journal, "pay 5")
        row = await until_state(journal, run_id, "waiting")
        first.kill()  # a waiting run needs no worker
        await scene.engine.answer_run(client, journal, run_id, {row.pending[0].id: Allow()})
        with pytest.raises(AlreadyAnswered):
            await scene.engine.answer_run(client, journal, run_id, {row.pending[0].id: Allow()})
        scene.worker(name="another")
        await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["done"]

    scene.play(act)
    assert [*scene.ledger.executions("pay").values()] == [1]


def test_an_answer_that_does_not_come_expires(scene: Scene) -> None:
    async def act(client: Any, journal: Journal) -> None:
        scene.worker()
        run_id = await scene.start(client, journal, "pay 5", answer_within=2)
        row = await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["not_executed"]
        assert row.updated - row.created >= 2

    scene.play(act)
    assert scene.ledger.executions("pay") == {}


def test_a_run_is_cancelled_from_another_machine(scene: Scene) -> None:
    async def act(client: Any, journal: Journal) -> None:
        scene.worker(seconds=30)
        run_id = await scene.start(client, journal, "steps 8")
        await scene.until(1, "step")
        await scene.engine.cancel_run(client, journal, run_id)
        await scene.until_stopped()
        assert (await journal.run(run_id)).state == "cancelled"

    scene.play(act)
    assert scene.ledger.rows("stopped", "tool = 'step'") == [(1,)]


# Limits, counted by the tools themselves


async def runs_of_two_tenants(scene: Scene, client: Any, journal: Journal, prompt: str, number: int) -> None:
    """As many runs of each; all are answered, and every call is done."""
    ids = [
        await scene.start(client, journal, prompt, f"{tenant}-{each}", tenant=tenant)
        for each in range(number)
        for tenant in ("acme", "best")
    ]
    for run_id in ids:
        await scene.end_of(client, journal, run_id)
        assert set(await results(journal, run_id)) == {"done"}


def most(scene: Scene) -> dict[str, int]:
    """How many calls ran at the same time at most, of each tenant and of both."""
    at_once = scene.ledger.most_at_once
    return {**{each: at_once(f"tenant = '{each}'") for each in ("acme", "best")}, "both": at_once("tenant != ''")}


def test_a_tenant_has_no_more_active_runs_than_it_may_on_all_workers(scene: Scene) -> None:
    async def act(client: Any, journal: Journal) -> None:
        room: dict[str, Any] = {"children": 3} if isinstance(scene, CeleryScene) else {}
        for name in ("one", "two"):
            scene.worker(seconds=0.5, name=name, per_tenant=2, **room)
        await runs_of_two_tenants(scene, client, journal, "steps 2", 5)

    scene.play(act)
    found = most(scene)
    assert (found["acme"], found["best"]) == (2, 2)
    assert found["both"] > 2
    executions = scene.ledger.executions("step")
    assert (len(executions), set(executions.values())) == (20, {1})


def test_a_worker_drives_no_more_runs_than_it_may(with_tools: Scene) -> None:
    scene = with_tools

    async def act(client: Any, journal: Journal) -> None:
        for name in ("one", "two"):
            scene.worker(seconds=0.5, name=name, drives=2)
        await runs_of_two_tenants(scene, client, journal, "steps 2", 5)

    scene.play(act)
    assert {scene.ledger.most_at_once(f"process = {each} AND tool = 'step'") for each in scene.ledger.processes()} == {
        2
    }
    assert most(scene)["both"] > 2
    assert set(scene.ledger.executions("step").values()) == {1}


@pytest.mark.parametrize("limit", ["per_tenant", "per_tool", "per_queue"])
def test_no_more_calls_run_at_once_than_may_on_all_workers(with_tools: Scene, limit: str) -> None:
    scene = with_tools

    async def act(client: Any, journal: Journal) -> None:
        scene.worker()
        for name in ("gpu-1", "gpu-2"):
            scene.worker("tools", seconds=0.5, name=name, **{limit: 2})
        await runs_of_two_tenants(scene, client, journal, "render 4", 2)

    scene.play(act)
    found = most(scene)
    if limit == "per_tenant":
        assert (found["acme"], found["best"]) == (2, 2)
        assert found["both"] > 2
    else:
        assert found["both"] == 2
    executions = scene.ledger.executions("render")
    assert (len(executions), set(executions.values())) == (16, {1})


# Tools on other machines


def test_calls_elsewhere_run_once_though_their_run_is_killed_with_two_in_flight(with_tools: Scene) -> None:
    scene = with_tools

    async def act(client: Any, journal: Journal) -> None:
        first = scene.worker()
        scene.worker("tools", seconds=2)
        run_id = await scene.start(client, journal, "render 2", "acme-1", tenant="acme")
        await scene.until(2, "render")
        first.kill()
        scene.worker()
        await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["done", "done"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1, 1]


@pytest.mark.parametrize("executor", ["tools", "another"])
def test_a_call_whose_worker_is_killed_is_reported_and_does_not_run_again(with_tools: Scene, executor: str) -> None:
    scene = with_tools

    async def act(client: Any, journal: Journal) -> None:
        scene.worker()
        lost = scene.worker("tools", seconds=60)
        run_id = await scene.start(client, journal, "render 1", "acme-1")
        await scene.until(1, "render")
        lost.kill()
        scene.worker("tools", name=executor)
        await scene.end_of(client, journal, run_id)
        assert await results(journal, run_id) == ["unknown"]

    scene.play(act)
    assert [*scene.ledger.executions("render").values()] == [1]


def test_a_result_of_10_mb_comes_back_and_progress_and_cancellation_travel(with_tools: Scene) -> None:
    scene = with_tools

    async def act(client: Any, journal: Journal) -> None:
        scene.worker()
        scene.worker("tools")
        run_id = await scene.start(client, journal, "large")
        await scene.end_of(client, journal, run_id)
        messages = (await journal.recording(run_id)).requests[-1].messages
        assert max(len(str(message)) for message in messages) > LARGE
        run_id = await scene.start(client, journal, "slow", "s")
        async for event in journal.events(run_id):
            if isinstance(event, CallProgress):
                assert (event.message, event.done) == ("rendering", 0.5)
                break
        await scene.engine.cancel_run(client, journal, run_id)
        await scene.until_stopped()

    scene.play(act)
    assert scene.ledger.rows("tool, stopped") == [("large", 0), ("slow", 1)]


def test_a_run_that_ends_its_workers_fails_and_the_others_do_not(scene: Scene) -> None:
    """A supervisor starts a worker again when it has died; Celery starts its child processes again itself."""

    async def supervise() -> None:
        worker = None
        while True:
            if worker is None or worker.has_ended:
                with suppress(AssertionError):  # it has died before it was ready
                    worker = await asyncio.to_thread(scene.worker)
            await asyncio.sleep(0.1)

    async def act(client: Any, journal: Journal) -> None:
        await scene.start(client, journal, "crash", "bad")
        for number in range(6):
            await scene.start(client, journal, "steps 2", f"good-{number}")
        supervisor = asyncio.create_task(supervise())
        try:
            for number in range(6):
                await until_state(journal, f"good-{number}", "answered")
            while (row := await journal.run("bad")).state != "failed":
                await journal.changed(1)
        finally:
            supervisor.cancel()
        assert row.error.startswith(
            "DriversDied: 6 processes died in a row while they drove it, 3 of them with no other"
        )
        assert row.deaths == 6
        goods = [await journal.run(f"good-{number}") for number in range(6)]
        assert max(row.deaths for row in goods) <= 3  # only before it was known

    scene.play(act)
    assert set(scene.ledger.executions("step").values()) == {1}
