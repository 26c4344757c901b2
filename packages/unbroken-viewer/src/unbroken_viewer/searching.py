"""Finds a text in the contents of recordings: messages, arguments, results, answers and errors.

A line is parsed only if its bytes contain the text, so that a folder of many recordings is searched quickly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from unbroken.errors import UserError
from unbroken.trajectory.line_reader import read_json
from unbroken_viewer.listing import SEARCHED, Listing
from unbroken_wires.messages import Json

SHORTEST = 2
"""Characters that a text to search for must have."""
_BEFORE, _AFTER = 30, 90
"""Characters of a snippet before and after the beginning of the text."""
_NOT_CONTENTS = frozenset(
    {"line", "event", "delta", "run", "seq", "id", "call_id", "schema", "settings", "tools", "state", "wire", "role"}
    | {"type", "native", "signature", "schedule", "data", "mime", "key"}
)
"""Fields that people do not search: ids, kinds, settings, encoded data."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a recording contains the text: in so many different texts, and the first of them in short."""

    count: int
    snippet: str


@dataclass(frozen=True, slots=True)
class FoundRuns:
    found: dict[str, Found]
    """By the name of the recording."""
    skipped: int
    """Recordings that were not searched: there are too many bytes, or they can no longer be read."""


def search(listing: Listing, wanted: str, most: int = SEARCHED) -> FoundRuns:
    """Upper and lower case are the same. At most so many bytes are read."""
    wanted = wanted.strip()
    if len(wanted) < SHORTEST:
        raise UserError(f"{wanted!r} is too short to search for: write {SHORTEST} characters or more")
    found: dict[str, Found] = {}
    skipped = 0
    for row in listing.rows(0):
        if row.problem:
            continue
        if row.size > most:
            skipped += 1
            continue
        most -= row.size
        try:
            here = find(listing.raw_lines(row.name), wanted)
        except UserError:  # it was deleted meanwhile
            skipped += 1
            continue
        if here is not None:
            found[row.name] = here
    return FoundRuns(found, skipped)


def find(lines: Iterable[bytes], wanted: str) -> Found | None:
    """Searches one recording."""
    folded = wanted.casefold()
    spellings = tuple({_in_json(each) for each in (wanted, wanted.lower(), wanted.upper(), wanted.title())})
    texts: dict[str, None] = {}
    for raw in lines:
        lowered = raw.lower()
        if any(spelling in lowered for spelling in spellings):
            texts.update(dict.fromkeys(text for text in _texts(read_json(raw)) if folded in text.casefold()))
    return Found(len(texts), _snippet(next(iter(texts)), folded)) if texts else None


def _in_json(text: str) -> bytes:
    """As it is inside a JSON string, with its ASCII letters in lower case."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass").lower()


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Json]", value):
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in cast("dict[str, Json]", value).items():
            if name not in _NOT_CONTENTS:
                yield from _texts(each)


def _snippet(text: str, folded: str) -> str:
    at = max(text.casefold().find(folded), 0)
    start = max(at - _BEFORE, 0)
    inside = " ".join(text[start : at + _AFTER].split())
    return f"{'…' if start else ''}{inside}{'…' if at + _AFTER < len(text) else ''}"
