"""Computes the vectors that are shipped: for every chunk, and for the queries of the tours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from course_assistant import embedding
from course_assistant.chunks import chunks_of, digest
from course_assistant.courses import SHIPPED, read_courses
from course_assistant.tours import TOUR_QUERIES
from course_assistant.vectors import SHIPPED_VECTORS, Vectors, plain, write_vectors


def write_shipped_vectors(
    folder: Path = SHIPPED, file: Path = SHIPPED_VECTORS, embed: Callable[[str], bytes] = embedding.embed
) -> Vectors:
    chunks = chunks_of(read_courses(folder))
    vectors = Vectors(
        {chunk.digest: embed(chunk.searched) for chunk in chunks},
        {digest(plain(query)): embed(query) for query in TOUR_QUERIES},
    )
    write_vectors(file, vectors)
    return vectors
