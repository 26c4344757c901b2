"""For the checks of the course assistant's page: the real application on a local port, opened in a real Chromium."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import chromium

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.web.server import create_app, serving
from unbroken import Model
from unbroken_testing import Call

SHOTS = os.environ.get("UNBROKEN_SHOTS")
READY = "document.querySelector('#examples button') !== null"
SEARCH = Call("search_course_content", query="What is MCP")
Act = Callable[[chromium.Tab, CourseAssistant], Awaitable[None]]


def in_browser(model: Model, act: Act, *, note: str = "", width: int = 1280, courses: Path | None = None) -> None:
    async def main() -> None:
        with CourseLibrary.of_own_files(courses) if courses else CourseLibrary.open() as library:
            assistant = CourseAssistant(model, library)
            async with serving(create_app(assistant, note)) as address, chromium.browser() as tab:
                await tab.size(width, 760)
                await tab.theme("light")
                await tab.open(address, READY)
                await act(tab, assistant)
                assert tab.complaints == []

    asyncio.run(main())


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


async def texts(tab: chromium.Tab, selector: str) -> list[str]:
    return await tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)")


async def ask(tab: chromium.Tab, question: str, ends: int) -> None:
    """Types and presses Enter; waits until so many questions have ended."""
    await tab.run("document.getElementById('question').focus()")
    await tab.ask("Input.insertText", text=question)
    await tab.press("Enter")
    await until_ended(tab, ends)


async def until_ended(tab: chromium.Tab, ends: int) -> None:
    await tab.until(f"document.querySelectorAll('.facts, .failure').length === {ends} && !chat.going")
    await tab.settle()


async def reload(tab: chromium.Tab) -> None:
    await tab.run("window.before = true")
    await tab.ask("Page.reload")
    await tab.until(f"!window.before && document.readyState === 'complete' && ({READY})")
