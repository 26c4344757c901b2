"""Runs with MCP servers that ask: recorded, replayed, and resumed after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

from in_loop import in_loop
from test_mcp_questions import answering, library

from unbroken import Agent, Allow, Edit, Limits, Prices, ToolCall
from unbroken_testing import Call, ScriptedModel


@in_loop
async def test_a_replay_asks_neither_the_approver_nor_the_model_and_costs_the_same(tmp_path: Path) -> None:
    asked: list[ToolCall] = []
    limits = Limits(prices=Prices(input=1_000_000, output=1_000_000))
    async with library("pipes", sampling=True) as server:
        model = ScriptedModel([Call("book", day="Monday")], [Call("name_it")], "Chai", "Done.")

        def approve(call: ToolCall) -> Allow | Edit:
            asked.append(call)
            return Edit({"number": 2}) if call.kind == "form" else Allow()

        agent = Agent(model, tools=[server], on_approval=approve, record=tmp_path, limits=limits)
        result = await agent.run("Go.")
        assert len(asked) == 2
        [recording] = tmp_path.glob("*.jsonl")
        assert "Chai" in recording.read_text()
        again = Agent(ScriptedModel(), tools=server.tools, on_approval=answering(Allow(), asked), limits=limits)
        replayed = again.replay(recording)
    assert len(asked) == 2
    assert [call.result.text for call in replayed.calls] == [call.result.text for call in result.calls]
    assert replayed.text == "Done."
    assert (replayed.usage, replayed.cost) == (result.usage, result.cost)
