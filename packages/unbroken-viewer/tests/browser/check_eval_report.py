"""The report of an evaluation in a real Chromium: its policy refuses nothing of its own, its filters and links work,
and nothing is wider than a telephone.

`make test-viewer` runs it; the default tests need no browser. `UNBROKEN_SHOTS=DIR` saves screenshots.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import chromium
import pytest

from unbroken import Agent, Request, ScriptedModel, ToolMessage, tool
from unbroken.models.scripted import Answer
from unbroken_testing import Call, Uses
from unbroken_testing.evals import Case, Evaluation, called, compare, contains, evaluate, exact, judge
from unbroken_testing.evals.report import write_report

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed here")

SHOTS = os.environ.get("UNBROKEN_SHOTS")
VISIBLE = "[...document.querySelectorAll('details.case')].filter((each) => each.checkVisibility()).length"


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city."""
    return {"Oslo": "snow, -3 degrees", "Rome": "sunny, 24 degrees"}[city]


class Weatherman:
    """Answers worse the second time, and never in the same way when a coin is flipped."""

    def __init__(self, gruff: bool) -> None:
        self._gruff = gruff
        self._flips = 0

    def __call__(self, request: Request) -> Answer:
        last: Any = request.messages[-1]
        if isinstance(last, ToolMessage):
            first, *others = last.results
            return ["Rome is warmer." if others else f"There is {first.text}.", Uses(420, 16)]
        if "coin" in last.text:
            self._flips += 1
            return ["Heads." if self._flips % 2 else "Tails.", Uses(160, 3)]
        cities = [city for city in ("Rome", "Oslo") if city in last.text]
        if cities:
            return [*(Call("get_weather", city=city) for city in cities), Uses(200, 24)]
        return ["What?" if self._gruff else "Hello. Which city do you mean?", Uses(160, 9)]


def verdict(request: Request) -> Answer:
    gruff = "What?" in str(request.messages[-1])
    reason = "It asks, but not politely." if gruff else "It asks which city is meant."
    return [Call("final_answer", score=0.4 if gruff else 0.9, reason=reason), Uses(240, 30)]


POLITE = judge(ScriptedModel(verdict), "Asks for what is missing, politely.")
CASES = [
    Case("oslo", "What is the weather in Oslo?", [contains("snow")], tools=["get_weather"], tags=["smoke"]),
    Case(
        "two-cities",
        "Is Rome warmer than Oslo?",
        [called({"get_weather": {"city": "Rome"}}, {"get_weather": {"city": "Oslo"}}), contains("warmer")],
    ),
    Case("greeting", "Hello.", [called(only=True), POLITE]),
    Case("coin", "Flip a coin.", [exact("Heads.")]),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def twice() -> Path | None:
        folder = tmp_path_factory.mktemp("evals")
        found: list[Evaluation] = []
        for name, gruff in (("before", False), ("now", True)):
            agent = Agent(ScriptedModel(Weatherman(gruff)), [get_weather], name="weather")
            found.append(await evaluate(agent, CASES, repeat=3, out=folder / name))
        before, now = found
        return write_report(now, compare(before, now))

    page = asyncio.run(twice())
    assert page is not None
    return page


async def shot(tab: chromium.Tab, name: str) -> None:
    if SHOTS:
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_report_opens_filters_and_links_without_a_complaint(report: Path, theme: str) -> None:
    async def look() -> None:
        async with chromium.browser() as tab:
            await tab.size(1440, 860)
            await tab.theme(theme)
            await tab.open(report.as_uri(), "document.querySelector('.case') !== null")
            await tab.run("document.querySelectorAll('.case')[2].open = true")
            await shot(tab, f"evals-{theme}")
            seen: dict[str, int] = {}
            for id in ("all", "failed", "flaky", "changed"):
                await tab.run(f"document.getElementById('show-{id}').click()")
                seen[id] = await tab.run(VISIBLE)
            assert seen == {"all": 4, "failed": 2, "flaky": 1, "changed": 1}
            for width in (390, 700, 1440):
                await tab.size(width, 900)
                assert await tab.run("document.documentElement.scrollWidth") <= width
            link = await tab.run("document.querySelector('.case[open] a').href")
            await tab.open(link)
            assert await tab.run("document.querySelector('h1').innerText") == "Hello."
            assert tab.complaints == []

    asyncio.run(look())
