"""The command agent's page in a real Chromium: wishes by keyboard, the world as it changes, also by others, with
faults, in both colour schemes and on a narrow screen.

`make test-apps` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import axe
import chromium
import pytest

from command_agent.scripted import script
from command_agent.server import Game, serving
from command_agent.upstream import FaultLog, open_model
from unbroken import Model, ScriptedModel
from unbroken_testing import Call, Pause, Say, Think

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

SHOTS = os.environ.get("UNBROKEN_SHOTS")
READY = "document.getElementById('who').innerText.startsWith('you are player')"
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
        open_model(faults=faults, reworded=reworded, pace=0.1, log=(log := FaultLog())) as scripted,
        serving(Game(model or scripted, lag=lag, faults=log, linger=2.0)) as address,
        chromium.browser() as tab,
    ):
        await tab.size(1280, 760)
        await tab.theme("light")
        await tab.open(address, ready=READY)
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
    """Without the line below an answer: what it cost and how long it took."""
    node = f"document.querySelector({json.dumps(selector)})"
    shown = await tab.run(f"{node}?.innerText ?? ''")
    spent = await tab.run(f"{node}?.querySelector('.spent')?.innerText ?? ''")
    return shown.removesuffix(spent).rstrip() if selector.startswith(".answer") else shown


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
        assert "broken on purpose: the connection is lost in the middle of a call; retried" in answer
        assert answer.endswith("answered after 2 breaks; nothing was lost, nothing ran twice")
        kinds = "[...document.querySelector('.answer').children].map((node) => node.className)"
        shown = await tab.run(kinds)
        assert shown.index("note") < shown.index("words")  # the good answer stands below the notice
        await tab.run("for (const one of document.querySelectorAll('.note, .mark')) one.open = true")
        notice = await text_of(tab, ".note")
        for words in ("--faults cut_by_lost_connection", "What Unbroken noticed", "no command runs twice"):
            assert words in notice
        assert "no retry was needed" in await text_of(tab, ".mark")
        await shot(tab, "command-agent-faults")
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


async def reload(tab: chromium.Tab) -> None:
    await tab.run("window.before = true")
    await tab.ask("Page.reload")
    await tab.until(f"!window.before && document.readyState === 'complete' && ({READY})")


def test_player_items_and_chat_survive_a_reload_also_in_the_middle_of_a_wish() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        before = await wish(tab, "给我一个钻石")
        await type_wish(tab, "build a tower of 6 gold_block at 3 64 3")
        await tab.until("document.querySelectorAll('.answer:last-child .line').length > 1")
        await reload(tab)
        assert (await text_of(tab, "#who")).startswith("you are player1 ")
        await tab.until("document.getElementById('stop').hidden && document.querySelectorAll('.answer').length === 2")
        assert await text_of(tab, ".answer") == before
        assert (await text_of(tab, ".answer:last-child")).count("Here it comes.") == 1
        assert await tab.run("document.querySelectorAll('.answer:last-child .line.done').length") == 7
        assert await tab.run("[...document.querySelectorAll('.mine')].map((one) => one.innerText)") == [
            "给我一个钻石",
            "build a tower of 6 gold_block at 3 64 3",
        ]
        assert "1 × diamond" in await text_of(tab, "#players")
        await tab.run("socket.close()")  # a lost connection
        await tab.until(f"socket.readyState === 1 && {READY} && document.querySelectorAll('.answer').length === 2")
        assert (await wish(tab, "what do I have?")) == 'inventory → {"diamond":1}\nYou have 1 × diamond.'
        assert await tab.run("document.querySelector('.again')") is None

    in_browser(act, lag=0.05)


def test_a_player_whom_the_server_has_forgotten_is_told_so() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await wish(tab, "give me a diamond")
        await tab.run("sessionStorage.setItem('command-agent.seat', 'unknown')")
        await reload(tab)
        assert await text_of(tab, ".again") == (
            "You are player2 now: the server does not know player1 any more, whose items and conversation are gone."
        )
        assert (await wish(tab, "what do I have?")).endswith("You have nothing.")

    in_browser(act)


def test_the_theme_is_remembered() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.run("at('theme').click()")
        await reload(tab)
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"

    in_browser(act)


RTL = "\u202egnp.exe\u202c"
EVIL = f"<img src=x onerror=\"document.title='run'\"> {RTL} " + "w" * 100_000


def test_hostile_texts_of_models_and_tools_have_no_effect() -> None:
    calls = [Call(f"tool{RTL}<b>", {f"key{RTL}": [EVIL, "\ud83d"]}), Call("say", text=EVIL), Call("give", item=EVIL)]
    model = ScriptedModel([Think(EVIL), Say(EVIL), *calls], f"{EVIL} Done.", name=f"m{RTL}<b>")

    async def act(tab: chromium.Tab, address: str) -> None:
        await wish(tab, f"evil {EVIL[:300]}")
        await tab.run("for (const one of document.querySelectorAll('details')) one.open = true")
        assert await tab.run("document.title") == "Wishes for a block world"
        assert await tab.run("document.querySelector('#talk img, #log img, #talk script')") is None
        for place in ("#who", ".calls", "#log"):
            assert "\u202e" not in await text_of(tab, place), place
        assert "⟨U+202E⟩" in await text_of(tab, ".calls")
        for width in (390, 820, 1440):
            await tab.size(width, 800)
            assert await tab.run(
                "document.documentElement.scrollWidth <= innerWidth && at('talk').scrollWidth <= at('talk').clientWidth"
            )
        await reload(tab)
        assert await tab.run("document.title") == "Wishes for a block world"

    in_browser(act, model)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation_at_any_width(theme: str) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.theme(theme)
        await wish(tab, "变成白天并告诉大家")
        await wish(tab, "give me a unicorn")
        await tab.run("for (const one of document.querySelectorAll('details')) one.open = true")
        for width in (390, 820, 1440):
            await tab.size(width, 800)
            assert await axe.violations(tab) == []
            await shot(tab, f"command-axe-{width}-{theme}")

    in_browser(act, faults="cut_by_lost_connection", reworded=True)


def test_everything_is_reached_by_keyboard_alone() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await wish(tab, "give me a diamond")
        await tab.run("document.activeElement.blur(); at('theme').focus()")
        reached = [await tab.run(PLACE)]
        for _ in range(40):
            await tab.ask("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            await tab.ask("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.append(await tab.run(PLACE))
            if reached[-1] == "log-title":
                break
        wanted = ["theme", "talk", "SUMMARY", "wish", "send", "Turn the view to the left", "players-title", "log-title"]
        assert [one for one in dict.fromkeys(reached) if one in wanted] == wanted

    in_browser(act, faults="reset")


PLACE = """(({ activeElement: node }) => node.id || node.getAttribute("aria-labelledby") || node.ariaLabel
  || node.tagName)(document)"""


def test_an_answer_shows_what_it_took_and_cost() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await wish(tab, "give me three diamonds")
        spent = await text_of(tab, ".spent")
        assert re.fullmatch(r"3 requests · 2 commands · 1,\d{3} tokens · cost \$0\.000\d{4} · \d+\.\d s", spent), spent
        await reload(tab)
        await tab.until("document.querySelector('.spent') !== null")
        assert await text_of(tab, ".spent") == spent

    pytest.importorskip("genai_prices")
    in_browser(act, ScriptedModel(script(), name="openai:gpt-5-mini"))


def test_the_page_is_in_chinese_for_readers_of_chinese_and_remembers_it() -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        assert await tab.run("document.documentElement.lang") == "en"
        await wish(tab, "给我三个钻石")
        await tab.run("window.before = true; at('language').click()")
        await tab.until("!window.before && document.getElementById('who')?.innerText.startsWith('您是 player1')")
        await tab.until("document.querySelector('.spent') !== null")
        page = await text_of(tab, "body")
        for words in ("方块世界的愿望", "许愿", "玩家", "player1（您）", "白天", "费用未知", "个命令", "English"):
            assert words in page, words
        for words in ("Players", "Wish", "has nothing", "cost", "requests"):
            assert words not in page, words
        unnamed = (
            "[...document.querySelectorAll('[data-label]')].filter((one) => !/[一-鿿]/.test(one.ariaLabel)).length"
        )
        assert await tab.run(unnamed) == 0
        await tab.run(
            "[...document.querySelectorAll('#ideas button')].find((one) => one.innerText.includes('房子')).click()"
        )
        await tab.until("document.querySelectorAll('.spent').length === 2")
        for width in (390, 820, 1440):
            await tab.size(width, 800)
            assert await axe.violations(tab) == []
            assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
            await shot(tab, f"command-chinese-{width}")

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
        for width in (390, 820, 1440):
            await tab.size(width, 800)
            await tab.settle()
            assert await tab.run("document.documentElement.scrollWidth") <= width
            assert await tab.run("document.documentElement.scrollHeight") <= 800
            assert await tab.run("document.querySelector('canvas').clientHeight") > 100
            await shot(tab, f"command-agent-{width}")

    in_browser(act)
