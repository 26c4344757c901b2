"""The numbers of a run: `make bench`. One streamed run is 3 calls in 20 deltas, 3 trivial tools, then text.

Against it: a bare aiohttp + orjson loop (the floor) and a hand-written loop over the `openai` package, on the same
upstream, which is a process of its own. Ratios of CPU time, measured interleaved; the median.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import openai
import orjson
from upstream import upstream

from unbroken import Agent, connect, tool

QUESTION = "How is the weather there?"
INSTRUCTIONS = "You are a weather service. Answer in one sentence."


async def get_weather(city: str, days: int) -> str:
    """How the weather will be in a city."""
    return f"sunny in {city} for {days} days"


SPEC = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "How the weather will be in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}

Runner = Callable[[], Awaitable[str]]


def bare_loop(session: aiohttp.ClientSession, url: str) -> Runner:
    """What one writes by hand when only the time counts: it trusts every byte."""

    async def ask(messages: list[dict[str, Any]]) -> tuple[str, dict[int, dict[str, Any]]]:
        body = orjson.dumps({"model": "gpt-5", "messages": messages, "tools": [SPEC], "stream": True})
        text, calls, buffer = "", {}, b""
        async with session.post(f"{url}/chat/completions", data=body, headers=HEADERS) as response:
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n\n")
                for line in lines:
                    if line == b"data: [DONE]":
                        continue
                    delta = orjson.loads(line[6:])["choices"][0]["delta"]
                    text += delta.get("content") or ""
                    for part in delta.get("tool_calls", ()):
                        call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                        call["id"] = part.get("id") or call["id"]
                        call["name"] = part["function"].get("name") or call["name"]
                        call["arguments"] += part["function"].get("arguments") or ""
        return text, calls

    async def run() -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ]
        while True:
            text, calls = await ask(messages)
            if not calls:
                return text
            messages.append({"role": "assistant", "content": text or None, "tool_calls": [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls.values()
            ]})
            for call in calls.values():
                result = await get_weather(**orjson.loads(call["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run


HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer x"}


def openai_loop(client: openai.AsyncOpenAI) -> Runner:
    async def run() -> str:
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ]
        while True:
            text, calls = "", {}
            stream = await client.chat.completions.create(
                model="gpt-5", messages=messages, tools=[SPEC], stream=True  # type: ignore[list-item]
            )
            async for chunk in stream:
                if not chunk.choices:
                    continue
                delta = chunk.choices[0].delta
                text += delta.content or ""
                for part in delta.tool_calls or ():
                    call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                    call["id"] = part.id or call["id"]
                    call["name"] = part.function.name or call["name"]
                    call["arguments"] += part.function.arguments or ""
            if not calls:
                return text
            messages.append({"role": "assistant", "content": text or None, "tool_calls": [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls.values()
            ]})
            for call in calls.values():
                result = await get_weather(**json.loads(call["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run


def our_agent(url: str) -> Agent:
    return Agent(connect("openai:gpt-5", base_url=url, api_key="x"), tools=[tool(get_weather)], instructions=INSTRUCTIONS)


def with_run(agent: Agent) -> Runner:
    async def run() -> str:
        return (await agent.run(QUESTION)).text

    return run


def with_stream(agent: Agent) -> Runner:
    async def run() -> str:
        stream = agent.stream(QUESTION)
        async for _ in stream:
            pass
        return stream.result.text

    return run


async def cpu_of(run: Runner, times: int) -> float:
    gc.collect()
    began = time.process_time()
    for _ in range(times):
        text = await run()
        assert text.startswith("It is sunny"), text
    return (time.process_time() - began) / times


async def one_run(pause: float, rounds: int, times: int) -> dict[str, list[float]]:
    """CPU seconds of one run, by who ran it, side by side in each round."""
    with upstream(pause) as url:
        async with aiohttp.ClientSession() as session:
            agent = our_agent(url)
            runners: dict[str, Runner] = {
                "bare": bare_loop(session, url),
                "run": with_run(agent),
                "stream": with_stream(agent),
                "openai": openai_loop(openai.AsyncOpenAI(base_url=url, api_key="x")),
            }
            for run in runners.values():
                await cpu_of(run, 5)
            spent: dict[str, list[float]] = {name: [] for name in runners}
            for _ in range(rounds):
                for name, run in runners.items():
                    few = max(times // 5, 2) if name == "openai" else times
                    spent[name].append(await cpu_of(run, few))
            return spent


def ratio(spent: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))


def show(spent: dict[str, list[float]], title: str) -> None:
    print(title)
    for name, seconds in spent.items():
        print(f"  {name:8} {statistics.median(seconds) * 1000:7.2f} ms CPU")
    print(f"  run / bare     {ratio(spent, 'run', 'bare'):6.2f}   (at most 1.8)")
    print(f"  stream / bare  {ratio(spent, 'stream', 'bare'):6.2f}   (at most 2.0)")
    print(f"  openai / run   {ratio(spent, 'openai', 'run'):6.2f}   (at least 7)")


def main() -> None:
    show(asyncio.run(one_run(0.0, 15, 30)), "One streamed run: 3 calls in 20 deltas, 3 tools, then text")
    show(asyncio.run(one_run(0.001, 3, 10)), "The same with 1 ms between chunks")


if __name__ == "__main__":
    main()
