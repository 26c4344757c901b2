"""The page in a real Chromium: what it shows, by keyboard, in both colour schemes, and how smoothly it scrolls.

`make test-viewer` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import chromium
import large_run
import pytest
from convert_recordings import convert
from viewer_tab import SHOTS, in_browser, shot, text, texts

from unbroken.trajectory.recording import read_recording
from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import whole_page

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

FRAME = 1000 / 60
"""Milliseconds of CPU time that the page may take for a frame, for 95 % of them. The time on a clock would be that of
everything else on the machine, too."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, long_run: Callable[[Path], None]) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    long_run(folder / "long.jsonl")
    lines = (folder / "long.jsonl").read_bytes().splitlines(keepends=True)
    *before, half = lines[: len(lines) * 2 // 3]
    (folder / "cut.jsonl").write_bytes(b"".join(before) + half[: len(half) // 2])
    os.utime(folder / "cut.jsonl", (1_700_000_000, 1_700_000_000))  # nothing was added to it lately
    (folder / "bad.jsonl").write_text('{"hello": 1}\n')
    return folder


def test_the_list_is_filtered_and_a_run_opened_by_keyboard(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        assert len(await texts(tab, ".item")) == 3
        assert "is not a recording" in await text(tab, ".item")
        await shot(tab, "list")
        await tab.press("/")
        for letter in "answered":
            await tab.press(letter)
        assert len(await texts(tab, ".item")) == 1
        await tab.press("Enter", "Enter")
        await tab.until("document.querySelector('.lane') !== null")
        assert await text(tab, "h1") == "Plan a day in Reykjavik and book it."
        await tab.press("Escape")
        await tab.until("document.querySelector('.item') !== null")

    in_browser(folder, act)


def test_every_call_is_a_lane_and_enter_shows_it(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        names = await texts(tab, ".lane .name")
        assert names == ["Round 1", "weather", "weather", "events_on", "Round 2", "events_on", "map_of", "weather",
                         "Round 3", "book", "book", "Answer"]  # fmt: skip
        for kind, count in (("early", 4), ("failed", 1), ("shared", 1), ("running", 2)):
            assert len(await texts(tab, f".lane .bar.{kind}")) == count, kind
        assert len(await texts(tab, ".lane .rule.break")) == 4
        await tab.press(*["ArrowDown"] * 6, "Enter")
        detail = await text(tab, "aside")
        assert "map_of" in detail and "2.700 s" in detail and "Error: Execution timeout after 1s" in detail  # noqa: PT018
        await shot(tab, "light")
        await tab.theme("dark")
        await shot(tab, "dark")
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
        await tab.press("t")
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 249)"
        await tab.press("Escape")
        assert await tab.run("document.getElementById('detail').hidden")

    in_browser(folder / "long.jsonl", act)


def test_a_round_shows_its_text(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("Enter")
        assert await texts(tab, "aside h2") == ["Round 1"]
        assert await texts(tab, "aside pre") == ["Let me look. "]
        await tab.press("End")
        assert await texts(tab, "aside h2") == ["Answer"]
        assert "whales at noon" in await text(tab, "aside pre")

    in_browser(folder / "long.jsonl", act)


def test_keys_work_after_a_click_on_the_heading(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.click(300, 25)
        assert await tab.run("document.activeElement === document.body")
        await tab.press("ArrowDown", "Enter")
        assert await texts(tab, "aside h2") == ["weather"]

    in_browser(folder / "long.jsonl", act)


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_the_heading_and_the_axis_are_not_cut(folder: Path, width: int) -> None:
    cut = "document.querySelector('%s').scrollWidth > document.querySelector('%s').clientWidth"

    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.size(width, 800)
        await tab.settle()
        for place in ("#state", ".corner"):
            assert not await tab.run(cut % (place, place)), place
        assert await tab.run("document.querySelector('header').clientHeight") < (100 if width == 390 else 60)

    in_browser(folder / "long.jsonl", act)


def test_the_first_screen_has_question_answer_and_first_error(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        shown = await text(tab, "#summary")
        assert "Swim in the morning, whales at noon; both are booked." in shown
        assert "the model: the connection was lost" in shown
        await tab.run("document.querySelector('#summary button').click()")
        assert await texts(tab, "aside h2") == ["Round 2"]

    in_browser(folder / "long.jsonl", act)


def test_the_list_is_sorted_by_a_column_both_ways(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        click = (
            "[...document.querySelectorAll('button.sort')].find((one) => one.textContent.startsWith('Calls')).click()"
        )
        for names in (["long.jsonl", "cut.jsonl"], ["cut.jsonl", "long.jsonl"]):
            await tab.run(click)
            await tab.settle()
            assert await texts(tab, ".item.runs small") == names
        assert "cannot be read" in (await texts(tab, ".item"))[-1]  # without a number, last both ways

    in_browser(folder, act)


@pytest.mark.parametrize("served", [True, False], ids=["served", "file"])
def test_contents_are_searched(folder: Path, tmp_path: Path, served: bool) -> None:
    page = tmp_path / "runs.html"
    page.write_bytes(whole_page(Shelf(folder))[0])

    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.open(address if served else page.as_uri())
        await tab.press("/")
        for letter in "both are booked":
            await tab.press(letter)
        assert await texts(tab, ".item") == []  # it is in no prompt
        await tab.press("Enter")
        await tab.until("document.querySelector('.item') !== null")
        assert len(await texts(tab, ".item")) == 1
        assert "whales at noon; both are booked" in await text(tab, ".item small")

    in_browser(folder, act)


def test_two_runs_are_compared(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "long.jsonl").read_bytes()
    (tmp_path / "one.jsonl").write_bytes(whole)
    (tmp_path / "other.jsonl").write_bytes(
        whole.replace(b"Akureyri", b"Hofn").replace(b"whales at noon", b"seals at noon")
    )

    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("Home", "c", "ArrowDown", "c")
        await tab.until("document.querySelector('.compared') !== null")
        shown = await text(tab, "#view")
        assert "Request 3 is the first that differs, in message 5" in shown
        assert "weather Akureyri" in shown
        assert "weather Hofn" in shown
        assert "seals at noon" in shown
        differ = await texts(tab, ".compared.calls tr.differs")
        assert [row.split()[-4:] for row in differ] == [
            ["only", "on", "the", "left"],
            ["only", "on", "the", "right"],
        ]
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")

    in_browser(tmp_path, act)


def test_a_call_in_a_message_leads_to_its_bar_and_back(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("2")
        await tab.run("document.querySelectorAll('[data-call]')[2].click()")
        await tab.settle()
        assert await texts(tab, "aside h2") == ["events_on"]
        back = "[...document.querySelectorAll('aside button.link')].find((one) => one.textContent.includes('message'))"
        await tab.run(f"{back}.click()")
        await tab.settle()
        assert await texts(tab, ".message.picked .tag") == ["its answer"]
        assert await tab.run("document.activeElement.textContent") == "events_on"

    in_browser(folder / "long.jsonl", act)


def test_texts_and_requests_are_copied(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }; 1")
        await tab.press("2")
        await tab.run("document.querySelector('.of .copy').click()")
        await tab.until('window.copied === \'{"city": "Reykjavik"}\'')
        await tab.run("document.querySelector('.tools .copy').click()")
        await tab.until("window.copied.startsWith('curl -N ')")
        await tab.run("document.querySelectorAll('.tools .copy')[1].click()")
        await tab.until("window.copied.startsWith('from unbroken import Agent')")

    in_browser(folder / "long.jsonl", act)


def test_requests_have_their_first_token_tokens_and_cost_in_a_table(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("4")
        rows = await tab.run(
            "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((one) => one.innerText))"
        )
        assert [row[0] for row in rows] == ["Round 1", "Round 2", "Round 3", "Answer"]
        assert rows[1][1:6] == ["2.100 s", "0 s", "600 ms", "200", "30"]

    in_browser(folder / "long.jsonl", act)


def test_a_run_grows_on_the_page_while_it_is_recorded(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "long.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "growing.jsonl"
    half = next(place for place, line in enumerate(lines) if b'"event":"tool_calls_detected"' in line)
    path.write_bytes(b"".join(lines[:half]))

    async def act(tab: chromium.Tab, address: str) -> None:
        before = len(await texts(tab, ".lane"))
        await tab.press("ArrowDown")
        with path.open("ab") as file:
            file.write(b"".join(lines[half:-1]))
        await tab.until(f"document.querySelectorAll('.lane').length > {before}")
        assert await text(tab, "#state") == "● running"
        assert await tab.run("document.querySelector('.lane.picked .name').innerText") == "weather"  # it stays chosen
        with path.open("ab") as file:
            file.write(lines[-1])
        await tab.until("document.querySelector('#state').innerText === 'answered'")
        assert "both are booked" in await text(tab, "#summary")

    in_browser(path, act)


def test_a_new_run_appears_in_the_list(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "long.jsonl").read_bytes()
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_bytes(whole)

    async def act(tab: chromium.Tab, address: str) -> None:
        assert len(await texts(tab, ".item")) == 2
        (tmp_path / "three.jsonl").write_bytes(whole)
        await tab.until("document.querySelectorAll('.item').length === 3")

    in_browser(tmp_path, act)


@pytest.mark.parametrize("width", [420, 1000, 1600])
def test_nothing_is_wider_than_the_window(folder: Path, width: int) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.size(width, 800)
        for key in "1234":
            await tab.press(key)
            await shot(tab, f"{width}-{key}")
            assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
            assert await tab.run("document.querySelector('h1').clientWidth > 150")

    in_browser(folder / "long.jsonl", act)


def test_a_phone_shows_how_each_run_ended_and_how_long_it_took(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.size(420, 800)
        shown = await text(tab, ".item")
        assert all(words in shown for words in ("long.jsonl", "answered", "4.55 s", "unfinished", "unknown"))
        cut = "[...document.querySelectorAll('.asked > span')].some((one) => one.scrollWidth > one.clientWidth)"
        assert not await tab.run(cut)
        assert "Failed calls" in await text(tab, ".head")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        right = "[...document.querySelectorAll('.item > *')].map((node) => node.getBoundingClientRect().right)"
        assert max(await tab.run(right)) <= 420
        await shot(tab, "phone")

    in_browser(folder, act)


@pytest.mark.parametrize("key", ["Enter", "Escape", "ArrowDown"])
def test_the_filter_of_the_messages_can_be_left_by_keyboard(folder: Path, key: str) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("2", "/", "b", key)
        assert await tab.run("document.activeElement.id") != "filter"
        await tab.press("3")
        await tab.until("document.querySelector('.head.events') !== null")

    in_browser(folder / "long.jsonl", act)


def test_thirty_broken_lines_leave_room_for_the_run(folder: Path, tmp_path: Path) -> None:
    first, *lines = (folder / "long.jsonl").read_text().splitlines()
    path = tmp_path / "broken.jsonl"
    notes = ['{"line":"note","text":"the disk is full"}'] * 30
    path.write_text("\n".join([first, *["broken"] * 30, *notes, *lines]) + "\n")

    async def act(tab: chromium.Tab, address: str) -> None:
        assert len(await texts(tab, ".banner")) == 8
        assert await tab.run("document.querySelector('.list').clientHeight") > 250

    in_browser(path, act)


def test_time_is_zoomed_and_moved_by_keys_and_wheel(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        left = "document.querySelectorAll('.lane')[1].querySelector('.bar').getBoundingClientRect().left"
        before = await tab.run(left)
        await tab.press("+")
        zoomed = await tab.run(left)
        assert zoomed < before
        await tab.press("ArrowLeft")
        assert await tab.run(left) > zoomed
        await tab.press("0")
        assert await tab.run(left) == pytest.approx(before, abs=8)
        axis = await tab.run("document.querySelector('.ticks').getBoundingClientRect().top")
        await tab.wheel(700, axis + 10, -200)
        await tab.settle()
        assert await tab.run("document.querySelector('.range') !== null")

    in_browser(folder / "long.jsonl", act)


def test_messages_are_those_of_the_request_and_new_ones_are_marked(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("2", "ArrowDown")
        assert (len(await texts(tab, ".message")), len(await texts(tab, ".message.new"))) == (5, 2)
        assert "its answer" in await text(tab, ".message.answer")
        await shot(tab, "messages")

    in_browser(folder / "long.jsonl", act)


def test_events_are_filtered_and_opened(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.press("3", "/")
        for letter in "retried":
            await tab.press(letter)
        assert len(await texts(tab, ".item")) == 1
        await tab.press("Enter", "Enter")
        assert "the connection was lost" in await text(tab, "aside")

    in_browser(folder / "long.jsonl", act)


def test_a_run_without_an_end_has_a_banner_and_is_shown(folder: Path) -> None:
    async def act(tab: chromium.Tab, address: str) -> None:
        banners = await texts(tab, ".banner")
        assert "has no end" in banners[0]
        assert "is cut" in banners[1]
        assert len(await texts(tab, ".lane")) > 4
        await shot(tab, "cut")

    in_browser(folder / "cut.jsonl", act)


def test_hostile_text_has_no_effect(tmp_path: Path) -> None:
    words = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u2028"
    call: dict[str, Any] = {"id": words, "name": words, "arguments": {words: words}, "complete": True}
    said = {"role": "user", "content": [{"type": "text", "text": words}]}
    lines: list[dict[str, Any]] = [
        {"line": "run", "schema": 1, "run": words, "time": 1.0, "model": words, "messages": [said]},
        {"line": "request", "at": 0, "turn": 0, "keep": 0, "messages": [said]},
        {"line": "delta", "at": 0.1, "turn": 0, "delta": "call_ready", "call": call},
        {"line": "note", "text": words},
    ]
    path = tmp_path / "hostile.jsonl"
    path.write_bytes(b"".join(convert(json.dumps(line).encode() + b"\n" for line in lines)))
    page = tmp_path / "hostile.html"
    page.write_bytes(whole_page(Shelf(path))[0])

    async def act(tab: chromium.Tab, address: str) -> None:
        for place in (address, page.as_uri()):
            await tab.open(place)
            for key in "1234":
                await tab.press(key)
                assert words[:20] in await tab.run("document.body.innerText")
                assert await tab.run("document.querySelector('img, #view script') === null")
                assert await tab.run("document.title !== 'run'")

    in_browser(path, act)


_FRAME = """new Promise((done) => requestAnimationFrame(() => {
  const number = %d; %s; requestAnimationFrame(() => setTimeout(done));
}))"""
_SCROLL = "document.querySelector('.list').scrollTop += 300"
_ZOOM = (
    "document.querySelector('.list').dispatchEvent(new WheelEvent('wheel', {deltaY: number < 50 ? -40 : 40, "
    "ctrlKey: true, clientX: 900, cancelable: true}))"
)


async def work(tab: chromium.Tab, act: str, frames: int = 100) -> list[float]:
    """Milliseconds of CPU time of the page's thread for each frame: script, style, layout and painting."""

    async def used() -> float:
        metrics = (await tab.ask("Performance.getMetrics"))["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration") * 1000

    times: list[float] = []
    for number in range(frames):
        before = await used()
        await tab.run(_FRAME % (number, act))
        times.append(await used() - before)
    return sorted(times)


def test_ten_thousand_events_scroll_smoothly(tmp_path: Path) -> None:
    path = large_run.write(tmp_path / "large.jsonl")
    assert len(read_recording(path).events) > 10_000
    measured: dict[str, list[float]] = {}

    async def act(tab: chromium.Tab, address: str) -> None:
        await tab.ask("Performance.enable", timeDomain="threadTicks")
        measured["nothing"] = await work(tab, "0")
        measured["waterfall, scrolled"] = await work(tab, _SCROLL)
        measured["waterfall, zoomed"] = await work(tab, _ZOOM)
        await tab.press("3")
        measured["events, scrolled"] = await work(tab, _SCROLL)
        assert len(await texts(tab, ".item")) < 100

    in_browser(path, act)
    own = median(measured["nothing"])  # what the measuring takes
    told = {name: (round(median(each) - own, 1), round(each[-6] - own, 1)) for name, each in measured.items()}
    assert all(slow < FRAME for _, slow in told.values()), told
    if SHOTS:
        (Path(SHOTS) / "frames.json").write_text(json.dumps(told, indent=2))
