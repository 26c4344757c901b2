"""Durable runs in a real Chromium: an EventSource that is cut at every event id, and the page for approvals.

`make test-durable` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import chromium
import pytest
from watched_runs import ANSWER, HOSTILE, Server, serving, until, working

from unbroken import Allow
from unbroken.asgi import Receive, Scope, Send
from unbroken.events import NAMES, event_to_json
from unbroken_durable import Journal
from unbroken_durable.web import RunsApp
from unbroken_gateway import GatewayKey, create_key
from unbroken_gateway.keys import KeyRing

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

SHOTS = os.environ.get("UNBROKEN_SHOTS")
READY = "!document.querySelector('main').hidden || !document.getElementById('login').hidden"


@asynccontextmanager
async def page(folder: Path, keys: KeyRing | None = None) -> AsyncGenerator[tuple[chromium.Tab, str, Journal]]:
    with serving(folder, keys) as url:
        async with working(folder) as journal, chromium.browser() as tab:
            await tab.size(1280, 860)
            await tab.theme("light")
            await tab.open(f"{url}/", READY)
            yield tab, url, journal


def in_browser(
    folder: Path, act: Callable[[chromium.Tab, str, Journal], Awaitable[None]], keys: KeyRing | None = None
) -> None:
    async def main() -> None:
        async with page(folder, keys) as (tab, url, journal):
            await act(tab, url, journal)
            expected = ["Failed to load resource: the server responded with a status of 401 (Unauthorized)"]
            assert [each for each in tab.complaints if each not in expected] == []

    asyncio.run(main())


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        for theme in ("light", "dark"):
            await tab.theme(theme)
            await tab.screenshot(Path(SHOTS) / f"runs-{name}-{theme}.png")
        await tab.theme("light")


async def text(tab: chromium.Tab, selector: str = "body") -> str:
    return await tab.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.innerText).join(' | ')")


async def click(tab: chromium.Tab, words: str) -> None:
    """Clicks the button with these words, where a user would."""
    find = f"[...document.querySelectorAll('button')].find((n) => n.innerText.trim() === {json.dumps(words)})"
    await tab.until(f"!!({find}) && ({find}).offsetParent !== null")
    place = await tab.run(
        f"(() => {{ const node = {find}; node.scrollIntoView({{block: 'center'}}); const box = "
        f"node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
    )
    await tab.click(*place)


class Cutting:
    """Sends one event on each connection, and half of the next one; then the connection breaks."""

    def __init__(self, app: RunsApp) -> None:
        self._app = app
        self.connections = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/events"):
            await self._app(scope, receive, send)
            return
        self.connections += 1
        events = 0

        async def send_some(message: dict[str, Any]) -> None:
            nonlocal events
            data: bytes = message.get("body", b"").replace(b"retry: 1000", b"retry: 1")
            for piece in re.findall(rb".*?\n\n", data, re.DOTALL):
                events += piece.startswith(b"id:")
                if events == 2:
                    await send({**message, "body": piece[: len(piece) // 2]})
                    raise ConnectionAbortedError
                await send({**message, "body": piece})
            if not data:
                await send(message)

        await self._app(scope, receive, send_some)


COLLECT = """
  window.told = [];
  window.ended = false;
  const source = new EventSource(%s);
  for (const name of %s) source.addEventListener(name, (event) => told.push([event.lastEventId, name, event.data]));
  source.onerror = () => { if (source.readyState === EventSource.CLOSED) ended = true; };
"""


async def collect(tab: chromium.Tab, url: str) -> None:
    await tab.run(f"(() => {{ {COLLECT % (json.dumps(url), json.dumps([*NAMES.values()]))} }})()")


async def check_collected(tab: chromium.Tab, journal: Journal, run_id: str) -> None:
    """The browser has every event once, in order."""
    await tab.until("ended")
    told = await tab.run("told")
    stored = [event async for event in journal.events(run_id)]
    assert [(id, name, json.loads(data)) for id, name, data in told] == [
        (str(event.seq), NAMES[type(event)], event_to_json(event)) for event in stored
    ]


async def allow_when_waiting(journal: Journal, run_id: str) -> None:
    async def waits() -> bool:
        return (await journal.run(run_id)).state == "waiting"

    await until(waits)
    await journal.answer(run_id, {call.id: Allow() for call in (await journal.run(run_id)).pending})


@pytest.mark.parametrize("live", [False, True])
def test_an_event_source_that_is_cut_at_every_event_gets_each_once(tmp_path: Path, live: bool) -> None:
    async def main() -> None:
        cutting: list[Cutting] = []

        def wrap(app: RunsApp) -> Cutting:
            cutting.append(Cutting(app))
            return cutting[0]

        with serving(tmp_path, wrap=wrap) as url:
            async with working(tmp_path) as journal, chromium.browser() as tab:
                await tab.open(f"{url}/", READY)
                await journal.start("support", f"look refund {'slowly' if live else ''}", run_id="r")
                if not live:
                    await allow_when_waiting(journal, "r")
                    await until(lambda: _has_ended(journal, "r"))
                await collect(tab, "/runs/r/events")
                if live:
                    await allow_when_waiting(journal, "r")
                await check_collected(tab, journal, "r")
                events = [event async for event in journal.events("r")]
        assert len(events) > 20
        assert cutting[0].connections == len(events) + 1  # one for each event, and one that says it is over

    asyncio.run(main())


async def _has_ended(journal: Journal, run_id: str) -> bool:
    return (await journal.run(run_id)).state == "answered"


def test_an_event_source_survives_servers_that_are_killed(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        try:
            async with working(tmp_path) as journal, chromium.browser() as tab:
                await until(lambda: _answers(server.port))
                await tab.open(f"{server.url}/", READY)
                await journal.start("support", "look look refund slowly", run_id="r")
                await collect(tab, "/runs/r/events")
                for number in (1, 3):
                    await tab.until(f"told.length > {number}")
                    server.restart()
                await allow_when_waiting(journal, "r")
                await tab.until("told.some(([, name, data]) => name === 'text_added' && JSON.parse(data).turn === 3)")
                server.restart()
                await check_collected(tab, journal, "r")
        finally:
            server.kill()

    asyncio.run(main())


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def test_the_page_lists_a_waiting_run_and_a_click_lets_it_go_on(tmp_path: Path) -> None:
    async def act(tab: chromium.Tab, url: str, journal: Journal) -> None:
        assert "No run waits for an answer." in await text(tab)
        for id, prompt in (("order-7", "refund order 7"), ("order-8", "refund order 8"), ("order-9", "look at it")):
            await journal.start("support", prompt, run_id=id, tenant="acme")
        await tab.until("document.querySelectorAll('.card').length === 2")
        shown = await text(tab, ".card")
        assert "refund" in shown
        assert '"order": 7' in shown
        await shot(tab, "waiting")
        buttons = "[...document.querySelectorAll('#runs button')]"
        await tab.run(f"{buttons}.find((n) => n.innerText.includes('order-7')).click()")
        await tab.until("document.querySelector('#said').innerText.includes('waits for an approval')")
        cards = "[...document.querySelectorAll('.card')]"
        await tab.run(f"{cards}.find((n) => n.innerText.includes('order-8')).id = 'other'")
        await tab.run("document.querySelector('#other input').value = 'typed before'")
        await tab.run(f"{cards}.find((n) => n.innerText.includes('run order-7')).querySelector('button').focus()")
        await tab.press("Enter")
        await tab.until(f"document.querySelector('#said').innerText.includes({json.dumps(ANSWER)})")
        assert "→ refunded 7" in await text(tab, "#said")
        await tab.until("document.querySelector('#about').innerText.includes('answered')")
        assert await tab.run("document.querySelector('#other input').value") == "typed before"  # nothing is drawn anew
        await shot(tab, "answered")

        await click(tab, "Deny")
        await tab.until("document.querySelectorAll('.card').length === 0")
        await until(lambda: _has_ended(journal, "order-8"))
        finished = [event async for event in journal.events("order-8") if NAMES[type(event)] == "call_finished"]
        assert "typed before" in str(finished[0])

        await tab.size(420, 800)
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await shot(tab, "phone")

    in_browser(tmp_path, act)


def test_arguments_are_edited_with_every_digit_and_hostile_words_have_no_effect(tmp_path: Path) -> None:
    async def act(tab: chromium.Tab, url: str, journal: Journal) -> None:
        run_id = f"{HOSTILE[:60]}/<b>"
        await journal.start("support", f"hostile {HOSTILE}", run_id=run_id, tenant=HOSTILE[:50])
        await tab.until("document.querySelectorAll('.card').length === 1")
        shown = await text(tab, ".card pre")
        assert "1000000000000000001" in shown
        assert "⟨U+202E⟩⟨U+2028⟩" in shown
        await tab.run("document.querySelector('#runs button').click()")
        await tab.until("document.querySelector('#said').innerText.includes('Look: <img src=x')")
        await shot(tab, "hostile")
        await click(tab, "Edit")
        await tab.run("document.querySelector('.card textarea').value = '{'")
        await click(tab, "Allow with these")
        await tab.until("document.querySelector('.card').innerText.includes('this is not JSON')")
        await tab.run("""document.querySelector('.card textarea').value = '{"order": 1000000000000000003}'""")
        await click(tab, "Allow with these")
        await tab.until("document.querySelector('#said').innerText.includes('refunded 1000000000000000003')")
        assert await tab.run("document.querySelector('img, main script, main b img') === null")
        assert await tab.run("document.title") != "run"

    in_browser(tmp_path, act)


def test_a_key_is_asked_for_once_and_no_script_can_read_it(tmp_path: Path) -> None:
    secret = create_key(tmp_path / "keys.json", GatewayKey("acme"))

    async def act(tab: chromium.Tab, url: str, journal: Journal) -> None:
        await journal.start("support", "refund", run_id="mine", tenant="acme")
        await journal.start("support", "refund", run_id="theirs", tenant="other")
        assert "A key is needed" in await text(tab)
        for key, shows in (("ub-wrong", "this key is not known"), (secret, "mine")):
            await tab.run(f"document.getElementById('key').value = {json.dumps(key)}")
            await click(tab, "Show")
            await tab.until(f"document.body.innerText.includes({json.dumps(shows)})")
        await tab.open(f"{url}/", READY)
        await tab.until("document.querySelectorAll('#runs li').length === 1")
        assert "theirs" not in await text(tab)
        assert await tab.run("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})") == "{}"
        await click(tab, "Allow")
        await tab.until(f"document.querySelector('#said').innerText.includes({json.dumps(ANSWER)})")
        await click(tab, "Sign out")
        await tab.open(f"{url}/", READY)
        assert "A key is needed" in await text(tab)

    in_browser(tmp_path, act, KeyRing(tmp_path / "keys.json"))
