"""A thousand runs that wait: no task, no thread, no open file and no connection is left for them."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import postgres_server
import pytest
from in_loop import in_loop

from unbroken import Agent, ScriptedModel, tool
from unbroken_durable import Journal, Worker, open_journal
from unbroken_testing import Call

RUNS = {"sqlite": 1000, "postgresql": 200}


@tool(approve=True)
def refund(order: int) -> str:
    """Refund."""
    return "refunded"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def journal_threads() -> int:
    return sum(thread.name.startswith("unbroken-journal") for thread in threading.enumerate())


async def connections(url: str) -> int:
    """Of this package, to the database of the test."""
    import psycopg  # noqa: PLC0415 - an optional extra

    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (
            await connection.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'unbroken' "
                "AND datname = current_database()"
            )
        ).fetchone()
    assert row is not None
    return int(row[0])


async def make_them_wait(journal: Journal, count: int) -> None:
    for number in range(count):
        await journal.start("a", "Refund.", run_id=str(number), tenant=f"tenant-{number % 7}")
    model = ScriptedModel([Call("refund", order=7)], loop_last=True, keep=1)
    await Worker({"a": Agent(model, [refund])}, journal, concurrency=20).run_until_idle()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@in_loop
async def test_a_thousand_waiting_runs_leave_nothing_in_the_process(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else postgres_server.empty_url()
    gc.collect()
    tasks, before = asyncio.all_tasks(), (open_files(), journal_threads())
    async with await open_journal(url) as journal:
        await journal.claim(await journal.start("a", "Hi."))  # from here on it holds its one lock
        opened = open_files(), journal_threads()
        await make_them_wait(journal, RUNS[kind])
        assert len(await journal.runs(state="waiting")) == RUNS[kind]
        await asyncio.sleep(1.2)  # the listeners for changes have gone
        gc.collect()
        assert asyncio.all_tasks() == tasks
        assert (open_files(), journal_threads()) == opened
        if kind == "postgresql":
            assert await connections(url) == 1
        else:
            assert len(os.listdir(f"{tmp_path}/runs.db-locks")) == 1
    while (open_files(), journal_threads()) != before:
        await asyncio.sleep(0.01)  # a thread ends a moment later
    if kind == "postgresql":
        while await connections(url):
            await asyncio.sleep(0.01)  # the server notices it a moment later
    else:
        assert os.listdir(f"{tmp_path}/runs.db-locks") == []
