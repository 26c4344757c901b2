"""The two tools of the model: search in the course texts, and the outline of a course. Besides the text for the model
they return its sources for the assistant (`ToolOutput`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from course_assistant.chunks import Chunk
from course_assistant.courses import Course
from course_assistant.library import CourseLibrary
from course_assistant.matching import LONGEST_NAME
from unbroken import Tool, ToolOutput, tool

Query = Annotated[str, Field(description="What to look for, in a few words.")]
CourseName = Annotated[str | None, Field(description="Only in this course; a part of its title will do, as in 'MCP'.")]
LessonNumber = Annotated[int | None, Field(description="Only in this lesson, as in 1.")]
CourseTitle = Annotated[str, Field(description="The course; a part of its title will do.")]


def course_tools(library: CourseLibrary) -> list[Tool]:
    """Both only read, so the calls of one answer run in parallel, as soon as they are written."""

    @tool(effect="read")
    async def search_course_content(
        query: Query,
        course_name: CourseName = None,
        lesson_number: LessonNumber = None,
    ) -> str | ToolOutput:
        """Search the course materials by meaning, with fuzzy course names and an optional lesson number. Each hit is
        its number in brackets and its place, then its text behind `>`. Cite a hit by its number, as in [7]."""
        if not query.strip():
            return "There is nothing to search for: the query is empty."
        course = None
        if course_name and course_name.strip():
            course = library.find_course(course_name)
            if course is None:
                return _no_course(course_name, library)
        chunks = await library.search(query, course, lesson_number)
        if not chunks:
            return _nothing_found(course, lesson_number, library)
        return ToolOutput("\n\n".join(map(_hit, chunks)), data=[chunk.source for chunk in chunks])

    @tool(effect="read")
    async def get_course_outline(course_title: CourseTitle) -> str | ToolOutput:
        """The outline of a course: its title and prerequisites, and the number and title of each lesson. Cite it by the
        number after `Source`."""
        course = library.find_course(course_title)
        if course is None:
            return _no_course(course_title, library)
        source = library.source(course)
        return ToolOutput(outline(course, source.number), data=[source])

    return [search_course_content, get_course_outline]


def _hit(chunk: Chunk) -> str:
    """Every line of the text is marked, so that no text can imitate the head of another hit."""
    return "\n".join([f"[{chunk.source.number}] {chunk.place}", *(f"> {line}" for line in chunk.text.splitlines())])


def outline(course: Course, number: int) -> str:
    fields = {"Link": course.link, "Instructor": course.instructor, "Prerequisites": course.prerequisites}
    lines = [f"Course: {course.title}", f"Source: [{number}]"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value]
    lines.append(f"Lessons ({len(course.lessons)}):")
    return "\n".join(lines + [f"{lesson.number}. {lesson.title}" for lesson in course.lessons])


def _no_course(name: str, library: CourseLibrary) -> str:
    titles = "; ".join(course.title for course in library.courses)
    return f"No course found that matches '{' '.join(name[:LONGEST_NAME].split())}'. The courses are: {titles}."


def _nothing_found(course: Course | None, lesson: int | None, library: CourseLibrary) -> str:
    where = f" in course '{course.title}'" if course else ""
    where += f" in lesson {lesson}" if lesson is not None else ""
    note = ""
    if lesson is not None and not library.has_lesson(lesson, course):
        note = " No course has such a lesson."
        if course:
            note = f" That course has the lessons {', '.join(str(one.number) for one in course.lessons)}."
    return f"No relevant content found{where}.{note}"
