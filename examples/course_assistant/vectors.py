"""The vectors that are shipped: one for each chunk, and one for each query of the tour, so that the tour uses the
vector store without the embedding model. They are in a JSON file, by the digest of their text, with eight bits per
number; `python -m course_assistant embed` writes it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_assistant.chunks import Chunk, digest
from unbroken import UserError

SHIPPED_VECTORS = Path(__file__).parent / "vectors.json"
MODEL = "all-MiniLM-L6-v2"
"""Vectors of another model cannot be compared with these."""
DIMENSIONS = 384
MAKE_AGAIN = "create it again with `python -m course_assistant embed`"


@dataclass(frozen=True, slots=True)
class Vectors:
    chunks: Mapping[str, bytes]
    queries: Mapping[str, bytes]

    def of_query(self, query: str) -> bytes | None:
        return self.queries.get(digest(plain(query)))

    def lacks(self, chunks: Iterable[Chunk]) -> Chunk | None:
        """A chunk whose text has no vector here because it is new or was changed; None if there is none."""
        return next((chunk for chunk in chunks if chunk.digest not in self.chunks), None)


def plain(query: str) -> str:
    return " ".join(query.casefold().split()).rstrip("?？.。!！ ")


def to_bytes(vector: Sequence[float]) -> bytes:
    """A vector of length 1 as integers from -127 to 127. The angles, which alone matter, are preserved."""
    scale = 127 / (max(abs(number) for number in vector) or 1.0)
    return bytes(round(number * scale) & 0xFF for number in vector)


def is_near(one: bytes, other: bytes) -> bool:
    """Whether both are the vector of the same text by the same model, apart from rounding."""
    a, b = ([number - 256 if number > 127 else number for number in each] for each in (one, other))
    lengths = sum(x * x for x in a) * sum(y * y for y in b)
    return bool(lengths) and sum(x * y for x, y in zip(a, b, strict=True)) / lengths**0.5 > 0.98


def read_vectors(file: Path = SHIPPED_VECTORS) -> Vectors:
    try:
        saved: Any = json.loads(file.read_text("utf-8"))
        model = saved["model"]
        vectors = Vectors(_decoded(saved["chunks"]), _decoded(saved["queries"]))
    except OSError as error:
        raise UserError(f"{file.name}: the vectors cannot be read ({error.strerror}); {MAKE_AGAIN}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        raise UserError(f"{file.name}: this is not a file of vectors; {MAKE_AGAIN}") from None
    if model != MODEL:
        raise UserError(f"{file.name}: its vectors are of {str(model)[:60]!r} and not of {MODEL!r}; {MAKE_AGAIN}")
    return vectors


def write_vectors(file: Path, vectors: Vectors) -> None:
    saved = {"model": MODEL, "chunks": _encoded(vectors.chunks), "queries": _encoded(vectors.queries)}
    try:
        file.write_text(json.dumps(saved, indent=0) + "\n", "utf-8")
    except OSError as error:
        raise UserError(
            f"{file.name}: the vectors cannot be written ({error.strerror}); fix that, then try again"
        ) from None


def _encoded(vectors: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(vector).decode() for key, vector in sorted(vectors.items())}


def _decoded(saved: dict[str, str]) -> dict[str, bytes]:
    vectors = {key: base64.b64decode(value, validate=True) for key, value in saved.items()}
    if any(len(vector) != DIMENSIONS for vector in vectors.values()):
        raise ValueError("a vector of another length")
    if not all(any(vector) for vector in vectors.values()):
        raise ValueError("a vector without a direction")
    return vectors
