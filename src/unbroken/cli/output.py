"""Standard output that tells in words when it cannot be written to (a full disk), so that this is one line like any
other error. A pipe whose reader has gone is none: who reads with `head` has seen enough."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper

from unbroken.errors import UserError

READER_GONE = 141
"""The exit code of programs whose reader has gone, as shells give it."""


class Output(TextIOWrapper):
    gone = False
    """Whoever read it has gone."""

    @classmethod
    def over(cls, stream: TextIOWrapper) -> Output:
        """A terminal that is not UTF-8 shows ? and nothing breaks."""
        return cls(stream.buffer, stream.encoding, "replace", line_buffering=stream.line_buffering)

    def write(self, text: str, /) -> int:
        with self._told():
            return super().write(text)

    def flush(self) -> None:
        with self._told():
            super().flush()

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except BrokenPipeError:
            self.gone = True
            raise
        except OSError as error:
            # What is still kept would be written at the end of the program, fail again, and print a traceback there.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise UserError(f"standard output cannot be written to: {error.strerror or error}") from error
