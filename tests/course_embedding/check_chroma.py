"""The course assistant reads real Chroma collections: one with vectors of its own embedding model, one with others.
`make test-embeddings` runs it; the default tests need neither chromadb nor the model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_assistant import embedding
from course_assistant.chunks import chunks_of
from course_assistant.courses import read_courses
from course_assistant.library import CourseLibrary
from unbroken import UserError

pytest.importorskip("chromadb")
pytestmark = pytest.mark.skipif(not embedding.is_installed(), reason="the embedding model is not installed here")


WRITE = """
import chromadb, json, sys
client = chromadb.PersistentClient(sys.argv[1])
for name, what in json.load(sys.stdin).items():
    ids = [str(place) for place in range(len(what["documents"]))]
    client.create_collection(name, embedding_function=None).add(ids=ids, **what)
"""


def floats(text: str) -> list[float]:
    return [(number - 256 if number > 127 else number) / 127 for number in embedding.embed(text)]


def store(folder: Path, **vectors: Callable[[str], list[float]]) -> Path:
    """A store as somebody's own program writes it: texts of a few lessons with their courses, and a catalogue."""
    chunks = [chunk for chunk in chunks_of(read_courses()) if chunk.lesson and chunk.course.title.startswith("MCP")]
    metadatas = [
        {"course_title": chunk.course.title, "lesson_number": chunk.lesson.number, "chunk_index": place}
        for place, chunk in enumerate(chunks)
        if chunk.lesson is not None
    ]
    titles = list(dict.fromkeys(chunk.course.title for chunk in chunks))
    collections: dict[str, Any] = {
        name: {
            "documents": [chunk.text for chunk in chunks],
            "metadatas": metadatas,
            "embeddings": [vector(chunk.text) for chunk in chunks],
        }
        for name, vector in vectors.items()
    } | {
        "course_catalog": {
            "documents": titles,
            "metadatas": [{"title": title, "instructor": "somebody"} for title in titles],
            "embeddings": [[1.0] for _ in titles],
        }
    }
    subprocess.run([sys.executable, "-c", WRITE, str(folder)], input=json.dumps(collections), text=True, check=True)
    return folder


def digest_of(folder: Path) -> list[str]:
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*")) if file.is_file()]


def test_a_collection_is_searched_by_the_vectors_that_it_has_and_left_as_it_is(tmp_path: Path) -> None:
    folder = store(tmp_path / "store", course_content=floats)
    before = digest_of(folder)
    with CourseLibrary.of_chroma(folder) as library:
        assert (library.has_vectors, library.note) == (True, "")
        (course, *_) = library.courses
        assert (course.instructor, library.shipped) == ("somebody", False)
        found = asyncio.run(library.search("by which protocol an application finds tools", None, None))
        assert found
        assert all(chunk.text for chunk in found)
        assert library.place(found[0].source.number) is not None
    assert digest_of(folder) == before


def test_vectors_of_another_model_are_not_used(tmp_path: Path) -> None:
    folder = store(tmp_path / "store", short=lambda text: [float(len(text)), 1.0], same=lambda text: [1.0] * 384)
    for name in ("short", "same"):
        with CourseLibrary.of_chroma(folder, name) as library:
            assert not library.has_vectors
            assert "the vectors of the collection are not of all-MiniLM-L6-v2" in library.note
            assert asyncio.run(library.search("protocol", None, None))
    with pytest.raises(UserError, match="name the collection to read with --collection"):
        CourseLibrary.of_chroma(folder)
    with pytest.raises(UserError, match="there is no collection 'nothing'"):
        CourseLibrary.of_chroma(folder, "nothing")


def test_the_command_answers_from_a_collection(tmp_path: Path) -> None:
    folder = store(tmp_path / "store", course_content=floats)
    command = [sys.executable, "-m", "course_assistant", "ask", "What is MCP?", "--chroma", str(folder)]
    ended = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "chroma/course_content:1" in ended.stdout


def test_a_store_that_is_not_one_is_refused_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "chroma.sqlite3").write_bytes(b"")
    with pytest.raises(UserError, match="there are: none"):
        CourseLibrary.of_chroma(tmp_path)
