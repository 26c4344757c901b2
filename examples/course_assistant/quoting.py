"""What the tools' results say, read back from their text: the scripted model answers with nothing but this. A real
model reads the same text and needs none of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from course_assistant.full_text import is_chinese, own_terms, terms

_HIT = re.compile(r"^\[(.+)\]\n", re.M)
_SENTENCE = re.compile(r"[^.!?。！？]+(?:[.!?](?=\s|$)|[。！？]|$)|[.!?]")
_LESSON_LINE = re.compile(r"^(\d+)\. (.+)$", re.M)
_STEM = 5
"""Letters after which words count as the same: `scaled` and `scale`."""


@dataclass(frozen=True, slots=True)
class Hit:
    place: str
    text: str

    @property
    def course(self) -> str:
        return self.place.partition(":")[0]

    @property
    def part(self) -> str:
        """`Lesson 3`, or the title if it is about the course as a whole."""
        return self.place.rpartition(" - ")[2]


def hits(result: str) -> list[Hit]:
    """Of a search; a result that found nothing has none."""
    parts = _HIT.split(result)
    if parts[0].strip():
        return []
    return [Hit(place, text.strip()) for place, text in zip(parts[1::2], parts[2::2], strict=True)]


def sentences(text: str, count: int, about: str = "", chinese: bool = False) -> str:
    """A few sentences in one language (of any, if it has none in that one): from that on which has most of the words
    that are asked `about`, else from the first."""
    lines = [line for line in text.splitlines() if is_chinese(line) == chinese] or text.splitlines()
    found = list(_sentences("\n".join(lines)))
    wanted = {term[:_STEM] for term in own_terms(about)}
    best = max(range(len(found)), key=lambda at: (len(wanted.intersection(_stems(found[at]))), -at))
    return ("" if chinese else " ").join(found[best : best + count])


def _stems(text: str) -> set[str]:
    return {term[:_STEM] for term in terms(text)}


def _sentences(text: str) -> Iterator[str]:
    """A sentence ends at the end of its line, too."""
    for line in text.splitlines():
        held = ""
        for piece in _SENTENCE.findall(line):
            held += piece
            if piece[-1] in ".!?。！？":
                yield held.strip()
                held = ""
        if held.strip():
            yield held.strip()


def field(outline: str, name: str) -> str:
    """Of an outline, or of the text about a course: what stands behind `name:`."""
    found = re.search(rf"^{name}: (.+)$", outline, re.M)
    return found[1] if found else ""


def lesson_titles(outline: str) -> list[tuple[int, str]]:
    return [(int(number), title) for number, title in _LESSON_LINE.findall(outline)]
