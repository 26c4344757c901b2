"""The vector store: sqlite-vec in SQLite, through apsw, because Python's own `sqlite3` often cannot load extensions.
Both are optional extras: if they are missing, importing this file fails, and `library` does without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import apsw
import sqlite_vec  # pyright: ignore[reportMissingTypeStubs] - it has none

from course_assistant.chunks import Chunk
from course_assistant.vectors import DIMENSIONS
from unbroken import UserError

FARTHEST = 0.76
"""Cosine distance. A text beyond it is not related to the question: even the nearest text may be far away. In these
courses good hits have up to 0.75 (`how to reduce token cost`), random letters 0.77, the weather in Rome 0.93."""
NO_LESSON = -1


class VectorIndex:
    """`search` returns the numbers of chunks, the nearest first. Vectors are bytes, one for each dimension."""

    def __init__(self, chunks: Sequence[Chunk], vectors: Mapping[str, bytes]) -> None:
        self._database: Any = apsw.Connection(":memory:")  # its types are partly unknown
        self._turn = Lock()
        """apsw refuses access from two threads at once."""
        try:
            self._database.enable_load_extension(True)
            self._database.load_extension(sqlite_vec.loadable_path())
            self._database.enable_load_extension(False)
        except apsw.Error as error:
            raise UserError(
                f"sqlite-vec cannot be loaded ({error}); `pip install --force-reinstall sqlite-vec`"
            ) from None
        self._database.execute(
            f"create virtual table chunks using vec0(vector int8[{DIMENSIONS}] distance_metric=cosine, "
            "course text, lesson integer)"
        )
        for number, chunk in enumerate(chunks):
            lesson = chunk.lesson.number if chunk.lesson else NO_LESSON
            self._database.execute(
                "insert into chunks(rowid, vector, course, lesson) values (?, vec_int8(?), ?, ?)",
                (number, vectors[chunk.digest], chunk.course.title, lesson),
            )

    def search(self, vector: bytes, course: str | None, lesson: int | None, limit: int) -> list[int]:
        where, values = "", list[str | int]()
        if course is not None:
            where, values = where + " and course = ?", [*values, course]
        if lesson is not None:
            where, values = where + " and lesson = ?", [*values, lesson]
        with self._turn:
            rows = self._database.execute(
                f"select rowid, distance from chunks where vector match vec_int8(?) and k = ?{where} order by distance",
                (vector, limit, *values),
            ).fetchall()
        return [int(row[0]) for row in rows if float(row[1]) <= FARTHEST]

    def close(self) -> None:
        self._database.close()
