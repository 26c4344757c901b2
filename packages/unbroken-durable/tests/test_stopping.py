"""A driver that is told to stop: running calls finish, nothing new starts, and the next driver goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_loop import in_loop

from unbroken import Agent, Schedule, ScriptedModel, tool
from unbroken.events import CallStarted, TextAdded
from unbroken.models.scripted import Pause
from unbroken_durable import Journal, Outcome, drive, open_journal
from unbroken_testing import Call, Say


class Shop:
    """Tools that wait until the test lets them go on, and a ledger of what they did."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.done: list[str] = []

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.began.set()
            await self.may_end.wait()
            self.done.append(f"pay {amount}")
            return f"paid {amount}"

        @tool
        async def ship(order: int) -> str:
            """Ship."""
            self.done.append(f"ship {order}")
            return f"shipped {order}"

        self.tools = [pay, ship]

    def agent(self, *answers: Any, schedule: Schedule = Schedule.EAGER) -> Agent:
        return Agent(ScriptedModel(*answers), self.tools, schedule=schedule)


async def stopped_in_payment(journal: Journal, shop: Shop, agent: Agent) -> Outcome:
    stop = asyncio.Event()
    await journal.start("shop", "Pay and ship.", run_id="r")
    driving = asyncio.create_task(drive({"shop": agent}, journal, "r", stop=stop))
    await shop.began.wait()
    stop.set()
    await asyncio.sleep(0)
    assert not driving.done()
    shop.may_end.set()
    return await driving


@pytest.mark.parametrize("schedule", [*Schedule])
@in_loop
async def test_a_running_call_finishes_and_the_next_one_is_left_to_another_driver(
    tmp_path: Path, schedule: Schedule
) -> None:
    shop = Shop()
    answers = ([Call("pay", amount=5), Call("ship", order=7)], "Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        outcome = await stopped_in_payment(journal, shop, shop.agent(*answers, schedule=schedule))
        assert (outcome.state, outcome.result) == ("ready", None)
        assert "pay 5" in shop.done
        assert (await journal.run("r")).state == "ready"

        outcome = await drive({"shop": shop.agent(*answers[1:], schedule=schedule)}, journal, "r")
        assert outcome.result is not None
        assert (outcome.state, outcome.result.text) == ("answered", "Done.")
        assert sorted(shop.done) == ["pay 5", "ship 7"]
        assert [call.result.text for call in outcome.result.calls] == ["paid 5", "shipped 7"]
        events = [event async for event in journal.events("r")]
        assert [event.seq for event in events] == [*range(1, len(events) + 1)]
        assert [event.name for event in events if isinstance(event, CallStarted)] == ["pay", "ship"]


@in_loop
async def test_the_result_of_a_call_is_kept_although_another_start_was_held_back_before_it_ended(
    tmp_path: Path,
) -> None:
    """`ship` waits for the first look only: it would start while the second one is still running."""
    shop, second = Shop(), asyncio.Event()

    @tool(effect="read", key=lambda arguments: arguments["order"])
    async def look(order: int) -> str:
        """Look."""
        if order == 2:
            shop.began.set()
        await (shop.may_end if order == 1 else second).wait()
        shop.done.append(f"look {order}")
        return f"order {order}"

    @tool(key=lambda arguments: arguments["order"])
    async def ship(order: int) -> str:
        """Ship."""
        shop.done.append(f"ship {order}")
        return f"shipped {order}"

    answers = ([Call("look", order=1), Call("look", order=2), Call("ship", order=1)], "Done.")
    stop = asyncio.Event()
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("shop", "Go.", run_id="r")
        agents = {"shop": Agent(ScriptedModel(*answers), [look, ship])}
        driving = asyncio.create_task(drive(agents, journal, "r", stop=stop))
        await shop.began.wait()
        stop.set()
        shop.may_end.set()
        while "look 1" not in shop.done:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not driving.done()
        second.set()
        assert (await driving).state == "ready"
        assert shop.done == ["look 1", "look 2"]
        outcome = await drive({"shop": Agent(ScriptedModel("Done."), [look, ship])}, journal, "r")
        assert outcome.state == "answered"
        assert shop.done == ["look 1", "look 2", "ship 1"]
        events = [event async for event in journal.events("r")]
        assert [event.seq for event in events] == [*range(1, len(events) + 1)]


@in_loop
async def test_no_request_is_sent_after_the_stop(tmp_path: Path) -> None:
    shop = Shop()
    model = ScriptedModel([Call("pay", amount=5)], "Done.")
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        outcome = await stopped_in_payment(journal, shop, Agent(model, shop.tools))
        assert (outcome.state, len(model.requests)) == ("ready", 1)


@in_loop
async def test_a_driver_that_waits_for_the_model_stops_at_once(tmp_path: Path) -> None:
    stop = asyncio.Event()
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("shop", "Go.", run_id="r")
        slow = Agent(ScriptedModel([Say("Hel"), Pause(600)]))
        driving = asyncio.create_task(drive({"shop": slow}, journal, "r", stop=stop))
        async for event in journal.events("r"):
            if isinstance(event, TextAdded):
                break
        stop.set()
        assert (await driving).state == "ready"
        outcome = await drive({"shop": Agent(ScriptedModel("Hello."))}, journal, "r")
        assert (outcome.state, (await journal.run("r")).drives) == ("answered", 2)
        texts = [event.text async for event in journal.events("r") if isinstance(event, TextAdded)]
        assert "".join(texts) == "Hello."


@in_loop
async def test_a_run_that_ends_while_its_driver_stops_keeps_its_end(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    async with await open_journal(f"sqlite:///{tmp_path}/runs.db") as journal:
        await journal.start("shop", "Go.", run_id="r")
        agents = {"shop": Agent(ScriptedModel("Hello."))}
        assert (await drive(agents, journal, "r")).state == "answered"
        assert (await drive(agents, journal, "r", stop=stop)).state == "answered"
