"""Four worker processes and a hundred runs of several tenants: limits and shares, counted inside the tool.

Calls come in rounds: none ends before each tenant that has runs left has its two calls at the same time. So what is
shown does not depend on how fast a process is: a tenant that had to wait for another one would end the test.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import loaded_command
import postgres_server
import pytest
from terminals import environment

from unbroken_durable import open_journal

TENANTS = {"big": 60, "small-1": 10, "small-2": 10, "small-3": 10, "small-4": 10}
LIMIT = 2
"""Active runs of a tenant."""
WORKERS = 4
CONCURRENCY = 3
"""Of each worker: as long as all tenants have two calls at the same time, no worker can be without one."""
PATIENCE = 120.0
"""Seconds; for workers that would wait for each other forever."""

APP = """
import asyncio
import os
import sqlite3
from unbroken import Agent, ScriptedModel, tool
from unbroken_wires.messages import Assistant, User
from unbroken_testing import Call

TENANTS = <tenants>
LIMIT = <limit>


def write(statement, *values):
    connection = sqlite3.connect("ledger.db", timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        row = connection.execute(statement, values).fetchone()
        connection.execute("COMMIT")
        return row
    finally:
        connection.close()


def is_complete(round):
    connection = sqlite3.connect("ledger.db", timeout=60)
    try:
        begun = dict(connection.execute("SELECT tenant, COUNT(*) FROM work GROUP BY tenant"))
    finally:
        connection.close()
    return all(begun.get(tenant, 0) >= min(LIMIT * round, count) for tenant, count in TENANTS.items())


@tool
async def work(tenant: str, number: int) -> str:
    "Writes to the ledger how many calls of its tenant run at the moment, itself included; ends with its round."
    place, nth = write(
        "INSERT INTO work SELECT ?, ?, ?, 0, 1 + (SELECT COUNT(*) FROM work WHERE tenant = ? AND NOT ended), "
        "1 + (SELECT COUNT(*) FROM work WHERE tenant = ?) RETURNING rowid, nth",
        tenant, number, os.getpid(), tenant, tenant,
    )
    round = (nth + LIMIT - 1) // LIMIT
    while not is_complete(round):
        await asyncio.sleep(0.01)
    write("UPDATE work SET ended = 1 WHERE rowid = ?", place)
    return "ok"


def answer(request):
    if any(isinstance(message, Assistant) for message in request.messages):
        return "Done."
    tenant, number = next(each for each in request.messages if isinstance(each, User)).parts[0].text.split()
    return [Call("work", tenant=tenant, number=int(number))]


agents = {"a": Agent(ScriptedModel(answer, keep=1), [work])}
""".replace("<tenants>", repr(TENANTS)).replace("<limit>", str(LIMIT))


async def start_runs(url: str) -> None:
    """The runs of the big tenant are the oldest."""
    async with await open_journal(url) as journal:
        for tenant, count in TENANTS.items():
            for number in range(count):
                await journal.start("a", f"{tenant} {number}", run_id=f"{tenant}/{number}", tenant=tenant)


async def wait_for_the_end(url: str) -> None:
    async with await open_journal(url) as journal:
        end = time.monotonic() + PATIENCE
        while len(await journal.runs(state="answered")) < sum(TENANTS.values()):
            assert time.monotonic() < end, f"not done in {PATIENCE} s: {await journal.count()}"
            await journal.changed(0.2)


@contextmanager
def workers(url: str, folder: Path) -> Generator[list[loaded_command.Started]]:
    started: list[loaded_command.Started] = []
    with open(folder / "output", "w") as output, open(os.devnull) as nothing:
        streams = nothing.fileno(), output.fileno(), output.fileno()
        limits = ("--per-tenant", str(LIMIT), "--concurrency", str(CONCURRENCY))
        options = ("--journal", url, "--agents", "app:agents", *limits)
        for _ in range(WORKERS):
            process = loaded_command.start("worker", *options, streams=streams, env=environment(), cwd=str(folder))
            started.append(process)
    try:
        end = time.monotonic() + PATIENCE
        while (folder / "output").read_text().count("agents: a\n") < WORKERS:
            assert time.monotonic() < end, (folder / "output").read_text()
            time.sleep(0.02)
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_four_workers_share_a_hundred_runs_with_two_of_each_tenant_at_a_time(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres_server.empty_url()
    (tmp_path / "app.py").write_text(APP)
    ledger = sqlite3.connect(tmp_path / "ledger.db")
    ledger.execute("PRAGMA journal_mode = WAL")
    ledger.execute("CREATE TABLE work (tenant, number, pid, ended, active, nth)")
    ledger.commit()
    with workers(url, tmp_path) as started:
        asyncio.run(start_runs(url))
        asyncio.run(wait_for_the_end(url))
        for process in started:
            os.kill(process.pid, signal.SIGTERM)
        assert [process.wait() for process in started] == [0] * WORKERS
    rows = ledger.execute("SELECT tenant, number, pid, active FROM work ORDER BY rowid").fetchall()
    ledger.close()
    assert Counter((tenant, number) for tenant, number, *_ in rows) == Counter(
        {(tenant, number): 1 for tenant, count in TENANTS.items() for number in range(count)}
    )
    active = Counter(row[3] for row in rows)
    assert {*active} == {1, LIMIT}, active
    # The small tenants do not wait for the big one, which was first.
    last = {tenant: max(place for place, row in enumerate(rows) if row[0] == tenant) for tenant in TENANTS}
    assert max(last[tenant] for tenant in TENANTS if tenant != "big") < 50, last
    # In each of the first five rounds ten calls run at the same time, and no worker has more than three of them.
    shares = Counter(row[2] for row in rows)
    assert len(shares) == WORKERS
    assert min(shares.values()) >= 5, shares
