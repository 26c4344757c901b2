"""The generator: the instructions and tools of the model, what it gets back, and how its answers are used."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from course_assistant.assistant import Answered, CourseAssistant
from course_assistant.chunks import Chunk
from course_assistant.courses import Course
from course_assistant.instructions import instructions
from course_assistant.library import CourseLibrary
from unbroken import ScriptedModel, System, TextAdded, ToolMessage
from unbroken.errors import Unavailable
from unbroken_testing import Call, Fail, Say, run_virtual

SEARCH = Call("search_course_content", query="What is MCP")


def test_a_question_that_needs_no_tool_is_answered_in_one_request(library: CourseLibrary) -> None:
    model = ScriptedModel("Hello! Ask me about the courses.")
    answered = run_virtual(CourseAssistant(model, library).ask("Hello."))
    assert answered.text == "Hello! Ask me about the courses."
    assert (answered.result.rounds, answered.result.requests, answered.sources) == (0, 1, ())


def test_the_instructions_mention_questions_with_several_parts(library: CourseLibrary) -> None:
    model = ScriptedModel("Hello.")
    run_virtual(CourseAssistant(model, library).ask("Hello."))
    system = model.requests[0].messages[0]
    assert isinstance(system, System)
    for said in (
        "**Multi-part questions**",
        "Compare topic A in course X with course Y",
        "Prioritize efficiency",
        "**Tool independence**",
        "distinct, complementary information",
        "in the language of the question",
        *(course.title for course in library.courses),
    ):
        assert said in system.text


def test_the_instructions_contain_the_real_number_of_rounds(library: CourseLibrary) -> None:
    two, one, five = (instructions(library, rounds) for rounds in (2, 1, 5))
    assert "you may use tools up to TWO times per question" in two
    assert "you may use tools ONCE per question" in one
    assert "Compare topic A" not in one  # with one round there is no second search
    assert "up to 5 times" in five


def test_a_chinese_question_gets_chinese_instructions(library: CourseLibrary) -> None:
    model = ScriptedModel("你好。")
    run_virtual(CourseAssistant(model, library).ask("你好"))
    system = model.requests[0].messages[0]
    assert isinstance(system, System)
    assert "每个问题最多可以使用两轮工具" in system.text
    assert "获取不同且互补的信息" in system.text


def test_both_tools_are_offered_and_the_result_of_a_call_is_in_the_next_request(library: CourseLibrary) -> None:
    model = ScriptedModel([SEARCH], "It is a protocol.")
    run_virtual(CourseAssistant(model, library).ask("What is MCP?"))
    assert [tool.name for tool in model.requests[0].tools] == ["search_course_content", "get_course_outline"]
    results = model.requests[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert "short for Model Context Protocol" in results.results[0].text


def test_two_calls_of_one_answer_run_in_parallel(library: CourseLibrary) -> None:
    class Meeting(CourseLibrary):
        """Neither search ends before both have begun."""

        begun = 0
        both = asyncio.Event()

        async def search(
            self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = 5
        ) -> list[Chunk]:
            self.begun += 1
            if self.begun == 2:
                self.both.set()
            await self.both.wait()
            return await super().search(query, course, lesson, limit)

    model = ScriptedModel([SEARCH, Call("search_course_content", query="prompt caching")], "Both.")
    with Meeting.open() as meeting:
        answered = run_virtual(CourseAssistant(model, meeting).ask("MCP and caching?"))
    assert answered.text == "Both."
    assert [call.arguments["query"] for call in answered.result.calls] == ["What is MCP", "prompt caching"]
    assert answered.result.rounds == 1


def test_text_before_a_call_is_not_part_of_the_answer(library: CourseLibrary) -> None:
    model = ScriptedModel([Say("Let me look. "), SEARCH], "It is a protocol.")
    assert run_virtual(CourseAssistant(model, library).ask("What is MCP?")).text == "It is a protocol."


def test_the_answer_is_sent_in_pieces_and_then_complete_with_its_sources(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(ScriptedModel([SEARCH], Say("It is a protocol.", chunks=4)), library)
        async with aclosing(assistant.stream("What is MCP?", assistant.sessions.start())) as stream:
            steps = [step async for step in stream]
        pieces = [step.text for step in steps if isinstance(step, TextAdded)]
        assert len(pieces) == 4
        last = steps[-1]
        assert isinstance(last, Answered)
        assert last.text == "".join(pieces)
        assert last.found[0].file == "courses/mcp.txt:6"

    run_virtual(main)


def test_the_error_of_a_failing_provider_is_raised_and_the_session_continues(library: CourseLibrary) -> None:
    async def main() -> None:
        model = ScriptedModel([SEARCH], Fail(Unavailable("busy", status=503)), "It is a protocol.")
        assistant = CourseAssistant(model, library)
        session = assistant.sessions.start()
        with pytest.raises(Unavailable, match="busy"):
            await assistant.ask("What is MCP?", session)
        assert (await assistant.ask("Again, please.", session)).text == "It is a protocol."

    run_virtual(main)
