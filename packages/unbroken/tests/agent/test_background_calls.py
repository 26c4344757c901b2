"""Background calls: a slow call is answered with a handle, the model goes on, and the result arrives in a later
message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scenes import Desk, accepted, on_every_wire, only, play, play_aloud

from unbroken import (
    Agent,
    Allow,
    CallContext,
    Deny,
    Limits,
    Policy,
    Request,
    Result,
    RetryingModel,
    RunView,
    Schedule,
    ScriptedModel,
    ToolMessage,
    User,
    UserError,
    tool,
)
from unbroken.errors import InvalidTool
from unbroken.events import CallBackgrounded, CallFinished, CallProgress, CallStarted, ResultArrived, TextFinished
from unbroken.tools.results import Retry
from unbroken_testing import Break, Call, Pause, Say, run_virtual
from unbroken_wires.messages import Media, ToolCall, ToolResult


def arrivals(result: Result) -> list[str]:
    """The messages that brought results of background calls."""
    return [message.text for message in result.messages if isinstance(message, User)][1:]


def bracketed(note: str) -> str:
    return f"<{note}>"


def note_of(arguments: dict[str, Any]) -> str:
    return arguments["note"]


def first_results(result: Result) -> list[ToolResult]:
    return next(list(message.results) for message in result.messages if isinstance(message, ToolMessage))


def test_the_model_goes_on_while_a_slow_call_runs() -> None:
    desk = Desk()
    slow = desk.tool("report", "42 pages", seconds=10.0, effect="read", background=2.0)
    look = desk.tool("look", "seen", seconds=1.0, effect="read")
    model = ScriptedModel([Call("report")], [Call("look", note="a")], [Call("look", note="b")], "Waiting.", "Done.")
    result, events = play_aloud(Agent(model, [slow, look]))
    assert (result.text, result.stop_reason, result.seconds) == ("Done.", "answered", 10.0)
    assert desk.spans == [("report", 0.0, 10.0), ("look", 2.0, 3.0), ("look", 3.0, 4.0)]
    assert first_results(result)[0].outcome == "running"
    assert "$call_1" in first_results(result)[0].text
    assert arrivals(result) == ["[Background call $call_1 (`report`) has finished. Its result:]\n42 pages"]
    assert next((call.name, call.result.text, call.seconds) for call in result.calls) == ("report", "42 pages", 10.0)
    assert [(each.handle, each.delivered, each.seconds) for each in result.background] == [("$call_1", True, 10.0)]
    told = [(type(event).__name__, event.time, event.turn) for event in events if getattr(event, "call", None) == 0]
    assert told == [
        ("CallWritten", 0.0, 0),
        ("CallStarted", 0.0, 0),
        ("CallBackgrounded", 2.0, 0),
        ("CallFinished", 10.0, 3),
        ("ResultArrived", 10.0, 3),
    ]
    assert [text.final for text in only(TextFinished, events)] == [False, True]
    accepted(model, result)


def test_a_call_that_ends_in_time_is_answered_as_always() -> None:
    desk = Desk()
    model = ScriptedModel([Call("look")], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("look", "seen", seconds=1.9, effect="read", background=2.0)]))
    assert first_results(result)[0].text == "seen"
    assert not only(CallBackgrounded, events)
    assert result.background == ()


def test_the_policy_of_an_agent_holds_for_all_its_tools_that_have_no_seconds_of_their_own() -> None:
    desk = Desk()
    tools = [desk.tool("slow", seconds=5.0, effect="read"), desk.tool("own", seconds=5.0, effect="read", background=4)]
    model = ScriptedModel([Call("slow"), Call("own")], "Waiting.", "Still waiting.", "Done.")
    _, events = play_aloud(Agent(model, tools, policy=Policy(background=1.0)))
    assert [(each.name, each.time) for each in only(CallBackgrounded, events)] == [("slow", 1.0), ("own", 4.0)]


@on_every_wire
def test_every_provider_accepts_the_handle_and_the_message_with_the_result(wire: str) -> None:
    picture = Media(mime="image/png", data="iVBORw0KGgo=")

    @tool(effect="read", background=0)
    async def draw() -> list[Any]:
        await asyncio.sleep(5)
        return ["a picture:", picture]

    desk = Desk()
    model = ScriptedModel([Call("draw"), Call("look")], [Call("look", note="b")], "Waiting.", "Done.", wire=wire)
    result = play(Agent(model, [draw, desk.tool("look", "seen", effect="read")]))
    assert result.text == "Done."
    arrived = [message for message in result.messages if isinstance(message, User)][-1]
    assert picture in arrived.parts
    accepted(model, result)


def test_a_handle_in_later_arguments_waits_for_the_result_and_is_replaced_by_it() -> None:
    received: list[Any] = []

    @tool(effect="read", background=0)
    async def count(of: str) -> int:
        await asyncio.sleep(4)
        return len(of)

    @tool(effect="read", background=0)
    async def rows() -> dict[str, Any]:
        await asyncio.sleep(2)
        return {"rows": [1, 2]}

    @tool(effect="read")
    async def combine(number: int, text: str, tables: list[dict[str, Any]], plain: str) -> str:
        received.append((number, text, tables, plain, asyncio.get_running_loop().time()))
        return "combined"

    model = ScriptedModel(
        [Call("count", of="abc"), Call("rows")],
        [Call("combine", number="$call_1", text="$call_1", tables=["$call_2", {}], plain="it costs $call_1")],
        "Done.",
    )
    result, events = play_aloud(Agent(model, [count, rows, combine]))
    assert received == [(3, "3", [{"rows": [1, 2]}, {}], "it costs $call_1", 4.0)]
    started = [event for event in only(CallStarted, events) if event.name == "combine"]
    assert [(event.time, event.arguments["number"]) for event in started] == [(4.0, 3)]
    assert result.calls[-1].seconds == 0.0, "the time in which it waited does not count"
    assert result.calls[-1].arguments["number"] == "$call_1", "the history has what the model wrote"
    accepted(model, result)


def test_a_chain_of_background_calls_needs_no_model_between_its_links() -> None:
    desk = Desk()
    step = desk.tool("step", bracketed, seconds=3.0, effect="read", background=0)
    calls = [[Call("step", note=note)] for note in ("a", "$call_1", "$call_2")]
    model = ScriptedModel(*[[Pause(1.0), *call] for call in calls], "Waiting.", "Waiting.", "Waiting.", "Done.")
    result = play(Agent(model, [step]))
    assert desk.spans == [("step", 1.0, 4.0), ("step", 4.0, 7.0), ("step", 7.0, 10.0)]
    assert "<<<a>>>" in arrivals(result)[-1]


def test_an_unknown_handle_is_an_error_that_the_model_reads() -> None:
    desk = Desk()
    slow = desk.tool("slow", seconds=1.0, effect="read", background=0)
    model = ScriptedModel([Call("slow")], [Call("look", note="$call_7")], "Done.", "Done.")
    result = play(Agent(model, [slow, desk.tool("look", effect="read")]))
    assert result.calls[1].outcome == "not_executed"
    assert "no background call $call_7; there are: $call_1 (`slow`)" in result.calls[1].result.text
    assert desk.names == ["slow"]

    together = ScriptedModel([Call("slow"), Call("look", note="$call_1")], "Done.", "Done.")
    result = play(Agent(together, [slow, desk.tool("look", effect="read")]))
    assert result.calls[1].result.text.endswith("there are: none (a call of this same message has no handle yet)")


def test_a_call_that_needs_the_result_of_a_failed_one_is_not_executed() -> None:
    desk = Desk()
    slow = desk.tool("slow", seconds=1.0, fails="no disk", effect="read", background=0)
    model = ScriptedModel([Call("slow")], [Call("look", note="$call_1")], "Done.")
    result = play(Agent(model, [slow, desk.tool("look", effect="read")]))
    assert desk.names == ["slow"]
    assert result.calls[1].outcome == "not_executed"
    assert "$call_1 (`slow`), which has none: Error: no disk" in result.calls[1].result.text
    assert arrivals(result) == ["[Background call $call_1 (`slow`) has failed:]\nError: no disk"]


def test_without_background_tools_text_that_looks_like_a_handle_is_text() -> None:
    desk = Desk()
    play(Agent(ScriptedModel([Call("look", note="$call_1")], "Done."), desk.tools("look", effect="read")))
    assert desk.ran == [("look", {"note": "$call_1"})]


# Order


def keyed(desk: Desk, name: str, seconds: float, **promises: Any) -> Any:
    return desk.tool(name, seconds=seconds, key=note_of, **promises)


@pytest.mark.parametrize("schedule", [Schedule.EAGER, Schedule.PARALLEL])
def test_a_background_write_is_not_overtaken_by_a_later_call_with_its_key(schedule: Schedule) -> None:
    desk = Desk()
    tools = [keyed(desk, "save", 5.0, background=0), keyed(desk, "read", 1.0, effect="read")]
    calls = [Call("read", note="a.txt"), Call("read", note="b.txt")]
    model = ScriptedModel([Call("save", note="a.txt")], calls, "Done.")
    play(Agent(model, tools, schedule=schedule))
    assert sorted(desk.spans) == [("read", 0.0, 1.0), ("read", 5.0, 6.0), ("save", 0.0, 5.0)]
    assert [execution.arguments["note"] for execution in desk.executions] == ["a.txt", "b.txt", "a.txt"]


def test_a_call_whose_key_is_not_known_yet_overtakes_no_call_that_has_one() -> None:
    desk = Desk()
    tools = [
        keyed(desk, "save", 5.0, background=0),
        desk.tool("find", "a.txt", seconds=1.0, effect="read", background=0),
        keyed(desk, "read", 1.0, effect="read"),
    ]
    model = ScriptedModel([Call("save", note="a.txt"), Call("find")], [Call("read", note="$call_2")], "Done.")
    play(Agent(model, tools))
    assert desk.spans == [("save", 0.0, 5.0), ("find", 0.0, 1.0), ("read", 5.0, 6.0)]


def test_calls_of_tools_that_declare_nothing_stay_in_order_if_only_the_agent_sends_them_to_the_background() -> None:
    desk = Desk()
    model = ScriptedModel([Call("change")], [Call("look")], "Waiting.", "Waiting.", "Done.")
    tools = [desk.tool("change", seconds=5.0), desk.tool("look", seconds=1.0, effect="read")]
    play(Agent(model, tools, policy=Policy(background=1.0)))
    assert desk.spans == [("change", 0.0, 5.0), ("look", 5.0, 6.0)]


def test_a_tool_that_declares_background_lets_later_calls_run_beside_it() -> None:
    desk = Desk()
    model = ScriptedModel([Call("train")], [Call("look")], "Waiting.", "Done.")
    tools = [desk.tool("train", seconds=5.0, background=0), desk.tool("look", seconds=1.0, effect="read")]
    play(Agent(model, tools))
    assert desk.spans == [("train", 0.0, 5.0), ("look", 0.0, 1.0)]


def test_an_exclusive_call_waits_for_all_calls_in_the_background() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], [Call("restart")], "Done.")
    tools = [desk.tool("slow", seconds=5.0, effect="read", background=0), desk.tool("restart", effect="exclusive")]
    play(Agent(model, tools))
    assert desk.spans == [("slow", 0.0, 5.0), ("restart", 5.0, 5.0)]


def test_under_the_sequential_schedule_calls_never_run_side_by_side() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow"), Call("look")], "Waiting.", "Done.")
    tools = [desk.tool("slow", seconds=5.0, background=0), desk.tool("look", seconds=1.0, effect="read")]
    play(Agent(model, tools, schedule=Schedule.SEQUENTIAL))
    assert desk.spans == [("slow", 0.0, 5.0), ("look", 5.0, 6.0)]


@pytest.mark.parametrize("promises", [{"effect": "exclusive"}, {"after_crash": "wait"}, {"background": -1.0}])
def test_settings_that_do_not_go_together_are_refused(promises: dict[str, Any]) -> None:
    with pytest.raises(InvalidTool, match="background"):
        Desk().tool("slow", **dict[str, Any](background=0) | promises)
    with pytest.raises(UserError, match="background"):
        Policy(background=-1.0)


# Ends


def test_a_run_that_does_not_wait_cancels_its_background_calls_and_shows_them() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], "Done.")
    agent = Agent(
        model, [desk.tool("slow", seconds=50.0, effect="read", background=0)], policy=Policy(wait_for_background=False)
    )
    result, events = play_aloud(agent)
    assert (result.text, result.seconds) == ("Done.", 0.0)
    assert [(each.handle, each.delivered) for each in result.background] == [("$call_1", False)]
    assert result.calls[0].outcome == "cancelled"
    assert [(event.outcome, event.text) for event in only(CallFinished, events)] == [
        ("cancelled", "Error: cancelled: the run has ended")
    ]
    assert desk.spans == [("slow", 0.0, None)]


def test_at_a_limit_on_rounds_the_run_waits_for_background_calls_before_the_final_request() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], "Done.")
    tools = [desk.tool("slow", "it is ready", seconds=5.0, effect="read", background=0)]
    result = play(Agent(model, tools, limits=Limits(rounds=1)))
    assert (result.text, result.stop_reason, result.seconds) == ("Done.", "round_limit", 5.0)
    assert "it is ready" in model.requests[-1].messages[-1].text  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", ["Waiting.", [Pause(9.0), "Waiting."]], ids=["while it waits", "in a response"])
def test_at_the_time_limit_background_calls_are_cancelled_and_the_model_reads_it(answer: Any) -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], answer, "Done.")
    tools = [desk.tool("slow", seconds=50.0, timeout=None, effect="read", background=0)]
    result, events = play_aloud(Agent(model, tools, limits=Limits(seconds=8.0)))
    assert (result.text, result.stop_reason) == ("Done.", "time_limit")
    assert result.seconds == (8.0 if answer == "Waiting." else 9.0)
    assert [event.outcome for event in only(CallFinished, events)] == ["cancelled"]
    assert arrivals(result)[-1].startswith("[Background call $call_1 (`slow`) was cancelled:]")
    assert desk.spans == [("slow", 0.0, None)]


def test_the_time_out_of_a_tool_counts_in_the_background_too() -> None:
    desk = Desk()
    tools = [desk.tool("slow", seconds=50.0, timeout=7.0, effect="read", background=1.0)]
    result = play(Agent(ScriptedModel([Call("slow")], "Waiting.", "Done."), tools))
    assert result.seconds == 7.0
    assert result.calls[0].outcome == "timed_out"
    assert "Execution timeout after 7s" in arrivals(result)[-1]


def test_a_background_call_that_does_not_end_after_its_time_out_is_given_up() -> None:
    @tool(effect="read", background=0, timeout=2.0)
    async def stubborn() -> str:
        for _ in range(20):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue
        return "late"

    result = play(Agent(ScriptedModel([Call("stubborn")], "Waiting.", "Done."), [stubborn]))
    assert (result.text, result.seconds, result.calls[0].outcome) == ("Done.", 7.0, "timed_out")


def test_a_cancelled_run_ends_its_background_calls_before_it_ends() -> None:
    ended: list[str] = []

    @tool(effect="read", background=0)
    async def slow() -> str:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append("cleaned up")
        return ""

    events: list[Any] = []

    async def main() -> float:
        agent = Agent(ScriptedModel([Call("slow")], [Pause(50.0), "Never."]), [slow])
        task = asyncio.create_task(agent.run("Go.", sinks=[events.append]))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cleaned up"]
        assert len(asyncio.all_tasks()) == 1
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 6.0
    assert [event.outcome for event in only(CallFinished, events)] == ["cancelled"]


def test_a_failure_in_the_background_ends_a_run_that_ends_at_failures() -> None:
    desk = Desk()
    tools = [desk.tool("slow", seconds=3.0, fails="no disk", effect="read", background=0)]
    model = ScriptedModel([Call("slow")], "Waiting.", "It failed.")
    result = play(Agent(model, tools, on_error="finish"))
    assert (result.text, result.stop_reason) == ("It failed.", "tool_failure")


# Together with everything else


def test_an_approver_is_asked_before_a_call_goes_to_the_background() -> None:
    desk = Desk()
    asked: list[dict[str, Any]] = []

    async def approve(call: ToolCall) -> Allow | Deny:
        asked.append(dict(call.arguments or {}))
        await asyncio.sleep(10)
        return Allow() if len(asked) == 1 else Deny("no")

    tools = [desk.tool("refund", "paid", seconds=5.0, approve=True, background=1.0)]
    model = ScriptedModel([Call("refund", note="1"), Call("refund", note="2")], "Waiting.", "Done.")
    result = play(Agent(model, tools, on_approval=approve))
    assert asked == [{"note": "1"}, {"note": "2"}]
    assert desk.spans == [("refund", 10.0, 15.0)]
    assert [call.outcome for call in result.calls] == ["done", "not_executed"]


def test_an_approver_sees_results_in_place_of_handles() -> None:
    desk = Desk()
    asked: list[tuple[Any, float]] = []

    def approve(call: ToolCall) -> Allow:
        asked.append((call.arguments, asyncio.get_running_loop().time()))
        return Allow()

    async def approver(call: ToolCall) -> Allow:
        return approve(call)

    tools = [desk.tool("find", "x@y.z", seconds=4.0, effect="read", background=0), desk.tool("mail", approve=True)]
    model = ScriptedModel([Call("find")], [Call("mail", note="$call_1")], "Done.")
    result = play(Agent(model, tools, on_approval=approver))
    assert asked == [({"note": "x@y.z"}, 4.0)]
    assert desk.ran == [("find", {}), ("mail", {"note": "x@y.z"})]
    accepted(model, result)


def test_identical_calls_share_one_execution_and_its_one_arrival() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow", note="a"), Call("slow", note="a")], "Waiting.", "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("slow", "ready", seconds=5.0, effect="read", background=0)]))
    assert len(desk.executions) == 1
    assert [call.result.text for call in result.calls] == ["ready", "ready"]
    assert [call.result.duplicate_of for call in result.calls] == ["", result.calls[0].id]
    assert arrivals(result) == ["[Background call $call_1 (`slow`) has finished. Its result:]\nready"]
    assert [event.handle for event in only(CallBackgrounded, events)] == ["$call_1", "$call_1"]
    assert sorted(event.call for event in only(CallFinished, events)) == [0, 1]


def test_a_cached_result_is_given_at_once() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], "Waiting.", [Call("slow")], "Done.")
    result = play(Agent(model, [desk.tool("slow", "ready", seconds=5.0, effect="read", background=1, cache=60)]))
    assert len(desk.executions) == 1
    assert [call.result.text for call in result.calls] == ["ready", "ready"]
    assert len(result.background) == 1


def test_retries_and_progress_of_a_tool_go_on_in_the_background() -> None:
    attempts: list[int] = []

    @tool(effect="read", retries=2, background=0)
    async def flaky(context: CallContext[None]) -> str:
        attempts.append(context.attempt)
        context.report(f"attempt {context.attempt}", 0.5)
        await asyncio.sleep(3)
        if context.attempt < 2:
            raise OSError("not yet")
        return "ready"

    result, events = play_aloud(Agent(ScriptedModel([Call("flaky")], "Waiting.", "Done."), [flaky]))
    assert attempts == [0, 1, 2]
    assert [event.time for event in only(CallProgress, events)] == [0.0, 3.0, 6.0]
    assert result.calls[0].result.text == "ready"


def test_a_tool_that_asks_for_a_retry_in_the_background_counts_against_its_retries() -> None:
    @tool(effect="read", background=0)
    async def picky() -> str:
        await asyncio.sleep(1)
        raise Retry("another day, please")

    model = ScriptedModel([Call("picky")], "Waiting.", [Call("picky")], "Done.")
    result = play(Agent(model, [picky], policy=Policy(tool_retries=1)))
    assert [call.outcome for call in result.calls] == ["retry", "not_executed"]


def test_a_call_that_started_early_goes_to_the_background_only_if_its_message_is_complete() -> None:
    desk = Desk()
    slow = desk.tool("slow", "ready", seconds=20.0, effect="read", background=0)
    broken = [Call("slow", note="a"), Call("slow", note="b"), Pause(2.0), Break()]
    model = ScriptedModel(broken, [Call("slow", note="b"), Pause(1.0)], "Waiting.", "Done.")
    result, events = play_aloud(Agent(RetryingModel(model), [slow]))
    assert [(each.call.arguments, each.result and each.result.text) for each in result.background] == [
        ({"note": "b"}, "ready")
    ]
    assert [execution.ended for execution in desk.executions] == [None, 20.0]
    assert len(only(CallBackgrounded, events)) == 1


def test_a_typed_answer_beside_open_background_calls_is_asked_for_again() -> None:
    desk = Desk()
    tools = [desk.tool("slow", "7", seconds=5.0, effect="read", background=0)]
    model = ScriptedModel([Call("slow")], [Call("final_answer", value=1)], [Call("final_answer", value=7)])
    result = run_virtual(Agent(model, tools).run("Go.", output=int))
    assert (result.output, result.seconds) == (7, 5.0)


def test_an_empty_answer_while_calls_are_in_the_background_means_waiting() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], [Say("")], "Done.")
    result = play(Agent(model, [desk.tool("slow", seconds=5.0, effect="read", background=0)]))
    assert (result.text, result.requests, result.seconds) == ("Done.", 3, 5.0)
    accepted(model, result)


def test_handles_of_a_conversation_never_repeat() -> None:
    desk = Desk()
    slow = desk.tool("slow", seconds=5.0, effect="read", background=0)
    agent = Agent(ScriptedModel([Call("slow")], "Waiting.", "Done.", [Call("slow")], "Waiting.", "Done."), [slow])
    first = play(agent)
    second = play(agent, history=first.messages)
    assert [each.handle for each in (*first.background, *second.background)] == ["$call_1", "$call_2"]


def test_the_view_of_a_run_shows_one_call_over_several_turns() -> None:
    desk = Desk()
    model = ScriptedModel([Call("slow")], [Call("look")], "Waiting.", "Done.")
    tools = [desk.tool("slow", seconds=5.0, effect="read", background=1.0), desk.tool("look", effect="read")]
    result, events = play_aloud(Agent(model, tools))
    call = RunView.of(events).turns[0].calls[0]
    assert (call.started, call.backgrounded, call.finished, call.arrived) == (0.0, 1.0, 5.0, 5.0)
    assert (call.handle, call.text, call.seconds) == ("$call_1", "ok", 5.0)
    assert result.metrics.to_json()["tools"]["slow"]["calls"] == 1


def test_the_model_may_start_other_calls_with_each_result_as_it_arrives() -> None:
    desk = Desk()
    tools = [
        desk.tool("slow", bracketed, seconds=9.0, effect="read", background=0),
        desk.tool("quick", bracketed, seconds=2.0, effect="read", background=0),
    ]
    seen: list[list[str]] = []

    def answer(request: Request) -> Any:
        texts = [message.text for message in request.messages if isinstance(message, User)]
        seen.append(texts[1:])
        return (
            [[Call("slow", note="s"), Call("quick", note="q")], "Waiting.", [Call("quick", note="r")]][
                min(len(seen) - 1, 2)
            ]
            if len(seen) < 4
            else "Done."
        )

    result = play(Agent(ScriptedModel(answer), tools))
    assert result.seconds == 9.0
    assert desk.spans == [("slow", 0.0, 9.0), ("quick", 0.0, 2.0), ("quick", 2.0, 4.0)]
    assert len(only_new(seen)) == len(seen)
    assert [event for event in result.events if isinstance(event, ResultArrived)] == []


def only_new(seen: list[list[str]]) -> list[list[str]]:
    """Each request repeats what was there before."""
    return [texts for before, texts in zip([[], *seen], seen, strict=False) if texts[: len(before)] == before]
