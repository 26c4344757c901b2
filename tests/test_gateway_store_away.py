"""A store that is away or full costs no answers: this process goes on with what it has in memory."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
import valkey_server
from gateway_client import CITIES, THREE_CALLS, Client, run, serving, settings_for, upstream_settings

from unbroken.messages import Assistant
from unbroken.testing import ScriptedServer


async def read(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def assert_all_are_handed_out(client: Client, upstream: ScriptedServer) -> None:
    replies = await client.converse()
    assert [reply.calls[0][1]["city"] for reply in replies[:3]] == list(CITIES)
    asked = upstream.requests[-1].messages[1]
    assert isinstance(asked, Assistant)
    assert len(asked.calls) == 3


def test_a_turn_that_is_too_large_for_the_store_is_handed_out_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            store = f"sqlite:{tmp_path}/turns.db"
            settings = settings_for(upstream_settings(upstream, "openai-chat"), store=store, entry_bytes=100)
            async with serving(settings) as url:
                await assert_all_are_handed_out(Client(url, "openai-chat"), upstream)

    run(story)
    assert "the store cannot be written to, keeping it in memory" in caplog.text


def test_a_server_that_goes_away_in_the_middle_costs_nothing_but_a_warning() -> None:
    server = valkey_server.start()

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.", THREE_CALLS, "Done again.") as upstream:
            settings = settings_for(
                upstream_settings(upstream, "openai-chat"), store=f"redis://{server.host}:{server.port}/0"
            )
            async with serving(settings) as url:
                await assert_all_are_handed_out(Client(url, "openai-chat"), upstream)
                assert (await read(f"{url}/readyz"))[0] == 200
                server.stop()
                await assert_all_are_handed_out(Client(url, "anthropic-messages", stream=True), upstream)
                status, words = await read(f"{url}/readyz")
                assert status == 503
                assert "not ready" in words

    run(story)


def test_a_turn_that_can_be_kept_nowhere_is_not_counted_as_held(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unbroken.gateway.kept.SPARE", 100)

    async def story() -> None:
        async with ScriptedServer(THREE_CALLS, "Done.") as upstream:
            settings = settings_for(upstream_settings(upstream, "openai-chat"), entry_bytes=100)
            async with serving(settings) as url:
                replies = await Client(url, "openai-chat").converse()
                assert [len(reply.response.calls) for reply in replies] == [1, 0]
                assert "x-unbroken-turn" not in replies[0].headers
                metrics = (await read(f"{url}/metrics"))[1]
                assert "unbroken_held_turns_total{" not in metrics

    run(story)
    assert "2 calls are lost" in caplog.text
