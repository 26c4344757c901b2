"""One contract for the three stores, then what each of them promises in addition."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import valkey_server
from hidden_packages import run_without
from hypothesis import given
from hypothesis import strategies as st

from unbroken import clock
from unbroken.clock import VirtualClock
from unbroken.errors import UserError
from unbroken_gateway.stores import EntryTooLarge, Store, StoreStats, StoreUnavailable, open_store
from unbroken_gateway.stores.handoff import Handoff
from unbroken_gateway.stores.records import MAX_BYTES, NO_RECORD, Record
from unbroken_gateway.stores.sqlite_file import APPLICATION
from unbroken_gateway.stores.store import FORMAT, PAUSE, Addition, CircuitBreakerStore, Limit, MemoryStore

HOUR = 3600.0


@dataclass
class Place:
    """The address of a store, and a clock that is moved by hand."""

    kind: str
    url: str
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(1_000_000))

    def open(self, max_bytes: int = 1 << 30, max_entry: int = 8 << 20) -> Store:
        return open_store(self.url, max_bytes=max_bytes, max_entry=max_entry, now=self.clock.now)

    @asynccontextmanager
    async def opened(self, **limits: int) -> AsyncGenerator[Store]:
        store = self.open(**limits)
        try:
            yield store
        finally:
            await store.aclose()

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.kind == "redis":  # has its own clock
            await asyncio.sleep(seconds)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "memory":
            return Place("memory", "memory:")
        case "sqlite":
            return Place("sqlite", f"sqlite:{tmp_path}/store.db")
        case _:
            return Place("redis", valkey_server.empty_url())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_values_come_back_in_the_order_of_the_keys(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({"a": b"1", "b": b"2"}, HOUR)
            assert await store.get(["b", "none", "a", "b"]) == [b"2", None, b"1", b"2"]

    asyncio.run(main())


def test_a_value_is_replaced(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({"a": b"1"}, HOUR)
            await store.put({"a": b"22"}, HOUR)
            assert await store.get(["a"]) == [b"22"]
            assert (await store.stats()).entries == 1

    asyncio.run(main())


def test_an_empty_request_returns_nothing(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({}, HOUR)
            assert await store.get([]) == []

    asyncio.run(main())


def test_a_value_is_gone_after_its_time(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({"short": b"1", "renewed": b"1"}, 0.005)
            await store.put({"long": b"2", "renewed": b"2"}, HOUR)
            await place.wait(0.01)
            assert await store.get(["short", "long", "renewed"]) == [None, b"2", b"2"]

    asyncio.run(main())


@pytest.mark.parametrize("ttl", [0.0, -1.0])
def test_a_ttl_of_zero_expires_at_once(place: Place, ttl: float) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({"a": b"1"}, ttl)
            await place.wait(0.003)
            assert await store.get(["a"]) == [None]

    asyncio.run(main())


def test_a_value_may_be_kept_for_ever(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({"a": b"1"}, float("inf"))
            assert await store.get(["a"]) == [b"1"]

    asyncio.run(main())


def test_of_a_put_with_a_value_that_is_too_large_nothing_is_stored(place: Place) -> None:
    async def main() -> None:
        async with place.opened(max_entry=1000) as store:
            await store.put({"a": b"old"}, HOUR)
            with pytest.raises(EntryTooLarge, match=r"entry `b` was not stored: 1001 bytes, 1000 are allowed"):
                await store.put({"a": b"new", "b": b"x" * 1001, "c": b"3"}, HOUR)
            assert await store.get(["a", "b", "c"]) == [b"old", None, None]
            await store.put({"b": b"x" * 1000}, HOUR)

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "a\x00b", "half \ud83d", "呼び出し 🔧", "a" * 10_000, "a\r\nSET x y"])
@pytest.mark.parametrize("value", [b"", b"\x00\xff\r\n", bytes(range(256)) * 400])
def test_any_text_is_a_key_and_any_bytes_a_value(place: Place, key: str, value: bytes) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.put({key: value}, HOUR)
            assert await store.get([key, key + "x"]) == [value, None]

    asyncio.run(main())


def test_two_hundred_at_once_do_not_mix(place: Place) -> None:
    async def one(store: Store, number: int) -> None:
        keys = [f"{number}-{part}" for part in range(3)]
        await store.put({key: key.encode() * 50 for key in keys}, HOUR)
        assert await store.get([*keys, f"{number}-3"]) == [*(key.encode() * 50 for key in keys), None]

    async def main() -> None:
        async with place.opened() as store:
            await asyncio.gather(*(one(store, number) for number in range(200)))
            assert (await store.stats()).entries == 600

    asyncio.run(main())


def test_a_cancelled_operation_does_not_affect_others(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            tasks = [asyncio.create_task(store.put({f"{n}": b"1"}, HOUR)) for n in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert ended[1::2] == [None] * 10
            assert await store.get([f"{n}" for n in range(1, 20, 2)]) == [b"1"] * 10

    asyncio.run(main())


def test_a_closed_store_raises_an_error(place: Place) -> None:
    async def main() -> None:
        store = place.open()
        await store.ping()
        await store.aclose()
        await store.aclose()
        for asked in (store.get(["a"]), store.put({"a": b"1"}, HOUR), store.stats(), store.ping()):
            with pytest.raises(StoreUnavailable, match=r"^store `\w+:.*` is closed$"):
                await asked

    asyncio.run(main())


def test_operations_before_the_close_are_completed(place: Place) -> None:
    async def main() -> None:
        store = place.open()
        puts = [asyncio.create_task(store.put({f"{n}": b"x" * 1000}, HOUR)) for n in range(300)]
        await asyncio.sleep(0)
        await store.aclose()
        assert await asyncio.gather(*puts) == [None] * 300
        if place.kind != "memory":
            async with place.opened() as again:
                assert await again.get([f"{n}" for n in range(300)]) == [b"x" * 1000] * 300

    asyncio.run(main())
    assert [thread.name for thread in threading.enumerate() if thread.name == "unbroken-store"] == []


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=8), max_size=3),
            st.integers(0, 5),
        ),
        st.tuples(st.just("get"), st.lists(st.sampled_from("abcdef"), max_size=4)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
        st.tuples(st.just("reopen")),
    ),
    max_size=20,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(steps=STEPS)
def test_a_store_is_a_dict_whose_entries_expire(kind: str, steps: list[tuple[Any, ...]]) -> None:
    async def main(place: Place) -> None:
        expected: dict[str, tuple[float, bytes]] = {}
        store = place.open()
        for step in steps:
            match step:
                case ("put", entries, ttl):
                    await store.put(entries, ttl)
                    expected |= {key: (place.clock.now() + ttl, value) for key, value in entries.items()}
                case ("get", keys):
                    alive = {key: value for key, (end, value) in expected.items() if end > place.clock.now()}
                    assert await store.get(keys) == [alive.get(key) for key in keys]
                case ("wait", seconds):
                    place.clock.advance(seconds)
                case _ if kind == "sqlite":
                    await store.aclose()
                    store = place.open()
                case _:
                    pass
        await store.aclose()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Place(kind, "memory:" if kind == "memory" else f"{folder}/store.db")))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_ten_thousand_entries_stay_below_the_limit(kind: str, path: Path) -> None:
    limit = 2 << 20

    async def main() -> None:
        async with Place(kind, "memory:" if kind == "memory" else str(path)).opened(max_bytes=limit) as store:
            most = 0
            for batch in range(100):
                one_batch = (store.put({f"{batch}-{n}": os.urandom(1024)}, HOUR) for n in range(100))
                await asyncio.gather(*one_batch)
                stats = await store.stats()
                most = max(most, stats.bytes)
                assert await store.get([f"{batch}-99"]) != [None]
            assert limit * 0.7 < most <= limit
            assert stats.entries < 2000  # pyright: ignore[reportPossiblyUnboundVariable] - the loop has run
            assert await store.get(["0-0", "50-0"]) == [None, None]

    asyncio.run(main())
    if kind == "sqlite":
        assert path.stat().st_size <= limit + 65536


def test_one_large_entry_evicts_others(path: Path) -> None:
    async def main() -> None:
        async with Place("sqlite", str(path)).opened(max_bytes=2 << 20) as store:
            for n in range(1000):
                await store.put({f"{n}": b"x" * 1000}, HOUR)
            await store.put({"large": b"x" * 1_000_000}, HOUR)
            await store.put({"after": b"1"}, HOUR)
            assert (await store.stats()).bytes <= 2 << 20
            assert [value is not None for value in await store.get(["0", "large", "after"])] == [False, True, True]
            with pytest.raises(EntryTooLarge):  # of which two would not fit
                await store.put({"larger": b"x" * 1_100_000}, HOUR)

    asyncio.run(main())


def test_memory_forgets_its_bookkeeping_of_expired_entries() -> None:
    async def main() -> None:
        clock = VirtualClock()
        store = MemoryStore(max_bytes=100_000, now=clock.now)
        for n in range(20_000):
            await store.put({"the same": b"1", f"{n}": b"x" * 100}, HOUR)
        known = store._expiring  # pyright: ignore[reportPrivateUsage] - its growth shows nowhere else
        assert len(known) <= 2 * (await store.stats()).entries + 1000
        clock.advance(2 * HOUR)
        await store.put({"new": b"1"}, HOUR)
        assert await store.stats() == StoreStats(1, 404)

    asyncio.run(main())


def test_expired_rows_are_removed_with_later_puts(path: Path) -> None:
    async def main() -> None:
        place = Place("sqlite", str(path))
        async with place.opened() as store:
            await asyncio.gather(*(store.put({f"{n}": b"1"}, 60) for n in range(700)))
            place.clock.advance(61)
            assert (await store.stats()).entries == 0
            for n in range(3):
                place.clock.advance(2)
                await store.put({f"new {n}": b"1"}, HOUR)
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT count(*) FROM entries").fetchone() == (3,)
        connection.close()

    asyncio.run(main())


def test_a_store_that_was_not_closed_ends_its_thread(path: Path) -> None:
    store = open_store(str(path))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "unbroken-store"]
    del store
    gc.collect()
    thread.join(timeout=5)
    assert not thread.is_alive()


def test_one_store_serves_one_loop_after_another(path: Path) -> None:
    store = open_store(str(path))
    asyncio.run(store.put({"a": b"1"}, HOUR))
    assert asyncio.run(store.get(["a"])) == [b"1"]
    assert clock.run(store.get(["a"]), start=time.time() + 2 * HOUR) == [None]
    asyncio.run(store.aclose())


@dataclass
class Errand:
    done: asyncio.Future[Any]
    size: int = 1


def test_waiting_operations_are_executed_together() -> None:
    async def main() -> None:
        handoff = Handoff[Errand](together=4, bytes_together=10)
        errands = [Errand(asyncio.get_running_loop().create_future(), size) for size in (1, 1, 1, 1, 1, 20, 1)]
        for errand in errands:
            handoff.ask(errand)
        handoff.stop()
        assert [handoff.take() for _ in range(4)] == [errands[:4], errands[4:6], errands[6:], []]

    asyncio.run(main())


class Deaf(asyncio.SelectorEventLoop):
    """Threads cannot wake it: as if the waking thread never got the interpreter's lock."""

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return asyncio.Handle(callback, args, self, context)


def test_a_loop_that_gets_no_answer_from_the_thread_waits_for_it(path: Path) -> None:
    store = open_store(str(path))

    async def main() -> None:
        async with asyncio.timeout(10):
            await store.put({"a": b"1"}, HOUR)
            assert await store.get(["a"]) == [b"1"]

    try:
        with asyncio.Runner(loop_factory=Deaf) as runner:
            runner.run(main())
    finally:
        asyncio.run(store.aclose())


def test_a_busy_loop_does_not_starve_the_store(path: Path) -> None:
    """The loop works in pieces of a millisecond and polls in between: once a put took 27 s then."""

    async def work() -> None:
        while True:
            end = time.perf_counter() + 0.001
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0)

    async def main() -> float:
        slowest = 0.0
        async with Place("sqlite", str(path)).opened() as store, asyncio.TaskGroup() as group:
            working = group.create_task(work())
            for n in range(200):
                began = time.perf_counter()
                await store.put({f"{n}": b"x" * 1000}, HOUR)
                slowest = max(slowest, time.perf_counter() - began)
            working.cancel()
        return slowest

    assert asyncio.run(main()) < 2


WRITER = """
import asyncio, sys
from unbroken_gateway.stores import open_store

async def main(path, name, count):
    store = open_store(path)
    for n in range(count):
        await store.put({f"{name}-{n}": b"x" * 1000, f"{name}-{n}-too": b"y"}, 3600)
        sys.stdout.write(f"{n}\\n")
        sys.stdout.flush()
    await store.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def write(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, path, name, str(count)], stdout=subprocess.PIPE, text=True)


def keys_of(name: str, count: int) -> list[str]:
    return list(chain.from_iterable((f"{name}-{n}", f"{name}-{n}-too") for n in range(count)))


async def gone(path: Path, keys: list[str]) -> list[str]:
    async with Place("sqlite", str(path)).opened() as store:
        return [key for key, value in zip(keys, await store.get(keys), strict=True) if value is None]


def test_processes_can_open_and_write_a_new_file_at_the_same_time(path: Path) -> None:
    writers = [write(path, name, 300) for name in "abc"]
    said = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert [len(lines.splitlines()) for lines in said] == [300] * 3
    assert asyncio.run(gone(path, [key for name in "abc" for key in keys_of(name, 300)])) == []


def test_what_a_killed_process_had_put_is_stored(path: Path) -> None:
    for round, lines in enumerate([0, 1, 40, 300]):
        writer = write(path, f"{round}", 100_000)
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate(timeout=30)[0]
        count = lines + rest.count("\n")
        assert asyncio.run(gone(path, keys_of(f"{round}", count))) == []


def test_only_the_owner_can_read_a_new_file(path: Path) -> None:
    async def main() -> None:
        async with Place("sqlite", str(path)).opened() as store:
            await store.put({"a": b"1"}, HOUR)
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == ["store.db", "store.db-shm", "store.db-wal"]
            assert {file.stat().st_mode & 0o777 for file in files} == {0o600}

    asyncio.run(main())


def make(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def truncate(path: Path) -> None:
    asyncio.run(fill(path))
    os.truncate(path, path.stat().st_size // 2 + 100)


async def fill(path: Path) -> None:
    async with Place("sqlite", str(path)).opened() as store:
        await store.put({f"{n}": b"x" * 1000 for n in range(100)}, HOUR)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, r"it is a folder; name a file in it"),
    "in no folder": (lambda path: path.parent.rmdir(), r"there is no folder /.+; make it, or name another"),
    "in a file": (lambda path: [path.parent.rmdir(), path.parent.write_text("x")], r"Not a directory; name a file"),
    "a text": (lambda path: path.write_text("Dear diary, " * 100), r"file is not a database; move the file away"),
    "cut": (truncate, r"malformed; move the file away, or name another"),
    "another's": (lambda path: make(path, "CREATE TABLE t (x)"), r"is a database of another program: name a new file"),
    "newer": (
        lambda path: make(path, f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={FORMAT + 1}"),
        rf"is of format {FORMAT + 1}, and {FORMAT} can be read: update unbroken, or name a new file",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_file_is_refused_and_left_unchanged(case: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "store.db"
    path.parent.mkdir()
    prepare, said = UNUSABLE[case]
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UserError, match=rf"^store `sqlite:{path}` .*{said}"):
        open_store(f"sqlite:{path}")
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_of_an_older_format_is_cleared_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(fill(path))
    make(path, f"PRAGMA user_version={FORMAT - 1}")
    with caplog.at_level(logging.WARNING, "unbroken.gateway"):
        assert asyncio.run(gone(path, ["1"])) == ["1"]
    assert caplog.messages == [
        f"store `sqlite:{path}` had the old format {FORMAT - 1} and was cleared for format {FORMAT}"
    ]
    asyncio.run(fill(path))
    assert asyncio.run(gone(path, ["1"])) == []


def test_a_file_that_breaks_while_in_use_makes_the_store_unavailable(path: Path) -> None:
    async def main() -> None:
        async with Place("sqlite", str(path)).opened() as store:
            await store.put({"a": b"1"}, HOUR)
            make(path, "DROP TABLE entries")
            for asked in (store.get(["a"]), store.put({"a": b"1", "b": b"2"}, HOUR), store.stats(), store.ping()):
                with pytest.raises(StoreUnavailable, match=rf"^store `sqlite:{path}` failed: no such table"):
                    await asked

    asyncio.run(main())


def test_an_error_in_the_thread_of_the_store_fails_that_operation_alone(path: Path) -> None:
    async def story() -> None:
        async with Place("sqlite", str(path)).opened() as store:
            with pytest.raises(StoreUnavailable):
                await store.add([Addition("a", {"n": cast("int", object())}, HOUR)])
            await store.put({"b": b"2"}, HOUR)
            assert await store.get(["b"]) == [b"2"]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_a_full_disk_fails_only_the_puts_of_that_time(path: Path) -> None:
    async def main() -> None:
        async with Place("sqlite", str(path)).opened() as store:
            await store.put({"before": b"1"}, HOUR)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
            try:
                with pytest.raises(StoreUnavailable, match=rf"^store `sqlite:{path}` failed: .*disk"):
                    await store.put({"small": b"1", "large": b"x" * 1_000_000}, HOUR)
                assert await store.get(["before", "small"]) == [b"1", None]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            await store.put({"after": b"1"}, HOUR)
            assert await store.get(["before", "small", "large", "after"]) == [b"1", None, None, b"1"]

    asyncio.run(main())


@pytest.mark.parametrize("spelling", ["sqlite:{}", "sqlite://{}", "sqlite:///{}", "SQLite:{}", "{}", "sqlite:store.db"])
def test_a_path_can_be_written_in_several_ways(spelling: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    asyncio.run(open_store(spelling.format(path)).aclose())
    assert path.exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "the store has no address: give `memory:`, `sqlite:PATH` or `redis://HOST:PORT/DB`"),
        ("postgres://me:hunter2@host/db", "store `postgres:` is of an unknown kind: give `memory:`, "),
        ("memory:x", "store `memory:` is of an unknown kind"),
        ("sqlite:", "store `sqlite:` names no file: give `sqlite:PATH`, or `memory:` for none"),
        ("sqlite::memory:", "store `sqlite::memory:` names no file"),
        ("sqlite://folder/store.db", "store `sqlite://folder/store.db` names a machine: give `sqlite:PATH` or "),
        ("redis:", "the address of the store on Redis cannot be read: give `redis://[USER:PASSWORD@]HOST:PORT/DB`"),
        ("redis://", "cannot be read"),
        ("redis://host:port/0", "cannot be read"),
        ("redis://host/hunter2", "cannot be read"),
        ("redis://host:6379/0?hunter2=1", "cannot be read"),
        ("redis://host:6379/0?db=hunter2", "cannot be read"),
        ("redis://:hunter2/x@host:6379/0", "cannot be read"),
        ("rediss://:hunter2#x@host:6379/0", "cannot be read"),
        ("valkey://[hunter2", "cannot be read"),
    ],
)
def test_an_invalid_address_is_refused_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        open_store(url)
    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_without_the_redis_package_the_error_explains_what_to_install() -> None:
    program = (
        "from unbroken_gateway.stores import open_store\n"
        "try: open_store('redis://127.0.0.1/0')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert run_without("redis", program).stdout == (
        "UserError a store on Redis or Valkey needs the package redis: pip install 'unbroken[redis]'"
        " (in a checkout: pip install ./packages/* 'unbroken[redis]')\n"
    )


def own_server(use: Callable[[Any], Coroutine[Any, Any, None]], config: dict[str, str] | None = None) -> None:
    server = valkey_server.start(config=config)
    try:
        asyncio.run(use(server))
    finally:
        server.terminate()


def test_redis_keys_name_their_owner_and_expire() -> None:
    url = valkey_server.empty_url()
    client: Any = importlib.import_module("redis").Redis.from_url(url)

    async def main() -> None:
        async with Place("redis", url.replace("redis:", "valkey:")).opened() as store:
            await store.put({"a": b"1", "b": b"2"}, HOUR)

    asyncio.run(main())
    assert sorted(client.keys()) == [b"unbroken:2:a", b"unbroken:2:b"]
    assert 3_590_000 < client.pttl("unbroken:2:a") <= 3_600_000
    client.close()


def test_two_gateways_share_a_server() -> None:
    async def main() -> None:
        place = Place("redis", valkey_server.empty_url())
        async with place.opened() as one, place.opened() as other:
            await one.put({"a": b"1"}, HOUR)
            assert await other.get(["a"]) == [b"1"]

    asyncio.run(main())


def test_a_server_that_was_restarted_is_used_again() -> None:
    async def main(server: Any) -> None:
        port = server.port
        async with Place("redis", f"redis://127.0.0.1:{port}/0").opened() as store:
            await asyncio.gather(*(store.put({f"{n}": b"1"}, HOUR) for n in range(5)), store.ping(), store.stats())
            server.terminate()
            for asked in (store.get(["0"]), store.put({"0": b"1"}, HOUR), store.stats(), store.ping()):
                with pytest.raises(StoreUnavailable, match=rf"^store `redis://127.0.0.1:{port}/0` failed: "):
                    await asked
            again = valkey_server.start(port)
            try:
                await store.ping()
                await store.put({"0": b"2"}, HOUR)
                assert await store.get(["0", "1"]) == [b"2", None]
            finally:
                again.terminate()

    own_server(main)


def test_no_error_contains_a_password() -> None:
    async def main(server: Any) -> None:
        address = f"127.0.0.1:{server.port}/0"
        with importlib.import_module("redis").Redis(port=server.port) as client:
            client.config_set("requirepass", "hunter2@home")
        async with Place("redis", f"redis://:hunter2%40home@{address}").opened() as store:
            await store.put({"a": b"1"}, HOUR)
            assert "hunter2" not in repr(vars(store)["_client"])
        async with Place("redis", f"redis://:hunter3@{address}").opened() as store:
            with pytest.raises(StoreUnavailable, match=rf"^store `redis://{address}` failed: ") as raised:
                await store.ping()
            assert "hunter3" not in str(raised.value)

    own_server(main)


def test_a_full_server_makes_the_store_unavailable_for_puts() -> None:
    async def main(server: Any) -> None:
        async with Place("redis", f"redis://127.0.0.1:{server.port}/0").opened() as store:
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                await store.put({"a": b"1", "b": b"2"}, HOUR)
            assert await store.get(["a", "b"]) == [None, None]
            with pytest.raises(StoreUnavailable, match="maxmemory"):
                await store.ping()  # it exists, but cannot be used

    own_server(main, {"maxmemory": "1", "maxmemory-policy": "noeviction"})


def test_a_silent_server_is_not_waited_for() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Place("redis", f"redis://127.0.0.1:{port}/0").opened() as store:
            for asked in (store.put({"a": b"1"}, HOUR), store.get(["a"]), store.ping()):
                with pytest.raises(StoreUnavailable, match=rf"^store `redis://127.0.0.1:{port}/0` "):
                    await asked
        assert asyncio.get_running_loop().time() <= 10
        server.close()
        await server.wait_closed()

    clock.run(main)


def test_an_operation_behind_a_hanging_one_does_not_wait_twice() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Place("redis", f"redis://127.0.0.1:{port}/0").opened() as store:
            asked = [store.put({"a": b"1"}, HOUR), store.get(["a"]), store.put({"b": b"1"}, HOUR)]
            told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in told] == [StoreUnavailable] * 3
        assert asyncio.get_running_loop().time() < 4
        server.close()
        await server.wait_closed()

    clock.run(main)


class Slow(MemoryStore):
    """Answers after `takes` seconds; with an error while it is `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = 0.0
        self.away = True
        self.asked = 0

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        self.asked += 1
        await asyncio.sleep(self.takes)
        if self.away:
            raise StoreUnavailable("no answer")
        return await super().get(keys)


async def fails(store: CircuitBreakerStore) -> float:
    """Returns after how many seconds."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="no answer"):
        await store.get(["a"])
    return asyncio.get_running_loop().time() - began


def test_a_hanging_store_is_waited_for_once_and_tried_by_one_at_a_time() -> None:
    async def main() -> None:
        slow = Slow()
        slow.takes = 3.0
        store = CircuitBreakerStore(slow)
        assert await fails(store) == 3.0
        assert await asyncio.gather(*(fails(store) for _ in range(40))) == [0.0] * 40
        assert slow.asked == 1
        await asyncio.sleep(PAUSE)
        assert sorted(await asyncio.gather(*(fails(store) for _ in range(40)))) == [0.0] * 39 + [3.0]
        assert slow.asked == 2
        slow.away, slow.takes = False, 0.0
        await fails(store)
        await asyncio.sleep(PAUSE)
        assert await store.get(["a"]) == [None]
        assert await store.get(["a"]) == [None]

    clock.run(main)


def test_a_store_that_fails_at_once_is_tried_each_time() -> None:
    async def main() -> None:
        slow = Slow()
        store = CircuitBreakerStore(slow)
        for _ in range(3):
            assert await fails(store) == 0.0
        assert slow.asked == 3

    clock.run(main)


def test_a_cancelled_attempt_leaves_the_next_to_others() -> None:
    async def main() -> None:
        slow = Slow()
        slow.takes = 3.0
        store = CircuitBreakerStore(slow)
        await fails(store)
        await asyncio.sleep(PAUSE)
        trying = asyncio.create_task(store.get(["a"]))
        await asyncio.sleep(1)
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
        slow.away = False
        assert await store.get(["a"]) == [None]

    clock.run(main)


def test_a_failing_store_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        slow = Slow()
        store = CircuitBreakerStore(slow)
        for _ in range(5):
            await fails(store)
            await store.put({"a": b"1"}, HOUR)
        slow.away = False
        for _ in range(5):
            await store.get(["a"])

    clock.run(main)
    assert caplog.messages == ["the store cannot be read: no answer", "the store can be read again"]


# Counters


def test_counters_are_added_up_and_read_by_group(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            first = [Addition("day", {"ann/cost": 5, "bob/cost": 2**60}, HOUR), Addition("total", {"cost": -1}, HOUR)]
            assert await store.add(first) == [{"ann/cost": 5, "bob/cost": 2**60}, {"cost": -1}]
            assert await store.add([Addition("day", {"bob/cost": 2**60 + 1}, HOUR)]) == [{"bob/cost": 2**61 + 1}]
            read = await store.counters(["total", "none", "day"])
            assert read == [{"cost": -1}, {}, {"ann/cost": 5, "bob/cost": 2**61 + 1}]
            assert await store.add([]) == []
            assert await store.counters([]) == []
            assert await store.counters(["day", "total"], ["cost", "ann/cost"]) == [{"ann/cost": 5}, {"cost": -1}]

    asyncio.run(main())


def test_an_addition_that_is_repeated_with_its_id_counts_once(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            for _ in range(3):
                assert await store.add([Addition("day", {"é\udc80": 7}, HOUR)], once="a") == [{"é\udc80": 7}]
            assert await store.add([Addition("day", {"é\udc80": 7}, HOUR)], once="b") == [{"é\udc80": 14}]

    asyncio.run(main())


def test_a_reservation_is_made_if_every_limit_has_room_and_otherwise_nothing_is(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.add([Addition("day", {"ann": 6, "é\udc80": 1}, HOUR), Addition("held", {"ann": -3}, HOUR)])
            ann = Limit((("day", "ann"), ("held", "ann"), ("none", "ann")), 10)
            team = Limit((("day", "é\udc80"), ("held", "é\udc80")), 8)
            more = [Addition("held", {"é\udc80": 7}, HOUR), Addition("new", {"a": 1}, HOUR)]
            assert await store.reserve(more, [ann, team]) == [[6, -3, 0], [1, 0]]
            assert await store.reserve(more, [ann, team]) == [[6, -3, 0], [1, 7]]  # the team's is full
            assert await store.counters(["held", "new"]) == [{"ann": -3, "é\udc80": 7}, {"a": 1}]
            assert await store.reserve([Addition("held", {"ann": 4}, 0.005)], [ann]) == [[6, -3, 0]]
            assert await store.reserve([], []) == []
            assert await store.reserve([Addition("short", {"ann": 4}, 0.005)], [ann]) == [[6, 1, 0]]
            await place.wait(0.01)
            assert await store.reserve([], [Limit((("short", "ann"),), 1)]) == [[0]]
            below = Limit((("held", "less"), ("day", "ann")), 6)
            await store.add([Addition("held", {"less": -5}, HOUR)])
            assert await store.reserve([Addition("new", {"a": 1}, HOUR)], [below]) == [[-5, 6]]
            assert await store.counters(["new"]) == [{"a": 1}]  # less than nothing is reserved: no room

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_reservations_of_several_processes_at_once_never_pass_the_limit(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else valkey_server.empty_url()
    program = """
import asyncio, sys
from unbroken_gateway.stores import open_store
from unbroken_gateway.stores.store import Addition, Limit
async def main():
    store = open_store(sys.argv[1])
    more, limit = [Addition("day", {"a": 1}, 60.0)], Limit((("day", "a"),), 100)
    for n in range(20):
        await asyncio.gather(*(store.reserve(more, [limit]) for _ in range(5)))
    await store.aclose()
asyncio.run(main())
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, url]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]

    async def read() -> list[dict[str, int]]:
        store = open_store(url)
        counted = await store.counters(["day"])
        await store.aclose()
        return counted

    assert asyncio.run(read()) == [{"a": 100}]


def test_a_group_of_counters_is_gone_after_its_time_and_the_longest_time_counts(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store:
            await store.add([Addition("short", {"a": 1}, 0.005), Addition("long", {"a": 1}, HOUR)])
            await store.add([Addition("long", {"a": 1}, 0.005)])
            await place.wait(0.01)
            assert await store.counters(["short", "long"]) == [{}, {"a": 2}]
            await place.wait(1)
            assert await store.add([Addition("short", {"a": 3}, HOUR)]) == [{"a": 3}]

    asyncio.run(main())


def test_counters_are_never_evicted(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        await store.add([Addition("day", {f"{n}": n for n in range(500)}, HOUR)])
        for n in range(300):
            await store.put({f"entry{n}": bytes(10_000)}, HOUR)
        assert (await store.get(["entry0"])) == [None]
        (counted,) = await store.counters(["day"])
        assert sum(counted.values()) == sum(range(500))
        await store.aclose()

    asyncio.run(main(open_store(f"sqlite:{tmp_path}/store.db", max_bytes=1 << 20)))
    asyncio.run(main(open_store("memory:", max_bytes=1 << 20)))


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_additions_of_several_processes_at_once_are_all_counted(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else valkey_server.empty_url()
    program = """
import asyncio, sys
from unbroken_gateway.stores import open_store
from unbroken_gateway.stores.store import Addition
async def main():
    store = open_store(sys.argv[1])
    for n in range(20):
        await asyncio.gather(*(store.add([Addition("day", {"a": n, "b": 1}, 60.0)]) for _ in range(5)))
    await store.aclose()
asyncio.run(main())
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, url]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]

    async def read() -> dict[str, int]:
        store = open_store(url)
        (counted,) = await store.counters(["day"])
        await store.aclose()
        return counted

    assert asyncio.run(read()) == {"a": 2 * 5 * sum(range(20)), "b": 200}


def test_a_sum_beyond_64_bits_fails_and_is_not_rounded(path: Path) -> None:
    async def main() -> None:
        store = open_store(f"sqlite:{path}")
        await store.add([Addition("day", {"a": 2**62}, HOUR)])
        with pytest.raises(StoreUnavailable, match="CHECK constraint"):
            await store.add([Addition("day", {"a": 2**62}, HOUR), Addition("day", {"b": 1}, HOUR)], once="x")
        assert await store.counters(["day"]) == [{"a": 2**62}]
        await store.aclose()

    asyncio.run(main())


def test_a_record_is_replaced_only_if_nobody_was_faster(place: Place) -> None:
    async def main() -> None:
        async with place.opened() as store, place.opened() as other:
            assert await store.record("keys") is None
            assert await store.replace_record("keys", b"one", 0)
            assert not await store.replace_record("keys", b"late", 0)
            assert await store.record("keys") == Record(1, b"one")
            assert await store.record("keys", known=1) is None
            assert await store.replace_record("keys", b"two", 1)
            assert not await store.replace_record("keys", b"late", 1)
            assert await store.record("keys", known=1) == Record(2, b"two")
            assert await store.record("other", known=7) == NO_RECORD  # it was there, and is gone
            with pytest.raises(EntryTooLarge):
                await store.replace_record("keys", bytes(MAX_BYTES + 1), 2)
            if place.kind != "memory":
                assert await other.record("keys") == Record(2, b"two")
                done = await asyncio.gather(*(each.replace_record("keys", b"x", 2) for each in (store, other) * 5))
                assert sum(done) == 1

    asyncio.run(main())
