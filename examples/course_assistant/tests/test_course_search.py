"""The search tool: what it finds in the real store, and what it returns when it finds nothing."""

from __future__ import annotations

import re

import pytest
from course_search import search

from course_assistant.course_tools import course_tools
from course_assistant.library import CourseLibrary


def places(found: str) -> set[str]:
    """Where the hits are from: `MCP 3` for the third lesson of the course on MCP."""
    return {
        f"{name} {number}".strip()
        for name, number in re.findall(r"^\[\d+\] (.+?):.*?(?: - Lesson (\d+))?$", found, re.M)
    }


def test_a_search_finds_the_text_and_names_its_place(library: CourseLibrary) -> None:
    found = search(library, "What is MCP")
    assert found.startswith("[10] MCP: Build Tool Servers for Language Models - Lesson 1\n")
    assert "short for Model Context Protocol" in found


def test_vectors_find_by_meaning_what_full_text_does_not_find(library: CourseLibrary) -> None:
    asked = "What topics are covered in both courses?"
    with CourseLibrary.open(full_text_only=True) as words_only:
        assert search(words_only, asked) == "No relevant content found."
    assert library.has_vectors
    assert len(places(search(library, asked))) > 1


def test_a_search_in_one_course_finds_nothing_of_the_others(library: CourseLibrary) -> None:
    assert places(search(library, "prompt caching")) >= {"MCP 3", "Computer Use 3"}
    assert places(search(library, "prompt caching", "Computer Use")) == {"Computer Use 3"}


def test_a_search_in_one_lesson_finds_only_that_lesson(library: CourseLibrary) -> None:
    assert places(search(library, "a server and its tools", "MCP", 2)) == {"MCP 2"}
    assert {place[-1] for place in places(search(library, "a model", lesson=3))} == {"3"}


def test_a_query_for_what_a_lesson_covers_returns_the_lesson_from_its_beginning(library: CourseLibrary) -> None:
    found = search(library, "what lesson 3 covers", "MCP", 3)
    assert found.startswith("[12] MCP: Build Tool Servers for Language Models - Lesson 3\n> Tool definitions are sent")
    assert places(found) == {"MCP 3"}


def test_a_course_name_with_a_typo_is_understood(library: CourseLibrary) -> None:
    found = places(search(library, "screenshots", "computr use"))
    assert {"Computer Use 1", "Computer Use 3"} <= found <= {"Computer Use", *(f"Computer Use {n}" for n in (1, 2, 3))}


def test_a_course_is_known_by_a_part_of_its_title_in_both_languages(library: CourseLibrary) -> None:
    named = ["mcp", "MCP课程", "the MCP course", "Build Tool Servers", "MCP: Build Tool Servers for Language Models"]
    assert {course.title for name in named if (course := library.find_course(name))} == {
        "MCP: Build Tool Servers for Language Models"
    }
    chinese = library.find_course("计算机使用")
    assert chinese is not None
    assert chinese.title.startswith("Computer Use")


def test_a_name_that_matches_no_course_gets_the_list_of_courses(library: CourseLibrary) -> None:
    found = search(library, "bread", "cooking")
    assert found.startswith("No course found that matches 'cooking'. The courses are: Computer Use: ")
    assert all(course.title in found for course in library.courses)


def test_an_empty_result_names_where_it_was_searched(library: CourseLibrary) -> None:
    title = "MCP: Build Tool Servers for Language Models"
    assert search(library, "photosynthesis", "mcp") == f"No relevant content found in course '{title}'."
    assert search(library, "photosynthesis", "mcp", 2) == f"No relevant content found in course '{title}' in lesson 2."
    assert search(library, "volcano") == "No relevant content found."


def test_a_missing_lesson_gets_the_list_of_lessons(library: CourseLibrary) -> None:
    assert search(library, "prompt caching", "mcp", 9).endswith("in lesson 9. That course has the lessons 1, 2, 3.")


def test_an_empty_query_and_unusual_characters_get_a_sentence(library: CourseLibrary) -> None:
    assert search(library, "  ") == "There is nothing to search for: the query is empty."
    for odd in ('"', "' OR x=x --", "NEAR(", "*", "-", "🙂", "a" * 5_000):
        assert search(library, odd) == "No relevant content found."


def test_chinese_words_are_found_in_the_chinese_text(library: CourseLibrary) -> None:
    assert places(search(library, "提示缓存怎么用？")) >= {"MCP 3", "Computer Use 3"}
    assert places(search(library, "沙箱", "computer use课程")) >= {"Computer Use 2"}


def test_the_model_is_shown_one_required_field_and_two_optional_ones(library: CourseLibrary) -> None:
    spec = course_tools(library)[0].spec
    assert spec.name == "search_course_content"
    assert spec.parameters["required"] == ["query"]
    assert list(spec.parameters["properties"]) == ["query", "course_name", "lesson_number"]
    assert all(field["description"] for field in spec.parameters["properties"].values())


@pytest.mark.parametrize(
    ("question", "lesson"),
    [
        ("Why do agents running screens get expensive over time?", "Computer Use 3"),
        ("Why does the pointer land next to the button?", "Computer Use 1"),
        ("What dangers lurk when the model browses the web?", "Computer Use 2"),
        ("How often should I purge old pictures?", "Computer Use 3"),
        ("What should I do with complaints from users?", "Evaluation 1"),
        ("Can I rerun a session without paying?", "Evaluation 2"),
        ("Does the position of an answer influence the ranking?", "Evaluation 3"),
        ("Why not write an adapter for each integration?", "MCP 1"),
        ("How should failures be reported to the model?", "MCP 2"),
        ("How do I cut the bill for schemas that are sent every time?", "MCP 3"),
        ("How do I tell the model which audience I write for?", "Prompting 1"),
        ("Are demonstrations worth more than long descriptions?", "Prompting 2"),
        ("My assistant replies in the wrong language", "Prompting 3"),
        ("How do I split a book?", "Retrieval 1"),
        ("How do I combine lexical and dense retrieval?", "Retrieval 2"),
        ("How do I keep it from making things up?", "Retrieval 3"),
        ("为什么截图任务越来越贵？", "Computer Use 3"),
        ("如何让模型自己评分？", "Evaluation 3"),
    ],
)
def test_a_question_in_other_words_finds_the_lesson_without_an_embedding_model(question: str, lesson: str) -> None:
    with CourseLibrary.open(full_text_only=True) as lexical:
        assert lesson in places(search(lexical, question))
