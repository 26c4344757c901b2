"""`unbroken` in separate processes that have already imported it: they are forked from one that did so once.

Importing takes longer than most commands. A forked process has its own streams, terminal, environment, folder and
signals, and exits like any Python program. Tests of a cold start (what is imported when, streams that the shell has
closed) need `terminals.COMMAND`.

`relayed` is for what starts a program by itself, like a client of MCP: the command that it returns is a small program
which hands its streams to such a fork, and ends as the fork does.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from unbroken_cli.commands import build
from unbroken_cli.main import main

_LONGEST = 1 << 20
_SECONDS = 60.0
"""For a command that does not end."""


class Started:
    """A running command: the part of `Popen` that tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        """Where its parent, which is not this process, writes its exit code."""

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None or not self._ended(0) else self.wait()

    def wait(self, timeout: float = _SECONDS) -> int:
        """Its exit code, or a signal's number below 0; `TimeoutExpired` if it does not end in time."""
        if self.returncode is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired("unbroken", timeout)
            self.returncode = int(os.read(self._status, 100) or b"-9")
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ended(self, within: float) -> bool:
        return bool(select.select([self._status], [], [], within)[0])


def start(
    *arguments: str,
    streams: tuple[int, int, int],
    env: Mapping[str, str],
    cwd: str = "",
    terminal: bool = False,
    load: tuple[str, ...] = (),
) -> Started:
    """Starts it with these file descriptors as its standard streams. `terminal`: they are a terminal whose Ctrl-C
    interrupts the command. `load`: modules that the process which is forked imports too."""
    status, child = os.pipe()
    order = {"arguments": arguments, "env": dict(env), "cwd": cwd or os.getcwd(), "terminal": terminal, "load": load}
    loaded = _loaded()
    socket.send_fds(loaded, [json.dumps(order).encode()], [*streams, child])
    os.close(child)
    return Started(int(loaded.recv(100)), status)


def run(
    *arguments: str,
    stdin: bytes = b"",
    env: Mapping[str, str],
    cwd: str = "",
    together: bool = False,
    load: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Runs it in pipes, to its end. `together`: standard error goes to standard output."""
    pipes = [os.pipe() for _ in range(2 if together else 3)]
    (its_in, in_), (out, its_out), (err, its_err) = pipes[0], pipes[1], pipes[-1]
    command = start(*arguments, streams=(its_in, its_out, its_err), env=env, cwd=cwd, load=load)
    for end in {its_in, its_out, its_err}:
        os.close(end)
    said: dict[int, bytes] = {}

    def read(end: int) -> None:
        with open(end, "rb") as stream:
            said[end] = stream.read()

    readers = [threading.Thread(target=read, args=(end,)) for end in {out, err}]
    for reader in readers:
        reader.start()
    try:
        with suppress(BrokenPipeError), open(in_, "wb") as stream:
            stream.write(stdin)
        code = command.wait()
    finally:
        command.kill()
        for reader in readers:
            reader.join()
    return subprocess.CompletedProcess(["unbroken", *arguments], code, said[out], b"" if together else said[err])


def relayed(*arguments: str, program: str | Path = "", load: tuple[str, ...] = ()) -> list[str]:
    """A command to start `unbroken` with these arguments, or another Python program."""
    _loaded()
    order = json.dumps({"arguments": arguments, "program": str(program), "terminal": False, "load": load})
    return [sys.executable, "-IS", str(Path(__file__).with_name("relayed_command.py")), _address(), order]


@cache
def _loaded() -> socket.socket:
    """The connection to the process that has imported it, which ends when this socket is closed."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as relays:
        relays.bind(_address())
        relays.listen()
        ends = [its.fileno(), relays.fileno()]
        process = subprocess.Popen([sys.executable, __file__, *map(str, ends)], pass_fds=ends)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


@cache
def _address() -> str:
    """Where relays find the process that has imported it."""
    folder = tempfile.TemporaryDirectory(prefix="unbroken-")
    atexit.register(folder.cleanup)
    return str(Path(folder.name, "loaded"))


# The rest runs in the process that imports.


def _serve(tests: socket.socket, relays: socket.socket) -> dict[str, Any]:
    """Forks for each order, and returns the order in the fork only."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C in the terminal of the tests is for them
    signal.set_wakeup_fd(wake.fileno())
    running: dict[int, int] = {}
    of_relays: dict[socket.socket, int] = {}
    while True:
        ready, _, _ = select.select([tests, relays, woken, *of_relays], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                woken.recv(1000)
            _report(running)
        if relays in ready:
            of_relays[relays.accept()[0]] = 0
        for orders in {tests, *of_relays}.intersection(ready):
            data, handed, _, _ = socket.recv_fds(orders, _LONGEST, 4)
            if not data and orders is tests:
                os._exit(0)
            if not data:
                if (pid := of_relays.pop(orders)) in running:  # nobody waits for it any more
                    os.kill(pid, signal.SIGKILL)
                orders.close()
                continue
            order: dict[str, Any] = json.loads(data)
            _load(order["load"])
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for one in (tests, relays, woken, wake, *of_relays):
                    one.detach()
                _become(order, handed[:3])
                return order
            running[pid] = handed[3]
            for end in handed[:3]:
                os.close(end)
            orders.send(str(pid).encode())
            if orders is not tests:
                of_relays[orders] = pid


def _load(modules: list[str]) -> None:
    if missing := [module for module in modules if module not in sys.modules]:
        for module in missing:
            importlib.import_module(module)
        gc.freeze()  # no fork looks at it again


def _report(running: dict[int, int]) -> None:
    """Writes the exit codes of those that have ended."""
    for pid, status in list(running.items()):
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):
                os.write(running.pop(pid), str(os.waitstatus_to_exitcode(code)).encode())
            os.close(status)


def _nothing(_signal: int, _frame: FrameType | None) -> None:
    """Calling the handler wakes the loop."""


def _become(order: dict[str, Any], streams: list[int]) -> None:
    for number, end in enumerate(streams):
        os.dup2(end, number)
    os.closerange(3, 1000)
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    program = order.get("program", "")
    sys.argv = [program or "unbroken", *order["arguments"]]
    sys.path[0] = str(Path(program).parent) if program else order["cwd"]
    encoding = order["env"].get("PYTHONIOENCODING", sys.stdout.encoding)
    # As Python opens them, line by line on a terminal; they are open as long as the program runs.
    sys.stdin = open(0, encoding=encoding, newline="\n", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, newline="\n", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding, "backslashreplace", "\n", closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


if __name__ == "__main__":
    build()
    gc.freeze()
    if wanted := _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])).get("program"):
        runpy.run_path(wanted, run_name="__main__")
    else:
        main()
