"""Durable runs with background calls: a process that drives one is killed (SIGKILL) at its appends. Whoever drives it
next ends with the same answer, and the tools' own ledger shows that no payment was made twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from durable_runs import Ledger, in_a_child, kill_as_planned
from scenes import can_go_on

from unbroken import Agent, CallContext, Request, ScriptedModel, ToolMessage, User, tool
from unbroken.models.scripted import Answer, Call
from unbroken_durable import drive, open_journal
from unbroken_wires.messages import Assistant

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def script(request: Request) -> Answer:
    said = sum(isinstance(message, Assistant) for message in request.messages)
    results = [each for message in request.messages if isinstance(message, ToolMessage) for each in message.results]
    texts = [message.text for message in request.messages if isinstance(message, User)]
    first = results[0].text if results else ""  # on a busy machine it may have ended before its message was complete
    plans: list[Answer] = [
        [Call("look", at="a"), Call("pay", number=1)],
        [Call("look", at="$call_1" if "is still running" in first else first), Call("pay", number=2)],
        [Call("pay", number=3)],
        [Call("pay", number=4)],
    ]
    if said < len(plans):
        return plans[said]
    gone = sum("is still running" in result.text for result in results)
    return "Done." if gone == sum(text.count("[Background call") for text in texts) else "Waiting."


def agents_of(ledger: Ledger) -> dict[str, Agent]:
    @tool(effect="read", background=0)
    async def look(at: str, context: CallContext[Any]) -> str:
        """Looks."""
        await asyncio.sleep(0.03)
        return f"<{at}>"

    @tool(background=0, key=lambda arguments: "account")
    async def pay(number: int, context: CallContext[Any]) -> str:
        """Pays."""
        await asyncio.sleep(0.01)
        ledger.write("pay", number, context.key)
        await asyncio.sleep(0.01)
        return f"paid {number}"

    return {"payer": Agent(ScriptedModel(script), [look, pay])}


def driven(url: str, ledger: Ledger, run_id: str, kill: tuple[int, bool] | None = None) -> int:
    """A process that drives the run; `kill`: which append kills it, and whether that is stored before."""

    async def main() -> None:
        kill_as_planned(kill)
        async with await open_journal(url) as journal:
            await journal.start("payer", "Pay.", run_id=run_id)
            outcome = await drive(agents_of(ledger), journal, run_id)
            assert outcome.state == "answered", outcome
            assert outcome.result is not None
            assert outcome.result.text == "Done."
            can_go_on(outcome.result.messages)
            assert all(each.delivered for each in outcome.result.background), outcome.result.background
            paid = Counter(number for _, number, _ in ledger.rows(run_id))
            for call in outcome.result.calls:
                if call.name == "look":
                    assert call.outcome == "done", call
                elif call.outcome == "done":
                    assert paid[int(call.arguments["number"])] == 1, call
                else:
                    assert (call.outcome, paid[int(call.arguments["number"])] <= 1) == ("unknown", True), call
            again = await drive(agents_of(ledger), journal, run_id)
            assert again.result is not None
            assert [(each.handle, each.result) for each in again.result.background] == [
                (each.handle, each.result) for each in outcome.result.background
            ]
            assert [(call.id, call.result.text) for call in again.result.calls] == [
                (call.id, call.result.text) for call in outcome.result.calls
            ]

    return in_a_child(lambda: asyncio.run(main()))


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.slow), pytest.param(True, id="after")]
)
def test_a_run_killed_at_an_append_pays_nothing_twice(after: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    assert driven(url, Ledger(tmp_path / "ledger.db"), "whole") == 0
    ended: list[int] = []
    for number in range(1, 20):
        ledger, run_id = Ledger(tmp_path / f"ledger-{number}.db"), f"run-{number}"
        ended.append(driven(url, ledger, run_id, (number, after)))
        if ended[-1] == 0:
            break
        assert driven(url, ledger, run_id) == 0, number
    assert ended.count(signal.SIGKILL) >= 4  # each payment is stored before it starts, and the end
    assert {*ended} <= {signal.SIGKILL, 0}
