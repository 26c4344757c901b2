"""Reads a folder of your own as courses (`--courses DIR`): Markdown and text files, also in subfolders. A file is a
course, its headings are the lessons; a text file that begins with `Course:` is a course script (`courses`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from course_assistant.courses import Course, Lesson, paragraphs_of, parse_course, read_text
from unbroken import UserError

ENDINGS = (".md", ".markdown", ".txt")
MOST_FILES = 500
LARGEST_FILE = 2 * 1024 * 1024
LONGEST_TITLE = 120
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_PUT = f"put Markdown or text files ({', '.join('*' + ending for ending in ENDINGS)}) there"


@dataclass(frozen=True, slots=True)
class OwnFiles:
    courses: tuple[Course, ...]
    left_out: tuple[str, ...]
    """Files that were not read, each with the reason."""


def read_own_files(folder: Path) -> OwnFiles:
    """Raises `UserError` if there is nothing to read, or if a file cannot be read."""
    root = _root(folder)
    courses: list[Course] = []
    left_out: list[str] = []
    files = list(_files(root))
    if len(files) > MOST_FILES:
        raise UserError(f"{str(folder)!r} has {len(files):,} files and {MOST_FILES} are allowed: name a smaller folder")
    for file in files:
        name = file.relative_to(root).as_posix().encode("utf-8", "replace").decode()  # not every name is UTF-8
        course = _course(file, root, name, left_out)
        if course is not None:
            courses.append(course)
    if not courses:
        reasons = f" ({'; '.join(left_out[:3])})" if left_out else ""
        raise UserError(f"there are no courses in {str(folder)!r}{reasons}: {_PUT}")
    return OwnFiles(_told_apart(courses), tuple(left_out))


def _root(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
        if not root.is_dir():
            raise UserError(
                f"the courses in {str(folder)!r} cannot be read: it is not a folder; name the folder of a file"
            )
        os.listdir(root)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        words = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"the courses in {str(folder)!r} cannot be read: {words}; name a folder that you can read"
        ) from None
    return root


def _files(root: Path) -> Iterator[Path]:
    """In the order of their names, without hidden ones. Links to folders are not followed."""
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield Path(parent, name)


def _course(file: Path, root: Path, name: str, left_out: list[str]) -> Course | None:
    shown = one_line_title(name, "a file")
    if not file.resolve().is_relative_to(root):
        left_out.append(f"{shown} is a link to a file outside of the folder")
        return None
    if not file.is_file():
        left_out.append(f"{shown} is not a file")
        return None
    if (size := file.stat().st_size) > LARGEST_FILE:
        left_out.append(f"{shown} has {size / 1024 / 1024:.1f} MB, more than {LARGEST_FILE // 1024 // 1024}")
        return None
    text = read_text(file, shown)
    if "\0" in text:
        left_out.append(f"{shown} is not a text")
        return None
    if text.lstrip().startswith("Course:"):
        return replace(parse_course(text, shown), file=name)
    course = read_markdown(text, name)
    if not course.lessons:
        left_out.append(f"{shown} is empty")
        return None
    return course


def read_markdown(text: str, name: str) -> Course:
    """The first heading is the title, headings of the next level are the lessons. A text without headings is one
    lesson."""
    stem = one_line_title(name.rpartition("/")[2].rpartition(".")[0].replace("_", " "), "Course")
    lines = text.splitlines()
    found = list(_headings(lines)) if not name.lower().endswith(".txt") else []
    titled = bool(found) and not any(line.strip() for line in lines[: found[0][0]])
    title = found[0][2] if titled and found[0][2] else stem
    rest = found[1:] if titled else found
    level = min((depth for _, depth, _ in rest), default=0)
    starts = [(at, heading) for at, depth, heading in rest if depth == level]
    first = found[0][0] + 1 if titled else 0
    pieces = [(first, title)] + [(at + 1, heading) for at, heading in starts]
    ends = [at for at, _ in starts] + [len(lines)]
    lessons: list[Lesson] = []
    for (begin, heading), end in zip(pieces, ends, strict=True):
        body = "\n".join(lines[begin:end]).strip("\n")
        if body.strip():
            number = len(lessons) + 1
            lessons.append(Lesson(number, heading or f"{number}", "", paragraphs_of(body), body, max(begin, 1)))
    return Course(title, "", "", "", "", tuple(lessons), name)


def _headings(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """The line, the depth and the text of each heading that is not in a block of code."""
    fence = ""
    for at, line in enumerate(lines):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and (heading := _HEADING.fullmatch(line)):
            yield at, len(heading[1]), one_line_title(heading[2], "")


def one_line_title(text: str, otherwise: str) -> str:
    """One short line, without characters that cannot be seen or change the writing direction."""
    plain = " ".join(_UNSEEN.sub(" ", text).split()) or otherwise
    return plain if len(plain) <= LONGEST_TITLE else f"{plain[: LONGEST_TITLE - 1]}…"


def _told_apart(courses: list[Course]) -> tuple[Course, ...]:
    """Courses with the same title get the names of their files."""
    titles = [course.title for course in courses]
    return tuple(
        replace(course, title=f"{course.title} ({one_line_title(course.file, 'file')})")
        if titles.count(course.title) > 1
        else course
        for course in courses
    )
