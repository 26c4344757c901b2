"""What recording costs: `make bench-recording`. The run of `runs.py` with and without `record=`, CPU time, interleaved.

Its files stay until the end: ext4 does not give out an inode again for minutes after it was freed, and looks at each
of those when a file is made. Who deletes a thousand files and makes one more pays for the thousand. So it is told, too,
what it costs to make a file, and `--folder /dev/shm` leaves the disk out of it.

Then 1,000 recordings listed, and how long the recordings of many kinds of runs are, against the history alone.
`--against CHECKOUT` also puts the library of another checkout beside this one, each in a process of its own: what does
not record should not have become dearer, and recordings not longer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from recorded_sizes import of_recordings, overall
from upstream import upstream

from unbroken import Agent, connect, tool

QUESTION = "How is the weather there?"
INSTRUCTIONS = "You are a weather service. Answer in one sentence."
KEY = "sk-bench-0123456789abcdefghijklmnopqrstuvwxyz"
LISTED = 1000

Runner = Callable[[], Awaitable[str]]


async def get_weather(city: str, days: int) -> str:
    """How the weather will be in a city."""
    return f"sunny in {city} for {days} days"


def agent(url: str, **options: Any) -> Agent:
    model = connect("openai:gpt-5", base_url=url, api_key="x")
    return Agent(model, tools=[tool(get_weather)], instructions=INSTRUCTIONS, **options)


def with_run(one: Agent) -> Runner:
    async def run() -> str:
        return (await one.run(QUESTION)).text

    return run


def with_stream(one: Agent) -> Runner:
    async def run() -> str:
        stream = one.stream(QUESTION)
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


async def recorded_or_not(
    rounds: int, times: int, pause: float = 0.0, where: str | None = None
) -> dict[str, list[float]]:
    """CPU seconds of one run, by how it is run, side by side in each round. `pause`: seconds between two chunks."""
    with upstream(pause) as url, tempfile.TemporaryDirectory(dir=where) as folder:
        plain = agent(url)
        recorded = agent(url, record=folder)
        runners: dict[str, Runner] = {
            "run": with_run(plain),
            "recorded": with_run(recorded),
            "masked": with_run(agent(url, record=masking(folder))),
            "stream": with_stream(plain),
            "stream recorded": with_stream(recorded),
        }
        for run in runners.values():
            await cpu_of(run, 5)
        gc.collect()
        gc.freeze()
        spent: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(rounds):
            for name, run in runners.items():
                spent[name].append(await cpu_of(run, times))
        return spent


def masking(folder: str) -> Any:
    """A recorder that has a secret to look for. (Imported here: a tree from before there were recordings runs this
    file, too, as a worker.)"""
    from unbroken.trajectory.recorder import Recorder  # noqa: PLC0415

    return Recorder(folder, secrets=[KEY])


def making_a_file(where: str | None, count: int = 200) -> float:
    """CPU seconds that it takes to make an empty file, close and nothing else."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        began = time.process_time()
        for number in range(count):
            os.close(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return (time.process_time() - began) / count


def listed(rounds: int) -> tuple[list[float], list[float], int]:
    """Seconds in which 1,000 recordings are listed: of runs that ended, and of runs that were killed just before."""
    from unbroken.trajectory.recording import list_recordings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        data = asyncio.run(one_recording())
        killed = data[: data.rindex(b'{"line":"event","event":"run_finished"')]
        seconds: list[list[float]] = []
        for content in (data, killed):
            for number in range(LISTED):
                (Path(folder) / f"{number}.jsonl").write_bytes(content)
            seconds.append([])
            for _ in range(rounds):
                began = time.perf_counter()
                found = list_recordings(folder)
                seconds[-1].append(time.perf_counter() - began)
                assert len(found) == LISTED
                assert not any(each.problem for each in found)
    return seconds[0], seconds[1], len(data)


async def one_recording() -> bytes:
    with upstream() as url, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.jsonl"
        await agent(url, record=path).run(QUESTION)
        return path.read_bytes()


def work(url: str) -> None:
    """A worker: for each number on its input so many runs, and on its output the CPU seconds of one."""

    async def main() -> None:
        run = with_run(agent(url))
        for line in sys.stdin:
            print(await cpu_of(run, int(line)), flush=True)

    asyncio.run(main())


def sources(checkout: Path) -> str:
    """For PYTHONPATH: the packages of a checkout, or its `src`, where there was only one."""
    found = sorted(checkout.resolve().glob("packages/*/src")) or [checkout.resolve() / "src"]
    return os.pathsep.join(map(str, found))


def against(checkout: Path, rounds: int, times: int) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {"before": [], "now": []}
    with upstream() as url, ExitStack() as stack:
        workers: dict[str, subprocess.Popen[str]] = {}
        for name, tree in (("before", checkout), ("now", Path(__file__).parents[1])):
            command = [sys.executable, __file__, "--worker", url]
            environment = {**os.environ, "PYTHONPATH": sources(tree)}
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            workers[name] = stack.enter_context(subprocess.Popen(command, env=environment, **pipes))
        for number in range(-1, rounds):
            # Who goes first changes: the machine's moods come and go within a round.
            for name in spent if number % 2 else reversed(spent):
                worker = workers[name]
                assert worker.stdin is not None
                assert worker.stdout is not None
                print(times, file=worker.stdin, flush=True)
                seconds = float(worker.stdout.readline())
                if number >= 0:
                    spent[name].append(seconds)
        for worker in workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
    return spent


def show_sizes(checkout: Path | None) -> None:
    print("How long recordings are, against the history alone; and against the checkout from before: at most 0.8")
    now, before = of_recordings(), sizes_of(checkout) if checkout else {}
    for kind, (text, recording) in now.items():
        compared = f"{recording / before[kind]:7.2f}" if kind in before else ""
        print(f"  {kind:24} {recording:7} bytes {recording / text:7.2f}{compared}")
    compared = f"{overall((before[kind], now[kind][1]) for kind in before):7.2f}" if before else ""
    print(f"  {'geometric mean':38} {overall(now.values()):7.2f}{compared}")


def sizes_of(checkout: Path) -> dict[str, int]:
    command = [sys.executable, str(Path(__file__).with_name("recorded_sizes.py"))]
    environment = {**os.environ, "PYTHONPATH": sources(checkout)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return {kind: recording for kind, (_, recording) in json.loads(found).items()}


def ratio(spent: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(spent[one], spent[other], strict=True))


def show(spent: dict[str, list[float]], *ratios: tuple[str, str, str]) -> None:
    for name, seconds in spent.items():
        print(f"  {name:16} {statistics.median(seconds) * 1000:7.2f} ms CPU")
    for one, other, want in ratios:
        print(f"  {f'{one} / {other}':26} {ratio(spent, one, other):5.2f}   {want}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", metavar="CHECKOUT", type=Path, help="a checkout from before")
    parser.add_argument("--worker", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", help="where the recordings are made; the folder for temporary files")
    given = parser.parse_args()
    if given.worker:
        work(given.worker)
        return
    one, five, _ = os.getloadavg()
    print(f"load of this machine: {one:.2f} (1 min), {five:.2f} (5 min); {os.cpu_count()} cores")
    print("One streamed run: 3 calls in 20 deltas, 3 tools, then text")
    show(
        asyncio.run(recorded_or_not(given.rounds, 10, where=given.folder)),
        ("recorded", "run", "at most 1.25"),
        ("masked", "run", "a secret to look for; at most 1.25"),
        ("stream recorded", "stream", "at most 1.25"),
    )
    print(f"  {making_a_file(given.folder) * 1e6:.0f} us of it, with nothing else around: to make a file")
    print("The same with 1 ms between chunks, as a model writes them")
    show(
        asyncio.run(recorded_or_not(max(given.rounds // 3, 1), 6, pause=0.001, where=given.folder)),
        ("recorded", "run", ""),
        ("masked", "run", ""),
        ("stream recorded", "stream", ""),
    )
    whole, killed, size = listed(5)
    print(f"{LISTED} recordings of {size / 1024:.0f} KB listed: below 1 s")
    print(f"  {statistics.median(whole):.2f} s; {statistics.median(killed):.2f} s if none of them ended")
    show_sizes(given.against)
    if given.against:
        print("Not recorded, against the tree from before")
        show(against(given.against, given.rounds, 10), ("now", "before", "1.0"))


if __name__ == "__main__":
    main()
