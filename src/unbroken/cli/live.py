"""Shows a run on a terminal: text as it arrives, one line for each call, and a panel with the to-do list.

Text goes straight to the terminal, which wraps it and keeps it in its scrollback. Only what changes in place (running
calls, the wait for the model) is in a live area below. A separate thread draws that area, so that it moves while
nothing happens. When a round has ended, its lines are printed permanently.

If a stream breaks and the retry produces different text, the old text is redrawn in place. If that is not safe (a tool
may have printed something, or the text has scrolled away), the new text follows below, with a note.
"""

from __future__ import annotations

import time

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from unbroken.cli.approval_prompt import NOBODY_ASKED, approval_text, ask_on_terminal, call_of
from unbroken.cli.terminal_text import (
    MAY_HAVE_RUN,
    clean,
    closing,
    compacted,
    counted,
    escape,
    in_brackets,
    one_line,
    retrying,
    seconds,
    visible,
)
from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallAdopted,
    CallBackgrounded,
    CallDropped,
    CallFinished,
    CallsIgnored,
    CallStarted,
    Checked,
    Compacted,
    Event,
    LimitReached,
    ReasoningAdded,
    ReasoningReplaced,
    RecordingIncomplete,
    RequestRetried,
    RequestSent,
    RoundFinished,
    RunChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    ServerCallFinished,
    TextAdded,
    TextFinished,
    TextReplaced,
    TodoUpdated,
    ToolLate,
)
from unbroken.messages import Json, ToolCall
from unbroken.run_view import CallView, RunView
from unbroken.tools.approval import Approval, Deny

# Redraws text of the current turn when a retry replaces it. A terminal cannot be read back, so `PrintedTurn` records
# what was printed. It redraws nothing if it cannot be sure of the position: characters whose width differs between
# terminals, a resized window, text that scrolled away, or a tool that may have printed.


_JOINED = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400)
"""Flag letters and skin tones: some terminals join them with their neighbours, others do not."""


class PrintedTurn:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._pieces: list[tuple[Text, str]] = []
        """Each piece with the part of the turn that it belongs to."""
        self._width = console.width
        self._redrawable = True
        self.mid_line = False

    def begin(self) -> None:
        """Starts a new turn. What was printed before stays."""
        self.end_line()
        self._pieces.clear()
        self._width, self._redrawable = self._console.width, True

    def forbid_redraw(self) -> None:
        """Others are printing too, so nothing of this turn can be redrawn."""
        self._redrawable = False

    def print(self, text: Text, part: str) -> None:
        self._pieces.append((text, part))
        self._console.print(text, end="", soft_wrap=True)
        self.mid_line = not text.plain.endswith("\n")

    def end_line(self) -> None:
        if self.mid_line:
            self.print(Text("\n"), self._pieces[-1][1] if self._pieces else "")

    def has(self, part: str) -> bool:
        return any(piece for piece, of in self._pieces if of == part)

    def remove(self, part: str) -> bool:
        """Removes this part of the turn from the terminal, if possible. Nothing else may be drawing at the same
        time."""
        above = rows_above("".join(piece.plain for piece, _ in self._pieces), self._width)
        console = self._console
        if not self._redrawable or above is None or console.width != self._width or console.legacy_windows:
            return False
        if above >= console.height - 1:
            return False
        up = f"\r\x1b[{above}A\x1b[J" if above else "\r\x1b[J"
        console.print(Segments([Segment(up, None, [(ControlType.CARRIAGE_RETURN,)])]), end="")
        kept = [(piece, of) for piece, of in self._pieces if of != part]
        self._pieces, self.mid_line = [], False
        for piece, of in kept:
            self.print(piece, of)
        return True


def rows_above(text: str, width: int) -> int | None:
    """How many rows the cursor has moved down after this text; None if that depends on the terminal."""
    rows = column = 0
    for character in text:
        if character == "\n":
            rows, column = rows + 1, 0
            continue
        wide = cell_len(character)
        if wide == 0 or not character.isprintable() or any(ord(character) in each for each in _JOINED):
            return None
        column += wide
        if column > width:
            rows, column = rows + 1, wide
    return rows


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
PER_SECOND = 12.5
MARKS = {"pending": ("☐", ""), "in_progress": ("▶", "cyan"), "completed": ("✔", "green")}
TEXT, REASONING, NOTE = "", "dim italic", "dim"
"""The parts of a turn, by their style."""
REPLACEMENT_NOTE = "this replaces the text above:\n"
DELAYED_LINES = 5
"""Lines of delayed text that the live area shows below running calls."""


class LiveScreen:
    def __init__(self, console: Console, can_ask: bool) -> None:
        self.can_ask = can_ask
        self._console = console
        self._live: Live | None = None
        self._printed = PrintedTurn(console)
        self._view = RunView()
        self._calls: dict[int, CallView] = {}
        """The calls that have a line in the live area, by number."""
        self._todos: list[dict[str, Json]] = []
        """Kept when the next run begins."""
        self._todos_changed = False
        self._waiting_since = 0.0
        self._delayed: list[tuple[str, str]] = []
        """Text that arrived while calls were running, with its style. It is printed after their lines."""
        self._style = ""

    def show(self, event: Event) -> None:
        self._view.feed(event)
        match event:
            case RunStarted():
                self._view = RunView()
            case RequestSent():
                if self._has_orphans:
                    self._settle()
                self._printed.begin()
                self._waiting_since = event.time
                self._draw()
            case TextAdded(text=text):
                self._write(text, TEXT)
            case ReasoningAdded(text=text):
                self._write(text, REASONING)
            case TextReplaced(text=text):
                self._replace(text, TEXT)
            case ReasoningReplaced(text=text):
                self._replace(text, REASONING)
            case RequestRetried():
                self._line(f"[dim]{escape(retrying(event))}[/]")
                self._waiting_since = event.time + event.wait
                self._draw()
            case CallStarted():
                if not self._view.by_number[event.call].handle:
                    self._calls[event.call] = self._view.by_number[event.call]
                self._printed.forbid_redraw()
                self._draw()
            case CallFinished():
                self._calls[event.call] = self._view.by_number[event.call]
                self._draw()
            case CallBackgrounded(name=name, handle=handle):
                self._calls.pop(event.call, None)  # its line is printed when it has finished
                self._line(f"[dim]{escape(visible(name))} continues in the background as {escape(handle)}[/]")
            case CallAdopted():
                if self._calls.pop(event.adopted, None) is not None:
                    self._calls[event.call] = self._view.by_number[event.call]
            case CallDropped():
                if event.call in self._calls:
                    self._draw()
            case ServerCallFinished(name=name, arguments=arguments):
                called = f"{visible(name)}{in_brackets(arguments or {}, 200)}"
                failed = f": {visible(event.error)}" if event.error else ""
                self._line(f"[dim]run by the provider: {escape(called)} {event.outcome}{escape(failed)}[/]")
            case ApprovalAsked(name=name, arguments=arguments, uncertain=True):
                called = f"{visible(name)}{in_brackets(arguments, 200)}"
                self._line(f"[yellow]uncertain:[/] {escape(called)} {MAY_HAVE_RUN}")
            case TodoUpdated(todos=todos):
                self._todos, self._todos_changed = todos, True
            case CallsIgnored(names=names):
                self._line(f"[yellow]only one call was asked for; ignored: {escape(', '.join(names))}[/]")
            case LimitReached(kind=kind, limit=limit):
                self._line(f"[yellow]limit reached: {kind.replace('_', ' ')} ({limit:g})[/]")
            case RecordingIncomplete(path=path, reason=reason):
                self._line(f"[red]the recording {escape(path)} is incomplete from here on: {escape(reason)}[/]")
            case Checked(value=value, outcome=outcome, text=text):
                self._line(f"[yellow]check of the {value}, {outcome}: {escape(text)}[/]")
            case AgentChanged(agent=agent):
                self._line(f"[dim]{escape(one_line(agent))} takes over[/]")
            case Compacted():
                self._line(f"[dim]{escape(compacted(event))}[/]")
            case RunChanged(changes=changes):
                self._line(f"[yellow]the agent has changed: {escape('; '.join(changes))}[/]")
            case ToolLate(name=name):
                self._line(f"[yellow]{escape(name)} is still running after its time-out[/]")
            case TextFinished() | RoundFinished():
                settled = not self._has_orphans or isinstance(event, RoundFinished)
                if settled and all(call.is_over for call in self._calls.values()):
                    self._settle()
                    self._end_line()
            case RunFinished():
                self._finish(event)
            case RunFailed():
                self.close()
            case _:
                pass

    def ask(self, call: ToolCall) -> Approval:
        """Other calls continue meanwhile; their lines are drawn again after the answer."""
        self._stop()
        self._end_line()
        self._printed.forbid_redraw()
        try:
            return ask_on_terminal(self._console, call)
        except EOFError:
            return Deny(NOBODY_ASKED)
        except KeyboardInterrupt:
            self._console.print()
            raise

    def line(self, text: str) -> None:
        self._line(escape(text))

    def close(self) -> None:
        self._settle()
        self._end_line()

    @property
    def _has_orphans(self) -> bool:
        """Whether there is a call of a response that broke off which no call of the retry has adopted yet."""
        return any(call.response_broke for call in [*self._calls.values()])  # another thread draws

    def _in_order(self) -> list[CallView]:
        return sorted([*self._calls.values()], key=_since)

    # The live area

    def _draw(self) -> None:
        if self._live is None:
            self._end_line()
            self._live = Live(
                console=self._console,
                get_renderable=self._area,
                refresh_per_second=PER_SECOND,
                transient=True,
                vertical_overflow="crop",
            )
            self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _area(self) -> RenderableType:
        now = time.time()
        calls = self._in_order()
        room = max(self._console.height - 3 - (len(self._todos) + 2 if self._todos else 0), 3)
        parts: list[RenderableType] = [self._line_of(call, now) for call in calls[-room:]]
        if len(calls) > room:
            parts.insert(0, Text(f"  … and {counted(len(calls) - room, 'call')} above", "dim"))
        if tail := "".join(text for text, _ in self._delayed):
            parts += [
                Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in tail.splitlines()[-DELAYED_LINES:]
            ]
        if self._todos:
            parts.append(self._panel())
        if now < self._waiting_since:
            parts.append(Text(f"{_frame(now)} retrying in {self._waiting_since - now:.0f} s", "dim"))
        elif (not calls or self._has_orphans) and now - self._waiting_since > 0.3:
            parts.append(Text(f"{_frame(now)} waiting for the model {now - self._waiting_since:.0f} s", "dim"))
        return Group(*parts)

    def _line_of(self, call: CallView, now: float) -> Text:
        mark, colour, style = _mark(call, now)
        text = Text.assemble((mark, colour), " ")
        if call.outcome is None:
            result = call.dropped or (call.progress.message if call.progress is not None else "")
            took = seconds(max(now - _since(call), 0.0))
        else:
            result, took = call.text, "not run" if call.outcome == "not_executed" else seconds(call.seconds)
        width = self._console.width
        wide = max(min(width * 2 // 5, 48), 20)
        called = Text(visible(call.name), "bold")
        called.append(in_brackets(call.arguments or {}, 200), "")
        called.truncate(wide, overflow="ellipsis", pad=True)
        text.append_text(called)
        text.append(f" {took:>8}", "dim")
        text.append("  early" if call.early else "       ", "cyan dim")
        left = width - cell_len(text.plain) - 3
        if left > 8 and result:
            text.append(f"  {one_line(result, left)}", style)
        text.truncate(width - 1, overflow="ellipsis")
        text.no_wrap = True
        return text

    def _panel(self) -> Panel:
        lines: list[Text] = []
        for todo in self._todos:
            status = str(todo.get("status"))
            mark, style = MARKS.get(status, MARKS["pending"])
            words = one_line(str(todo.get("content", "")), self._console.width - 8)
            lines.append(Text.assemble((mark, style), " ", (words, "dim strike" if status == "completed" else "")))
        return Panel(Group(*lines), title="to do", title_align="left", border_style="dim")

    # What stays on the terminal

    def _settle(self) -> None:
        """Prints the lines of a round permanently, then the text that arrived meanwhile."""
        self._stop()
        calls, self._calls = self._in_order(), {}
        if calls:
            self._end_line()
            self._printed.forbid_redraw()
        now = time.time()
        for call in calls:
            self._console.print(self._line_of(call, now))
        if self._todos_changed and self._todos:
            self._end_line()
            self._printed.forbid_redraw()
            self._console.print(self._panel())
            self._todos_changed = False
        delayed, self._delayed = self._delayed, []
        for text, style in delayed:
            self._write(text, style)

    def _finish(self, event: RunFinished) -> None:
        self.close()
        for call in event.pending:
            self._line(
                f"[yellow]waiting:[/] {escape(one_line(str(call.get('name'))))} (id {escape(str(call.get('id')))})"
            )
            for row in approval_text(call_of(call), self._console.width - 2):
                self._line(escape(row))
        good = event.stop_reason == "answered"
        self._line(f"[{'green' if good else 'yellow'}]{'✔' if good else '■'}[/] [dim]{closing(event)}[/]")

    def _write(self, text: str, style: str) -> None:
        text = clean(text.replace("\r\n", "\n"))
        if self._calls:
            self._delayed.append((text, style))
            return
        self._stop()
        if style != self._style:
            self._end_line()
            self._style = style
        self._printed.print(Text(text, style), style)

    def _replace(self, text: str, style: str) -> None:
        """A retry produced different text: shows it in place of the old text."""
        self._delayed = [(text, of) for text, of in self._delayed if of != style]
        if self._printed.has(style):
            self._stop()
            if not self._printed.remove(style):
                self._write(REPLACEMENT_NOTE, NOTE)
        self._write(text, style)
        if self._calls:
            self._draw()

    def _line(self, markup: str) -> None:
        if self._live is None:
            self._end_line()
        self._printed.print(Text.from_markup(f"{markup}\n"), NOTE)

    def _end_line(self) -> None:
        self._printed.end_line()


def _frame(now: float) -> str:
    return FRAMES[int(now * PER_SECOND) % len(FRAMES)]


def _since(call: CallView) -> float:
    return next((time for time in (call.started, call.finished) if time is not None), 0.0)


def _mark(call: CallView, now: float) -> tuple[str, str, str]:
    """The mark, its colour, and the style of the result."""
    if call.dropped is not None:
        return "–", "yellow", "yellow"
    if call.outcome is None:
        return _frame(now), "cyan", "dim"
    if call.duplicate_of:
        return "=", "green", "dim"
    if call.outcome in ("unknown", "not_executed"):
        return "?" if call.outcome == "unknown" else "–", "yellow", "yellow"
    return ("✘", "red", "red") if call.error else ("✔", "green", "")
