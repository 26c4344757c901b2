"""For the tests of the web part: two small courses, the real application on a local port, and a client that reads its
events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.web.chat_store import ChatStore
from course_assistant.web.server import create_app, serving
from unbroken import Model, Request, ScriptedModel
from unbroken_wires.deltas import Delta

Told = dict[str, Any]

MCP = """Course: MCP: Build Tool Servers
Link: https://example.com/mcp
Prerequisites: Python.

Lesson 1: What MCP Is
Link: https://example.com/mcp/1

MCP is the Model Context Protocol. It lets a program offer tools to any model.

Lesson 2: Prompt Caching
Link: https://example.com/mcp/2

Prompt caching keeps the tool definitions, so that they are paid for once.
"""
COMPUTER_USE = """Course: Computer Use
Link: https://example.com/computer
Prerequisites: none.

Lesson 1: The Screen
Link: https://example.com/computer/1

The model sees pictures of the screen and says where to click.
"""


@dataclass(frozen=True, slots=True)
class Client:
    http: ClientSession
    address: str
    assistant: CourseAssistant

    async def ask(self, question: str, session_id: str | None = None) -> list[Told]:
        """All events of a question."""
        body = {"question": question} | ({"session_id": session_id} if session_id else {})
        async with self.http.post(f"{self.address}api/ask", json=body) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            return read(await response.text())

    async def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """The status and the message of a refused request."""
        async with self.http.request(method, self.address + path, **options) as response:
            said: Told = await response.json()
            assert list(said) == ["error"]
            return response.status, said["error"]


def read(stream: str) -> list[Told]:
    """The events of a stream, each with its number as `id`, if it has one."""
    told: list[Told] = []
    for part in stream.split("\n\n")[:-1]:
        *number, data = part.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        if number:
            told[-1]["number_of_event"] = int(number[0].removeprefix("id: "))
    return told


def texts(told: list[Told]) -> str:
    return "".join(one["text"] for one in told if one["event"] == "text_added")


@asynccontextmanager
async def served(
    model: Model, folder: Path, *, note: str = "", store: ChatStore | None = None, **options: Any
) -> AsyncGenerator[Client]:
    for name, text in (("mcp.txt", MCP), ("computer.txt", COMPUTER_USE)):
        (folder / name).write_text(text, "utf-8")
    with CourseLibrary.open(folder, full_text_only=True) as library:
        assistant = CourseAssistant(model, library)
        async with serving(create_app(assistant, note, store=store, **options)) as address, ClientSession() as http:
            yield Client(http, address, assistant)


class Held:
    """A model whose answer number `at` (from 0) waits for `free`. `reached` is set when it is requested,
    `left` when the client has gone."""

    name = "held"

    def __init__(self, model: ScriptedModel, at: int) -> None:
        self._model = model
        self._at = at
        self._asked = 0
        self.reached, self.free, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        number, self._asked = self._asked, self._asked + 1
        answer = self._model.stream(request)
        if number == self._at:
            self.reached.set()
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.left.set()
                raise
        async for deltas in answer:
            yield deltas
