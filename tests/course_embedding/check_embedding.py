"""The real embedding model of the course assistant: the shipped vectors come from it, simultaneous questions load it
once, and an unknown question is found by its meaning. `make test-embeddings` runs it; the default tests do not need the
model."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from course_assistant import embedding
from course_assistant.embed import write_shipped_vectors
from course_assistant.library import CourseLibrary
from course_assistant.vectors import read_vectors

pytestmark = pytest.mark.skipif(not embedding.is_installed(), reason="the embedding model is not installed here")


def test_the_shipped_vectors_are_those_of_the_model(tmp_path: Path) -> None:
    made, shipped = write_shipped_vectors(file=tmp_path / "vectors.json"), read_vectors()
    assert (made.chunks.keys(), made.queries.keys()) == (shipped.chunks.keys(), shipped.queries.keys())
    for ours, theirs in ((made.chunks, shipped.chunks), (made.queries, shipped.queries)):
        for key, vector in ours.items():
            # Another processor may round the last digit in another way.
            assert max(abs(a - b) for a, b in zip(_signed(vector), _signed(theirs[key]), strict=True)) <= 1


def test_simultaneous_questions_get_the_same_vectors_as_single_ones() -> None:
    questions = [f"What is in lesson {number}?" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        together = [*threads.map(embedding.embed, questions)]
    assert together == [embedding.embed(question) for question in questions]


def test_an_unknown_question_is_found_by_its_meaning() -> None:
    with CourseLibrary.open() as library:
        assert "embedding" not in library.note
        chunks = asyncio.run(library.search("paying less when the beginning of a request is repeated", None, None))
    assert any("caching" in chunk.text.lower() for chunk in chunks[:2])


def _signed(vector: bytes) -> list[int]:
    return [number - 256 if number > 127 else number for number in vector]
