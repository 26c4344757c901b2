"""The seven questions, each in the rounds that it should take, and what the scripted model does with all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_assistant.assistant import Answered, CourseAssistant
from course_assistant.chunks import Chunk, digest
from course_assistant.courses import Course
from course_assistant.library import CourseLibrary
from course_assistant.measure import main as measure
from course_assistant.tours import NOTHING_FOUND, NOTHING_FOUND_ZH, TOUR_QUERIES, TOURS, UNFINISHED, scripted_model
from course_assistant.vectors import plain, read_vectors
from unbroken_testing import run_virtual

SEARCH, OUTLINE = "search_course_content", "get_course_outline"


def ask(library: CourseLibrary, question: str, rounds: int = 2) -> Answered:
    return run_virtual(CourseAssistant(scripted_model(), library, max_tool_rounds=rounds).ask(question))


def check(library: CourseLibrary, question: str, rounds: int, calls: list[str], *said: str) -> Answered:
    answered = ask(library, question)
    result = answered.result
    assert (result.rounds, result.requests, [call.name for call in result.calls]) == (rounds, rounds + 1, calls)
    assert result.stop_reason == ("answered" if rounds == 1 else "round_limit")
    for words in said:
        assert words in answered.text
    assert answered.sources
    return answered


def test_what_is_mcp_takes_one_round(library: CourseLibrary) -> None:
    check(library, "What is MCP?", 1, [SEARCH], "MCP is short for Model Context Protocol.")


def test_the_outline_of_computer_use_takes_one_round(library: CourseLibrary) -> None:
    lessons = ("Lesson 1: Screenshots and the Action Loop", "Lesson 3: Prompt Caching with Screenshots")
    check(library, "Show me the course outline for Computer Use", 1, [OUTLINE], *lessons)


def test_mcp_and_its_prerequisites_take_two_rounds(library: CourseLibrary) -> None:
    question = "What is MCP and what are the prerequisites?"
    check(library, question, 2, [SEARCH] * 2, "MCP is short for", "**Prerequisites:** Python at the level of functions")


def test_two_lessons_are_searched_in_parallel_in_one_round(library: CourseLibrary) -> None:
    question = "Tell me about lesson 1 and lesson 2 of the MCP course"
    answered = check(library, question, 1, [SEARCH] * 2, "MCP is short for", "A server is a small program.")
    assert [source.title[-1] for source in answered.sources] == ["1", "2"]


def test_a_comparison_takes_one_round_for_each_course(library: CourseLibrary) -> None:
    question = "Compare prompt caching in MCP with Computer Use"
    answered = check(library, question, 2, [SEARCH] * 2, "**MCP**", "**Computer Use**")
    assert [call.arguments["course_name"] for call in answered.result.calls] == ["MCP", "Computer Use"]
    assert ask(library, "Compare prompt caching in the MCP course with the Computer Use course").text == answered.text


def test_the_topics_of_both_courses_take_one_outline_each(library: CourseLibrary) -> None:
    question = "What topics are covered in both courses?"
    check(library, question, 2, [OUTLINE] * 2, "Both courses cover **prompt caching**.")


def test_the_lessons_and_what_the_third_covers_take_both_tools(library: CourseLibrary) -> None:
    question = "What lessons are in the MCP course and what does lesson 3 cover?"
    check(library, question, 2, [OUTLINE, SEARCH], "Lesson 2: Writing Your First Server", "Tool definitions are sent")


def test_with_one_round_every_tour_ends_after_one_round_with_what_it_found(library: CourseLibrary) -> None:
    for tour in TOURS:
        answered = ask(library, tour.question, rounds=1)
        assert (answered.result.rounds, answered.result.requests) == (1, 2)
        assert answered.text.endswith(UNFINISHED) == (len(tour.rounds) > 1)
        assert answered.text != UNFINISHED


def test_the_shipped_vectors_match_the_courses_and_the_tours(library: CourseLibrary) -> None:
    vectors = read_vectors()
    assert set(vectors.chunks) == {chunk.digest for chunk in library.chunks}
    assert set(vectors.queries) == {digest(plain(query)) for query in TOUR_QUERIES}


def test_any_other_question_is_searched_once_and_quoted(library: CourseLibrary) -> None:
    answered = ask(library, "How do screenshots get scaled?")
    assert "Scale each screenshot down to about 1280 by 800 pixels" in answered.text
    assert answered.result.calls[0].arguments == {"query": "How do screenshots get scaled?"}


def test_a_chinese_question_is_answered_in_chinese(library: CourseLibrary) -> None:
    assert "本课讲沙箱与安全" in ask(library, "沙箱里的安全怎么保证？").text
    assert ask(library, "火山有多高？").text == NOTHING_FOUND_ZH


def test_a_topic_of_no_course_is_reported_as_not_found(library: CourseLibrary) -> None:
    answered = ask(library, "Who won the football match?")
    assert (answered.text, answered.sources) == (NOTHING_FOUND, ())


def test_a_question_without_key_terms_refers_to_the_previous_one(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(scripted_model(), library)
        session = assistant.sessions.start()
        first = await assistant.ask("photosynthesis", session)
        assert (await assistant.ask("Tell me more", session)).text == first.text != NOTHING_FOUND

    run_virtual(main)


def test_a_failing_store_is_mentioned_in_the_answer() -> None:
    class Closed(CourseLibrary):
        async def search(
            self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = 5
        ) -> list[Chunk]:
            raise OSError("the store is closed")

    with Closed.open() as closed:
        answered = ask(closed, "What is MCP and what are the prerequisites?")
    assert answered.text == "I could not look this up: the store is closed"
    assert (answered.result.stop_reason, answered.result.rounds) == ("tool_failure", 1)


def test_the_measured_table_counts_requests_and_simulates_their_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(tmp_path)
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [tuple(int(cell) for cell in row[1:4]) for row in rows] == [
        (1, 1, 2),
        (2, 1, 2),
        (1, 1, 2),
        (2, 2, 3),
        (1, 1, 2),
        (2, 2, 3),
    ]
    assert [float(row[-1]) for row in rows] == [1.8, 1.8, 1.8, 2.8, 1.8, 2.8]
