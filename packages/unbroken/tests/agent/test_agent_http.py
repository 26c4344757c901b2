"""The same agent over real HTTP, on the four wires. The server refuses what a provider would refuse, and events arrive
while the response is still being written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenes import PROVIDERS, accepted, can_go_on, on_every_wire, only, texts

from unbroken import (
    Agent,
    CallFinished,
    CallStarted,
    Conversation,
    Event,
    Image,
    Text,
    TextAdded,
    ToolCallsDetected,
    User,
    connect,
    tool,
)
from unbroken.errors import ModelNotFound, Unauthorized
from unbroken.models.http import HTTPModel
from unbroken_testing import Call, Say, ScriptedServer, Uses
from unbroken_wires.messages import Media

PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\xa7\x9a\xa0\xa0\x00\x00\x00\x00IEND\xaeB`\x82"
)


@tool(effect="read")
async def weather(city: str) -> str:
    """The weather.

    Args:
        city: Where.
    """
    return f"{city}: fine"


def model_of(server: ScriptedServer, wire: str, **settings: Any) -> HTTPModel:
    key = settings.pop("api_key", "k")
    return connect(PROVIDERS[wire], base_url=server.base_url(wire), wire=wire, api_key=key, **settings).model


CALLS = [Say("Let me see."), *[Call("weather", city=city) for city in ("Rome", "北京", "Kraków")]]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@on_every_wire
def test_three_calls_run_and_their_results_go_back_in_order(wire: str, stream: bool) -> None:
    async def main() -> None:
        async with ScriptedServer([*CALLS, Uses(100, 20)], ["All fine.", Uses(150, 5)]) as server:
            result = await Agent(model_of(server, wire, stream=stream), [weather]).run("How is it?")
            assert texts(result) == ["Rome: fine", "北京: fine", "Kraków: fine"]
            assert (result.text, result.stop_reason, result.rounds, result.requests) == ("All fine.", "answered", 1, 2)
            assert (result.usage.input_tokens, result.usage.output_tokens) == (250, 25)
            assert not result.usage.estimated
            accepted(server, result)

    asyncio.run(main())


@on_every_wire
def test_a_conversation_continues_over_one_connection(wire: str) -> None:
    async def main() -> None:
        async with ScriptedServer(CALLS, "All fine.", CALLS, "Still fine.") as server:
            chat = Conversation(Agent(model_of(server, wire), [weather]))
            assert [(await chat.say("How is it?")).text, (await chat.say("And now?")).text] == [
                "All fine.",
                "Still fine.",
            ]
            accepted(server)
            can_go_on(chat.messages)

    asyncio.run(main())


@on_every_wire
def test_a_wrong_key_and_an_unknown_model_raise_their_own_errors(wire: str) -> None:
    async def main() -> None:
        async with ScriptedServer("Never.", api_key="right") as server:
            with pytest.raises(Unauthorized) as wrong:
                await Agent(model_of(server, wire, api_key="sk-wrong-secret")).run("Go.")
            assert wrong.value.status == 401
            assert "sk-wrong-secret" not in f"{wrong.value}{wrong.value!r}"
            can_go_on(wrong.value.messages)
        async with ScriptedServer("Never.", models=["other"]) as server:
            with pytest.raises(ModelNotFound, match="demo") as missing:
                await Agent(model_of(server, wire)).run("Go.")
            assert missing.value.status == 404

    asyncio.run(main())


@on_every_wire
def test_events_arrive_while_the_response_is_still_being_written(wire: str) -> None:
    """The server holds back its last text until the first was read and the early call has run: an agent that waited for
    the end of the response would wait forever."""

    async def main() -> list[Event]:
        heard, ran = asyncio.Event(), asyncio.Event()

        @tool(effect="read")
        async def look() -> str:
            """Look."""
            await heard.wait()
            ran.set()
            return "seen"

        def held(chunks: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
            for pause, data in chunks:
                while b"Enough." in data and not ran.is_set():
                    yield 0.001, b""
                yield pause, data

        script = [Say("Let me see."), Call("look"), Call("look"), Say("Enough.", chunks=1)]
        events: list[Event] = []
        async with ScriptedServer(script, "Done.", wrap=held) as server:
            async for event in Agent(model_of(server, wire), [look]).stream("Go."):
                events.append(event)
                if isinstance(event, TextAdded):
                    heard.set()
            accepted(server)
        return events

    events = asyncio.run(asyncio.wait_for(main(), 10))
    (started,) = only(CallStarted, events)
    assert started.early
    ended = next(event for event in events if isinstance(event, CallFinished))
    (detected,) = only(ToolCallsDetected, events)
    assert started.seq < ended.seq < detected.seq


@on_every_wire
def test_an_image_next_to_the_question_is_sent(wire: str, tmp_path: Path) -> None:
    async def main() -> None:
        picture = tmp_path / "a.png"
        picture.write_bytes(PNG)
        async with ScriptedServer("A dot.") as server:
            result = await Agent(model_of(server, wire)).run(["What is this?", Image(picture)])
            assert result.text == "A dot."
            accepted(server, result)
            (asked,) = server.requests
            question = asked.messages[-1]
            assert isinstance(question, User)
            text, image = question.parts
            assert text == Text("What is this?")
            assert isinstance(image, Media)
            assert (image.mime, image.data) == ("image/png", Image(PNG, "image/png").data)

    asyncio.run(main())
