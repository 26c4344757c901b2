"""The rows of the fault list that are in the run: failing, hanging and unknown tools, repetition, limits, the final
turn, cancellation, order. On the four wires, each ending with what ran, the answer, and that a provider takes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from scenes import PROVIDERS, WIRES, Desk, accepted, can_go_on, only, play, play_aloud, results_in

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Event,
    LimitReached,
    Limits,
    Prices,
    RequestSent,
    Result,
    RunFailed,
    Schedule,
    ScriptedModel,
    connect,
    tool,
)
from unbroken.testing import Call, Pause, Say, ScriptedServer, Think, Uses, run_virtual

on_every_wire = pytest.mark.parametrize("wire", WIRES)
under_every_schedule = pytest.mark.parametrize("schedule", Schedule)


def texts(result: Result) -> list[str]:
    return [text for _, text in results_in(result.messages)]


# Row 20: one of the tools raises


def good(n: int) -> str:
    return f"good {n}"


class Odd(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


@under_every_schedule
@on_every_wire
def test_one_of_many_tools_raises_and_the_others_finish(wire: str, schedule: Schedule) -> None:
    """Row 20: 26 of 27 are not cancelled."""
    desk = Desk()
    tools = [desk.tool("good", good, seconds=0.2), desk.tool("bad", fails="boom", seconds=0.1)]
    calls = [Call("bad") if n == 13 else Call("good", n=n) for n in range(27)]
    model = ScriptedModel(calls, "Done.", wire=wire)
    result = play(Agent(model, tools, schedule=schedule))
    assert texts(result) == ["Error: boom" if n == 13 else f"good {n}" for n in range(27)]
    assert len(desk.executions) == 27
    assert result.text == "Done."
    accepted(model, result)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such city"), "Error: no such city"),
        (KeyError("city"), "Error: KeyError: 'city'"),
        (ValueError(), "Error: ValueError"),
        (TimeoutError("the database took too long"), "Error: the database took too long"),
        (SystemExit(3), "Error: the tool tried to end the program (exit code 3)"),
        (Odd(), "Error: Odd"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "Error: two (2 sub-exceptions)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_whatever_a_tool_raises_is_told_to_the_model(error: BaseException, told: str, is_async: bool) -> None:
    """Row 20."""
    if is_async:

        @tool(name="raises")
        async def raises() -> str:
            """Raise."""
            raise error
    else:

        @tool(name="raises")
        def raises() -> str:
            """Raise."""
            raise error

    desk = Desk()
    model = ScriptedModel([Call("raises"), Call("good")], "Done.")
    result = asyncio.run(Agent(model, [raises, desk.tool("good")]).run("Go."))
    assert texts(result) == [told, "ok"]
    accepted(model, result)


def test_a_tool_whose_inner_task_was_cancelled_has_failed_and_the_run_goes_on() -> None:
    """Row 20: a cancellation that is the tool's own is not the run's."""

    @tool
    async def waits() -> str:
        """Wait for a task that somebody cancels."""
        inner = asyncio.create_task(asyncio.sleep(9.0))
        inner.cancel("no more")
        await inner
        return "never"

    model = ScriptedModel([Call("waits"), Call("good", n=1)], "Done.")
    result = play(Agent(model, [waits, Desk().tool("good", good)]))
    assert texts(result) == ["Error: something that the tool waited for was cancelled: no more", "good 1"]
    assert result.text == "Done."


# Row 21: a tool hangs; a sync tool blocks the loop


@under_every_schedule
@on_every_wire
def test_a_tool_that_hangs_ends_at_its_time_out(wire: str, schedule: Schedule) -> None:
    """Row 21: each tool has its own."""
    desk = Desk()
    tools = [desk.tool("hangs", seconds=1e6, timeout=5.0, effect="read"), desk.tool("quick", "quick", effect="read")]
    model = ScriptedModel([Call("hangs"), Call("quick")], "Done.", wire=wire)
    result = play(Agent(model, tools, schedule=schedule))
    assert texts(result) == ["Error: Execution timeout after 5s", "quick"]
    assert (result.text, result.seconds) == ("Done.", 5.0)
    accepted(model, result)


def test_synchronous_tools_run_beside_each_other_and_do_not_hold_up_the_loop() -> None:
    """Row 21: both are in flight at once, while the loop still turns. Real threads."""
    together = threading.Barrier(3, timeout=5)

    @tool
    def meets(who: str) -> str:
        """Wait for the other one."""
        together.wait()
        return who

    async def main() -> Result:
        turning = asyncio.create_task(asyncio.to_thread(together.wait))  # the third, started by the loop itself
        model = ScriptedModel([Call("meets", who="a"), Call("meets", who="b")], "Done.")
        result = await Agent(model, [meets]).run("Go.")
        await turning
        return result

    result = asyncio.run(main())
    assert (texts(result), result.text) == (["a", "b"], "Done.")


# Row 22: unknown tool; arguments that do not fit


@under_every_schedule
@on_every_wire
def test_an_unknown_tool_is_told_with_the_names_that_there_are(wire: str, schedule: Schedule) -> None:
    """Row 22."""
    desk = Desk()
    model = ScriptedModel([Call("serach", q="x"), Call("search", q="x")], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("search", "fetch"), schedule=schedule))
    assert desk.ran == [("search", {"q": "x"})]
    assert texts(result) == [
        "Error: unknown tool `serach`; there are: search, fetch; did you mean `search`?",
        "search done",
    ]
    assert result.text == "Done."
    accepted(model, result)


@tool(effect="read")
def forecast(city: str, days: int = 1) -> str:
    """The weather to come.

    Args:
        city: Which city.
        days: How many days.
    """
    return f"{city}, {days} days"


@under_every_schedule
@on_every_wire
def test_arguments_that_do_not_fit_are_told_with_the_first_errors(wire: str, schedule: Schedule) -> None:
    """Row 22: what is missing, what is of another type, what there is not; a number in a text is taken."""
    calls = [
        Call("forecast", days=2),
        Call("forecast", city="Oslo", days="many"),
        Call("forecast", city="Oslo", country="NO"),
        Call("forecast", city="Oslo", days="3"),
    ]
    model = ScriptedModel(calls, "Done.", wire=wire)
    result = play(Agent(model, [forecast], schedule=schedule))
    missing, wrong, unknown, good = texts(result)
    assert missing.startswith("Error: the arguments of `forecast` do not fit")
    assert "city" in missing
    assert "days" in wrong
    assert "country" in unknown
    assert good == "Oslo, 3 days"
    assert [call.error for call in result.calls] == [True, True, True, False]
    assert result.text == "Done."
    accepted(model, result)


# Row 23: identical calls; the same call for ever


@under_every_schedule
@on_every_wire
def test_three_dice_are_rolled_three_times(wire: str, schedule: Schedule) -> None:
    """Row 23: writes are each their own."""
    rolls = iter([4, 2, 6])

    @tool
    async def roll_dice(sides: int = 6) -> int:
        """Roll."""
        return next(rolls)

    model = ScriptedModel([Call("roll_dice", sides=6)] * 3, "Done.", wire=wire)
    result, events = play_aloud(Agent(model, [roll_dice], schedule=schedule))
    assert texts(result) == ["4", "2", "6"]
    assert [event.duplicate_of for event in only(CallFinished, events)] == ["", "", ""]
    accepted(model, result)


@under_every_schedule
@on_every_wire
def test_identical_reads_run_once_and_each_has_a_result(wire: str, schedule: Schedule) -> None:
    """Row 23: one execution for reads."""
    desk = Desk()
    model = ScriptedModel([Call("look", at=1), Call("look", at=1), Call("look", at=2)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("look", effect="read", seconds=1.0), schedule=schedule))
    assert desk.ran == [("look", {"at": 1}), ("look", {"at": 2})]
    first = result.calls[0].id
    assert [call.result.duplicate_of for call in result.calls] == ["", first, ""]
    assert texts(result) == ["look done"] * 3
    accepted(model, result)


@pytest.mark.parametrize("effect", ["read", "write"])
@on_every_wire
def test_the_same_call_for_ever_is_reminded_of_and_then_refused(wire: str, effect: str) -> None:
    """Row 23: a reminder at the 3rd, the 5th is not executed, and the final answer follows."""
    desk = Desk()
    model = ScriptedModel(*[Call("look", at=1)] * 5, "It does not change.", wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("look", effect=effect)))
    told = texts(result)
    assert len(desk.ran) == 4
    assert told[:2] == ["look done"] * 2
    assert ["times in a row" in text for text in told] == [False, False, True, True, False]
    assert told[4] == "Error: not executed: repeated"
    assert (result.text, result.stop_reason) == ("It does not change.", "loop")
    assert [event.final for event in only(RequestSent, events)] == [False] * 5 + [True]
    accepted(model, result)


def test_the_same_failing_call_is_reminded_of_too() -> None:
    """Row 23: the 3rd in a row has a reminder appended to its result, also where that is an error."""
    desk = Desk()
    model = ScriptedModel(*[Call("look")] * 5, "It is down.")
    result = play(Agent(model, [desk.tool("look", fails="down")]))
    assert ["times in a row" in text for text in texts(result)] == [False, False, True, True, False]
    assert (len(desk.ran), result.stop_reason) == (4, "loop")


def test_a_tool_that_is_meant_to_be_called_again_and_again_is_left_alone() -> None:
    """Row 23: `repeat=True`, polling."""
    desk = Desk()
    model = ScriptedModel(*[Call("poll")] * 7, "Ready.")
    result = play(Agent(model, desk.tools("poll", repeat=True)))
    assert (len(desk.ran), result.text, result.stop_reason) == (7, "Ready.", "answered")
    assert texts(result) == ["poll done"] * 7


def test_another_call_in_between_starts_the_count_again() -> None:
    """Row 23: in a row means in a row."""
    desk = Desk()
    look, other = Call("look"), Call("other")
    model = ScriptedModel(look, look, other, look, look, other, look, look, "Done.")
    result = play(Agent(model, desk.tools("look", "other")))
    assert (len(desk.ran), result.stop_reason) == (8, "answered")
    assert not any("in a row" in text for text in texts(result))


# Row 24: the limit is reached


def never_ends(model_says: Callable[[int], list[Any]]) -> Callable[[Any], list[Any]]:
    """A model that calls something new each time, until nothing can be called."""
    asked = iter(range(1000))
    return lambda request: [Say("This is what I have."), Uses(10, 5)] if request.final else model_says(next(asked))


LIMITS = [
    pytest.param(Limits(rounds=2), "round_limit", 2, id="rounds"),
    pytest.param(Limits(calls=4), "call_limit", 2, id="calls"),
    pytest.param(Limits(tokens=300), "token_limit", 3, id="tokens"),
    pytest.param(Limits(seconds=2.5), "time_limit", 3, id="seconds"),
    pytest.param(Limits(cost=0.3, prices=Prices(input=1000, output=1000)), "cost_limit", 3, id="cost"),
]


@pytest.mark.parametrize(("limits", "stop_reason", "rounds"), LIMITS)
@on_every_wire
def test_a_limit_ends_in_a_real_answer(wire: str, limits: Limits, stop_reason: str, rounds: int) -> None:
    """Rows 24 and 25: each round uses 100 tokens, 2 calls and 1 second."""
    desk = Desk()
    say = never_ends(lambda n: [Call("look", at=n), Call("look", at=-n - 1), Uses(60, 40)])
    model = ScriptedModel(say, wire=wire)
    result, events = play_aloud(Agent(model, desk.tools("look", seconds=1.0), limits=limits))
    assert (result.text, result.stop_reason) == ("This is what I have.", stop_reason)
    assert (result.rounds, result.requests) == (rounds, rounds + 1)
    assert [event.kind for event in only(LimitReached, events)] == [stop_reason]
    assert [request.final for request in model.requests] == [False] * rounds + [True]
    assert [spec.name for spec in model.requests[-1].tools] == ["look"]
    assert len(result.calls) == 2 * rounds
    accepted(model, result)


@on_every_wire
def test_calls_beyond_the_budget_are_answered_and_the_first_ones_run(wire: str) -> None:
    """Row 24: three calls are allowed and five are made."""
    desk = Desk()
    model = ScriptedModel([Call("look", at=n) for n in range(5)], "Done.", wire=wire)
    result = play(Agent(model, desk.tools("look", effect="read"), limits=Limits(calls=3)))
    assert [arguments["at"] for _, arguments in desk.ran] == [0, 1, 2]
    assert texts(result) == ["look done"] * 3 + ["Error: not executed: budget exhausted"] * 2
    assert (result.text, result.stop_reason) == ("Done.", "call_limit")
    accepted(model, result)


@under_every_schedule
@on_every_wire
def test_when_the_time_is_up_running_tools_end_and_the_answer_has_time_of_its_own(
    wire: str, schedule: Schedule
) -> None:
    """Row 24: the limit falls into a round; the final answer takes 20 s of its own 60."""
    desk = Desk()
    tools = [desk.tool("quick", "quick", seconds=1.0), desk.tool("slow", seconds=9.0), desk.tool("never", seconds=9.0)]
    calls = [Call("quick"), Call("slow"), Call("never")]
    model = ScriptedModel(calls, [Pause(20.0), Say("I have a part.")], wire=wire)
    result = play(Agent(model, tools, schedule=schedule, limits=Limits(seconds=3.0)))
    assert (result.text, result.stop_reason, result.seconds) == ("I have a part.", "time_limit", 23.0)
    assert [call.error for call in result.calls] == [False, True, True]
    assert "time limit" in result.calls[1].result.text
    assert desk.names == (["quick", "slow"] if schedule is Schedule.SEQUENTIAL else ["quick", "slow", "never"])
    accepted(model, result)


def test_a_final_answer_that_never_comes_is_given_up() -> None:
    """Row 24: `final_seconds`, and still a text and a valid history."""
    model = ScriptedModel(Call("look"), [Say("I was about to"), Pause(1e6)])
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1, final_seconds=5.0)))
    assert (result.text, result.stop_reason, result.seconds) == ("I was about to", "round_limit", 5.0)
    can_go_on(result.messages)
    model = ScriptedModel(Call("look"), Pause(1e6))
    result = play(Agent(model, Desk().tools("look"), limits=Limits(rounds=1, final_seconds=5.0)))
    assert "round_limit" in result.text
    can_go_on(result.messages)


@on_every_wire
def test_a_response_that_outlasts_the_time_limit_is_the_answer_as_far_as_it_came(wire: str) -> None:
    """Row 24: it may take as long as a final one beyond the limit, and not longer."""
    desk = Desk()
    model = ScriptedModel([Say("Let me see."), Call("look"), Pause(200.0)], wire=wire)
    limits = Limits(seconds=5.0, final_seconds=10.0)
    result, events = play_aloud(Agent(model, desk.tools("look", seconds=99.0, effect="read"), limits=limits))
    assert (result.text, result.stop_reason, result.seconds) == ("Let me see.", "time_limit", 15.0)
    assert desk.spans == [("look", 0.0, None)]
    assert [event.kind for event in only(LimitReached, events)] == ["time_limit"]
    can_go_on(result.messages)


def test_tokens_that_nobody_reports_are_estimated_and_marked() -> None:
    """Row 24: a provider without usage."""
    say = never_ends(lambda n: [Call("look", text="x" * 400, n=n)])
    result = play(Agent(ScriptedModel(say), Desk().tools("look"), limits=Limits(tokens=500)))
    assert result.stop_reason == "token_limit"
    assert result.usage.estimated


# Row 26: a call in the final turn


@on_every_wire
def test_a_call_in_the_final_turn_is_refused_and_the_text_asked_for_once_more(wire: str) -> None:
    """Row 26."""
    desk = Desk()
    model = ScriptedModel(Call("look"), Call("look", at=2), "Well then.", wire=wire)
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
    assert desk.ran == [("look", {})]
    assert texts(result)[1].startswith("Error: not executed: no more tools can be called")
    assert (result.text, result.stop_reason, result.requests) == ("Well then.", "round_limit", 3)
    assert [request.final for request in model.requests] == [False, True, True]
    accepted(model, result)


@on_every_wire
def test_a_model_that_only_calls_in_its_final_turns_still_ends_with_a_text(wire: str) -> None:
    """Row 26: what it said beside its calls is the answer; if that is nothing, we say why there is none."""
    for said, text in (("Half an answer.", "Half an answer."), ("", "The run ended (round_limit)")):
        desk = Desk()
        model = ScriptedModel(Call("look"), *[[Say(said), Call("look", at=n)] for n in (2, 3)], wire=wire)
        result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=1)))
        assert desk.ran == [("look", {})]
        assert result.text.startswith(text)
        assert result.stop_reason == "round_limit"
        accepted(model, result)


def test_no_rounds_at_all_is_a_plain_question() -> None:
    """Row 26: nothing may be called from the start."""
    desk = Desk()
    model = ScriptedModel("Hello.")
    result = play(Agent(model, desk.tools("look"), limits=Limits(rounds=0)))
    assert (result.text, result.stop_reason, result.requests) == ("Hello.", "round_limit", 1)
    accepted(model, result)


# Row 27: cancelled in the middle

CANCELLED_AT = [
    pytest.param(0.5, [], id="before the first word"),
    pytest.param(1.5, [], id="while it speaks"),
    pytest.param(2.5, ["early"], id="while the calls are written"),
    pytest.param(3.5, ["early", "late"], id="while tools run"),
    pytest.param(6.5, ["early", "late"], id="between two requests"),
    pytest.param(8.5, ["early", "late"], id="while the answer is written"),
]


def a_long_turn(wire: str) -> ScriptedModel:
    return ScriptedModel(
        [
            Think("Hm.", after=1.0),
            Say("Let me see what there is.", over=0.5),
            Call("early", after=0.5),
            Call("late", after=1.0),
        ],
        [Pause(2.0), Say("It is done.", over=4.0)],
        "And this too.",
        wire=wire,
    )


@pytest.mark.parametrize(("at", "ran"), CANCELLED_AT)
@under_every_schedule
@on_every_wire
def test_a_cancelled_turn_leaves_a_conversation_that_goes_on(
    wire: str, schedule: Schedule, at: float, ran: list[str]
) -> None:
    """Row 27: every call has its answer at whatever moment it was cancelled."""
    desk = Desk()
    tools = [desk.tool("early", seconds=3.0, effect="read"), desk.tool("late", seconds=2.0)]
    model = a_long_turn(wire)
    events: list[Event] = []
    chat = Conversation(Agent(model, tools, schedule=schedule, sinks=[events.append]))

    async def main() -> str:
        turn = asyncio.create_task(chat.say("Go."))
        await asyncio.sleep(at)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        can_go_on(chat.messages)
        started = len(desk.executions)
        await asyncio.sleep(100.0)
        assert len(desk.executions) == started
        return (await chat.say("Go on.")).text

    answers = {"It is done.", "And this too."}
    assert run_virtual(main()) in answers
    assert only(RunFailed, events)[0].error == "CancelledError"
    accepted(model)
    can_go_on(chat.messages)
    started = [event.call_id for event in only(CallStarted, events)]
    finished = [event.call_id for event in only(CallFinished, events)]
    assert set(started) <= set(finished)
    assert len(finished) == len(set(finished))
    if schedule is Schedule.EAGER:
        assert desk.names[: len(ran)] == ran


@under_every_schedule
@on_every_wire
def test_who_stops_reading_a_stream_ends_the_run_and_every_call_is_answered(wire: str, schedule: Schedule) -> None:
    """Row 27: the client is gone while tools run."""
    desk = Desk()
    model = ScriptedModel([Call("quick"), Call("slow"), Call("slow", n=2)], wire=wire)
    tools = [desk.tool("quick", "quick"), desk.tool("slow", seconds=99.0, timeout=None)]

    async def main() -> None:
        stream = Agent(model, tools, schedule=schedule).stream("Go.")
        async for event in stream:
            if isinstance(event, CallStarted) and event.name == "slow":
                break
        await stream.aclose()
        can_go_on(stream.messages)
        first, second, third = [text for _, text in results_in(stream.messages)]
        assert first == "quick" or "cancelled" in first
        assert ["cancelled" in text for text in (second, third)] == [True, True]
        assert asyncio.get_running_loop().time() == 0.0

    run_virtual(main())
    accepted(model)


def test_a_finished_result_is_kept_when_its_siblings_are_cancelled() -> None:
    """Row 27: what is known is not thrown away."""
    desk = Desk()
    tools = [desk.tool("quick", "quick", seconds=1.0), desk.tool("slow", seconds=99.0, timeout=None)]
    chat = Conversation(Agent(ScriptedModel([Call("quick"), Call("slow")], "Done."), tools))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await chat.say("Go.")
        assert [text for _, text in results_in(chat.messages)] == ["quick", "Error: cancelled: the run was cancelled"]
        assert (await chat.say("And?")).text == "Done."

    run_virtual(main())
    can_go_on(chat.messages)


@on_every_wire
def test_a_turn_that_is_cancelled_over_http_leaves_a_conversation_that_goes_on(wire: str) -> None:
    """Row 27: a real connection is dropped in the middle of a response, with one read running."""

    async def main() -> None:
        started = asyncio.Event()

        @tool(effect="read", timeout=None)
        async def look() -> str:
            """Look for ever."""
            started.set()
            await asyncio.Event().wait()
            return "never"

        async with ScriptedServer([Say("Let me see."), Call("look"), Say("And", after=30.0)], "Done.") as server:
            base_url = server.base_url(wire)
            async with connect(PROVIDERS[wire], base_url=base_url, wire=wire, api_key="k") as model:
                chat = Conversation(Agent(model, [look]))
                turn = asyncio.create_task(chat.say("Go."))
                await started.wait()
                turn.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await turn
                assert [text for _, text in results_in(chat.messages)] == ["Error: cancelled: the run was cancelled"]
                assert (await chat.say("Go on.")).text == "Done."
            accepted(server)
            can_go_on(chat.messages)

    asyncio.run(main())


def test_a_cancelled_turn_does_not_wait_for_the_thread_of_a_synchronous_tool() -> None:
    """Row 27: real threads. The tool cannot be ended, but the turn can."""
    release = threading.Event()

    async def main() -> None:
        loop, started = asyncio.get_running_loop(), asyncio.Event()

        @tool
        def hangs() -> str:
            """Hang until released."""
            loop.call_soon_threadsafe(started.set)
            release.wait(5)
            return "late"

        chat = Conversation(Agent(ScriptedModel(Call("hangs"), "Done."), [hangs]))
        turn = asyncio.create_task(chat.say("Go."))
        await started.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert not release.is_set()
        assert [text for _, text in results_in(chat.messages)] == ["Error: cancelled: the run was cancelled"]
        assert (await chat.say("Go on.")).text == "Done."
        release.set()

    asyncio.run(main())


# Row 28: results in the order of completion


@under_every_schedule
@on_every_wire
def test_results_stand_in_call_order_whatever_ends_first(wire: str, schedule: Schedule) -> None:
    """Row 28: the first call ends last."""
    desk = Desk()
    tools = [desk.tool(f"t{n}", f"r{n}", seconds=(5 - n) / 10, effect="read") for n in range(5)]
    model = ScriptedModel([Call(f"t{n}", after=0.01) for n in range(5)], "Done.", wire=wire)
    result, events = play_aloud(Agent(model, tools, schedule=schedule))
    assert texts(result) == ["r0", "r1", "r2", "r3", "r4"]
    ended = [event.name for event in only(CallFinished, events)]
    assert ended == (
        [f"t{n}" for n in range(5)] if schedule is Schedule.SEQUENTIAL else [f"t{4 - n}" for n in range(5)]
    )
    accepted(model, result)
