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


@dataclass(frozen=True, slots=True)
class Chunk:
    course: Course
    lesson: Lesson | None
    text: str

    @property
    def place(self) -> str:
        return self.course.title if self.lesson is None else f"{self.course.title} - Lesson {self.lesson.number}"

    @property
    def source(self) -> Source:
        return Source(self.place, (self.lesson or self.course).link)

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


def chunks_of(courses: Iterable[Course]) -> tuple[Chunk, ...]:
    found: list[Chunk] = []
    for course in courses:
        found.append(Chunk(course, None, _about(course)))
        for lesson in course.lessons:
            found += [Chunk(course, lesson, text) for text in _joined(lesson.paragraphs)]
    return tuple(found)


def _about(course: Course) -> str:
    parts = [f"Prerequisites: {course.prerequisites}", course.summary_zh]
    return "\n".join(part for part in parts if part)


def _joined(paragraphs: Iterable[str]) -> list[str]:
    """Joins paragraphs while they fit; one that is too long by itself stays complete."""
    joined: list[str] = []
    for paragraph in paragraphs:
        if joined and len(joined[-1]) + len(paragraph) < LONGEST:
            joined[-1] += f"\n{paragraph}"
        else:
            joined.append(paragraph)
    return joined
