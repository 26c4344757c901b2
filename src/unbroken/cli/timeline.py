"""When each call of a run was written by the model, started and ended, and a picture of it for a terminal.

`Watch` sees the events of a run, which a `RunView` adds up, and the deltas of the model: only those tell when a call
began to be written. A response that breaks off and comes again is one turn, and a call that is adopted one line, from
its first byte to its end. The picture is drawn by `viewer.waterfall`, as that of a recording is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from unbroken.clock import current_clock
from unbroken.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta, Restarted
from unbroken.events import CallAdopted, CallWritten, Event
from unbroken.messages import Request
from unbroken.middleware import Ask, Middleware
from unbroken.models.model import closing
from unbroken.run_view import CallView, RunView, TurnView
from unbroken.viewer.entries import Attempt, CallLane, Clipper, Turn, state_of
from unbroken.viewer.terminal import EARLY, FAILED, MODEL, RUNNING, WAITING, WRITING, Glyphs, Waterfall, legend_lines

FINE = Glyphs("─", "▒", "·", "█", "█", "█", "┊", "╳", "▸")
COARSE = Glyphs("-", "~", ".", "#", "#", "#", " ", "x", ">")
"""For a terminal that has no more than ASCII. A call that runs has one sign, and its colour says how."""


class Watch(Middleware):
    """Of one run: `Agent(…, middleware=[watch])`."""

    edits_answers = False

    def __init__(self) -> None:
        self.view = RunView()
        self._writing: dict[int, tuple[str, float]] = {}
        """The calls that are being written, by index: their names, and since when."""
        self._by_id: dict[str, float] = {}
        """When the calls began to be written that have no number yet."""
        self._opened: dict[int, float] = {}
        """The same of all others, by number."""

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        clock = current_clock()
        async with closing(call_next(request)) as batches:
            async for deltas in batches:
                for delta in deltas:
                    self._hear(delta, clock.now())
                yield deltas

    def _hear(self, delta: Delta, now: float) -> None:
        match delta:
            case CallOpened(index, name):
                self._writing.setdefault(index, (name, now))
            case CallReady(call) | CallSpoiled(call):
                _, self._by_id[call.id] = self._writing.pop(call.index, (call.name, now))
            case CallWithdrawn(index):
                self._writing.pop(index, None)
            case Restarted():
                self._writing.clear()
            case _:
                pass

    def on_event(self, event: Event) -> None:
        self.view.feed(event)
        if isinstance(event, CallWritten):
            self._opened[event.call] = self._by_id.pop(event.call_id, event.time)
        elif isinstance(event, CallAdopted) and event.adopted in self._opened:
            self._opened[event.call] = self._opened[event.adopted]

    def turns(self, now: float) -> list[Turn]:
        """Every turn as it can be drawn, in seconds from the start of the run."""
        turns = [self._turn(turn, now) for turn in [*self.view.turns]]
        if turns:
            writing = [(index, *each) for index, each in [*self._writing.items()]]
            since = self.view.began or 0.0
            turns[-1].calls += [CallLane(0, index, name, opened=opened - since) for index, name, opened in writing]
        rounds = 0
        for turn in turns:
            if turn.calls:
                turn.round = rounds = rounds + 1
        return turns

    def _turn(self, turn: TurnView, now: float) -> Turn:
        began, last = self.view.began or 0.0, now if turn.ended is None else turn.ended
        lane = Turn(turn.number, (turn.asked or began) - began, ended=last - began)
        for attempt in turn.attempts:
            asked, retried = min(attempt.asked, now), attempt.retried
            ended = max(asked, last if attempt.ended is None else attempt.ended) - began
            why = "" if retried is None else retried.reason or retried.kind
            lane.attempts.append(Attempt(asked - began, ended=ended, broken=why))
        calls = [call for call in turn.calls if call.counts or (call.dropped is not None and call.started is not None)]
        calls.sort(key=lambda call: call.dropped is None)
        lane.calls = [self._call(call, began, now) for call in calls]
        return lane

    def _call(self, call: CallView, began: float, now: float) -> CallLane:
        def at(time: float | None) -> float | None:
            return None if time is None else time - began

        ended = now if call.started is None and call.finished is None else call.finished
        return CallLane(
            call.turn,
            call.number,
            call.name,
            call.id,
            opened=at(self._opened.get(call.number)),
            written=at(call.written),
            started=at(call.started),
            early=call.early,
            ended=at(ended),
            state=state_of(call),
            error=call.error,
            arguments=Clipper().json(call.arguments or {}),
        )


@dataclass(slots=True)
class Timeline:
    """A picture of a run, on a scale of so many seconds. While the run goes, `now` says how far it is."""

    watch: Watch
    scale: float = 0.0
    """Seconds from the left to the right edge; 0: as long as the run took."""
    now: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(options.max_width, _glyphs(console)):
            line.no_wrap = True
            yield line

    def lines(self, width: int, glyphs: Glyphs = FINE) -> list[Text]:
        view = self.watch.view
        if view.began is None:
            return []
        now = next(time for time in (view.ended, self.now, view.began) if time is not None)
        waterfall = Waterfall(now - view.began, width, glyphs, self.scale, brief=True)
        lines = [waterfall.head(view.schedule)]
        for turn in self.watch.turns(now):
            lines += [waterfall.turn(turn), *map(waterfall.call, turn.calls)]
        return lines


def legend(console: Console, watch: Watch | None = None) -> Text:
    """What the signs mean; that for a break only where `watch` saw one."""
    glyphs = _glyphs(console)
    signs = [
        (glyphs.model, MODEL, "the model is heard"),
        (glyphs.writing, WRITING, "the call is written"),
        (glyphs.waiting, WAITING, "it waits"),
        (glyphs.early, EARLY, "it runs, started early"),
        (glyphs.running, RUNNING, "it runs"),
    ]
    if watch is not None and watch.view.retries:
        signs.append((glyphs.broken, FAILED, "the answer broke off"))
    return Text("\n").join(legend_lines(signs, console.width))


def _glyphs(console: Console) -> Glyphs:
    return FINE if console.encoding.lower().startswith("utf") else COARSE
