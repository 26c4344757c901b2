"""Reading a stream in odd ways: with a time-out for each event, in another event loop, by two readers. Nothing hangs,
and no event is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from scenes import Desk, only

from unbroken import Agent, CallFinished, Event, RunFinished, ScriptedModel, TextAdded, UserError
from unbroken.agent import RunStream
from unbroken.agent.ag_ui import ag_ui_events
from unbroken.agent.sentences import sentences
from unbroken.agent.steps import steps
from unbroken.agent.ui_messages import ui_messages
from unbroken.clock import VirtualLoop, current_clock
from unbroken_dph import run_program
from unbroken_testing import Call, Pause, Say, run_virtual

if TYPE_CHECKING:
    from unbroken.agent.streaming import Readable

T = TypeVar("T")


def stream_of(**options: Any) -> RunStream:
    """Something happens every three seconds."""
    desk = Desk()
    script = [Say("One. "), Pause(3.0), Say("Two. "), Pause(3.0), Call("look")]
    return Agent(ScriptedModel(script, "Done."), [desk.tool("look", seconds=3.0)], **options).stream("Go.", run_id="r")


async def read_impatiently(stream: Readable[T]) -> tuple[list[T], int]:
    """What was read, and how often nothing came for a second."""
    items: list[T] = []
    late = 0
    while True:
        try:
            items.append(await asyncio.wait_for(anext(stream), 1.0))
        except TimeoutError:
            late += 1
        except StopAsyncIteration:
            return items, late


async def all_of(stream: Readable[T]) -> list[T]:
    return [item async for item in stream]


def written(stream: RunStream) -> Readable[Any]:
    return stream


def program(_: RunStream) -> Readable[Any]:
    return run_program('/explore/ "Go." -> a', ScriptedModel([Say("One. "), Pause(9.0), Say("Two.")]))


VIEWS = [written, ui_messages, ag_ui_events, steps, sentences, program]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_read_that_is_cancelled_loses_nothing_and_does_not_end_the_run(view: Callable[..., Readable[Any]]) -> None:
    async def main(read: Callable[[Readable[Any]], Awaitable[T]]) -> T:
        return await read(view(stream_of()))

    everything = run_virtual(main(all_of))
    items, late = run_virtual(main(read_impatiently))
    assert view is program or items == everything  # the run of a program has a random id
    assert len(items) == len(everything)
    assert late >= 6


def test_values_of_a_typed_answer_can_be_read_with_a_time_out_too() -> None:
    async def main() -> None:
        script = [Say('{"city": "Rome", '), Pause(3.0), Say('"days": 3}')]
        stream = Agent(ScriptedModel(script), output=dict[str, Any]).stream("Go.")
        values, late = await read_impatiently(stream.outputs())
        assert (values, late) == ([{}, {"city": "Rome"}, {"city": "Rome", "days": 3}], 3)
        assert stream.result.output == values[-1]

    run_virtual(main())


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_heartbeat_is_none_whenever_nothing_came_for_so_long(view: Callable[..., Readable[Any]]) -> None:
    async def main() -> list[tuple[float, Any]]:
        async with view(stream_of()) as stream:
            return [(current_clock().elapsed(), item) async for item in stream.heartbeat(2.0)]

    before = 0.0
    beats = 0
    for at, item in run_virtual(main()):
        assert at - before == 2.0 if item is None else at - before <= 2.0
        before, beats = at, beats + (item is None)
    assert beats in (3, 4)


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "5", None, True], ids=repr)
def test_a_heartbeat_that_cannot_beat_is_refused_when_it_is_made_and_the_stream_can_still_be_read(seconds: Any) -> None:
    async def main() -> None:
        async with stream_of() as stream:
            with pytest.raises(UserError, match=rf"heartbeat\({seconds!r}\): give the seconds .*, a number above 0"):
                stream.heartbeat(seconds)
            assert await all_of(stream)

    run_virtual(main())


def test_an_error_of_the_run_passes_through_its_heartbeat() -> None:
    async def main() -> None:
        async def breaks(turn: int, transcript: Any) -> Any:
            raise TimeoutError("of the user's own function")

        stream = Agent(ScriptedModel("Never."), breaks).stream("Go.")
        with pytest.raises(UserError, match="of the user's own function"):
            assert [event async for event in stream.heartbeat(2.0)]

    run_virtual(main())


def test_leaving_the_context_while_a_heartbeat_is_read_ends_the_run() -> None:
    async def main() -> None:
        async with stream_of() as stream:
            async for event in stream.heartbeat(2.0):
                if event is None:
                    break
        with pytest.raises(RuntimeError, match="closed before the end"):
            _ = stream.result

    run_virtual(main())


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_stream_that_was_begun_in_another_event_loop_is_refused_at_once(view: Callable[..., Readable[Any]]) -> None:
    begun: list[Readable[Any]] = []

    async def begin() -> None:
        begun.append(view(stream_of()))
        await anext(begun[0])

    async def continue_elsewhere() -> None:
        with pytest.raises(UserError, match="begun in another event loop"):
            await asyncio.wait_for(anext(begun[0]), 5.0)
        await asyncio.wait_for(begun[0].aclose(), 5.0)

    first = VirtualLoop()
    try:
        first.run_until_complete(begin())
        asyncio.run(continue_elsewhere())
        running = asyncio.all_tasks(first)
        first.run_until_complete(asyncio.wait(running, timeout=1.0))
        assert all(task.cancelled() for task in running)
    finally:
        first.close()


def test_a_stream_whose_event_loop_has_ended_is_refused_too() -> None:
    begun: list[RunStream] = []

    async def begin() -> None:
        begun.append(stream_of())
        await anext(begun[0])

    async def continue_elsewhere() -> None:
        with pytest.raises(UserError, match="begun in another event loop"):
            assert [event async for event in begun[0]]

    asyncio.run(begin())
    asyncio.run(continue_elsewhere())


def test_a_second_reader_is_refused_and_the_first_gets_everything() -> None:
    async def main() -> None:
        stream = stream_of()
        reading = asyncio.create_task(all_of(stream))
        await asyncio.sleep(1.0)
        with pytest.raises(UserError, match="has a reader already"):
            await anext(stream)
        events = await reading
        assert [event.seq for event in events] == list(range(len(events)))
        assert isinstance(events[-1], RunFinished)

    run_virtual(main())


def test_a_reader_after_the_end_is_told_that_nothing_is_left() -> None:
    async def main() -> None:
        stream = stream_of()
        assert len(await all_of(stream)) > 3
        with pytest.raises(UserError, match="was read to its end already"):
            await all_of(stream)
        assert await anext(stream, None) is None
        assert stream.result.text == "Done."

    run_virtual(main())


def test_one_reader_may_stop_and_another_continue() -> None:
    async def main() -> None:
        stream = stream_of()
        first: list[Event] = []
        async for event in stream:
            first.append(event)
            if isinstance(event, TextAdded):
                break
        rest = await all_of(stream)
        assert [event.seq for event in first + rest] == list(range(len(first) + len(rest)))
        assert len(only(CallFinished, rest)) == 1

    run_virtual(main())
