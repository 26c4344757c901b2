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
