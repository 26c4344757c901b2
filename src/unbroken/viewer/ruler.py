"""Time as columns of a terminal: bars on a scale of seconds, the axis above them, and the signs that they are drawn in.

Knows no runs and no calls: what is drawn is given as parts, each from one second to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, log10
from typing import TypeAlias

from rich.text import Text

Stretch: TypeAlias = tuple[float, float, str, str]
"""From, to, the sign, its style."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    model: str
    writing: str
    waiting: str
    running: str
    early: str
    failed: str
    grid: str
    broken: str
    mark: str


FINE = Glyphs("─", "▒", "·", "█", "▓", "╱", "┊", "╳", "▸")
COARSE = Glyphs("-", "~", ".", "#", "%", "/", " ", "x", ">")
"""For a terminal that has no more than ASCII."""

MODEL, WRITING, WAITING, RUNNING, EARLY, FAILED, SHARED = "blue", "cyan", "dim", "blue", "green", "red", "magenta"


@dataclass(frozen=True, slots=True)
class Ruler:
    began: float
    scale: float
    columns: int

    def bar(self, parts: Sequence[Stretch]) -> Text:
        """One part behind the other. None is too short to be seen, except a wait that is none."""
        cells: list[tuple[str, str]] = [(" ", "")] * self.columns
        free = 0
        for start, end, glyph, style in parts:
            first = min(max(self.column(start), free), self.columns - 1)
            least = first if style == WAITING else first + 1
            free = min(max(self.column(end), least), self.columns)
            if style == WAITING and (end - start) / self.scale * self.columns < 0.5:
                glyph, style = cells[first - 1] if first else (" ", "")  # a column may begin between the two
            cells[first:free] = [(glyph, style)] * (free - first)
        return Text.assemble(*(("".join(glyph for glyph, _ in same), style) for style, same in groupby(cells, _style)))

    def axis(self) -> str:
        """`0s   1    2    3`"""
        marks = [" "] * (self.columns + 1)
        least = 6 * self.scale / max(self.columns, 6)
        step = next((step for step in _STEPS if step >= least > _STEPS[0] / 2), 0) or _round(least)
        for number in range(int(self.scale / step + 1e-6) + 1):
            at = self.column(self.began + number * step)
            word = f"{number * step:g}s" if number == 0 else f"{number * step:g}"
            if at + len(word) <= self.columns:
                marks[at : at + len(word)] = word
        return "".join(marks)[: self.columns]

    def column(self, time: float) -> int:
        return int((time - self.began) / self.scale * self.columns + 1e-6)


def _round(least: float) -> float:
    """The next number of one digit: 1, 2 or 5."""
    size = 10.0 ** floor(log10(least))
    return next(digit * size for digit in (1, 2, 5, 10) if digit * size >= least * 0.999999)


def _style(cell: tuple[str, str]) -> str:
    return cell[1]


_STEPS = (10, 30, 60, 300, 600, 1800, 3600, 14400, 86400)
"""Of longer times."""
