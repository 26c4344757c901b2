"""The numbers of the gateway: `make bench-gateway`. CPU time of the gateway's process, which is the real one
(`unbroken serve`, SQLite), beside a bare pass-through of the same parts and, where it is installed, LiteLLM's proxy.

Upstream, gateways and load are processes of their own on 127.0.0.1. The gateways take turns, many times, in one run;
what is printed is the median of the turns, a ratio the median of the ratios of neighbours. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from gateway_client import Connection, Response, open_connection, post
from gateway_processes import HERE, Server, bare, gateway, litellm
from gateway_upstream import BURST, upstream

CONNECTIONS = 32
LITELLM = Path(sys.executable).parent.parent / "litellm" / "bin" / "litellm"
"""Where `make bench-gateway LITELLM=1` puts it."""

CHAT = "/v1/chat/completions"
KB = 1024

TOOL: dict[str, Any] = {
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


def question(model: str, size: int, **more: object) -> dict[str, Any]:
    """A request of so many bytes. Past 2 KB it is what a coding agent sends: a long system prompt, and 24 tools."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a weather service. Answer in one sentence."},
            {"role": "user", "content": "How is the weather there?"},
        ],
        "tools": [TOOL],
        **more,
    }
    if size > 2 * KB:
        function = {**TOOL["function"], "description": "What it does, at length. " * 80}
        body["tools"] = [{**TOOL, "function": {**function, "name": f"tool_{n}"}} for n in range(24)]
    missing = size - len(orjson.dumps(body))
    body["messages"][0]["content"] += " Say what is so." * (missing // 16 + 1)
    return body


@dataclass(slots=True)
class Line:
    what: str
    measured: float
    unit: str
    want: float | None = None
    """At most so much."""
    note: str = ""

    @property
    def ok(self) -> bool | None:
        return None if self.want is None else self.measured <= self.want


@dataclass(slots=True)
class Spent:
    """CPU seconds for one thing, turn after turn, by the name of who did it."""

    turns: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, name: str, seconds: float) -> None:
        self.turns.setdefault(name, []).append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self.turns[name])

    def ratio(self, name: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(self.turns[name], self.turns[other], strict=True))


Work = Callable[[Connection], Awaitable[int]]
"""Something done on one connection, again and again: how many things (requests, chunks) that was."""


def asking(request: bytes, things: int = 1) -> Work:
    async def work(connection: Connection) -> int:
        response = await connection.ask(request)
        assert response.status == 200, response.body[:500]
        return things

    return work


async def serial_conversation(connection: Connection, number: int) -> int:
    """The seed's example: the model answers with three calls, the client gets them one by one, then text."""
    body = question("calls", KB, parallel_tool_calls=False)
    body["messages"][1]["content"] += f" ({number})"
    for asked in range(1, 6):
        response = await connection.ask(post(CHAT, body))
        assert response.status == 200, response.body[:500]
        message = orjson.loads(response.body)["choices"][0]["message"]
        if not (calls := message.get("tool_calls")):
            assert asked == 4, f"text after {asked} requests"
            return asked
        assert len(calls) == 1, calls
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny, 21 degrees"}
        body["messages"] += [{"role": "assistant", "content": None, "tool_calls": calls}, result]
    raise AssertionError("more calls than there were")


def conversing() -> Work:
    numbers = iter(range(1_000_000_000))

    async def work(connection: Connection) -> int:
        return await serial_conversation(connection, next(numbers))

    return work


async def cpu_of(server: Server, work: Work, times: int, connections: int) -> float:
    """CPU seconds of the server for each thing."""
    opened = [await open_connection(server.port) for _ in range(connections)]
    left = times
    done = 0

    async def keep_on(connection: Connection) -> None:
        nonlocal left, done
        while left > 0:
            left -= 1
            things = await work(connection)
            done += things

    began = server.cpu()
    await asyncio.gather(*map(keep_on, opened))
    spent = server.cpu() - began
    for connection in opened:
        connection.close()
    return spent / done


async def take_turns(
    servers: Sequence[Server], work: Work, times: int, turns: int, connections: int = CONNECTIONS
) -> Spent:
    spent = Spent()
    for server in servers:
        await cpu_of(server, work, max(times // 4, connections), connections)
    for turn in range(turns):
        for server in servers if turn % 2 else reversed(servers):
            few = max(times // 8, 1) if server.name == "litellm" else times
            spent.add(server.name, await cpu_of(server, work, few, connections))
    return spent


async def first_chunks(ports: dict[str, int], times: int) -> dict[str, float]:
    """The median of seconds to the first byte of a streamed body, one request at a time, each in its turn. Who comes
    after whom changes: they are made of the same parts, and one finds them warm in the processor's caches."""
    request = post(CHAT, question("slow", KB, stream=True))
    connections = {name: await open_connection(port) for name, port in ports.items()}
    found: dict[str, list[float]] = {name: [] for name in ports}
    for turn in range(times + 3):
        order = list(connections.items())
        random.shuffle(order)
        for name, connection in order:
            response: Response = await connection.ask(request)
            assert response.status == 200, response.body[:500]
            if turn >= 3:
                found[name].append(response.first)
    for connection in connections.values():
        connection.close()
    return {name: statistics.median(seconds) for name, seconds in found.items()}


class Bench:
    def __init__(self, servers: dict[str, Server], upstream: int, quick: bool) -> None:
        self.servers = servers
        self.lines: list[Line] = []
        self._upstream = upstream
        self._turns = 3 if quick else 9
        self._times = 200 if quick else 600

    async def run(self) -> None:
        await self._pass_through()
        await self._serial()
        await self._first_chunk()
        await self._bursts()

    def add(self, what: str, measured: float, unit: str, want: float | None = None, note: str = "") -> None:
        self.lines.append(Line(what, measured, unit, want, note))

    def _some(self, *names: str) -> list[Server]:
        return [self.servers[name] for name in names if name in self.servers]

    def _rest(self, spent: Spent, what: str, unit: str, scale: float) -> None:
        for name in spent.turns:
            if name != "gateway":
                self.add(f"  {what}, {name}", spent.median(name) * scale, unit)

    async def _pass_through(self) -> None:
        beside = self._some("gateway", "bare", "litellm")
        for size, want in ((1, 0.4), (76, None)):
            work = asking(post(CHAT, question("calls", size * KB)))
            spent = await take_turns(beside, work, self._times, self._turns)
            what = f"pass-through, body of {size} KB"
            self.add(what, spent.median("gateway") * 1e3, "ms", want, f"{CONNECTIONS} connections, CPU a request")
            self.add(f"  {what}: times bare", spent.ratio("gateway", "bare"), "x", 2.0 if want else None)
            self._rest(spent, what, "ms", 1e3)
        streamed = asking(post(CHAT, question("calls", KB, stream=True)))
        spent = await take_turns(beside, streamed, self._times // 2, self._turns)
        self.add("pass-through, streamed in 20 deltas", spent.median("gateway") * 1e3, "ms")
        self._rest(spent, "streamed", "ms", 1e3)
        for what, more in (("whole", {}), ("streamed", {"stream": True})):
            work = asking(post(CHAT, question("crossed", KB, **more)))
            spent = await take_turns(self._some("gateway"), work, self._times // 2, self._turns)
            self.add(f"openai-chat client, anthropic upstream, {what}", spent.median("gateway") * 1e3, "ms")

    async def _serial(self) -> None:
        spent = await take_turns(self._some("gateway", "in memory"), conversing(), self._times // 4, self._turns)
        self.add("serial mode, mean of the example's 4 requests", spent.median("gateway") * 1e3, "ms", 1.2, "SQLite")
        self._rest(spent, "serial mode", "ms", 1e3)

    async def _first_chunk(self) -> None:
        ports = {"direct": self._upstream, **{server.name: server.port for server in self._some("gateway", "bare")}}
        if "litellm" in self.servers:
            ports["litellm"] = self.servers["litellm"].port
        seconds = await first_chunks(ports, self._turns * 7)
        direct = seconds.pop("direct")
        added = {name: (value - direct) * 1e3 for name, value in seconds.items()}
        note = f"wall clock; direct {direct * 1e3:.2f} ms"
        self.add("first chunk, added latency", added.pop("gateway"), "ms", 1.0, note)
        for name, value in added.items():
            self.add(f"  first chunk, {name}", value, "ms")

    async def _bursts(self) -> None:
        beside = self._some("gateway", "bare", "litellm")
        for model, want in (("burst", 60.0), ("drip", None)):
            work = asking(post(CHAT, question(model, KB, stream=True)), BURST)
            spent = await take_turns(beside, work, 8, self._turns, connections=1)
            what = f"a chunk in a burst of {BURST:,}" if model == "burst" else "the same, a write for each chunk"
            self.add(what, spent.median("gateway") * 1e6, "us", want)
            self._rest(spent, "a chunk", "us", 1e6)
        serial = asking(post(CHAT, question("burst", KB, stream=True, parallel_tool_calls=False)), BURST)
        spent = await take_turns(self._some("gateway"), serial, 8, self._turns, connections=1)
        self.add("a chunk in a burst, serial mode", spent.median("gateway") * 1e6, "us")


def starts(port: int, directory: Path, times: int) -> float:
    """Seconds from the start of the process to the first 200; the median."""
    seconds: list[float] = []
    for number in range(times):
        with gateway(port, directory, name=f"started{number}") as server:
            seconds.append(server.started)
    return statistics.median(seconds)


def load(quick: bool) -> dict[str, Any]:
    """A short run of `gateway_load`, in its own processes."""
    command = [sys.executable, str(HERE / "gateway_load.py"), "--seconds", "5" if quick else "15", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def measure(quick: bool, with_litellm: Path | None, with_load: bool) -> list[Line]:
    with tempfile.TemporaryDirectory() as place, upstream() as port, ExitStack() as stack:
        directory = Path(place)
        started = starts(port, directory, 1 if quick else 3)
        servers = {"gateway": stack.enter_context(gateway(port, directory))}
        idle = servers["gateway"].megabytes()
        servers["bare"] = stack.enter_context(bare(port, directory))
        servers["in memory"] = stack.enter_context(gateway(port, directory, "memory:", "in memory"))
        if with_litellm is not None:
            servers["litellm"] = stack.enter_context(litellm(port, directory, with_litellm))
        bench = Bench(servers, port, quick)
        uvloop.run(bench.run())
        bench.add("memory, idle", idle, "MB", 60)
        bench.add("memory, the most while all this was measured", servers["gateway"].peak_megabytes(), "MB", 80)
        bench.add("from the start of the process to the first 200", started, "s", 0.7)
        for name, server in servers.items():
            if name in ("bare", "litellm"):
                note = f"{server.started:.1f} s to start"
                bench.add(f"  memory, {name}", server.peak_megabytes(), "MB", note=note)
        if not quick:
            from gateway_features import costs  # noqa: PLC0415 - it uses this module

            for name, ratio in costs(port, directory, servers["gateway"], 200, 5).items():
                bench.add(f"CPU with {name}: times without", ratio, "x")
        if with_load:
            found = load(quick)
            note = f"{found['requests']:,} requests, {len(found['problems'])} problems"
            bench.add("memory, 200 connections", found["megabytes_peak"], "MB", 80, note)
            bench.add("  lost or mixed-up answers", len(found["problems"]), "", 0)
        return bench.lines


def show(lines: Sequence[Line]) -> None:
    print(f"{'':56}{'measured':>10}      {'want':>8}")
    for line in lines:
        ok = {True: "ok", False: "MISSED", None: ""}[line.ok]
        want = "" if line.want is None else f"<= {line.want:g}"
        print(f"{line.what:56}{line.measured:10.2f} {line.unit:3}  {want:>8}  {ok:7}{line.note}".rstrip())


def _version(program: Path) -> str:
    """Of the package beside this program."""
    code = "import importlib.metadata as packages; print(packages.version('litellm'))"
    return subprocess.run([program.parent / "python", "-c", code], capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns: numbers to look at, not to quote")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-load", action="store_true", help="without the short run of gateway_load.py")
    parser.add_argument("--litellm", type=Path, default=LITELLM, help="its program; left out where it is not")
    given = parser.parse_args()
    present = given.litellm.exists()
    if not given.json:
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
        if not present:
            print("LiteLLM is not installed: make bench-gateway LITELLM=1 puts it beside")
        else:
            print(f"LiteLLM {_version(given.litellm)}")
    began = time.perf_counter()
    lines = measure(given.quick, given.litellm if present else None, not given.no_load)
    if given.json:
        print(json.dumps([{**asdict(line), "ok": line.ok} for line in lines], indent=1))
    else:
        show(lines)
        print(f"in {time.perf_counter() - began:.0f} s; load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
