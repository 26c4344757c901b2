"""Words with a similar meaning, so that full-text search finds a lesson about what screenshots cost when somebody asks
why screens get expensive. A line of `related_words.txt` is a group; a word may stand in several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = (
    "ations",
    "ation",
    "ments",
    "ment",
    "ings",
    "ing",
    "ness",
    "ers",
    "er",
    "ies",
    "ied",
    "ed",
    "es",
    "ly",
    "s",
    "e",
    "y",
)


def related_to(words: Iterable[str]) -> list[str]:
    """The words that mean something similar, without these themselves."""
    given = list(words)
    near = dict.fromkeys(related for word in given for related in _RELATED.get(_stem(word), ()))
    return [word for word in near if word not in given]


def _stem(word: str) -> str:
    for end in _SUFFIXES:
        if word.endswith(end) and len(word) - len(end) > 2:
            return _stem(word.removesuffix(end))
    return word


def _read_groups() -> dict[str, list[str]]:
    related: dict[str, list[str]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines():
        group = line.split()
        for word in group:
            related.setdefault(_stem(word), []).extend(group)
    return related


_RELATED = _read_groups()
