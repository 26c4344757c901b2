"""Shows a run on a terminal: text as it arrives, one line for each call, and a panel with the to-do list.

Text is Markdown: its finished blocks are printed, and stay in the terminal's scrollback. Only what changes in place
(the block that is being written, running calls, the wait for the model) is in an area below. A separate thread draws
that area, so that it moves while nothing happens. When a round has ended, its lines are printed permanently.

If a stream breaks and the retry produces different text, the old text is redrawn in place. If that is not safe (a tool
may have printed something, or the text has scrolled away), the new text follows below, with a note.
"""

from __future__ import annotations

import time

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

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
from unbroken.run_view import CallView, RunView
from unbroken.tools.approval import Approval, Deny
from unbroken_cli.approval_prompt import NOBODY_ASKED, approval_text, ask_on_terminal, call_of
from unbroken_cli.printed_turn import PrintedTurn
from unbroken_cli.progress_line import moving_mark
from unbroken_cli.redrawn_area import SHARE, SHORTEST, RedrawnArea
from unbroken_cli.terminal_text import (
    MAY_HAVE_RUN,
    clean_text,
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
from unbroken_wires.messages import Json, ToolCall

MARKS = {"pending": ("☐", ""), "in_progress": ("▶", "cyan"), "completed": ("✔", "green")}
TEXT, REASONING, NOTE = "", "dim italic", "dim"
"""The parts of a turn, by their style."""
REPLACEMENT_NOTE = "this replaces the text above:\n"
UNREAD = 500
"""Characters after which finished blocks are printed at once: more would not fit into the area."""
A_LINE = 40
"""The characters that a line break counts for: short lines need as much room."""
DELAYED_LINES = 5
"""Lines of delayed text that the live area shows below running calls."""


class LiveScreen:
    def __init__(self, console: Console, can_ask: bool) -> None:
        self.can_ask = can_ask
        # Parser and colours take 0.1 s to import, which commands without a terminal do not spend.
        from unbroken_cli.markdown_stream import MarkdownStream  # noqa: PLC0415 - start-up time

        self._console = console
        self._area = RedrawnArea(console, self._rows)
        self._new_text = MarkdownStream
        self._text: MarkdownStream | None = None
        """The text that is arriving. Its finished blocks are printed, the open one is in the area."""
        self._advance_at = 0.0
        self._arrived = 0
        """Characters since its finished blocks were last printed."""
        self._printed = PrintedTurn(console)
        self._view = RunView()
        self._calls: dict[int, CallView] = {}
        """The calls that have a line in the live area, by number."""
        self._todos: list[dict[str, Json]] = []
        """Kept when the next run begins."""
        self._todos_changed = False
        self._waiting_since: float | None = None
        self._delayed: list[tuple[str, str]] = []
        """Text that arrived while calls were running, with its style. It is printed after their lines."""
        self._style = ""

    def show(self, event: Event) -> None:
        with self._area.lock:  # another thread draws the area
            self._view.feed(event)
            if (note := _note(event)) is not None:
                self._line(note)
            else:
                self._follow(event)

    def _follow(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._view = RunView()
            case RequestSent():
                if self._has_orphans:
                    self._settle()
                self._end_line()
                self._printed.begin()
                self._waiting_since = event.time
                self._open_area()
            case TextAdded(text=text):
                self._write(text, TEXT)
            case ReasoningAdded(text=text):
                self._write(text, REASONING)
            case TextReplaced(text=text):
                self._replace(text, TEXT)
            case ReasoningReplaced(text=text):
                self._replace(text, REASONING)
            case RequestRetried():
                self._print_note(f"[dim]{escape(retrying(event))}[/]")  # the text may continue where it stopped
                self._waiting_since = event.time + event.wait
                self._open_area()
            case CallStarted() | CallFinished() | CallBackgrounded() | CallAdopted() | CallDropped():
                self._follow_call(event)
            case TodoUpdated(todos=todos):
                self._todos, self._todos_changed = todos, True
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

    def _follow_call(self, event: CallStarted | CallFinished | CallBackgrounded | CallAdopted | CallDropped) -> None:
        call = self._view.by_number[event.call]
        match event:
            case CallStarted():
                self._finish_text()
                if not call.handle:
                    self._calls[event.call] = call
                self._printed.forbid_redraw()
                self._open_area()
            case CallFinished():
                self._finish_text()
                self._calls[event.call] = call
                self._open_area()
            case CallBackgrounded(name=name, handle=handle):
                self._calls.pop(event.call, None)  # its line is printed when it has finished
                self._line(f"[dim]{escape(visible(name))} continues in the background as {escape(handle)}[/]")
            case CallAdopted():
                if self._calls.pop(event.adopted, None) is not None:
                    self._calls[event.call] = call
            case CallDropped():
                if event.call in self._calls:
                    self._open_area()

    def ask(self, call: ToolCall) -> Approval:
        """Other calls continue meanwhile; their lines are drawn again after the answer."""
        with self._area.lock:
            self._end_line()
            self._area.close()
            self._printed.forbid_redraw()
        try:
            return ask_on_terminal(self._console, call)
        except EOFError:
            return Deny(NOBODY_ASKED)
        except KeyboardInterrupt:
            self._console.print()
            raise

    def line(self, text: str) -> None:
        with self._area.lock:
            self._line(escape(text))

    def close(self) -> None:
        with self._area.lock:
            self._settle()
            self._end_line()
            self._area.close()

    @property
    def _has_orphans(self) -> bool:
        """Whether there is a call of a response that broke off which no call of the retry has adopted yet."""
        return any(call.response_broke for call in [*self._calls.values()])  # another thread draws

    def _in_order(self) -> list[CallView]:
        return sorted([*self._calls.values()], key=_since)

    # The live area

    def _open_area(self) -> None:
        if not self._area.is_open:
            self._printed.end_line()
            self._area.open()

    def _rows(self) -> RenderableType:
        now = time.time()
        calls = self._in_order()
        room = max(self._console.height - 3 - (len(self._todos) + 2 if self._todos else 0), 3)
        parts: list[RenderableType] = []
        if self._text is not None and (rows := self._text.open_rows()):
            parts.append(rows)
        if len(calls) > room:
            parts.append(Text(f"  … and {counted(len(calls) - room, 'call')} above", "dim"))
        parts += [self._line_of(call, now) for call in calls[-room:]]
        if tail := "".join(text for text, _ in self._delayed):
            parts += [
                Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in tail.splitlines()[-DELAYED_LINES:]
            ]
        if self._todos:
            parts.append(self._panel())
        since = self._waiting_since
        if since is not None and now < since:
            parts.append(Text(f"{moving_mark(now)} retrying in {since - now:.0f} s", "dim"))
        elif since is not None and (not calls or self._has_orphans) and now - since > 0.3:
            parts.append(Text(f"{moving_mark(now)} waiting for the model {now - since:.0f} s", "dim"))
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
        self._finish_text()
        self._area.close()
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
        self._waiting_since = None
        if self._calls:
            self._delayed.append((clean_text(text), style))
            return
        if style != self._style:
            self._end_line()
            self._style = style
        if style == TEXT:
            self._write_markdown(text)
        else:
            self._area.close()
            self._printed.print(Text(clean_text(text), style), style)

    def _write_markdown(self, text: str) -> None:
        if self._text is None:
            self._text = self._new_text(self._console)
        self._text.feed(text)
        self._open_area()
        self._arrived += len(text) + text.count("\n") * A_LINE
        began = time.perf_counter()
        if began >= self._advance_at or self._arrived > UNREAD:
            self._arrived = 0
            self._print_text(self._text.advance())
            took = time.perf_counter() - began
            self._advance_at = began + max(SHORTEST, SHARE * took)
        self._area.wake()

    def _finish_text(self) -> None:
        """Prints what is left of the text. What follows is a paragraph of its own."""
        if self._text is not None:
            rest, self._text = self._text.finish(), None
            self._print_text(rest)

    def _print_text(self, finished: Text) -> None:
        if finished:
            self._printed.print(finished, TEXT)

    def _replace(self, text: str, style: str) -> None:
        """A retry produced different text: shows it in place of the old text."""
        self._delayed = [(text, of) for text, of in self._delayed if of != style]
        if style == TEXT:
            self._text = None
        if self._printed.has(style):
            self._area.close()
            if not self._printed.remove(style):
                self._write(REPLACEMENT_NOTE, NOTE)
        self._write(text, style)
        if self._calls:
            self._open_area()

    def _line(self, markup: str) -> None:
        self._finish_text()
        self._print_note(markup)

    def _print_note(self, markup: str) -> None:
        """Prints a line above the area."""
        self._printed.end_line()
        self._printed.print(Text.from_markup(f"{markup}\n"), NOTE)

    def _end_line(self) -> None:
        self._finish_text()
        self._printed.end_line()


def _note(event: Event) -> str | None:
    """The line for an event that is one line and nothing else."""
    match event:
        case ServerCallFinished(name=name, arguments=arguments):
            called = f"{visible(name)}{in_brackets(arguments or {}, 200)}"
            failed = f": {visible(event.error)}" if event.error else ""
            return f"[dim]run by the provider: {escape(called)} {event.outcome}{escape(failed)}[/]"
        case ApprovalAsked(name=name, arguments=arguments, uncertain=True):
            called = f"{visible(name)}{in_brackets(arguments, 200)}"
            return f"[yellow]uncertain:[/] {escape(called)} {MAY_HAVE_RUN}"
        case CallsIgnored(names=names):
            return f"[yellow]only one call was asked for; ignored: {escape(', '.join(names))}[/]"
        case LimitReached(kind=kind, limit=limit):
            return f"[yellow]limit reached: {kind.replace('_', ' ')} ({limit:g})[/]"
        case RecordingIncomplete(path=path, reason=reason):
            return f"[red]the recording {escape(path)} is incomplete from here on: {escape(reason)}[/]"
        case Checked(value=value, outcome=outcome, text=text):
            return f"[yellow]check of the {value}, {outcome}: {escape(text)}[/]"
        case AgentChanged(agent=agent):
            return f"[dim]{escape(one_line(agent))} takes over[/]"
        case Compacted():
            return f"[dim]{escape(compacted(event))}[/]"
        case RunChanged(changes=changes):
            return f"[yellow]the agent has changed: {escape('; '.join(changes))}[/]"
        case ToolLate(name=name):
            return f"[yellow]{escape(name)} is still running after its time-out[/]"
        case _:
            return None


def _since(call: CallView) -> float:
    return next((time for time in (call.started, call.finished) if time is not None), 0.0)


def _mark(call: CallView, now: float) -> tuple[str, str, str]:
    """The mark, its colour, and the style of the result."""
    if call.dropped is not None:
        return "–", "yellow", "yellow"
    if call.outcome is None:
        return moving_mark(now), "cyan", "dim"
    if call.duplicate_of or call.outcome == "cached":
        return "=", "green", "dim"
    if call.outcome in ("unknown", "not_executed"):
        return "?" if call.outcome == "unknown" else "–", "yellow", "yellow"
    return ("✘", "red", "red") if call.error else ("✔", "green", "")
