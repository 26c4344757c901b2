"""When each call of a run was written by the model, started and ended, and a picture of it for a terminal.

`Watch` looks on from two sides: at the deltas of the model, which say when a call was written, and at the events of
the run, which say when it started and ended. It changes neither. A response that breaks off and comes again is one
turn, and a call that is taken over one line, from its first byte to its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from unbroken.cli.terminal_text import clean, one_line, seconds
from unbroken.clock import current_clock
from unbroken.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta, Restarted
from unbroken.events import (
    CallAdopted,
    CallFinished,
    CallStarted,
    CallWritten,
    Event,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
)
from unbroken.messages import Json, Request
from unbroken.middleware import Ask, Middleware
from unbroken.models.model import closing


@dataclass(slots=True)
class Span:
    """One call. Times are those of events; None where it has not come to that."""

    index: int
    name: str
    opened: float
    id: str = ""
    arguments: dict[str, Json] = field(default_factory=dict[str, Json])
    written: float | None = None
    started: float | None = None
    early: bool = False
    ended: float | None = None
    error: bool = False


@dataclass(slots=True)
class Turn:
    """One request: from its sending to the end of its response, and the calls in it."""

    asked: float
    heard: float | None = None
    calls: dict[int, Span] = field(default_factory=dict[int, Span])
    """By index."""
    lost: list[Span] = field(default_factory=list[Span])
    """Of responses that broke off: those that had started, and were not taken over."""
    broken: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When a response broke off, and when the next was asked for."""

    @property
    def spans(self) -> list[Span]:
        return [*self.lost, *(span for _, span in sorted(self.calls.items()))]

    def restart(self) -> None:
        self.lost += [span for _, span in sorted(self.calls.items()) if span.started is not None]
        self.calls = {}

    def adopt(self, span: Span, lost: Span) -> None:
        """The call goes on as one that was lost."""
        self.lost.remove(lost)
        lost.index, lost.id = span.index, span.id
        self.calls[span.index] = lost


class Watch(Middleware):
    """Of one run: `Agent(…, middleware=[watch])`."""

    edits_answers = False

    def __init__(self) -> None:
        self.schedule = ""
        self.began: float | None = None
        self.ended: float | None = None
        self.turns: list[Turn] = []
        self._by_number: dict[int, Span] = {}
        """Of this turn."""

    @property
    def spans(self) -> list[Span]:
        return [span for turn in self.turns for span in turn.spans]

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        clock = current_clock()
        try:
            async with closing(call_next(request)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        self.hear(delta, clock.now())
                    yield deltas
        finally:
            self.turns[-1].heard = clock.now()

    def hear(self, delta: Delta, now: float) -> None:
        turn = self.turns[-1]
        match delta:
            case CallOpened(index, name, id):
                turn.calls.setdefault(index, Span(index, name, now, id))
            case CallReady(call) | CallSpoiled(call):
                span = turn.calls.setdefault(call.index, Span(call.index, call.name, now))
                span.id, span.written, span.arguments = call.id, now, call.arguments or {}
            case CallWithdrawn(index):
                turn.calls.pop(index, None)
            case Restarted():
                turn.restart()
            case _:
                pass

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted(schedule=schedule):
                self.schedule, self.began = schedule, event.time
            case RequestSent():
                self.turns.append(Turn(event.time))
                self._by_number.clear()
            case RequestRetried():
                self.turns[-1].broken.append((event.time, event.time + event.wait))
            case CallWritten():
                calls = self.turns[-1].calls.values() if self.turns else ()
                if span := next((span for span in calls if span.id == event.call_id), None):
                    self._by_number[event.call] = span
            case CallStarted():
                if span := self._by_number.get(event.call):
                    span.started, span.early = event.time, event.early
            case CallAdopted():
                span, lost = self._by_number.get(event.call), self._by_number.get(event.adopted)
                if span is not None and lost is not None:
                    self.turns[-1].adopt(span, lost)
                    self._by_number[event.call] = lost
            case CallFinished():
                # A run that is resumed begins with calls that nobody saw being written.
                span = self._by_number.get(event.call)
                if span is not None and span.ended is None:
                    span.ended, span.error = event.time, event.error
            case RunFinished() | RunFailed():
                self.ended = event.time
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Glyphs:
    model: str
    writing: str
    waiting: str
    running: str
    grid: str
    broken: str


FINE = Glyphs("─", "▒", "·", "█", "┊", "╳")
COARSE = Glyphs("-", "~", ".", "#", " ", "x")
"""For a terminal that has no more than ASCII."""

MODEL, WRITING, WAITING, RUNNING, FAILED = "blue", "cyan", "dim", "green", "red"


@dataclass(slots=True)
class Timeline:
    """A picture of a run, on a scale of so many seconds. While the run goes, `now` says how far it is."""

    watch: Watch
    scale: float = 0.0
    """Seconds from the left to the right edge; 0: as long as the run took."""
    now: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = FINE if console.encoding.lower().startswith("utf") else COARSE
        for line in self.lines(options.max_width, glyphs):
            line.no_wrap = True
            yield line

    def lines(self, width: int, glyphs: Glyphs = FINE) -> list[Text]:
        watch, began = self.watch, self.watch.began
        if began is None:
            return []
        last = max([began, *(_known(span.ended, span.opened) for span in watch.spans)])
        end = _known(watch.ended, self.now, last)
        took = max(end - began, 0.001)
        label = min(max(width * 7 // 20, 4), 36)
        ruler = _Ruler(began, max(self.scale, took), max(width - label - 10, 1))
        title = (set_cell_size(watch.schedule.upper() or "RUN", label), "bold")
        lines = [Text.assemble(title, (ruler.axis(), "dim"), seconds(took).rjust(9))]
        number = 0
        for turn in watch.turns:
            number += bool(turn.calls)
            title = f"round {number}" if turn.calls else "answer"
            bar = ruler.bar(_heard(turn, glyphs, end))
            lines.append(Text.assemble((set_cell_size(title, label), "dim"), bar))
            lines += [self._line(span, ruler, label, glyphs, end) for span in turn.spans]
        return lines

    def _line(self, span: Span, ruler: _Ruler, label: int, glyphs: Glyphs, end: float) -> Text:
        written, ended = _known(span.written, end), _known(span.ended, end)
        parts = [(span.opened, written, glyphs.writing, WRITING)]
        if span.written is not None:
            parts.append((written, _known(span.started, ended), glyphs.waiting, WAITING))
        if span.started is not None:
            parts.append((span.started, ended, glyphs.running, FAILED if span.error else RUNNING))
        name = f"  {clean(span.name)} {one_line(', '.join(map(str, span.arguments.values())), label)}"
        if cell_len(name) >= label:
            name = f"{set_cell_size(name, label - 2)}…"
        text = Text.assemble(set_cell_size(name, label), ruler.bar(parts))
        if span.started is not None:
            text.append(seconds(ended - span.started).rjust(9), "dim")
        return text


def _heard(turn: Turn, glyphs: Glyphs, end: float) -> list[tuple[float, float, str, str]]:
    """The responses of a turn, one behind the other, with a mark where one broke off."""
    parts: list[tuple[float, float, str, str]] = []
    asked = turn.asked
    for broke, again in turn.broken:
        parts += [(asked, broke, glyphs.model, MODEL), (broke, broke, glyphs.broken, FAILED)]
        asked = min(again, end)
    return [*parts, (asked, max(_known(turn.heard, end), asked), glyphs.model, MODEL)]


def _known(*times: float | None) -> float:
    """The first that has come; the last is always there."""
    return next(time for time in times if time is not None)


def legend(console: Console, watch: Watch | None = None) -> Text:
    """What the signs mean; that for a break only where `watch` saw one."""
    glyphs = FINE if console.encoding.lower().startswith("utf") else COARSE
    text = Text.assemble(
        (glyphs.model * 2, MODEL),
        " the model is heard   ",
        (glyphs.writing * 2, WRITING),
        " the call is written   ",
        (glyphs.waiting * 2, WAITING),
        " it waits   ",
        (glyphs.running * 2, RUNNING),
        " it runs",
    )
    if watch is not None and any(turn.broken for turn in watch.turns):
        text.append("   ").append(glyphs.broken, FAILED).append(" the answer broke off")
    return text


@dataclass(frozen=True, slots=True)
class _Ruler:
    began: float
    scale: float
    columns: int

    def bar(self, parts: Sequence[tuple[float, float, str, str]]) -> Text:
        """One part behind the other. None is too short to be seen, except a wait that is none."""
        cells: list[tuple[str, str]] = [(" ", "")] * self.columns
        free = 0
        for start, end, glyph, style in parts:
            first = min(max(self._column(start), free), self.columns - 1)
            least = first if style == WAITING else first + 1
            free = min(max(self._column(end), least), self.columns)
            for column in range(first, free):
                cells[column] = (glyph, style)
        return Text.assemble(*cells)

    def axis(self) -> str:
        """`0s   1    2    3`"""
        marks = [" "] * (self.columns + 1)
        step = next((step for step in (1, 2, 5, 10, 30, 60, 300) if self.columns * step / self.scale >= 5), 3600)
        for second in range(0, int(self.scale) + 1, step):
            at = self._column(self.began + second)
            word = f"{second}s" if second == 0 else str(second)
            if at + len(word) <= self.columns:
                marks[at : at + len(word)] = word
        return "".join(marks)[: self.columns]

    def _column(self, time: float) -> int:
        return int((time - self.began) / self.scale * self.columns + 1e-6)
