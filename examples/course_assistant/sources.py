"""The sources of an answer, and the citations in its text. Each course and each lesson has a number in its library; the
tools show it to the model, which cites it as `[7]`. Answers are shown with `[1]`, `[2]`, … in the order of their first
citation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

CITATION = re.compile(r"[\[【](\d{1,6}(?:\s*[,，、]\s*\d{1,6})*)[\]】]", re.ASCII)
"""`[7]`, `[7, 9]`, and the brackets that models use in Chinese."""
_NUMBER = re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    number: int
    """Its number in the library."""
    title: str
    """For example `MCP: Build Tool Servers for Language Models - Lesson 2`."""
    file: str
    """The file and the line where it begins: `courses/mcp.txt:13`."""

    @property
    def link(self) -> str:
        """Its page."""
        return f"/lessons/{self.number}"


def unique(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Removes duplicates."""
    return tuple(dict.fromkeys(sources))


def cite(text: str, known: Mapping[int, T]) -> tuple[str, tuple[T, ...]]:
    """The text with citations counted from 1, and the sources in that order. Numbers that name no known source are left
    as they are."""
    used: dict[int, int] = {}

    def renumber(found: re.Match[str]) -> str:
        numbers = [int(number) for number in _NUMBER.findall(found[1])]
        if not all(number in known for number in numbers):
            return found[0]
        return "".join(f"[{used.setdefault(number, len(used) + 1)}]" for number in dict.fromkeys(numbers))

    counted = CITATION.sub(renumber, text)
    return counted, tuple(known[number] for number in used)
