"""`make load`: two real gateways on one Valkey under load, with clients of all wires, plain and one call at a time.

    load       500 clients; of three deployments one dies, one is slow and one limits
    rolling    both gateways are stopped and started again, one after the other, under the same load
    reload     both gateways get a changed configuration again and again (SIGHUP)
    fail-over  what a deployment that does not answer adds to the first byte, one request at a time

In the first part, some clients do not wait for their answers. The histories are read by the checker of the torture
test. Besides, every conversation has to finish, each answer of a provider has to be booked once and to the token
(`booked`), and no connection may break where none has to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import aiohttp
from child_processes import Child
from rich.console import Console

from torture import clients
from torture.booked import check_booked, read_lines
from torture.checker import Report, check
from torture.clients import ClientPlan
from torture.faults import HEALTH_EVERY, STARVED
from torture.history import History, Record, read_histories
from torture.processes import Valkey
from torture.rounds import write_violations
from torture.served import Manner, Served, free_port, model_of, numbers_of, start_provider
from unbroken_gateway.spending.allowance import dollars
from unbroken_gateway.spending.report import Spend, add_up, day_of, read_spend
from unbroken_gateway.stores import open_store

CONSOLE = Console(soft_wrap=True, markup=False, highlight=False)
LONGEST_FAIL_OVER = 0.050
"""Seconds that a deployment that does not answer may add."""
NOT_TAKEN = ("ClientConnectorError", "ClientOSError", "ServerDisconnectedError")
"""What aiohttp raises if a request was not answered at all: the connection was refused, or closed before its use."""
COOLING = 0.02
"""Seconds for which a deployment that failed is left alone where fail-over is measured."""
PATIENCE = 180.0
"""Seconds that a client waits for an answer. On a machine that is too busy, clients that give up sooner send everything
twice, and nothing ever finishes."""
LEAVING = 0.05
"""The part of the requests whose client does not wait for the answer, where clients may leave."""
STEPS = 6
"""Requests of one conversation, retries not counted."""
ALIAS = "m"
OVER = "over"
"""A file: nothing new begins any more. It is there when all is well again, however long that takes."""
STORE_IS_LATE = "the gateway's store does not answer"
MOST_WAITING = 0.6
"""The part of its time that a gateway may wait for a core. Above it, nothing is judged by the clock."""
KILLED = 0
"""The provider that dies."""


@dataclass(frozen=True, slots=True)
class Size:
    clients: int
    processes: int
    seconds: float
    lasting: float
    """The most seconds of one answer."""


@dataclass(slots=True)
class Stage:
    """Two gateways, their providers and their clients."""

    folder: Path
    valkey: Valkey
    providers: list[Child]
    gateways: list[Served]
    broken: list[str] = field(default_factory=list[str])
    """What should not have been, in words."""


def run_part(name: str, size: Size, seed: int, folder: Path, trouble: Callable[[Stage, Size], None]) -> list[str]:
    """What is wrong, in words."""
    folder.mkdir(parents=True)
    manners: Sequence[Manner] = ("good", "slow", "limits") if name == "load" else ("good", "good", "good")
    with ExitStack() as ending:
        valkey = Valkey()
        ending.callback(valkey.close)
        providers = [
            start_provider(f"{seed}/{name}", folder, number, manner, size.lasting)
            for number, manner in enumerate(manners)
        ]
        for provider in providers:
            ending.callback(provider.kill)
        models = model_of(ALIAS, "anthropic-messages", [provider.told for provider in providers], 'cooldown = "2s"')
        gateways = [Served(folder, number, valkey.url, models) for number in range(2)]
        for gateway in gateways:
            ending.callback(gateway.close)
        stage = Stage(folder, valkey, providers, gateways)
        idle = [gateway.megabytes() for gateway in gateways]
        started = [gateway.cpu() for gateway in gateways]
        began = time.monotonic()
        watch = Watch(folder)
        ending.callback(watch.close)
        crowds = [
            Child(clients.run, plan) for plan in _plans(name, size, seed, folder, [each.url for each in gateways])
        ]
        trouble(stage, size)
        time.sleep(max(0.0, size.seconds - (time.monotonic() - began)))
        busy = [gateway.megabytes() for gateway in gateways]
        (folder / OVER).touch()
        codes = _wait(crowds, folder)
        took = time.monotonic() - began
        used = [gateway.cpu() - before for gateway, before in zip(gateways, started, strict=True)]
        waited = sum(gateway.waited() for gateway in gateways)
        stage.broken += [f"a gateway ended with {code}" for gateway in gateways if (code := gateway.stop()) != 0]
        spend = asyncio.run(_read_spend(valkey.url))
    stage.broken += [f"a process of clients ended with {code}" for code in codes if code != 0]
    records = read_histories(folder)
    report = check(records)
    write_violations(report, folder)
    stage.broken += [f"{violation.kind}: {violation.where}: {violation.words}" for violation in report.violations]
    _describe(name, report, took, used, idle, busy)
    share = waited / (waited + sum(used))
    CONSOLE.print(
        f"  the gateways could not work for {share:.0%} of the time in which they had work: others had the cores"
    )
    _check_endings(name, records, stage, is_starved=share > MOST_WAITING)
    _check_spend(name, records, spend, stage)
    return stage.broken


def _wait(crowds: Sequence[Child], folder: Path) -> list[int | None]:
    """The exit codes of all; None for those that had to be killed. However busy the machine is, they are waited for as
    long as they get on."""
    size, grew = 0, time.monotonic()
    while any(crowd.is_alive for crowd in crowds) and time.monotonic() - grew < 2 * PATIENCE:
        time.sleep(0.5)
        before, size = size, sum(path.stat().st_size for path in folder.glob("clients-*.jsonl"))
        grew = time.monotonic() if size > before else grew
    return [crowd.wait(0.0) for crowd in crowds]


def _plans(name: str, size: Size, seed: int, folder: Path, urls: list[str]) -> list[ClientPlan]:
    return [
        ClientPlan(
            name=f"{name}.{number}",
            seed=f"{seed}/{name}",
            gateways=urls,
            keys=[],
            seconds=inf,
            until=str(folder / OVER),
            crowd=size.clients // size.processes,
            history=str(folder / f"clients-{number}.jsonl"),
            hold_timeout=3600.0,
            steps=STEPS,
            alias=ALIAS,
            patience=PATIENCE,
            leaving=LEAVING if name == "load" else 0.0,
        )
        for number in range(size.processes)
    ]


def _describe(
    name: str, report: Report, took: float, used: Sequence[float], idle: Sequence[float], busy: Sequence[float]
) -> None:
    counts = report.counts
    requests = counts["invoke"]
    CONSOLE.print(f"{name}: {counts['start']:,} conversations, {requests:,} requests in {took:,.0f} s")
    CONSOLE.print(f"  {counts['ok']:,} ok, {counts['fail']:,} errors, {counts['info']:,} without an answer")
    CONSOLE.print(f"  CPU of both gateways: {sum(used):.1f} s, {1000 * sum(used) / max(requests, 1):.2f} ms a request")
    memory = ", ".join(f"{before:.0f} -> {after:.0f} MB" for before, after in zip(idle, busy, strict=True))
    CONSOLE.print(f"  memory, idle and in the middle: {memory}")


def _check_endings(name: str, records: Sequence[Record], stage: Stage, is_starved: bool) -> None:
    gave_up = [record["conversation"] for record in records if record["op"] == "end" and record["ending"] == "gave up"]
    stage.broken += [f"a client did not finish: {conversation}" for conversation in gave_up]
    problems = [record["problem"] for record in records if record["op"] == "info"]
    late = [problem for problem in problems if STORE_IS_LATE in problem]
    if late and is_starved:
        CONSOLE.print(f"  {len(late):,} answers ended with the report that the store is late: this machine is too busy")
        problems = [problem for problem in problems if STORE_IS_LATE not in problem]
    if name == "reload":
        stage.broken += [f"a connection broke: {problem}" for problem in problems]
    if name == "rolling":
        # While a gateway is away, nothing listens there, and connections that wait for a next request are closed. What
        # it has begun to answer, it finishes.
        stage.broken += [f"an answer broke off: {each}" for each in problems if not each.startswith(NOT_TAKEN)]


async def _read_spend(url: str) -> Spend:
    store = open_store(url)
    try:
        now = time.time()
        rows = await read_spend(store, sorted({day_of(now - 3600.0), day_of(now)}))
    finally:
        await store.aclose()
    total = add_up([replace(row, day="") for row in rows], ["alias"])
    return total[0] if total else Spend()


def _check_spend(name: str, records: Sequence[Record], spend: Spend, stage: Stage) -> None:
    logs = [(stage.folder / f"gateway-{number}.log").read_text() for number in range(2)]
    lines = [line for log in logs for line in read_lines(log)]
    booked = check_booked(records, lines, spend, numbers_of(KILLED) if name == "load" else range(0))
    tokens = f"{spend.input:,} input and {spend.output:,} output tokens"
    CONSOLE.print(f"  spend: {spend.requests:,} answers, {tokens}, {dollars(spend.cost)}")
    CONSOLE.print(f"  {booked.describe()}")
    (stage.folder / "left-early.json").write_text(json.dumps(booked.early, indent=1))
    stage.broken += booked.broken


class Watch:
    """Notes when this machine is too busy to judge others by the clock."""

    def __init__(self, folder: Path) -> None:
        self._history = History(folder / "machine.jsonl")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        slept = time.monotonic()
        while not self._closing.wait(HEALTH_EVERY):
            if (lag := time.monotonic() - slept - HEALTH_EVERY) > STARVED / 2:
                self._history.write("starved", seconds=round(lag, 2))
            slept = time.monotonic()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._history.close()


# The troubles


def lose_a_provider(stage: Stage, size: Size) -> None:
    """Killed: its connections are reset, and nothing listens there any more."""
    time.sleep(size.seconds / 2)
    stage.providers[KILLED].kill()


def restart_gateways(stage: Stage, size: Size) -> None:
    for gateway in stage.gateways:
        time.sleep(size.seconds / 5)
        began = time.monotonic()
        code = gateway.stop()
        stopped = time.monotonic()
        gateway.start()
        CONSOLE.print(
            f"  a gateway ended after {stopped - began:.1f} s and was back {time.monotonic() - stopped:.1f} s later"
        )
        if code != 0:
            stage.broken.append(f"a gateway ended with {code}")


def reload_gateways(stage: Stage, size: Size) -> None:
    until = time.monotonic() + size.seconds * 0.8
    times = 0
    while time.monotonic() < until:
        times += 1
        for gateway in stage.gateways:
            weight = f"weight = {1 + times % 5}\n"
            text = gateway.config.read_text()
            gateway.config.write_text(re.sub(r'(name = "deployment-\d"\n)(?:weight = \d\n)?', rf"\g<1>{weight}", text))
            gateway.reload()
        time.sleep(1.0)
    logs = [(stage.folder / f"gateway-{number}.log").read_text() for number in range(2)]
    CONSOLE.print(f"  reloaded {times} times; {sum(log.count('reloaded') for log in logs)} lines in the logs")
    if not all("reloaded" in log for log in logs):
        stage.broken.append("a gateway did not log that it has read its configuration again")


# Fail-over


def measure_fail_over(folder: Path, seed: int, times: int = 40) -> list[str]:
    """The first byte through a gateway whose first deployment is healthy, dead or limiting; a healthy one is second."""
    folder.mkdir(parents=True)
    broken: list[str] = []
    with ExitStack() as ending:
        valkey = Valkey()
        ending.callback(valkey.close)
        good = start_provider(f"{seed}/good", folder, 0, "good", 0.0)
        limiting = start_provider(f"{seed}/limits", folder, 1, "refuses", 0.0)
        ending.callback(good.kill)
        ending.callback(limiting.kill)
        firsts = {"healthy": good.told, "dead": f"http://127.0.0.1:{free_port()}", "limits": limiting.told}
        tables = [
            model_of(name, "anthropic-messages", [first, good.told], f'cooldown = "{1000 * COOLING:.0f}ms"').replace(
                'name = "deployment-1"', 'name = "deployment-1"\npriority = 2'
            )
            for name, first in firsts.items()
        ]
        gateway = Served(folder, 0, valkey.url, "\n".join(tables))
        ending.callback(gateway.close)
        seconds = asyncio.run(_ask_each(gateway.url, list(firsts), times))
    usual = statistics.median(seconds["healthy"])
    CONSOLE.print(
        f"fail-over: first byte after {1000 * usual:.1f} ms (median of {times}) if the first deployment is healthy"
    )
    for name in ("dead", "limits"):
        added = statistics.median(seconds[name]) - usual
        worst = sorted(seconds[name])[int(0.95 * times)] - usual
        CONSOLE.print(f"  {name}: {1000 * added:.1f} ms more, {1000 * worst:.1f} ms at the 95th percentile")
        if added > LONGEST_FAIL_OVER:
            broken.append(f"fail-over from a deployment that is {name} adds {1000 * added:.0f} ms")
    return broken


async def _ask_each(url: str, models: Sequence[str], times: int) -> dict[str, list[float]]:
    """One request at a time, in turns, so that all of them meet the same machine."""
    seconds: dict[str, list[float]] = {model: [] for model in models}
    async with aiohttp.ClientSession() as session:
        for number in range(times + 3):
            await asyncio.sleep(2 * COOLING)  # until the deployments that failed are tried again
            for model in models:
                body = {
                    "model": model,
                    "max_tokens": 100,
                    "stream": True,
                    "messages": [{"role": "user", "content": f"Please pay bill {number}."}],
                }
                began = time.perf_counter()
                async with session.post(f"{url}/v1/messages", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    assert ("x-unbroken-failed" in answer.headers) == (model != "healthy")
                    await answer.content.readany()
                    first = time.perf_counter() - began
                    await answer.read()
                if number >= 3:  # the first ones open connections
                    seconds[model].append(first)
    return seconds


PARTS: dict[str, Callable[[Stage, Size], None]] = {
    "load": lose_a_provider,
    "rolling": restart_gateways,
    "reload": reload_gateways,
}
FAIL_OVER = "fail-over"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2, help="of clients")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part at least, without its end")
    parser.add_argument("--lasting", type=float, default=14.0, help="the most seconds of one answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=[*PARTS, FAIL_OVER])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="unbroken-load-"))
    size = Size(options.clients, options.processes, options.seconds, options.lasting)
    CONSOLE.print(f"{size.clients} clients, seed {options.seed}; histories and logs in {folder}")
    broken: list[str] = []
    for name in options.only or [FAIL_OVER, *PARTS]:
        if name == FAIL_OVER:
            found = measure_fail_over(folder / name, options.seed)
        else:
            found = run_part(name, size, options.seed, folder / name, PARTS[name])
        CONSOLE.print(f"{name}: {f'{len(found)} broken' if found else 'nothing broken'}")
        broken += found
    for line in broken[:20]:
        CONSOLE.print(line, style="red")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
