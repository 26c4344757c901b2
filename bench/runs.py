"""The numbers of a run: `make bench`. One streamed run is 3 calls in 20 deltas, 3 trivial tools, then text.

Against it: a bare aiohttp + orjson loop (and the leanest form of it), and a hand-written loop over the `openai`
package, on the same upstream, which is a process of its own. Ratios of CPU time, measured interleaved; the median.
"""

from __future__ import annotations

import asyncio
import gc
import os
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
    """What one writes by hand with aiohttp and orjson, line by line: it trusts every byte."""

    async def ask(messages: list[dict[str, Any]]) -> tuple[str, Calls]:
        body = orjson.dumps({"model": "gpt-5", "messages": messages, "tools": [SPEC], "stream": True})
        text, calls = "", {}
        async with session.post(f"{url}/chat/completions", data=body, headers=HEADERS) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    text += take(orjson.loads(line[6:]), calls)
        return text, calls

    return looped(ask)


def leanest_loop(session: aiohttp.ClientSession, url: str) -> Runner:
    """The same, cut at blank lines in whatever arrives at once: the least that this client can cost."""

    async def ask(messages: list[dict[str, Any]]) -> tuple[str, Calls]:
        body = orjson.dumps({"model": "gpt-5", "messages": messages, "tools": [SPEC], "stream": True})
        text, calls, buffer = "", {}, b""
        async with session.post(f"{url}/chat/completions", data=body, headers=HEADERS) as response:
            async for chunk in response.content.iter_any():
                *events, buffer = (buffer + chunk).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        text += take(orjson.loads(event[6:]), calls)
        return text, calls

    return looped(ask)


Calls = dict[int, dict[str, Any]]
Ask = Callable[[list[dict[str, Any]]], Awaitable[tuple[str, Calls]]]


def take(event: dict[str, Any], calls: Calls) -> str:
    delta = event["choices"][0]["delta"]
    for part in delta.get("tool_calls", ()):
        call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] = part.get("id") or call["id"]
        call["name"] = part["function"].get("name") or call["name"]
        call["arguments"] += part["function"].get("arguments") or ""
    return delta.get("content") or ""


def looped(ask: Ask) -> Runner:
    """Ask, run the calls, ask again, until there is none."""

    async def run() -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": QUESTION},
        ]
        while True:
            text, calls = await ask(messages)
            if not calls:
                return text
            made = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls.values()
            ]
            messages.append({"role": "assistant", "content": text or None, "tool_calls": made})
            for call in calls.values():
                result = await get_weather(**orjson.loads(call["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return run


HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer x"}


def openai_loop(client: openai.AsyncOpenAI) -> Runner:
    """The same loop by hand over the official package."""

    async def ask(messages: list[dict[str, Any]]) -> tuple[str, Calls]:
        text, calls = "", {}
        asked: Any = {"model": "gpt-5", "messages": messages, "tools": [SPEC], "stream": True}
        async for chunk in await client.chat.completions.create(**asked):
            if not chunk.choices:
                continue
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for part in delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                call["name"] = part.function.name or call["name"]
                call["arguments"] += part.function.arguments or ""
        return text, calls

    return looped(ask)


def our_agent(url: str, retrying: bool = True) -> Agent:
    model = connect("openai:gpt-5", base_url=url, api_key="x")
    return Agent(model if retrying else model.model, tools=[tool(get_weather)], instructions=INSTRUCTIONS)


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
    began = time.process_time()
    for _ in range(times):
        text = await run()
        assert text.startswith("It is sunny"), text
    return (time.process_time() - began) / times


async def one_run(pause: float, rounds: int, times: int) -> dict[str, list[float]]:
    """CPU seconds of one run, by who ran it, side by side in each round."""
    with upstream(pause) as url:
        async with aiohttp.ClientSession() as session, openai.AsyncOpenAI(base_url=url, api_key="x") as client:
            agent = our_agent(url)
            runners: dict[str, Runner] = {
                "bare": bare_loop(session, url),
                "leanest": leanest_loop(session, url),
                "run": with_run(agent),
                "without retries": with_run(our_agent(url, retrying=False)),
                "stream": with_stream(agent),
                "openai": openai_loop(client),
            }
            for run in runners.values():
                await cpu_of(run, 5)
            gc.collect()
            gc.freeze()  # what was imported, most of it by the openai package, is nobody's garbage here
            spent: dict[str, list[float]] = {name: [] for name in runners}
            for _ in range(rounds):
                for name, run in runners.items():
                    few = max(times // 5, 2) if name == "openai" else times
                    spent[name].append(await cpu_of(run, few))
            return spent


def ratio(spent: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))


def show(spent: dict[str, list[float]], title: str, wanted: bool) -> None:
    print(title)
    for name, seconds in spent.items():
        print(f"  {name:9} {statistics.median(seconds) * 1000:7.2f} ms CPU")
    for one, other, want in (
        ("run", "bare", "at most 1.8"),
        ("stream", "bare", "at most 2.0"),
        ("openai", "run", "at least 7"),
        ("run", "without retries", "at most 1.05"),
        ("run", "leanest", ""),
    ):
        print(f"  {one} / {other:9} {ratio(spent, one, other):6.2f}   {want if wanted else ''}".rstrip())


MANY = 500


def many(who: str, url: str) -> None:
    """500 runs at once, in a process of its own: prints CPU seconds and the megabytes that they took more."""

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            run = bare_loop(session, url) if who == "bare" else with_run(our_agent(url))
            await run()
            gc.collect()
            before, began = resident(), time.process_time()
            answers = await asyncio.gather(*(run() for _ in range(MANY)))
            spent = time.process_time() - began
            assert all(answer.startswith("It is sunny") for answer in answers)
            print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)

    asyncio.run(main())


def resident() -> float:
    """Megabytes in memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1024 / 1024


def many_at_once() -> None:
    spent: dict[str, list[float]] = {"bare": [], "unbroken": []}
    more: dict[str, list[float]] = {"bare": [], "unbroken": []}
    with upstream() as url:
        for _ in range(3):
            for who in spent:
                command = [sys.executable, __file__, who, url]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                seconds, megabytes = map(float, printed.split())
                spent[who].append(seconds)
                more[who].append(megabytes)
    print(f"{MANY} runs at once")
    for who in spent:
        print(f"  {who:8} {statistics.median(spent[who]):7.2f} s CPU   {statistics.median(more[who]):6.1f} MB more")
    print(f"  unbroken / bare {ratio(spent, 'unbroken', 'bare'):6.2f}   at most 2.3, and at most 25 MB")


def main() -> None:
    load()
    show(asyncio.run(one_run(0.0, 15, 30)), "One streamed run: 3 calls in 20 deltas, 3 tools, then text", True)
    show(asyncio.run(one_run(0.001, 3, 10)), "The same with 1 ms between chunks", False)
    many_at_once()


def load() -> None:
    one, five, _ = os.getloadavg()
    print(f"load of this machine: {one:.2f} (1 min), {five:.2f} (5 min); {os.cpu_count()} cores")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        many(*sys.argv[1:])
    else:
        main()
