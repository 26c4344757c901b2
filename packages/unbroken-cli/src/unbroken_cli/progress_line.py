"""A line on standard error that shows that a command is still working, if it takes longer than a second.

Only on a terminal. It is removed at the end, and what is printed meanwhile appears above it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.text import Text

from unbroken_cli.redrawn_area import PER_SECOND, RedrawnArea
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean_line

AFTER = 1.0
"""Seconds after which it appears."""
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class ProgressLine:
    def __init__(self, words: str) -> None:
        self.words = words
        """What the command is doing now. It may be changed at any time."""
        self.began = time.monotonic()
        """Since when; it may be changed too."""
        self.console: Console | None = None
        """Prints above the line; None if there is no line."""

    def line(self) -> Text:
        passed = time.monotonic() - self.began
        text = f"{moving_mark(passed)} {clean_line(self.words)} · {passed:.0f} s"
        return Text(text, "dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def progress(words: str) -> Generator[ProgressLine]:
    """`with progress("reading") as line: …`, and `line.words = "3 of 10 read"` while it works."""
    line = ProgressLine(words)
    console = Console(stderr=True, highlight=False)
    if not is_terminal(sys.stderr) or console.is_dumb_terminal:
        yield line
        return
    line.console = console
    area = RedrawnArea(console, line.line)
    begins = _Begins(area)
    timer = threading.Timer(AFTER, begins.open)
    timer.daemon = True
    timer.start()
    try:
        yield line
    finally:
        timer.cancel()
        begins.close()


class _Begins:
    """Opens the area unless it was closed before."""

    def __init__(self, area: RedrawnArea) -> None:
        self._area = area
        self._over = False

    def open(self) -> None:
        with self._area.lock:
            if not self._over:
                self._area.open()

    def close(self) -> None:
        with self._area.lock:
            self._over = True
            self._area.close()


def current(stream: IO[str]) -> IO[str]:
    """The stream to print on now: while a progress line is shown, another one takes the place of standard error."""
    return sys.stderr if stream is sys.__stderr__ else stream


def moving_mark(now: float) -> str:
    return FRAMES[int(now * PER_SECOND) % len(FRAMES)]
