"""Crashes of durable runs that take too long for the default suite: kills at every append and at random moments with
two workers, a driver that is paused, a database that restarts, a network that is cut. `make test-durable` runs them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from durable_runs import (
    QUESTION,
    Ledger,
    agents_of,
    all_events,
    check,
    check_events,
    count_appends,
    drive_to_the_end,
    run_in_a_child,
)
from postgres_server import empty_url, own_server

from unbroken import Allow
from unbroken.durable import AlreadyAnswered, Busy, Journal, Superseded, drive, open_journal
from unbroken.durable.worker import Worker

KILLS = 200


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}" if request.param == "sqlite" else empty_url()


def finish(url: str, ledger: Ledger, run_id: str, **options: Any) -> None:
    async def main() -> None:
        async with await open_journal(url) as journal:
            outcome = await drive_to_the_end(journal, agents_of(ledger), run_id, **options)
            check(outcome, await all_events(journal, run_id), ledger)

    asyncio.run(main())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_at_any_append_ends_as_if_nothing_had_happened(url: str, after: bool, tmp_path: Path) -> None:
    appends = count_appends(url, Ledger(tmp_path / "counted.db"), tmp_path)
    assert appends >= 10
    ended: list[int] = []
    for number in range(1, appends + 1):
        ledger = Ledger(tmp_path / f"ledger-{number}.db")
        ended.append(run_in_a_child(url, ledger, f"run-{number}", (number, after)))
        finish(url, ledger, f"run-{number}")
    assert ended[: appends - 3] == [signal.SIGKILL] * (appends - 3)


def fork(work: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = asyncio.run(work())
        finally:
            os._exit(code)
    return child


def worker(url: str, ledger: Ledger, run_id: str) -> Any:
    """A process with a worker; it also allows what waits, and ends with the run."""

    async def main() -> int:
        async with await open_journal(url) as journal:
            working = asyncio.create_task(Worker(agents_of(ledger), journal).run())
            while (row := await journal.run(run_id)).state not in ("answered", "failed"):
                if row.state == "waiting":
                    with contextlib.suppress(AlreadyAnswered):
                        await journal.answer(run_id, {call.id: Allow() for call in row.pending})
                await journal.changed(0.05)
            working.cancel()
            await asyncio.wait([working])
            return 0

    return main


def test_two_workers_that_are_killed_at_random_moments(url: str, tmp_path: Path) -> None:
    dice, kills, runs = random.Random(20), 0, 0
    while kills < KILLS:
        ledger, run_id = Ledger(tmp_path / f"ledger-{runs}.db"), f"run-{runs}"
        runs += 1

        async def begin(run_id: str = run_id) -> None:
            async with await open_journal(url) as journal:
                await journal.start("payer", QUESTION, run_id=run_id)

        asyncio.run(begin())
        children = [fork(worker(url, ledger, run_id)) for _ in range(2)]
        for _ in range(8):
            time.sleep(dice.uniform(0.02, 0.2))
            place = dice.randrange(2)
            os.kill(children[place], signal.SIGKILL)
            _, status = os.waitpid(children[place], 0)
            kills += os.WIFSIGNALED(status)
            children[place] = fork(worker(url, ledger, run_id))
        for child in children:
            _, status = os.waitpid(child, 0)
            assert (os.WIFSIGNALED(status), os.WEXITSTATUS(status)) == (False, 0)
        finish(url, ledger, run_id)
    assert runs >= KILLS // 8


def test_nothing_of_a_driver_that_was_paused_enters_the_journal(url: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")

    async def slowly() -> int:
        async with await open_journal(url) as journal:
            await journal.start("payer", QUESTION, run_id="run")
            try:
                await drive_to_the_end(journal, agents_of(ledger, pause=0.3), "run")
            except Superseded:
                return 33
            return 0

    child = fork(slowly)
    while not ledger.rows():
        time.sleep(0.02)
    os.kill(child, signal.SIGSTOP)
    finish(url, ledger, "run", take_over=True)

    async def stored() -> tuple[int, list[Any]]:
        async with await open_journal(url) as journal:
            return (await journal.run("run")).chunks, await all_events(journal, "run")

    before = asyncio.run(stored())
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) == 33
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
                check(outcome, await all_events(whole, "run"), ledger)

    asyncio.run(main())


async def watched(journal: Journal, run_id: str, seen: list[Any]) -> None:
    async for event in journal.events(run_id):
        seen.append(event)


def test_whoever_watches_gets_every_event_once_though_drivers_die(url: str, tmp_path: Path) -> None:
    ledger, seen = Ledger(tmp_path / "ledger.db"), list[Any]()

    async def main() -> None:
        async with await open_journal(url) as journal:
            await journal.start("payer", QUESTION, run_id="run")
            watching = asyncio.create_task(watched(journal, "run", seen))
            dice = random.Random(3)
            for _ in range(6):
                child = fork_now(worker(url, ledger, "run"))
                await asyncio.sleep(dice.uniform(0.05, 0.3))
                os.kill(child, signal.SIGKILL)
                await asyncio.to_thread(os.waitpid, child, 0)
            await drive_to_the_end(journal, agents_of(ledger), "run")
            await asyncio.wait_for(watching, 20)
            assert seen == await all_events(journal, "run")
            check_events(seen)

    asyncio.run(main())


def fork_now(work: Any) -> int:
    """From within a loop: the child begins a loop of its own."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            asyncio.events._set_running_loop(None)  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - it is the parent's
            code = asyncio.run(work())
        finally:
            os._exit(code)
    return child
