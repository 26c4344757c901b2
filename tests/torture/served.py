"""What the load test starts: `unbroken serve` as an operator starts it, and scripted providers that are slow, limit or
die."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from aiohttp import web
from child_processes import Child, Tell, load_first

from torture.history import History
from torture.upstream import FIRST_NUMBER, Model
from unbroken.errors import RateLimited
from unbroken.models.scripted import Step
from unbroken_testing import Pause
from unbroken_testing.scenario import Chunks, Reply, Sent
from unbroken_wires.messages import Request

load_first("torture.served")

Manner: TypeAlias = Literal["good", "slow", "limits", "refuses"]
BETWEEN = 1_000_000
"""Numbers of answers that belong to one provider."""
PRICE = "price = { input = 1.0, output = 2.0 }"
"""Dollars for a million tokens."""
STOPPING = 120
"""Seconds that a gateway waits for its last streams, at most. On a busy machine they take longer than they should."""
SETTINGS = """
[server]
port = {port}
stop_timeout = "{stopping}s"
workers = {workers}
access_log = true

[store]
url = {store}

[spend]
enabled = true

[[clients]]
name = "one call at a time"
user_agent = "serial client"
"""


class Provider(Model):
    """Answers like the model of the torture test, over seconds."""

    def __init__(self, seed: str, history: History, number: int, manner: Manner, lasting: float) -> None:
        super().__init__(seed, history)
        self._first = numbers_of(number).start
        self._manner = manner
        self._lasting = lasting
        self._dice = random.Random(f"{seed}/{number}")

    def _reply(self, sent: Sent, request: Request, http: web.Request) -> Reply:
        if self._manner == "refuses":
            raise RateLimited("too many requests", status=429, retry_after=0.02)
        if self._manner == "limits" and self._dice.random() < 0.5:
            raise RateLimited("too many requests", status=429, retry_after=float(self._dice.choice((1, 5, 20))))
        reply = super()._reply(sent, request, http)
        return replace(reply, chunks=self._noted(reply.chunks, self._first + sent.number))

    def _noted(self, chunks: Chunks, number: int) -> Chunks:
        """The same; it is written down when the last byte was sent."""
        yield from chunks
        self._history.write("sent", number=number)

    def _paced(self, steps: list[Step]) -> list[Step]:
        if not self._lasting:  # where the time to the first byte is measured
            return [step for step in steps if not isinstance(step, Pause)]
        wait = self._dice.uniform(0.5, 1.0) * self._lasting
        return [Pause(1.0 if self._manner == "slow" else 0.0), *steps[:-1], Pause(wait), steps[-1]]


def numbers_of(provider: int) -> range:
    """The numbers of its answers."""
    return range(FIRST_NUMBER + provider * BETWEEN, FIRST_NUMBER + (provider + 1) * BETWEEN)


def _serve(tell: Tell, seed: str, path: str, number: int, manner: Manner, lasting: float) -> None:
    async def serve() -> None:
        async with Provider(seed, History(Path(path)), number, manner, lasting) as server:
            tell(server.url)
            await asyncio.get_running_loop().create_future()

    asyncio.run(serve())


def start_provider(seed: str, folder: Path, number: int, manner: Manner, lasting: float) -> Child:
    """Its address is what it told."""
    return Child(_serve, seed, str(folder / f"provider-{number}.jsonl"), number, manner, lasting)


class Served:
    """A gateway in a process of its own, on a port that it keeps when it is started again."""

    def __init__(self, folder: Path, number: int, store: str, models: str, workers: int = 1) -> None:
        self.port = free_port()
        self.config = folder / f"gateway-{number}.toml"
        settings = SETTINGS.format(port=self.port, store=json.dumps(store), stopping=STOPPING, workers=workers)
        self.config.write_text(settings + models)
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / f"gateway-{number}.log").open("ab")
        self._used = self._waited = 0.0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "unbroken", "serve", "--config", str(self.config)]
        environment = {**os.environ, "ANTHROPIC_API_KEY": "none", "OPENAI_API_KEY": "none"}
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=environment, cwd=self.config.parent
        )
        until = time.monotonic() + 600.0
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the gateway did not start: see {self._log.name}")
            time.sleep(0.02)

    def stop(self) -> int:
        """SIGTERM; its exit code when its last stream has ended."""
        self._used += self._now()
        self._waited += self._waiting()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOPPING + 60)

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL, also for its workers."""
        if self._process.poll() is None:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            self._process.kill()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()

    def cpu(self) -> float:
        """Seconds, of all its processes one after the other; those that ended, until they were stopped."""
        return self._used + self._now()

    def waited(self) -> float:
        """Seconds in which it could have worked, and other processes had the cores."""
        return self._waited + self._waiting()

    def _waiting(self) -> float:
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    def _now(self) -> float:
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1024 / 1024


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as asked:
            asked.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return asked.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def model_of(alias: str, wire: str, urls: Sequence[str], more: str = "") -> str:
    """The table of a model with a deployment at each of these addresses."""
    provider = "anthropic" if wire == "anthropic-messages" else "openai"
    path = "" if wire == "anthropic-messages" else "/v1"
    rows = [f'[[models]]\nalias = "{alias}"\nmodel = "{provider}:big-short"\nwire = "{wire}"\n{PRICE}\n{more}\n']
    for number, url in enumerate(urls):
        rows.append(f'[[models.deployments]]\nname = "deployment-{number}"\nbase_url = "{url}{path}"\n')
    return "\n".join(rows)
