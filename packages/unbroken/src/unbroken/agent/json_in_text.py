"""Finds the JSON values in the text of an answer: alone, in code fences, or between sentences.

Only complete values count. Nothing is taken out of a broken value, because its parts are not the answer; and if the
last value is cut off, there is none, because it may have been the answer. The work is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from unbroken_wires.messages import Json

_BEGIN = re.compile(r"""\{|\[\s*(?:[\[\]{"']|-?\d|(?:true|false|null)\b)""")
"""Where an object or an array may begin. Other square brackets belong to a sentence: `[see below]`."""
_MARKS = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*+"?', re.S)
_FENCED = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)\n?```", re.S)


class _CutOff(Exception):
    """A value has no end."""


def values_in(text: str) -> list[Json]:
    """The values, each once, in their order. A text that is JSON as a whole has one value; within a text, a number or
    a string counts only if it is alone in a code fence."""
    with suppress(ValueError, RecursionError):
        return [json.loads(text)]
    try:
        return list({json.dumps(value, sort_keys=True): value for value in _scan(text)}.values())
    except _CutOff:
        return []


def _scan(text: str) -> Iterator[Json]:
    at = 0
    fences = deque(match for match in _FENCED.finditer(text) if match[1].strip()[:1] not in ("{", "["))
    while (begin := _BEGIN.search(text, at)) is not None:
        yield from _alone(fences, at, begin.start())
        at = _end_of(text, begin.start())
        if not at:
            raise _CutOff
        with suppress(ValueError, RecursionError):
            yield json.loads(text[begin.start() : at])
    yield from _alone(fences, at, len(text))


def _alone(fences: deque[re.Match[str]], start: int, end: int) -> Iterator[Json]:
    """The values of code fences that lie completely within this part of the text."""
    while fences and fences[0].end() <= end:
        fence = fences.popleft()
        if fence.start() >= start:
            with suppress(ValueError):
                yield json.loads(fence[1])


def _end_of(text: str, begin: int) -> int:
    """The place behind the bracket that closes the one at `begin`; 0 if nothing closes it."""
    depth = 0
    for mark in _MARKS.finditer(text, begin):
        if mark[0] in ("{", "["):
            depth += 1
        elif mark[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return mark.end()
    return 0
