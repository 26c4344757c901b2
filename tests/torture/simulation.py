"""The simulation: many gateways on a sharded store, and up to a million conversations, on virtual time.

    make simulate                                       # 2,000 conversations
    make simulate CONVERSATIONS=1000000 RESULTS=results # an hour of a large installation, in 100 pieces
    make simulate CONVERSATIONS=1000000 RESULTS=results PART=1/2  # every second piece; PART=2/2 has the others
    cd tests && python -m torture.simulation --conversations 20000 --gateways 200 --seed 7

Each piece is a simulation with a seed of its own, and leaves a file in the folder of the results. The same command
continues after an interruption, and adds up all pieces that are there.

Servers of the store go away, hang, get slow and lose their data; providers fail, limit and break off; gateways die and
come back; clients of all wires retry, move between gateways, branch, go back and come late. The histories are checked
by the checker of the torture test, a group of conversations at a time.

Each conversation is checked against everything that was said to it. What was said to another conversation is found by
its marks: a mark that no answer of this group has is another's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from torture.checker import Report, check
from torture.clients import ClientPlan, Crowd
from torture.history import TURN, Record
from torture.pieces import Piece, Plan, describe, read_piece, write_piece
from torture.simulated_world import ASKING, Provider, ProviderState, ServerState, World
from unbroken import clock

GROUP = 100
"""Conversations that are checked together."""
HOLD_TIMEOUT, TTL = 50.0, 600.0
STEPS = 4
"""Requests of one conversation, retries not counted."""
PIECE = 10_000
"""Conversations of one simulation, at most. More are several simulations."""
CONSOLE = Console(soft_wrap=True, markup=False, highlight=False)
BETWEEN_FAULTS = 3.0
"""Virtual seconds, on average."""
LOSES = "lose store"


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
        elif record["op"] == "turn" and (foreign := set(TURN.findall(record["sent"])) - known):
            report.add("mixed", record["account"], f"the model was sent {min(foreign)}, said to nobody here", record)
    return report


async def simulate(plan: Plan, progress: Path | None = None) -> Recorded:
    loop = asyncio.get_running_loop()
    dice = random.Random(f"{plan.seed}/world")
    random.seed(plan.seed)  # the pools' own
    recorded = Recorded(loop.time)
    numbers = count()
    providers = [
        Provider(f"provider-{number}", str(plan.seed), lambda: next(numbers), recorded)
        for number in range(plan.providers)
    ]
    # Since the epoch: a gateway whose clock began at zero, and is wrong by a second, would take the store for emptied.
    now = clock.current_clock().now
    world = World(plan.gateways, plan.servers, providers, hold_timeout=HOLD_TIMEOUT, ttl=TTL, now=now, dice=dice)
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
    async with asyncio.TaskGroup() as group:
        for number in range(1, plan.conversations + 1):
            group.create_task(crowd.hold_conversation())
            if progress is not None and number % 500 == 0:
                _note(progress, plan, recorded)
            await asyncio.sleep(gap)
    await faults
    recorded.close()
    return recorded


def _note(progress: Path, plan: Plan, recorded: Recorded) -> None:
    cpu, broken = time.process_time(), len(recorded.report.violations)
    now = datetime.now(UTC)
    with progress.open("a") as file:
        file.write(
            f"{now:%H:%M:%S} piece {plan.seed}: {recorded.ended:,} of {plan.conversations:,} conversations have ended, "
            f"{broken} broken; process {os.getpid()} used {cpu:,.0f} s of CPU\n"
        )


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


def run_simulation(plan: Plan, progress: Path | None = None) -> tuple[Report, Counter[str]]:
    """The checker's report, and how often each fault happened."""
    level = logging.getLogger("unbroken").level
    logging.getLogger("unbroken").setLevel(logging.CRITICAL)  # thousands of faults are logged otherwise
    try:
        recorded = clock.run(lambda: simulate(plan, progress), start=1_700_000_000.0)
    finally:
        logging.getLogger("unbroken").setLevel(level)
    return recorded.report, recorded.counts


def run_piece(plan: Plan, folder: Path) -> None:
    """Its outcome is in a file then."""
    gc.collect()
    gc.freeze()  # otherwise a tenth of the time goes into looking at hundreds of gateways that stay
    gc.set_threshold(50_000, 20, 20)
    began = time.process_time()
    report, faults = run_simulation(plan, folder / "progress.log")
    write_piece(folder, Piece(plan, report, faults, time.process_time() - began))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=2000, help="of all pieces together")
    parser.add_argument("--gateways", type=int, default=200)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1, help="of the first piece; the others count on from it")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--results", type=Path, help="a folder: pieces that are there already are not run again")
    parser.add_argument("--part", default="1/1", help="I/N: of N processes or machines, this is number I")
    options = parser.parse_args()
    pieces = max(1, -(-options.conversations // PIECE))
    shares = [options.conversations // pieces + (at < options.conversations % pieces) for at in range(pieces)]
    # Many pieces together last as long as one simulation would, with as many conversations at a time.
    seconds = 60.0 if pieces == 1 else 0.0
    plans = [
        Plan(share, options.gateways, options.servers, seed=options.seed + at, seconds=seconds)
        for at, share in enumerate(shares)
    ]
    number, of = map(int, options.part.split("/"))
    folder: Path = options.results or Path(tempfile.mkdtemp(prefix="unbroken-simulation-"))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [plan for plan in plans[number - 1 :: of] if read_piece(folder, plan) is None]
    CONSOLE.print(f"{len(missing)} of {len(plans)} pieces are run here; progress and results are in {folder}")
    began = time.monotonic()
    if options.processes == 1:
        for plan in missing:
            run_piece(plan, folder)
    else:
        with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork")) as pool:
            for done in [pool.submit(run_piece, plan, folder) for plan in missing]:
                done.result()
    CONSOLE.print(f"took {time.monotonic() - began:,.0f} s")
    return describe([piece for plan in plans if (piece := read_piece(folder, plan)) is not None], len(plans), CONSOLE)


if __name__ == "__main__":
    sys.exit(main())
