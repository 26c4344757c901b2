"""Held turns can be seen: on the status page, in a header, and, when their time is over, in the log and the metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_client import QUESTION, THREE_CALLS, Client, Clock, run, serving, settings_for, stage, upstream_settings

from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.stores.store import NOTHING, MemoryStore
from unbroken_gateway.turns.pending import ExpiryWatch, PendingTurns
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import User

EXPIRES = "x-unbroken-expires"


class Shared(MemoryStore):
    """A store that outlives its gateways and knows which keys were written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def put(self, entries: Mapping[str, bytes], ttl: float, append: Mapping[str, bytes] = NOTHING) -> None:
        self.written += entries
        await super().put(entries, ttl, append)

    async def aclose(self) -> None:
        pass


async def read(url: str, key: str = "") -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return await (answer.json() if url.endswith("json") else answer.text())


@pytest.mark.parametrize("stream", [False, True])
def test_each_response_that_leaves_calls_held_has_a_header_with_the_seconds_of_the_wait(stream: bool) -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, "Done.", serial=True, hold_timeout=50.5) as on:
            client = on.client("anthropic-messages", stream)
            first = await client.ask(User.of(QUESTION))
            assert first.headers[EXPIRES] == "51"
            assert (await client.again()).headers[EXPIRES] == "51"
            assert (await client.answer_calls()).headers[EXPIRES] == "51"
            last_call = await client.answer_calls()
            assert last_call.headers["x-unbroken-turn"] == "handed 3/3"
            assert EXPIRES not in last_call.headers  # no call waits any more
            done = await client.answer_calls()
            assert (EXPIRES in done.headers) == stream  # a stream begins before the calls are known

    run(story)


def test_a_status_page_shows_what_waits_since_when_and_until_when_to_its_own_key_and_to_operators(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        file = str(tmp_path / "keys.json")
        ann, bob, ops = (create_key(file, GatewayKey(name, operator=name == "ops")) for name in ("ann", "bob", "ops"))
        more: dict[str, Any] = {"keys": True, "keys_file": file, "hold_timeout": 50.0}
        async with stage("openai-chat", THREE_CALLS, serial=True, **more) as on:
            began = on.clock.time
            client = on.client("openai-chat", headers={"authorization": f"Bearer {ann}"})
            await client.ask(User.of(QUESTION))
            on.clock.time += 10
            await client.answer_calls()
            for key in (ann, ops):
                (turn,) = (await read(f"{on.url}/status.json", key))["status"]["held"]
                assert (turn["since"], turn["expires"], turn["waiting"]) == (began, began + 60, 1)
                assert (turn["released"], turn["calls"], turn["key"]) == ("get_weather", ["get_weather"], "ann")
            assert (await read(f"{on.url}/status.json", bob))["status"]["held"] == []

    run(story)


def test_a_turn_whose_client_does_not_return_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, "Done.", serial=True, hold_timeout=0.5) as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            on.clock.time += 5
            counted = 'unbroken_expired_turns_total{alias="m"} 1.0'
            async with asyncio.timeout(10):
                while counted not in await read(f"{on.url}/metrics"):
                    await asyncio.sleep(0.01)
            assert (await read(f"{on.url}/status.json"))["status"]["held"] == []
            assert (await client.answer_calls()).headers["x-unbroken-turn"] == "lost; expired; 2 calls"
            assert counted in await read(f"{on.url}/metrics")

    with caplog.at_level(logging.INFO, "unbroken.gateway"):
        run(story)
    assert caplog.text.count("serial_expired session=") == 1
    assert "calls=2 alias=m key=-" in caplog.text


def test_a_gateway_that_gets_the_late_result_of_another_ones_turn_counts_it() -> None:
    async def story() -> None:
        clock, store = Clock(), Shared()
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat", serial=True), hold_timeout=50.0)
            async with serving(settings, store, clock) as url:
                client = Client(url, "openai-chat")
                await client.ask(User.of(QUESTION))
            clock.time += 60
            async with serving(settings, store, clock) as url:
                client.url = url
                assert (await client.answer_calls()).headers["x-unbroken-turn"] == "lost; expired; 2 calls"
                assert 'unbroken_expired_turns_total{alias="m"} 1.0' in await read(f"{url}/metrics")

    run(story)


def test_a_turn_that_another_process_continued_is_not_reported_by_the_first_one() -> None:
    async def story() -> None:
        clock, store, counted = Clock(), Shared(), list[str]()
        async with ScriptedServer(THREE_CALLS) as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat", serial=True), hold_timeout=50.0)
            async with serving(settings, store, clock) as url:
                client = Client(url, "openai-chat")
                await client.ask(User.of(QUESTION))
                (turn,) = {key.removeprefix("hold:") for key in store.written if key.startswith("hold:")}
                pending = PendingTurns(50.0, clock)
                pending.hold(turn, 2, "m")
                watch = ExpiryWatch(pending, TurnStore(store, 1000.0, 50.0, clock), 50.0, counted.append)
                clock.time += 40
                await client.answer_calls()  # the hold is renewed
                clock.time += 20
                await watch.look()
                assert counted == []
                pending.hold(turn, 1, "m")
                clock.time += 60
                await watch.look()
                await watch.look()
                assert counted == ["m"]

    run(story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_result_may_be_an_error_for_its_client_and_a_new_message_goes_on(stream: bool) -> None:
    async def story() -> None:
        more: dict[str, Any] = {"hold_timeout": 50.0, "on_expired": "error"}
        async with stage("openai-chat", THREE_CALLS, "Hello.", serial=True, **more) as on:
            client = on.client("openai-chat", stream)
            await client.ask(User.of(QUESTION))
            on.clock.time += 51
            late = await client.answer_calls()
            assert (late.status, late.headers["x-unbroken-turn"]) == (400, "lost; expired; 2 calls")
            assert "waits 50 s for it" in late.body["error"]["message"]
            assert "gave up 2 other calls of that turn" in late.body["error"]["message"]
            assert len(on.asked) == 1  # no model was asked
            reply = await client.ask(User.of("Hello?"))
            assert (reply.status, reply.response.text) == (200, "Hello.")

    run(story)


def test_the_error_about_a_late_result_counts_one_call_as_one() -> None:
    async def story() -> None:
        more: dict[str, Any] = {"hold_timeout": 50.0, "on_expired": "error"}
        async with stage("openai-chat", THREE_CALLS, serial=True, **more) as on:
            client = on.client("openai-chat", False)
            await client.ask(User.of(QUESTION))
            await client.answer_calls()
            on.clock.time += 51
            late = await client.answer_calls()
            assert "gave up 1 other call of that turn" in late.body["error"]["message"]

    run(story)
