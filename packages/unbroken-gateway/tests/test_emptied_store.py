"""A store that comes back empty is noticed: known keys and spent budgets stay in force until they are written back or
the loss is accepted, and nothing older ever overwrites anything newer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import valkey_server
from gateway_client import run, serving, settings_for, upstream_settings
from typer.testing import CliRunner

from unbroken.clock import VirtualClock
from unbroken_cli.commands import build
from unbroken_gateway.additions import Additions
from unbroken_gateway.keys import GatewayKey, add_key, remove_key
from unbroken_gateway.settings import BudgetSettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.spending.budgets import minute_group
from unbroken_gateway.stored_keys import StoredKeyRing, StoredKeys
from unbroken_gateway.stores import MemoryStore, Store, StoreUnavailable, open_store
from unbroken_gateway.stores.marked import EMPTIED, REPLACED, UNKNOWN, MarkedStore, StoreEmptied
from unbroken_gateway.stores.sharded import ShardedStore
from unbroken_gateway.stores.store import Addition, Limit
from unbroken_testing import Say, ScriptedServer, Uses

SPENT = "spent:total"
LONG = 86400.0


class Losing(MemoryStore):
    """A store that can be emptied while it is in use, and be away."""

    away = False

    async def counters(self, groups: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, int]]:
        if self.away:
            raise StoreUnavailable("it is away")
        return await super().counters(groups, names)

    def lose_everything(self) -> None:
        MemoryStore.__init__(self)

    def lose_record(self, name: str) -> None:
        del self._records[name]

    def take(self, other: Losing) -> None:
        """From now on it is this other store."""
        self._records, self._counters = other._records, other._counters


async def spend(store: Store, amount: int, name: str = "usd all") -> int:
    ((counted),) = await store.add([Addition(SPENT, {name: amount}, LONG)])
    return counted[name]


async def spent(store: Store, name: str = "usd all") -> int:
    return (await store.counters([SPENT], [name]))[0].get(name, 0)


async def create(store: Store, name: str) -> str:
    return await StoredKeys(store).change(lambda keys: add_key(keys, GatewayKey(name), 1.0, "the store"))


async def names(store: Store) -> list[str]:
    return [key.name for key in await StoredKeys(store).list()]


def test_what_was_spent_stays_spent_and_what_comes_is_added() -> None:
    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        assert await spend(marked, 90) == 90
        store.lose_everything()
        assert await spent(marked) == 90
        assert marked.problem == EMPTIED
        assert (await spend(marked, 5), await spent(marked)) == (95, 95)
        await marked.decide("restore")
        assert (marked.problem, await spent(marked), await spent(store)) == ("", 95, 95)

    run(work)


def test_of_the_running_minute_at_most_as_much_again_passes_while_and_after_the_loss_is_decided() -> None:
    """What a minute has counted is not written back: it is over before an operator has looked."""
    group, limit = minute_group(0), Limit(((minute_group(0), "requests all"),), 3)

    async def passed(store: Store) -> int:
        values = [await store.reserve([Addition(group, {"requests all": 1}, 60)], [limit]) for _ in range(10)]
        return sum(limit.has_room(found) for (found, *_) in values)

    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        await spend(marked, 90)
        assert await passed(marked) == 3
        store.lose_everything()
        assert await passed(marked) == 3
        assert marked.problem == EMPTIED
        assert await passed(marked) == 0
        await marked.decide("restore")
        assert (await passed(marked), await spent(marked)) == (0, 90)

    run(work)


def test_an_amount_that_is_added_before_anybody_looked_counts_on_top_of_the_lost_ones() -> None:
    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        await spend(marked, 90)
        store.lose_everything()
        assert await spend(marked, 20) == 110

    run(work)


def test_the_most_that_any_gateway_knew_is_written_back_whoever_writes_first() -> None:
    async def work() -> None:
        store = Losing()
        one, other = MarkedStore(store), MarkedStore(store)
        await spend(one, 50)
        await spend(other, 20)  # the first one does not know of it
        await spend(other, 7, "usd key:ann")
        await spend(one, 3, "usd key:bob")
        store.lose_everything()
        await one.look()
        await spend(other, 1)
        await asyncio.gather(one.decide("restore"), other.look())
        for each in (one, other, one):
            assert await spent(each) == 71
            assert (await spent(each, "usd key:ann"), await spent(each, "usd key:bob")) == (7, 3)
            assert each.problem == ""

    run(work)


def test_two_gateways_that_write_back_at_the_same_time_add_nothing_twice() -> None:
    async def work() -> None:
        store = Losing()
        gateways = [MarkedStore(store) for _ in range(4)]
        for at, each in enumerate(gateways):
            await spend(each, 10, f"usd key:{at % 2}")
        store.lose_everything()
        await asyncio.gather(*(each.look() for each in gateways))
        await asyncio.gather(*(each.decide("restore") for each in gateways), return_exceptions=True)
        for each in gateways:
            await each.look()
            assert ([await spent(each, f"usd key:{at}") for at in range(2)], each.problem) == ([20, 20], "")

    run(work)


def test_a_revoked_key_does_not_come_back() -> None:
    async def work() -> None:
        store = Losing()
        fresh, stale = MarkedStore(store), MarkedStore(store)
        await create(fresh, "ann")
        await create(fresh, "bob")
        await stale.record("keys")
        await StoredKeys(fresh).change(lambda keys: remove_key(keys, "bob", "the store"))
        await fresh.record("keys")
        store.lose_everything()
        for _ in range(2):
            await stale.look()
            await fresh.look()
        await stale.look()
        assert (stale.may_restore, fresh.may_restore) == (False, True)
        with pytest.raises(StoreEmptied, match="another gateway knows later changes"):
            await stale.decide("restore")
        await fresh.decide("restore")
        await stale.look()
        assert stale.problem == ""
        assert await names(stale) == ["ann"]

    run(work)


def test_a_gateway_does_not_write_back_before_others_had_time_to_tell_what_they_know() -> None:
    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        await spend(marked, 1)
        store.lose_everything()
        await marked.look()
        assert not marked.may_restore
        await marked.look()
        assert marked.may_restore

    run(work)


def test_keys_stay_valid_and_no_key_is_created_that_would_lock_the_others_out() -> None:
    async def work() -> None:
        store, clock = Losing(), VirtualClock(1_000_000)
        marked, ring = MarkedStore(store), StoredKeyRing(300, clock)
        secret = await create(marked, "ann")
        await ring.read(marked)
        store.lose_everything()
        for _ in range(10):
            clock.advance(299)
            await marked.look()
            await ring.read(marked)
        assert ring.find(secret) is not None
        with pytest.raises(StoreEmptied, match="admin store restore"):
            await create(marked, "bob")
        store.away = True  # then others may decide, and this gateway does not see it
        await ring.read(marked)
        clock.advance(301)
        with pytest.raises(StoreUnavailable, match="it is away"):
            ring.find(secret)
        store.away = False
        await ring.read(marked)
        assert ring.find(secret) is not None
        await marked.decide("restore")
        await create(marked, "bob")
        await ring.read(marked)
        assert [key.name for key in ring.all()] == ["ann", "bob"]

    run(work)


def test_a_first_key_with_the_version_of_the_lost_ones_is_not_taken_for_them() -> None:
    async def work() -> None:
        store, ring = Losing(), StoredKeyRing(300, VirtualClock(1_000_000))
        marked = MarkedStore(store)
        secret = await create(marked, "ann")
        await ring.read(marked)
        store.lose_everything()
        await create(store, "bob")  # version 1 again, by somebody who does not know of marks
        await marked.look()
        await ring.read(marked)
        assert ring.find(secret) is not None
        with pytest.raises(StoreEmptied, match="the store has other `keys` by now, so nothing is written back"):
            await marked.decide("restore")
        await marked.decide("accept")
        await ring.read(marked)
        assert ring.find(secret) is None
        assert [key.name for key in ring.all()] == ["bob"]

    run(work)


def test_a_store_that_is_emptied_again_before_it_was_read_again_has_lost_nothing() -> None:
    async def work() -> None:
        store, ring = Losing(), StoredKeyRing(300, VirtualClock(1_000_000))
        one, other = MarkedStore(store), MarkedStore(store)
        secret = await create(one, "ann")
        await ring.read(one)
        await other.record("keys")
        for _ in range(3):
            store.lose_everything()
            await one.look()
            await other.look()
            await one.decide("restore")
        await other.look()
        await ring.read(one)
        assert ring.find(secret) is not None
        assert await names(other) == ["ann"]

    run(work)


def test_whoever_lists_the_keys_first_leaves_them_for_the_others_to_read() -> None:
    async def work() -> None:
        store, ring = Losing(), StoredKeyRing(300, VirtualClock(1_000_000))
        marked = MarkedStore(store)
        secret = await create(marked, "ann")
        await ring.read(marked)
        store.lose_everything()
        await create(store, "bob")  # of the same version
        await marked.look()
        await marked.decide("accept")
        assert await names(marked) == ["bob"]
        await ring.read(marked)
        assert ring.find(secret) is None

    run(work)


def test_the_loss_is_accepted_for_all_gateways() -> None:
    async def work() -> None:
        store = Losing()
        one, other, late = MarkedStore(store), MarkedStore(store), MarkedStore(store)
        for each in (one, other, late):
            await spend(each, 30)
        store.lose_everything()
        await one.look()
        await other.look()
        await one.decide("accept")
        for each in (one, other, late):
            assert (await spent(each), each.problem) == (0, "")

    run(work)


def test_a_gateway_that_starts_on_a_store_that_others_found_empty_refuses_instead_of_beginning_anew() -> None:
    async def work() -> None:
        store = Losing()
        old = MarkedStore(store)
        secret = await create(old, "ann")
        await spend(old, 30)
        store.lose_everything()
        await old.look()
        new, ring = MarkedStore(store), StoredKeyRing(300, VirtualClock(1_000_000))
        with pytest.raises(StoreEmptied, match="only gateways that used it before"):
            await spent(new)
        await ring.read(new)
        with pytest.raises(StoreUnavailable, match=r"no key can be checked.* the store was emptied"):
            ring.find(secret)
        with pytest.raises(StoreEmptied):
            await create(new, "bob")
        assert new.problem == UNKNOWN
        await old.decide("restore")
        await new.look()
        await ring.read(new)
        assert ring.find(secret) is not None
        assert (await spent(new), new.problem) == (30, "")

    run(work)


def test_another_store_is_never_written_to_by_itself() -> None:
    async def work() -> None:
        store, others = Losing(), Losing()
        marked = MarkedStore(store)
        await create(marked, "ann")
        await create(MarkedStore(others), "bob")
        store.take(others)
        for _ in range(3):
            await marked.look()
        assert (marked.problem, marked.may_restore) == (REPLACED, False)
        assert await names(others) == ["bob"]

    run(work)


def test_a_record_that_is_evicted_alone_is_noticed_too() -> None:
    async def work() -> None:
        store, clock = Losing(), VirtualClock(1_000_000)
        marked, ring = MarkedStore(store), StoredKeyRing(300, clock)
        secret = await create(marked, "ann")
        await ring.read(marked)
        store.lose_record("keys")
        await ring.read(marked)
        assert marked.problem == EMPTIED
        assert ring.find(secret) is not None
        await marked.decide("restore")
        assert await names(marked) == ["ann"]

    run(work)


def test_a_store_that_never_held_anything_may_be_emptied() -> None:
    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        await marked.record("keys")
        for _ in range(2):
            await marked.add([Addition(minute_group(0), {"requests all": 1}, 60)])
            await marked.counters([minute_group(0)], ["requests all"])
            store.lose_everything()
            await marked.ping()
        assert marked.problem == ""

    run(work)


def test_gateways_that_begin_at_the_same_time_agree_on_one_mark() -> None:
    async def work() -> None:
        store = Losing()
        gateways = [MarkedStore(store) for _ in range(5)]
        await asyncio.gather(*(spend(each, 1) for each in gateways))
        for each in gateways:
            await each.look()
        store.lose_everything()
        await gateways[0].look()
        await gateways[0].decide("restore")
        for each in gateways:
            await each.look()
        for each in gateways:
            assert (await spent(each), each.problem) == (5, "")

    run(work)


def test_added_models_are_written_back() -> None:
    async def work() -> None:
        store, additions = Losing(), Additions()
        marked = MarkedStore(store)

        async def add(tables: dict[str, Any]) -> None:
            tables["teams"] = {"blue": {}}

        await additions.change(marked, add)
        await additions.read(marked)
        store.lose_everything()
        await marked.look()
        assert not await additions.read(marked)
        await marked.decide("restore")
        await additions.read(marked)
        assert additions.tables == {"teams": {"blue": {}}}

    run(work)


@pytest.mark.parametrize(("lost", "problem"), [(0, EMPTIED), (1, "")])
def test_of_several_servers_the_one_with_the_keys_and_the_spending_counts(lost: int, problem: str) -> None:
    async def work() -> None:
        shards = [Losing(), Losing()]
        marked = MarkedStore(ShardedStore(shards))
        await spend(marked, 30)
        shards[lost].lose_everything()
        assert (await spent(marked), marked.problem) == (30, problem)

    run(work)


def test_it_is_logged_once_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        store = Losing()
        marked = MarkedStore(store)
        await spend(marked, 30)
        store.lose_everything()
        for _ in range(3):
            await marked.look()
            await spent(marked)

    run(work)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [f"store_emptied: {EMPTIED}"]
    assert "`unbroken admin store restore`" in EMPTIED


# Whole gateways on a real server


@dataclass
class Place:
    urls: Sequence[str]
    server: Any
    ann: str
    root: str

    async def ask(self, secret: str, at: int = 0) -> int:
        return (await self.call("POST", "/v1/chat/completions", secret, BODY, at=at))[0]

    async def call(self, method: str, path: str, secret: str, body: Any = None, *, at: int = 0) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.urls[at]}{path}", headers=headers, json=body) as answer,
        ):
            return answer.status, await answer.json(content_type=None)

    async def ready(self, wanted: int) -> None:
        async with asyncio.timeout(20):
            while {(await self.call("GET", "/readyz", self.root, at=at))[0] for at in range(len(self.urls))} != {
                wanted
            }:
                await asyncio.sleep(0.05)


BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@asynccontextmanager
async def place(**more: Any) -> AsyncGenerator[Place]:
    """Two gateways with keys and budgets in one Valkey. One answer costs 10 cents."""
    server = valkey_server.start()
    address = f"redis://{server.host}:{server.port}/0"
    try:
        store = open_store(address)
        ann, root = await create(store, "ann"), await StoredKeys(store).change(make_root)
        await store.aclose()
        async with ScriptedServer([Say("Hello."), Uses(input=90, output=10)], loop_last=True) as upstream:
            row = upstream_settings(upstream, "openai-chat", price={"input": 1000.0, "output": 1000.0})
            budget = BudgetSettings("a dime", read_allowance("$0.1"), key="ann")
            settings = settings_for(
                row,
                store=address,
                keys=True,
                keys_in_store=True,
                budgets=(budget,),
                spend_batch=0.05,
                look_every=0.2,
                **more,
            )
            async with serving(settings) as one, serving(settings) as two:
                here = Place([one, two], server, ann, root)
                yield here
                server = here.server  # it may be another one by now
    finally:
        server.terminate()


def make_root(keys: Any) -> str:
    return add_key(keys, GatewayKey("root", admin=True, operator=True), 1.0, "the store")


def test_a_flushed_server_is_reported_everywhere_and_the_operator_decides() -> None:
    async def work() -> None:
        async with place() as here:
            assert await here.ask(here.ann) == 200
            await until_spent(here)
            valkey_server.empty(here.server)
            await here.ready(503)
            assert (await here.ask(here.ann), await here.ask(here.root), await here.ask(here.root, 1)) == (
                402,
                200,
                200,
            )
            reason = (await here.call("GET", "/readyz", here.root))[1]["reason"]
            assert reason.startswith("the store was emptied, and its keys")
            assert (await here.call("GET", "/readyz", ""))[1]["reason"] == reason  # as a balancer asks, without a key
            status = (await here.call("GET", "/status.json", here.root))[1]
            assert (status["status"]["alert"], status["view"]["alert"]) == (reason, reason)
            assert (await here.call("GET", "/admin/v1/version", here.root))[1]["store_problem"] == reason
            refused, said = await here.call("POST", "/admin/v1/keys", here.root, {"name": "bob"})
            assert (refused, "admin store restore" in said["error"]["message"]) == (503, True)
            decided = await here.call("POST", "/admin/v1/store", here.root, {"decision": "restore"})
            assert decided == (200, {"decision": "restore"})
            await here.ready(200)
            assert [await here.ask(here.ann, at) for at in range(2)] == [402, 402]
            assert [await here.ask(here.root, at) for at in range(2)] == [200, 200]
            again, said = await here.call("POST", "/admin/v1/store", here.root, {"decision": "accept"})
            assert (again, "nothing to decide" in said["error"]["message"]) == (409, True)

    run(work)


async def until_spent(here: Place) -> None:
    """Until both gateways know it."""
    for at in range(2):
        async with asyncio.timeout(10):
            while await here.ask(here.ann, at) != 402:
                await asyncio.sleep(0.05)


def test_a_server_that_was_restarted_empty_is_written_back_by_itself_if_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with place(when_emptied="restore") as here:
            await here.ask(here.ann)
            await until_spent(here)
            port = here.server.port
            here.server.terminate()
            await here.ready(503)
            here.server = valkey_server.start(port)
            await here.ready(200)
            assert [await here.ask(here.ann, at) for at in range(2)] == [402, 402]
            assert await here.ask(here.root, 1) == 200

    run(work)
    assert any(record.getMessage().startswith("store_emptied") for record in caplog.records)


def test_the_command_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with place() as here:
            valkey_server.empty(here.server)
            await here.ready(503)
            monkeypatch.setenv("UNBROKEN_ADMIN_KEY", here.root)
            command = ["admin", "store", "restore", "--url", here.urls[1]]
            done = await asyncio.to_thread(CliRunner().invoke, build("admin"), command)
            assert (done.exit_code, done.stdout) == (0, "what the store has now is in force\n")
            await here.ready(200)
            assert await here.ask(here.ann) == 200

    run(work)
