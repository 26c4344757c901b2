"""What stands in one recording after another, encoded once: the tools of an agent, its settings, its instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson

T = TypeVar("T")


class Repeated:
    """Of each kind the last one is kept, as a value that the encoder copies into its line."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, orjson.Fragment]] = {}

    def encoded(self, kind: str, value: T, write: Callable[[T], Any]) -> Any:
        """`write` gives the value as JSON, where it is not the one that was encoded last."""
        kept = self._kept.get(kind)
        if kept is not None and (kept[0] is value or kept[0] == value):
            return kept[1]
        written = write(value)
        try:
            fragment = orjson.Fragment(orjson.dumps(written))
        except (TypeError, ValueError):  # a number that the fast encoder does not take
            return written
        self._kept[kind] = (value, fragment)
        return fragment
