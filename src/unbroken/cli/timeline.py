"""When each call of a run was written by the model, started and ended, and a picture of it for a terminal.

`Watch` looks on from two sides: at the deltas of the model, which say when a call was written, and at the events of
the run, which say when it started and ended. It changes neither.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from unbroken.cli.show import clean
from unbroken.cli.wording import one_line, seconds
from unbroken.clock import current_clock
from unbroken.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta
from unbroken.events import (
    CallFinished,
    CallStarted,
    Event,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
)
from unbroken.messages import Json, Request
from unbroken.models.model import Model


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

    def find(self, id: str) -> Span | None:
        return next((span for span in self.calls.values() if span.id == id), None)


class Watch:
    """Of one run: `Agent(watch.over(model), …)`, and `sinks=[watch]`."""

    def __init__(self) -> None:
        self.schedule = ""
        self.began: float | None = None
        self.ended: float | None = None
        self.turns: list[Turn] = []

    @property
    def spans(self) -> list[Span]:
        return [span for turn in self.turns for _, span in sorted(turn.calls.items())]

    def over(self, model: Model) -> Model:
        return _Watched(model, self)

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
            case _:
                pass

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted(schedule=schedule):
                self.schedule, self.began = schedule, event.time
            case RequestSent():
                self.turns.append(Turn(event.time))
            case CallStarted():
                if span := self._find(event.call_id):
                    span.started, span.early = event.time, event.early
            case CallFinished():
                if span := self._find(event.call_id):
                    span.ended, span.error = event.time, event.error
            case RunFinished() | RunFailed():
                self.ended = event.time
            case _:
                pass

    def _find(self, id: str) -> Span | None:
        """A run that is resumed begins with calls that nobody saw being written."""
        return self.turns[-1].find(id) if self.turns else None


class _Watched:
    def __init__(self, model: Model, watch: Watch) -> None:
        self._model = model
        self._watch = watch

    @property
    def name(self) -> str:
        return self._model.name

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        return self._pass_on(self._model.stream(request))

    async def _pass_on(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        clock = current_clock()
        try:
            async for delta in deltas:
                self._watch.hear(delta, clock.now())
                yield delta
        finally:
            self._watch.turns[-1].heard = clock.now()
            if close := getattr(deltas, "aclose", None):
                await close()


@dataclass(frozen=True, slots=True)
class Glyphs:
    model: str
    writing: str
    waiting: str
    running: str
    grid: str


FINE = Glyphs("─", "▒", "·", "█", "┊")
COARSE = Glyphs("-", "~", ".", "#", " ")
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
            bar = ruler.bar([(turn.asked, _known(turn.heard, end), glyphs.model, MODEL)])
            lines.append(Text.assemble((set_cell_size(title, label), "dim"), bar))
            lines += [self._line(span, ruler, label, glyphs, end) for _, span in sorted(turn.calls.items())]
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


def _known(*times: float | None) -> float:
    """The first that has come; the last is always there."""
    return next(time for time in times if time is not None)


def legend(console: Console) -> Text:
    glyphs = FINE if console.encoding.lower().startswith("utf") else COARSE
    return Text.assemble(
        (glyphs.model * 2, MODEL),
        " the model is heard   ",
        (glyphs.writing * 2, WRITING),
        " the call is written   ",
        (glyphs.waiting * 2, WAITING),
        " it waits   ",
        (glyphs.running * 2, RUNNING),
        " it runs",
    )


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
