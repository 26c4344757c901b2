"""A run as a waterfall in the terminal: a line for each turn and each call, with a bar from its start to its end.

It draws what `lanes` holds. The caller adds the lines around it: `terminal` for a recording, `cli.timeline` for an
active run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import floor, log10
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unbroken.errors import StreamError
from unbroken.viewer.entries import Clip, as_object
from unbroken.viewer.lanes import CallLane, Turn
from unbroken.wires.jsontext import loads

# Time as columns of a terminal: bars on a scale of seconds, the axis above them, and the signs that they are drawn
# in.
#
# Knows no runs and no calls: what is drawn is given as parts, each from one second to another.


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
        """Draws the parts one after the other. Each is visible, however short, except an empty wait."""
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
    """The next round number: 1, 2 or 5 times a power of ten."""
    size = 10.0 ** floor(log10(least))
    return next(digit * size for digit in (1, 2, 5, 10) if digit * size >= least * 0.999999)


def _style(cell: tuple[str, str]) -> str:
    return cell[1]


_STEPS = (10, 30, 60, 300, 600, 1800, 3600, 14400, 86400)
"""Of longer times."""


_TOOK = 9
"""Columns for seconds, at the right edge."""
_MARKS = {
    "shared": "shared",
    "refused": "refused",
    "spoiled": "not whole",
    "handed": "handed",
    "waiting": "never ran",
    "uncertain": "unknown",
}


@dataclass(slots=True)
class Waterfall:
    seconds: float
    """How long the run took, or has been active."""
    width: int
    glyphs: Glyphs = FINE
    scale: float = 0.0
    """Seconds from the left to the right edge, if that is more than the run took."""
    brief: bool = False
    """Turns, and calls that did not run, have nothing at the right edge."""
    _label: int = field(init=False)
    _ruler: Ruler = field(init=False)

    def __post_init__(self) -> None:
        self._label = min(max(self.width * 7 // 20, 4), 36)
        columns = max(self.width - self._label - _TOOK - 1, 1)
        self._ruler = Ruler(0.0, max(self.seconds, self.scale, 0.001), columns)

    def head(self, schedule: str) -> Text:
        took = seconds_in_words(self.seconds).rjust(_TOOK)
        title = fit(in_line(schedule).upper() or "RUN", self._label)
        return Text.assemble((title, "bold"), (self._ruler.axis(), "dim"), took)

    def turn(self, turn: Turn) -> Text:
        text = Text.assemble((fit(_title(turn), self._label), "dim"), self._ruler.bar(self._heard(turn)))
        if not self.brief:
            took = "" if turn.ended is None else seconds_in_words(turn.ended - turn.asked)
            text.append(took.rjust(_TOOK), "dim")
        return text

    def call(self, call: CallLane) -> Text:
        name = f"  {in_line(call.name)} {in_line(_values(call.arguments))}"
        text = Text.assemble(fit(name, self._label), self._ruler.bar(self._stretches(call)))
        took = "" if call.started is None else seconds_in_words(self._end(call) - call.started)
        if not (took or self.brief):
            took = "died" if call.died and call.state != "uncertain" else _MARKS.get(call.state, "")
        text.append(took.rjust(_TOOK), FAILED if call.error else "dim")
        return text

    def _end(self, call: CallLane) -> float:
        return self.seconds if call.ended is None else call.ended

    def _heard(self, turn: Turn) -> list[Stretch]:
        """The attempts of a turn, one after the other, with a mark where one broke off."""
        parts: list[Stretch] = []
        for attempt in turn.attempts:
            end = self.seconds if attempt.ended is None else attempt.ended
            parts.append((attempt.asked, end, self.glyphs.model, MODEL))
            if attempt.broken:
                parts.append((end, end, self.glyphs.broken, FAILED))
        return parts

    def _stretches(self, call: CallLane) -> list[Stretch]:
        parts: list[Stretch] = []
        glyphs, ended = self.glyphs, self._end(call)
        written = call.opened if call.written is None else call.written
        begun = call.died[0][0] if call.died else call.started
        if written is not None:
            parts.append((written if call.opened is None else call.opened, written, glyphs.writing, WRITING))
            if call.state == "shared":
                parts.append((written, ended, glyphs.waiting, SHARED))
            elif begun is not None or call.ended is not None:
                parts.append((written, ended if begun is None else begun, glyphs.waiting, WAITING))
        parts += [(start, end, glyphs.broken, FAILED) for start, end in call.died]
        if call.started is not None:
            sign, style = (glyphs.early, EARLY) if call.early else (glyphs.running, RUNNING)
            if call.error or call.state == "dropped":
                sign, style = glyphs.failed, FAILED
            parts.append((call.started, ended, sign, style))
        return parts


def _title(turn: Turn) -> str:
    if turn.round:
        return f"round {turn.round}"
    return "no answer" if turn.failed else "no end" if turn.ended is None else "answer"


def _values(arguments: Clip | None) -> str:
    """Of arguments that are not long, their values: `Rome, 3`."""
    if arguments is None or arguments.size > 4000:
        return arguments.text if arguments else ""
    try:
        value = loads(arguments.text.encode("utf-8", "replace"))
    except StreamError:
        return arguments.text
    return ", ".join(map(str, as_object(value).values())) if isinstance(value, dict) else arguments.text


def legend_lines(signs: Iterable[tuple[str, str, str]], width: int) -> Iterator[Text]:
    """What the signs mean: each with its style and its text, as many in a line as fit."""
    line = Text()
    for sign, style, words in signs:
        if line and cell_len(line.plain) + len(words) + 6 > width:
            yield line
            line = Text()
        line.append("   " if line else "").append(sign * 2, style).append(f" {words}")
    yield line


def in_line(words: str) -> str:
    """On one line, without control characters."""
    line = " ".join(words[:4000].split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)


def fit(words: str, columns: int) -> str:
    """Exactly this wide, followed by a space if it had to be cut."""
    if cell_len(words) >= columns:
        words = f"{set_cell_size(words, max(columns - 2, 1)).rstrip()}…"
    return set_cell_size(words, columns)


def seconds_in_words(value: float) -> str:
    """In no more than nine columns."""
    if 0 < value < 0.01:
        return f"{value * 1000:.1f} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 10_000 else f"{value:.0f} s" if value < 1e7 else f"{value:.1e} s"
