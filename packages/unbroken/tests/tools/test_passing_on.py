"""What was approved is what runs: middleware may change the arguments of a call, and then these are checked, approved,
reported and run. Nothing else of a call can be changed, by nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killed_runs import executions, killed, resumed
from scenes import Desk, only, play, play_aloud, texts

from unbroken import (
    Agent,
    Allow,
    Assistant,
    CallStarted,
    Deny,
    Edit,
    Policy,
    ScriptedModel,
    Tool,
    ToolCall,
    ToolResult,
    Wait,
    tool,
)
from unbroken.events import CallChanged
from unbroken.guardrails import check_calls
from unbroken.middleware import Middleware
from unbroken.tools.approval import Approval
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call
from unbroken_wires.messages import Json, own

Change = Callable[[ToolCall], ToolCall]
NOTE = "[Its arguments were changed before it ran: "


class Passes(Middleware):
    """Passes on what `change` makes of each call."""

    def __init__(self, change: Change) -> None:
        self.change = change

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        return await call_next(self.change(call), context)


def giving(**arguments: Json) -> Middleware:
    return Passes(lambda call: replace(call, arguments=arguments))


@pytest.fixture
def paid() -> list[Any]:
    return []


@pytest.fixture
def pay(paid: list[Any]) -> Tool:
    @tool(approve=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    return pay


def test_changed_arguments_are_approved_reported_and_run(pay: Tool, paid: list[Any]) -> None:
    asked: list[Any] = []

    def approve(call: ToolCall) -> Approval:
        asked.append((call.id, call.arguments))
        return Allow()

    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."), [pay], middleware=[giving(amount=7)], on_approval=approve
    )
    result, events = play_aloud(agent)
    assert (paid, [arguments for _, arguments in asked]) == ([7], [{"amount": 5}, {"amount": 7}])
    assert len({id for id, _ in asked}) == 1
    [started], [changed] = only(CallStarted, events), only(CallChanged, events)
    assert (started.arguments, changed.arguments, changed.by) == ({"amount": 5}, {"amount": 7}, "Passes")
    assert texts(result) == [f"paid 7\n\n{NOTE}amount=7]"]
    assert isinstance(said := result.messages[1], Assistant)
    assert said.calls[0].arguments == {"amount": 5}


def test_a_call_of_another_tool_is_refused_and_logged(
    pay: Tool, paid: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    changes: list[Change] = [
        lambda call: replace(call, name="pay", arguments={"amount": 9}),
        lambda call: replace(call, id="another"),
    ]
    for change in changes:
        agent = Agent(
            ScriptedModel(Call("look"), "Done."),
            [pay, *desk.tools("look")],
            middleware=[Passes(change)],
            on_approval=lambda call: Allow(),
        )
        with caplog.at_level(logging.WARNING, "unbroken.tools"):
            result = play(agent)
        assert (paid, desk.ran) == ([], [])
        assert (result.calls[0].outcome, result.text) == ("not_executed", "Done.")
        assert "passed on another call" in texts(result)[0]
        assert "Tool call look" in caplog.text
        assert "`Passes`" in caplog.text


@pytest.mark.parametrize(
    ("decision", "ran", "text"),
    [
        (None, [], "Error: not executed: it needs an approval, and nobody is there to give it"),
        (Deny("no"), [], "Error: not executed: denied: no"),
        (Wait(), [], "Error: not executed: the middleware `Passes` changed its arguments, and a call that has started"),
        (Edit({"amount": 2}), [2], f"paid 2\n\n{NOTE}amount=2]"),
        (Edit({"amount": "a lot"}), [], "Error: the arguments of `pay` do not fit"),
    ],
    ids=str,
)
def test_a_changed_call_that_is_not_approved_does_not_run(
    decision: Approval | None, ran: list[int], text: str, paid: list[Any]
) -> None:
    @tool(approve=lambda arguments: arguments["amount"] > 10)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."),
        [pay],
        middleware=[giving(amount=50)],
        on_approval=None if decision is None else lambda call: decision,
    )
    result = play(agent)
    assert paid == ran
    assert texts(result)[0].startswith(text)


@pytest.mark.parametrize("arguments", [{"amount": "a lot"}, {}, {"amount": 1, "to": "Bob"}, None, [1], 3], ids=str)
def test_changed_arguments_have_to_fit_the_schema(arguments: Any, pay: Tool, paid: list[Any]) -> None:
    middleware = Passes(lambda call: replace(call, arguments=arguments))
    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."), [pay], middleware=[middleware], on_approval=lambda call: Allow()
    )
    result = play(agent)
    assert (paid, result.calls[0].error, result.text) == ([], True, "Done.")


def test_a_change_in_place_counts_if_it_is_passed_on_and_leaves_the_history_as_it_was() -> None:
    class Confines(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            assert call.arguments is not None
            call.arguments["where"]["path"] = "/safe"
            result = await call_next(call, context)
            call.arguments["where"]["path"] = "/later"
            return result

    desk = Desk()
    model = ScriptedModel(Call("look", where={"path": "/etc"}), "Done.")
    result, events = play_aloud(Agent(model, desk.tools("look"), middleware=[Confines()]))
    assert desk.ran == [("look", {"where": {"path": "/safe"}})]
    assert [event.arguments for event in only(CallChanged, events)] == [{"where": {"path": "/safe"}}]
    assert result.calls[0].arguments == {"where": {"path": "/etc"}}


def test_the_arguments_in_the_context_change_nothing(pay: Tool, paid: list[Any]) -> None:
    class Sneaks(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            context.arguments = {"amount": 1000}
            return await call_next(call, context)

    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."), [pay], middleware=[Sneaks()], on_approval=lambda call: Allow()
    )
    play(agent)
    assert paid == [5]


def test_true_is_another_argument_than_1() -> None:
    desk = Desk()
    play(Agent(ScriptedModel(Call("look", n=1), "Done."), desk.tools("look"), middleware=[giving(n=True)]))
    assert [type(arguments["n"]) for _, arguments in desk.ran] == [bool]


def test_a_change_that_gives_a_call_another_key_is_refused() -> None:
    def file(arguments: dict[str, Any]) -> str:
        return arguments["file"]

    desk = Desk()
    keyed = [desk.tool("write", key=file)]
    model = ScriptedModel([Call("write", file="a", text="x"), Call("write", file="b", text="x")], "Done.")
    result = play(Agent(model, keyed, middleware=[giving(file="b", text="y")]))
    assert desk.ran == [("write", {"file": "b", "text": "y"})]
    assert "and with them its key" in texts(result)[0]


def test_inner_middleware_gets_the_changed_call_and_may_change_it_again(pay: Tool, paid: list[Any]) -> None:
    asked: list[Any] = []

    def approve(call: ToolCall) -> Approval:
        asked.append(call.arguments)
        return Allow()

    def double(call: ToolCall) -> ToolCall:
        assert call.arguments is not None
        return replace(call, arguments={"amount": call.arguments["amount"] * 2})

    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."),
        [pay],
        middleware=[Passes(double), Passes(double)],
        on_approval=approve,
    )
    play(agent)
    assert (paid, asked[-1]) == ([20], {"amount": 20})


def test_a_result_of_other_arguments_is_shared_with_no_later_call() -> None:
    class Once(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            return await call_next(call if context.turn else replace(call, arguments={"n": 2}), context)

    desk = Desk()
    model = ScriptedModel(Call("fetch", n=1), Call("fetch", n=1), Call("fetch", n=1), "Done.")
    tools = [desk.tool("fetch", effect="read")]
    play(Agent(model, tools, middleware=[Once()], policy=Policy(share_rounds=True)))
    assert desk.ran == [("fetch", {"n": 2}), ("fetch", {"n": 1})]


def test_a_call_that_is_made_twice_has_the_same_arguments_both_times() -> None:
    class Twice(Middleware):
        async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
            await call_next(call, context)
            return await call_next(call, context)

    seen: list[list[Any]] = []

    @tool(effect="read", retries=1)
    async def sort(items: list[Any]) -> str:
        seen.append([*items[0]])
        items[0].clear()
        raise ValueError("again")

    result = play(Agent(ScriptedModel(Call("sort", items=[[1, 2]]), "Done."), [sort], middleware=[Twice()]))
    assert seen == [[1, 2]] * 4
    assert result.calls[0].arguments == {"items": [[1, 2]]}


def test_functions_of_a_tool_cannot_change_its_arguments() -> None:
    def key(arguments: dict[str, Any]) -> str:
        return str(arguments["to"].popitem())

    def approve(arguments: dict[str, Any]) -> bool:
        arguments.clear()
        return False

    desk = Desk()
    play(Agent(ScriptedModel(Call("send", to={"name": "Ada"}), "Done."), [desk.tool("send", key=key, approve=approve)]))
    assert desk.ran == [("send", {"to": {"name": "Ada"}})]


def test_a_typed_answer_cannot_be_changed_on_the_way() -> None:
    model = ScriptedModel(Call("final_answer", value=1), Call("final_answer", value=1), "1")
    agent: Agent[Any, Any] = Agent(model, output=int, middleware=[giving(value=2)])
    with pytest.raises(Exception, match="a typed answer is changed in `check_output`"):
        play(agent)


def test_a_call_in_the_background_runs_as_changed() -> None:
    desk = Desk()
    model = ScriptedModel(Call("dig", depth=1), "Wait.", "Done.")
    tools = [desk.tool("dig", seconds=5, background=1)]
    result, events = play_aloud(Agent(model, tools, middleware=[giving(depth=2)]))
    assert desk.ran == [("dig", {"depth": 2})]
    assert [event.arguments for event in only(CallChanged, events)] == [{"depth": 2}]
    assert f"{NOTE}depth=2]" in "".join(getattr(message, "text", "") for message in result.messages)


def test_a_call_in_an_agent_inside_is_approved_as_changed(pay: Tool, paid: list[Any]) -> None:
    asked: list[Any] = []

    def approve(call: ToolCall) -> Approval:
        asked.append((call.agent, call.arguments))
        return Allow()

    inner = Agent(ScriptedModel(Call("pay", amount=5), "Paid."), [pay], name="payer", middleware=[giving(amount=7)])
    agent = Agent(
        ScriptedModel(Call("payer", task="Pay."), "Done."), [inner.as_tool("payer", "Pays.")], on_approval=approve
    )
    play(agent)
    assert (paid, asked) == ([7], [("main/payer", {"amount": 5}), ("main/payer", {"amount": 7})])


def test_a_check_that_changes_an_approved_call_needs_another_approval(pay: Tool, paid: list[Any]) -> None:
    def more(call: ToolCall) -> dict[str, Json]:
        return {"amount": 500}

    decisions = iter([Allow(), Deny("not that much")])
    agent = Agent(
        ScriptedModel(Call("pay", amount=5), "Done."),
        [pay],
        middleware=[check_calls(more)],
        on_approval=lambda call: next(decisions),
    )
    result = play(agent)
    assert (paid, texts(result)) == ([], ["Error: not executed: denied: not that much"])


# Recordings


def test_a_replay_gives_the_same_history_and_events(tmp_path: Path) -> None:
    desk, first, second = Desk(), tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tools = [
        desk.tool("look", effect="read", seconds=1),
        desk.tool("write"),
        desk.tool("cached", cache=9, effect="read"),
    ]
    script = [[Call("look", n=1), Call("write", n=1)], Call("cached", n=1), Call("cached", n=1), "Done."]

    def change(call: ToolCall) -> ToolCall:
        return replace(call, arguments={"n": 2})

    result = play(Agent(ScriptedModel(*script), tools, middleware=[Passes(change)], record=first))
    again = Agent(ScriptedModel(), tools).replay(first, sinks=[Recorder(second)])
    assert again.messages == result.messages
    assert second.read_bytes() == first.read_bytes()
    changed = [line for line in read_recording(first).of("event") if line["event"] == "call_changed"]
    assert [(line["name"], line["arguments"]) for line in changed] == [
        ("look", {"n": 2}),
        ("write", {"n": 2}),
        ("cached", {"n": 2}),
        ("cached", {"n": 2}),
    ]


def test_what_is_verified_after_a_crash_is_what_ran(tmp_path: Path) -> None:
    asked: list[Any] = []

    def verify(arguments: dict[str, Any], key: str) -> str:
        asked.append({**arguments})
        arguments.clear()
        return "it was paid"

    done, record = killed(tmp_path, middleware=[giving(amount=7)], after_crash=verify)
    assert done.read_text().startswith("7 ")
    result = resumed(done, record, middleware=[giving(amount=7)], after_crash=verify)
    assert (asked, executions(done), texts(result)) == ([{"amount": 7}], 1, ["it was paid"])


# What others get is theirs


def test_an_approver_that_edits_in_place_changes_nothing(pay: Tool, paid: list[Any]) -> None:
    def approve(call: ToolCall) -> Approval:
        assert call.arguments is not None
        call.arguments["amount"] = 1
        return Allow()

    agent = Agent(ScriptedModel(Call("pay", amount=5), "Done."), [pay], on_approval=approve)
    result, events = play_aloud(agent)
    assert (paid, result.calls[0].arguments) == ([5], {"amount": 5})
    assert [event.arguments for event in only(CallStarted, events)] == [{"amount": 5}]


def test_an_approver_may_keep_the_arguments_that_it_returned(pay: Tool, paid: list[Any]) -> None:
    kept: dict[str, Json] = {"amount": 6}

    async def approve(call: ToolCall) -> Approval:
        asyncio.get_running_loop().call_soon(kept.update, {"amount": 1000})
        return Edit(kept)

    result = play(Agent(ScriptedModel(Call("pay", amount=5), "Done."), [pay], on_approval=approve))
    assert (paid, texts(result)) == ([6], [f"paid 6\n\n{NOTE}amount=6]"])


def test_a_copy_shares_nothing_and_may_contain_itself() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep, {"n": deep}]
    value: dict[str, Json] = {"deep": deep, "flat": [{"n": 1}], "text": "x"}
    copy = own(value)
    copy["flat"][0]["n"] = 2
    copy["deep"][1].clear()
    assert (value["flat"], len(value["deep"][1]), own(3), own(None)) == ([{"n": 1}], 1, 3, None)
    value["itself"] = value
    copy = own(value)
    assert copy["itself"] is copy
