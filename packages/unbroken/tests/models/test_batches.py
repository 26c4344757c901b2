"""`Model.stream` yields batches: the deltas of one network read are yielded together."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from scenes import only
from streams import chunk, piece, sse

from unbroken import (
    Agent,
    Event,
    Request,
    RetryingModel,
    RunFinished,
    TextAdded,
    User,
    UserError,
    connect,
    tool,
)
from unbroken.events import event_to_json
from unbroken.models.http import HTTPModel
from unbroken.models.model import Model
from unbroken.tools.execution import Batch
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Break, Raw, ScriptedServer, serve
from unbroken_wires.deltas import CallReady, Delta, Ended, Restarted, TextDelta
from unbroken_wires.transcript import to_json

WORDS = [chunk({"content": f"{word} "}) for word in ("It", "is", "sunny", "there.")]
TEXT = Raw(sse(chunk({"role": "assistant", "content": ""}), *WORDS, chunk({}, "stop")))
CALL = Raw(
    sse(
        chunk({"content": "Let me "}),
        chunk({"content": "look."}),
        chunk({"tool_calls": [piece(0, "c", "weather", '{"city": "Rome"}', type="function")]}),
        chunk({}, "tool_calls"),
    )
)
ASKED = Request((User.of("Go."),))


@tool(effect="write")
async def weather(city: str) -> str:
    """The weather."""
    return f"fine in {city}"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve(CALL, TEXT, loop_last=True) as server:
        yield server


def model_of(server: ScriptedServer) -> RetryingModel[HTTPModel]:
    return connect("openai:demo", base_url=server.base_url(), api_key="k")


async def batches_of(model: Model) -> list[list[Delta]]:
    return [list(deltas) async for deltas in model.stream(ASKED)]


async def deltas_of(model: Model) -> list[Delta]:
    return [delta for deltas in await batches_of(model) for delta in deltas]


@pytest.mark.parametrize("retries", [True, False], ids=["with retries", "without"])
def test_everything_in_one_read_is_yielded_at_once(retries: bool) -> None:
    with serve(TEXT, loop_last=True) as server:
        model: Model = model_of(server) if retries else model_of(server).model
        found = asyncio.run(batches_of(model))
        assert all(found), "nothing is said by nobody"
        assert len(found) < len(WORDS), "they were sent in one piece"
        flat = [delta for deltas in found for delta in deltas]
        assert [delta.text for delta in flat if isinstance(delta, TextDelta)] == ["It ", "is ", "sunny ", "there. "]
        assert isinstance(flat[-1], Ended)


def test_many_tiny_events_are_read_a_few_at_a_time() -> None:
    """So that other tasks run in between, however many events a server puts into one packet."""
    event = b'data:{"choices":[{"delta":{"content":"a"}}]}\n\n'
    with serve(Raw(event * 4000 + sse(chunk({}, "stop")))) as server:
        found = asyncio.run(batches_of(model_of(server).model))
    assert sum(map(len, found)) > 4000
    assert max(map(len, found)) <= 700


def test_a_model_that_yields_single_deltas_gets_an_error_about_batches() -> None:
    class Single:
        name = "single"

        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            yield TextDelta("a")

    for model in (Single(), RetryingModel(Single())):  # type: ignore[type-var] - that is the mistake
        with pytest.raises(UserError, match=r"model `single` yields a TextDelta.*yield \[delta\]"):
            asyncio.run(Agent(model).run("Go."))  # type: ignore[arg-type]


def test_a_call_that_was_ready_in_the_read_that_broke_is_dropped_by_id() -> None:
    call = chunk({"tool_calls": [piece(0, "c", "weather", '{"city": "Rome"}', type="function")]})
    cut = Raw(sse(chunk({"content": "Let me look."}), call, done=False))

    async def main(model: RetryingModel[HTTPModel]) -> list[Delta]:
        return await deltas_of(model)

    with serve([cut, Break()], TEXT, loop_last=True) as server:
        deltas = asyncio.run(main(model_of(server)))
    assert [delta.dropped for delta in deltas if isinstance(delta, Restarted)] == [("c",)]


def test_a_stream_that_is_left_returns_its_connection(server: ScriptedServer) -> None:
    async def main() -> None:
        stream = model_of(server).stream(ASKED)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined] - it is a generator
        deltas = await deltas_of(model_of(server))
        assert isinstance(deltas[-1], Ended)

    asyncio.run(main())


def test_calls_of_one_read_are_all_ready(server: ScriptedServer) -> None:
    found = [delta for deltas in asyncio.run(batches_of(model_of(server))) for delta in deltas]
    assert [delta.call.name for delta in found if isinstance(delta, CallReady)] == ["weather"]


def test_text_that_arrived_together_is_yielded_together(server: ScriptedServer) -> None:
    events: list[Event] = []
    result = asyncio.run(Agent(model_of(server), [weather], sinks=[events.append]).run("Go."))
    said = only(TextAdded, events)
    assert "".join(event.text for event in said) == "Let me look.It is sunny there. "
    assert len(said) < 6, "six pieces came"
    assert [event.seq for event in events] == list(range(len(events)))
    assert result.text == "It is sunny there. "


def test_a_recording_has_each_piece_and_shows_which_arrived_together(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    events: list[Event] = []
    agent = Agent(model_of(server), [weather], sinks=[events.append], record=path)
    asyncio.run(agent.run("Go."))
    pieces = [line["text"] for line in read_recording(path).of("delta") if line["delta"] == "text"]
    assert pieces == ["Let me ", "look.", "It ", "is ", "sunny ", "there. "]
    found = [(event.seq, event.text) for event in read_recording(path).events if isinstance(event, TextAdded)]
    assert found == [(event.seq, event.text) for event in only(TextAdded, events)]


def test_the_last_event_contains_the_history(server: ScriptedServer) -> None:
    events: list[Event] = []
    result = asyncio.run(Agent(model_of(server), [weather], sinks=[events.append]).run("Go."))
    (finished,) = only(RunFinished, events)
    assert finished.messages == to_json(result.messages)
    assert event_to_json(finished)["messages"] is finished.messages


def test_a_run_leaves_nothing_for_the_garbage_collector(server: ScriptedServer) -> None:
    async def main() -> None:
        agent = Agent(model_of(server), [weather])
        await agent.run("Go.")
        gc.collect()
        gc.disable()
        before = [each for each in gc.get_objects() if isinstance(each, Batch)]
        try:
            await agent.run("Go.")
            await asyncio.sleep(0)
            assert [each for each in gc.get_objects() if isinstance(each, Batch)] == before
        finally:
            gc.enable()

    asyncio.run(main())
