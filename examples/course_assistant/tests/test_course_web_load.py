"""Fifty chats at once through the real application: the model requests of all chats are in flight together, and no chat
gets text of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aiohttp import ClientSession
from course_web import Client, Told, served, texts

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.tours import TOURS, scripted_model
from course_assistant.web.server import create_app, serving
from unbroken import Request, ScriptedModel, ToolMessage, User
from unbroken_testing import Answer, Call, Say
from unbroken_wires.deltas import Delta

CHATS = 50


def test_fifty_chats_at_once_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        model = AllAtOnce(ScriptedModel(answer), CHATS)
        async with served(model, tmp_path) as client, asyncio.timeout(60):
            chats = await asyncio.gather(*(chat(client, number) for number in range(CHATS)))

        assert model.most == CHATS
        assert len({first[0]["id"] for first, _ in chats}) == CHATS
        for number, (first, second) in enumerate(chats):
            assert first[0]["id"] == second[0]["id"]
            assert (
                first[-1]["text"]
                == texts(first)
                == f"For visitor-{number}: 1 result, of the query visitor-{number} MCP [4]"
            )
            assert second[-1]["text"] == texts(second) == f"You are visitor-{number}."
            assert [one["arguments"]["query"] for one in first if one["event"] == "call_started"] == [
                f"visitor-{number} MCP"
            ]
            assert (first[-1]["rounds"], second[-1]["rounds"]) == (1, 0)
            assert first[-1]["sources"]
            assert not second[-1]["sources"]

    asyncio.run(main())


def test_fifty_chats_with_the_shipped_courses_model_and_vectors_have_the_answers_of_single_ones(
    library: CourseLibrary,
) -> None:
    async def main() -> None:
        assistant = CourseAssistant(scripted_model(), library)
        alone = [await assistant.ask(tour.question) for tour in TOURS]
        async with serving(create_app(assistant)) as address, ClientSession() as http:
            client = Client(http, address, assistant)
            many = await asyncio.gather(*(client.ask(TOURS[number % 7].question) for number in range(CHATS)))
        for number, told in enumerate(many):
            expected, end = alone[number % 7], told[-1]
            assert (end["text"], end["rounds"]) == (expected.text, expected.result.rounds)
            assert [source["link"] for source in end["sources"]] == [source.link for source in expected.sources]

    assert library.has_vectors
    asyncio.run(main())


async def chat(client: Client, number: int) -> tuple[list[Told], list[Told]]:
    first = await client.ask(f"I am visitor-{number}: what is MCP?")
    return first, await client.ask("Who am I?", first[0]["id"])


def answer(request: Request) -> Answer:
    """Returns the user's name (from the first question) and the search term (from the call)."""
    questions = [message.text for message in request.messages if isinstance(message, User)]
    visitor = questions[0].removeprefix("I am ").partition(":")[0]
    if len(questions) == 2:
        return Say(f"You are {visitor}.", chunks=3)
    results = [result for message in request.messages if isinstance(message, ToolMessage) for result in message.results]
    if not results:
        return Call("search_course_content", query=f"{visitor} MCP")
    query = next(str(call.arguments["query"]) for message in request.messages for call in getattr(message, "calls", ()))
    return Say(f"For {visitor}: {len(results)} result, of the query {query} [4]", chunks=3)


class AllAtOnce:
    """A model that answers when as many requests as there are chats are waiting: if chats took turns, they would wait
    forever."""

    name = "all-at-once"

    def __init__(self, model: ScriptedModel, chats: int) -> None:
        self._model = model
        self._together = asyncio.Barrier(chats)
        self._waiting = 0
        self.most = 0

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        async with self._together:
            self._waiting -= 1
            async for deltas in self._model.stream(request):
                yield deltas
