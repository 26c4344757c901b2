"""An agent as a tool of another: its usage counts there, its progress is reported there, and its failure is a tool
failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scenes import Desk, accepted, can_go_on, only, play, play_aloud, texts

from unbroken import Agent, CallContext, Conversation, Limits, ScriptedModel, ToolFailed, Wait, tool
from unbroken.errors import Unauthorized, UserError
from unbroken.events import CallProgress
from unbroken_testing import Call, Fail, Pause, Uses, run_virtual


def outer_of(inner: Agent, *answers: Any, **settings: Any) -> Agent:
    said = answers or ([Call("researcher", task="Look it up."), Uses(100, 10)], ["Done.", Uses(200, 20)])
    return Agent(ScriptedModel(*said), [inner.as_tool("researcher", "Looks things up.")], **settings)


def test_it_gets_a_task_and_returns_its_answer() -> None:
    model = ScriptedModel("It is 42.")
    agent = outer_of(Agent(model, instructions="Be brief."))
    result = play(agent)
    assert texts(result) == ["It is 42."]
    assert result.text == "Done."
    assert [getattr(message, "text", "") for message in model.requests[0].messages] == ["Be brief.", "Look it up."]


def test_its_usage_counts_for_the_outer_run() -> None:
    inner = Agent(ScriptedModel([Call("look"), Uses(10, 1)], ["It is 42.", Uses(20, 2)]), Desk().tools("look"))
    usage = play(outer_of(inner)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.estimated) == (330, 33, False)


def test_its_usage_counts_even_if_it_failed() -> None:
    inner = Agent(
        ScriptedModel([Call("look"), Uses(10, 1)], Fail(Unauthorized("no")), Uses(0, 0)), Desk().tools("look")
    )
    result = play(outer_of(inner))
    assert texts(result) == ["Error: no"]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (310, 31)


def test_its_usage_can_reach_the_limit_of_the_outer_run() -> None:
    inner = Agent(ScriptedModel(["It is 42.", Uses(1000, 0)]))
    result = play(outer_of(inner, limits=Limits(tokens=500)))
    assert (result.text, result.stop_reason) == ("Done.", "token_limit")


def test_its_tools_find_the_same_deps() -> None:
    found: list[Any] = []

    @tool
    async def look(context: CallContext[Any]) -> str:
        """Look."""
        found.append(context.deps)
        return "seen"

    deps = object()
    play(outer_of(Agent(ScriptedModel(Call("look"), "It is 42."), [look])), deps=deps)
    assert found == [deps]


def test_its_events_are_reported_as_progress_of_the_call() -> None:
    desk = Desk()
    inner = Agent(ScriptedModel([Call("look"), Call("fall")], "Hm."), [desk.tool("look"), desk.tool("fall", fails="x")])
    _, events = play_aloud(outer_of(inner))
    told = only(CallProgress, events)
    assert {event.name for event in told} == {"researcher"}
    assert [event.message for event in told] == ["look started", "look done", "fall started", "fall failed"]


def test_its_failure_is_a_tool_failure() -> None:
    inner = Agent(ScriptedModel(Fail(Unauthorized("the key is wrong", status=401))))
    agent = outer_of(inner)
    result = play(agent)
    assert texts(result) == ["Error: the key is wrong"]
    assert (result.text, result.calls[0].error) == ("Done.", True)
    can_go_on(result.messages)


def test_without_a_run_an_agent_that_would_have_to_wait_fails() -> None:
    inner = Agent(ScriptedModel(Call("look")), [Desk().tool("look", approve=True)], on_approval=lambda call: Wait())
    researcher = inner.as_tool("researcher", "Looks things up.")
    with pytest.raises(ToolFailed, match="`look` waits for an outside decision"):
        run_virtual(researcher(CallContext(), "Look."))


def test_agents_can_be_nested_two_deep_with_three_at_once() -> None:
    desk = Desk()

    def innermost(request: Any) -> Any:
        said = request.messages[-1]
        return f"I heard {said.text}" if hasattr(said, "parts") else "?"

    deepest = Agent(ScriptedModel(innermost), guidance=False)

    def middle(request: Any) -> Any:
        last = request.messages[-1]
        return Call("deepest", task=f"<{last.text}>") if hasattr(last, "parts") else f"({last.results[0].text})"

    between = Agent(ScriptedModel(middle), [deepest.as_tool("deepest", "Knows."), *desk.tools("look")], guidance=False)
    model = ScriptedModel([Call("between", task=word) for word in "abc"], "Done.")
    result = play(Agent(model, [between.as_tool("between", "Asks.", effect="read")]))
    assert texts(result) == [f"(I heard <{word}>)" for word in "abc"]
    accepted(model, result)


def test_the_same_call_of_the_same_run_has_the_same_inner_run() -> None:
    runs: list[str] = []
    inner = Agent(ScriptedModel("Yes.", loop_last=True), sinks=[lambda event: runs.append(event.run)])
    for _ in range(2):
        play(outer_of(inner), run_id="r")
    assert len(set(runs)) == 1
    assert runs[0].startswith("r-0-")


def test_cancelling_the_outer_run_cancels_the_inner_one() -> None:
    desk = Desk()
    inner = Agent(ScriptedModel(Call("look")), [desk.tool("look", seconds=99.0, timeout=None)])
    chat = Conversation(outer_of(inner))

    async def main() -> None:
        turn = asyncio.create_task(chat.say("Go."))
        await asyncio.sleep(1.0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())
    assert desk.spans == [("look", 0.0, None)]
    can_go_on(chat.messages)


def test_a_time_out_of_the_call_ends_the_inner_run() -> None:
    inner = Agent(ScriptedModel([Pause(100.0), "Late."]))
    model = ScriptedModel(Call("slow", task="x"), "Done.")
    result = play(Agent(model, [inner.as_tool("slow", "Slow.", timeout=5.0)]))
    assert (texts(result), result.seconds) == (["Error: Execution timeout after 5s"], 5.0)


def test_a_tool_needs_a_name_and_a_description() -> None:
    for given in ((), ("research",)):
        with pytest.raises(UserError, match=r"agent.as_tool\(name, description\): give the name of the tool and what"):
            Agent(ScriptedModel()).as_tool(*given)
