"""Rows 20 to 23 of the fault list: failing, hanging, unknown and repeated calls, on the four wires. Each test checks
what ran, which results were sent, and that a provider accepts every request."""

from __future__ import annotations

import asyncio
import threading

import pytest
from scenes import Desk, accepted, on_every_wire, only, play, play_aloud, texts, under_every_schedule

from unbroken import (
    Agent,
    CallFinished,
    RequestSent,
    Result,
    Schedule,
    ScriptedModel,
    tool,
)
from unbroken_testing import Call

# Row 20: one of the tools raises


def good(n: int) -> str:
    return f"good {n}"


class Odd(Exception):
    """An exception whose text cannot be read."""

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
        (SystemExit(3), "Error: it tried to end the program (exit code 3)"),
        (Odd(), "Error: Odd"),
        (ExceptionGroup("two", [ValueError("a"), ValueError("b")]), "Error: two (2 sub-exceptions): a"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_whatever_a_tool_raises_is_reported_to_the_model(error: BaseException, told: str, is_async: bool) -> None:
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


def test_if_a_tools_inner_task_was_cancelled_the_tool_failed_and_the_run_continues() -> None:
    """Row 20: the tool's own cancellation is not the run's."""

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


def test_synchronous_tools_run_in_parallel_and_do_not_block_the_loop() -> None:
    """Row 21: both are in flight at once while the loop keeps running. Real threads."""
    together = threading.Barrier(3, timeout=5)

    @tool(overlap=True)
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
def test_an_unknown_tool_is_reported_with_the_known_names(wire: str, schedule: Schedule) -> None:
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
def test_arguments_that_do_not_match_are_reported_with_the_first_errors(wire: str, schedule: Schedule) -> None:
    """Row 22: missing, of a wrong type, unknown; a number in a string is accepted."""
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
def test_a_call_that_is_repeated_for_ever_gets_a_reminder_and_is_then_refused(wire: str, effect: str) -> None:
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


def test_a_repeated_failing_call_gets_a_reminder_too() -> None:
    """Row 23: the 3rd in a row has a reminder appended to its result, even if that is an error."""
    desk = Desk()
    model = ScriptedModel(*[Call("look")] * 5, "It is down.")
    result = play(Agent(model, [desk.tool("look", fails="down")]))
    assert ["times in a row" in text for text in texts(result)] == [False, False, True, True, False]
    assert (len(desk.ran), result.stop_reason) == (4, "loop")


def test_a_tool_that_is_meant_to_be_repeated_gets_no_reminder() -> None:
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
