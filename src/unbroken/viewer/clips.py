"""Long texts, cut to what can be looked at. A picture holds many: each has a most, and so have all of them together."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.messages import Json
from unbroken.wires.jsontext import dump_arguments

MOST = 100_000
"""Characters that are shown of one text."""
ALTOGETHER = 24_000_000
SPARING = 1_000
"""Characters of each text, once all of them together have come to that."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The beginning of a text, and how many bytes all of it has."""

    text: str
    size: int
    cut: bool = False


class Clipper:
    """Of one picture."""

    def __init__(self, most: int = MOST, altogether: int = ALTOGETHER) -> None:
        self._most = most
        self._left = altogether

    def text(self, text: str) -> Clip:
        most = self._most if self._left > 0 else min(SPARING, self._most)
        shown = text[:most]
        self._left -= len(shown)
        return Clip(shown, _size(text), len(shown) < len(text))

    def json(self, value: Json) -> Clip:
        """A value as JSON text."""
        return self.text(dump_arguments(value) or repr(value)[:SPARING])


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
