"""Recordings of every kind that the page has to show, written in a moment on a virtual clock: a run that fails, one
whose process died, one with agents inside agents and a call in the background, one in Chinese, and a request of a
gateway's client."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

from a_long_run import START
from gateway_client import QUESTION, THREE_CALLS, Client, serving, settings_for, upstream_settings

from unbroken import Agent, ScriptedModel, tool
from unbroken.errors import ProviderError, UnbrokenError
from unbroken.models.scripted import Fail
from unbroken.trajectory.recorder import Recorder
from unbroken_gateway.settings import UpstreamSettings
from unbroken_testing import Break, Call, Say, ScriptedServer, Step, Uses, run_virtual
from unbroken_wires.messages import User

CHINESE = "请帮我规划一次去杭州的两日旅行，包括西湖、灵隐寺和龙井村，并预订一家安静的旅馆。"


@tool(effect="read")
async def search(query: str) -> str:
    """Search the web."""
    await asyncio.sleep(0.8)
    return f"three pages about {query}"


@tool(effect="read", background=0.5)
async def build_index(folder: str) -> str:
    """Takes long."""
    await asyncio.sleep(4.0)
    return f"{folder}: 1,200 files"


@tool(effect="read")
async def get_weather(城市: str) -> str:
    """The weather of a city, in Chinese."""
    await asyncio.sleep(0.6)
    return f"{城市}：多云，二十二度，东南风三级，湿度百分之六十五。"


def team(slow: float = 1.0) -> Agent:
    """A writer that has a researcher, and an index that is built in the background."""
    found = [Say("Looking. ", over=0.3 * slow), Call("search", query="tides"), Uses(120, 18)]
    researcher = Agent(
        ScriptedModel(found, [Say("Tides follow the moon.", over=0.5 * slow), Uses(90, 9)]),
        [search],
        name="researcher",
    )
    asks = [Say("I need facts. ", over=0.2 * slow), Call("researcher", task="Facts about tides"), Uses(200, 22)]
    writer = Agent(
        ScriptedModel(asks, [Say("A page about tides, with the moon in it.", over=0.6 * slow), Uses(150, 40)]),
        [researcher.as_tool("researcher", "Finds things out.")],
        name="writer",
    )
    begins = [Say("On it. ", over=0.2 * slow), Call("build_index", folder="notes"), Call("writer", task="Tides")]
    ends = [Say("Your page is written, and the index has 1,200 files.", over=0.6 * slow), Uses(310, 30)]
    model = ScriptedModel(begins, ends, ends)
    return Agent(model, [writer.as_tool("writer", "Writes a page."), build_index])


def write(folder: Path) -> Path:
    _play(team(), "Write about tides and index my notes.", folder / "team.jsonl")
    refused = ScriptedModel(
        [Say("Let me see. ", over=0.4), Call("search", query="a hotel")],
        Fail(ProviderError("quota exceeded: your plan allows 50 requests a day", status=429)),
    )
    _play(Agent(refused, [search]), "Find a hotel in Rome for three nights.", folder / "failed.jsonl")
    _play(team(), "Write about storms.", folder / "killed.jsonl")
    lines = (folder / "killed.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "killed.jsonl").write_bytes(b"".join(lines[: len(lines) * 2 // 3]))
    os.utime(folder / "killed.jsonl", (START, START))  # nothing was added to it lately
    chinese = ScriptedModel(
        [
            Say("我先查询两地的天气。", over=0.4),
            *(Call("get_weather", 城市=city) for city in ("杭州", "龙井村")),
            Uses(180, 26),
        ],
        [Say("第一天游览西湖与灵隐寺，第二天去龙井村品茶；旅馆已经选好，安静并且靠近湖边。", over=0.9), Uses(320, 48)],
    )
    _play(Agent(chinese, [get_weather], "你是一名旅行顾问。"), CHINESE, folder / "chinese.jsonl")
    asyncio.run(_gateway(folder))
    return folder


def _play(agent: Agent, question: str, path: Path) -> None:
    async def main() -> None:
        with suppress(UnbrokenError):  # one of them is meant to fail
            await agent.run(question, sinks=[Recorder(path)])

    run_virtual(main, START)


async def _gateway(folder: Path) -> None:
    """A client that takes one call at a time, whose model breaks off, and a fallback that answers."""
    there = folder / "gateway"
    broken: list[str | Step] = [Say("Let me "), Break()]
    async with ScriptedServer(broken) as first, ScriptedServer(THREE_CALLS) as second:
        rows = (
            upstream_settings(first, "openai-chat", "fast", fallback=("spare",), options={"attempts": 1}, serial=True),
            UpstreamSettings("spare", "anthropic:claude-opus-4-1", base_url=second.base_url("anthropic-messages")),
        )
        async with serving(settings_for(*rows, record=str(there))) as url:
            agent = {"User-Agent": "claude-cli/2.1.4 (external, cli)"}
            client = Client(url, "openai-responses", True, model="fast", headers=agent)
            body = {**client.body([User.of(QUESTION)]), "top_logprobs": 3}
            await client.post(json.dumps(body).encode())
    (path,) = there.glob("*.jsonl")
    path.rename(folder / "gateway.jsonl")
    there.rmdir()
