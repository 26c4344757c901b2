"""What a question came to: one of four judgements, words for it, and which quirks make up for what is bent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Judgement: TypeAlias = Literal["works", "bent", "broken", "unclear"]
"""`bent`: otherwise than the wire says, and Unbroken makes up for it, perhaps by a quirk in the row. `unclear`: the
model did not play along, which says nothing about its server."""


@dataclass(frozen=True, slots=True)
class Finding:
    judgement: Judgement
    words: str = ""
    quirks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Quirks` that the row has to have."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question that was asked."""

    name: str
    title: str
    finding: Finding
    requests: int = 0
    seconds: float = 0.0


def works(words: str = "") -> Finding:
    return Finding("works", words)


def bent(words: str, **quirks: Any) -> Finding:
    return Finding("bent", words, quirks)


def broken(words: str) -> Finding:
    return Finding("broken", words)


def unclear(words: str) -> Finding:
    return Finding("unclear", words)
