"""Finds the course that a name means. People write `mcp`, `computr use`, `MCP课程`, or a part of the title. If
nothing matches, nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from course_assistant.courses import Course

_FILLER = re.compile(r"\b(the|a|an|course|courses|class|on|about|of)\b|课程|这门课|那门课|课|的|《|》")
_WORD = re.compile(r"[a-z0-9+#]+|[\u3400-\u9fff]+")

LONGEST_NAME = 200
"""Characters of a name that are compared: a model that repeats itself must not slow down the search."""
NEAR_ENOUGH = 0.78
"""The similarity of two words that differ by a typo: `computr` and `computer` have 0.93, `cooking` and `coding`
0.77."""


def find_course(name: str, courses: Sequence[Course]) -> Course | None:
    """The course whose title contains most of the words; None if it does not contain at least half of them."""
    exact = next((course for course in courses if course.title.casefold() == name.strip().casefold()), None)
    if exact is not None:
        return exact
    wanted = _words(_FILLER.sub(" ", name[:LONGEST_NAME].casefold()))
    if not wanted:
        return None
    scores = [_score(wanted, _words(course.title.casefold()), course.summary_zh.casefold()) for course in courses]
    best = max(scores)
    return courses[scores.index(best)] if best > 0.5 else None


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _score(wanted: Sequence[str], title: Sequence[str], chinese: str) -> float:
    """How much of the wanted words the title contains; if two titles are equal, matches near the beginning are
    better."""
    found = [_likeness(word, title, chinese) for word in wanted]
    early = 0.01 if title and _likeness(title[0], wanted, "") else 0.0
    return sum(found) / len(wanted) + early


def _likeness(word: str, words: Sequence[str], chinese: str) -> float:
    if word in words or (chinese and not word.isascii() and word in chinese):
        return 1.0
    if len(word) < 4:  # a typo turns short words into other words
        return 0.0
    if any(other.startswith(word) for other in words):
        return 0.9
    nearest = max((SequenceMatcher(None, word, other).ratio() for other in words), default=0.0)
    return nearest if nearest >= NEAR_ENOUGH else 0.0
