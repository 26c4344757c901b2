"""Many who watch the same runs: each run is read once for all of them, and nobody who has left keeps a place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from postgres_server import empty_url
from watched_runs import agents, ask, journal_url, read_events, serving, until, working

from unbroken.asgi import CancelOnDisconnect, ClientConnection, ClientGone
from unbroken.errors import UserError
from unbroken_durable import Journal, drive, open_journal
from unbroken_durable.database import Database
from unbroken_durable.event_feeds import EventFeeds, event_bytes
from unbroken_gateway import GatewayKey, create_key
from unbroken_gateway.keys import KeyRing, revoke_key

Session = aiohttp.ClientSession


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return journal_url(tmp_path) if request.param == "sqlite" else empty_url()


def in_journal(url: str, work: Callable[[Journal], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await open_journal(url) as journal:
            await work(journal)

    asyncio.run(main())


async def expected(journal: Journal, run_id: str, after: int = 0) -> bytes:
    return b"".join([event_bytes(event) async for event in journal.events(run_id, after)])


async def watched(feeds: EventFeeds, journal: Journal, run_id: str, after: int = 0) -> bytes:
    return b"".join([data async for data in feeds.watch(await journal.run(run_id), after)])


class Counting:
    """A journal that counts how often a run is read."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def work(self, do: Callable[[Any], Any]) -> Any:
        return await self._journal.work(lambda database: do(_CountingDatabase(self, database)))


class _CountingDatabase:
    def __init__(self, journal: Counting, database: Database) -> None:
        self._journal = journal
        self._database = database

    def __getattr__(self, name: str) -> Any:
        self._journal.reads += name == "chunks"
        return getattr(self._database, name)


def test_a_run_is_read_once_for_all_who_watch_it(url: str) -> None:
    async def work(journal: Journal) -> None:
        await journal.start("support", "look", run_id="r")
        assert (await drive(agents(), journal, "r")).state == "answered"
        told = await expected(journal, "r")
        counting: Any = Counting(journal)
        feeds = EventFeeds(counting)
        assert await asyncio.gather(*(watched(feeds, journal, "r") for _ in range(100))) == [told] * 100
        assert await watched(feeds, journal, "r") == told  # it is there for a while
        assert counting.reads == 1

    in_journal(url, work)


@pytest.mark.parametrize("kept", [1, 2_000, 1_000_000])
def test_whatever_is_kept_nothing_is_missing_and_nothing_comes_twice(kept: int, url: str) -> None:
    async def work(journal: Journal) -> None:
        feeds = EventFeeds(journal, kept_of_one=kept, block=500)
        await journal.start("support", "look look", run_id="r")
        live = [asyncio.create_task(watched(feeds, journal, "r", after)) for after in (0, 3, 10)]
        await asyncio.sleep(0)
        assert (await drive(agents(), journal, "r")).state == "answered"
        assert await asyncio.gather(*live) == [await expected(journal, "r", after) for after in (0, 3, 10)]
        last = [event.seq async for event in journal.events("r")][-1]
        for after in range(last + 2):
            assert await watched(feeds, journal, "r", after) == await expected(journal, "r", after)

    in_journal(url, work)


def test_a_failed_run_that_was_driven_again_is_watched_to_its_new_end(url: str) -> None:
    async def work(journal: Journal) -> None:
        feeds = EventFeeds(journal)
        await journal.start("support", "fail", run_id="r")
        for drives in (1, 2, 3):
            assert (await drive(agents(), journal, "r")).state == "failed"
            told = await watched(feeds, journal, "r")
            assert told == await expected(journal, "r")
            assert told.count(b"event: run_failed") == drives

    in_journal(url, work)


def test_those_who_watch_get_the_error_of_the_journal(url: str) -> None:
    async def work(journal: Journal) -> None:
        feeds = EventFeeds(journal)
        await journal.start("support", "look", run_id="r")
        watching = [asyncio.create_task(watched(feeds, journal, "r")) for _ in range(3)]
        await asyncio.sleep(0.3)
        await journal.close()
        for each in watching:
            with pytest.raises(UserError, match="the journal is closed"):
                await asyncio.wait_for(each, 5)

    in_journal(url, work)


def test_a_run_of_which_something_is_missing_ends_its_own_streams_only(url: str) -> None:
    async def work(journal: Journal) -> None:
        feeds = EventFeeds(journal)
        for run_id in ("damaged", "intact"):
            await journal.start("support", "look", run_id=run_id)
            await drive(agents(), journal, run_id)
        number = (await journal.run("damaged")).number
        await journal.work(lambda database: database.change("DELETE FROM unbroken_chunks WHERE run = ?", number))
        intact = asyncio.create_task(watched(feeds, journal, "intact"))
        with pytest.raises(UserError, match="run `damaged` cannot be read: append 0 is not in the journal"):
            await watched(feeds, journal, "damaged")
        assert await intact == await expected(journal, "intact")

    in_journal(url, work)


def test_the_streams_of_a_revoked_key_end(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = {name: create_key(file, GatewayKey(name, tenant="acme")) for name in ("revoked", "kept")}

    async def main() -> None:
        with serving(tmp_path, KeyRing(file), keep_alive=0.1) as url:
            async with working(tmp_path) as journal, Session() as session:
                await journal.start("support", "refund", run_id="r", tenant="acme")
                await until(lambda: journal.runs(state="waiting"))
                assert (await ask(session, "GET", f"{url}/runs/r", **bearer("revoked")))[0] == 200
                streams = {
                    name: await session.get(f"{url}/runs/r/events", headers=bearer(name))
                    for name in ("revoked", "kept")
                }
                revoke_key(file, "revoked")
                text = await asyncio.wait_for(streams["revoked"].read(), 10)  # to its end
                assert b": still here" in text
                assert (await session.get(f"{url}/runs/r/events", headers=bearer("revoked"))).status == 401
                kept = streams["kept"].content
                for _ in range(15):
                    assert await asyncio.wait_for(kept.readany(), 5) != b""
                for stream in streams.values():
                    stream.close()

    def bearer(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {made[name]}"}

    asyncio.run(main())


def test_a_client_that_left_before_its_stream_began_keeps_no_place(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path, max_streams=2) as url:
            host, port = url.removeprefix("http://").split(":")
            async with working(tmp_path) as journal, Session() as session:
                await journal.start("support", "refund", run_id="r")
                await until(lambda: journal.runs(state="waiting"))

                async def leave_at_once() -> None:
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(f"GET /runs/r/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    await writer.drain()
                    await asyncio.sleep(0)
                    writer.transport.abort()

                await asyncio.gather(*(leave_at_once() for _ in range(50)))

                async def is_free() -> bool:
                    async with session.get(f"{url}/runs/r/events") as stream:
                        return stream.status == 200

                await until(is_free)
                assert len(await read_events(session, f"{url}/runs/r/events", most=1)) == 1

    asyncio.run(main())


def test_a_disconnect_before_anybody_looks_is_not_lost() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError

    async def main() -> None:
        signal = ClientConnection()
        signal.report()
        with CancelOnDisconnect({"extensions": {ClientConnection.NAME: signal}}, receive):
            raise AssertionError

    with pytest.raises(ClientGone):
        asyncio.run(main())
