"""The simulation: many gateways on a sharded store, and up to a million conversations, on virtual time.

    make simulate                                       # 2,000 conversations
    make simulate CONVERSATIONS=1000000                 # an hour of a large installation, in 20 pieces
    cd tests && python -m torture.simulation --conversations 20000 --gateways 200 --seed 7

Servers of the store go away, hang, get slow and lose their data; providers fail, limit and break off; gateways die and
come back; clients of all wires retry, move between gateways, branch, go back and come late. The histories are checked
by the checker of the torture test, a group of conversations at a time.

Each conversation is checked against everything that was said to it. What was said to another conversation is found by
its marks: a mark that no answer of this group has is another's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from rich.console import Console

from torture.checker import Report, check
from torture.clients import ClientPlan, Crowd
from torture.history import TURN, Record
from torture.simulated_world import ASKING, Provider, ProviderState, ServerState, World
from unbroken import clock

GROUP = 100
"""Conversations that are checked together."""
HOLD_TIMEOUT, TTL = 50.0, 600.0
STEPS = 4
"""Requests of one conversation, retries not counted."""
PER_SECOND = 278.0
"""New conversations in a virtual second: a million in an hour."""
PIECE = 50_000
"""Conversations of one simulation. More are several simulations, each with a seed of its own, on all cores."""
CONSOLE = Console(soft_wrap=True, markup=False, highlight=False)
SHOWN = 12
"""Violations that are printed."""
BETWEEN_FAULTS = 3.0
"""Virtual seconds, on average."""
LOSES = "lose store"


@dataclass(frozen=True, slots=True)
class Plan:
    conversations: int = 2000
    gateways: int = 200
    servers: int = 16
    providers: int = 4
    seed: int = 1
    seconds: float = 60.0
    """Virtual seconds in which conversations begin, at least."""
    faults: bool = True

    @property
    def lasting(self) -> float:
        return max(self.seconds, self.conversations / PER_SECOND)


class Recorded:
    """The records of conversations that are under way, and of those that ended and were not checked yet."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.ended = 0
        self.counts: Counter[str] = Counter()
        self._now = now
        self.report = Report()
        self._open: dict[str, list[Record]] = defaultdict(list)
        self._losses: list[Record] = []
        self._groups: dict[bool, list[list[Record]]] = {False: [], True: []}
        """Those that were under way when a server lost its data, and the others."""

    def write(self, op: str, **fields: Any) -> None:
        record = {"op": op, "t": self._now(), **fields}
        if op == "fault":
            self.counts[fields["kind"]] += 1
            if fields["kind"] == LOSES:
                self._losses.append(record)
            return
        name = fields.get("conversation") or ASKING.get()
        if op == "turn" and name not in self._open:
            self.counts["turns of conversations that had ended"] += 1
            return
        self._open[name].append(record)
        if op == "end":
            self._end(self._open.pop(name))

    def _end(self, records: list[Record]) -> None:
        self.ended += 1
        began = records[0]["t"]
        has_loss = any(loss["t"] >= began for loss in reversed(self._losses[-20:]))
        group = self._groups[has_loss]
        group.append(records)
        if len(group) >= GROUP:
            self._send(has_loss)

    def _send(self, has_loss: bool) -> None:
        group, self._groups[has_loss] = self._groups[has_loss], []
        records = sorted((record for records in group for record in records), key=lambda one: one["t"])
        losses = [{"op": "fault", "t": records[0]["t"], "kind": LOSES}] if has_loss and records else []
        if records:
            _add(self.report, check_group([*losses, *records]))

    def close(self) -> None:
        for has_loss in (False, True):
            self._send(has_loss)


def _add(report: Report, found: Report) -> None:
    report.violations += found.violations
    report.counts += found.counts


def check_group(records: Sequence[Record]) -> Report:
    """What broke a promise in these conversations, whose records are complete."""
    report = check(records)
    known = {record["mark"] for record in records if record["op"] == "turn"}
    for record in records:
        if record["op"] in ("ok", "fail", "info") and (foreign := set(TURN.findall(record.get("data", ""))) - known):
            report.add("another's", record["conversation"], f"{min(foreign)} was said to nobody here", record)
        elif record["op"] == "turn" and (foreign := set(TURN.findall(str(record["body"]))) - known):
            report.add("mixed", record["account"], f"the model was sent {min(foreign)}, said to nobody here", record)
    return report


async def simulate(plan: Plan, show: str = "") -> Recorded:
    loop = asyncio.get_running_loop()
    dice = random.Random(f"{plan.seed}/world")
    random.seed(plan.seed)  # the pools' own
    recorded = Recorded(loop.time)
    numbers = count()
    providers = [
        Provider(f"provider-{number}", str(plan.seed), lambda: next(numbers), recorded)
        for number in range(plan.providers)
    ]
    world = World(plan.gateways, plan.servers, providers, hold_timeout=HOLD_TIMEOUT, ttl=TTL, now=loop.time, dice=dice)
    clients = ClientPlan(
        name="s",
        seed=str(plan.seed),
        gateways=[f"gateway-{number}" for number in range(plan.gateways)],
        keys=[],
        seconds=plan.lasting + 30.0,
        crowd=0,
        history="",
        hold_timeout=HOLD_TIMEOUT,
        steps=STEPS,
        alias="m",
    )
    crowd = Crowd(clients, world.post, recorded, loop.time)
    faults = asyncio.create_task(_break_things(world, plan, recorded, random.Random(f"{plan.seed}/faults")))
    gap = plan.lasting / plan.conversations
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(plan.conversations):
            group.create_task(crowd.hold_conversation())
            if show and number % 2_000 == 1_999:
                real, broken = time.monotonic() - began, len(recorded.report.violations)
                CONSOLE.print(f"{show}{recorded.ended:,} of {plan.conversations:,} in {real:,.0f} s, {broken} broken")
            await asyncio.sleep(gap)
    await faults
    recorded.close()
    return recorded


async def _break_things(world: World, plan: Plan, recorded: Recorded, dice: random.Random) -> None:
    """Faults one after the other, several at a time, all healed at the end."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        while plan.faults and loop.time() < plan.lasting:
            draw = dice.random()
            if draw < 0.35:
                group.create_task(_kill(world, dice.randrange(plan.gateways), dice, recorded))
            elif draw < 0.75:
                group.create_task(_break_server(world, dice.randrange(plan.servers), dice, recorded))
            elif draw < 0.80:
                recorded.write("fault", kind=LOSES)
                world.servers[dice.randrange(plan.servers)].lose_everything()
            else:
                group.create_task(_break_provider(world, dice.randrange(plan.providers), dice, recorded))
            await asyncio.sleep(dice.expovariate(1 / BETWEEN_FAULTS))


async def _kill(world: World, number: int, dice: random.Random, recorded: Recorded) -> None:
    if world.gateways[number].app is None:
        return
    recorded.write("fault", kind="kill gateway")
    world.kill(number)
    await asyncio.sleep(dice.uniform(0.5, 5.0))
    world.start(number)


async def _break_server(world: World, number: int, dice: random.Random, recorded: Recorded) -> None:
    server = world.servers[number]
    if server.state != "up":
        return
    states: tuple[ServerState, ...] = ("down", "hangs", "slow")
    server.state = dice.choice(states)
    recorded.write("fault", kind=f"server {server.state}")
    await asyncio.sleep(dice.uniform(1.0, 12.0))
    if server.state == "down" and dice.random() < 0.2:  # it comes back without its data
        recorded.write("fault", kind=LOSES)
        server.lose_everything()
    server.state = "up"


async def _break_provider(world: World, number: int, dice: random.Random, recorded: Recorded) -> None:
    provider = world.providers[number]
    if provider.state != "up" or all(other.state != "up" for other in world.providers if other is not provider):
        return
    states: tuple[ProviderState, ...] = ("down", "slow", "limits", "breaks")
    provider.state = dice.choice(states)
    recorded.write("fault", kind=f"provider {provider.state}")
    await asyncio.sleep(dice.uniform(1.0, 12.0))
    provider.state = "up"


def run_simulation(plan: Plan, show: str = "") -> tuple[Report, Counter[str]]:
    """The checker's report, and how often each fault happened."""
    level = logging.getLogger("unbroken").level
    logging.getLogger("unbroken").setLevel(logging.CRITICAL)  # thousands of faults are logged otherwise
    try:
        recorded = clock.run(lambda: simulate(plan, show), start=1_700_000_000.0)
    finally:
        logging.getLogger("unbroken").setLevel(level)
    return recorded.report, recorded.counts


def _run_piece(plan: Plan) -> tuple[Report, Counter[str], float]:
    report, faults = run_simulation(plan, show=f"piece {plan.seed}: ")
    return report, faults, time.process_time()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=2000)
    parser.add_argument("--gateways", type=int, default=200)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1, help="of the first piece; the others count on from it")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8))
    options = parser.parse_args()
    pieces = max(1, round(options.conversations / PIECE))
    share = options.conversations // pieces
    plans = [Plan(share, options.gateways, options.servers, seed=options.seed + at) for at in range(pieces)]
    began, report, faults, cpu = time.monotonic(), Report(), Counter[str](), 0.0
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork")) as pool:
        for done, (found, happened, seconds) in enumerate(pool.map(_run_piece, plans), 1):
            _add(report, found)
            faults += happened
            cpu += seconds
            if pieces > 1:
                CONSOLE.print(f"{done} of {pieces} pieces: {_found(report)}")
    counts = report.counts
    lasting = sum(plan.lasting for plan in plans)
    CONSOLE.print(
        f"{options.gateways} gateways, {options.servers} servers of the store, {lasting:,.0f} s of virtual time"
    )
    CONSOLE.print(
        f"{counts['start']:,} conversations, {counts['invoke']:,} requests, {counts['turn']:,} answers of models"
    )
    CONSOLE.print(
        f"{counts['ok']:,} ok, {counts['fail']:,} errors, {counts['info']:,} broken off, {counts['told']:,} told"
    )
    CONSOLE.print(
        "endings: " + ", ".join(f"{n:,} {name[5:]}" for name, n in sorted(counts.items()) if name.startswith("end:"))
    )
    CONSOLE.print("faults: " + ", ".join(f"{n:,} {name}" for name, n in sorted(faults.items())))
    CONSOLE.print(f"took {time.monotonic() - began:,.0f} s, CPU {cpu:,.0f} s")
    CONSOLE.print(f"broken: {_found(report)}")
    for violation in report.violations[:SHOWN]:
        CONSOLE.print(f"{violation.kind}: {violation.where}: {violation.words}")
        for record in violation.excerpt:
            CONSOLE.print(f"    {record}")
    return 1 if report.violations else 0


def _found(report: Report) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(report.by_kind.items())) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
