"""Several servers as one store: keys are spread, a part that fails fails alone, and the loss of one part is noticed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence

import pytest
import valkey_server
from gateway_client import QUESTION, THREE_CALLS, Client, Inside, run

from unbroken import clock
from unbroken.errors import UserError
from unbroken.models.scripted import ScriptedModel
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.stores import Store, StoreUnavailable, check_store, open_store
from unbroken_gateway.stores import redis as redis_store
from unbroken_gateway.stores.sharded import ShardedStore
from unbroken_gateway.stores.store import MARK, NOTHING, Addition, MemoryStore, part_of
from unbroken_testing import Step
from unbroken_wires.messages import Request, ToolMessage, User

SERIAL = (ClientProfile("serial", user_agent="serial"),)
KEYS = [f"turn:{number:032x}" for number in range(400)]


class Shard(MemoryStore):
    """A part that can be away: at once, or after five seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.hangs = False
        self.asked = 0

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        await self._answer()
        return await super().get(keys)

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        await self._answer()
        await super().put(entries, ttl, append)

    async def ping(self) -> None:
        await self._answer()

    def lose_everything(self) -> None:
        self._entries.clear()

    @property
    def has_list(self) -> bool:
        return any(key.startswith("said:") for key in self._entries)

    async def _answer(self) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(5.0)
        if self.away or self.hangs:
            raise StoreUnavailable("it is away")


def keys_in(part: int, parts: int) -> list[str]:
    return [key for key in KEYS if part_of(key, parts) == part]


def test_keys_are_spread_evenly_and_read_back_in_order() -> None:
    async def story() -> None:
        shards = [Shard() for _ in range(4)]
        store = ShardedStore(shards)
        await store.put({key: key.encode() for key in KEYS}, 60.0, {f"said:{key[5:]}": b"listed" for key in KEYS})
        assert await store.get(KEYS[::-1]) == [key.encode() for key in KEYS[::-1]]
        assert await store.get(["turn:unknown", KEYS[0]]) == [None, KEYS[0].encode()]
        entries = [(await shard.stats()).entries for shard in shards]
        assert sum(entries) == 2 * len(KEYS) == (await store.stats()).entries
        assert min(entries) > len(KEYS) / 4

    run(story)


def test_a_turn_and_its_hold_are_in_the_same_part() -> None:
    assert all(part_of(key, 7) == part_of(f"hold:{key}", 7) for key in KEYS)
    assert [part_of(f"{MARK}{part}", 3) for part in range(3)] == [0, 1, 2]


def test_a_part_that_hangs_delays_only_its_own_keys_and_only_once() -> None:
    async def story() -> None:
        shards = [Shard() for _ in range(3)]
        store = ShardedStore(shards)
        shards[1].hangs = True
        loop = asyncio.get_running_loop()
        with pytest.raises(StoreUnavailable):
            await store.get([keys_in(0, 3)[0], keys_in(1, 3)[0]])
        waited, asked = loop.time(), shards[1].asked
        assert waited == 5.0
        assert await store.get([keys_in(0, 3)[0], keys_in(2, 3)[0]]) == [None, None]
        with pytest.raises(StoreUnavailable):
            await store.put({keys_in(1, 3)[0]: b""}, 60.0)
        assert loop.time() == waited
        assert shards[1].asked == asked

    clock.run(story)


def test_a_list_points_only_to_what_was_stored_before_it() -> None:
    async def story() -> None:
        shards = [Shard(), Shard()]
        store = ShardedStore(shards)
        turn, listed = keys_in(0, 2)[0], f"said:{keys_in(1, 2)[0][5:]}"
        shards[0].away = True
        with pytest.raises(StoreUnavailable):
            await store.put({turn: b"turn"}, 60.0, {listed: b"x"})
        assert await shards[1].get([listed]) == [None]
        shards[0].away = False
        await store.put({turn: b"turn"}, 60.0, {listed: b"x"})
        assert await store.get([turn, listed]) == [b"turn", b"x"]

    run(story)


def test_it_is_ready_while_one_part_can_be_used() -> None:
    async def story() -> None:
        shards = [Shard(), Shard()]
        store = ShardedStore(shards)
        shards[0].away = True
        await store.ping()
        shards[1].away = True
        with pytest.raises(StoreUnavailable):
            await store.ping()

    run(story)


def three_calls_first(request: Request) -> list[str | Step]:
    return ["Done."] if isinstance(request.messages[-1], ToolMessage) else THREE_CALLS


@pytest.mark.parametrize("lost", range(3))
def test_the_loss_of_one_part_makes_turns_without_ids_doubtful(lost: int) -> None:
    """Another turn with the same words may be among what was lost, so the one that is left may not be the client's."""

    async def story() -> None:
        shards = [Shard() for _ in range(3)]
        model = ScriptedModel(three_calls_first, wire="gemini", loop_last=True)
        gateway = Inside({"m": model}, ShardedStore(shards), clients=SERIAL)
        client = Client(gateway, "gemini", parallel=None, headers={"User-Agent": "serial"})
        await client.ask(User.of(QUESTION))
        known = client.branch()
        assert (await known.answer_calls()).headers["x-unbroken-turn"] == "handed 2/3"
        listed = shards[lost].has_list
        shards[lost].lose_everything()
        told = (await client.answer_calls()).headers.get("x-unbroken-turn", "")
        assert told.startswith("lost; ") or (told == "handed 2/3" and not listed)

    run(story)


async def hold_a_conversation(url: str) -> int:
    """With two gateways in turns. Returns the number of entries in the store."""
    stores: list[Store] = [open_store(url), open_store(url)]
    model = ScriptedModel(three_calls_first, wire="openai-chat", loop_last=True)
    gateways = [Inside({"m": model}, store, clients=SERIAL) for store in stores]
    client = Client(gateways[0], "openai-chat", parallel=None, headers={"User-Agent": "serial"})
    reply = await client.ask(User.of(QUESTION))
    while reply.response.calls:
        client.url = gateways[1]
        reply = await client.answer_calls()
        assert reply.status == 200, reply.data
    assert "lost" not in reply.headers.get("x-unbroken-turn", "")
    assert [len(said.results) for said in client.messages if isinstance(said, ToolMessage)] == [1, 1, 1]
    await stores[0].ping()
    spent = [Addition("spend", {"input": 7}, 60.0), Addition("day", {"input": 7}, 60.0)]
    await stores[0].add(spent, once="r1")
    await stores[1].add(spent, once="r1")
    assert await stores[1].add(spent) == [{"input": 14}, {"input": 14}]
    assert await stores[0].counters(["spend", "unknown"]) == [{"input": 14}, {}]
    assert await stores[0].replace_record("keys", b"a", 0)
    assert not await stores[1].replace_record("keys", b"b", 0)
    entries = (await stores[0].stats()).entries
    for store in stores:
        await store.aclose()
    return entries


def test_gateways_on_two_real_servers_find_each_others_turns() -> None:
    other = valkey_server.start()
    try:
        assert run(lambda: hold_a_conversation(f"{valkey_server.empty_url()} redis://{other.host}:{other.port}/0")) >= 8
    finally:
        other.terminate()


def test_gateways_on_a_real_cluster_find_each_others_turns() -> None:
    servers = valkey_server.start_cluster()
    try:
        assert run(lambda: hold_a_conversation(f"redis+cluster://{servers[1].host}:{servers[1].port}/0")) >= 8
    finally:
        for server in servers:
            server.terminate()


@pytest.mark.parametrize("times", [1, 3])
def test_an_answer_that_arrived_while_the_gateway_was_busy_is_read(times: int) -> None:
    """The loop comes to the answer and to the end of the time limit at once, or is still busy when the limit was
    extended."""

    async def story() -> bytes:
        store = redis_store.RedisStore("redis://127.0.0.1:1/0", patience=0.06)
        here, server = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        loop = asyncio.get_running_loop()

        def answer_while_busy(left: int) -> None:
            time.sleep(0.1)
            if left > 1:
                loop.call_soon(answer_while_busy, left - 1)
            else:
                server.sendall(b"x")

        try:
            async with store.asking():
                loop.call_soon(answer_while_busy, times)
                return await reader.readexactly(1)
        finally:
            writer.close()
            server.close()
            await store.aclose()

    assert run(story) == b"x"


def test_a_cluster_is_checked_without_contacting_it() -> None:
    check_store("redis+cluster://192.0.2.1:6379/0")
    with pytest.raises(UserError):
        check_store("redis+cluster://nowhere:a/0")


@pytest.mark.parametrize("url", ["redis://a:1/0 sqlite:x.db", "redis://a:1/0 redis://a:1/0"])
def test_a_list_of_stores_has_different_servers_only(url: str) -> None:
    with pytest.raises(UserError):
        open_store(url)
