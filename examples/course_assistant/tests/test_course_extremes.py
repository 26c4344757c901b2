"""Extreme cases: numbers and names that no course has, many threads, other languages, sessions that never end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from course_search import search

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.matching import LONGEST_NAME
from course_assistant.sessions import MOST_QUESTIONS
from course_assistant.tours import scripted_model
from course_assistant.vector_index import VectorIndex
from course_assistant.vectors import read_vectors
from unbroken import Request, ScriptedModel, System, User
from unbroken_testing import run_virtual


def questions(request: Request) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


@pytest.mark.parametrize("number", [0, -1, 2**63, 10**40])
def test_the_number_of_a_missing_lesson_gets_a_sentence_too(library: CourseLibrary, number: int) -> None:
    for query in ("What is MCP", "volcanoes"):  # the first one is searched by vectors
        assert search(library, query, "mcp", number).endswith("That course has the lessons 1, 2, 3.")
        assert search(library, query, lesson=number).endswith(f"in lesson {number}. No course has such a lesson.")


def test_half_a_surrogate_pair_in_a_query_is_not_a_failure(library: CourseLibrary) -> None:
    assert search(library, "\ud83d") == "No relevant content found."
    assert "Lesson 3" in search(library, "prompt caching \ud83d", "mcp")


def test_several_threads_may_search_at_once(library: CourseLibrary) -> None:
    vectors, together = read_vectors(), Barrier(4)
    query = vectors.of_query("What is MCP")
    assert query is not None
    # Many texts, so that a search takes long enough for another to come in between.
    near = VectorIndex(library.chunks * 40, vectors.chunks)

    def search_often(_: int) -> list[list[int]]:
        together.wait()
        return [near.search(query, None, None, 3) for _ in range(200)]

    with ThreadPoolExecutor(4) as threads:
        found = [each for many in threads.map(search_often, range(4)) for each in many]
    assert found == found[:1] * 800
    near.close()


def test_only_the_beginning_of_a_long_course_name_counts(library: CourseLibrary) -> None:
    mcp = library.find_course("mcp")
    assert library.find_course(f"mcp {' ' * LONGEST_NAME} {'xyzzyq ' * 10}") == mcp is not None
    assert library.find_course("xyzzyq " * 10_000) is None
    assert len(search(library, "tools", "xyzzyq " * 10_000)) < 1_000


@pytest.mark.parametrize(
    ("question", "language"),
    [
        ("什么是 MCP？", "zh"),
        ("比较 MCP 和 Computer Use 中的 prompt caching", "zh"),
        ("What does 沙箱 mean in the Computer Use course?", "en"),
        ("プロンプトの使用方法は？", "en"),
        ("MCP?", "en"),
        ("42", "en"),
    ],
)
def test_the_language_of_a_question_is_the_language_of_its_words(
    library: CourseLibrary, question: str, language: str
) -> None:
    model = ScriptedModel("OK.")
    run_virtual(CourseAssistant(model, library).ask(question))
    system = model.requests[0].messages[0]
    assert isinstance(system, System)
    assert ("课程材料助手" in system.text) == (language == "zh")


def test_a_session_forgets_many_old_questions_at_once(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(ScriptedModel(lambda request: " ".join(questions(request))), library)
        session = assistant.sessions.start()
        said = [(await assistant.ask(f"{n}", session)).text.split() for n in range(MOST_QUESTIONS + 12)]
        assert max(map(len, said)) == MOST_QUESTIONS + 1
        assert said[MOST_QUESTIONS] == [str(n) for n in range(MOST_QUESTIONS + 1)]
        assert said[MOST_QUESTIONS + 1] == [str(n) for n in range(MOST_QUESTIONS - 9, MOST_QUESTIONS + 2)]

    run_virtual(main)


def test_the_scripted_model_keeps_no_requests(library: CourseLibrary) -> None:
    model = scripted_model()
    assistant = CourseAssistant(model, library)
    for _ in range(3):
        run_virtual(assistant.ask("What is MCP and what are the prerequisites?"))
    assert (len(model.requests), len(model.bodies)) == (1, 1)
