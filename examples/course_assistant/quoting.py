"""Reads the results of the tools back from their text: the scripted model answers only with quotations from them. A
real model reads the same text and does not need this module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from course_assistant.full_text import is_chinese, key_terms, terms

_HEAD = re.compile(r"\[(\d+)\] (.+)")
_SOURCE = re.compile(r"^Source: \[(\d+)\]$", re.M)
_QUOTED = "> "
_BETWEEN = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])(?![。！？])\s*")
_LESSON_LINE = re.compile(r"^(\d+)\. (.+)$", re.M)
_STEM = 5
"""Words with the same first letters up to this number count as equal: `scaled` and `scale`."""


@dataclass(frozen=True, slots=True)
class Hit:
    number: int
    place: str
    text: str

    @property
    def course(self) -> str:
        return self.place.partition(":")[0]

    @property
    def part(self) -> str:
        """`Lesson 3`, or the title if it is about the course in general."""
        return self.place.rpartition(" - ")[2]


def hits(result: str) -> list[Hit]:
    """The hits of a search; empty if nothing was found."""
    found: list[Hit] = []
    for line in result.split("\n"):
        if head := _HEAD.fullmatch(line):
            found.append(Hit(int(head[1]), head[2], ""))
        elif found and line.startswith(_QUOTED):
            said = line.removeprefix(_QUOTED)
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n{said}".strip())
    return found


def numbers(result: str) -> list[int]:
    """The numbers of the sources in a result of either tool."""
    if outline := _SOURCE.search(result) if result.startswith("Course: ") else None:
        return [int(outline[1])]
    return [hit.number for hit in hits(result)]


def sentences(text: str, count: int, about: str = "", chinese: bool = False) -> str:
    """A few sentences in one language (any language, if there are none in that one). They begin with the sentence that
    contains most of the words in `about`, or with the first."""
    lines = [line for line in text.splitlines() if is_chinese(line) == chinese] or text.splitlines()
    found = list(_sentences("\n".join(lines)))
    if not found:
        return text  # nothing but punctuation
    wanted = {term[:_STEM] for term in key_terms(about)}
    best = max(range(len(found)), key=lambda at: (len(wanted.intersection(_stems(found[at]))), -at))
    return ("" if is_chinese(found[best]) else " ").join(found[best : best + count])


def _stems(text: str) -> set[str]:
    return {term[:_STEM] for term in terms(text)}


def _sentences(text: str) -> Iterator[str]:
    """A sentence also ends at the end of its line."""
    for line in text.splitlines():
        yield from filter(None, map(str.strip, _BETWEEN.split(line)))


def field(outline: str, name: str) -> str:
    """The text after `name:` in an outline, or in the text about a course."""
    found = re.search(rf"^{name}: (.+)$", outline, re.M)
    return found[1] if found else ""


def lesson_titles(outline: str) -> list[tuple[int, str]]:
    return [(int(number), title) for number, title in _LESSON_LINE.findall(outline)]
