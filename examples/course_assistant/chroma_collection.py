"""Reads the courses of an existing Chroma collection (`--chroma DIR`) with the `chromadb` package, an optional extra:
its documents are the chunks, their metadata name the course and the lesson. A copy of the store is read, so that
the store stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course_assistant.chunks import Chunk, places_of
from course_assistant.courses import MOST_DIGITS, Course, Lesson, paragraphs_of
from course_assistant.own_files import one_line_title
from unbroken import UserError

CONTENT, CATALOG = "course_content", "course_catalog"
"""The collections that are read if they exist and no other is named: the texts, and what is known of each course."""
MOST_DOCUMENTS = 50_000
LARGEST_STORE = 2_000_000_000
_AT_ONCE = 1_000
_COURSE = ("course_title", "course", "title", "source", "file")
_LESSON = ("lesson_number", "lesson")
_ORDER = ("chunk_index", "index", "chunk")
_LONGEST_OVERLAP = 500
"""Characters at the end of a document that the next one may repeat."""


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    metadata: Mapping[str, Any]
    vector: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Collection:
    name: str
    documents: tuple[Document, ...]
    catalog: tuple[Mapping[str, Any], ...] = ()
    """What the collection `course_catalog` has about each course: `title`, `instructor`, `course_link`,
    `lessons_json`."""


def read_collection(folder: Path, name: str = "") -> Collection:
    """Raises `UserError` if the package is missing, or if there is no such store or collection."""
    if not (folder / "chroma.sqlite3").is_file():
        raise UserError(f"{str(folder)!r} is not a Chroma store: it has no chroma.sqlite3; name the folder that has it")
    try:
        chroma, settings = import_module("chromadb"), import_module("chromadb.config").Settings
    except ImportError:
        raise UserError("--chroma needs the package chromadb: run `pip install chromadb`") from None
    try:
        with TemporaryDirectory(
            ignore_cleanup_errors=True
        ) as copy:  # opening a store writes to it, and updates an old one
            _copy(folder, Path(copy))
            client = chroma.PersistentClient(copy, settings(anonymized_telemetry=False))
            names = sorted(each.name for each in client.list_collections())
            chosen = _choose(names, name, folder)
            documents = tuple(_documents(client.get_collection(chosen, embedding_function=None)))
            catalog: tuple[Mapping[str, Any], ...] = ()
            if CATALOG in names and chosen != CATALOG:
                known = client.get_collection(CATALOG, embedding_function=None).get(include=["metadatas"])["metadatas"]
                catalog = tuple(each for each in known if each)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - chromadb raises errors of many kinds, also of its own library in Rust
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"the Chroma store in {str(folder)!r} cannot be read: {why}") from None
    if not any(document.text.strip() for document in documents):
        raise UserError(f"the collection {chosen!r} in {str(folder)!r} has no documents")
    return Collection(chosen, documents, catalog)


def _copy(folder: Path, to: Path) -> None:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size > LARGEST_STORE:
        raise UserError(f"the Chroma store in {str(folder)!r} has {size / 1e9:.1f} GB, and 2 GB are allowed")
    shutil.copytree(folder, to, dirs_exist_ok=True)


def _choose(names: Sequence[str], name: str, folder: Path) -> str:
    if name in names:
        return name
    listed = ", ".join(names) or "none"
    if name:
        raise UserError(f"there is no collection {name!r} in {str(folder)!r}; there are: {listed}")
    if CONTENT in names:
        return CONTENT
    if len(names) == 1:
        return names[0]
    raise UserError(f"name the collection to read with --collection; in {str(folder)!r} there are: {listed}")


def _documents(collection: Any) -> Iterable[Document]:
    count = collection.count()
    if count > MOST_DOCUMENTS:
        raise UserError(
            f"the collection {collection.name!r} has {count:,} documents and {MOST_DOCUMENTS:,} are allowed"
        )
    for offset in range(0, count, _AT_ONCE):
        page = collection.get(include=["documents", "metadatas", "embeddings"], limit=_AT_ONCE, offset=offset)
        vectors = page["embeddings"]
        for place, text in enumerate(page["documents"]):
            vector = () if vectors is None else tuple(map(float, vectors[place]))
            yield Document(text or "", page["metadatas"][place] or {}, vector)


def courses_of(collection: Collection) -> tuple[tuple[Course, ...], tuple[tuple[Chunk, Document], ...]]:
    """The courses in the order of their first document, and each document as a chunk of its lesson."""
    about = {one_line_title(str(each.get("title", "")), ""): each for each in collection.catalog}
    lessons: dict[str, dict[int | None, list[Document]]] = {}
    for document in collection.documents:
        if document.text.strip():
            title = one_line_title(_first(document, _COURSE), one_line_title(collection.name, "Course"))
            lessons.setdefault(title, {}).setdefault(_lesson_number(document), []).append(document)
    courses: list[Course] = []
    pieces: list[list[list[Document]]] = []
    for title, by_number in lessons.items():
        parts = sorted(_numbered(by_number).items())
        ordered = [sorted(documents, key=_order) for _, documents in parts]
        known = about.get(title, {})
        titles = _lesson_titles(known)
        read = (_lesson(n, titles.get(n, ("", "")), docs) for (n, _), docs in zip(parts, ordered, strict=True))
        link, instructor = _text(known, "course_link"), _text(known, "instructor")
        courses.append(Course(title, link, instructor, "", "", tuple(read), collection.name))
        pieces.append(ordered)
    sources = {(id(course), id(lesson)): source for course, lesson, source in places_of(courses, "chroma")}
    chunks = tuple(
        (Chunk(course, lesson, document.text.strip(), sources[id(course), id(lesson)]), document)
        for course, ordered in zip(courses, pieces, strict=True)
        for lesson, documents in zip(course.lessons, ordered, strict=True)
        for document in documents
    )
    return tuple(courses), chunks


def _numbered(by_number: Mapping[int | None, list[Document]]) -> dict[int, list[Document]]:
    """Texts that belong to no lesson become the last one."""
    numbered = {number: documents for number, documents in by_number.items() if number is not None}
    if None in by_number:
        numbered[max(numbered, default=0) + 1] = by_number[None]
    return numbered


def _lesson(number: int, about: tuple[str, str], documents: Sequence[Document]) -> Lesson:
    title, link = about
    first = documents[0]
    title = one_line_title(title or _text(first.metadata, "lesson_title"), str(number))
    text = join_overlapping(document.text.strip() for document in documents)
    return Lesson(number, title, link or _text(first.metadata, "lesson_link"), paragraphs_of(text), text)


def join_overlapping(texts: Iterable[str]) -> str:
    """The texts of chunks as one. What a chunk repeats of the end of the one before it is there once."""
    joined = ""
    for text in texts:
        longest = min(len(joined), len(text), _LONGEST_OVERLAP)
        shared = next((size for size in range(longest, 9, -1) if joined.endswith(text[:size])), 0)
        joined += text[shared:] if shared else f"\n\n{text}" if joined else text
    return joined


def _lesson_titles(known: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """The title and the link of each lesson, by its number."""
    try:
        listed: Any = json.loads(_text(known, "lessons_json") or "[]")
        return {
            each["lesson_number"]: (_text(each, "lesson_title"), _text(each, "lesson_link"))
            for each in listed
            if isinstance(each.get("lesson_number"), int)
        }
    except (ValueError, TypeError, AttributeError):  # somebody else's JSON
        return {}


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _first(document: Document, names: Iterable[str]) -> str:
    return next((str(value) for name in names if (value := document.metadata.get(name)) not in (None, "")), "")


def _lesson_number(document: Document) -> int | None:
    number = _first(document, _LESSON)
    return int(number) if number.isdecimal() and number.isascii() and len(number) <= MOST_DIGITS else None


def _order(document: Document) -> int:
    number = _first(document, _ORDER)
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else 0
