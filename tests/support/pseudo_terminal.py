"""A program on a terminal of its own, whose output is kept byte by byte: for pictures of it. `terminals` is for tests,
which run the command in a process that has loaded it already."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

PATIENCE = 60.0


class PseudoTerminal:
    def __init__(self, parent: int, process: subprocess.Popen[bytes]) -> None:
        self._parent, self._process = parent, process
        self._raw = b""
        self._waited = 0

    @property
    def printed(self) -> str:
        return self._raw.decode("utf-8", "replace")

    def wait_for(self, text: str) -> None:
        """Reads until this has been printed, behind what was waited for before."""
        wanted = text.encode()
        deadline = time.monotonic() + PATIENCE
        while (at := self._raw.find(wanted, self._waited)) < 0:
            assert time.monotonic() < deadline, f"{text!r} was not printed in time: {self.printed}"
            assert self._read(), f"{text!r} was never printed: {self.printed}"
        self._waited = at + len(wanted)

    def type(self, text: str) -> None:
        os.write(self._parent, text.encode())

    def stop(self, *, kill: bool) -> None:
        """With SIGKILL, or as Ctrl-C does."""
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGINT)

    def read_to_end(self) -> str:
        while self._read():
            pass
        self._process.wait(PATIENCE)
        return self.printed

    def _read(self) -> bool:
        if not select.select([self._parent], [], [], PATIENCE)[0]:
            return False
        try:
            piece = os.read(self._parent, 65536)
        except OSError:  # Linux reports the end of the other side so
            return False
        self._raw += piece
        return bool(piece)


@contextmanager
def started(
    program: Sequence[str], folder: str, environment: Mapping[str, str], columns: int, rows: int
) -> Generator[PseudoTerminal]:
    parent, child = pty.openpty()
    fcntl.ioctl(parent, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        program, stdin=child, stdout=child, stderr=child, cwd=folder, env=environment, start_new_session=True
    )
    os.close(child)
    try:
        yield PseudoTerminal(parent, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(parent)
