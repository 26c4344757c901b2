"""How a run of 1,000 rounds with two calls each grows, and what it takes to resume it if it was cut in the last round.

The model answers by the number of messages, and so costs the same in each round. Linear means: twice the rounds
take twice the memory, and twice the time to resume. (The CPU time of the run itself holds the requests, each with all
messages before it: it grows faster.) Each measurement is a process of its own; `--against CHECKOUT` puts the library of
another checkout beside this one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from unbroken import Agent, Limits, Tool, tool
from unbroken.models.scripted import Answer, Call, Say, Uses, play_bytes
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Request

WIRE = "openai-chat"
TEXT = "A line of what was found in the file, and where. " * 8


class Scripted:
    """A model that keeps nothing of its requests."""

    name = "scripted:demo"

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        number = (len(request.messages) - 2) // 2  # two for each round, after the system's and the user's
        steps: Answer = [Say("That was all.")]
        if number < self.rounds:
            calls = [Call("find", path=f"src/{number}_{n}.py", id=f"call_{number}_{n}") for n in (1, 2)]
            steps = [Say("Two more. "), *calls, Uses(500 + 90 * number, 40)]
        decoder = Decoder(WIRE, None, request)
        for _, data in play_bytes(steps, WIRE, Request(request.messages[:1], model="demo")):
            if deltas := decoder.feed(data):
                yield deltas
        yield decoder.end()


def find_tool() -> Tool:
    @tool(effect="read")
    async def find(path: str) -> str:
        """Finds lines in a file."""
        return f"{path}: {TEXT}"

    return find


def agent(model: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(model, [find_tool()], "Look.", limits=Limits(rounds=None), **options)


def memory() -> int:
    """Bytes that this process holds now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run(rounds: int, path: Path) -> dict[str, float]:
    before, began = memory(), time.process_time()
    result = await agent(Scripted(rounds), record=path).run("Find it.")
    seconds = time.process_time() - began
    assert result.rounds == rounds
    held = memory() - before
    return {"run": seconds, "held": held, "bytes": path.stat().st_size}


def cut(path: Path) -> None:
    """As if its process had been killed when the first call of the last round had its result."""
    lines = path.read_bytes().splitlines(keepends=True)
    last = [number for number, line in enumerate(lines) if b'"line":"result"' in line][-2]
    path.write_bytes(b"".join(lines[: last + 1]))


async def resume(rounds: int, path: Path) -> dict[str, float]:
    one = agent(Scripted(rounds), record=path)
    before, began = memory(), time.process_time()
    result = await one.resume(path)
    seconds = time.process_time() - began
    assert (result.rounds, result.text) == (rounds, "That was all.")
    return {"resume": seconds, "resumed": memory() - before}


def work(what: str, rounds: int, path: Path) -> None:
    if what == "cut":
        cut(path)
        print("{}")
    else:
        print(json.dumps(asyncio.run((run if what == "run" else resume)(rounds, path))))


def sources(checkout: Path) -> str:
    return os.pathsep.join(map(str, sorted(checkout.resolve().glob("packages/*/src"))))


def measure(checkout: Path, rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    environment = {**os.environ, "PYTHONPATH": sources(checkout)}
    with tempfile.TemporaryDirectory() as folder:
        for what in ("run", "cut", "resume"):
            command = [sys.executable, __file__, "--work", what, str(rounds), f"{folder}/run.jsonl"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert not done.returncode, done.stderr
            found |= json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, nargs="*", default=[250, 500, 1000])
    parser.add_argument("--against", metavar="CHECKOUT", type=Path, help="a checkout from before")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        what, rounds, path = given.work
        work(what, int(rounds), Path(path))
        return
    trees = {"now": Path(__file__).parents[1]} | ({"before": given.against} if given.against else {})
    print("two calls in a round; CPU seconds, and what the process holds at the end")
    print(f"{'rounds':>7} {'':7}{'run':>9}{'held':>10}{'recording':>12}{'to resume':>11}{'held':>10}")
    for rounds in given.rounds:
        for name, tree in trees.items():
            found = measure(tree, rounds)
            print(
                f"{rounds:7} {name:7}{found['run']:7.2f} s{found['held'] / 1e6:7.1f} MB{found['bytes'] / 1e6:9.2f} MB"
                f"{found['resume']:9.2f} s{found['resumed'] / 1e6:7.1f} MB"
            )


if __name__ == "__main__":
    main()
