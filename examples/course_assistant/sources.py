"""Where an answer comes from: sources with links, in the order of their first use, each of them once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    title: str
    """As in `MCP: Build Tool Servers for Language Models - Lesson 2`."""
    link: str


def once_each(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Without doubles: two sources are the same if title and link are."""
    return tuple(dict.fromkeys(sources))


class UsedSources:
    """What the tools of one run found, noted under the text that the model reads. Calls that run side by side end in
    any order, identical ones share one execution, and a call of a broken answer is taken over under another id; the
    text stays the same through all of that."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Source, ...]] = {}

    def note(self, text: str, sources: Iterable[Source]) -> str:
        """Gives the text back: `return used.note(text, sources)`."""
        self._found[text] = tuple(sources)
        return text

    def of(self, texts: Iterable[str]) -> tuple[Source, ...]:
        """The sources behind these results, in their order."""
        return once_each(source for text in texts for source in self._found.get(text, ()))
