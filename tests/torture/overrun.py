"""Budgets and limits under many clients: two gateways of two workers each on one Valkey, of which one is killed while
requests are in flight. What the provider answered is compared with what was allowed.

    cd tests && python -m torture.run --only overrun

Each answer uses the same tokens, so once an answer is known the estimate of the next is exact, and before that it is
larger. A budget may then be exceeded by the last answer that it lets through and by nothing else, whoever is killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
from aiohttp import web
from child_processes import Child, Tell, load_first

from torture.checker import Report
from torture.history import History, Record, read_histories
from torture.processes import Valkey
from torture.served import Served
from unbroken.models.scripted import play_bytes
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_testing import Pause, Say, ScriptedServer, Uses
from unbroken_testing.scenario import Reply, Sent
from unbroken_wires.messages import Request

load_first("torture.overrun")

INPUT, OUTPUT = 90, 10
CENT = 0.01
"""What an answer costs."""
BUDGET = 1.0
PER_MINUTE = 4000
"""Tokens: those of 40 answers."""
MINUTE = 60.0
CROWD = 32
"""Clients of each kind."""
EDGE = 2.0
"""Seconds: an answer that begins so soon after a minute may have been allowed in the one before."""
MONEY, TOKENS = "money", "tokens"
"""The two models. Each has its key: one has a budget, the other a limit per minute."""
CONFIG = f"""
[keys]
required = true
file = {{keys}}

[[models]]
alias = "{MONEY}"
model = "openai:{MONEY}"
base_url = "{{url}}/v1"
price = {{{{ input = 100.0, output = 100.0 }}}}

[[models]]
alias = "{TOKENS}"
model = "openai:{TOKENS}"
base_url = "{{url}}/v1"

[[budgets]]
model = "{MONEY}"
amount = "{BUDGET}usd/total"
"""


class Provider(ScriptedServer):
    """Writes `answered` when it begins an answer, which takes a moment."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def _reply(self, sent: Sent, request: Request, http: web.Request) -> Reply:
        self._history.write("answered", model=request.model, tokens=INPUT + OUTPUT)
        steps = [Pause(random.uniform(0.05, 0.3)), Say("Here."), Uses(INPUT, OUTPUT)]
        return self._framed(play_bytes(steps, sent.wire, request), request.stream, sent, http)


def _serve(tell: Tell, path: str) -> None:
    async def serve() -> None:
        async with Provider(History(Path(path))) as server:
            tell(server.url)
            await asyncio.get_running_loop().create_future()

    asyncio.run(serve())


def check_overrun(records: Sequence[Record]) -> Report:
    """`answered` of the provider and `status` of the clients. Pure."""
    report = Report()
    answered = [record for record in records if record["op"] == "answered"]
    money = [record for record in answered if record["model"] == MONEY]
    spent = CENT * len(money)
    if spent > BUDGET + CENT + 1e-9:
        report.add("overrun", MONEY, f"{spent:.2f} USD of {BUDGET:.2f} USD were spent", *money[-3:])
    minutes: dict[int, list[Record]] = defaultdict(list)
    for record in answered:
        if record["model"] == TOKENS and record["t"] % MINUTE >= EDGE:
            minutes[int(record["t"] // MINUTE)].append(record)
    for minute, those in minutes.items():
        used = sum(record["tokens"] for record in those)
        if used > PER_MINUTE + INPUT + OUTPUT:
            words = f"{used:,} tokens of {PER_MINUTE:,} were used in minute {minute}"
            report.add("overrun", f"{TOKENS} {minute}", words, *those[-3:])
    refused = [record for record in records if record["op"] == "status" and record["status"] == 402]
    if refused and sum(record["t"] <= refused[0]["t"] for record in money) * CENT < BUDGET - 1e-9:
        report.add("overrun", MONEY, "the budget was reported as spent before it was", refused[0])
    report.counts.update(record["op"] for record in records)
    statuses = [record for record in records if record["op"] == "status"]
    report.counts.update(f"{record['model']} {record['status']}" for record in statuses)
    report.counts["invoke"] = len(statuses)
    return report


def torture_budgets(folder: Path, seconds: float, *, kills: bool = True) -> Report:
    """Leaves the histories and the logs of the gateways in `folder`. Without kills it ends when the budget is spent."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / "keys.json"
    secrets = [create_key(keys, GatewayKey(MONEY)), create_key(keys, GatewayKey(TOKENS, tokens_per_minute=PER_MINUTE))]
    with ExitStack() as ending:
        valkey = Valkey()
        ending.callback(valkey.close)
        provider = Child(_serve, str(folder / "provider.jsonl"))
        ending.callback(provider.kill)
        config = CONFIG.format(keys=json.dumps(str(keys)), url=provider.told)
        gateways = [Served(folder, number, valkey.url, config, workers=2) for number in range(2)]
        for gateway in gateways:
            ending.callback(gateway.close)
        history = History(folder / "clients.jsonl")
        ending.callback(history.close)
        asyncio.run(_run(gateways, secrets, history, seconds, kills))
    return check_overrun(read_histories(folder))


async def _run(
    gateways: Sequence[Served], secrets: Sequence[str], history: History, seconds: float, kills: bool
) -> None:
    until, spent = time.monotonic() + seconds, asyncio.Event()

    async def talk(session: aiohttp.ClientSession, kind: int, number: int) -> None:
        model, status = (MONEY, TOKENS)[kind], 0
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        while time.monotonic() < until and not spent.is_set():
            number += 1
            url = f"{gateways[number % 2].url}/v1/chat/completions"
            try:
                async with session.post(url, json=body, headers={"Authorization": f"Bearer {secrets[kind]}"}) as answer:
                    await answer.read()
                    status = answer.status
            except aiohttp.ClientError:
                status = 0
            history.write("status", model=model, status=status)
            if status == 402 and not kills:
                spent.set()
            await asyncio.sleep(0.0 if status == 200 else 0.2)

    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session,
        asyncio.TaskGroup() as crowd,
    ):
        for number in range(2 * CROWD):
            crowd.create_task(talk(session, number % 2, number // 2))
        if kills:
            await asyncio.sleep(0.6)
            gateways[0].kill()
            history.write("killed")
            await asyncio.to_thread(gateways[0].start)
