"""The status page of a real gateway in a real Chromium: at three widths, in both themes, with hostile names, with keys,
and a request while it is open. `make test-viewer` runs it; `UNBROKEN_SHOTS=DIR` saves screenshots."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import axe
import chromium
import pytest

from unbroken_gateway import GatewayKey, GatewaySettings, UpstreamSettings, create_key, running

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

SHOTS = os.environ.get("UNBROKEN_SHOTS")
HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>\'\u202e'
TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": TOOL}}


def settings(folder: Path, **more: Any) -> GatewaySettings:
    upstreams = (
        UpstreamSettings("fast", "demo"),
        UpstreamSettings("one-at-a-time", "demo", serial=True),
        UpstreamSettings("天气-模型", "demo"),
        UpstreamSettings(
            "gone",
            "openai:model-with-a-rather-long-name-2026-01-01",
            base_url="http://127.0.0.1:9/v1",
            api_key_env="UNBROKEN_STATUS_KEY",
            options={"attempts": 1},
        ),
    )
    return GatewaySettings(upstreams, port=0, store="memory:", record=str(folder / "recordings"), **more)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    os.environ["UNBROKEN_STATUS_KEY"] = "sk-none"
    with running(settings(tmp_path_factory.mktemp("status"))) as url:
        asyncio.run(ask_much(url))
        yield url
    del os.environ["UNBROKEN_STATUS_KEY"]


async def ask(url: str, path: str, body: dict[str, Any], agent: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as session:
        given = {"user-agent": agent, **headers}
        async with session.post(f"{url}{path}", json=body, headers=given) as answer:
            await answer.read()
            return answer.status


def chat(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "What is the weather?"}], **more}


async def ask_much(url: str) -> None:
    claude = {**chat("fast", max_tokens=100), "tools": [{"name": "weather", "input_schema": TOOL}]}
    for _ in range(3):
        await ask(
            url, "/v1/messages", claude, "claude-cli/2.1.4 (external, cli)", **{"anthropic-version": "2023-06-01"}
        )
    await ask(url, "/v1/responses", {"model": "fast", "input": "Hi"}, "codex_cli_rs/0.50.0 (Linux)")
    for _ in range(2):
        await ask(url, "/v1/chat/completions", chat("one-at-a-time", tools=[CHAT_TOOL]), "OpenAI/Python 2.1.0")
    for number in range(40):
        await ask(url, "/v1/chat/completions", chat("天气-模型", stream=number % 2 == 0), "python-httpx/0.28")
    assert await ask(url, "/v1/chat/completions", chat("gone"), "curl/8.5.0") >= 500
    hostile = {"type": "function", "function": {"name": "weather", "parameters": TOOL, "description": HOSTILE}}
    plain = HOSTILE.encode("ascii", "replace").decode()
    await ask(url, "/v1/chat/completions", chat("fast", tools=[hostile]), plain, **{"x-title": plain})
    assert await ask(url, "/v1/chat/completions", chat(HOSTILE), plain) == 404


@asynccontextmanager
async def opened(
    url: str, ready: str = "document.querySelectorAll('tbody tr').length > 5"
) -> AsyncGenerator[chromium.Tab]:
    async with chromium.browser() as tab:
        await tab.size(1440, 900)
        await tab.open(f"{url}/", ready)
        yield tab
        assert tab.complaints == []


async def text(tab: chromium.Tab, selector: str = "main") -> str:
    return await tab.run(f"document.querySelector({json.dumps(selector)}).innerText")


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


def test_it_fits_every_width_in_both_themes_and_has_nothing_that_axe_complains_about(gateway: str) -> None:
    async def main() -> None:
        async with opened(gateway) as tab:
            for width in (390, 820, 1280, 1440):
                for theme in ("light", "dark"):
                    await tab.size(width, 900)
                    await tab.theme(theme)
                    await tab.settle()
                    assert await tab.run("document.documentElement.scrollWidth") <= width
                    cut = await tab.run(
                        "[...document.querySelectorAll('td > *, dd > *, h2')].filter((node) => "
                        "node.getBoundingClientRect().right > innerWidth + 1).length"
                    )
                    assert cut == 0
                    assert await axe.violations(tab) == []
                    await shot(tab, f"status-{width}-{theme}")

    asyncio.run(main())


def test_it_shows_who_asked_how_long_it_took_and_what_is_held(gateway: str) -> None:
    async def main() -> None:
        async with opened(gateway) as tab:
            shown = await text(tab)
            for words in ("Claude Code 2.1.4", "Codex 0.50.0", "openai (Python) 2.1.0", "httpx 0.28", "curl 8.5.0"):
                assert words in shown
            assert "p95 " in shown
            assert await tab.run("document.querySelectorAll('tbody svg[aria-label]').length") == 3
            assert "2 calls wait" in shown
            assert await tab.run("document.querySelectorAll('section')[1].querySelectorAll('tbody tr').length") >= 1
            link = await tab.run("document.querySelector('td a').getAttribute('href')")
            assert link.startswith("recordings/#")
            await tab.run("document.querySelector('td a').click()")
            await tab.until("location.pathname === '/recordings/' && document.querySelector('.lane') !== null")

    asyncio.run(main())


def test_its_counts_agree_with_its_lists(gateway: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{gateway}/status.json") as answer:
            status = (await answer.json())["status"]
        counts, recent = status["counts"], status["recent"]
        assert sum(counts.values()) == len(recent)
        assert counts["answered"] == sum(each["status"] < 400 for each in recent)
        assert counts["failed"] == sum(each["status"] >= 500 for each in recent)
        for upstream in status["upstreams"]:
            assert upstream["requests"] == sum(each["alias"] == upstream["alias"] for each in recent)

    asyncio.run(main())


def test_hostile_names_stay_text(gateway: str) -> None:
    async def main() -> None:
        async with opened(gateway) as tab:
            assert await tab.run("window.hacked") is None
            assert await tab.run("document.querySelectorAll('main img, main script').length") == 0
            assert "<img src=x" in await text(tab)
            await tab.run("refresh()")
            await tab.settle()
            assert await tab.run("window.hacked") is None

    asyncio.run(main())


def test_a_request_appears_while_the_page_is_open_and_focus_stays(gateway: str) -> None:
    async def main() -> None:
        async with opened(gateway) as tab:
            await tab.run("document.querySelector('.fresh button').focus()")
            await ask(gateway, "/v1/chat/completions", chat("fast"), "GeminiCLI/v0.9.0/x (linux)")
            await tab.until("document.querySelector('main').innerText.includes('Gemini CLI 0.9.0')")
            assert await tab.run("document.activeElement === document.querySelector('.fresh button')")
            await tab.press("Enter")
            assert await text(tab, ".fresh button") == "Resume"

    asyncio.run(main())


def test_with_keys_each_sees_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ann, ops = create_key(file, GatewayKey("ann")), create_key(file, GatewayKey("ops", operator=True))

    async def main(url: str) -> None:
        for key, agent in ((ann, "claude-cli/1.0"), (ops, "codex_exec/2.0")):
            headers = {"authorization": f"Bearer {key}"}
            body = chat("one-at-a-time", tools=[CHAT_TOOL])
            assert await ask(url, "/v1/chat/completions", body, agent, **headers) == 200
        async with opened(url, "!document.querySelector('form').hidden") as tab:
            assert await axe.violations(tab) == []
            await shot(tab, "status-locked")
            for key, seen, hidden in ((ann, "Claude Code 1.0", "Codex 2.0"), (ops, "Codex 2.0", None)):
                await tab.run(f"sessionStorage.setItem('unbroken-gateway-key', {json.dumps(key)})")
                await tab.open(f"{url}/", "document.querySelectorAll('tbody tr').length > 3")
                shown = await text(tab)
                assert seen in shown
                assert hidden is None or hidden not in shown
                assert ("show recording" in shown) == (key == ops)
            tab.complaints.clear()  # the first question without a key was refused, as it should be

    os.environ["UNBROKEN_STATUS_KEY"] = "sk-none"
    with running(settings(tmp_path, keys=True, keys_file=str(file))) as url:
        asyncio.run(main(url))
