"""Courses from a Chroma collection: what its documents and their metadata become. `make test-embeddings` reads a real
one; these tests do not need chromadb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hidden_packages import hidden

from course_assistant.chroma_collection import Collection, Document, courses_of, join_overlapping, read_collection
from unbroken import UserError

FIRST = "Tea is grown on hills. It is picked by hand."
SECOND = "It is picked by hand. Then it is dried."


def document(text: str, **metadata: object) -> Document:
    return Document(text, metadata)


def test_documents_become_courses_lessons_and_chunks_in_order() -> None:
    lessons = [{"lesson_number": 0, "lesson_title": "Hills", "lesson_link": "https://tea.example/0"}]
    collection = Collection(
        "course_content",
        (
            document(SECOND, course_title="Tea", lesson_number=0, chunk_index=1),
            document("Boil water.", course_title="Tea", lesson_number=1, chunk_index=2),
            document(FIRST, course_title="Tea", lesson_number=0, chunk_index=0),
            document("Roast the beans.", course_title="Coffee"),
            document("  ", course_title="Nothing"),
        ),
        ({"title": "Tea", "instructor": "the garden", "lessons_json": json.dumps(lessons)},),
    )
    (tea, coffee), pieces = courses_of(collection)
    assert (tea.title, tea.instructor, coffee.title) == ("Tea", "the garden", "Coffee")
    assert [(each.number, each.title, each.link) for each in tea.lessons] == [
        (0, "Hills", "https://tea.example/0"),
        (1, "1", ""),
    ]
    assert tea.lessons[0].text == "Tea is grown on hills. It is picked by hand. Then it is dried."
    assert [lesson.number for lesson in coffee.lessons] == [1]
    assert [(chunk.place, chunk.text) for chunk, _ in pieces] == [
        ("Tea - Lesson 0", FIRST),
        ("Tea - Lesson 0", SECOND),
        ("Tea - Lesson 1", "Boil water."),
        ("Coffee - Lesson 1", "Roast the beans."),
    ]
    assert [chunk.source.number for chunk, _ in pieces] == [2, 2, 3, 5]  # the courses have numbers too


def test_strange_metadata_do_not_stop_the_reading() -> None:
    collection = Collection(
        "notes",
        (
            document("One.", source="a\nb", lesson_number="٣"),
            document("Two.", source="a\nb", lesson_number=2, chunk_index="x"),
            document("Three.", lesson_number=99999999999),
        ),
        ({"title": "a b", "lessons_json": "[1, {"}, {"title": "a b", "lessons_json": '[{"lesson_number": []}]'}),
    )
    (first, second), _ = courses_of(collection)
    assert (first.title, second.title) == ("a b", "notes")
    assert [(lesson.number, lesson.text) for lesson in first.lessons] == [(2, "Two."), (3, "One.")]


def test_repeated_ends_of_chunks_are_joined_once() -> None:
    assert join_overlapping([FIRST, SECOND, "Other."]) == f"{FIRST} Then it is dried.\n\nOther."
    assert join_overlapping([]) == ""


def test_a_store_that_cannot_be_read_is_one_line_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a Chroma store: it has no chroma\.sqlite3"):
        read_collection(tmp_path)
    (tmp_path / "chroma.sqlite3").write_bytes(b"")
    with (
        hidden("chromadb"),
        pytest.raises(UserError, match=r"--chroma needs the package chromadb: run `pip install chromadb`"),
    ):
        read_collection(tmp_path)
