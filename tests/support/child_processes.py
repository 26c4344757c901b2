"""Functions in separate processes, for tests that kill and pause them: a gateway, a server, clients.

They are forked from one process that has imported the package, because importing takes a second. A child that its test
forgets ends with the test.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from unbroken_gateway.app import Gateway
from unbroken_gateway.http.uvicorn_server import serve
from unbroken_gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings

Tell = Callable[[Any], None]
"""Reports something to the test as soon as it is known: an address, for example."""

_CONTEXT = multiprocessing.get_context("forkserver")
_LOADED = ["unbroken_gateway.http.uvicorn_server", "unbroken_testing.server", "unbroken_gateway.stores.redis"]


def load_first(*modules: str) -> None:
    """These modules are imported once, before the first child; the modules of a test too."""
    # The process that loads them is a new one: these are the places where it looks for them.
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    beside = [str(Path(file).parents[module.count(".")]) for module, file in files.items() if file]
    _LOADED.extend(module for module in modules if module not in _LOADED)
    _CONTEXT.set_forkserver_preload(["__main__", *_LOADED])
    here = Path(__file__).parent
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = dict.fromkeys([str(here), str(here.parent), *beside, *filter(None, paths)])
    os.environ["PYTHONPATH"] = os.pathsep.join(places)


load_first()


class Child:
    """`target` is called in a new process with a `Tell` and these arguments; `told` is the first thing that it
    reported."""

    def __init__(self, target: Callable[..., None], *arguments: Any, **more: Any) -> None:
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(sender, target, arguments, more), daemon=True)
        self._process.start()
        sender.close()
        try:
            self.told: Any = receiver.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"{target.__name__} ended with {self._process.exitcode} before it had begun") from None
        finally:
            receiver.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._process.kill()
        self._process.join()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None if it had to be killed, because it did not end in time."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self.kill()
        return code


def _run(sender: Connection, target: Callable[..., None], arguments: tuple[Any, ...], more: dict[str, Any]) -> None:
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    target(sender.send, *arguments, **more)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def run_gateway(
    tell: Tell,
    upstreams: list[dict[str, Any]],
    clients: list[dict[str, Any]] | None = None,
    *,
    skew: float = 0.0,
    log: str = "",
    **settings: Any,
) -> None:
    """Reports its address. `skew`: by how many seconds its wall clock is wrong; the other names are those of
    `GatewaySettings`."""
    if log:
        line = "%(asctime)s %(process)d %(levelname)s %(message)s"
        logging.basicConfig(filename=log, level=logging.INFO, format=line)
        with open(log, "a") as file:
            os.dup2(file.fileno(), 2)
    rows = tuple(UpstreamSettings(**row) for row in upstreams)
    profiles = tuple(ClientProfile(**row) for row in clients or [])
    settings.setdefault("port", 0)
    full = GatewaySettings(rows, clients=profiles, **settings)

    def make(settings: GatewaySettings) -> Gateway:
        return Gateway(settings, now=lambda: time.time() + skew)

    serve(full, tell, app=make)
