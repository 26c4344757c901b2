"""A durable run in which an agent works as a tool of another: its calls wait for answers in the journal, and when the
process is killed (SIGKILL) at any append, the next driver continues the inner run where it was."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from durable_runs import ANSWER, OFTEN, Ledger, agents_of, all_events, drive_to_the_end, in_a_child, kill_as_planned

from unbroken import Agent, Deny, RunView, ScriptedModel
from unbroken.models.scripted import Answer, Call
from unbroken.tools.approval import OUTCOME_UNKNOWN
from unbroken_durable import drive, open_journal
from unbroken_wires.messages import Assistant, Request

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def boss_of(ledger: Ledger, **options: Any) -> dict[str, Agent]:
    def script(request: Request) -> Answer:
        said = any(isinstance(message, Assistant) for message in request.messages)
        return "Paid, says my clerk." if said else [Call("clerk", task="Pay.", id="c")]

    clerk = agents_of(ledger)["payer"]
    return {"boss": Agent(ScriptedModel(script), [clerk.as_tool("clerk", "Pays.", timeout=None)], **options)}


def drive_in_a_child(url: str, ledger: Ledger, run_id: str, kill: tuple[int, bool] | None = None) -> int:
    async def main() -> None:
        kill_as_planned(kill)
        async with await open_journal(url, deaths=OFTEN) as journal:
            await journal.start("boss", "Pay what is open.", run_id=run_id)
            await drive_to_the_end(journal, boss_of(ledger), run_id)

    return in_a_child(lambda: asyncio.run(main()))


def finish(url: str, ledger: Ledger, run_id: str) -> None:
    async def main() -> None:
        async with await open_journal(url, deaths=OFTEN) as journal:
            outcome = await drive_to_the_end(journal, boss_of(ledger), run_id)
            assert outcome.result is not None
            assert outcome.result.text == "Paid, says my clerk."
            [call] = outcome.result.calls
            assert call.result.text == ANSWER
            events = await all_events(journal, run_id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            check_inner(events, ledger, run_id)

    asyncio.run(main())


def check_inner(events: list[Any], ledger: Ledger, run_id: str) -> None:
    """Every call of the inner run has one result; nothing that has one ran twice."""
    rows = ledger.rows(run_id)
    keys = Counter(key for tool, _, key in rows if tool != "deposit")
    assert all(count == 1 for count in keys.values()), keys
    done = Counter((tool, number) for tool, number, _ in rows)
    inner = RunView.of(events).calls[0].inner
    assert inner is not None
    assert inner.stop_reason == "answered"
    assert len(inner.calls) == 12
    for call in inner.calls:
        number = int(str((call.arguments or {})["number"]))
        if call.name != "look" and OUTCOME_UNKNOWN not in str(call.text):
            assert call.text == f"done {number}"
            assert done[call.name, number] == 1 or call.name == "deposit"


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_a_team_killed_at_an_append_ends_as_if_nothing_had_happened(after: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ended: list[int] = []
    for number in range(1 + after, 1000, 3):
        ledger = Ledger(tmp_path / f"ledger-{number}.db")
        ended.append(drive_in_a_child(url, ledger, f"run-{number}", (number, after)))
        finish(url, ledger, f"run-{number}")
        if ended[-1] != signal.SIGKILL:
            break
    assert ended == [signal.SIGKILL] * (len(ended) - 1) + [0]
    assert len(ended) > 4


def test_a_team_may_be_killed_again_and_again(tmp_path: Path) -> None:
    url, ledger = f"sqlite:///{tmp_path / 'runs.db'}", Ledger(tmp_path / "ledger.db")
    for number in (2, 1, 3, 2, 4, 1, 3):
        assert drive_in_a_child(url, ledger, "run", (number, number % 2 == 0)) in (signal.SIGKILL, 0)
    finish(url, ledger, "run")


def test_an_answer_to_a_call_of_the_inner_agent_is_given_by_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.db")
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as journal:
            run_id = await journal.start("boss", "Pay what is open.")
            assert (await drive(boss_of(ledger), journal, run_id)).state == "waiting"
            [call] = (await journal.run(run_id)).pending
            assert (call.name, call.needs, call["agent"]) == ("refund", "approval", "main/clerk")
            assert call.id.startswith("c/")
            await journal.answer(run_id, {call.id: Deny("not today")})
            outcome = await drive(boss_of(ledger), journal, run_id)
            assert outcome.state == "answered"
            assert "refund" not in [tool for tool, _, _ in ledger.rows()]

    asyncio.run(main())


def test_a_durable_run_that_was_handed_off_is_continued_by_the_agent_that_took_over(tmp_path: Path) -> None:
    """It waits after the hand-off, in one process, and continues in another."""

    def agents(ledger: Ledger) -> dict[str, Agent]:
        def script(request: Request) -> Answer:
            said = sum(isinstance(message, Assistant) for message in request.messages)
            return [Call("refund", number=said)] if said == 1 else "Refunded."

        tools = agents_of(ledger)["payer"].settings.tools.fixed
        assert tools is not None
        billing = Agent(ScriptedModel(script), tools, "You are billing.", name="billing")
        first = ScriptedModel(Call("transfer_to_billing"), loop_last=True)
        return {"triage": Agent(first, instructions="You are triage.", handoffs=[billing])}

    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.db")
        async with await open_journal(f"sqlite:///{tmp_path / 'runs.db'}") as journal:
            run_id = await journal.start("triage", "My money, please.")
            assert (await drive(agents(ledger), journal, run_id)).state == "waiting"
            outcome = await drive_to_the_end(journal, agents(ledger), run_id)
            assert outcome.result is not None
            assert (outcome.result.text, outcome.result.agent, outcome.changed) == ("Refunded.", "billing", ())
            assert [tool for tool, _, _ in ledger.rows()] == ["refund"]
            again = await drive(agents(ledger), journal, run_id)
            assert again.result is not None
            assert again.result.agent == "billing"

    asyncio.run(main())
