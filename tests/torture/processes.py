"""The processes of the torture test, with handles to kill, pause, empty and fill them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import valkey_server
from child_processes import Child, load_first, run_gateway
from gateway_client import PROVIDERS

from torture import upstream
from torture.plan import Round, aliases

load_first("torture.clients", "torture.upstream")

DISK = 96 << 20
"""Bytes of the small disk: with less than 64 MiB left, gateways stop recording."""


class Upstream:
    """The scripted model."""

    def __init__(self, seed: str, history: Path) -> None:
        self._child = Child(upstream.run, seed, str(history))
        self.url: str = self._child.told
        self.pause, self.resume, self.close = self._child.pause, self._child.resume, self._child.kill

    def settings(self) -> list[dict[str, Any]]:
        """Its models as the gateways know them."""
        return [
            {
                "alias": alias,
                "model": f"{PROVIDERS[wire]}:big-{alias.rpartition('-')[2]}",
                "base_url": f"{self.url}/v1" if wire.startswith("openai") else self.url,
                "wire": wire,
                "options": {"attempts": 2},
            }
            for alias, wire in aliases()
        ]


class Valkey:
    """A real server that keeps nothing on disk: when it is killed, all is gone."""

    def __init__(self) -> None:
        self._server = valkey_server.start()
        self._port: int = self._server.port
        self.url = f"redis://{self._server.host}:{self._port}/0"

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        return self._server._process

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        valkey_server.empty(self._server)

    def kill(self) -> None:
        self._server.terminate()

    def start(self) -> None:
        self._server = valkey_server.start(self._port)

    def close(self) -> None:
        with suppress(ProcessLookupError, AttributeError):
            self.resume()
        self.kill()


class SmallDisk:
    """A disk of some megabytes (tmpfs), which can be filled. `None` from `mounted`: this machine does not allow it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def mounted(cls, folder: Path) -> SmallDisk | None:
        folder.mkdir(parents=True, exist_ok=True)
        mount = shutil.which("mount")
        if mount is None or os.geteuid() != 0:
            return None
        done = subprocess.run([mount, "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], capture_output=True)
        return cls(folder) if done.returncode == 0 else None

    def fill(self) -> None:
        """To the last byte."""
        with suppress(OSError), (self.folder / "ballast").open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 10, 1):
                with suppress(OSError):
                    while file.write(b"x" * size) == size:
                        pass

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """It is gone when the last process that uses it is."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False, capture_output=True)


class Gateways:
    """Two gateways on one store; each keeps its port when it is started again."""

    def __init__(self, settings: dict[str, Any], skew: tuple[float, float], log: Path) -> None:
        self._settings = settings
        self._skew = skew
        self._log = log
        self._children = [self._started(number, 0) for number in range(2)]
        self.urls: list[str] = [child.told for child in self._children]

    def _started(self, number: int, port: int) -> Child:
        log = str(self._log / f"gateway-{number}.log")
        return Child(run_gateway, skew=self._skew[number], log=log, port=port, **self._settings)

    def kill(self, number: int) -> None:
        self._children[number].kill()

    def start(self, number: int) -> None:
        self._children[number] = self._started(number, int(self.urls[number].rpartition(":")[2]))

    def pause(self, number: int) -> None:
        self._children[number].pause()

    def resume(self, number: int) -> None:
        self._children[number].resume()

    def close(self) -> None:
        for child in self._children:
            child.kill()


def gateway_settings(one: Round, upstream: Upstream, store: str, record: str = "") -> dict[str, Any]:
    return {
        "upstreams": upstream.settings(),
        "clients": [{"name": "one call at a time", "user_agent": "serial client"}],
        "store": store,
        "hold_timeout": one.hold_timeout,
        "record": record,
        "stop_timeout": 1.0,
    }
