"""What a driver had spent when its process died counts for the limits of its run: a request is in the journal before
the model is asked, and one without an answer counts as it was reported, or by an estimate."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest
from durable_runs import in_a_child

from unbroken import Agent, Limits, Prices, ScriptedModel, tool
from unbroken.errors import ProviderError
from unbroken.models.scripted import Answer, Call, Say, Uses
from unbroken_durable import Outcome, drive, open_journal
from unbroken_testing import Break, Fail
from unbroken_wires.messages import Request

PRICES = Prices(input=100.0, output=1000.0)
HALF = Uses(1000, 400)
"""What costs 0.5."""


@tool(effect="read")
async def look(number: int) -> str:
    """Look."""
    return "nothing"


def drive_once(url: str, script: Any, limits: Limits, question: str = "Go.") -> Outcome:
    async def main() -> Outcome:
        async with await open_journal(url) as journal:
            await journal.start("a", question, run_id="r", limits=limits)
            model = ScriptedModel(cast("Any", script)) if callable(script) else ScriptedModel(script, loop_last=True)
            return await drive({"a": Agent(model, [look])}, journal, "r")

    return asyncio.run(main())


def test_a_budget_is_not_exceeded_by_drivers_that_die_while_the_model_answers(tmp_path: Path) -> None:
    url, limits = f"sqlite:///{tmp_path}/runs.db", Limits(cost=3.0, rounds=None, prices=PRICES)

    def dies(request: Request) -> Answer:
        asyncio.get_running_loop().call_later(3.0, os._exit, 1)
        return Say("x" * 8000, chunks=2, over=6.0)  # half of it has arrived, and costs 1.0

    def answers(request: Request) -> Answer:
        return ["Enough.", HALF] if request.final else [Call("look", number=len(request.messages)), HALF]

    for _ in range(2):
        in_a_child(lambda: drive_once(url, dies, limits))
    result = drive_once(url, answers, limits).result
    assert result is not None
    assert (result.stop_reason, result.rounds) == ("cost_limit", 2)
    assert result.cost == pytest.approx(3.5, abs=0.1)


def test_a_request_that_was_sent_counts_though_its_process_died_at_once(tmp_path: Path) -> None:
    url, limits = f"sqlite:///{tmp_path}/runs.db", Limits(tokens=100_000)

    def dies(request: Request) -> Answer:
        os._exit(1)

    for _ in range(2):
        in_a_child(lambda: drive_once(url, dies, limits, "x" * 4000))
    result = drive_once(url, ["Done.", Uses(10, 10)], limits, "x" * 4000).result
    assert result is not None
    assert result.usage.estimated
    assert 2000 < result.usage.total_tokens < 2500


def test_an_attempt_that_never_arrived_costs_nothing_and_one_that_broke_off_does(tmp_path: Path) -> None:
    url, limits = f"sqlite:///{tmp_path}/runs.db", Limits(tokens=100_000)
    refused = drive_once(url, Fail(ProviderError("it is down")), limits)
    assert refused.state == "failed"
    broken = drive_once(url, [Say("x" * 400), Break()], limits)
    assert broken.state == "failed"
    result = drive_once(url, ["Done.", Uses(10, 10)], limits).result
    assert result is not None
    assert 220 < result.usage.total_tokens < 320  # one request and half an answer
