"""The viewer's page for everybody: axe-core finds nothing, at three widths, in both colour schemes, with Chinese text;
nothing is cut or overlaps; everything is reached with the keyboard alone; no text of a stranger has an effect; and a
run with agents inside agents grows while it is recorded.

`make test-viewer` runs it, as it does `check_page.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe
import chromium
import kinds_of_runs
import pytest
from convert_recordings import convert
from viewer_tab import in_browser, shot, text, texts

from unbroken.trajectory.recorder import Recorder
from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import whole_page

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

WIDTHS = (390, 820, 1440)
READY = "document.querySelector('.lane, .item, .compared, .message, .requests-table') !== null"
PAGES = {
    "list": ("", ()),
    "search": ("", ("/", *"tides")),
    "chinese": ("chinese.jsonl", ("ArrowDown", "Enter")),
    "messages": ("chinese.jsonl/messages", ()),
    "events": ("chinese.jsonl/events", ("Enter",)),
    "requests": ("chinese.jsonl/requests", ()),
    "team": ("team.jsonl", ("ArrowDown", "ArrowDown", "Enter")),
    "failed": ("failed.jsonl", ("End", "Enter")),
    "killed": ("killed.jsonl", ()),
    "gateway": ("gateway.jsonl", ("Enter",)),
    "comparison": ("long.jsonl/with/chinese.jsonl", ()),
    "keys": ("long.jsonl", ("?",)),
}
"""By name: the address after the #, and the keys to press there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, long_run: Callable[[Path], None]) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    long_run(folder / "long.jsonl")
    return kinds_of_runs.write(folder)


async def go(tab: chromium.Tab, address: str, name: str) -> None:
    place, keys = PAGES[name]
    await tab.open(f"{address}#{place}", READY)
    await tab.press(*keys)
    if name == "search":
        await tab.press("Enter", "s")
        await tab.until("document.querySelector('.legend').innerText.includes('in the contents')")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_nothing_is_cut(folder: Path, width: int, theme: str) -> None:
    found: dict[str, Any] = {}

    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.size(width, 820)
        await tab.theme(theme)
        for name in PAGES:
            await go(tab, address, name)
            await shot(tab, f"all-{width}-{theme}-{name}")
            if wrong := await axe.violations(tab):
                found[f"{name}, axe"] = wrong
            if wrong := await tab.run(_CUT):
                found[f"{name}, cut"] = wrong

    in_browser(folder, act)
    assert not found, json.dumps(found, indent=1)


_CUT = r"""(() => {
  const wrong = [], page = document.documentElement;
  if (page.scrollWidth > innerWidth) wrong.push(`the page is ${page.scrollWidth} wide`);
  const seen = (node) => node.getClientRects().length && getComputedStyle(node).visibility !== "hidden";
  const name = (node) => `${node.tagName}.${node.className} ${node.textContent.slice(0, 40)}`;
  for (const node of document.querySelectorAll("button, dt, dd, th, .chip, .tick, kbd, h1, h2, h3, label, .banner")) {
    if (!seen(node) || node.closest(".hear")) continue;
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    const fits = node.scrollWidth <= node.clientWidth + 1 || !node.clientWidth || style.display === "inline";
    if (!fits && style.textOverflow !== "ellipsis" && style.overflowX !== "auto") wrong.push(`cut: ${name(node)}`);
    if (box.right > innerWidth + 1 || box.left < -1) wrong.push(`outside: ${name(node)}`);
  }
  for (const parent of document.querySelectorAll("header, .facts, nav, .legend, .summary, .ticks, .head")) {
    const parts = [...parent.children].filter((node) => seen(node) && !node.matches(".range, .now, .gap"));
    for (const one of parts) for (const other of parts) {
      if (one === other || one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_PRECEDING) continue;
      const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 1) wrong.push(`overlap: ${name(one)} and ${name(other)}`);
    }
  }
  return wrong;
})()"""


def test_everything_is_reached_with_the_keyboard_and_has_a_name(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await go(tab, address, "team")
        names: set[str] = set()
        for _ in range(60):
            await tab.press("Tab")
            focus = await tab.run(
                "(() => { const node = document.activeElement; return node.getAttribute('aria-label') || "
                "node.labels?.[0]?.innerText || node.innerText.slice(0, 60) || node.tagName; })()"
            )
            names.add(focus)
        assert "BODY" in names or len(names) < 60  # it goes round
        wanted = {"Filter", "Keys", "Waterfall", "Turns and calls of the run", "Close the details", "Details"}
        assert wanted <= names, names
        tree = await tab.ask("Accessibility.getFullAXTree")
        nodes = [node for node in tree["nodes"] if not node.get("ignored")]
        roles = ("button", "tab", "option", "listbox", "searchbox", "link", "tabpanel")
        unnamed = [
            node["role"]["value"]
            for node in nodes
            if node["role"]["value"] in roles and not node.get("name", {}).get("value")
        ]
        assert unnamed == []
        spoken = [node["name"]["value"] for node in nodes if node["role"]["value"] == "option"]
        assert "search of agent main/writer/researcher: done, started at 0.900 s" in spoken

    in_browser(folder, act)


def test_a_request_of_a_client_has_its_calls_its_cost_and_the_same_time_as_in_the_list(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        (listed,) = [row for row in await texts(tab, ".item.runs") if "gateway.jsonl" in row]
        await go(tab, address, "gateway")
        assert "get_weather Beijing · get_weather Shanghai (held) · get_weather Guangzhou (held)" in await text(
            tab, "#summary"
        )
        facts = dict(zip(await texts(tab, "#facts dt"), await texts(tab, "#facts dd"), strict=True))
        assert (facts["cost"], facts["held calls"], facts["retries"]) == ("$0.0030", "2", "1 (the answer broke off)")
        assert facts["took"] in listed
        assert "tool calls" in listed
        await go(tab, address, "killed")
        banner = await text(tab, ".banner")
        assert "Its last line is from 2023-11-14" in banner
        assert "unbroken resume killed.jsonl --tools tools.py continues it" in banner

    in_browser(folder, act)


# Texts of strangers


WORDS = (
    "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    "<a href=\"javascript:document.title='run'\">\u202e\u2028\ud83d\u0000"
)
LONG = "w" * 100_000


def hostile_lines(words: str) -> list[dict[str, Any]]:
    """A gateway's recording in which every text that it can have is that of a stranger."""
    call: dict[str, Any] = {"id": words, "name": words, "arguments": {words: words}, "complete": True, "notes": [words]}
    said = {
        "role": "user",
        "content": [{"type": "text", "text": words}, {"type": "image", "url": words, "name": words}],
    }
    told = {
        "role": "tool",
        "results": [{"name": words, "call_id": words, "content": [{"type": "text", "text": words}]}],
    }
    common: dict[str, Any] = {"run": words, "turn": 0}
    inner = {"event": "call_started", **common, "seq": 0, "time": 1.2, "call": 0, "call_id": words, "name": words}
    settings = {"client": words, "upstream": words, "model": words, "key": words, "serial": True, "stream": True}
    headers = dict.fromkeys(
        ("x-unbroken-repairs", "x-unbroken-dropped", "x-unbroken-reasoning", "x-unbroken-turn"), words
    )
    settings |= {"user_agent": words, "headers": headers, "schedule": words}
    verdict = {"kind": words, "reason": words, "finish": words, "model": words}
    usage = {"input_tokens": words, "output_tokens": 7, "cost": words}
    head = {"run": words, "agent_name": "gateway", "time": 1.0, "model": words, "settings": settings}
    return [
        {"line": "run", "schema": 2, **head, "messages": [said]},
        {"line": "tools", "at": 0, "turn": 0, "tools": [{"name": words, "description": words, "parameters": {}}]},
        {"line": "request", "at": 0, "turn": 0, "keep": 0, "messages": [said, told], "system": said,
         "extra": {words: words}},
        {"line": "delta", "at": 0.1, "turn": 0, "delta": "text", "text": words},
        {"line": "delta", "at": 0.1, "turn": 0, "delta": "reasoning", "text": words},
        {"line": "delta", "at": 0.1, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "delta", "at": 0.2, "turn": 0, "delta": "attempt_failed", "verdict": verdict, "wait": 0.1,
         "elsewhere": True},
        {"line": "delta", "at": 0.3, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "delta", "at": 0.3, "turn": 0, "delta": "usage", "usage": usage},
        {"line": "delta", "at": 0.4, "turn": 0, "delta": "ended", "verdict": {**verdict, "kind": "whole"}},
        {"line": "event", "event": "call_started", **common, "seq": 1, "time": 1.1, "call": 0, "call_id": words,
         "name": words, "arguments": {words: words}, "early": False},
        {"line": "event", "event": "inner_event", **common, "seq": 2, "time": 1.2, "call": 0, "call_id": words,
         "name": words, "agent": words, "inner": {**inner, "arguments": {words: words}, "early": False}},
        {"line": "event", "event": "call_progress", **common, "seq": 3, "time": 1.2, "call": 0, "call_id": words,
         "name": words, "message": words},
        {"line": "event", "event": "call_finished", **common, "seq": 4, "time": 1.3, "call": 0, "call_id": words,
         "name": words, "seconds": 0.2, "error": True, "text": words, "outcome": "failed", "duplicate_of": words},
        {"line": "event", "event": "limit_reached", **common, "seq": 5, "time": 1.3, "kind": words, "limit": 1.0},
        {"line": "note", "text": words},
        {"line": "event", "event": "run_failed", **common, "seq": 6, "time": 1.4, "error": words, "message": words,
         "verdicts": []},
    ]  # fmt: skip


@pytest.mark.parametrize("words", [WORDS, LONG], ids=["script", "long"])
def test_texts_of_strangers_have_no_effect_anywhere(tmp_path: Path, words: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    named = "<img src=x onerror=document.title='run'>';touch x;'\u202e.jsonl"
    hostile = b"".join(convert(json.dumps(line).encode() + b"\n" for line in hostile_lines(words)))
    for name in (named, "other.jsonl"):
        (folder / name).write_bytes(hostile)
    (folder / "bad.jsonl").write_text(words.encode("utf-8", "replace").decode())
    page = tmp_path / "hostile.html"
    page.write_bytes(whole_page(Shelf(folder))[0])

    async def unharmed(tab: chromium.Tab) -> None:
        assert await tab.run("document.querySelector('img, a[href^=javascript], #view script') === null")
        assert await tab.run("document.title !== 'run'")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")

    async def act(tab: chromium.Tab, address: str) -> None:
        for width, place in ((1280, address), (390, page.as_uri())):
            await tab.size(width, 800)
            await tab.open(place, READY)
            await unharmed(tab)
            await tab.press("Home", "c", "ArrowDown", "c")
            await tab.until("document.querySelector('.compared, .lane, .item') !== null")
            await unharmed(tab)
            await tab.open(f"{place}#other.jsonl", READY)
            assert words[:20] in await text(tab, "#facts")
            for _ in range(4):
                await tab.press("ArrowDown", "Enter")
                await unharmed(tab)
            for key in "234":
                await tab.press(key, "Enter")
                assert words[:20] in await tab.run("document.body.innerText")
                await unharmed(tab)

    in_browser(folder, act)


# A run that is being recorded


def test_bars_of_inner_agents_and_background_calls_grow_while_they_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "live.jsonl"
    for name in ("first", "second"):
        (tmp_path / f"{name}.jsonl").write_text('{"line":"run","schema":3,"run":"first","time":1.0}\n')
    widths = "[...document.querySelectorAll('.lane .bar.open')].map((bar) => bar.getBoundingClientRect().width)"

    async def act(tab: chromium.Tab, address: str) -> None:
        running = asyncio.create_task(kinds_of_runs.team(slow=2.0).run("Tides", sinks=[Recorder(path)]))
        while not path.exists():
            await asyncio.sleep(0.01)
        await tab.open(f"{address}#live.jsonl")
        await tab.until("[...document.querySelectorAll('.lane .name')].some((one) => one.innerText === 'search')")
        assert await text(tab, "#state") == "● running"
        names = await texts(tab, ".lane .name")
        assert names[:4] == ["Round 1", "build_index", "writer", "researcher"]
        assert len(await tab.run(widths)) >= 3  # the index, the writer, and what is inside
        await shot(tab, "live")
        seconds = "parseFloat(document.querySelector('#facts dd').innerText)"
        before = await tab.run(seconds)
        await tab.until(f"{seconds} !== {before}")
        await running
        await tab.until("document.querySelector('#state').innerText === 'answered'")
        assert await tab.run(widths) == []
        assert "1,200 files" in await text(tab, "#summary")

    in_browser(tmp_path, act)
