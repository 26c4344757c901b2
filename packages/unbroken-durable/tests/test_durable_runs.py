"""Durable runs: what `drive`, `answer`, `cancel` and `events` do, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Allow, CallContext, Deny, Edit, Limits, Output, Policy, ScriptedModel, client_tool, tool
from unbroken.errors import ProviderError, UserError
from unbroken.events import CallFinished, Event, RunChanged, RunFailed, RunFinished, TextAdded, TextReplaced
from unbroken.models.scripted import Call, Fail, Say
from unbroken.tools.schedule import Schedule
from unbroken_durable import (
    AlreadyAnswered,
    Busy,
    Journal,
    Outcome,
    RunRow,
    Superseded,
    UnknownRun,
    drive,
    open_journal,
)
from unbroken_testing import run_virtual
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request

DAY = 86_400.0


@tool(effect="read")
def look(order: int) -> str:
    """Looks at an order."""
    return f"order {order} is late"


@tool(approve=True)
def refund(order: int) -> str:
    """Refunds an order."""
    return f"refunded {order}"


def support(*answers: Any, tools: Sequence[Any] = (look, refund), **options: Any) -> dict[str, Agent]:
    return {"support": Agent(ScriptedModel(*answers), list(tools), **options)}


def refunder(**options: Any) -> dict[str, Agent]:
    return support([Call("look", order=7)], [Call("refund", order=7, id="r1")], "Done.", **options)


def in_journal(tmp_path: Path, work: Callable[[Journal], Any]) -> Any:
    """On virtual time, as all runs of a test are."""

    async def main() -> Any:
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as journal:
            return await work(journal)

    return run_virtual(main)


async def events_of(journal: Journal, run_id: str) -> list[Event]:
    return [event async for event in journal.events(run_id)]


def test_a_run_goes_as_far_as_the_first_approval_and_to_its_end_after_the_answer(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = refunder()
        run_id = await journal.start("support", "Refund order 7", run_id="order-7", tenant="acme")
        assert run_id == "order-7"
        assert (await journal.run(run_id)).state == "ready"
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "waiting"
        assert outcome.result is not None
        assert [call.id for call in outcome.result.pending] == ["r1"]
        (row,) = await journal.runs(state="waiting", tenant="acme")
        assert (row.run_id, row.agent, row.tenant, row.question) == ("order-7", "support", "acme", "Refund order 7")
        assert [(call.id, call.name, call.arguments, call.needs) for call in row.pending] == [
            ("r1", "refund", {"order": 7}, "approval")
        ]
        assert await journal.runs(state="waiting", tenant="other") == []
        await journal.answer(run_id, {"r1": Allow()})
        assert (await journal.run(run_id)).state == "ready"
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "answered"
        assert outcome.result is not None
        assert outcome.result.text == "Done."
        assert [call.result.text for call in outcome.result.calls] == ["order 7 is late", "refunded 7"]
        assert (await journal.run(run_id)).state == "answered"

    in_journal(tmp_path, work)


def test_the_same_id_starts_nothing_twice_and_another_question_is_an_error(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        for _ in range(3):
            assert await journal.start("support", "Hello", run_id="a", tenant="acme") == "a"
        assert len(await journal.runs()) == 1
        with pytest.raises(UserError, match="run `a` exists already"):
            await journal.start("support", "Something else", run_id="a", tenant="acme")
        with pytest.raises(UserError, match="run `a` exists already"):
            await journal.start("support", "Hello", run_id="a", tenant="other")
        with pytest.raises(UserError, match="the id is empty"):
            await journal.start("support", "Hello", run_id="")

    in_journal(tmp_path, work)


def test_driving_a_run_that_has_ended_gives_its_result_and_asks_nobody(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = support("Hello.")
        run_id = await journal.start("support", "Hi")
        first = await drive(agents, journal, run_id)
        again = await drive(support(), journal, run_id)  # its script is empty
        assert first.result is not None
        assert again.result is not None
        assert (again.state, again.result.text, again.result.messages) == ("answered", "Hello.", first.result.messages)
        assert (again.result.usage, again.result.requests) == (first.result.usage, 1)
        assert (await journal.run(run_id)).drives == 1

    in_journal(tmp_path, work)


@dataclass
class Place:
    city: str
    people: int


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        pytest.param(Call("final_answer", city="Oslo", people=7), Place, id="as a call"),
        pytest.param(Say('{"city": "Oslo", "people": 7}'), Output(Place, via="native"), id="as text"),
    ],
)
def test_a_typed_answer_is_there_after_the_end_too(answer: Any, output: Any, tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = {"typed": Agent(ScriptedModel(answer), output=output)}
        run_id = await journal.start("typed", "Where?")
        outcomes = [await drive(agents, journal, run_id) for _ in range(2)]
        assert [each.result.output for each in outcomes if each.result is not None] == [Place("Oslo", 7)] * 2

    in_journal(tmp_path, work)


def test_a_run_that_waited_answers_by_structured_output(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        script = [Call("refund", order=7, id="r1")], Say('{"city": "Oslo", "people": 7}')
        agents = support(*script, output=Output(Place, via="native"))
        run_id = await journal.start("support", "Refund order 7")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"r1": Allow()})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.output == Place("Oslo", 7)
        assert outcome.result.calls[0].result.text == "refunded 7"

    in_journal(tmp_path, work)


def test_the_first_answer_counts_and_the_second_raises(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents, run_id = refunder(), await journal.start("support", "Refund order 7")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"r1": Deny("too late")})
        for answer in (Allow(), Deny("too late")):
            with pytest.raises(AlreadyAnswered, match="call `r1`"):
                await journal.answer(run_id, {"r1": answer})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert "too late" in outcome.result.calls[-1].result.text
        with pytest.raises(AlreadyAnswered):
            await journal.answer(run_id, {"r1": Allow()})

    in_journal(tmp_path, work)


def test_an_answer_to_nothing_or_of_a_wrong_kind_is_an_error(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents, run_id = refunder(), await journal.start("support", "Refund order 7")
        with pytest.raises(UserError, match="waiting: none"):
            await journal.answer(run_id, {"r1": Allow()})
        await drive(agents, journal, run_id)
        with pytest.raises(UserError, match=r"no call `other` waits.*`r1` \(refund\)"):
            await journal.answer(run_id, {"other": Allow()})
        for wrong in (True, "yes", None):
            with pytest.raises(UserError, match=r"use Allow\(\), Deny\(\) or Edit"):
                await journal.answer(run_id, {"r1": wrong})
        with pytest.raises(UserError, match="a dict by call id"):
            await journal.answer(run_id, {})
        with pytest.raises(UnknownRun, match="no run `missing`"):
            await journal.answer("missing", {"r1": Allow()})
        assert (await journal.run(run_id)).state == "waiting"

    in_journal(tmp_path, work)


def test_of_two_waiting_calls_one_may_be_answered_first(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = support([Call("refund", order=1, id="a"), Call("refund", order=2, id="b")], "Both are done.")
        run_id = await journal.start("support", "Refund both")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"b": Edit({"order": 3})})
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "waiting"
        (row,) = await journal.runs(state="waiting")
        assert [call["id"] for call in row.pending] == ["a"]
        with pytest.raises(AlreadyAnswered):
            await journal.answer(run_id, {"b": Allow()})
        await journal.answer(run_id, {"a": Allow()})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.calls[0].result.text == "refunded 1"
        assert "refunded 3" in outcome.result.calls[1].result.text

    in_journal(tmp_path, work)


def test_an_answer_that_comes_while_the_run_is_driven_is_not_lost(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = support([Call("refund", order=1, id="a"), Call("refund", order=2, id="b")], "Both are done.")
        run_id = await journal.start("support", "Refund both")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"b": Allow()})
        claim = await journal.claim(run_id)  # another process drives it, and dies
        assert (await journal.run(run_id)).state == "running"
        await journal.answer(run_id, {"a": Deny("no")})
        assert not isinstance(claim, RunRow)
        await journal.leave(claim, "ready")
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "answered"

    in_journal(tmp_path, work)


def test_a_run_that_waits_for_a_call_that_has_its_answer_is_ready(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        @tool(approve=True, overlap=True)
        async def refund(order: int) -> str:
            """Refunds, whatever else runs."""
            return f"refunded {order}"

        @tool(approve=True, overlap=True)
        async def answer_the_other() -> str:
            """Answers the other call while the run is driven."""
            await journal.answer(run_id, {"a": Allow()})
            return "answered"

        answers = [Call("refund", order=1, id="a"), Call("answer_the_other", id="b")]
        agents = support(answers, "Both are done.", tools=[refund, answer_the_other])
        run_id = await journal.start("support", "Refund both")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"b": Allow()})
        assert (await drive(agents, journal, run_id)).state == "waiting"  # it did not know of the answer
        assert (await journal.run(run_id)).state == "ready"
        assert (await drive(agents, journal, run_id)).state == "answered"

    in_journal(tmp_path, work)


def test_a_tool_that_runs_at_the_client_waits_for_its_result(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        where = client_tool("where", "Where the user is.", {"type": "object", "properties": {}})
        agents = support([Call("where", id="w")], "In Oslo.", tools=[where])
        run_id = await journal.start("support", "Where am I?")
        await drive(agents, journal, run_id)
        (row,) = await journal.runs(state="waiting")
        assert row.pending[0]["needs"] == "result"
        with pytest.raises(UserError, match="use the result of the call"):
            await journal.answer(run_id, {"w": Allow()})
        await journal.answer(run_id, {"w": "Oslo"})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.calls[0].result.text == "Oslo"

    in_journal(tmp_path, work)


def test_an_agent_with_an_approver_is_asked_and_does_not_wait(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = refunder(on_approval=lambda call: Deny("never"))  # pyright: ignore[reportUnknownLambdaType]
        run_id = await journal.start("support", "Refund order 7")
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "answered"

    in_journal(tmp_path, work)


def test_an_approval_comes_after_three_days_in_which_no_process_lives(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("support", "Refund order 7", limits=Limits(seconds=60))
        await drive(refunder(), journal, run_id)

    in_journal(tmp_path, work)

    async def later(journal: Journal) -> Outcome:
        await asyncio.sleep(3 * DAY)
        (row,) = await journal.runs(state="waiting")
        await journal.answer(row.run_id, {"r1": Allow()})
        return await drive(support("Done."), journal, row.run_id)

    outcome = in_journal(tmp_path, later)
    assert outcome.result.text == "Done."
    assert outcome.result.stop_reason == "answered"  # the days did not count


def test_a_run_that_nobody_answers_in_time_goes_on_with_its_calls_denied(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = refunder()
        run_id = await journal.start("support", "Refund order 7", answer_within=2 * DAY)
        outcome = await drive(agents, journal, run_id)
        assert outcome.expires is not None
        await asyncio.sleep(DAY)
        again = await drive(agents, journal, run_id)
        assert (again.state, again.expires) == ("waiting", outcome.expires)
        assert await journal.drivable() == []
        await asyncio.sleep(DAY + 1)
        assert [row.run_id for row in await journal.drivable()] == [run_id]
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "answered"
        assert outcome.result is not None
        assert "nobody answered in time" in outcome.result.calls[-1].result.text

    in_journal(tmp_path, work)


# Who may drive


class SlowModel:
    """Its answer comes when it is let go."""

    name = "slow"

    def __init__(self, *answers: Any) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self._model = ScriptedModel(*answers)

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self.asked.set()
        await self.go.wait()
        async for deltas in self._model.stream(request):
            yield deltas


def test_a_living_driver_keeps_its_run_and_a_second_one_is_told_so(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        model = SlowModel("Hello.")
        agents = {"slow": Agent(model)}
        run_id = await journal.start("slow", "Hi")
        first = asyncio.create_task(drive(agents, journal, run_id))
        await model.asked.wait()
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as other:
            for each in (journal, other):
                with pytest.raises(Busy, match="another driver has it, and is alive"):
                    await drive(agents, each, run_id)
        model.go.set()
        assert (await first).state == "answered"

    in_journal(tmp_path, work)


def test_a_driver_that_takes_over_supersedes_the_first_whose_next_append_is_refused(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        model = SlowModel("I am the first.")
        run_id = await journal.start("slow", "Hi")
        first = asyncio.create_task(drive({"slow": Agent(model)}, journal, run_id))
        await model.asked.wait()
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as other:
            outcome = await drive({"slow": Agent(ScriptedModel("I am the second."))}, other, run_id, take_over=True)
            assert outcome.state == "answered"
            model.go.set()
            with pytest.raises(Superseded, match="taken over by another driver"):
                await first
            assert outcome.result is not None
            assert outcome.result.text == "I am the second."
            events = await events_of(other, run_id)
            assert "".join(event.text for event in events if isinstance(event, TextAdded)) == "I am the second."
            assert (await other.run(run_id)).supersessions == 1

    in_journal(tmp_path, work)


def test_a_superseded_driver_notices_it_though_it_has_nothing_to_store(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        model = SlowModel("Never said.")
        run_id = await journal.start("slow", "Hi")
        first = asyncio.create_task(drive({"slow": Agent(model)}, journal, run_id))
        await model.asked.wait()
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as other:
            await drive({"slow": Agent(ScriptedModel("Done."))}, other, run_id, take_over=True)
            with pytest.raises(Superseded):
                await first  # nobody lets its model go

    in_journal(tmp_path, work)


def test_a_driver_that_is_cancelled_leaves_the_run_to_the_next_one(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        model = SlowModel("Never said.")
        run_id = await journal.start("slow", "Hi")
        first = asyncio.create_task(drive({"slow": Agent(model)}, journal, run_id))
        await model.asked.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await journal.run(run_id)).state == "ready"
        outcome = await drive({"slow": Agent(ScriptedModel("Done."))}, journal, run_id)
        assert outcome.state == "answered"
        assert not any(isinstance(event, RunFailed) for event in await events_of(journal, run_id))

    in_journal(tmp_path, work)


def test_a_run_of_an_agent_that_is_not_given_stays_as_it_is(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("other", "Hi")
        with pytest.raises(UserError, match="agent `other`, which is not among those given: `support`"):
            await drive(support("x"), journal, run_id)
        assert (await journal.run(run_id)).state == "ready"
        with pytest.raises(UnknownRun):
            await drive(support("x"), journal, "missing")

    in_journal(tmp_path, work)


# Ends


def test_a_run_that_failed_can_be_driven_again(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("support", "Hi")
        failing = support([Call("look", order=1)], Fail(ProviderError("the provider is down", status=401)))
        outcome = await drive(failing, journal, run_id)
        assert (outcome.state, outcome.error) == ("failed", "ProviderError: the provider is down")
        row = await journal.run(run_id)
        assert (row.state, row.error) == ("failed", "ProviderError: the provider is down")
        outcome = await drive(support("Now it works."), journal, run_id)
        assert outcome.state == "answered"
        assert outcome.result is not None
        assert [call.result.text for call in outcome.result.calls] == ["order 1 is late"]
        assert (await journal.run(run_id)).error == ""

    in_journal(tmp_path, work)


def test_a_cancelled_run_stops_its_driver_and_its_calls(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        stopped: list[str] = []

        @tool
        async def work_long() -> str:
            """Works."""
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                stopped.append("cancelled")
                raise
            return "done"

        run_id = await journal.start("support", "Work")
        driving = asyncio.create_task(drive(support([Call("work_long")], "x", tools=[work_long]), journal, run_id))
        await asyncio.sleep(1)
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as other:
            row = await other.cancel(run_id, "it is not needed any more")
            assert (row.state, row.error) == ("cancelled", "it is not needed any more")
        outcome = await driving
        assert (outcome.state, outcome.error, stopped) == ("cancelled", "it is not needed any more", ["cancelled"])
        assert (await drive(support(), journal, run_id)).state == "cancelled"
        last = (await events_of(journal, run_id))[-1]
        assert isinstance(last, RunFailed)
        assert (last.error, last.message) == ("CancelledError", "it is not needed any more")
        with pytest.raises(UserError, match="cannot be cancelled: it has ended"):
            await journal.cancel(run_id)

    in_journal(tmp_path, work)


def test_a_run_that_nobody_has_driven_and_one_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        fresh = await journal.start("support", "Hi")
        waiting = await journal.start("support", "Refund order 7")
        await drive(refunder(), journal, waiting)
        for run_id in (fresh, waiting):
            await journal.cancel(run_id)
            assert (await drive(support(), journal, run_id)).state == "cancelled"
        assert await events_of(journal, fresh) == []
        with pytest.raises(UserError, match="no call `r1` waits"):
            await journal.answer(waiting, {"r1": Allow()})

    in_journal(tmp_path, work)


def test_time_and_cost_count_over_all_drives(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        @tool(effect="read")
        async def wait() -> str:
            """Takes 40 seconds."""
            await asyncio.sleep(20)
            return "waited"

        answers = [Call("wait"), Call("refund", order=1, id="a")]
        agents = support(answers, [Call("wait")], [Call("wait")], "Time is up.", tools=[wait, refund])
        run_id = await journal.start("support", "Go", limits=Limits(seconds=30))
        outcome = await drive(agents, journal, run_id)
        assert outcome.state == "waiting"
        await asyncio.sleep(1000)
        await journal.answer(run_id, {"a": Allow()})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.stop_reason == "time_limit"
        assert 30 <= outcome.result.seconds < 60

    in_journal(tmp_path, work)


# Watching


def test_events_are_numbered_from_one_without_gaps_and_can_be_read_from_any_number(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents, run_id = refunder(), await journal.start("support", "Refund order 7")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"r1": Allow()})
        await drive(agents, journal, run_id)
        events = await events_of(journal, run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1], RunFinished)
        for after in range(len(events) + 1):
            assert [event async for event in journal.events(run_id, after=after)] == events[after:]

    in_journal(tmp_path, work)


def test_events_follow_a_waiting_run_and_end_with_it(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents, run_id = refunder(), await journal.start("support", "Refund order 7")
        seen: list[Event] = []

        async def watch() -> None:
            async for event in journal.events(run_id):
                seen.append(event)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(1)
        assert seen == []
        await drive(agents, journal, run_id)
        await asyncio.sleep(1)
        assert isinstance(seen[-1], RunFinished)
        assert not watching.done()
        await journal.answer(run_id, {"r1": Allow()})
        await drive(agents, journal, run_id)
        await asyncio.wait_for(watching, 5)
        assert seen == await events_of(journal, run_id)

    in_journal(tmp_path, work)


def test_the_events_of_a_run_can_be_read_with_a_time_out_and_a_heartbeat(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = support([Say("One two three four five six seven eight nine ten.", over=10)])
        run_id = await journal.start("support", "Count")
        driving = asyncio.create_task(drive(agents, journal, run_id))
        events = journal.events(run_id)
        seen: list[Event] = []
        for _ in range(20):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    seen.append(await anext(events))
        beating = journal.events(run_id, after=seen[-1].seq).heartbeat(0.3)
        rest = [event async for event in beating]
        await driving
        assert seen + [event for event in rest if event is not None] == await events_of(journal, run_id)

    in_journal(tmp_path, work)


def test_the_events_of_a_run_have_one_reader(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        events = journal.events(await journal.start("support", "Refund order 7"))
        reading = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        with pytest.raises(UserError, match="has a reader already"):
            await anext(events)
        reading.cancel()

    in_journal(tmp_path, work)


def test_text_is_seen_while_the_model_still_writes(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        agents = support([Say("One two three four five six seven eight nine ten.", over=10)])
        run_id = await journal.start("support", "Count")
        driving = asyncio.create_task(drive(agents, journal, run_id))
        first = None
        async for event in journal.events(run_id):
            if isinstance(event, TextAdded):
                first = event
                break
        assert first is not None
        assert not driving.done()
        await driving

    in_journal(tmp_path, work)


@pytest.mark.parametrize("second", ["One two three four five.", "Another answer."])
def test_an_answer_that_was_cut_is_asked_for_again_and_nothing_is_told_twice(second: str, tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        run_id = await journal.start("support", "Count")
        driving = asyncio.create_task(drive(support([Say("One two three four five.", over=10)]), journal, run_id))
        await asyncio.sleep(5)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        before = [event async for event in watched_for(journal, run_id, 1)]
        told = "".join(event.text for event in before if isinstance(event, TextAdded))
        assert told
        assert "One two three four five.".startswith(told)
        assert told != "One two three four five."
        await drive(support(second), journal, run_id)
        shown: dict[int, str] = {}
        for event in await events_of(journal, run_id):
            if isinstance(event, TextAdded):
                shown[event.turn] = shown.get(event.turn, "") + event.text
            elif isinstance(event, TextReplaced):
                shown[event.turn] = event.text
        assert shown == {0: second}

    in_journal(tmp_path, work)


async def watched_for(journal: Journal, run_id: str, seconds: float) -> AsyncIterator[Event]:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for event in journal.events(run_id):
                yield event


# The agent has changed


def test_what_has_changed_is_reported_and_the_run_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @tool(effect="read", name="look")
    def look_closely(order: int, depth: int = 1) -> str:
        """Looks closely at an order."""
        return "late"

    async def work(journal: Journal) -> None:
        run_id = await journal.start("support", "Refund order 7")
        outcome = await drive(refunder(instructions="Be kind."), journal, run_id)
        assert outcome.changed == ()
        await journal.answer(run_id, {"r1": Allow()})
        changed = support(
            "Done.", tools=[look_closely], instructions="Be strict.", schedule=Schedule.SEQUENTIAL, guidance=False
        )
        outcome = await drive(changed, journal, run_id)
        assert outcome.state == "answered"
        assert outcome.changed == (
            "the schedule is `sequential`, it was `eager`",
            "the instructions are different",
            "tool `refund` is gone",
            "tool `look` has changed: description, parameters",
        )
        assert outcome.result is not None
        gone = outcome.result.calls[-1].result
        assert gone.error
        assert "refund" in gone.text
        (event,) = [event for event in await events_of(journal, run_id) if isinstance(event, RunChanged)]
        assert event.changes == list(outcome.changed)

    in_journal(tmp_path, work)
    assert "continues with changes: the schedule is `sequential`" in caplog.text


# What is stored


def test_a_result_of_ten_megabytes_is_stored_once_and_comes_back(tmp_path: Path) -> None:
    size = 10_000_000

    async def work(journal: Journal) -> None:
        @tool(effect="write")
        async def fetch(part: int) -> str:
            """Fetches."""
            return "x" * size

        answers = [Call("fetch", part=1), Call("fetch", part=2)], [Call("refund", order=1, id="a")], "Fetched."
        agents = support(*answers, tools=[fetch, refund], policy=Policy(result_limit=2 * size))
        run_id = await journal.start("support", "Fetch")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"a": Allow()})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert [len(call.result.text) for call in outcome.result.calls] == [size, size, 10]
        ends = [event for event in await events_of(journal, run_id) if isinstance(event, CallFinished)]
        assert [len(event.text) for event in ends] == [size, size, 10]

    in_journal(tmp_path, work)
    stored = sum(file.stat().st_size for file in tmp_path.glob("runs.db*") if file.is_file())
    assert stored < 2.5 * size  # the log of the database may hold it once more


def test_two_thousand_calls_in_one_run(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        answers = [[Call("look", order=100 * n + at) for at in range(100)] for n in range(20)]
        agents = support(*answers, [Call("refund", order=1, id="a")], "All are late.")
        run_id = await journal.start("support", "Look at all", limits=Limits(rounds=30))
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"a": Allow()})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert len(outcome.result.calls) == 2001
        assert outcome.result.calls[1999].result.text == "order 1999 is late"

    in_journal(tmp_path, work)


def test_secrets_are_masked_in_everything_that_is_stored(tmp_path: Path) -> None:
    secret = "sk-live-0123456789abcdef"

    async def work(journal: Journal) -> None:
        @tool(approve=True)
        async def send(token: str) -> str:
            """Sends."""
            return f"sent {token}"

        async with await open_journal(f"sqlite:///{tmp_path / 'secret.db'}", secrets=[secret]) as masked:
            agents = support([Say(f"I use {secret}. "), Call("send", token=secret, id="a")], "x", tools=[send])
            run_id = await masked.start("support", "Send it")
            await drive(agents, masked, run_id)
            (row,) = await masked.runs()
            assert row.pending[0]["arguments"] == {"token": "***"}

    in_journal(tmp_path, work)
    assert not [file for file in tmp_path.glob("secret.db*") if file.is_file() and secret.encode() in file.read_bytes()]


def test_a_recording_of_a_run_is_exported_and_replays(tmp_path: Path) -> None:
    async def work(journal: Journal) -> Path:
        run_id = await journal.start("support", "Is order 7 late?", run_id="order/7")
        await drive(support([Call("look", order=7)], "Done."), journal, run_id)
        recording = await journal.recording(run_id)
        assert recording.run == "order/7"
        return await journal.export(run_id, tmp_path)

    path = in_journal(tmp_path, work)
    assert path.name == "order_7-5d4be22f.jsonl"
    result = support()["support"].replay(path)
    assert (result.text, result.calls[0].result.text) == ("Done.", "order 7 is late")


def test_the_key_of_a_call_is_the_same_in_every_drive(tmp_path: Path) -> None:
    keys: list[str] = []

    async def work(journal: Journal) -> None:
        @tool(effect="read")
        async def key(context: CallContext[Any]) -> str:
            """Its key."""
            keys.append(context.key)
            if len(keys) == 1:
                asyncio.get_running_loop().call_soon(driving.cancel)
                await asyncio.sleep(1)
            return "ok"

        agents = support([Call("key")], "Done.", tools=[key])
        run_id = await journal.start("support", "Key", run_id="r")
        driving = asyncio.create_task(drive(agents, journal, run_id))
        with pytest.raises(asyncio.CancelledError):
            await driving
        await drive(support("Done.", tools=[key]), journal, run_id)  # its first answer is in the journal

    in_journal(tmp_path, work)
    assert len(keys) == 2
    assert keys[0] == keys[1]


# Opening


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/runs", "no journal can be opened at a URL of the kind `mysql`"),
        ("sqlite:///", "names no file"),
        ("sqlite:////proc/nowhere/runs.db", "cannot be opened"),
        ("sqlite:///runs.db?mode=ro", "the only setting"),
    ],
)
def test_a_journal_that_cannot_be_opened_is_named(url: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run_virtual(lambda: open_journal(url))


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        await journal.close()
        with pytest.raises(UserError, match="the journal is closed"):
            await journal.runs()

    in_journal(tmp_path, work)


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        await journal.work(lambda database: database.change("UPDATE unbroken_version SET version = 99"))

    in_journal(tmp_path, work)
    with pytest.raises(UserError, match="a journal of a newer version"):
        in_journal(tmp_path, lambda journal: journal.runs())
