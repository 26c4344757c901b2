"""The standard streams of a command, which may be closed, full, or not UTF-8."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import IO, cast

from unbroken import __version__
from unbroken.errors import UserError

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended, as in a shell."""
READER_GONE = 141
"""The exit code of a program whose reader has gone, as in a shell."""


class Output(TextIOWrapper):
    """Raises `UserError` if it cannot be written to (the disk is full), which a command reports in one line like any
    other error. A pipe whose reader has gone, as with `head`, is not an error."""

    gone = False
    """The reader has closed the pipe."""

    @classmethod
    def over(cls, stream: TextIOWrapper) -> Output:
        """A terminal that is not UTF-8 shows ? instead of failing."""
        return cls(stream.buffer, stream.encoding, "replace", line_buffering=stream.line_buffering)

    def write(self, text: str, /) -> int:
        with self._reporting():
            return super().write(text)

    def flush(self) -> None:
        with self._reporting():
            super().flush()

    @contextmanager
    def _reporting(self) -> Generator[None]:
        try:
            yield
        except BrokenPipeError:
            self.gone = True
            self._discard()
            raise
        except OSError as error:
            self._discard()
            raise UserError(f"standard output cannot be written to: {error.strerror or error}") from error

    def _discard(self) -> None:
        """Drops the buffer: otherwise it would be written at the end of the program, fail again, and print a
        traceback."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def open_streams() -> Output | None:
    """Opens replacements for the standard streams that the shell has closed (Python then has None). Returns what
    standard output is now."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison] - see above
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it is open as long as the program runs
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - see above
        sys.stderr.write("unbroken: standard output is closed; if you do not need it, redirect it to /dev/null\n")
        sys.exit(2)
    out, err = sys.stdout, sys.stderr
    if isinstance(err, TextIOWrapper):
        err.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? instead of failing
    if not isinstance(out, TextIOWrapper):
        return None
    sys.stdout = output = Output.over(cast("TextIOWrapper", out))
    return output


def is_terminal(stream: IO[str] | None) -> bool:
    """The stream is None if the shell closed it."""
    return stream is not None and stream.isatty()


def print_version() -> None:
    sys.stdout.write(f"unbroken {__version__}\n")
    sys.stdout.flush()
