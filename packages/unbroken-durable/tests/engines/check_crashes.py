"""Crashes of durable runs that take too long for the default suite: kills at every append and at random moments with
two workers, plain ones and those of Temporal, a driver that is paused, a database that restarts, a network that is cut.
`make test-durable` runs them."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from child_processes import Child
from crash_workers import SUPERSEDED, Engine
from durable_runs import (
    OFTEN,
    QUESTION,
    Ledger,
    agents_of,
    all_events,
    check,
    check_events,
    count_appends,
    drive_to_the_end,
)
from postgres_server import empty_url, own_server
from servers import TemporalServer, processes

from unbroken_durable import Busy, Journal, Superseded, drive, open_journal
from unbroken_durable.records import ENDED

Record = Callable[[str, object], None]
"""What was counted is in the report of `--junitxml`."""

KILLS = 100
"""So many random moments, with each of two databases, at which a kill cuts at least one drive."""
AT_ONCE = {"plain": 8, "temporal": 16}
"""So many runs are under way. Of those on Temporal most wait until a missing heartbeat is noticed."""
PATIENCE = 600.0
"""Seconds for all runs of a test."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}" if request.param == "sqlite" else empty_url()


@pytest.fixture(params=["plain", "temporal"])
def engine(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Generator[Engine]:
    with processes(tmp_path) as started:
        yield Engine(url, tmp_path, TemporalServer(started).address if request.param == "temporal" else "")


def finish(url: str, ledger: Ledger, run_id: str, **options: Any) -> None:
    async def main() -> None:
        async with await open_journal(url, deaths=OFTEN) as journal:
            outcome = await drive_to_the_end(journal, agents_of(ledger), run_id, **options)
            taken_over = (await journal.run(run_id)).supersessions > 0
            check(outcome, await all_events(journal, run_id), ledger, taken_over=taken_over)

    asyncio.run(main())


# Two workers, and several runs at a time


class TwoWorkers:
    """They are started again when they have died. `kill`: see `Engine.worker`."""

    def __init__(self, engine: Engine, kill: tuple[int, bool] | None = None) -> None:
        self.kills = 0
        self._start: Callable[[], Child] = lambda: engine.worker(kill)
        self._children = [self._start() for _ in range(2)]

    def kill(self, place: int) -> None:
        self._children[place].kill()

    def restart(self) -> None:
        for place, child in enumerate(self._children):
            if not child.is_alive:
                self.kills += 1
                self._children[place] = self._start()

    def end(self) -> None:
        for child in self._children:
            child.kill()


@asynccontextmanager
async def two_workers(engine: Engine, kill: tuple[int, bool] | None = None) -> AsyncGenerator[TwoWorkers]:
    workers = TwoWorkers(engine, kill)
    try:
        async with asyncio.timeout(PATIENCE):
            yield workers
    finally:
        workers.end()


async def carry(
    engine: Engine, journal: Journal, ids: Iterable[str], disturb: Callable[[], Awaitable[float]]
) -> dict[str, int]:
    """Starts these runs, a few at a time, until all have ended. `disturb` does something to the workers, and returns
    how many seconds pass until the next time. Then each run has ended well, for its engine too, and the ledger agrees
    with its history. Returns what was counted."""
    client, waiting, active, started = await engine.connect(), iter(ids), set[str](), list[str]()
    while True:
        for run_id in itertools.islice(waiting, AT_ONCE[engine.name] - len(active)):
            await client.start(journal, run_id)
            started.append(run_id)
            active.add(run_id)
        if not active:
            break
        await asyncio.sleep(await disturb())
        active = {run_id for run_id in active if (await journal.run(run_id)).state not in ENDED}
    drives = 0
    for run_id in started:
        row = await journal.run(run_id)
        assert (row.state, row.supersessions) == ("answered", 0), row
        assert await client.end_of(journal, run_id) == "answered"
        outcome = await drive(agents_of(engine.ledger), journal, run_id)
        check(outcome, await all_events(journal, run_id), engine.ledger)
        drives += row.drives
    cut = drives - 2 * len(started)  # one before the approval, one after
    effects = Counter(tool for run_id in started for tool, _, _ in engine.ledger.rows(run_id))
    return {"runs": len(started), "drives cut": cut, **effects}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_at_any_append_ends_as_if_nothing_had_happened(
    engine: Engine, after: bool, record_property: Record
) -> None:
    appends = count_appends(engine.url, engine.ledger)
    assert appends >= 10

    async def main() -> None:
        async with await open_journal(engine.url) as journal, two_workers(engine, (appends, after)) as workers:

            async def restart() -> float:
                workers.restart()
                return 0.05

            counted = await carry(engine, journal, [f"run-{number}" for number in range(appends)], restart)
            record_property("counted", counted | {"appends": appends, "kills": workers.kills})

    asyncio.run(main())
    positions = {number % appends for number in engine.killed()}
    assert positions >= set(range(appends - 3))  # the last ones may be stored together


def test_two_workers_that_are_killed_at_random_moments(engine: Engine, record_property: Record) -> None:
    dice, moments = random.Random(20), 0
    cut = set[tuple[str, int]]()
    """The drives that were: the run, and the number of its drive."""

    async def orphans(journal: Journal) -> set[tuple[str, int]]:
        return {(row.run_id, row.drives) for row in await journal.drivable(1000) if row.state == "running"}

    async def main() -> None:
        async with await open_journal(engine.url) as journal, two_workers(engine) as workers:

            async def kill_one() -> float:
                nonlocal moments
                driven = {(row.run_id, row.drives) for row in await journal.runs(state="running")}
                if moments == KILLS or not driven - await orphans(journal):
                    return 0.05
                await asyncio.sleep(dice.uniform(0, 0.3))
                workers.kill(dice.randrange(2))
                lost = await orphans(journal) - cut
                moments += bool(lost)
                cut.update(lost)
                workers.restart()
                return 0

            numbers = itertools.takewhile(lambda _: moments < KILLS, itertools.count())
            counted = await carry(engine, journal, (f"run-{number}" for number in numbers), kill_one)
            record_property("counted", counted | {"kills": workers.kills, "moments": moments})

    asyncio.run(main())
    assert moments == KILLS


def test_nothing_of_a_driver_that_was_paused_enters_the_journal(url: str, tmp_path: Path) -> None:
    engine = Engine(url, tmp_path)
    ledger, child = engine.ledger, engine.driver("run")
    while not ledger.rows():
        time.sleep(0.02)
    child.pause()
    finish(url, ledger, "run", take_over=True)

    async def stored() -> tuple[int, list[Any]]:
        async with await open_journal(url) as journal:
            return (await journal.run("run")).chunks, await all_events(journal, "run")

    before = asyncio.run(stored())
    child.resume()
    assert child.wait(20) == SUPERSEDED
    assert asyncio.run(stored()) == before
    finish(url, ledger, "run")


# PostgreSQL goes away


def test_postgresql_is_restarted_in_the_middle_of_a_run(tmp_path: Path) -> None:
    server = own_server()
    ledger = Ledger(tmp_path / "ledger.db")

    async def main() -> None:
        async with await open_journal(server.get_uri()) as journal:
            await journal.start("payer", QUESTION, run_id="run")
            driving = asyncio.create_task(drive_to_the_end(journal, agents_of(ledger, pause=0.15), "run"))
            for _ in range(3):
                known = len(ledger.rows())
                while len(ledger.rows()) == known and not driving.done():
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(restart, server)
            check(await driving, await all_events(journal, "run"), ledger)
            assert (await journal.run("run")).drives <= 2  # the driver kept it: once before the approval, once after

    asyncio.run(main())


def restart(server: Any) -> None:
    """As in a crash."""
    os.kill(server.get_pid(), signal.SIGQUIT)
    deadline = time.monotonic() + 20
    while server.get_postmaster_info().is_running() and time.monotonic() < deadline:
        time.sleep(0.05)
    server.ensure_postgres_running()


@contextmanager
def proxied(url: str, folder: Path) -> Generator[tuple[str, Proxy]]:
    """The database behind a socket that can be cut."""
    before, _, real = url.partition("host=")
    proxy = Proxy(Path(real), folder)
    yield f"{before}host={folder}", proxy


class Proxy:
    def __init__(self, real: Path, folder: Path) -> None:
        self.is_open = True
        self._real, self._folder = real / ".s.PGSQL.5432", folder / ".s.PGSQL.5432"
        self._writers: list[asyncio.StreamWriter] = []
        self._gate = asyncio.Event()
        self._gate.set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, self._folder)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_unix_connection(self._real)
        self._writers += [writer, there]
        await asyncio.gather(self._copy(reader, there), self._copy(there_reader, writer), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._gate.wait()  # silence: nothing arrives, and nobody is told
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def silence(self) -> None:
        self._gate.clear()

    def cut(self) -> None:
        """All connections end; what was on its way is lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._gate.set()


def test_the_network_between_driver_and_database_is_cut_and_comes_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    real = empty_url()

    async def main() -> None:
        with proxied(real, tmp_path) as (url, proxy):
            server = await proxy.start()
            async with server, await open_journal(url) as journal:
                await journal.start("payer", QUESTION, run_id="run")
                driving = asyncio.create_task(drive_to_the_end(journal, agents_of(ledger, pause=0.05), "run"))
                dice = random.Random(7)
                for _ in range(12):
                    await asyncio.sleep(dice.uniform(0.02, 0.2))
                    proxy.silence()
                    await asyncio.sleep(dice.uniform(0.0, 0.3))
                    proxy.cut()
                check(await driving, await all_events(journal, "run"), ledger)

    asyncio.run(main())


def test_a_driver_behind_a_cut_network_loses_its_run_to_one_that_takes_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    real = empty_url()

    async def main() -> None:
        with proxied(real, tmp_path) as (url, proxy):
            server = await proxy.start()
            async with server, await open_journal(url) as cut, await open_journal(real) as whole:
                await cut.start("payer", QUESTION, run_id="run")
                driving = asyncio.create_task(drive_to_the_end(cut, agents_of(ledger, pause=0.1), "run"))
                while not ledger.rows():
                    await asyncio.sleep(0.02)
                proxy.silence()
                with pytest.raises(Busy):
                    await drive(agents_of(ledger), whole, "run")  # its connection still lives, for all the server knows
                outcome = await drive_to_the_end(whole, agents_of(ledger), "run", take_over=True)
                proxy.cut()
                with pytest.raises(Superseded):
                    await driving
                check(outcome, await all_events(whole, "run"), ledger, taken_over=True)

    asyncio.run(main())


async def watched(journal: Journal, run_id: str, seen: list[Any]) -> None:
    async for event in journal.events(run_id):
        seen.append(event)


def test_a_watcher_gets_every_event_once_though_drivers_die(url: str, tmp_path: Path) -> None:
    engine, seen = Engine(url, tmp_path), list[Any]()

    async def main() -> None:
        async with await open_journal(url) as journal:
            await journal.start("payer", QUESTION, run_id="run")
            watching = asyncio.create_task(watched(journal, "run", seen))
            dice = random.Random(3)
            for _ in range(6):
                child = await asyncio.to_thread(engine.worker)
                await asyncio.sleep(dice.uniform(0.05, 0.3))
                await asyncio.to_thread(child.kill)
            await drive_to_the_end(journal, agents_of(engine.ledger), "run")
            await asyncio.wait_for(watching, 20)
            assert seen == await all_events(journal, "run")
            check_events(seen)

    asyncio.run(main())
