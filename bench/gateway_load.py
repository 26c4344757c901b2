"""Many clients at once, an upstream that breaks 5 % of its streams: no answer may be lost or somebody else's.

Each request carries a mark that comes back in the text and in the arguments of the calls; the answer has to be exactly
what the upstream says for it, or a well-formed error of the client's wire. Half of the answers are streamed. Some
clients want their calls one by one, some speak anthropic, some are refused, some go away in the middle. What the
gateway holds is looked at from outside: memory, open files, how it stops. `test_load.py` of the gateway runs it small.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from gateway_client import Connection, Lost, Response, get, open_connection, post
from gateway_processes import Server, gateway
from gateway_upstream import marked_arguments, marked_text, upstream

BROKEN = 0.05
PATIENCE = 30.0
"""Seconds in which every answer has to be there."""
GONE_WITHIN = 1.0
"""Seconds after which the upstream has to know that the client has gone."""
NEVER = 999.0
GROWTH = 0.10
"""How much more memory the last third may take than the first, after the warm-up."""
SPARE_FILES = 8
"""Open files beyond those of the start and of kept connections: the store's."""
COMPLAINTS = ("Traceback", "was destroyed but", "never retrieved", "Unclosed", "never awaited")
"""What no log of a gateway holds."""

NOTE: dict[str, Any] = {"type": "object", "properties": {"mark": {"type": "string"}, "part": {"type": "integer"}}}


@dataclass(slots=True)
class Said:
    """What an answer said, whatever its wire."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """`id` and `arguments`, as text."""
    ended: bool = False
    error: str = ""


def events(body: bytes) -> Iterator[bytes]:
    for event in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                yield line[5:].strip()


def read_chat(response: Response, streamed: bool) -> Said:
    said = Said()
    if not streamed or response.status != 200:
        body = orjson.loads(response.body)
        if response.status != 200:
            said.error = body["error"]["message"]
            return said
        message = body["choices"][0]["message"]
        said.text, said.ended = message.get("content") or "", bool(body["choices"][0]["finish_reason"])
        said.calls = [
            {"id": call["id"], "arguments": call["function"]["arguments"]} for call in message.get("tool_calls") or ()
        ]
        return said
    finished = False
    calls: dict[int, dict[str, Any]] = {}
    for data in events(response.body):
        if data == b"[DONE]":
            said.ended = finished
            continue
        event = orjson.loads(data)
        if "error" in event:
            said.error = event["error"]["message"]
            return said
        for choice in event["choices"]:
            finished = finished or bool(choice.get("finish_reason"))
            said.text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"id": "", "arguments": ""})
                call["id"] = part.get("id") or call["id"]
                call["arguments"] += part["function"].get("arguments") or ""
    said.calls = [calls[index] for index in sorted(calls)]
    return said


def read_messages(response: Response, streamed: bool) -> Said:
    said = Said()
    if not streamed or response.status != 200:
        body = orjson.loads(response.body)
        if response.status != 200:
            assert body["type"] == "error", body
            said.error = body["error"]["message"]
            return said
        said.ended = bool(body["stop_reason"])
        said.text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
        said.calls = [
            {"id": block["id"], "arguments": json.dumps(block["input"])}
            for block in body["content"]
            if block["type"] == "tool_use"
        ]
        return said
    calls: dict[int, dict[str, Any]] = {}
    for data in events(response.body):
        match orjson.loads(data):
            case {"type": "error", "error": {"message": str() as message}}:
                said.error = message
                return said
            case {"type": "content_block_start", "index": int() as index, "content_block": {"type": "tool_use"} as new}:
                calls[index] = {"id": new["id"], "arguments": ""}
            case {"type": "content_block_delta", "delta": {"text": str() as text}}:
                said.text += text
            case {"type": "content_block_delta", "index": int() as index, "delta": {"partial_json": str() as piece}}:
                calls[index]["arguments"] += piece
            case {"type": "message_stop"}:
                said.ended = True
            case _:
                pass
    said.calls = [calls[index] for index in sorted(calls)]
    return said


def chat_request(text: str, streamed: bool, **more: object) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "note", "description": "Note it.", "parameters": NOTE}}
    messages = [{"role": "user", "content": text}]
    return {"model": "marks", "messages": messages, "tools": [tool], "stream": streamed, **more}


def messages_request(text: str, streamed: bool) -> dict[str, Any]:
    tool = {"name": "note", "description": "Note it.", "input_schema": NOTE}
    messages = [{"role": "user", "content": text}]
    return {"model": "marks", "max_tokens": 1000, "messages": messages, "tools": [tool], "stream": streamed}


CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


class Load:
    def __init__(self, port: int, seed: int, seconds: float, requests: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.left: dict[str, float] = {}
        """When the client of a mark went away."""
        self.seconds: list[float] = []
        self._port = port
        self._random = random.Random(seed)
        self._until = time.monotonic() + seconds
        self._least = requests

    async def run(self, connections: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._client())

    async def _client(self) -> None:
        connection = await open_connection(self._port)
        while time.monotonic() < self._until or self.counts["requests"] < self._least:
            if connection.closed:
                self.counts["reconnected"] += 1
                connection = await open_connection(self._port)
            mark = f"mark-{self._random.getrandbits(40):010x}"
            streamed = self._random.random() < 0.5
            kind = self._random.choices(("chat", "messages", "serial", "refused", "left"), (60, 20, 16, 3, 1))[0]
            self.counts[kind] += 1
            try:
                await self._ask_as(kind, connection, mark, streamed)
            except Lost as error:
                self._problem(mark, f"{kind}, {'streamed' if streamed else 'whole'}: connection lost {error}")
            except TimeoutError:
                self._problem(mark, f"{kind}, {'streamed' if streamed else 'whole'}: no answer in {PATIENCE:g} s")
                connection.close()
            except (ValueError, LookupError, AssertionError) as error:
                self._problem(mark, f"{kind}, {'streamed' if streamed else 'whole'}: malformed: {error!r}")
        connection.close()

    async def _ask_as(self, kind: str, connection: Connection, mark: str, streamed: bool) -> None:
        text = f"Answer for {mark}, please."
        match kind:
            case "left":
                await self._leave(connection, mark, streamed)
            case "refused":
                said = await self._ask(connection, CHAT, chat_request(f"{text} please refuse", streamed))
                if f"refused for {mark}" not in said.error:
                    self._problem(mark, f"refused: {said}")
            case "serial":
                await self._converse(connection, mark, streamed)
            case "messages":
                self._check(mark, await self._ask(connection, MESSAGES, messages_request(text, streamed)))
            case _:
                self._check(mark, await self._ask(connection, CHAT, chat_request(text, streamed)))

    async def _ask(self, connection: Connection, path: str, body: dict[str, Any]) -> Said:
        self.counts["requests"] += 1
        self.counts["streamed" if body["stream"] else "whole"] += 1
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            response = await connection.ask(post(path, body))
        self.seconds.append(time.monotonic() - began)
        return (read_chat if path == CHAT else read_messages)(response, body["stream"])

    def _check(self, mark: str, said: Said, parts: list[int] | None = None, of: int = 1) -> bool:
        """Whether it is an answer, and this one's own."""
        if said.error:
            self.counts["errors"] += 1
            self.counts[f"error: {said.error.replace(mark, 'MARK')[:150]}"] += 1
            return False
        wanted = marked_arguments(mark, of)
        expected = [wanted[part] for part in ([0] if parts is None else parts)]
        called = [orjson.loads(call["arguments"]) for call in said.calls]
        text = marked_text(mark) if parts in (None, [0], []) else ""
        if called != expected or said.text.strip() != text.strip() or not said.ended:
            self._problem(mark, f"expected {text!r} and {expected}, got {said}")
            return False
        self.counts["answered"] += 1
        return True

    async def _converse(self, connection: Connection, mark: str, streamed: bool) -> None:
        """Three calls in one answer of the model, one at a time for this client, and text after the last result."""
        text = f"Answer for {mark}, please call three."
        body = chat_request(text, streamed, parallel_tool_calls=False)
        for part in range(4):
            said = await self._ask(connection, CHAT, body)
            if not self._check(mark, said, [part] if part < 3 else [], 3) or part == 3:
                return
            (call,) = said.calls
            made = {"id": call["id"], "type": "function", "function": {"name": "note", "arguments": call["arguments"]}}
            message = {"role": "assistant", "content": said.text or None, "tool_calls": [made]}
            result = {"role": "tool", "tool_call_id": call["id"], "content": f"noted {mark} {part}"}
            body["messages"] += [message, result]

    async def _leave(self, connection: Connection, mark: str, streamed: bool) -> None:
        """Go away in the middle of an answer that has stopped there; a whole one has not begun."""
        started = asyncio.Event()
        body = chat_request(f"Answer for {mark}, please stall", streamed)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(self._abandoned(connection, post(CHAT, body), started))
            try:
                await asyncio.wait_for(started.wait(), 5.0 if streamed else 0.3)
            except TimeoutError:
                if streamed:
                    self._problem(mark, "left: nothing came in 5 s of an answer that stopped in its middle")
            self.left[mark] = time.monotonic()
            connection.close()
            await asked

    async def _abandoned(self, connection: Connection, request: bytes, started: asyncio.Event) -> None:
        try:
            await connection.ask(request, started)
        except Lost:
            return

    def _problem(self, mark: str, what: str) -> None:
        self.problems.append(f"{mark}: {what}")


async def watch(server: Server, samples: list[float]) -> None:
    while True:
        samples.append(server.megabytes())
        await asyncio.sleep(0.25)


async def ask_once(port: int, path: str) -> Response:
    connection = await open_connection(port)
    response = await connection.ask(get(path))
    connection.close()
    return response


def flat(samples: list[float]) -> tuple[float, float]:
    """Megabytes in the first and in the last third, the first sixth of all left out: by then everything has warmed."""
    warm = samples[len(samples) // 6 :]
    third = max(len(warm) // 3, 1)
    return statistics.mean(warm[:third]), statistics.mean(warm[-third:])


async def put_under_load(
    server: Server, up: int, connections: int, seconds: float, requests: int, seed: int
) -> dict[str, Any]:
    files, threads = server.open_files(), server.threads()
    load, samples = Load(server.port, seed, seconds, requests), [server.megabytes()]
    watching = asyncio.create_task(watch(server, samples))
    began, cpu = time.monotonic(), server.cpu()
    try:
        await load.run(connections)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    took, cpu = time.monotonic() - began, server.cpu() - cpu
    await asyncio.sleep(GONE_WITHIN + 0.5)
    problems = load.problems
    seen = orjson.loads((await ask_once(up, "/report")).body)
    problems += [f"the upstream got a broken history: {odd}" for odd in seen["odd"]]
    gone = [
        (seen["stalls"][mark]["lost"] or left + NEVER) - left
        for mark, left in load.left.items()
        if mark in seen["stalls"]
    ]
    problems += [f"the upstream was left alone {late:.1f} s too late" for late in gone if late > GONE_WITHIN]
    # What is kept for the next request is open at both ends.
    more = server.open_files() - files - seen["open"]
    if more > SPARE_FILES:
        problems.append(f"{more} more open files than before")
    in_flight = in_flight_of((await ask_once(server.port, "/metrics")).body)
    if in_flight:
        problems.append(f"{in_flight:g} requests still in flight")
    first, last = flat(samples)
    if seconds >= 30 and last > first * (1 + GROWTH):
        problems.append(f"memory grew from {first:.1f} to {last:.1f} MB")
    load.seconds.sort()
    return {
        "connections": connections,
        "seconds": round(took, 1),
        "requests": load.counts["requests"],
        "counts": dict(load.counts),
        "upstream": seen["counts"],
        "gone": len(gone),
        "gone_slowest_seconds": round(max(gone, default=0.0), 3),
        "cpu_ms": round(cpu / max(load.counts["requests"], 1) * 1e3, 3),
        "seconds_median": round(statistics.median(load.seconds), 4),
        "seconds_p99": round(load.seconds[int(len(load.seconds) * 0.99)], 4),
        "megabytes_first_third": round(first, 1),
        "megabytes_last_third": round(last, 1),
        "megabytes_peak": round(server.peak_megabytes(), 1),
        "files_more": more,
        "threads_more": server.threads() - threads,
        "in_flight": in_flight,
        "problems": problems,
    }


def in_flight_of(metrics: bytes) -> float:
    name = b"unbroken_requests_in_flight "
    return sum(float(line[len(name) :]) for line in metrics.splitlines() if line.startswith(name))


def run(connections: int, seconds: float, requests: int, seed: int, broken: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, upstream(broken, seed) as up, gateway(up, Path(place)) as server:
        found = uvloop.run(put_under_load(server, up, connections, seconds, requests, seed))
        found["exit_code"] = server.stop()
        if found["exit_code"] != 0:
            found["problems"].append(f"asked to stop, it ended with {found['exit_code']}")
        log = server.log.read_text("utf-8", "replace")
        if complaint := next((each for each in COMPLAINTS if each in log), ""):
            at = log.index(complaint)
            found["problems"].append(f"its log holds `{complaint}`: {log[max(at - 300, 0) : at + 1500]}")
        return found


def show(found: dict[str, Any]) -> None:
    counts = found["counts"]
    print(
        f"{found['requests']:,} requests on {found['connections']} connections in {found['seconds']:.0f} s, "
        f"{counts.get('streamed', 0):,} of them streamed; {found['cpu_ms']:.2f} ms CPU each"
    )
    for name, count in counts.items():
        if name not in ("requests", "streamed", "whole"):
            print(f"  {count:8,} {name}")
    print(f"  the upstream: {', '.join(f'{count:,} {name}' for name, count in sorted(found['upstream'].items()))}")
    print(f"  an answer took {found['seconds_median'] * 1e3:.0f} ms, {found['seconds_p99'] * 1e3:.0f} ms at the 99th")
    print(
        f"  {found['gone']} clients left while their answer stood still: "
        f"the upstream was rid of them within {found['gone_slowest_seconds']:.2f} s"
    )
    print(
        f"  memory {found['megabytes_first_third']} MB, at the end {found['megabytes_last_third']} MB, "
        f"at most {found['megabytes_peak']} MB"
    )
    print(f"  open files {found['files_more']:+}, threads {found['threads_more']:+}, in flight {found['in_flight']:g}")
    print(f"  problems: {len(found['problems'])}")
    for problem in found["problems"][:20]:
        print(f"  ! {problem}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=0, help="at least so many, however long they take")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--broken", type=float, default=BROKEN)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = run(given.connections, given.seconds, given.requests, given.seed, given.broken)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    sys.exit(1 if found["problems"] else 0)
