"""An answer with several calls that breaks off and is retried: started calls are adopted or cancelled, nothing runs
twice, and each call of the retry has exactly one result."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel
from scenes import Desk, accepted, on_every_wire, only, play, play_aloud, results_in, texts, under_every_schedule

from unbroken import (
    Agent,
    Allow,
    CallContext,
    CallFinished,
    CallStarted,
    Conversation,
    Limits,
    Request,
    RetryingModel,
    Schedule,
    ScriptedModel,
    TextAdded,
    TextReplaced,
    Tool,
    ToolCall,
    Wait,
    tool,
)
from unbroken.agent.output import ANSWER
from unbroken.errors import TimedOut, Unavailable
from unbroken.events import (
    CallAdopted,
    CallDropped,
    CallProgress,
    CallsIgnored,
    CallWritten,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RoundFinished,
    TextFinished,
)
from unbroken_testing import Answer, Break, Call, Cut, End, Fail, Pause, Say, Step, Think, Uses, run_virtual
from unbroken_wires.messages import Assistant, ToolSpec


def guarded(*answers: Answer, **settings: Any) -> tuple[RetryingModel[ScriptedModel], ScriptedModel]:
    model = ScriptedModel(*answers, **settings)
    return RetryingModel(model, jitter=lambda: 0.0), model


def finished(events: Any) -> list[tuple[str, str]]:
    """The ids of the calls that finished, each with that of the call which it adopted."""
    ids = {event.call: event.call_id for event in only(CallWritten, events)}
    adopted = {event.call: ids[event.adopted] for event in only(CallAdopted, events)}
    return [(event.call_id, adopted.get(event.call, "")) for event in only(CallFinished, events)]


BUSY = Fail(Unavailable("busy", status=503))


def saw(note: str) -> str:
    return f"saw {note}"


def one_key(arguments: dict[str, Any]) -> str:
    return "one"


def key_of_note(arguments: dict[str, Any]) -> Any:
    return arguments["note"]


# Text


SAID: list[Any] = [
    pytest.param("Let me ", "Something else.", [("TextReplaced", "Something else.")], id="another text"),
    pytest.param("Let me ", "Let me look.", [("TextAdded", "look.")], id="it goes on"),
    pytest.param("Let me ", "Let me ", [], id="the same"),
    pytest.param("Let me ", "Let", [], id="less"),
    pytest.param("Let me ", "", [], id="nothing"),
    pytest.param("", "Let me look.", [("TextAdded", "Let me look.")], id="nothing was said before"),
]


@on_every_wire
@pytest.mark.parametrize(("first", "second", "rest"), SAID)
def test_only_the_new_text_of_a_retry_is_added(wire: str, first: str, second: str, rest: list[tuple[str, str]]) -> None:
    """`look` starts, so that something was passed on in any case."""
    desk = Desk()
    model, asked = guarded([Say(first), Call("look"), Break()], [Say(second), Call("look")], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, [desk.tool("look", effect="read")]))
    kinds = (TextAdded, TextReplaced)
    turn = [(type(e).__name__, e.text) for e in events if isinstance(e, kinds) and e.turn == 0]
    before = [piece for piece in turn if piece[0] == "TextAdded"][: len(turn) - len(rest)]
    assert "".join(text for _, text in before) == first
    assert turn[len(before) :] == rest
    assert [message.text for message in result.messages if isinstance(message, Assistant)] == [second, "Done."]
    assert [said.text for said in only(TextFinished, events)] == ([second] if second else []) + ["Done."]
    accepted(asked, result)


@pytest.mark.parametrize(("first", "second", "rest"), SAID)
def test_the_same_is_true_for_reasoning(first: str, second: str, rest: list[tuple[str, str]]) -> None:
    model, _ = guarded([Think(first), Say("x"), Break()], [Think(second), Say("xy")])
    _, events = play_aloud(Agent(model))
    kinds = (ReasoningAdded, ReasoningReplaced)
    thought = [(type(e).__name__.replace("Reasoning", "Text"), e.text) for e in events if isinstance(e, kinds)]
    before = thought[: len(thought) - len(rest)]
    assert "".join(text for _, text in before) == first
    assert thought[len(before) :] == rest


def test_the_text_of_a_second_broken_answer_is_never_shown() -> None:
    """It is requested unstreamed, gets no first byte, and silently streams again."""
    late = Fail(TimedOut("nothing came"))
    model, asked = guarded([Say("One"), Break()], [late], [Say("Two, and more"), Break()], "One and two.")
    model = RetryingModel(asked, attempts=4, jitter=lambda: 0.0)
    result, events = play_aloud(Agent(model))
    assert [request.stream for request in asked.requests] == [True, False, True, False]
    assert [(type(e).__name__, e.text) for e in events if isinstance(e, (TextAdded, TextReplaced))] == [
        ("TextAdded", "One"),
        ("TextAdded", " and two."),
    ]
    assert result.attempts == 4


# Started calls are adopted


@on_every_wire
def test_a_finished_read_does_not_run_again(wire: str) -> None:
    desk = Desk()
    model, asked = guarded(
        [Call("look", note="x", id="first_1"), Pause(1.0), Break()],
        [Call("look", note="x", id="second_1"), Call("act", id="second_2")],
        "Done.",
        wire=wire,
    )
    result, events = play_aloud(Agent(model, [desk.tool("look", "seen", effect="read"), *desk.tools("act")]))
    assert desk.names == ["look", "act"]
    ids = [call_id for call_id, _ in results_in(result.messages)]
    assert texts(result) == ["seen", "act done"]
    (started, _), (told, again, _) = only(CallStarted, events), only(CallFinished, events)
    assert told.call == started.call  # it ended before the break
    (adopted,) = only(CallAdopted, events)
    assert (adopted.call_id, adopted.call, adopted.adopted) == (ids[0], again.call, started.call)
    assert (again.call_id, again.outcome) == (ids[0], "done")
    accepted(asked, result)


@on_every_wire
def test_a_running_read_continues_under_its_new_id(wire: str) -> None:
    ran: list[str] = []

    @tool(effect="read")
    async def look(context: CallContext[Any]) -> str:
        """Look."""
        ran.append(context.call_id)
        context.report("begun")
        await asyncio.sleep(1.0)
        ran.append(context.call_id)
        context.report("nearly done")
        return "seen"

    model, asked = guarded(
        [Call("look", id="first"), Pause(0.2), Break()], [Call("look", id="second")], "Done.", wire=wire
    )
    result, events = play_aloud(Agent(model, [look]))
    (id, text), (old, new) = *results_in(result.messages), ran
    assert (text, new) == ("seen", id)
    assert [event.call_id for event in only(CallProgress, events)] == [old, new]
    (told,) = only(CallFinished, events)
    assert (finished(events), told.seconds) == ([(new, old)], 1.0)
    assert [event.call for event in only(CallProgress, events)] == [0, 1]
    assert result.seconds == 1.0
    assert result.calls[0].seconds == 1.0
    accepted(asked, result)


def test_a_read_that_ends_before_the_retry_is_reported_once_under_its_new_id() -> None:
    desk = Desk()
    model, _ = guarded([Call("look", id="old"), Pause(0.2), Break()], [Pause(3.0), Call("look", id="new")], "Done.")
    _, events = play_aloud(Agent(model, [desk.tool("look", seconds=1.0, effect="read")]))
    assert finished(events) == [("new", "old")]
    assert [event.seconds for event in only(CallFinished, events)] == [1.0]


def test_a_sync_read_in_a_thread_continues_too() -> None:
    asked_again = threading.Event()
    ran: list[str] = []

    @tool(effect="read")
    def look() -> str:
        """Look."""
        ran.append("look")
        assert asked_again.wait(5.0)
        return "seen"

    def second(request: Request) -> Answer:
        asked_again.set()
        return [Call("look", id="new")]

    model = RetryingModel(ScriptedModel([Call("look", id="old"), Pause(0.01), Break()], second, "Done."))
    result = asyncio.run(Agent(model, [look]).run("Go."))
    assert (ran, results_in(result.messages)) == (["look"], [("new", "seen")])


@pytest.mark.parametrize("before", [0.5, 0.1], ids=["done before the break", "still running"])
def test_a_failed_read_does_not_run_again_either(before: float) -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(before), Break()], [Call("look"), Call("act")], "Done.")
    tools = [desk.tool("look", seconds=0.3, fails="no such thing", effect="read"), *desk.tools("act")]
    result, events = play_aloud(Agent(model, tools))
    assert texts(result) == ["Error: no such thing", "act done"]
    assert desk.names == ["look", "act"]
    assert [(event.calls, event.failed) for event in only(RoundFinished, events)] == [(2, 1)]


@pytest.mark.parametrize("before", [0.5, 0.1], ids=["done before the break", "still running"])
def test_after_a_failed_read_nothing_starts_if_errors_end_the_run(before: float) -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(before), Break()], [Call("look"), Call("act", after=1.0)], "Done.")
    tools = [desk.tool("look", seconds=0.3, fails="no such thing", effect="read"), *desk.tools("act")]
    result = play(Agent(model, tools, on_error="finish", schedule=Schedule.EAGER))
    assert texts(result) == ["Error: no such thing", "Error: not executed: an earlier call failed"]
    assert (result.stop_reason, desk.names) == ("tool_failure", ["look"])


def test_a_failed_read_that_is_not_repeated_does_not_fail_the_run() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(0.5), Break()], [Call("act")], "Done.")
    tools = [desk.tool("look", fails="no such thing", effect="read"), *desk.tools("act")]
    result = play(Agent(model, tools, on_error="finish"))
    assert (result.stop_reason, texts(result)) == ("answered", ["act done"])


def test_identical_calls_share_an_adopted_execution() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(0.1), Break()], [Call("look"), Call("look"), Call("look")], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("look", "seen", seconds=0.5, effect="read")]))
    assert (desk.names, texts(result)) == (["look"], ["seen"] * 3)
    assert len({id for id, _ in results_in(result.messages)}) == 3
    assert [event.duplicate_of != "" for event in only(CallFinished, events)] == [False, True, True]


def test_the_order_may_differ() -> None:
    desk = Desk()
    one, two, three = (Call("look", note=note) for note in "abc")
    model, _ = guarded([one, two, three, Pause(0.1), Break()], [three, one, two], "Done.")
    look = desk.tool("look", saw, seconds=0.5, effect="read")
    result = play(Agent(model, [look]))
    assert texts(result) == ["saw c", "saw a", "saw b"]
    assert [arguments["note"] for _, arguments in desk.ran] == ["a", "b", "c"]
    assert result.seconds == 0.5


def test_arguments_in_another_order_are_the_same_call() -> None:
    desk = Desk()
    model, _ = guarded(
        [Call("look", '{"a": 1, "b": 2}'), Pause(0.1), Break()], [Call("look", '{"b": 2, "a": 1}')], "Done."
    )
    play(Agent(model, [desk.tool("look", effect="read")]))
    assert desk.names == ["look"]


def test_a_read_runs_again_if_the_retry_has_a_write_before_it() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(0.5), Break()], [Call("act"), Call("look")], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("look", "seen", effect="read"), *desk.tools("act")]))
    assert desk.names == ["look", "act", "look"]
    assert texts(result) == ["act done", "seen"]
    assert [adopted for _, adopted in finished(events)] == ["", "", ""]


def test_a_read_with_another_key_than_the_write_before_it_is_adopted() -> None:
    desk = Desk()
    by_note: dict[str, Any] = {"key": key_of_note}
    tools = [desk.tool("look", effect="read", **by_note), desk.tool("act", **by_note)]
    model, _ = guarded(
        [Call("look", note="a"), Pause(0.1), Break()], [Call("act", note="b"), Call("look", note="a")], "x"
    )
    play(Agent(model, tools))
    assert desk.names == ["look", "act"]
    desk.executions.clear()
    model, _ = guarded(
        [Call("look", note="a"), Pause(0.1), Break()], [Call("act", note="a"), Call("look", note="a")], "x"
    )
    play(Agent(model, tools))
    assert desk.names == ["look", "act", "look"]


def test_a_read_before_and_after_a_write_is_adopted_and_runs_again() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(0.1), Break()], [Call("look"), Call("act"), Call("look")], "Done.")
    result = play(Agent(model, [desk.tool("look", "seen", effect="read"), *desk.tools("act")]))
    assert (desk.names, len(texts(result))) == (["look", "act", "look"], 3)


def test_calls_with_the_same_key_wait_for_an_adopted_read() -> None:
    desk = Desk()
    look = desk.tool("look", seconds=1.0, effect="read", key=one_key)
    model, _ = guarded(
        [Call("look", note="b"), Pause(0.2), Break()], [Call("look", note="a"), Call("look", note="b")], "Done."
    )
    play(Agent(model, [look]))
    assert desk.spans == [("look", 0.0, 1.0), ("look", 1.0, 2.0)]


@pytest.mark.parametrize("promise", [{"key": one_key}, {"effect": "exclusive"}], ids=["key", "exclusive"])
def test_a_call_that_must_not_overlap_a_read_waits_until_it_was_cancelled(promise: dict[str, Any]) -> None:
    order: list[str] = []

    @tool(effect="read", key=one_key)
    async def look() -> str:
        """Look."""
        try:
            await asyncio.sleep(9.0)
        finally:
            order.append("look ends")
        return "seen"

    @tool(**promise)
    async def act() -> str:
        """Act."""
        order.append("act begins")
        return "done"

    model, _ = guarded([Call("look"), Pause(0.2), Break()], [Call("act")], "Done.")
    play(Agent(model, [look, act]))
    assert order == ["look ends", "act begins"]


def test_a_write_never_starts_before_the_answer_is_complete() -> None:
    desk = Desk()
    broken: Answer = [Call("act", note="a"), Call("act", note="b"), Pause(1.0), Break()]
    model, _ = guarded(broken, [Call("act", note="a"), Call("act", note="b")], "Done.")
    result = play(Agent(model, desk.tools("act")))
    assert [arguments["note"] for _, arguments in desk.ran] == ["a", "b"]
    assert desk.spans[0][1] == 1.0
    assert texts(result) == ["act done"] * 2


@under_every_schedule
def test_nothing_runs_twice_under_any_schedule(schedule: Schedule) -> None:
    desk = Desk()
    calls: list[Step] = [Call("look", note="a"), Call("act", note="b"), Call("look", note="c")]
    model, asked = guarded([*calls, Pause(1.0), Break()], [*calls, Break()], calls, "Done.")
    tools = [desk.tool("look", effect="read", seconds=0.1), desk.tool("act", seconds=0.1)]
    result = play(Agent(model, tools, schedule=schedule))
    assert sorted(arguments["note"] for _, arguments in desk.ran) == ["a", "b", "c"]
    accepted(asked, result)


# Calls that are not repeated


def test_a_read_that_is_not_repeated_is_cancelled() -> None:
    desk = Desk()
    model, _ = guarded([Call("look", id="old"), Pause(0.1), Break()], [Call("act", id="new")], "Done.")
    tools = [desk.tool("look", seconds=60.0, effect="read"), *desk.tools("act")]
    result, events = play_aloud(Agent(model, tools))
    assert desk.spans == [("look", 0.0, None), ("act", 0.1, 0.1)]
    assert result.seconds == 0.1
    told = {event.call_id: event for event in only(CallFinished, events)}
    assert told["old"].text.startswith("Error: cancelled: the answer broke off")
    assert (told["old"].outcome, told["new"].outcome) == ("cancelled", "done")
    assert [event.call_id for event in only(CallDropped, events)] == ["old"]
    assert [id for id, _ in results_in(result.messages)] == ["new"]
    assert [record.id for record in result.calls] == ["new"]


def test_it_is_also_cancelled_if_the_retry_has_no_calls_at_all() -> None:
    desk = Desk()
    model, _ = guarded([Call("look", id="old"), Pause(0.1), Break()], "I know it already.")
    result, events = play_aloud(Agent(model, [desk.tool("look", seconds=60.0, effect="read")]))
    assert (result.text, result.seconds, desk.spans) == ("I know it already.", 0.1, [("look", 0.0, None)])
    assert finished(events) == [("old", "")]
    assert result.calls == ()


def test_it_is_also_cancelled_if_there_is_no_retry_any_more() -> None:
    async def main() -> None:
        desk = Desk()
        model, _ = guarded([Call("look", id="old"), Pause(0.1), Break()], Fail(Unavailable("busy")), loop_last=True)
        chat = Conversation(Agent(model, [desk.tool("look", seconds=60.0, effect="read")]))
        events: list[Any] = []
        with pytest.raises(Exception, match="broke off"):
            await chat.say("Go.", sinks=[events.append])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert finished(events) == [("old", "")]
        assert [type(message).__name__ for message in chat.messages] == ["User"]

    run_virtual(main())


@pytest.mark.parametrize("seconds", [0.1, 60.0], ids=["done", "running"])
def test_a_run_that_is_cancelled_during_a_retry_keeps_what_was_shown_and_done(seconds: float) -> None:
    """The retry silently streams too, because an unstreamed one took too long to begin."""

    async def main() -> None:
        desk = Desk()
        model = ScriptedModel(
            [Say("Let me look. "), Call("look", id="old"), Pause(0.2), Break()],
            Fail(TimedOut("nothing came")),
            [Say("Something else."), Call("look", id="new"), Pause(60.0)],
            "Done.",
        )
        look = desk.tool("look", "seen", seconds=seconds, effect="read")
        chat = Conversation(Agent(RetryingModel(model, jitter=lambda: 0.0), [look]))
        events: list[Any] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await chat.say("Go.", sinks=[events.append])
        said = chat.messages[1]
        assert isinstance(said, Assistant)
        assert (said.text, [call.id for call in said.calls]) == ("Let me look. ", ["new"])
        done = "seen" if seconds < 1 else "Error: cancelled: the run was cancelled"
        assert results_in(chat.messages) == [("new", done)]
        assert finished(events)[-1] == ("new", "old")
        assert len(desk.names) == 1
        assert (await chat.say("And now?")).text == "Done."
        accepted(model)

    run_virtual(main())


@tool(effect="read", timeout=None)
async def stubborn() -> str:
    """Ignores cancellation for ten minutes."""
    while (left := 600.0 - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return "at last"


@pytest.mark.parametrize("effect", ["write", "exclusive", "read"])
def test_a_tool_that_ignores_cancellation_is_abandoned(effect: str) -> None:
    desk = Desk()
    model, _ = guarded([Call("stubborn"), Pause(1.0), Break()], [Call("act")], "Done.")
    result = play(Agent(model, [stubborn, *desk.tools("act", effect=effect)]))
    assert (result.text, texts(result)) == ("Done.", ["act done"])
    assert result.seconds <= 6.0


def test_a_tool_that_ignores_the_time_limit_does_not_delay_the_retry() -> None:
    model, _ = guarded([Call("stubborn"), Pause(2.0), Break()], [Call("stubborn")], "Done.")
    result = play(Agent(model, [stubborn], limits=Limits(seconds=1.0)))
    assert (result.stop_reason, result.text) == ("time_limit", "Done.")
    assert result.seconds <= 8.0


def test_a_read_that_the_time_limit_stopped_does_not_run_again() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Pause(0.5), Break()], [Pause(2.0), Call("look")], "Done.")
    result = play(Agent(model, [desk.tool("look", seconds=60.0, effect="read")], limits=Limits(seconds=1.0)))
    assert (desk.names, result.stop_reason) == (["look"], "time_limit")
    assert texts(result) == ["Error: cancelled: the time limit of the run was reached"]


# Twice


def test_a_read_of_the_first_of_three_answers_is_adopted_by_the_third() -> None:
    desk = Desk()
    model, asked = guarded(
        [Call("look", note="a"), Pause(0.2), Break()],
        Fail(TimedOut("nothing came")),
        [Call("look", note="b"), Pause(0.2), Break()],
        [Call("look", note="b"), Call("look", note="a")],
        "Done.",
    )
    model = RetryingModel(asked, attempts=4, jitter=lambda: 0.0)
    look = desk.tool("look", saw, seconds=9.0, effect="read")
    result, events = play_aloud(Agent(model, [look]))
    assert texts(result) == ["saw b", "saw a"]
    assert [arguments["note"] for _, arguments in desk.ran] == ["a", "b"]
    assert all(adopted for _, adopted in finished(events))
    assert len(only(RequestRetried, events)) == 3


def test_an_incomplete_call_adopts_nothing() -> None:
    desk = Desk()
    model, _ = guarded([Cut("look", '{"note": "a'), End("done")], [Call("look", note="ab")], "Done.")
    result = play(Agent(model, [desk.tool("look", saw, effect="read")]))
    assert (texts(result), desk.ran) == (["saw ab"], [("look", {"note": "ab"})])


def test_an_incomplete_call_that_stays_is_reported_and_its_siblings_run_once() -> None:
    desk = Desk()
    answer: Answer = [Call("look", note="a"), Cut("look", '{"note": "b'), End("done")]
    model, asked = guarded(answer, answer, answer, "Done.")
    result = play(Agent(model, [desk.tool("look", "seen", effect="read")]))
    assert desk.ran == [("look", {"note": "a"})]
    assert texts(result)[0] == "seen"
    assert texts(result)[1].startswith("Error: not executed: ")
    accepted(asked, result)


# With everything else


def test_only_one_call_at_a_time() -> None:
    desk = Desk()
    one, two = Call("look", note="a"), Call("look", note="b")
    model, _ = guarded([one, two, Pause(0.1), Break()], [two, one], "Done.")
    result, events = play_aloud(Agent(model, [desk.tool("look", effect="read")], several_calls=False))
    assert [arguments["note"] for _, arguments in desk.ran] == ["a", "b"]
    assert len(results_in(result.messages)) == 1
    assert [event.names for event in only(CallsIgnored, events)] == [["look"]]


def test_a_call_beyond_the_budget_adopts_nothing() -> None:
    desk = Desk()
    one, two = Call("look", note="a"), Call("look", note="b")
    model, _ = guarded([one, Pause(0.1), Break()], [two, one], "Done.")
    result = play(Agent(model, [desk.tool("look", "seen", effect="read")], limits=Limits(calls=1)))
    assert texts(result) == ["seen", "Error: not executed: budget exhausted"]
    assert result.call_count == 1


def test_a_call_that_needs_an_approval_asks_once() -> None:
    asked: list[str] = []

    def handler(call: ToolCall) -> Allow:
        asked.append(call.id)
        return Allow()

    desk = Desk()
    calls: list[Step] = [Call("asks", id="first"), Call("look")]
    model, _ = guarded([*calls, Pause(0.1), Break()], [Call("asks", id="second"), Call("look")], "Done.")
    tools = [desk.tool("asks", effect="read", approve=True), desk.tool("look", effect="read")]
    play(Agent(model, tools, on_approval=handler))
    assert asked == ["second"]
    assert sorted(desk.names) == ["asks", "look"]


def test_the_loop_guard_counts_a_broken_answer_once() -> None:
    desk = Desk()
    turns: list[Answer] = [each for _ in range(4) for each in ([Call("look"), Break()], [Call("look")])]
    model, _ = guarded(*turns, "Done.")
    result = play(Agent(model, [desk.tool("look", "seen", effect="read")]))
    assert (result.stop_reason, result.rounds, desk.names) == ("answered", 4, ["look"] * 4)


def test_usage_is_the_sum_of_all_attempts() -> None:
    model, _ = guarded([Say("Let me "), Uses(10, 1), Break()], [Say("Hello."), Uses(10, 5)], wire="anthropic-messages")
    usage = play(Agent(model)).usage
    assert usage.input_tokens == 20
    assert usage.output_tokens >= 5


def test_usage_of_one_attempt_is_not_counted_for_the_next_one() -> None:
    model, _ = guarded([Say("Let me "), Uses(1000, 1), Break()], "Let me see.", wire="anthropic-messages")
    usage = play(Agent(model)).usage
    assert 1000 < usage.input_tokens < 1100
    assert usage.estimated


@on_every_wire
def test_usage_of_an_empty_answer_counts_too(wire: str) -> None:
    model, _ = guarded([Say(""), Uses(10, 3)], [Say("Hello."), Uses(10, 5)], wire=wire)
    usage = play(Agent(model)).usage
    assert (usage.input_tokens, usage.output_tokens) == (20, 8)


def test_a_tool_that_runs_in_the_client_waits_once() -> None:
    desk = Desk()
    client = Tool(ToolSpec("client"), None, desk.tool("client").signature, effect="read")
    calls: list[Step] = [Call("look"), Call("client")]
    model, asked = guarded([*calls, Pause(0.1), Break()], calls, "Done.")
    agent = Agent(model, [desk.tool("look", "seen", effect="read"), client])
    waiting = play(agent)
    result = run_virtual(agent.resume(waiting, {waiting.pending[0].id: "from outside"}))
    assert (texts(result), desk.names) == (["seen", "from outside"], ["look"])
    accepted(asked, result)


def test_a_read_that_times_out_before_the_retry_is_adopted_as_it_is() -> None:
    desk = Desk()
    model, _ = guarded([Call("look"), Break()], [Pause(5.0), Call("look")], "Done.")
    result = play(Agent(model, [desk.tool("look", seconds=9.0, timeout=1.0, effect="read")]))
    assert (texts(result), desk.names) == (["Error: Execution timeout after 1s"], ["look"])


def test_an_answer_of_another_model_adopts_the_calls_of_the_first() -> None:
    """There and back, over wires with their own signatures."""
    desk = Desk()
    broken: Answer = [Think("Hm."), Call("look", note="a"), Pause(0.1), Break()]
    first = ScriptedModel([Think("Hm."), Call("look")], broken, BUSY, "Done.", wire="anthropic-messages", name="a:one")
    second = ScriptedModel([Think("So."), Call("look", note="a")], wire="gemini", name="b:two")
    agent = Agent(
        RetryingModel(first, 2, fallback=[second], jitter=lambda: 0.0),
        [desk.tool("look", "seen", seconds=5.0, effect="read")],
    )
    result, events = play_aloud(agent)
    assert (result.text, texts(result), len(desk.names)) == ("Done.", ["seen", "seen"], 2)
    assert [adopted != "" for _, adopted in finished(events)] == [False, True]
    accepted(first, result)
    accepted(second)


class Answered(BaseModel):
    city: str


@pytest.mark.parametrize("again", ["Oslo", "Lima"])
def test_a_structured_answer_that_breaks_off_is_accepted_once(again: str) -> None:
    answer: Answer = [Say("Here: "), Call(ANSWER, city="Oslo"), Break()]
    model, asked = guarded(answer, [Call(ANSWER, city=again)])
    result = play(Agent(model), output=Answered)
    assert result.output == Answered(city=again)
    assert [call.name for call in result.calls] == [ANSWER]
    accepted(asked, result)


def test_an_agent_as_a_tool_repairs_its_own_answers_and_their_cost_counts() -> None:
    inner_model, _ = guarded(
        [Say("It "), Uses(10, 1), Break()], [Say("It rains."), Uses(10, 5)], wire="anthropic-messages"
    )
    inner = Agent(inner_model).as_tool("ask", "Ask.")
    outer, _ = guarded([Call("ask", task="Weather?"), Uses(5, 5)], ["Rain.", Uses(5, 5)], wire="anthropic-messages")
    result = play(Agent(outer, [inner]))
    assert (texts(result), result.text) == (["It rains."], "Rain.")
    assert result.usage.input_tokens == 30


def test_an_agent_as_a_tool_that_only_reads_is_adopted() -> None:
    inner_model = ScriptedModel([Pause(1.0), Say("It rains.")])
    inner = Agent(inner_model).as_tool("ask", "Ask.", effect="read")
    call = Call("ask", task="Weather?")
    outer, _ = guarded([call, Pause(0.1), Break()], [call], "Rain.")
    assert texts(play(Agent(outer, [inner]))) == ["It rains."]
    assert len(inner_model.requests) == 1


def test_the_idempotency_key_is_the_same_on_every_attempt_and_after_a_resume() -> None:
    keys: dict[str, list[str]] = {"look": [], "act": []}

    @tool(effect="read")
    async def look(context: CallContext[Any], note: str) -> str:
        """Look."""
        keys["look"].append(context.key)
        return "seen"

    @tool(approve=True)
    async def act(context: CallContext[Any], note: str) -> str:
        """Act."""
        keys["act"].append(context.key)
        return "done"

    def run(*answers: Answer) -> None:
        model, _ = guarded(*answers)
        agent = Agent(model, [look, act], on_approval=lambda call: Wait())
        waiting = play(agent, run_id="r")
        assert waiting.stop_reason == "waiting"
        result = run_virtual(agent.resume(waiting.to_json(), {call.id: Allow() for call in waiting.pending}))
        assert result.text == "Done."

    whole: Answer = [Call("look", note="a"), Call("act", note="b"), Call("act", note="b")]
    run(whole, "Done.")
    run([*whole, Break()], [Call("act", note="b"), Call("look", note="a"), Call("act", note="b")], "Done.")
    assert len(keys["act"]) == 4
    assert keys["act"][:2] == keys["act"][2:]
    assert len(set(keys["act"])) == 2
    assert len(set(keys["look"])) == 1


def test_a_resumed_run_continues_after_its_next_answer_breaks() -> None:
    desk = Desk()
    model, asked = guarded([Call("asks")], [Say("It "), Call("look"), Break()], [Say("It is"), Call("look")], "Done.")
    tools = [desk.tool("asks", approve=True), desk.tool("look", effect="read")]
    agent = Agent(model, tools, on_approval=lambda call: Wait())
    waiting = play(agent)
    result = run_virtual(agent.resume(waiting, {waiting.pending[0].id: Allow()}))
    assert (result.text, desk.names) == ("Done.", ["asks", "look"])
    assert (result.requests, result.attempts, result.fallback_used) == (3, 4, True)
    accepted(asked, result)


def test_a_break_before_a_run_waited_is_reported_when_it_has_ended() -> None:
    desk = Desk()
    model, _ = guarded([Say("Let"), Break()], [Call("asks")], "Done.")
    agent = Agent(model, [desk.tool("asks", approve=True)], on_approval=lambda call: Wait())
    waiting = play(agent)
    for saved in (waiting, waiting.to_json()):
        result = run_virtual(agent.resume(saved, {waiting.pending[0].id: Allow()}))
        assert (result.requests, result.attempts, result.fallback_used) == (2, 3, True)
        assert [verdict.kind for verdict in result.verdicts] == ["lost"]
        model, _ = guarded("Done.")
        agent = Agent(model, [desk.tool("asks", approve=True)])


def test_a_read_that_runs_again_after_a_write_has_another_key() -> None:
    keys: list[str] = []

    @tool(effect="read")
    async def look(context: CallContext[Any], note: str) -> str:
        """Look."""
        keys.append(context.key)
        return f"seen {len(keys)}"

    @tool
    async def act(note: str) -> str:
        """Act."""
        return "done"

    second: Answer = [Call("act", note="a"), Call("look", note="a")]
    model, _ = guarded([Call("look", note="a"), Pause(1), Break()], second, "Done.")
    result = play(Agent(model, [look, act]))
    assert [call.result.text for call in result.calls] == ["done", "seen 2"]
    assert len(set(keys)) == 2


def test_our_own_text_replaces_what_a_broken_answer_left() -> None:
    """The final answer breaks off, and its retry has only calls; twice."""
    calls: Answer = [Call("look", note="a")]
    breaks: Answer = [Say("Let me see."), Break()]
    model, _ = guarded(calls, breaks, calls, breaks, calls)
    desk = Desk()
    result, events = play_aloud(Agent(model, desk.tools("look", effect="read"), limits=Limits(rounds=1)))
    assert result.stop_reason == "round_limit"
    shown: dict[int, str] = {}
    for event in events:
        match event:
            case TextAdded(turn=turn, text=text):
                shown[turn] = shown.get(turn, "") + text
            case TextReplaced(turn=turn, text=text):
                shown[turn] = text
            case _:
                pass
    assert shown[events[-1].turn] == result.text
