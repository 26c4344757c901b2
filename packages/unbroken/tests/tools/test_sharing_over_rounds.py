"""`Policy(share_rounds=True)`: an identical call of a later round has the result of the earlier one, but never one from
before a write, of another tool, or of arguments that somebody edited."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scenes import Desk, play, under_every_schedule

from unbroken import Agent, Allow, CallContext, Policy, Result, Schedule, ScriptedModel, Tool, ToolCall, ToolResult
from unbroken.middleware import Middleware
from unbroken.tools.approval import Approval, Edit
from unbroken.tools.caller import Caller
from unbroken.tools.tool import client_tool
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Text

SHARES = Policy(share_rounds=True)


class Shelf:
    """`look` reads the number of books, `put` adds one."""

    def __init__(self, **promises: Any) -> None:
        self.books = 0
        self.desk = Desk()
        self.tools: list[Tool] = [
            self.desk.tool("look", self.look, effect="read"),
            self.desk.tool("put", self.put, **promises),
        ]

    def look(self, **_: Any) -> str:
        return str(self.books)

    def put(self, **_: Any) -> str:
        self.books += 1
        return "put"


def looks(result: Result) -> list[str]:
    """What each look saw, with a star if it was answered from an earlier one."""
    return [
        call.result.text + ("*" if call.result.duplicate_of else "") for call in result.calls if call.name == "look"
    ]


@under_every_schedule
def test_a_read_after_a_write_of_its_own_round_sees_what_was_written(schedule: Schedule) -> None:
    shelf = Shelf()
    model = ScriptedModel([Call("look")], [Call("look"), Call("put"), Call("look")], "Done.")
    assert looks(play(Agent(model, shelf.tools, schedule=schedule, policy=SHARES))) == ["0", "0*", "1"]


@under_every_schedule
def test_a_read_is_not_shared_while_a_write_may_still_run(schedule: Schedule) -> None:
    """In the background, where its effect comes later than its round."""
    shelf = Shelf(seconds=5.0, background=1.0)
    tools = [*shelf.tools, shelf.desk.tool("rest", seconds=10.0, effect="read")]
    model = ScriptedModel([Call("put")], [Call("look")], [Call("rest")], [Call("look")], "Done.")
    assert looks(play(Agent(model, tools, schedule=schedule, policy=SHARES)))[-1] == "1"


def test_what_somebody_approves_runs_and_is_not_answered_from_edited_arguments() -> None:
    desk = Desk()
    decisions: Iterator[Approval] = iter([Edit({"file": "b"}), Allow()])
    model = ScriptedModel([Call("delete", file="a")], [Call("delete", file="a")], "Done.")
    tools = [desk.tool("delete", approve=True)]
    play(Agent(model, tools, policy=SHARES, on_approval=lambda call: next(decisions)))
    assert desk.ran == [("delete", {"file": "b"}), ("delete", {"file": "a"})]


def test_a_resumed_run_reads_again_because_the_world_may_have_changed() -> None:
    """The write after the first look is executed by the caller, while the run waits."""
    shelf = Shelf()
    tools = [shelf.tools[0], client_tool("put", "Adds a book.", {"type": "object", "properties": {}})]
    agent = Agent(ScriptedModel([Call("look")], [Call("put"), Call("look")], "Done."), tools, policy=SHARES)

    async def main() -> Result:
        waiting = await agent.run("Go.")
        shelf.put()
        (put,) = waiting.pending
        return await agent.resume(waiting, {put.id: ToolResult.of(put, "put")})

    assert looks(run_virtual(main())) == ["0", "1"]


def test_a_tool_of_another_agent_with_the_same_name_is_another_tool() -> None:
    mine, theirs = Desk(), Desk()
    other = Agent(ScriptedModel([Call("fetch", n=1)], "Done."), theirs.tools("fetch"), name="other", policy=SHARES)
    model = ScriptedModel([Call("fetch", n=1)], [Call("transfer_to_other")])
    play(Agent(model, mine.tools("fetch"), handoffs=[other], policy=SHARES))
    assert (mine.names, theirs.names) == (["fetch"], ["fetch"])


def test_an_agent_that_takes_over_and_does_not_share_runs_its_calls() -> None:
    desk = Desk()
    tools = desk.tools("fetch")
    other = Agent(ScriptedModel([Call("fetch", n=1)], "Done."), tools, name="other")
    model = ScriptedModel([Call("fetch", n=1)], [Call("transfer_to_other")])
    play(Agent(model, tools, handoffs=[other], policy=SHARES))
    assert desk.names == ["fetch", "fetch"]


def test_middleware_changes_a_shared_result_once() -> None:
    class Marks(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            result = await call_next(call, context)
            return replace(result, content=(Text(f"<{result.text}>"),))

    desk = Desk()
    model = ScriptedModel([Call("fetch")], [Call("fetch")], [Call("fetch")], "Done.")
    result = play(Agent(model, desk.tools("fetch"), policy=SHARES, middleware=[Marks()]))
    assert [call.result.text.partition("\n")[0] for call in result.calls] == ["<fetch done>"] * 3
    assert desk.names == ["fetch"]
