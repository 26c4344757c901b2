"""Rows 27 and 28 of the fault list: if a run is cancelled at any moment, every call has a result and the conversation
can be continued; and results are in call order, whatever ends first."""

from __future__ import annotations

import asyncio
import threading

import pytest
from scenes import (
    PROVIDERS,
    Desk,
    accepted,
    can_go_on,
    on_every_wire,
    only,
    play_aloud,
    results_in,
    texts,
    under_every_schedule,
)

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Event,
    RunFailed,
    Schedule,
    ScriptedModel,
    connect,
    tool,
)
from unbroken_testing import Call, Pause, Say, ScriptedServer, Think, run_virtual

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
def test_a_cancelled_turn_leaves_a_conversation_that_can_be_continued(
    wire: str, schedule: Schedule, at: float, ran: list[str]
) -> None:
    """Row 27: every call has a result at whatever moment it was cancelled."""
    desk = Desk()
    early = desk.tool("early", seconds=3.0, effect="read", overlap=True)
    tools = [early, desk.tool("late", seconds=2.0, overlap=True)]
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
def test_if_you_stop_reading_a_stream_the_run_ends_with_every_call_answered(wire: str, schedule: Schedule) -> None:
    """Row 27: the client disconnects while tools run."""
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
    """Row 27: known results are kept."""
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
def test_a_turn_that_is_cancelled_over_http_leaves_a_conversation_that_can_be_continued(wire: str) -> None:
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
def test_results_are_in_call_order_whatever_ends_first(wire: str, schedule: Schedule) -> None:
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
