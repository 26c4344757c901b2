"""One round of the torture test from start to end: processes, faults, clients, histories, and the checker's report."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from child_processes import Child

from torture import clients
from torture.checker import Report, check
from torture.clients import PATIENCE, ClientPlan
from torture.faults import Faults, WatchedKeys
from torture.history import History, read_histories
from torture.plan import Round
from torture.processes import Gateways, SmallDisk, Upstream, Valkey, gateway_settings
from unbroken_gateway.keys import GatewayKey, create_key

LONGEST_END = 2 * PATIENCE
"""Seconds that clients get to finish what they have begun."""


class Skipped(Exception):
    """This machine cannot do it; the message explains why."""


def run_round(one: Round, seed: int, folder: Path, crowd: int = 6, processes: int = 2) -> Report:
    """Leaves the histories and the logs of the gateways in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ending:
        valkey = disk = None
        store, record = f"sqlite:{folder / 'store.db'}", ""
        if one.store == "valkey":
            valkey = Valkey()
            ending.callback(valkey.close)
            store = valkey.url
        elif one.store == "full disk":
            disk = SmallDisk.mounted(folder / "disk")
            if disk is None:
                raise Skipped("a small disk needs root and mount")
            ending.callback(disk.close)
            store, record = f"sqlite:{disk.folder / 'store.db'}", str(disk.folder)
        upstream = Upstream(f"{seed}/{one.name}", folder / "model.jsonl")
        ending.callback(upstream.close)
        settings = gateway_settings(one, upstream, store, record)
        watched = WatchedKeys(store) if one.keys_in_store else None
        keys = _make_keys(one, folder / "keys.json", settings) if watched is None else watched.make(one.keys, settings)
        gateways = Gateways(settings, one.skew, folder)
        ending.callback(gateways.close)
        history = History(folder / "faults.jsonl")
        ending.callback(history.close)
        faults = Faults(gateways, upstream, valkey, disk, history, watched)
        plans = _client_plans(one, seed, folder, gateways.urls, keys, crowd, processes)
        asyncio.run(_run(one, faults, plans, history))
    report = check(read_histories(folder))
    write_violations(report, folder)
    return report


def _make_keys(one: Round, path: Path, settings: dict[str, Any]) -> list[str]:
    """The secrets, and the settings that ask for them."""
    if not one.keys:
        return []
    settings |= {"keys": True, "keys_file": str(path)}
    return [create_key(path, GatewayKey(f"team-{number}")) for number in range(one.keys)]


def _client_plans(
    one: Round, seed: int, folder: Path, urls: list[str], keys: list[str], crowd: int, processes: int
) -> list[ClientPlan]:
    return [
        ClientPlan(
            name=f"{one.name}.{number}",
            seed=f"{seed}/{one.name}",
            gateways=urls,
            keys=keys,
            seconds=one.seconds,
            crowd=crowd,
            history=str(folder / f"clients-{number}.jsonl"),
            hold_timeout=one.hold_timeout,
        )
        for number in range(processes)
    ]


async def _run(one: Round, faults: Faults, plans: list[ClientPlan], history: History) -> None:
    children = [await asyncio.to_thread(Child, clients.run, plan) for plan in plans]
    watching = asyncio.gather(faults.watch_health(), faults.watch_keys())
    try:
        await faults.begin()
        await faults.run(one)
        codes = [await asyncio.to_thread(child.wait, LONGEST_END) for child in children]
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    for plan, code in zip(plans, codes, strict=True):
        if code != 0:
            history.write("crashed", where=f"clients {plan.name}", code=code)


def write_violations(report: Report, folder: Path) -> None:
    """For people: each violation with the records that show it."""
    with (folder / "violations.txt").open("w") as file:
        for violation in report.violations:
            file.write(f"{violation.kind}: {violation.where}: {violation.words}\n")
            for record in violation.excerpt:
                file.write(f"    {json.dumps(record, ensure_ascii=False)}\n")
            file.write("\n")
