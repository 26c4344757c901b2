"""Sources are listed without duplicates, in the order of first use."""

from __future__ import annotations

import asyncio

from course_assistant.assistant import CourseAssistant
from course_assistant.chunks import Chunk
from course_assistant.courses import Course
from course_assistant.library import CourseLibrary
from course_assistant.sources import Source, unique
from unbroken import ScriptedModel
from unbroken_testing import Call, run_virtual


def caching(course: str) -> Call:
    return Call("search_course_content", query="prompt caching", course_name=course)


def titles(library: CourseLibrary, *script: list[Call] | str) -> list[str]:
    answered = run_virtual(CourseAssistant(ScriptedModel(*script), library).ask("Sources?"))
    return [source.title.partition(":")[0] + source.title[-2:] for source in answered.found]


def test_two_searches_that_find_the_same_lesson_list_it_once(library: CourseLibrary) -> None:
    again = Call("search_course_content", query="what lesson 3 covers", course_name="MCP", lesson_number=3)
    assert titles(library, [caching("MCP")], [again], "Done.") == ["MCP 3"]


def test_several_texts_of_one_lesson_are_one_source(library: CourseLibrary) -> None:
    found = asyncio.run(library.search("prompt caching", library.find_course("MCP")))
    assert [chunk.source.title[-8:] for chunk in found].count("Lesson 3") >= 2
    assert titles(library, [caching("MCP")], "Done.") == ["MCP 3"]


def test_the_same_lesson_number_of_two_courses_is_two_sources() -> None:
    one, two = Source(4, "MCP - Lesson 3", "mcp.txt:9"), Source(8, "Use - Lesson 3", "use.txt:9")
    assert unique([one, two, one, Source(4, "MCP - Lesson 3", "mcp.txt:9")]) == (one, two)


def test_sources_are_in_the_order_of_the_calls_and_not_of_their_ends() -> None:
    class FirstIsSlow(CourseLibrary):
        async def search(
            self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = 5
        ) -> list[Chunk]:
            assert course is not None
            await asyncio.sleep(1.0 if course.title.startswith("MCP") else 0.1)
            return await super().search(query, course, lesson, limit)

    with FirstIsSlow.open() as slow:
        assert titles(slow, [caching("MCP"), caching("Computer Use")], "Done.") == ["MCP 3", "Computer Use 3"]


def test_identical_calls_of_one_answer_search_once_and_list_their_source_once() -> None:
    class Counted(CourseLibrary):
        searches = 0

        async def search(
            self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = 5
        ) -> list[Chunk]:
            self.searches += 1
            await asyncio.sleep(0.1)
            return await super().search(query, course, lesson, limit)

    with Counted.open() as counted:
        assert titles(counted, [caching("MCP"), caching("MCP")], "Done.") == ["MCP 3"]
        assert counted.searches == 1
