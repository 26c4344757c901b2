"""Tools with a queue: their calls are jobs in the journal, and run wherever an engine carries them. The engine of these
tests starts a task; packages/unbroken-durable/tests/engines has real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import postgres_server
import pytest
from in_loop import in_loop

from unbroken import Agent, CallContext, Limits, Policy, ScriptedModel, Tool, tool
from unbroken.errors import InvalidTool, UserError
from unbroken.events import CallProgress, Event
from unbroken.models.scripted import Call
from unbroken_durable import Journal, Outcome, drive, open_journal
from unbroken_durable.jobs import Job, JobClaim, JobLimits, claim_job
from unbroken_durable.remote_tools import JobRunner, RemoteTools
from unbroken_testing import run_virtual
from unbroken_wires.messages import Usage


class InTasks(RemoteTools):
    """An engine that runs each job in a task of this process."""

    def __init__(self, journal: Journal, runner: JobRunner) -> None:
        super().__init__(journal)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._runner = runner

    async def submit(self, job: Job) -> None:
        if job.key not in self.tasks:
            self.tasks[job.key] = asyncio.create_task(self._run(job.key))

    async def _run(self, key: str) -> None:
        while await self._runner.run(key) == "full":
            await self.journal.changed(1)


def in_journal(tmp_path: Path, work: Callable[[Journal], Any]) -> Any:
    async def main() -> Any:
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as journal:
            return await work(journal)

    return run_virtual(main)


async def ask(journal: Journal, *tools: Tool, calls: int = 1, **options: Any) -> tuple[Outcome, list[Event], InTasks]:
    """Drives a run that calls the first tool so many times."""
    engine = InTasks(journal, JobRunner(journal, tools, options.pop("limits", None), options.pop("deps", None)))
    model = ScriptedModel([Call(tools[0].name, number=each, id=f"c{each}") for each in range(calls)], "Done.")
    agents = {"a": Agent(model, tools, middleware=[engine], **options)}
    run_id = await journal.start("a", "Go.", run_id="r", tenant="acme")
    outcome = await drive(agents, journal, run_id)
    return outcome, list((await journal.recording(run_id)).events), engine


def texts(outcome: Outcome) -> list[str]:
    assert outcome.result is not None
    return [call.result.text for call in outcome.result.calls]


async def jobs_left(journal: Journal) -> int:
    return await journal.work(lambda database: database.query("SELECT COUNT(*) FROM unbroken_jobs")[0][0])


def test_without_the_middleware_a_tool_with_a_queue_runs_here() -> None:
    @tool(queue="gpu")
    def render(number: int) -> str:
        return f"picture {number}"

    result = run_virtual(Agent(ScriptedModel([Call("render", number=1)], "Done."), [render]).run("Go."))
    assert [call.result.text for call in result.calls] == ["picture 1"]


def test_a_queue_has_a_name() -> None:
    with pytest.raises(InvalidTool, match="queue is empty"):
        tool(name="render", queue="")(lambda: None)


def test_a_call_runs_at_the_worker_and_its_progress_and_tokens_come_back(tmp_path: Path) -> None:
    seen: list[CallContext[Any]] = []

    @tool(queue="gpu")
    async def render(number: int, context: CallContext[str]) -> str:
        seen.append(context)
        context.report("half", 0.5)
        context.spend(Usage(input_tokens=3, output_tokens=4))
        return f"{context.deps} {number}"

    async def work(journal: Journal) -> None:
        outcome, events, engine = await ask(journal, render, deps="the GPU")
        assert texts(outcome) == ["the GPU 0"]
        assert [(event.message, event.done) for event in events if isinstance(event, CallProgress)] == [("half", 0.5)]
        assert [*engine.tasks] == [seen[0].key]
        assert outcome.result is not None
        assert outcome.result.usage.input_tokens >= 3
        assert await jobs_left(journal) == 0

    in_journal(tmp_path, work)


def test_large_results_come_back_as_far_as_the_policy_allows(tmp_path: Path) -> None:
    @tool(queue="gpu")
    def render(number: int) -> str:
        return "x" * 300_000

    async def work(journal: Journal) -> None:
        outcome, _, _ = await ask(journal, render, policy=Policy(result_limit=400_000))
        assert texts(outcome) == ["x" * 300_000]

    in_journal(tmp_path, work)


def test_the_time_out_travels_and_a_failure_is_a_result(tmp_path: Path) -> None:
    @tool(queue="gpu", timeout=2)
    async def render(number: int) -> str:
        if number == 0:
            raise ValueError("no such scene")
        await asyncio.sleep(60)
        return "late"

    async def work(journal: Journal) -> None:
        outcome, _, _ = await ask(journal, render, calls=2)
        assert texts(outcome) == ["Error: no such scene", "Error: Execution timeout after 2s"]

    in_journal(tmp_path, work)


def test_the_time_out_does_not_count_in_the_queue(tmp_path: Path) -> None:
    @tool(queue="gpu", timeout=20, overlap=True)
    async def render(number: int) -> str:
        await asyncio.sleep(15)
        return f"picture {number}"

    async def work(journal: Journal) -> None:
        outcome, _, _ = await ask(journal, render, calls=4, limits=JobLimits(per_queue=1))
        assert texts(outcome) == [f"picture {number}" for number in range(4)]
        assert outcome.result is not None
        assert outcome.result.seconds >= 60

    in_journal(tmp_path, work)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (JobLimits(), 6),
        (JobLimits(per_queue=3), 3),
        (JobLimits(per_tool=2), 2),
        (JobLimits(per_tool={"render": 1, "other": 5}), 1),
        (JobLimits(per_tenant=2), 2),
    ],
)
def test_limits_hold(tmp_path: Path, limits: JobLimits, most: int) -> None:
    running = [0, 0]

    @tool(queue="gpu", overlap=True)
    async def render(number: int) -> str:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(1)
        running[0] -= 1
        return "done"

    async def work(journal: Journal) -> None:
        outcome, _, _ = await ask(journal, render, calls=6, limits=limits)
        assert texts(outcome) == ["done"] * 6

    in_journal(tmp_path, work)
    assert running == [0, most]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="nothing would run"):
        JobLimits(per_tool={"render": 0})


def test_a_driver_that_leaves_lets_the_call_continue_and_the_next_one_has_its_result(tmp_path: Path) -> None:
    ran: list[int] = []

    @tool(queue="gpu", timeout=60)
    async def render(number: int) -> str:
        ran.append(number)
        await asyncio.sleep(10)
        return "picture"

    async def work(journal: Journal) -> None:
        engine = InTasks(journal, JobRunner(journal, [render]))
        agents = {"a": Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])}
        run_id = await journal.start("a", "Go.")
        first = asyncio.create_task(drive(agents, journal, run_id))
        while not ran:
            await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.wait([first])
        assert (await journal.run(run_id)).state == "ready"
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "answered"
        assert texts(outcome) == ["picture"]

    in_journal(tmp_path, work)
    assert ran == [1]


@pytest.mark.parametrize("how", ["cancel", "limit"])
def test_the_cancellation_of_a_run_and_its_time_limit_stop_the_call(tmp_path: Path, how: str) -> None:
    stopped: list[str] = []

    @tool(queue="gpu", timeout=600)
    async def render(number: int) -> str:
        try:
            await asyncio.sleep(500)
        except asyncio.CancelledError:
            stopped.append("stopped")
            raise
        return "late"

    async def work(journal: Journal) -> None:
        engine = InTasks(journal, JobRunner(journal, [render]))
        agents = {"a": Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])}
        limits = Limits(seconds=5) if how == "limit" else None
        run_id = await journal.start("a", "Go.", limits=limits)
        driving = asyncio.create_task(drive(agents, journal, run_id))
        await asyncio.sleep(3)
        if how == "cancel":
            await journal.cancel(run_id)
        outcome = await driving
        assert outcome.state == ("cancelled" if how == "cancel" else "answered")
        await asyncio.sleep(2)

    in_journal(tmp_path, work)
    assert stopped == ["stopped"]


def found(arguments: dict[str, Any], key: str) -> str:
    return f"found {key[:1]}"


@pytest.mark.parametrize(
    ("settings", "result"),
    [
        ({}, "outcome unknown"),
        ({"effect": "read"}, "picture"),
        ({"after_crash": "rerun"}, "picture"),
        ({"after_crash": found}, "found r"),
    ],
)
def test_after_crash_decides_about_a_call_whose_worker_died(
    tmp_path: Path, settings: Mapping[str, Any], result: str
) -> None:
    @tool(queue="gpu", **settings)
    async def render(number: int) -> str:
        return "picture"

    class DiesFirst(InTasks):
        """A worker takes the job and is never heard of again. A second one gets it then."""

        async def submit(self, job: Job) -> None:
            assert isinstance(await journal_claim(self.journal, job.key), JobClaim)
            await super().submit(job)

    async def journal_claim(journal: Journal, key: str) -> object:
        return await journal.work(lambda database: claim_job(database, key, JobLimits()))

    async def work(journal: Journal) -> None:
        engine = DiesFirst(journal, JobRunner(journal, [render]))
        agents = {"a": Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])}
        outcome = await drive(agents, journal, await journal.start("a", "Go.", run_id="r"))
        assert result in texts(outcome)[0]

    in_journal(tmp_path, work)


def test_a_worker_without_the_tool_says_so(tmp_path: Path) -> None:
    @tool(queue="gpu")
    async def render(number: int) -> str:
        return "picture"

    @tool
    async def other() -> str:
        return "other"

    async def work(journal: Journal) -> None:
        engine = InTasks(journal, JobRunner(journal, [other]))
        agents = {"a": Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])}
        outcome = await drive(agents, journal, await journal.start("a", "Go."))
        assert texts(outcome) == ["Error: the workers of queue `gpu` have no tool `render`; they have: other"]

    in_journal(tmp_path, work)


@in_loop
async def test_a_report_that_a_database_cannot_store_as_it_is_costs_no_result() -> None:
    @tool(queue="gpu")
    async def render(number: int, context: CallContext[Any]) -> str:
        context.report("a\0b\ud83d")
        return "picture"

    async with await open_journal(postgres_server.empty_url()) as journal:
        outcome, events, _ = await ask(journal, render)
        assert texts(outcome) == ["picture"]
        assert [event.message for event in events if isinstance(event, CallProgress)] == ["a\ufffdb\ufffd"]


def test_a_report_that_is_refused_costs_no_result(tmp_path: Path) -> None:
    @tool(queue="gpu")
    async def render(number: int, context: CallContext[Any]) -> str:
        context.report(cast("str", object()))
        return "picture"

    async def work(journal: Journal) -> None:
        outcome, _, _ = await ask(journal, render)
        assert texts(outcome) == ["picture"]

    in_journal(tmp_path, work)


@in_loop
async def test_a_result_is_stored_after_an_outage_that_is_longer_than_the_patience() -> None:
    url = postgres_server.empty_url()

    @tool(queue="gpu")
    async def render(number: int) -> str:
        postgres_server.close_database(url)
        asyncio.get_running_loop().call_later(1.5, postgres_server.open_database, url)
        return "picture"

    async with await open_journal(url) as journal, await open_journal(url, patience=0.1) as elsewhere:
        engine = InTasks(journal, JobRunner(elsewhere, [render]))
        agents = {"a": Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])}
        outcome = await drive(agents, journal, await journal.start("a", "Go."))
        assert texts(outcome) == ["picture"]


def test_only_durable_runs_send_calls_elsewhere(tmp_path: Path) -> None:
    @tool(queue="gpu")
    async def render(number: int) -> str:
        return "picture"

    async def work(journal: Journal) -> None:
        engine = InTasks(journal, JobRunner(journal, [render]))
        agent = Agent(ScriptedModel([Call("render", number=1)], "Done."), [render], middleware=[engine])
        result = await agent.run("Go.")
        assert "only durable runs send calls to other machines" in result.calls[0].result.text

    in_journal(tmp_path, work)
