"""Keys in the store: all gateways that share it agree within seconds, and a store that is away opens nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from gateway_client import run, serving
from typer.testing import CliRunner

from unbroken.clock import VirtualClock
from unbroken.errors import UserError
from unbroken_cli.commands import build
from unbroken_gateway.app import Gateway
from unbroken_gateway.config import read_config
from unbroken_gateway.keys import GatewayKey, NameTaken, NameUnknown, add_key, remove_key
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings
from unbroken_gateway.stored_keys import RECORD, StoredKeyRing, StoredKeys
from unbroken_gateway.stores import MemoryStore, StoreUnavailable, open_store
from unbroken_gateway.stores.records import Record


async def status(url: str, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models", headers=headers) as answer:
        return answer.status


async def comes_to(url: str, secret: str, wanted: int) -> None:
    async with asyncio.timeout(10):
        while await status(url, secret) != wanted:
            await asyncio.sleep(0.02)


def keys(*arguments: str) -> str:
    done = CliRunner().invoke(build("keys"), ["keys", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_two_gateways_on_one_store_have_the_same_keys_and_lose_a_revoked_one(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/store.db"
    models = (UpstreamSettings("m", "demo"),)
    settings = GatewaySettings(models, store=store, port=0, keys=True, keys_in_store=True, look_every=0.02)

    async def work() -> None:
        first = await asyncio.to_thread(keys, "create", "ann", "--store", store, "--admin")
        async with serving(settings) as one, serving(settings) as two:
            assert (await status(one, first), await status(two, first)) == (200, 200)
            assert await status(one, "ub-unknown") == 401
            second = await asyncio.to_thread(keys, "create", "bob", "--store", store)
            await comes_to(one, second, 200)
            await comes_to(two, second, 200)
            third = await asyncio.to_thread(keys, "rotate", "bob", "--keep", "0", "--store", store)
            await comes_to(two, third, 200)
            await comes_to(one, second, 401)
            listed = await asyncio.to_thread(keys, "list", "--store", store)
            assert [line.split("\t")[0] for line in listed.splitlines()] == ["ann", "bob"]
            assert third not in listed
            await asyncio.to_thread(keys, "revoke", "bob", "--store", store)
            await comes_to(one, third, 401)
            await comes_to(two, third, 401)
            assert await status(two, first) == 200

    run(work)
    data = (
        (tmp_path / "store.db").read_bytes() + (tmp_path / "store.db-wal").read_bytes()
        if (tmp_path / "store.db-wal").exists()
        else (tmp_path / "store.db").read_bytes()
    )
    assert b"ub-" not in data


class Away(MemoryStore):
    """A store that cannot be read while `away` is set."""

    away = ""

    async def record(self, name: str, known: int = 0) -> Record | None:
        if self.away:
            raise StoreUnavailable(self.away)
        return await super().record(name, known)


def test_a_store_that_is_away_keeps_the_last_keys_for_a_while_and_then_nothing_is_admitted() -> None:
    async def work() -> None:
        store, clock = Away(), VirtualClock(1_000_000)
        ring = StoredKeyRing(300, clock)
        with pytest.raises(StoreUnavailable, match="not read yet"):
            ring.find("ub-anything")
        secret = await StoredKeys(store).change(lambda keys: add_key(keys, GatewayKey("ann"), clock.now(), "the store"))
        await ring.read(store)
        assert ring.find(secret) is not None
        store.away = "it burns"
        await ring.read(store)
        clock.advance(299)
        assert ring.find(secret) is not None
        clock.advance(2)
        with pytest.raises(
            StoreUnavailable, match="no key can be checked, because the keys are in the store: it burns"
        ):
            ring.find(secret)
        store.away = ""
        await ring.read(store)
        assert ring.find(secret) is not None
        await store.replace_record(RECORD, b"not JSON", 1)
        await ring.read(store)
        assert ring.find(secret) is not None  # a damaged record counts as a store that is away
        clock.advance(301)
        with pytest.raises(StoreUnavailable, match="damaged"):
            ring.find(secret)

    run(work)


def test_without_keys_a_websocket_is_refused_as_any_request_and_the_process_counts_as_alive() -> None:
    async def work() -> None:
        store = Away()
        store.away = "it burns"
        settings = GatewaySettings((UpstreamSettings("m", "demo"),), port=0, keys=True, keys_in_store=True)
        async with serving(settings, gateway=Gateway(settings, store)) as url, aiohttp.ClientSession() as session:
            assert await status(url, "ub-any") == 503
            async with session.get(f"{url}/healthz", headers={"authorization": "Bearer ub-any"}) as answer:
                assert answer.status == 200  # or all gateways would be restarted while their store is away
            for path in ("/v1/responses", "/v1/realtime?model=m"):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await session.ws_connect(f"{url}{path}", headers={"authorization": "Bearer ub-any"})
                assert (refused.value.status, "Retry-After" in (refused.value.headers or {})) == (503, True)

    run(work)


def test_changes_at_the_same_time_are_all_made() -> None:
    async def work() -> None:
        store = MemoryStore()
        place = StoredKeys(store)
        names = [f"key{at}" for at in range(8)]
        await asyncio.gather(
            *(place.change(lambda keys, name=name: add_key(keys, GatewayKey(name), 1.0, "the store")) for name in names)
        )
        assert sorted(key.name for key in await place.list()) == names
        with pytest.raises(NameTaken, match="there is a key `key1` in the store already"):
            await place.change(lambda keys: add_key(keys, GatewayKey("key1"), 1.0, "the store"))
        with pytest.raises(NameUnknown, match="there is no key `no`"):
            await place.change(lambda keys: remove_key(keys, "no", "the store"))

    run(work)


def test_keys_in_a_store_that_forgets_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "unbroken.toml"
    file.write_text('[store]\nurl = "memory:"\n[keys]\nrequired = true\nin_store = true\n[[models]]\nmodel = "demo"\n')
    with pytest.raises(UserError, match=r"unbroken.toml:5: \[keys\]: `in_store` cannot be true with memory:"):
        read_config(file)


def test_a_file_and_a_store_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--file and --store cannot be used together"):
        CliRunner().invoke(build("keys"), ["keys", "list", "--file", "a", "--store", "b"], catch_exceptions=False)


def test_a_record_outlives_the_entries(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(f"sqlite:{tmp_path}/store.db", max_bytes=1 << 20)
        await store.replace_record("keys", b"kept", 0)
        for at in range(150):
            await store.put({f"entry{at}": bytes(10_000)}, 3600)
        assert await store.get(["entry0"]) == [None]
        assert await store.record("keys") == Record(1, b"kept")
        await store.aclose()

    run(work)
