"""Without keys, pages of other sites cannot use the gateway."""

from __future__ import annotations

import aiohttp
import pytest
from gateway_client import run, serving, settings_for

from unbroken.asgi import is_foreign
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "127.0.0.1:8400"},
        {"host": "localhost:8400"},
        {"host": "[::1]:8400"},
        {"host": "app.localhost"},
        {"host": "192.168.1.7:8400"},
        {"host": "box.lan:8400"},
        {"host": "localhost:8400", "origin": "http://localhost:3000"},
        {"host": "127.0.0.1:8400", "origin": "http://127.0.0.1:8400", "sec-fetch-site": "same-origin"},
    ],
)
def test_clients_and_pages_of_this_machine_are_accepted(headers: dict[str, str]) -> None:
    assert not is_foreign(headers, "box.lan")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8400", "origin": "http://evil.example:8400"},
        {"host": "127.0.0.1:8400", "origin": "https://evil.example"},
        {"host": "localhost:8400", "origin": "null"},
        {"host": "localhost:8400", "sec-fetch-site": "cross-site"},
        {"host": "[broken"},
    ],
)
def test_pages_of_other_sites_are_not(headers: dict[str, str]) -> None:
    assert is_foreign(headers, "127.0.0.1")


def ask(settings: GatewaySettings) -> list[int]:
    async def story() -> list[int]:
        statuses: list[int] = []
        async with serving(settings) as url, aiohttp.ClientSession() as session:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}
            for headers in ({}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
                async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                    statuses.append(answer.status)
                async with session.get(f"{url}/status.json", headers=headers) as answer:
                    statuses.append(answer.status)
        return statuses

    return run(story)


def test_a_gateway_without_keys_refuses_pages_of_other_sites() -> None:
    demo = UpstreamSettings("m", "demo")
    assert ask(settings_for(demo)) == [200, 200, 403, 403, 403, 403]
    assert ask(settings_for(demo, open_to_all=True)) == [200] * 6
