"""A picture of a run for a terminal: when the model wrote each call, and when it started and ended.

`Watch` takes the events of a run, which a `RunView` accumulates, and the deltas of the model, because only those show
when the model began to write a call. A response that breaks off and is retried is one turn, and an adopted call is one
line, from its first byte to its end. `viewer.terminal` draws the picture, as it does for a recording.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from unbroken.clock import current_clock
from unbroken.events import CallAdopted, CallWritten, Event
from unbroken.middleware import Ask, Middleware
from unbroken.models.model import closing
from unbroken.run_view import CallView, RunView, TurnView
from unbroken_cli.run_picture import (
    COARSE,
    EARLY,
    FAILED,
    FINE,
    MODEL,
    RUNNING,
    WAITING,
    WRITING,
    Glyphs,
    Waterfall,
    legend_lines,
)
from unbroken_viewer.picture_data import Attempt, CallLane, Clipper, Turn, state_of
from unbroken_wires.deltas import CallOpened, CallReady, CallSpoiled, CallWithdrawn, Delta, Restarted
from unbroken_wires.messages import Request


class Watch(Middleware):
    """Watches one run: `Agent(…, middleware=[watch])`."""

    mutates = False
    edits_answers = False

    def __init__(self) -> None:
        self.view = RunView()
        self._writing: dict[int, tuple[str, float]] = {}
        """The calls that are being written, by index, with their name and start time."""
        self._by_id: dict[str, float] = {}
        """When the model began to write the calls that have no number yet."""
        self._opened: dict[int, float] = {}
        """The same for all others, by number."""

    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        clock = current_clock()
        async with closing(call_next(request)) as batches:
            async for deltas in batches:
                for delta in deltas:
                    self._take(delta, clock.now())
                yield deltas

    def _take(self, delta: Delta, now: float) -> None:
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
        """Every turn in a form that can be drawn, in seconds from the start of the run."""
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
    """A picture of a run, scaled to a number of seconds. While the run is active, `now` is the current time."""

    watch: Watch
    scale: float = 0.0
    """Seconds from the left to the right edge; 0 means the duration of the run."""
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
        waterfall = Waterfall(now - view.began, width, glyphs, self.scale, view.ended is None)
        lines = [waterfall.head(view.schedule)]
        for turn in self.watch.turns(now):
            lines += [waterfall.turn(turn), *map(waterfall.call, turn.calls)]
        return lines


def legend(console: Console, watch: Watch | None = None) -> Text:
    """Explains the signs; those for a failed call and for a break only if `watch` saw one."""
    glyphs = _glyphs(console)
    signs = [
        (glyphs.model, MODEL, "the model writes"),
        (glyphs.writing, WRITING, "the call is being written"),
        (glyphs.waiting, WAITING, "it waits"),
        (glyphs.early, EARLY, "it runs, started early"),
        (glyphs.running, RUNNING, "it runs"),
    ]
    if watch is not None and any(call.error for turn in watch.view.turns for call in turn.calls):
        signs.append((glyphs.failed, FAILED, "it failed"))
    if watch is not None and watch.view.retries:
        signs.append((glyphs.broken, FAILED, "the answer broke off"))
    return Text("\n").join(legend_lines(signs, console.width))


def _glyphs(console: Console) -> Glyphs:
    return FINE if console.encoding.lower().startswith("utf") else COARSE
