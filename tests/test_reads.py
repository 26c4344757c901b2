"""Deltas that came together travel together (`reads`), and are the same as those that come one by one (`stream`)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenes import only
from streams import chunk, piece, sse

from unbroken import (
    Agent,
    Event,
    Guarded,
    HTTPModel,
    Request,
    RunFinished,
    TextAdded,
    User,
    connect,
    event_to_json,
    tool,
)
from unbroken.deltas import CallReady, Delta, Ended, Restarted, TextDelta
from unbroken.models.model import Model, reads
from unbroken.testing import Break, Raw, ScriptedServer, serve
from unbroken.tools.execution import Batch
from unbroken.trajectory.recording import read_recording
from unbroken.transcript import to_json

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


def model_of(server: ScriptedServer) -> Guarded[HTTPModel]:
    return connect("openai:demo", base_url=server.base_url(), api_key="k")


async def together(model: Model) -> list[list[Delta]]:
    return [list(deltas) async for deltas in reads(model, ASKED)]


async def one_by_one(model: Model) -> list[Delta]:
    return [delta async for delta in model.stream(ASKED)]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "not guarded"])
def test_what_is_in_one_read_is_given_at_once(guarded: bool) -> None:
    with serve(TEXT, loop_last=True) as server:
        model: Model = model_of(server) if guarded else model_of(server).model
        found = asyncio.run(together(model))
        assert all(found), "nothing is said by nobody"
        assert len(found) < len(WORDS), "they were sent in one piece"
        flat = [delta for deltas in found for delta in deltas]
        assert flat == asyncio.run(one_by_one(model))
        assert [delta.text for delta in flat if isinstance(delta, TextDelta)] == ["It ", "is ", "sunny ", "there. "]
        assert isinstance(flat[-1], Ended)


def test_a_model_that_only_streams_is_read_delta_by_delta() -> None:
    class Foreign:
        name = "foreign"

        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            yield TextDelta("a")
            yield TextDelta("b")

    assert asyncio.run(together(Foreign())) == [[TextDelta("a")], [TextDelta("b")]]


def test_what_stands_in_front_of_a_model_is_not_passed_by(server: ScriptedServer) -> None:
    class InFront:
        """Passes on every attribute, as many wrappers do."""

        def __init__(self, model: Model) -> None:
            self._model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self._model, name)

        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            yield TextDelta("It was me. ")
            async for delta in self._model.stream(request):
                yield delta

    class Louder(Guarded[HTTPModel]):
        async def stream(self, request: Request) -> AsyncIterator[Delta]:  # type: ignore[override]
            yield TextDelta("It was me. ")
            async for delta in super().stream(request):
                yield delta

    for model in (InFront(model_of(server)), Louder(model_of(server).model)):
        found = asyncio.run(together(model))  # type: ignore[arg-type] - its name is passed on
        assert found[0] == [TextDelta("It was me. ")]


def test_a_stream_that_somebody_put_in_its_place_is_the_one_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stream(request: Request) -> AsyncIterator[Delta]:
        yield TextDelta("Nobody was asked.")

    async def of_the_class(self: HTTPModel, request: Request) -> AsyncIterator[Delta]:
        yield TextDelta("Nobody was asked.")

    model = connect("openai:demo", base_url="http://127.0.0.1:9/v1", api_key="k", attempts=1)
    monkeypatch.setattr(model, "stream", stream)
    assert asyncio.run(together(model)) == [[TextDelta("Nobody was asked.")]]
    monkeypatch.undo()
    monkeypatch.setattr(HTTPModel, "stream", of_the_class)
    assert asyncio.run(together(model)) == [[TextDelta("Nobody was asked.")]]


def test_whatever_else_a_model_calls_reads_is_its_own_affair() -> None:
    class Counting:
        name = "counting"
        reads = 0

        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            self.reads += 1
            yield TextDelta("a")

    model = Counting()
    assert asyncio.run(together(model)) == [[TextDelta("a")]]
    assert model.reads == 1


def test_a_call_that_was_ready_in_the_read_that_broke_is_dropped_by_its_id() -> None:
    call = chunk({"tool_calls": [piece(0, "c", "weather", '{"city": "Rome"}', type="function")]})
    cut = Raw(sse(chunk({"content": "Let me look."}), call, done=False))

    async def main(model: Guarded[HTTPModel]) -> list[Delta]:
        return await one_by_one(model)

    with serve([cut, Break()], TEXT, loop_last=True) as server:
        deltas = asyncio.run(main(model_of(server)))
    assert [delta.dropped for delta in deltas if isinstance(delta, Restarted)] == [("c",)]


def test_a_stream_that_is_left_gives_its_connection_back(server: ScriptedServer) -> None:
    async def main() -> None:
        stream = model_of(server).stream(ASKED)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined] - it is a generator
        deltas = await one_by_one(model_of(server))
        assert isinstance(deltas[-1], Ended)

    asyncio.run(main())


def test_calls_of_one_read_are_all_ready(server: ScriptedServer) -> None:
    found = [delta for deltas in asyncio.run(together(model_of(server))) for delta in deltas]
    assert [delta.call.name for delta in found if isinstance(delta, CallReady)] == ["weather"]


def test_text_that_came_together_is_said_together(server: ScriptedServer) -> None:
    events: list[Event] = []
    result = asyncio.run(Agent(model_of(server), [weather], sinks=[events.append]).run("Go."))
    said = only(TextAdded, events)
    assert "".join(event.text for event in said) == "Let me look.It is sunny there. "
    assert len(said) < 6, "six pieces came"
    assert [event.seq for event in events] == list(range(len(events)))
    assert result.text == "It is sunny there. "


def test_a_recording_has_each_piece_for_itself(server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    events: list[Event] = []
    agent = Agent(model_of(server), [weather], sinks=[events.append], record=path)
    asyncio.run(agent.run("Go."))
    assert [event.text for event in only(TextAdded, events)] == ["Let me ", "look.", "It ", "is ", "sunny ", "there. "]
    assert [event.seq for event in read_recording(path).events] == list(range(len(events)))


def test_the_history_in_the_last_event_is_written_when_it_is_read(server: ScriptedServer) -> None:
    events: list[Event] = []
    result = asyncio.run(Agent(model_of(server), [weather], sinks=[events.append]).run("Go."))
    (finished,) = only(RunFinished, events)
    assert finished.messages == to_json(result.messages)
    assert event_to_json(finished)["messages"] is finished.messages
    finished.messages = []
    assert finished.messages == []


def test_a_run_leaves_nothing_for_the_garbage_collector(server: ScriptedServer) -> None:
    async def main() -> None:
        agent = Agent(model_of(server), [weather])
        await agent.run("Go.")
        gc.collect()
        gc.disable()
        try:
            await agent.run("Go.")
            await asyncio.sleep(0)
            assert [each for each in gc.get_objects() if isinstance(each, Batch)] == []
        finally:
            gc.enable()

    asyncio.run(main())
