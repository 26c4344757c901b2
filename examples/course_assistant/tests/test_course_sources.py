"""Citations, and folders of one's own: only what an answer cites is a source, and each source is a place in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from course_assistant.assistant import CourseAssistant
from course_assistant.library import CourseLibrary
from course_assistant.own_files import LARGEST_FILE, MOST_FILES, read_markdown, read_own_files
from course_assistant.sources import cite
from unbroken import ScriptedModel, UserError
from unbroken_testing import Call, run_virtual

SEARCH = Call("search_course_content", query="prompt caching")


def test_citations_are_counted_from_one_and_unknown_numbers_stay_as_they_are() -> None:
    known = {7: "seven", 12: "twelve", 3: "three"}
    assert cite("A [12]. B [7, 12]。C【3】 D [99] [7,99] x[] [0]", known) == (
        "A [1]. B [2][1]。C[3] D [99] [7,99] x[] [0]",
        ("twelve", "seven", "three"),
    )
    assert cite(f"[{'9' * 5000}] [1", known) == (f"[{'9' * 5000}] [1", ())


def test_only_cited_sources_are_listed_and_an_earlier_hit_may_be_cited_later(library: CourseLibrary) -> None:
    async def main() -> None:
        assistant = CourseAssistant(ScriptedModel([SEARCH], "Tools first [12]. [1]", "As said [12] [4]."), library)
        session = assistant.sessions.start()
        first = await assistant.ask("Caching?", session)
        assert [source.number for source in first.sources] == [12]  # 1 was not found
        assert len(first.found) > 1
        second = await assistant.ask("And?", session)
        assert [source.number for source in second.sources if source.number == 12] == [12]
        assert second.found == ()

    run_virtual(main)


MARKDOWN = """# Volcanoes

What they are.

## How they grow

```
## not a heading
```

Lava cools. 火山是山。

## Where

- Iceland
"""


def test_a_markdown_file_is_a_course_and_its_headings_are_lessons(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "volcanoes.md").write_text(MARKDOWN, "utf-8")
    (tmp_path / "old_notes.txt").write_text("# 1 is a number here.\n\nBasalt is dark.", "utf-8")
    with CourseLibrary.of_own_files(tmp_path) as library:
        notes, course = library.courses
        assert (course.title, [lesson.title for lesson in course.lessons]) == (
            "Volcanoes",
            ["Volcanoes", "How they grow", "Where"],
        )
        assert "## not a heading" in course.lessons[1].text
        assert (notes.title, len(notes.lessons)) == ("old notes", 1)
        answered = run_virtual(
            CourseAssistant(ScriptedModel([Call("search_course_content", query="lava")], "[4]"), library).ask("?")
        )
    assert [source.file for source in answered.found] == [f"{tmp_path.name}/deep/volcanoes.md:5"]
    assert not library.shipped


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("", []),
        ("Only words.", ["a b"]),
        ("Before.\n# One\nx\n# Two\ny", ["a b", "One", "Two"]),
        ("# \u202eOne\x1b[2J\n" + "w" * 100_000, ["One [2J"]),
        ("# Title\n## \nx", ["1"]),
        ("# Title\n## Empty\n## Full\nx", ["Full"]),
        ("# " + "long" * 1000 + "\nx", ["long" * 29 + "lon…"]),
    ],
)
def test_odd_markdown_has_sensible_lessons(text: str, titles: list[str]) -> None:
    assert [lesson.title for lesson in read_markdown(text, "x/a_b.md").lessons] == titles


def _nothing(folder: Path) -> None:
    (folder / "a.pdf").write_bytes(b"x")


def _empty(folder: Path) -> None:
    (folder / "a.md").write_text(" \n")


def _many(folder: Path) -> None:
    for number in range(MOST_FILES + 1):
        (folder / f"{number}.md").touch()


def _latin(folder: Path) -> None:
    (folder / "a.md").write_bytes(b"fine\ncaf\xe9")


def _script(folder: Path) -> None:
    (folder / "a.txt").write_text("Course: A\nno field")


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (_nothing, "there are no courses in '.*': put Markdown or text files"),
        (_empty, r"there are no courses in '.*' \(a\.md is empty\): put"),
        (_many, "has 501 files and 500 are allowed: name a smaller folder"),
        (_latin, r"a\.md, line 2: this is not UTF-8; save the file as UTF-8"),
        (_script, r"a\.txt, line 2: the file ends without a lesson"),
    ],
)
def test_a_folder_that_has_nothing_to_read_is_refused(fill: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(UserError, match=said):
        read_own_files(tmp_path)


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("x")
    for folder, said in ((tmp_path / "no", "No such file"), (file, "it is not a folder"), (Path("a\0b"), "null byte")):
        with pytest.raises(UserError, match=f"cannot be read: .*{said}"):
            read_own_files(folder)


def test_links_out_of_the_folder_and_huge_files_are_left_out_with_a_note(tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.md", tmp_path / "mine"
    secret.write_text("the secret")
    folder.mkdir()
    (folder / "fine.md").write_text("volcanoes")
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("lava")
    (folder / "link.md").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    (folder / ".hidden.md").write_text("hidden")
    (folder / "binary.txt").write_bytes(b"a\0b")
    os.mkfifo(folder / "pipe.md")
    with (folder / "huge.md").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with CourseLibrary.of_own_files(folder) as library:
        assert [course.title for course in library.courses] == ["caf?", "fine"]
        assert library.courses[0].file == "caf?.md"
        for words in (
            "link.md is a link to a file outside",
            "binary.txt is not a text",
            "pipe.md is not a file",
            "huge",
        ):
            assert words in library.note


def test_courses_with_one_title_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "intro.md").write_text("# Intro\nx")
    assert [course.title for course in read_own_files(tmp_path).courses] == ["Intro (a/intro.md)", "Intro (b/intro.md)"]


def test_a_word_of_100_kb_does_not_fill_the_context(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("lava " + "w" * 100_000)
    with CourseLibrary.of_own_files(tmp_path) as library:
        assert max(len(chunk.text) for chunk in library.chunks) <= 2_000
