"""A run as a stream of events: if you stop reading in any way, it ends; nothing is left behind, and the history is
valid at every event."""

from __future__ import annotations

import asyncio
import gc

import pytest
from scenes import Desk, accepted, can_go_on, on_every_wire, only, results_in, under_every_schedule

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Event,
    RunFailed,
    RunFinished,
    Schedule,
    ScriptedModel,
    TextAdded,
    UserError,
)
from unbroken.agent import RunStream
from unbroken.errors import Unauthorized
from unbroken.events import TextFinished
from unbroken_testing import Call, Fail, Pause, Say, Think, run_virtual


def alone() -> None:
    """No other task is left in this loop."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


def a_slow_one(desk: Desk) -> Agent:
    tools = [desk.tool("quick", "quick"), desk.tool("slow", seconds=99.0, timeout=None)]
    return Agent(ScriptedModel([Say("Let me see."), Call("quick"), Call("slow")], "Done."), tools)


async def read_until_slow(stream: RunStream) -> None:
    async for event in stream:
        if isinstance(event, CallStarted) and event.name == "slow":
            return
    raise AssertionError("the slow tool never started")


@under_every_schedule
@on_every_wire
def test_the_history_is_valid_at_every_event(wire: str, schedule: Schedule) -> None:
    desk = Desk()
    tools = [
        desk.tool("look", seconds=0.5, effect="read"),
        desk.tool("note", seconds=0.2),
        desk.tool("fall", fails="boom"),
    ]
    model = ScriptedModel(
        [Think("Hm."), Say("Let me see."), Call("look"), Call("note", n=1), Call("look", n=2)],
        [Call("fall"), Call("nothing"), Call("look", after=0.3)],
        [Say("One more."), Call("note", n=2)],
        [Say("That is all.", over=1.0)],
        wire=wire,
    )

    async def main() -> None:
        stream = Agent(model, tools, schedule=schedule).stream("Go.")
        count = 0
        async for _ in stream:
            count += 1
            can_go_on(stream.messages)
        assert count > 25
        assert stream.messages == stream.result.messages
        assert stream.result.text == "That is all."

    run_virtual(main())
    accepted(model)


def test_leaving_the_context_ends_the_run() -> None:
    desk = Desk()

    async def main() -> None:
        async with a_slow_one(desk).stream("Go.") as stream:
            await read_until_slow(stream)
        alone()
        can_go_on(stream.messages)
        assert [text for _, text in results_in(stream.messages)][1] == "Error: cancelled: the run was cancelled"

    run_virtual(main())
    assert desk.executions[-1].ended is None


def test_dropping_the_stream_ends_the_run() -> None:
    desk = Desk()

    async def main() -> None:
        async for event in a_slow_one(desk).stream("Go."):
            if isinstance(event, CallStarted) and event.name == "slow":
                break
        gc.collect()
        await asyncio.sleep(0.1)
        alone()
        assert asyncio.get_running_loop().time() == pytest.approx(0.1)

    run_virtual(main())
    assert desk.executions[-1].ended is None


async def fail_at_slow(stream: RunStream) -> None:
    async for event in stream:
        if isinstance(event, CallStarted) and event.name == "slow":
            raise ZeroDivisionError


def test_an_exception_in_the_loop_ends_the_run() -> None:
    desk = Desk()

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await fail_at_slow(a_slow_one(desk).stream("Go."))
        gc.collect()
        await asyncio.sleep(0.1)
        alone()

    run_virtual(main())


def test_a_reader_that_is_cancelled_inside_of_the_context_ends_the_run() -> None:
    desk = Desk()

    async def main() -> None:
        stream = a_slow_one(desk).stream("Go.")

        async def read() -> None:
            async with stream:
                async for _ in stream:
                    pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(5.0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        alone()
        can_go_on(stream.messages)

    run_virtual(main())


def test_a_reader_that_is_cancelled_and_gone_ends_the_run() -> None:
    async def main() -> None:
        async def read() -> None:
            async for _ in a_slow_one(Desk()).stream("Go."):
                pass

        reader = asyncio.create_task(read())
        await asyncio.sleep(5.0)
        reader.cancel()
        await asyncio.wait([reader])
        del reader
        gc.collect()
        await asyncio.sleep(0.1)
        alone()

    run_virtual(main())


def test_events_before_the_end_can_still_be_read() -> None:
    desk = Desk()

    async def main() -> None:
        stream = a_slow_one(desk).stream("Go.")
        await read_until_slow(stream)
        await stream.aclose()
        rest = [event async for event in stream]
        assert [event.name for event in only(CallFinished, rest)] == ["slow"]
        assert isinstance(rest[-1], RunFailed)
        assert await anext(stream, None) is None
        await stream.aclose()

    run_virtual(main())


def test_a_waiting_reader_is_released_if_another_closes_the_stream() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel([Say("One"), Pause(99.0), Say("two")])).stream("Go.")

        async def read() -> list[Event]:
            return [event async for event in stream]

        reader = asyncio.create_task(read())
        await asyncio.sleep(1.0)
        await stream.aclose()
        assert isinstance((await reader)[-1], RunFailed)

    run_virtual(main())


def test_a_failure_is_an_event_and_then_raised() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel(Call("look"), Fail(Unauthorized("no")), "Never."), Desk().tools("look")).stream(
            "Go."
        )
        events: list[Event] = []

        async def read() -> None:
            async for event in stream:
                events.append(event)

        with pytest.raises(Unauthorized, match="no") as caught:
            await read()
        assert isinstance(events[-1], RunFailed)
        assert (events[-1].error, events[-1].message) == ("Unauthorized", "no")
        assert caught.value.messages == stream.messages
        can_go_on(stream.messages)
        with pytest.raises(Unauthorized):
            _ = stream.result

    run_virtual(main())


def test_an_unread_failure_causes_no_warning() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel([Say("One"), Pause(1.0), Fail(Unauthorized("no"))])).stream("Go.")
        await anext(stream)
        await asyncio.sleep(5.0)
        del stream
        gc.collect()
        await asyncio.sleep(0.1)
        alone()

    run_virtual(main())


def test_there_is_no_result_before_the_end() -> None:
    async def main() -> None:
        stream = Agent(ScriptedModel("Hello.")).stream("Go.")
        with pytest.raises(RuntimeError, match="read the stream to the end first"):
            _ = stream.result
        await anext(stream)
        with pytest.raises(RuntimeError, match="read the stream to the end first"):
            _ = stream.result
        assert isinstance([event async for event in stream][-1], RunFinished)
        assert stream.result.text == "Hello."

    run_virtual(main())


def test_a_run_that_was_ended_early_has_no_result_and_explains_it() -> None:
    async def main() -> None:
        async with a_slow_one(Desk()).stream("Go.") as stream:
            await read_until_slow(stream)
        with pytest.raises(RuntimeError, match="its stream was closed before the end"):
            _ = stream.result
        can_go_on(stream.messages)

    run_virtual(main())


def test_a_stream_that_was_closed_unread_sends_no_request() -> None:
    async def main() -> None:
        model = ScriptedModel("Never.")
        stream = Agent(model).stream("Go.")
        async with stream:
            pass
        assert [event async for event in stream] == []
        assert model.requests == []
        with pytest.raises(RuntimeError, match="its stream was closed before the end"):
            _ = stream.result

    run_virtual(main())


def test_an_empty_prompt_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        Agent(ScriptedModel("Never.")).stream("")


def test_an_unread_stream_sends_no_request() -> None:
    model = ScriptedModel("Never.")

    async def main() -> None:
        stream = Agent(model).stream("Go.")
        await asyncio.sleep(1.0)
        await stream.aclose()
        alone()

    run_virtual(main())
    assert model.requests == []


def test_a_slow_reader_misses_nothing() -> None:
    async def main() -> str:
        text = ""
        async for event in Agent(ScriptedModel("one two three four")).stream("Go."):
            await asyncio.sleep(3.0)
            if isinstance(event, TextAdded):
                text += event.text
            if isinstance(event, TextFinished):
                assert event.text == text
        return text

    assert run_virtual(main()) == "one two three four"
