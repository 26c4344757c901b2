"""The command agent's page in a real Chromium: wishes by keyboard, the world as it changes, also by others, with
faults, in both colour schemes and on a narrow screen.

`make test-apps` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import chromium
import pytest

from command_agent.server import Game, serving
from command_agent.upstream import open_model
from unbroken import Model, ScriptedModel
from unbroken.testing import Call, Pause, Say

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

SHOTS = os.environ.get("UNBROKEN_SHOTS")
Act = Callable[[chromium.Tab, str], Awaitable[None]]


def in_browser(
    act: Act, model: Model | None = None, faults: str = "", reworded: bool = False, lag: float = 0.0
) -> None:
    async def main() -> None:
        async with opened(model, faults, reworded, lag) as (tab, address):
            await act(tab, address)
            assert tab.complaints == []

    asyncio.run(main())


@asynccontextmanager
async def opened(
    model: Model | None, faults: str, reworded: bool, lag: float
) -> AsyncGenerator[tuple[chromium.Tab, str]]:
    async with (
        open_model(faults=faults, reworded=reworded, pace=0.1) as scripted,
        serving(Game(model or scripted, lag=lag)) as address,
        chromium.browser() as tab,
    ):
        await tab.size(1280, 760)
        await tab.theme("light")
        await tab.open(address, ready="document.getElementById('who').innerText.startsWith('you are player')")
        yield tab, address


async def type_wish(tab: chromium.Tab, wish: str) -> None:
    await tab.press("/") if await tab.run("document.activeElement.id !== 'wish'") else None
    await tab.ask("Input.insertText", text=wish)
    await tab.press("Enter")


async def wish(tab: chromium.Tab, text: str) -> str:
    """Types a wish, waits for its end, and returns what the last answer shows."""
    await type_wish(tab, text)
    await tab.until(f"document.querySelector('.mine:nth-last-child(2)')?.innerText === {json.dumps(text)}")
    await tab.until("document.getElementById('stop').hidden")
    return await text_of(tab, ".answer:last-child")


async def text_of(tab: chromium.Tab, selector: str) -> str:
    return await tab.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        await asyncio.sleep(1.2)  # the sun sets
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


def test_a_wish_is_granted_by_keyboard_and_shows_in_the_world() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        answer = await wish(tab, "give me three diamonds")
        assert answer.startswith("One moment: 3 × diamond for you.")
        assert "give item=diamond count=3 → player1 got 3 diamond (command 1)" in answer
        assert answer.endswith("Done. You have 3 × diamond now.")
        assert "3 × diamond" in await text_of(tab, "#players")
        assert "player1 /give player1 diamond 3" in await text_of(tab, "#log")

        answer = await wish(tab, "build a small house at 9 64 5")
        assert "setblock × 22" in answer and "setblock x=9" not in answer  # many are folded  # noqa: PT018
        await wish(tab, "build a tower of 6 gold_block at 3 64 3")
        await shot(tab, "command-agent")
        await tab.press("ArrowUp")
        assert await tab.run("document.getElementById('wish').value") == "build a tower of 6 gold_block at 3 64 3"

    in_browser(act)


def test_with_faults_nothing_is_shown_twice_and_the_retry_is_marked() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        answer = await wish(tab, "make it night and tell everyone")
        assert answer.count("Let it be night.") == 1
        assert answer.count("Everybody knows.") == 1
        assert "and is retried" in answer
        assert answer.endswith("answered after a restart")
        assert "night" in await text_of(tab, "#clock")
        assert len(await tab.run("[...document.querySelectorAll('#log li')].map((line) => line.innerText)")) == 2

    in_browser(act, faults="cut_by_lost_connection", reworded=True)


def test_changes_by_others_are_shown_as_they_happen() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}ws") as other:
            await tab.until("document.getElementById('players').children.length === 2")
            await other.send_json({"type": "wish", "content": "give me a torch"})
            await tab.until("document.getElementById('log').innerText.includes('player2 /give player2 torch 1')")
            assert await text_of(tab, ".answer") == ""
        await tab.until("document.getElementById('players').children.length === 1")

    in_browser(act)


def test_escape_stops_a_wish_and_the_next_one_is_granted() -> None:
    model = ScriptedModel([Say("One. Two. "), Pause(3600)], "Here I am.")

    async def act(tab: chromium.Tab, address: str) -> None:
        await type_wish(tab, "wait for me")
        await tab.until("document.querySelector('.words')?.innerText.startsWith('One.')")
        await tab.press("Escape")
        await tab.until("document.getElementById('stop').hidden")
        assert (await text_of(tab, ".answer:last-child")).endswith("stopped")
        assert await wish(tab, "hello?") == "Here I am."

    in_browser(act, model)


def test_escape_while_a_command_runs_shows_that_it_failed() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await type_wish(tab, "give me a diamond")
        await tab.until("document.querySelector('.line') !== null")
        await tab.press("Escape")
        await tab.until("document.getElementById('stop').hidden")
        answer = await text_of(tab, ".answer:last-child")
        assert "give item=diamond count=1 → Error: cancelled: the run was cancelled" in answer
        assert answer.endswith("stopped")
        assert await tab.run("document.querySelectorAll('.line.failed').length") == 1

    in_browser(act, lag=3600)


def test_arguments_of_any_kind_and_a_limit_are_shown_as_text() -> None:
    model = ScriptedModel(lambda request: [Call("give", {"item": {"a": [len(request.messages), None]}})])

    async def act(tab: chromium.Tab, address: str) -> None:
        answer = await wish(tab, "give me a diamond")
        assert 'give item={"a":[2,null]}' in answer
        assert answer.endswith("not completed: round_limit")

    in_browser(act, model)


def test_after_a_reconnect_the_page_explains_what_is_gone() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await wish(tab, "give me a diamond")
        await tab.run("socket.close()")
        await tab.until("document.querySelector('.again') !== null")
        assert await text_of(tab, ".again") == (
            "Reconnected as player2: the conversation above is forgotten, and the items of player1 are gone."
        )
        await type_wish(tab, "what do I have?")
        await tab.until("document.querySelector('.answer:last-child')?.innerText.endsWith('You have nothing.')")

    in_browser(act)


def test_text_of_a_model_is_never_markup() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        assert await wish(tab, "<b>me</b>") == "<img src=x onerror=alert(1)> and <b>more</b>."
        assert await tab.run("document.querySelector('#talk img, #talk .words b, .mine b')") is None

    in_browser(act, ScriptedModel("<img src=x onerror=alert(1)> and <b>more</b>."))


def test_it_is_readable_in_dark_mode_and_fits_a_narrow_screen() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.theme("dark")
        await wish(tab, "build a small house at 9 64 5")
        await wish(tab, "build a tower of 6 gold_block at 3 64 3")
        answer = await wish(tab, "make it night and tell everyone")
        assert answer.endswith("Everybody knows.")
        await shot(tab, "command-agent-dark")
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
        for width in (360, 700, 1000):
            await tab.size(width, 800)
            await tab.settle()
            assert await tab.run("document.documentElement.scrollWidth") <= width
            assert await tab.run("document.documentElement.scrollHeight") <= 800
            assert await tab.run("document.querySelector('canvas').clientHeight") > 100
            await shot(tab, f"command-agent-{width}")

    in_browser(act)
