"""The command line as a user runs it: a separate process in a pipe or on a terminal; and in this process, if only the
output and the exit code matter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import loaded_command
from typer.testing import CliRunner, Result

from unbroken_cli.commands import build

COMMAND = [sys.executable, "-m", "unbroken"]
PATIENCE = 30.0

TOOLS = """
import asyncio
import sys
from unbroken import tool, client_tool

@tool(effect="read")
async def weather(city: str) -> str:
    "What the weather is like."
    sys.stdout.write("a tool prints this\\n")
    return f"{city}: sunny"

@tool
async def hang(seconds: int = 60) -> str:
    "Takes long."
    await asyncio.sleep(seconds)
    return "done"

@tool(approve=True)
def delete(path: str) -> str:
    "Delete a file."
    return f"deleted {path}"

@tool
def fail(reason: str) -> str:
    "Fails."
    raise ValueError(reason)

pick = client_tool("pick", "The user picks one.", {"type": "object", "properties": {}})
"""


def write_tools(folder: Path) -> str:
    file = folder / "tools.py"
    file.write_text(TOOLS, "utf-8")
    return str(file)


def invoke(*arguments: str, stdin: str = "", env: Mapping[str, str | None] | None = None) -> Result:
    """In this process: quick, for what needs neither signals nor a terminal."""
    variables: dict[str, str | None] = {"UNBROKEN_MODEL": None, "OPENAI_API_KEY": None, "OPENAI_BASE_URL": None}
    return CliRunner().invoke(
        build(arguments[0] if arguments else ""), list(arguments), input=stdin, env={**variables, **(env or {})}
    )


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    without = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "OPENAI_API_KEY", "OPENAI_BASE_URL", "UNBROKEN_MODEL"}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "TERM": "xterm-256color", **(more or {})}


def in_pipe(*arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = loaded_command.run(*arguments, stdin=stdin.encode(), env=environment(env))
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def in_terminal(*arguments: str) -> str:
    """What a person sees of a command that asks nothing: all that it has written when it ends."""
    parent, child = pty.openpty()
    command = [*COMMAND, *arguments]
    variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdout=child, stderr=child, env=variables)
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not piece:
            break
        seen += piece
    process.wait(timeout=60)
    os.close(parent)
    return seen.decode()


class Terminal:
    """A command on a terminal, with somebody who reads and types."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        columns: int = 100,
        rows: int = 24,
        output: Path | None = None,
    ) -> None:
        """`output`: the file that standard output goes to."""
        self.seen = ""
        self._raw = b""
        self._place = 0
        self._parent, child = pty.openpty()
        self.resize(columns, rows)
        with contextlib.ExitStack() as opened:
            written = child if output is None else opened.enter_context(output.open("wb")).fileno()
            streams = (child, written, child)
            self._process = loaded_command.start(*arguments, streams=streams, env=environment(env), terminal=True)
        os.close(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._parent)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._parent, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pieces(self) -> Iterator[bytes]:
        """What is printed, as it comes, to the end."""
        while True:
            had = len(self._raw)
            if not self._read():
                return
            yield self._raw[had:]

    def wait_for(self, text: str) -> None:
        """Reads until the text has arrived, after what was waited for before."""
        self.wait_for_one_of(text)

    def wait_for_one_of(self, *texts: str) -> str:
        """The first of them that has come."""
        deadline = time.monotonic() + PATIENCE
        while not (found := [(at, text) for text in texts if (at := self.plain.find(text, self._place)) >= 0]):
            assert time.monotonic() < deadline, f"{texts!r} never came; seen: {self.plain!r}"
            assert self._read(), f"{texts!r} never came; seen: {self.plain!r}"
        at, text = min(found)
        self._place = at + len(text)
        return text

    def type(self, text: str) -> None:
        os.write(self._parent, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C. Python's line editor misses one between its prompt and its waiting; like a person, this presses it
        again when nothing happens."""
        for _ in range(int(PATIENCE)):
            self.type("\x03")
            if select.select([self._parent], [], [], 1.0)[0]:
                return
        raise AssertionError(f"nothing happens on Ctrl-C; seen: {self.plain!r}")

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self._process.wait(timeout=PATIENCE)

    @property
    def plain(self) -> str:
        """What was printed, without cursor movements and colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen).replace("\r\n", "\n")

    def _read(self) -> bool:
        if not select.select([self._parent], [], [], PATIENCE)[0]:
            return False
        try:
            piece = os.read(self._parent, 65536)
        except OSError:  # Linux says so when the other side has closed
            return False
        self._raw += piece
        self.seen = self._raw.decode("utf-8", "replace")
        return bool(piece)
