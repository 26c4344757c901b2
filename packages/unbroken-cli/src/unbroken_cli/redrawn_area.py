"""An area at the bottom of a terminal that is redrawn in place, while lines are printed above it.

It differs from `rich.live` in three ways. Only rows that have changed are written, inside one synchronised update, so
nothing flickers. Rows are written without automatic wrapping: a character that is wider on this terminal than it should
be cannot push the area down. And after the window was made narrower, the old rows are left alone instead of guessing
where they are now.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

PER_SECOND = 12.5
"""How often it is redrawn at least, for what moves by itself."""
SHORTEST = 0.03
"""Seconds between two drawings, at least."""
SHARE = 10
"""Drawing takes at most one part in this many of the time, however long it takes."""

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""A synchronised update. Terminals that do not know it ignore it."""
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class RedrawnArea(RenderHook):
    """`rows` returns what the area shows. It is called with `lock` held, often in another thread."""

    def __init__(self, console: Console, rows: Callable[[], RenderableType]) -> None:
        self.lock = threading.RLock()
        self._console = console
        self._rows = rows
        self._drawn: list[list[Segment]] = []
        self._width = console.width
        self._running: threading.Event | None = None
        self._wake = threading.Event()
        self._drawing = False
        self._before: tuple[TextIO, TextIO] | None = None

    @property
    def is_open(self) -> bool:
        return self._running is not None

    def open(self) -> None:
        with self.lock:
            if self._running is not None:
                return
            self._running, self._width = threading.Event(), self._console.width
            self._console.file = self._console.file  # it stays the terminal when standard output is replaced below
            self._console.show_cursor(False)
            self._before = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = self._above(sys.stdout), self._above(sys.stderr)
            self._console.push_render_hook(self)
            threading.Thread(
                target=self._keep_drawing, args=(self._running,), name="unbroken-area", daemon=True
            ).start()

    def close(self) -> None:
        """Removes the area from the terminal. The cursor is then where its first row began."""
        with self.lock:
            if self._running is None:
                return
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, _PrintedAbove):
                    stream.close_line()
            self._running.set()
            self._running = None
            self._wake.set()
            self._console.pop_render_hook()
            if self._before is not None:
                sys.stdout, sys.stderr = self._before
                self._before = None
            if self._drawn:
                self._write([_control(f"{_BEGIN}{self._to_row(0)}\x1b[J{_END}")])
                self._drawn = []
            self._console.show_cursor(True)

    def wake(self) -> None:
        """What it shows has changed."""
        self._wake.set()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by the console for everything that is printed: it goes above the area."""
        with self.lock:
            if self._drawing or self._running is None:
                return renderables
            erase = f"{self._to_row(0)}\x1b[J" if self._drawn else ""
            lines = self._rendered()
            self._drawn, self._width = lines, self._console.width
            return [
                Segments([_control(_BEGIN + erase)]),
                *renderables,
                Segments([*_written(lines, self._width), _control(_END)]),
            ]

    def _above(self, stream: TextIO) -> TextIO:
        """What others print on the terminal goes above the area. A pipe is left alone."""
        if isinstance(stream, _PrintedAbove) or not stream.isatty():
            return stream
        return cast("TextIO", _PrintedAbove(self._console, stream, self.lock))

    def _keep_drawing(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self._wake.wait(1 / PER_SECOND)
            self._wake.clear()
            with self.lock:
                if stopped.is_set():
                    return
                began = time.perf_counter()
                self._draw()
                took = time.perf_counter() - began
            stopped.wait(max(SHORTEST, SHARE * took))

    def _rendered(self) -> list[list[Segment]]:
        """The rows, of which the last are shown if they do not all fit."""
        console = self._console
        options = console.options.update(height=None)
        lines = console.render_lines(self._rows(), options, pad=False)
        return [] if not any(lines) else lines[-max(console.height - 1, 1) :]

    def _draw(self) -> None:
        lines, old = self._rendered(), self._drawn
        same = 0
        while same < min(len(lines), len(old)) and lines[same] == old[same]:
            same += 1
        if same == len(lines) == len(old) and self._width == self._console.width:
            return
        in_place, self._width = self._in_place(), self._console.width
        if not in_place:
            self._write([_control(f"{_BEGIN}\r\n"), *_written(lines, self._width), _control(_END)])
        elif not lines:
            self._write([_control(f"{_BEGIN}{self._to_row(0)}\x1b[J{_END}")])
        else:
            first = min(same, len(lines) - 1)
            to = self._to_row(first) if old else ""
            below = "\r\n\x1b[J\x1b[A" if len(lines) < len(old) else ""
            written = _written(lines[first:], self._width)
            self._write([_control(f"{_BEGIN}{to}"), *written, _control(f"{below}{_END}")])
        self._drawn = lines

    def _in_place(self) -> bool:
        """Whether the old rows are where they were drawn: a terminal wraps them when it becomes narrower."""
        width = self._console.width
        return width >= self._width or all(_cells(line) <= width for line in self._drawn)

    def _to_row(self, row: int) -> str:
        """Moves the cursor to the beginning of this row of the area, from its last row."""
        up = len(self._drawn) - 1 - row
        return "\r" if up == 0 else f"\r\x1b[{up}A" if up > 0 else "\r\n"

    def _write(self, segments: list[Segment]) -> None:
        self._drawing = True
        try:
            self._console.print(Segments(segments), end="", soft_wrap=True)
        finally:
            self._drawing = False


def _written(lines: list[list[Segment]], width: int) -> list[Segment]:
    if not lines:
        return []
    segments = [_control(_NO_WRAP)]
    for at, line in enumerate(lines):
        segments += [_control("\r\n")] if at else []
        # In the last column the cursor has not moved on yet: there the rest of the row is the row's last character.
        segments += [*line, _control("\x1b[K")] if _cells(line) < width else line
    return [*segments, _control(_WRAP)]


def _cells(line: list[Segment]) -> int:
    return sum(cell_len(segment.text) for segment in line if not segment.control)


def _control(codes: str) -> Segment:
    return Segment(codes, None, [(ControlType.CARRIAGE_RETURN,)])


class _PrintedAbove:
    """Takes the place of a standard stream while the area is open."""

    def __init__(self, console: Console, stream: TextIO, lock: threading.RLock) -> None:
        self._console = console
        self._stream = stream
        self._lock = lock
        self._held = ""

    def write(self, text: str) -> int:
        with self._lock:
            # Bytes are refused, as a text stream does: that is how click recognises one.
            *lines, self._held = (self._held + text).split("\n")
            if lines:
                self._print("\n".join(lines))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Half a line is printed when it is complete, or when the area is closed."""

    def close_line(self) -> None:
        with self._lock:
            held, self._held = self._held, ""
            if held:
                self._print(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _print(self, text: str) -> None:
        self._console.print(Text.from_ansi(text), soft_wrap=True)
