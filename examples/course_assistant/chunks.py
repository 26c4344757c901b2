"""Chunks: the pieces of course text that are searched. Each has its course and its lesson; text about a course in
general (prerequisites, summary) is a chunk without a lesson."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from course_assistant.courses import Course, Lesson
from course_assistant.sources import Source

LONGEST = 700
"""Characters: the embedding model reads about 250 words, and a lesson of a few paragraphs should give a few chunks."""
LONGEST_PARAGRAPH = 2_000


@dataclass(frozen=True, slots=True)
class Chunk:
    course: Course
    lesson: Lesson | None
    text: str
    source: Source

    @property
    def place(self) -> str:
        return self.source.title

    @property
    def searched(self) -> str:
        """The text that is embedded and indexed, with its place: a paragraph alone often does not name its subject."""
        about = self.place if self.lesson is None else f"{self.place}: {self.lesson.title}"
        return f"{about}\n{self.text}"

    @property
    def digest(self) -> str:
        return digest(self.searched)


def digest(text: str) -> str:
    """Also works for a query with half a surrogate pair, which models sometimes write."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def places_of(courses: Iterable[Course], folder: str) -> tuple[tuple[Course, Lesson | None, Source], ...]:
    """Every course and every lesson with its number, from 1. `folder` is shown before the names of the files."""
    places = [(course, lesson) for course in courses for lesson in (None, *course.lessons)]
    return tuple(
        (
            course,
            lesson,
            Source(number, _title(course, lesson), f"{folder}/{course.file}:{lesson.line if lesson else 1}"),
        )
        for number, (course, lesson) in enumerate(places, 1)
    )


def _title(course: Course, lesson: Lesson | None) -> str:
    return course.title if lesson is None else f"{course.title} - Lesson {lesson.number}"


def chunks_of(courses: Iterable[Course], folder: str = "courses") -> tuple[Chunk, ...]:
    found: list[Chunk] = []
    for course, lesson, source in places_of(courses, folder):
        texts = _joined(_cut(lesson.paragraphs)) if lesson else [_about(course)]
        found += [Chunk(course, lesson, text, source) for text in texts if text]
    return tuple(found)


def _cut(paragraphs: Iterable[str]) -> Iterable[str]:
    """A paragraph that would fill a model's context alone becomes several, if possible between words."""
    for paragraph in paragraphs:
        rest = paragraph
        while len(rest) > LONGEST_PARAGRAPH:
            end = rest.rfind(" ", LONGEST, LONGEST_PARAGRAPH) + 1 or LONGEST_PARAGRAPH
            yield rest[:end].rstrip()
            rest = rest[end:]
        if rest:
            yield rest


def _about(course: Course) -> str:
    parts = [f"Prerequisites: {course.prerequisites}" if course.prerequisites else "", course.summary_zh]
    return "\n".join(part for part in parts if part)


def _joined(paragraphs: Iterable[str]) -> list[str]:
    """Joins paragraphs while they fit; one that is longer than `LONGEST` by itself is a chunk."""
    joined: list[str] = []
    for paragraph in paragraphs:
        if joined and len(joined[-1]) + len(paragraph) < LONGEST:
            joined[-1] += f"\n{paragraph}"
        else:
            joined.append(paragraph)
    return joined
