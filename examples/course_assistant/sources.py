"""The sources of an answer, with links, in the order of their first use, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    title: str
    """For example `MCP: Build Tool Servers for Language Models - Lesson 2`."""
    link: str


def unique(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Removes duplicates: two sources are the same if title and link are equal."""
    return tuple(dict.fromkeys(sources))
