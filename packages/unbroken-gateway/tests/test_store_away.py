"""A store that is missing, hangs or is full never makes an answer shorter: calls that cannot be held are not released,
and a request that needs the store is refused with a retry time. All other requests are answered."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import valkey_server
from gateway_client import CITIES, QUESTION, THREE_CALLS, Client, Inside, Reply, run, serving, settings_for
from gateway_client import upstream_settings as upstream_at

from unbroken.models.scripted import ScriptedModel
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.stores import StoreUnavailable, open_store
from unbroken_gateway.stores.store import NOTHING, MemoryStore
from unbroken_testing import Call, ScriptedServer, Step
from unbroken_wires.messages import Assistant, Request, ToolMessage, User
from unbroken_wires.wires import WIRES

SERIAL = (ClientProfile("serial", user_agent="serial"),)


class Hiccups(MemoryStore):
    """A store whose n-th operation of one kind fails."""

    def __init__(self, *failing: tuple[str, int]) -> None:
        super().__init__()
        self._failing = set(failing)
        self._done = {"get": 0, "put": 0}

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        self._fail("get")
        return await super().get(keys)

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        self._fail("put")
        await super().put(entries, ttl, append)

    def _fail(self, kind: str) -> None:
        self._done[kind] += 1
        if (kind, self._done[kind]) in self._failing:
            raise StoreUnavailable("it hiccups")


def three_calls_first(request: Request) -> list[str | Step]:
    return ["Done."] if isinstance(request.messages[-1], ToolMessage) else THREE_CALLS


async def stubborn(client: Client, work: Callable[[], Awaitable[Reply]]) -> Reply:
    """Retries as an SDK does."""
    while True:
        reply = await work()
        if reply.status == 200 and reply.response.verdict.whole:
            return reply
        assert reply.status == 200 or int(reply.headers["retry-after"]) >= 1
        work = client.ask
        if reply.status == 200:  # an error in the stream: what arrived is not an answer
            client.messages.pop()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", list(WIRES))
@pytest.mark.parametrize("failing", [("get", 1), ("get", 2), ("get", 3), ("put", 1), ("put", 2), ("put", 3)], ids=str)
def test_a_single_failure_of_the_store_loses_no_call(wire: str, stream: bool, failing: tuple[str, int]) -> None:
    async def story() -> None:
        model = ScriptedModel(three_calls_first, wire="anthropic-messages", loop_last=True)
        gateway = Inside({"m": model}, Hiccups(failing), clients=SERIAL)
        client = Client(gateway, wire, stream, parallel=None, headers={"User-Agent": "serial"})
        reply = await stubborn(client, lambda: client.ask(User.of(QUESTION)))
        given: list[str] = []
        while reply.response.calls and len(given) < 9:
            given += [arguments["city"] for _, arguments in reply.calls]
            reply = await stubborn(client, client.answer_calls)
        assert given == list(CITIES)
        turn = next(said for said in model.requests[-1].messages if isinstance(said, Assistant))
        assert [call.arguments for call in turn.calls] == [{"city": city} for city in CITIES]

    run(story)


class Away(MemoryStore):
    """A store that can be disconnected."""

    away = False

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        if self.away:
            raise StoreUnavailable("it is away")
        return await super().get(keys)


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
def test_a_result_for_our_own_id_is_not_answered_without_the_store(
    wire: str,
) -> None:
    calls = [Call("look", {"what": "bills"}, id="call_0"), Call("pay", {"ref": "1"}, id="call_1")]

    async def story() -> None:
        store = Away()
        model = ScriptedModel(calls, "Done.", wire="openai-chat")
        client = Client(Inside({"m": model}, store), wire)
        await client.ask(User.of(QUESTION))
        client.parallel = None
        store.away = True
        refused = await client.answer_calls()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        store.away = False
        released = await client.ask()
        assert released.calls == [("pay", {"ref": "1"})]
        assert len(model.requests) == 1

    run(story)


def test_a_turn_that_is_too_large_for_the_store_is_not_released(tmp_path: Path) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS) as upstream:
            store = f"sqlite:{tmp_path}/turns.db"
            settings = settings_for(upstream_at(upstream, "openai-chat"), store=store, entry_bytes=100)
            async with serving(settings) as url:
                reply = await Client(url, "openai-chat").ask(User.of(QUESTION))
                assert reply.status == 502
                assert "entry_bytes" in reply.body["error"]["message"]
                assert "retry-after" not in reply.headers
                assert "unbroken_held_turns_total{" not in await read(f"{url}/metrics")

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_response_that_cannot_be_stored_gets_no_id_to_continue_from(stream: bool) -> None:
    async def story() -> None:
        model = ScriptedModel("Hello.", loop_last=True)
        client = Client(Inside({"m": model}, Hiccups(("put", 1))), "openai-responses", stream, parallel=None)
        refused = await client.post({"model": "m", "input": "Hi.", "stream": stream})
        assert refused.status == 503 or not refused.response.verdict.whole
        given = await client.post({"model": "m", "input": "Hi.", "stream": stream})
        assert given.response.text == "Hello."
        alone = await client.post({"model": "m", "input": "Hi.", "stream": stream, "store": False})
        assert alone.response.text == "Hello."

    run(story)


@asynccontextmanager
async def on_valkey(*answers: Any) -> AsyncGenerator[tuple[str, Any, ScriptedServer]]:
    server = valkey_server.start()
    try:
        async with ScriptedServer(*answers) as upstream:
            address = f"redis://{server.host}:{server.port}/0"
            async with serving(settings_for(upstream_at(upstream, "openai-chat"), store=address)) as url:
                yield url, server, upstream
    finally:
        if server.is_running():
            server.stop()


def test_a_missing_store_affects_only_those_who_need_it() -> None:
    async def story() -> None:
        async with on_valkey(THREE_CALLS, THREE_CALLS, THREE_CALLS) as (url, server, _):
            client = Client(url, "openai-chat")
            await client.ask(User.of(QUESTION))
            assert await status_of(f"{url}/readyz") == 200
            server.stop()
            held = await client.answer_calls()
            assert (held.status, held.headers["Retry-After"]) == (503, "1")
            first = await Client(url, "anthropic-messages").ask(User.of(QUESTION))
            assert first.status == 503
            at_once = await Client(url, "openai-chat", parallel=None).ask(User.of(QUESTION))
            assert [arguments["city"] for _, arguments in at_once.calls] == list(CITIES)
            assert await status_of(f"{url}/readyz") == 503

    run(story)


def test_a_paused_store_costs_time_but_no_calls() -> None:
    async def story() -> None:
        async with on_valkey(THREE_CALLS, "Done.") as (url, server, upstream):
            client = Client(url, "openai-chat")
            given = (await client.ask(User.of(QUESTION))).calls
            pid = valkey_server.pid_of(server)
            os.kill(pid, signal.SIGSTOP)
            try:
                refused = await client.answer_calls()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert refused.status == 503
            while (reply := await client.ask()).status == 503:
                await asyncio.sleep(0.1)
            while reply.response.calls:
                given += reply.calls
                reply = await client.answer_calls()
            assert [arguments["city"] for _, arguments in given] == list(CITIES)
            assert len(upstream.requests) == 2

    run(story)


async def read(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


def test_a_deleted_or_replaced_file_of_the_store_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite would continue with a file that no other process sees."""
    path, aside = tmp_path / "store.db", tmp_path / "aside.db"

    async def story() -> None:
        store = open_store(f"sqlite:{path}")
        async with ScriptedServer(three_calls_first) as server:
            settings = settings_for(upstream_at(server, "openai-chat"), clients=SERIAL)
            async with serving(settings, store) as url, aiohttp.ClientSession(url) as session:

                async def ready() -> int:
                    async with session.get("/readyz") as answer:
                        return answer.status

                async def ask() -> Reply:
                    return await Client(url, "openai-chat", headers={"User-Agent": "serial"}).ask(User.of(QUESTION))

                assert (await ready(), (await ask()).status) == (200, 200)
                path.rename(aside)
                assert await ready() == 503
                refused = await ask()
                assert (refused.status, b"store does not answer" in refused.data) == (503, True)
                path.write_bytes(aside.read_bytes())
                assert await ready() == 503
                with pytest.raises(StoreUnavailable, match="deleted or replaced while it was open"):
                    await store.put({"a": b"1"}, 60)
                assert [record.message[:10] for record in caplog.records].count("store_gone") == 1
                aside.replace(path)
                assert (await ready(), (await ask()).status) == (200, 200)

    run(story)
