"""The calls of one message at awkward moments: cancellations inside approvals and at the end, approvers and tools that
misbehave, and a thousand calls at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, only, play, play_aloud, results_in, texts, under_every_schedule

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallFinished,
    CallStarted,
    Conversation,
    Deny,
    Edit,
    Event,
    Schedule,
    ScriptedModel,
    ToolCall,
    tool,
)
from unbroken.events import ApprovalAsked
from unbroken_testing import Call, run_virtual

# Approvals


@pytest.mark.parametrize("given", [True, None, "yes", Allow], ids=str)
def test_an_approver_that_returns_something_else_has_not_allowed(given: Any) -> None:
    desk = Desk()
    asked: list[ToolCall] = []

    def handler(call: ToolCall) -> Any:
        asked.append(call)
        return given

    model = ScriptedModel([Call("asks"), Call("free")], "Done.")
    result = play(Agent(model, [desk.tool("asks", approve=True), *desk.tools("free")], on_approval=handler))
    assert (len(asked), desk.names) == (1, ["free"])
    assert texts(result)[0].startswith("Error: not executed: denied: the approval failed: on_approval returned ")
    accepted(model, result)


def test_an_approver_that_is_cancelled_has_not_allowed() -> None:
    async def handler(call: ToolCall) -> Allow:
        answer: asyncio.Future[Allow] = asyncio.get_running_loop().create_future()
        answer.cancel()
        return await answer

    desk = Desk()
    result = play(Agent(ScriptedModel(Call("asks"), "Done."), [desk.tool("asks", approve=True)], on_approval=handler))
    assert (texts(result), desk.names) == (["Error: not executed: the approval was cancelled"], [])


@pytest.mark.parametrize("swallows", [False, True], ids=["ends", "allows all the same"])
def test_a_run_that_is_cancelled_during_an_approval_runs_nothing(swallows: bool) -> None:
    async def handler(call: ToolCall) -> Allow:
        try:
            await asyncio.sleep(99.0)
        except asyncio.CancelledError:
            if not swallows:
                raise
        return Allow()

    desk = Desk()
    tools = [desk.tool("asks", approve=True), desk.tool("free", "free", effect="read")]
    agent = Agent(ScriptedModel([Call("free"), Call("asks"), Call("asks", n=2)], "Done."), tools, on_approval=handler)
    chat = Conversation(agent)

    async def main() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await chat.say("Go.")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return (await chat.say("And?")).text

    assert run_virtual(main()) == "Done."
    refused = "Error: not executed: the run was cancelled"
    assert [text for _, text in results_in(chat.messages)] == ["free", refused, refused]
    assert desk.names == ["free"]
    can_go_on(chat.messages)


def test_approvals_are_requested_one_at_a_time_in_call_order() -> None:
    asking = 0

    async def handler(call: ToolCall) -> Allow | Deny:
        nonlocal asking
        asking += 1
        assert asking == 1
        await asyncio.sleep(1.0)
        asking -= 1
        return Deny("odd") if (call.arguments or {})["n"] % 2 else Allow()

    desk = Desk()
    model = ScriptedModel([Call("asks", n=n) for n in range(6)], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("asks", approve=True)], on_approval=handler))
    assert [event.arguments["n"] for event in only(ApprovalAsked, events)] == list(range(6))
    assert [arguments["n"] for _, arguments in desk.ran] == [0, 2, 4]
    assert [text.startswith("Error") for text in texts(result)] == [False, True] * 3


# The end


def test_a_tool_that_ignores_the_cancellation_keeps_its_result() -> None:
    @tool(timeout=None, overlap=True)
    async def stubborn() -> str:
        """Finish first."""
        try:
            await asyncio.sleep(99.0)
        except asyncio.CancelledError:
            await asyncio.sleep(2.0)
        return "finished first"

    chat = Conversation(
        Agent(ScriptedModel([Call("stubborn"), Call("slow")], "Done."), [stubborn, slow_tool(overlap=True)])
    )

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await chat.say("Go.")
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 3.0
    told = [text for _, text in results_in(chat.messages)]
    assert told == ["finished first", "Error: cancelled: the run was cancelled"]


def slow_tool(**promises: Any) -> Any:
    return Desk().tool("slow", seconds=99.0, timeout=None, **promises)


def test_a_second_cancellation_while_the_tools_end_still_leaves_a_valid_history() -> None:
    @tool(timeout=None)
    async def tidies_up() -> str:
        """Take long to end."""
        try:
            await asyncio.sleep(99.0)
        finally:
            await asyncio.sleep(5.0)
        return "never"

    chat = Conversation(Agent(ScriptedModel([Call("tidies_up"), Call("slow")], "Done."), [tidies_up, slow_tool()]))

    async def main() -> str:
        turn = asyncio.create_task(chat.say("Go."))
        for _ in range(3):
            await asyncio.sleep(1.0)
            turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert asyncio.all_tasks() == {asyncio.current_task()}
        can_go_on(chat.messages)
        return (await chat.say("And?")).text

    assert run_virtual(main()) == "Done."


def test_a_shielded_tool_continues_but_the_turn_ends() -> None:
    finished: list[str] = []

    async def work() -> None:
        await asyncio.sleep(10.0)
        finished.append("work")

    kept: list[asyncio.Task[None]] = []

    @tool(timeout=None)
    async def shielded() -> str:
        """Shield the work."""
        kept.append(asyncio.create_task(work()))
        await asyncio.shield(kept[0])
        return "never"

    chat = Conversation(Agent(ScriptedModel(Call("shielded"), "Done."), [shielded]))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await chat.say("Go.")
        assert asyncio.get_running_loop().time() == 1.0
        can_go_on(chat.messages)
        await kept[0]

    run_virtual(main())
    assert finished == ["work"]


@under_every_schedule
def test_every_start_has_an_end_even_if_a_tool_ends_the_run(schedule: Schedule) -> None:
    @tool
    async def interrupts() -> str:
        """As if the user had pressed Ctrl-C."""
        await asyncio.sleep(1.0)
        raise KeyboardInterrupt

    events: list[Event] = []
    model = ScriptedModel([Call("interrupts"), Call("slow"), Call("slow", n=2)])
    chat = Conversation(Agent(model, [interrupts, slow_tool()], schedule=schedule, sinks=[events.append]))
    with pytest.raises(KeyboardInterrupt):
        run_virtual(chat.say("Go."))
    can_go_on(chat.messages)
    started = {event.call_id for event in only(CallStarted, events)}
    assert started <= {event.call_id for event in only(CallFinished, events)}


# Keys


@pytest.mark.parametrize("keys", ["hashable", "lists", "both"])
def test_keys_may_be_anything_that_can_be_compared(keys: str) -> None:
    desk = Desk()

    def key(arguments: dict[str, Any]) -> Any:
        n = arguments["n"] % 2
        return n if keys == "hashable" or (keys == "both" and n) else [n]

    model = ScriptedModel([Call("note", n=n) for n in range(6)], "Done.")
    play(Agent(model, [desk.tool("note", seconds=1.0, key=key)]))
    begun = [(execution.arguments["n"], execution.started) for execution in desk.executions]
    assert begun == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]


def test_two_calls_that_are_edited_to_be_equal_keep_separate_keys() -> None:
    """A service that pays by this key must not mistake the second payment for a retry of the first."""
    keys: list[str] = []

    @tool(approve=True)
    async def pay(context: CallContext[Any], amount: int) -> str:
        """Pay."""
        keys.append(context.key)
        return f"paid {amount}"

    def handler(call: ToolCall) -> Edit:
        return Edit({"amount": 1})

    model = ScriptedModel([Call("pay", amount=1), Call("pay", amount=2), Call("pay", amount=2)], "Done.")
    result = play(Agent(model, [pay], on_approval=handler))
    assert [text.startswith("paid 1") for text in texts(result)] == [True] * 3
    assert len(set(keys)) == 3


# A thousand at once

COUNT = 1_000


def number(n: int) -> int:
    return n


def one_key(arguments: dict[str, Any]) -> int:
    return 1


def two_of_each(arguments: dict[str, Any]) -> int:
    return arguments["n"] % (COUNT // 2)


@pytest.mark.parametrize(
    "promises",
    [
        pytest.param({"effect": "read"}, id="reads"),
        pytest.param({}, id="writes"),
        pytest.param({"effect": "exclusive"}, id="one at a time"),
        pytest.param({"key": one_key}, id="one key"),
        pytest.param({"key": two_of_each}, id="two of each key"),
        pytest.param({"approve": True}, id="approvals"),
    ],
)
def test_a_thousand_calls_in_one_message_cost_almost_nothing(promises: dict[str, Any]) -> None:
    """Pairs compared one by one, again at each end, took 13 s of CPU for two of each key and 4.6 s for approvals."""
    desk = Desk()
    model = ScriptedModel([Call("note", n=n, pieces=1) for n in range(COUNT)], "Done.")
    agent = Agent(model, [desk.tool("note", number, **promises)], on_approval=lambda call: Allow())
    before = time.process_time()
    result = play(agent)
    assert time.process_time() - before < 3.5
    assert texts(result) == [str(n) for n in range(COUNT)]
    assert len(desk.executions) == COUNT
