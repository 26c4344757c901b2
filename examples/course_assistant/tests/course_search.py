"""For the tests of the search tool: one search, as the model reads its result."""

from __future__ import annotations

import asyncio

from course_assistant.course_tools import course_tools
from course_assistant.library import CourseLibrary
from unbroken import ToolOutput


def search(library: CourseLibrary, query: str, course: str | None = None, lesson: int | None = None) -> str:
    tool, _ = course_tools(library)
    found = asyncio.run(tool(query, course, lesson))
    return str(found.content) if isinstance(found, ToolOutput) else found
