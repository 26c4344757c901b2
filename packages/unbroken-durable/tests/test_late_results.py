"""A driver that has lost its run lets its writes end and hands their results in; the driver that has the run uses them
as long as it has not told the model that an outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from postgres_server import empty_url

from unbroken import Agent, ScriptedModel, tool
from unbroken.models.scripted import Answer, Call
from unbroken_durable import Journal, Outcome, Superseded, drive, open_journal
from unbroken_durable.database import Database
from unbroken_wires.messages import Assistant, Request


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}" if request.param == "sqlite" else empty_url()


@dataclass
class Bank:
    """Its payments end when they are let go."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    looks: asyncio.Event = field(default_factory=asyncio.Event)
    paid: list[str] = field(default_factory=list[str])
    cancelled: bool = False

    def agents(self, schedule: Any = "parallel", **promises: Any) -> dict[str, Agent[Any, Any]]:
        @tool(effect="read")
        async def look() -> str:
            await self.looks.wait()
            return "seen"

        @tool(overlap=True, **promises)
        async def pay(name: str) -> str:
            self.began.set()
            try:
                await self.ends.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            self.paid.append(name)
            return f"paid {name}"

        def script(request: Request) -> Answer:
            said = any(isinstance(message, Assistant) for message in request.messages)
            return "Done." if said else [Call("look", id="l"), Call("pay", name="Ada", id="p")]

        return {"payer": Agent(ScriptedModel(script), [look, pay], schedule=schedule)}


Story = Callable[[Bank, Journal, "asyncio.Task[Outcome]"], Coroutine[Any, Any, None]]


def taken_over(url: str, story: Story, **promises: Any) -> Bank:
    """Calls this with another journal when a driver pays in the first."""

    async def main() -> Bank:
        bank = Bank()
        async with await open_journal(url) as journal, await open_journal(url) as other:
            await journal.start("payer", "Pay Ada.", run_id="r")
            first = asyncio.create_task(drive(bank.agents(**promises), journal, "r"))
            await bank.began.wait()
            await story(bank, other, first)
            assert await other.work(lambda database: count_late(database)) == 0
        return bank

    return asyncio.run(asyncio.wait_for(main(), 30))


def count_late(database: Database) -> int:
    return int(database.query("SELECT COUNT(*) FROM unbroken_late_results")[0][0])


async def superseded(first: asyncio.Task[Outcome]) -> None:
    with pytest.raises(Superseded):
        await first


def result_of(outcome: Outcome) -> tuple[str, str]:
    assert outcome.result is not None
    call = next(call for call in outcome.result.calls if call.id == "p")
    return call.outcome, call.result.text


def test_a_payment_that_ends_after_the_take_over_counts_when_the_run_is_driven_again(url: str) -> None:
    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        claim = await other.claim("r", take_over=True)
        await asyncio.sleep(0.8)  # the first one has noticed it, and lets the payment end
        bank.ends.set()
        bank.looks.set()
        await superseded(first)
        await other.give_back(claim)  # pyright: ignore[reportArgumentType] - it is a claim
        outcome = await drive(bank.agents(), other, "r")
        assert result_of(outcome) == ("done", "paid Ada")

    assert taken_over(url, story).paid == ["Ada"]


@pytest.mark.parametrize("noticed", [False, True])
def test_it_counts_while_the_new_driver_has_not_come_to_the_call(url: str, noticed: bool) -> None:
    """Of a driver that has not noticed yet, the result is in lines that are refused."""

    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        second = asyncio.create_task(drive(bank.agents("sequential"), other, "r", take_over=True))
        await asyncio.sleep(0.8 if noticed else 0.1)
        bank.ends.set()
        while not await other.work(lambda database: count_late(database)):
            await asyncio.sleep(0.01)
        bank.looks.set()
        assert result_of(await second) == ("done", "paid Ada")
        await superseded(first)

    assert taken_over(url, story).paid == ["Ada"]


def test_it_answers_a_call_about_which_a_person_was_asked(url: str) -> None:
    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        bank.looks.set()
        outcome = await drive(bank.agents(after_crash="wait"), other, "r", take_over=True)
        assert (outcome.state, [call.uncertain for call in (await other.run("r")).pending]) == ("waiting", [True])
        bank.ends.set()
        await superseded(first)
        assert (await other.run("r")).state == "ready"
        assert result_of(await drive(bank.agents(after_crash="wait"), other, "r")) == ("done", "paid Ada")

    assert taken_over(url, story, after_crash="wait").paid == ["Ada"]


def test_it_is_looked_for_before_a_check_runs(url: str) -> None:
    checked: list[str] = []

    def verify(arguments: dict[str, Any], key: str) -> None:
        checked.append(key)

    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        second = asyncio.create_task(drive(bank.agents("sequential", after_crash=verify), other, "r", take_over=True))
        await asyncio.sleep(0.1)
        bank.ends.set()
        await superseded(first)
        bank.looks.set()
        assert result_of(await second) == ("done", "paid Ada")

    assert taken_over(url, story, after_crash=verify).paid == ["Ada"]
    assert checked == []


def test_it_comes_too_late_once_the_model_was_told_that_the_outcome_is_unknown(url: str) -> None:
    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        bank.looks.set()
        outcome = await drive(bank.agents(), other, "r", take_over=True)
        assert result_of(outcome)[0] == "unknown"
        bank.ends.set()
        await superseded(first)
        assert result_of(await drive(bank.agents(), other, "r"))[0] == "unknown"

    assert taken_over(url, story).paid == ["Ada"]


def test_a_run_that_is_cancelled_does_not_wait_for_its_writes(url: str) -> None:
    async def story(bank: Bank, other: Journal, first: asyncio.Task[Outcome]) -> None:
        await other.cancel("r")
        assert (await asyncio.wait_for(first, 4)).state == "cancelled"

    assert taken_over(url, story).cancelled
