"""`CourseLibrary`: the courses, and search in them. It searches by vectors if there are some for the texts and the
query, otherwise by full text; `note` explains which."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from course_assistant import embedding
from course_assistant.chroma_collection import courses_of, read_collection
from course_assistant.chunks import Chunk, chunks_of, places_of
from course_assistant.courses import SHIPPED, Course, Lesson, read_courses
from course_assistant.full_text import FullTextIndex, is_chinese, key_terms
from course_assistant.matching import find_course
from course_assistant.own_files import read_own_files
from course_assistant.sources import Source
from course_assistant.vectors import (
    DIMENSIONS,
    MAKE_AGAIN,
    MODEL,
    SHIPPED_VECTORS,
    Vectors,
    is_near,
    read_vectors,
    to_bytes,
)
from unbroken import UserError

if TYPE_CHECKING:
    from course_assistant.vector_index import VectorIndex

MOST_HITS = 5
_INSTEAD = "Full-text search is used instead of vectors", "使用全文搜索，而不是向量搜索"
_OWN = "Your own files are searched by full text", "您自己的文件使用全文搜索"
Note: TypeAlias = tuple[str, str]
"""In English and in Chinese."""


class CourseLibrary:
    """`CourseLibrary.open()` has the courses of this folder. `search` may be called from any event loop, also from
    several at once."""

    def __init__(
        self,
        courses: Sequence[Course],
        chunks: Sequence[Chunk],
        nearby: tuple[VectorIndex, Vectors] | None,
        note: Note,
        folder: str = "courses",
        shipped: bool = True,
    ) -> None:
        self.courses = tuple(courses)
        self.shipped = shipped
        """Whether these are the courses of this application, which the example questions are about."""
        self._places = places_of(courses, folder)
        self.chunks = tuple(chunks)
        self.note, self.note_zh = note
        """Empty if everything is searched by vectors; else one sentence that explains what is not, why, and how to
        change it. The second one is in Chinese."""
        self._nearby = nearby
        self._full_text = FullTextIndex(chunks)

    @classmethod
    def open(cls, folder: Path = SHIPPED, vectors: Path = SHIPPED_VECTORS, *, full_text_only: bool = False) -> Self:
        courses = read_courses(folder)
        chunks = chunks_of(courses)
        if full_text_only:
            return cls(courses, chunks, None, (f"{_INSTEAD[0]}, as requested.", f"{_INSTEAD[1]}，这是按要求设定的。"))
        nearby, note = _open_vectors(chunks, vectors)
        return cls(courses, chunks, nearby, note)

    @classmethod
    def of_own_files(cls, folder: Path) -> Self:
        """The Markdown and text files of a folder, searched by full text."""
        own = read_own_files(folder)
        name = folder.resolve().name
        skipped = "; ".join(own.left_out)
        note = (f"{_OWN[0]}. Skipped: {skipped}.", f"{_OWN[1]}。已跳过：{skipped}。") if skipped else ("", "")
        return cls(own.courses, chunks_of(own.courses, name), None, note, name, shipped=False)

    @classmethod
    def of_chroma(cls, folder: Path, collection: str = "") -> Self:
        """The documents of a Chroma collection. They are searched by the vectors that it has if these come from the
        embedding model of this application, which is Chroma's default too; otherwise by full text."""
        courses, pieces = courses_of(read_collection(folder, collection))
        chunks = [chunk for chunk, _ in pieces]
        nearby, note = _open_foreign_vectors([(chunk, document.vector) for chunk, document in pieces])
        return cls(courses, chunks, nearby, note, "chroma", shipped=False)

    @property
    def has_vectors(self) -> bool:
        return self._nearby is not None

    def find_course(self, name: str) -> Course | None:
        return find_course(name, self.courses)

    def place(self, number: int) -> tuple[Course, Lesson | None, Source] | None:
        """The course or lesson with this number."""
        return self._places[number - 1] if 1 <= number <= len(self._places) else None

    def source(self, course: Course, lesson: Lesson | None = None) -> Source:
        return next(source for at, part, source in self._places if at is course and part is lesson)

    def has_lesson(self, number: int, course: Course | None = None) -> bool:
        """Whether this course, or any course, has the lesson."""
        return any(_is_in(chunk, course, number) for chunk in self.chunks)

    async def search(
        self, query: str, course: Course | None = None, lesson: int | None = None, limit: int = MOST_HITS
    ) -> list[Chunk]:
        """The best matching chunks, the best first. A query for what a lesson covers returns the lesson itself."""
        if lesson is not None and not self.has_lesson(lesson, course):
            return []  # models may write numbers that do not fit into a database
        if lesson is not None and all(term.isdigit() for term in key_terms(query)):
            return [chunk for chunk in self.chunks if _is_in(chunk, course, lesson)][:limit]
        title = course.title if course else None
        if self._nearby is not None:
            index, vectors = self._nearby
            vector = vectors.of_query(query)
            # The embedding model knows only English: its vectors of Chinese texts are meaningless.
            if vector is None and not is_chinese(query) and embedding.is_installed():
                vector = await asyncio.to_thread(embedding.embed, query)
            if vector is not None:
                return [self.chunks[number] for number in index.search(vector, title, lesson, limit)]
        return [self.chunks[number] for number in self._full_text.search(query, title, lesson, limit)]

    def close(self) -> None:
        self._full_text.close()
        if self._nearby is not None:
            self._nearby[0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_in(chunk: Chunk, course: Course | None, lesson: int) -> bool:
    return course in (None, chunk.course) and chunk.lesson is not None and chunk.lesson.number == lesson


def _open_foreign_vectors(
    pieces: Sequence[tuple[Chunk, tuple[float, ...]]],
) -> tuple[tuple[VectorIndex, Vectors] | None, Note]:
    """The index of vectors that came with the texts. A text is embedded again to see which model they are from."""
    first, vector = pieces[0]
    if not embedding.is_installed():
        return None, (
            f"{_INSTEAD[0]}, because the embedding model is not installed: {embedding.HOW_TO_INSTALL}.",
            f"{_INSTEAD[1]}，因为没有安装嵌入模型：请运行 {' 和 '.join(embedding.INSTALL)}。",
        )
    if any(len(each) != DIMENSIONS or not any(each) for _, each in pieces) or not is_near(
        embedding.embed(first.text), to_bytes(vector)
    ):
        return None, (
            f"{_INSTEAD[0]}, because the vectors of the collection are not of {MODEL}.",
            f"{_INSTEAD[1]}，因为集合里的向量不是 {MODEL} 算出来的。",
        )
    try:
        index = import_module("course_assistant.vector_index")
    except ImportError as error:
        return None, _not_installed(error)
    vectors = Vectors({chunk.digest: to_bytes(each) for chunk, each in pieces}, {})
    return (index.VectorIndex([chunk for chunk, _ in pieces], vectors.chunks), vectors), ("", "")


def _not_installed(error: ImportError) -> Note:
    missing = error.name or "apsw"
    command = "`pip install apsw sqlite-vec`"
    return (
        f"{_INSTEAD[0]}, because {missing} is not installed: run {command}.",
        f"{_INSTEAD[1]}，因为没有安装 {missing}：请运行 {command}。",
    )


def _open_vectors(chunks: Sequence[Chunk], file: Path) -> tuple[tuple[VectorIndex, Vectors] | None, Note]:
    try:
        index = import_module("course_assistant.vector_index")
    except ImportError as error:
        return None, _not_installed(error)
    try:
        vectors = read_vectors(file)
        strange = vectors.lacks(chunks)
        if strange is not None:
            why = f"{file.name} has no vector for a text of {strange.place!r}, which has been changed"
            raise UserError(f"{why}; {MAKE_AGAIN}")
        opened = index.VectorIndex(chunks, vectors.chunks)
    except UserError as error:
        return None, (f"{_INSTEAD[0]}: {error}.", f"{_INSTEAD[1]}：{error}。")
    note = "", ""
    if not embedding.is_installed():
        note = (
            "The questions of the tour are searched by vectors, all others by full text, because the embedding model "
            f"is not installed: {embedding.HOW_TO_INSTALL}.",
            "示例问题使用向量搜索，其他问题使用全文搜索，因为没有安装嵌入模型："
            f"请运行 {' 和 '.join(embedding.INSTALL)}。",
        )
    return (opened, vectors), note
