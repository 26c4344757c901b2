"""Long runs: 500 tools, 300 rounds, over HTTP. Does a round cost more than the bytes that it sends?

Each request holds the whole history, so it grows, and so does the work for it. Linear means: the CPU time for a
kilobyte that is sent is no more in the last 50 rounds than in the first 50. The server is a process of its own, so that
its CPU time is not counted. `--rounds`, `--tools`, `--wires` and `--recording` change the run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from unbroken import Agent, Event, Limits, Policy, RequestSent, Tool, connect
from unbroken.models.scripted import Call, Say, Uses, play_bytes
from unbroken.tools.schema import Signature
from unbroken_wires.messages import Request, ToolSpec, User

WIRES = {
    "openai-chat": "openai:gpt-5",
    "openai-responses": "openai:gpt-5",
    "anthropic-messages": "anthropic:claude-sonnet-4-5",
    "gemini": "gemini:gemini-2.5-pro",
}
RESULT = "A line of what was found in the file, and where. " * 40
"""2 KB, the result of each call."""


# The server


async def serve(wire: str, rounds: int) -> None:
    """Answers each request with the next round, and prints how long it was. It reads no more of it than its length."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            print(length, flush=True)
            body = answers[min(asked, rounds)]
            asked += 1
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)

    asked = 0
    request = Request((User.of("?"),), model="m")
    calls = [Call(f"tool_{n % 7}", path=f"src/file_{n}.py", id=f"call_{n}") for n in range(rounds)]
    steps = [[Say("Let me see."), call, Uses(1000, 20)] for call in calls]
    answers = [
        b"".join(data for _, data in play_bytes(each, wire, request)) for each in (*steps, [Say("Done."), Uses(9, 9)])
    ]
    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def served(wire: str, rounds: int) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", wire, "--rounds", str(rounds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


# The run


def tools(count: int) -> list[Tool]:
    async def find(**arguments: Any) -> str:
        return RESULT

    properties = {
        "path": {"type": "string", "description": "The path of the file, from the root of the repository."},
        "pattern": {"type": "string", "description": "What to look for, as a regular expression."},
        "limit": {"type": "integer", "description": "How many lines to return at most.", "default": 100},
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["path"]}
    made: list[Tool] = []
    for number in range(count):
        name, description = f"tool_{number}", f"Finds lines in a file of the repository, kind {number}."
        signature = Signature(name, description, schema, dict, is_async=True)
        made.append(Tool(ToolSpec(name, description, schema), find, signature, effect="read"))
    return made


async def run(wire: str, port: int, count: int, rounds: int, record: str | None) -> list[float]:
    """The CPU time when each request was about to be sent."""
    at: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, RequestSent):
            at.append(time.process_time())

    model = connect(WIRES[wire], base_url=f"http://127.0.0.1:{port}", wire=wire, api_key="k")
    options: dict[str, Any] = {"record": record} if record else {}
    limits = Limits(rounds=None)
    agent = Agent(model, tools(count), "Look.", limits=limits, policy=Policy(cache=True), sinks=[note], **options)
    result = await agent.run("Find it.")
    assert result.text == "Done.", result
    assert result.rounds == rounds
    return [*at, time.process_time()]


def measure(wire: str, count: int, rounds: int, recording: bool) -> tuple[list[float], list[int]]:
    """The CPU seconds and the bytes of each round."""
    with served(wire, rounds) as server, tempfile.TemporaryDirectory() as folder:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        gc.collect()
        at = asyncio.run(run(wire, port, count, rounds, folder if recording else None))
        sizes = [int(server.stdout.readline()) for _ in range(rounds + 1)]
    return [after - before for before, after in pairwise(at)], sizes


def row(name: str, seconds: Sequence[float], sizes: Sequence[int], part: int) -> float:
    """Prints one line; returns how much more CPU time a byte takes at the end."""

    def told(place: slice) -> tuple[float, float, float]:
        size, took = statistics.median(sizes[place]) / 1000, statistics.median(seconds[place]) * 1000
        return size, took, took * 1000 / size

    first, last = told(slice(1, part + 1)), told(slice(-part - 1, -1))
    shown = "".join(f"{size:9,.0f} KB {took:7.2f} ms {each:6.1f} us/KB" for size, took, each in (first, last))
    print(f"{name:<22}{shown}{last[2] / first[2]:9.2f}")
    return last[2] / first[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--tools", type=int, default=500)
    parser.add_argument("--wires", nargs="*", default=list(WIRES))
    parser.add_argument("--recording", action="store_true", help="record each run")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, given.rounds))
        return
    part = min(50, given.rounds // 3)
    print(f"{given.tools} tools, {given.rounds} rounds; medians of the first and the last {part} rounds")
    print(f"{'':<22}{f'first {part}: sent, CPU':>35}{f'last {part}: sent, CPU':>35}{'per byte':>9}")
    for wire in given.wires:
        seconds, sizes = measure(wire, given.tools, given.rounds, given.recording)
        row(wire, seconds, sizes, part)


if __name__ == "__main__":
    main()
