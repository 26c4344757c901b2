"""A run in the terminal: lines of rich text that fit the width; in a pipe the same without colours.

`Waterfall` draws a line for each turn and each call, with a bar from its start to its end. The caller adds the lines
around it: `picture_lines` for a recording, `cli.timeline` for an active run. Details that the page opens on a click are
one line here: the marks after a call show how it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from math import floor, log10
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from unbroken.errors import StreamError
from unbroken.run_view import counted, shown_cost
from unbroken_viewer.listing import Row, shown_end
from unbroken_viewer.picture import RECORDED, Picture
from unbroken_viewer.picture_data import CallLane, Clip, InnerLane, Mark, Turn
from unbroken_wires.wires.json_access import as_dict
from unbroken_wires.wires.jsontext import loads

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
    inner: str
    grid: str
    broken: str
    mark: str


FINE = Glyphs("─", "▒", "·", "█", "▓", "╱", "═", "┊", "╳", "▸")
COARSE = Glyphs("-", "~", ".", "#", "%", "/", "=", " ", "x", ">")
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


_ANSWER = 2000
"""Characters of an answer that are printed."""
_TOOK = 9
"""Columns for seconds, at the right edge."""
_MARKS = {
    "shared": "shared",
    "refused": "refused",
    "spoiled": "incomplete",
    "handed": "not here",
    "sent": "sent",
    "held": "held",
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
    active: bool = False
    """The run has not ended: a call that has not started may still run."""
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
        took = "" if turn.ended is None else seconds_in_words(turn.ended - turn.asked)
        title = (fit(_title(turn), self._label), "dim")
        return Text.assemble(title, self._ruler.bar(self._attempts(turn)), (took.rjust(_TOOK), "dim"))

    def call(self, call: CallLane) -> Text:
        name = f"  {in_line(call.name)}{' (edited)' * call.edited} {in_line(_values(call.arguments))}"
        text = Text.assemble(fit(name, self._label), self._ruler.bar(self._stretches(call)))
        took = "" if call.started is None else seconds_in_words(self._end(call) - call.started)
        if call.state == "running" and not self.active:
            took = "no end"
        if not (took or self.active):
            took = "died" if call.died and call.state != "uncertain" else _MARKS.get(call.state, "")
        text.append(took.rjust(_TOOK), FAILED if call.error else "dim")
        return text

    def inner(self, call: CallLane, inner: InnerLane) -> Text:
        """A call of an agent that runs as a tool, below the call that runs it."""
        name = f"{'  ' * (inner.depth + 1)}{in_line(inner.name)} {in_line(_values(_whole(inner.arguments)))}"
        end = self._end(call) if inner.ended is None else inner.ended
        sign, style = (self.glyphs.failed, FAILED) if inner.error else (self.glyphs.inner, RUNNING)
        took = (seconds_in_words(end - inner.started).rjust(_TOOK), FAILED if inner.error else "dim")
        return Text.assemble(fit(name, self._label), self._ruler.bar([(inner.started, end, sign, style)]), took)

    def _end(self, call: CallLane) -> float:
        return self.seconds if call.ended is None else call.ended

    def _attempts(self, turn: Turn) -> list[Stretch]:
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
    return ", ".join(map(str, as_dict(value).values())) if isinstance(value, dict) else arguments.text


def _whole(arguments: str) -> Clip:
    return Clip(arguments, len(arguments))


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


_NARROWEST = 20
_WITH_COST = 70
"""Columns of a terminal from which on a list of runs has their cost."""
_PROMPT = 20
"""The least columns for a prompt in the line of its run."""


def picture_lines(picture: Picture, width: int, glyphs: Glyphs = FINE) -> Iterator[Text]:
    width = max(width, _NARROWEST)
    yield _row(in_line(picture.prompt) or picture.run or picture.file, width, "bold")
    yield from _wrapped(_facts(picture), width, "dim")
    for banner in picture.banners:
        yield from _wrapped(f"! {in_line(banner)}", width, "yellow")
    if not picture.turns:
        return
    waterfall = Waterfall(picture.seconds, width, glyphs)
    yield Text("")
    yield waterfall.head(picture.schedule)
    marks = deque(mark for mark in picture.marks if mark.kind != "note")  # notes are among the banners
    for turn in picture.turns:
        while marks and marks[0].at < turn.asked:
            yield _mark(marks.popleft(), width, glyphs)
        yield waterfall.turn(turn)
        for attempt in turn.attempts:
            if attempt.broken:
                yield _row(f"  {glyphs.broken} {in_line(attempt.broken)}", width, FAILED)
        for call in turn.calls:
            if call.state != "withdrawn":
                yield waterfall.call(call)
                if call.error and call.result is not None and call.state != "dropped":
                    why = in_line(call.result.text).removeprefix("Error: ")
                    yield _row(f"    {glyphs.failed} {why}", width, FAILED)
                for inner in call.inner:
                    yield waterfall.inner(call, inner)
    for mark in marks:
        yield _mark(mark, width, glyphs)
    yield Text("")
    yield from _legend(picture, width, glyphs)
    if picture.answer.text:
        yield Text("")
        yield from _answer(picture.answer, width, "" if picture.state != "failed" else FAILED)


def list_lines(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """The list of runs; files that are not recordings come last. What was asked and the name of the file, which
    `unbroken view` and `unbroken replay` need, are in the line of the run if they fit, else below."""
    width = max(width, _NARROWEST)
    runs = [row for row in rows if not row.problem]
    priced = width >= _WITH_COST and any(row.cost is not None for row in runs)
    head = f"{'when':<19} {'end':<12}{'calls':>15}{'time':>10}{'cost' if priced else '':>{12 * priced}}"
    longest = max((cell_len(in_line(row.name)) for row in runs), default=0)
    asked = max((cell_len(in_line(row.prompt)) for row in runs), default=0)
    room = width - len(head) - longest - 4
    wide = room >= max(min(asked + 1, 2 * _PROMPT), _PROMPT)
    if runs and width >= len(head):
        yield Text(f"{head}  {fit('prompt', room)}  file" if wide else head, "dim")
    for row in runs:
        prompt = in_line(row.prompt)
        if width < len(head):
            yield from _wrapped(_in_short(row), width, _tone(row))
            yield from _wrapped(prompt, width, "", "  ") if prompt else ()
        else:
            yield _in_columns(row, priced, room if wide else 0)
            yield from [Text(f"  {fit(prompt, width - 2).rstrip()}")] if prompt and not wide else ()
        if not wide:
            yield from _wrapped(in_line(row.name), width, "dim", "  ")
    for row in rows:
        if row.problem:
            yield from _wrapped(f"! {in_line(row.problem)}", width, "yellow")


def _in_columns(row: Row, priced: bool, room: int) -> Text:
    """With `room` for the prompt, it and the file follow."""
    calls = "-" if row.calls is None else str(row.calls)
    calls += f", {row.failed} failed" if row.failed else ""
    cost = shown_cost(row.cost, row.currency) if priced else ""
    return Text.assemble(
        (f"{_day(row.time):<19} ", "dim"),
        (fit(in_line(shown_end(row.state, row.agent)), 12), _tone(row)),
        (f"{calls:>15}", FAILED if row.failed else ""),
        f"{seconds_in_words(row.seconds):>10}{cost:>{12 * priced}}",
        f"  {fit(in_line(row.prompt), room)}" if room else "",
        (f"  {in_line(row.name)}" if room else "", "dim"),
    )


def _tone(row: Row) -> str:
    if row.state in ("answered", RECORDED):
        return "green"
    return "red" if row.state in ("failed", "unfinished") else "yellow"


def _in_short(row: Row) -> str:
    told = [
        _day(row.time),
        in_line(shown_end(row.state, row.agent)),
        counted(row.calls, "call") if row.calls is not None else "",
        f"{row.failed} failed" if row.failed else "",
        seconds_in_words(row.seconds),
        f"cost {shown_cost(row.cost, row.currency)}" if row.cost is not None else "",
    ]
    return " · ".join(filter(None, told))


def _mark(mark: Mark, width: int, glyphs: Glyphs) -> Text:
    return _row(f"  {glyphs.mark} {seconds_in_words(mark.at)}: {in_line(mark.text)}", width, "yellow")


def _facts(picture: Picture) -> str:
    totals = picture.totals
    about = "about " if totals.estimated else ""
    told = [
        in_line(shown_end(picture.state, picture.agent)),
        counted(totals.rounds, "round"),
        counted(totals.calls, "call"),
        f"{totals.failed} failed" if totals.failed else "",
        f"{totals.uncertain} uncertain" if totals.uncertain else "",
        f"{totals.early} started early" if totals.early else "",
        f"{totals.duplicates} shared" if totals.duplicates else "",
        _retries(totals.retries, totals.restarts),
        f"{about}{counted(totals.input_tokens, 'token')} in, {totals.output_tokens:,} out"
        if totals.input_tokens or totals.output_tokens
        else "",
        f"cost {about if totals.cost is not None else ''}{shown_cost(totals.cost, picture.currency)}"
        + (" so far" if picture.state == "unfinished" and totals.cost is not None else ""),
        seconds_in_words(picture.seconds),
        in_line(picture.model),
    ]
    return " · ".join(filter(None, told))


def _retries(retries: int, broke: int) -> str:
    """`3 retries (1 after the answer broke off)`"""
    if not retries:
        return ""
    why = "" if not broke else "the answer broke off" if broke == retries else f"{broke} after the answer broke off"
    return f"{retries} {'retry' if retries == 1 else 'retries'}{f' ({why})' if why else ''}"


def _legend(picture: Picture, width: int, glyphs: Glyphs) -> Iterator[Text]:
    calls = [call for turn in picture.turns for call in turn.calls]
    failed = any(call.error and call.state != "dropped" for call in calls)
    lost = any(call.state == "dropped" and call.started is not None for call in calls)
    broken = [attempt for turn in picture.turns for attempt in turn.attempts if attempt.broken]
    began = any(attempt.first is not None for attempt in broken)
    signs: list[tuple[object, str, str, str]] = [
        (True, glyphs.model, MODEL, "the model writes"),
        (calls, glyphs.writing, WRITING, "the call is being written"),
        (calls, glyphs.waiting, WAITING, "it waits, or shares a result"),
        (calls, glyphs.early, EARLY, "it runs, started early"),
        (calls, glyphs.running, RUNNING, "it runs"),
        (any(call.inner for call in calls), glyphs.inner, RUNNING, "a call of an inner agent"),
        (failed, glyphs.failed, FAILED, "it failed"),
        (lost, glyphs.failed, FAILED, "it was lost"),
        (broken, glyphs.broken, FAILED, "the answer broke off" if began else "there was no answer"),
        (any(call.died for call in calls), glyphs.broken, FAILED, "its process died"),
    ]
    return legend_lines([(sign, style, words) for seen, sign, style, words in signs if seen], width)


def _row(words: str, width: int, style: str) -> Text:
    """One line, cut if it is too long."""
    return Text(fit(words, width).rstrip(), style)


def _wrapped(words: str, width: int, style: str, indent: str = "") -> Iterator[Text]:
    line, room = "", width - len(indent)
    for word in words.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > room:
            yield Text(indent + line, style)
            line = ""
        line = f"{line} {word}" if line else word
        while cell_len(line) > room:
            head = set_cell_size(line, room)
            yield Text(indent + head, style)
            line = line[len(head.rstrip()) or 1 :]
    yield Text(indent + line, style)


def _answer(answer: Clip, width: int, style: str) -> Iterator[Text]:
    """In its own lines: it may have a table, a list or code."""
    for line in answer.text[:_ANSWER].strip().splitlines():
        indent = len(line) - len(line.lstrip(" "))
        yield from _wrapped(in_line(line), width, style, " " * min(indent, width // 4))
    if answer.cut or len(answer.text) > _ANSWER:
        yield Text(f"… ({answer.size:,} bytes)", style)


def _day(time: float) -> str:
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
