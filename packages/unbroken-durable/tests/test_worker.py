"""`Worker`: drives what can be driven, fairly between tenants, and survives the errors of single runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from in_loop import in_loop

from unbroken import Agent, Allow, ScriptedModel, tool
from unbroken.errors import UserError
from unbroken.models.scripted import Answer
from unbroken_durable import Journal, Progress, Worker, drive, open_journal
from unbroken_testing import Call
from unbroken_wires.messages import Assistant, Request


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else postgres_server.empty_url()


def once(*calls: Call) -> Callable[[Request], Answer]:
    """A model that makes these calls, then answers; for any number of runs at a time."""

    def answer(request: Request) -> Answer:
        return "Done." if any(isinstance(message, Assistant) for message in request.messages) else [*calls]

    return answer


def greeter() -> Agent:
    return Agent(ScriptedModel(once()))


@tool(approve=True)
def refund(order: int) -> str:
    """Refund."""
    return f"refunded {order}"


async def until(journal: Journal, state: Any, count: int) -> None:
    while len(await journal.runs(state=state)) < count:
        await journal.changed(0.1)


@in_loop
async def test_ready_runs_are_driven_also_those_that_are_started_later(url: str) -> None:
    told: list[Progress] = []
    async with await open_journal(url) as journal, await open_journal(url) as elsewhere:
        await journal.start("a", "Hi.", run_id="early", tenant="acme")
        worker = Worker({"a": Agent(ScriptedModel("Hello.", "Hello."))}, journal, on_progress=told.append)
        working = asyncio.create_task(worker.run())
        await until(elsewhere, "answered", 1)
        await elsewhere.start("a", "Hi.", run_id="late")
        await until(elsewhere, "answered", 2)
        worker.stop()
        await working
    assert [(each.what, each.run_id, each.state) for each in told] == [
        ("driving", "early", None),
        ("drove", "early", "answered"),
        ("driving", "late", None),
        ("drove", "late", "answered"),
    ]
    assert told[0].tenant == "acme"


@in_loop
async def test_a_waiting_run_is_driven_once_it_has_its_answer_or_its_time_is_over(url: str) -> None:
    agents = {"a": Agent(ScriptedModel(once(Call("refund", order=7, id="c"))), [refund])}
    async with await open_journal(url) as journal:
        await journal.start("a", "Refund.", run_id="answered")
        await journal.start("a", "Refund.", run_id="expired", answer_within=0.5)
        worker = Worker(agents, journal)
        working = asyncio.create_task(worker.run())
        await until(journal, "waiting", 2)
        await journal.answer("answered", {"c": Allow()})
        await until(journal, "answered", 2)
        worker.stop()
        await working
        results = [(await drive(agents, journal, run_id)).result for run_id in ("answered", "expired")]
        texts = [result.calls[0].result.text for result in results if result is not None]
        assert texts[0] == "refunded 7"
        assert "nobody answered in time" in texts[1]


@in_loop
async def test_the_run_of_a_dead_driver_is_taken_over_and_that_of_a_living_one_is_not(url: str) -> None:
    async with await open_journal(url) as journal:
        dying = await open_journal(url)
        for run_id in ("dead", "alive"):
            await journal.start("a", "Hi.", run_id=run_id)
        await dying.claim("dead")
        await journal.claim("alive")
        assert [row.run_id for row in await journal.drivable()] == []
        await dying.close()
        while [row.run_id for row in await journal.drivable()] != ["dead"]:
            await asyncio.sleep(0.01)  # the server notices it a moment later
        assert [row.run_id for row in await journal.drivable(orphans=False)] == []
        async with await open_journal(url) as other:
            await Worker({"a": Agent(ScriptedModel("Hello."))}, other).run_until_idle()
        assert ((await journal.run("dead")).state, (await journal.run("alive")).state) == ("answered", "running")


@in_loop
async def test_the_tenant_with_the_fewest_active_runs_comes_first(url: str) -> None:
    async with await open_journal(url) as journal:
        for number in range(4):
            await journal.start("a", "Hi.", run_id=f"big-{number}", tenant="big")
        for tenant in ("small", "tiny"):
            await journal.start("a", "Hi.", run_id=tenant, tenant=tenant)
        assert [row.run_id for row in await journal.drivable(4)] == ["big-0", "small", "tiny", "big-1"]
        await journal.claim("big-0")
        assert [row.run_id for row in await journal.drivable(3)] == ["small", "tiny", "big-1"]
        assert [row.run_id for row in await journal.drivable(per_tenant=1)] == ["small", "tiny"]
        assert [row.run_id for row in await journal.drivable(agents=["b"])] == []
        assert [row.run_id for row in await journal.drivable(agents=[])] == []


@in_loop
async def test_two_claims_at_the_same_moment_stay_within_the_limit_of_a_tenant(url: str) -> None:
    async with await open_journal(url) as journal:
        for number in range(12):
            await journal.start("a", "Hi.", run_id=f"run-{number}", tenant="acme")
        journals = [await open_journal(url) for _ in range(4)]
        claims = [journals[number % 4].claim(f"run-{number}", per_tenant=2) for number in range(12)]
        taken = [
            each for each in await asyncio.gather(*claims, return_exceptions=True) if not isinstance(each, Exception)
        ]
        assert len(taken) == 2
        for each in journals:
            await each.close()


@in_loop
async def test_an_error_of_one_run_is_reported_and_the_others_go_on(url: str) -> None:
    told: list[Progress] = []

    def broken(request: Request) -> Answer:
        if "bad" in str(request.messages):
            raise RuntimeError("no such model")
        return "Hello."

    async with await open_journal(url) as journal:
        for name in ("bad", "good"):
            await journal.start("a", name, run_id=name)
        await Worker({"a": Agent(ScriptedModel(broken))}, journal, on_progress=told.append).run_until_idle()
    ends = {each.run_id: (each.state, each.words) for each in told if each.what == "drove"}
    assert ends == {
        "bad": ("failed", "ProviderError: model `scripted:demo` failed: no such model"),
        "good": ("answered", ""),
    }


@in_loop
async def test_a_run_that_cannot_be_read_is_tried_again_later_and_does_not_end_the_worker(tmp_path: Path) -> None:
    told: list[Progress] = []
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("a", "Hi.", run_id="damaged")
        await journal.work(lambda database: database.change("UPDATE unbroken_runs SET input = '{}'"))
        await journal.start("a", "Hi.", run_id="good")
        worker = Worker({"a": greeter()}, journal, on_progress=told.append)
        working = asyncio.create_task(worker.run())
        while len([each for each in told if each.what == "error"]) < 2:
            await asyncio.sleep(0.05)
        worker.stop()
        await working
    errors = [each for each in told if each.what == "error"]
    assert [each.words for each in errors] == [
        "KeyError: 'question'; it is tried again in 1 s",
        "KeyError: 'question'; it is tried again in 2 s",
    ]


@in_loop
async def test_runs_of_an_agent_that_it_does_not_have_are_left_and_reported_once(tmp_path: Path) -> None:
    told: list[Progress] = []
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("other", "Hi.", run_id="r")
        worker = Worker({"a": greeter()}, journal, on_progress=told.append)
        working = asyncio.create_task(worker.run())
        await asyncio.sleep(1.3)
        worker.stop()
        await working
        assert ((await journal.run("r")).state, (await journal.run("r")).drives) == ("ready", 0)
    assert told == [Progress("unknown_agent", agent="other")]


@in_loop
async def test_no_more_runs_at_a_time_than_the_worker_may_drive(tmp_path: Path) -> None:
    active, most = 0, 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.02)
        active -= 1
        return "ok"

    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        for number in range(9):
            await journal.start("a", "Go.", run_id=str(number))
        agents = {"a": Agent(ScriptedModel(once(Call("work"))), [work])}
        await Worker(agents, journal, concurrency=3).run_until_idle()
        assert len(await journal.runs(state="answered")) == 9
    assert most == 3


@in_loop
async def test_a_worker_needs_agents_and_room(tmp_path: Path) -> None:
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        with pytest.raises(UserError, match="give a number from 1"):
            Worker({"a": greeter()}, journal, concurrency=0)
        with pytest.raises(UserError, match="there is no agent"):
            Worker({}, journal)
