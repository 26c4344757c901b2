"""Answers to the calls that a durable run waits for: which ones a call accepts, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from watched_runs import ask, serving, until, working

from unbroken import Agent, Allow, Deny, ScriptedModel, ToolResult, client_tool, tool
from unbroken.errors import UserError
from unbroken.models.scripted import Call
from unbroken_durable import AlreadyAnswered, AnswerTooLate, Journal, RunRow, drive, open_journal
from unbroken_durable.answers import encode_answers
from unbroken_durable.records import PendingCall
from unbroken_testing import run_virtual
from unbroken_wires.messages import Text


def in_journal(folder: Path, work: Callable[[Journal], Any]) -> None:
    async def main() -> None:
        async with await open_journal(f"sqlite:///{folder / 'runs.db'}") as journal:
            await work(journal)

    run_virtual(main)


def payer(paid: list[int], calls: int = 1) -> dict[str, Agent]:
    @tool(approve=True)
    def pay(order: int) -> str:
        """Pays."""
        paid.append(order)
        return f"paid {order}"

    asked = [Call("pay", order=number, id=f"p{number}") for number in range(calls)]
    return {"payer": Agent(ScriptedModel(asked, "Done."), [pay])}


def result(call: str, text: str) -> ToolResult:
    return ToolResult(call, (Text(text),))


def test_a_call_that_needs_an_approval_takes_no_result(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        paid: list[int] = []
        agents, run_id = payer(paid), await journal.start("payer", "Pay")
        await drive(agents, journal, run_id)
        with pytest.raises(UserError, match=r"`p0` \(pay\) waits for an approval, and its result comes from its tool"):
            await journal.answer(run_id, {"p0": result("p0", "paid by hand")})
        assert (await journal.run(run_id)).state == "waiting"
        await journal.answer(run_id, {"p0": Allow()})
        assert (await drive(agents, journal, run_id)).state == "answered"
        assert paid == [0]

    in_journal(tmp_path, work)


def test_the_same_over_http(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path) as url:
            async with working(tmp_path) as journal, ClientSession() as session:
                await journal.start("support", "refund", run_id="r")
                await until(lambda: journal.runs(state="waiting"))
                answer = {"refund-0": {"result": "refunded"}}
                status, body = await ask(session, "POST", f"{url}/runs/r/answers", answer)
                assert status == 400
                assert "waits for an approval" in body["error"]["message"]
                assert '{"decision": "allow"}, "deny" or "edit"' in body["error"]["message"]
                assert (await journal.run("r")).state == "waiting"

    asyncio.run(main())


def test_a_call_that_ran_elsewhere_takes_its_result_in_parts(tmp_path: Path) -> None:
    where = client_tool("where", "Where the user is.", {"type": "object", "properties": {}})

    async def work(journal: Journal) -> None:
        agents = {"a": Agent(ScriptedModel([Call("where", id="w")], "In Oslo."), [where])}
        run_id = await journal.start("a", "Where am I?")
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"w": result("w", "Oslo")})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.calls[-1].result.text == "Oslo"

    in_journal(tmp_path, work)


def test_a_call_that_may_have_run_before_a_crash_takes_the_result_that_somebody_found() -> None:
    call: dict[str, Any] = {"id": "p", "call": 1, "name": "pay", "arguments": {}, "needs": "approval"}

    def encoded(**more: Any) -> Any:
        row = RunRow("r", "a", "", "waiting", 0.0, 0.0, "", (PendingCall({**call, **more}),))
        return encode_answers(row, {"p": result("p", "paid: receipt 12")}, ())

    assert "receipt 12" in encoded(uncertain=True)[1][1]
    with pytest.raises(UserError, match="waits for an approval"):
        encoded()


def test_an_answer_after_the_deadline_is_refused_and_the_run_continues_without_it(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        paid: list[int] = []
        agents, run_id = payer(paid), await journal.start("payer", "Pay", answer_within=2)
        await drive(agents, journal, run_id)
        await asyncio.sleep(3)  # nobody drives it meanwhile
        with pytest.raises(AnswerTooLate, match="the time for one is over"):
            await journal.answer(run_id, {"p0": Allow()})
        assert [row.run_id for row in await journal.drivable()] == [run_id]
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert "nobody answered in time" in outcome.result.calls[-1].result.text
        assert paid == []

    in_journal(tmp_path, work)


def test_of_two_calls_only_the_one_that_was_answered_in_time_runs(tmp_path: Path) -> None:
    async def work(journal: Journal) -> None:
        paid: list[int] = []
        agents, run_id = payer(paid, 2), await journal.start("payer", "Pay", answer_within=2)
        await drive(agents, journal, run_id)
        await journal.answer(run_id, {"p0": Allow()})
        await asyncio.sleep(3)
        with pytest.raises(AlreadyAnswered, match=r"`p0` of run .* was answered before"):
            await journal.answer(run_id, {"p0": Deny()})
        with pytest.raises(AnswerTooLate):
            await journal.answer(run_id, {"p1": Allow()})
        assert (await drive(agents, journal, run_id)).state == "answered"
        assert paid == [0]

    in_journal(tmp_path, work)
