"""Course files that become `Course`s. A course script looks like this:

    Course: MCP: Build Tool Servers for Language Models
    Link: https://courses.example.org/mcp
    Instructor: the tool servers team
    Prerequisites: Python, and a first look at HTTP.
    中文: 介绍 MCP 的课程。

    Lesson 1: What MCP Is
    Link: https://courses.example.org/mcp/1

    Paragraphs of text, with empty lines between them.

`Course` comes first, the other fields of the head in any order; `Link`, `Instructor` and `中文` are optional. Lessons
are numbered in ascending order, their links are optional too. Anything else is an error that names file and line.

Other files are read by `own_files`.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unbroken import UserError

SHIPPED = Path(__file__).parent / "courses"
MOST_DIGITS = 4
"""The most digits of a lesson's number."""

_FIELD = re.compile(r"(Course|Link|Instructor|Prerequisites|中文)\s*[:：]\s*(.*)")
_LESSON = re.compile(r"Lesson (\d+)\s*[:：]\s*(.*)")
_FORM = "a course file begins with `Course: TITLE` and `Prerequisites: …`; then come lessons, `Lesson 1: TITLE`"


@dataclass(frozen=True, slots=True)
class Lesson:
    number: int
    title: str
    link: str
    """Where the lesson is published; empty if it is not."""
    paragraphs: tuple[str, ...]
    text: str = ""
    """As it is in the file, for the page that shows it."""
    line: int = 1
    """Where it begins in the file."""


@dataclass(frozen=True, slots=True)
class Course:
    title: str
    link: str
    instructor: str
    prerequisites: str
    summary_zh: str
    lessons: tuple[Lesson, ...]
    file: str = ""
    """The name of the file, in its folder."""

    def lesson(self, number: int) -> Lesson | None:
        return next((lesson for lesson in self.lessons if lesson.number == number), None)


def read_courses(folder: Path = SHIPPED) -> tuple[Course, ...]:
    """Reads every `*.txt` file of the folder, ordered by name."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise UserError(f"there are no courses in {str(folder)!r}: put text files (*.txt) there; {_FORM}")
    courses = [read_course(file) for file in files]
    for place, course in enumerate(courses):
        twin = next((n for n, other in enumerate(courses[:place]) if other.title == course.title), None)
        if twin is not None:
            raise UserError(f"{files[place].name}: {files[twin].name} has the title {course.title!r} too: rename one")
    return tuple(courses)


def read_course(file: Path) -> Course:
    return parse_course(read_text(file, file.name), file.name)


def read_text(file: Path, name: str) -> str:
    try:
        # Some editors write a byte order mark before UTF-8.
        return file.read_bytes().removeprefix(BOM_UTF8).decode("utf-8")
    except OSError as error:
        raise UserError(f"{name}: the course file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{name}, line {line}: this is not UTF-8; save the file as UTF-8") from None


def parse_course(text: str, name: str) -> Course:
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    starts = [at for at, (_, line) in enumerate(lines) if _LESSON.fullmatch(line)]
    if not starts:
        raise _wrong(name, len(lines), "the file ends without a lesson")
    head = _head(lines[: starts[0]], name)
    lessons: list[Lesson] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        lesson = _lesson(lines[start:end], name)
        if lessons and lesson.number <= lessons[-1].number:
            wanted = f"lesson {lesson.number} comes after lesson {lessons[-1].number}"
            raise _wrong(name, lines[start][0], f"{wanted}: number lessons in ascending order")
        lessons.append(lesson)
    return Course(*head, tuple(lessons), name)


def _head(lines: Sequence[tuple[int, str]], name: str) -> tuple[str, str, str, str, str]:
    fields: dict[str, str] = {}
    for number, line in lines:
        if not line:
            continue
        field = _FIELD.fullmatch(line)
        if field is None:
            raise _wrong(name, number, f"{line[:60]!r} is not a field of the head")
        if field[1] in fields:
            raise _wrong(name, number, f"`{field[1]}` appears twice")
        if not fields and field[1] != "Course":
            raise _wrong(name, number, f"`{field[1]}` comes before `Course`")
        fields[field[1]] = field[2]
    for wanted in ("Course", "Prerequisites"):
        if not fields.get(wanted):
            raise _wrong(name, lines[-1][0] if lines else 1, f"`{wanted}: …` is missing before the first lesson")
    return (
        fields["Course"],
        fields.get("Link", ""),
        fields.get("Instructor", ""),
        fields["Prerequisites"],
        fields.get("中文", ""),
    )


def _lesson(lines: Sequence[tuple[int, str]], name: str) -> Lesson:
    first, title = lines[0]
    found = _LESSON.fullmatch(title)
    assert found is not None
    if len(found[1]) > MOST_DIGITS:
        raise _wrong(name, first, f"the number of a lesson may have at most {MOST_DIGITS} digits, not {len(found[1])}")
    if not found[2]:
        raise _wrong(name, first, f"lesson {found[1]} has no title")
    link = _FIELD.fullmatch(lines[1][1]) if len(lines) > 1 else None
    linked = link is not None and link[1] == "Link"
    text = "\n".join(line for _, line in lines[2 if linked else 1 :]).strip()
    if not text:
        raise _wrong(name, first, f"lesson {found[1]} has no text")
    return Lesson(int(found[1]), found[2], link[2] if link and linked else "", paragraphs_of(text), text, first)


def paragraphs_of(text: str) -> tuple[str, ...]:
    """Blocks of lines between empty lines, each as one line."""
    return tuple(" ".join(block.split()) for block in re.split(r"\n\s*\n", text) if block.strip())


def _wrong(name: str, line: int, what: str) -> UserError:
    return UserError(f"{name}, line {max(line, 1)}: {what}; {_FORM}")
