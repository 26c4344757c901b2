"""A worker on DBOS: `dbos_process.py runs|tools EXECUTOR DATABASE JOURNAL LEDGER SECONDS LIMITS`. Limits are JSON."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

from dbos import DBOS
from ledger import Ledger
from servers import READY
from worker_agents import agents, remote_tools

from unbroken_durable import open_journal
from unbroken_durable.dbos import DBOSTools, run_tool_worker, run_worker


async def main(what: str, executor: str, database: str, url: str, path: str, seconds: str, given: str) -> None:
    logging.basicConfig(level=logging.INFO)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ledger, limits = Ledger(path), json.loads(given)
    DBOS(config={"name": "checks", "system_database_url": database, "executor_id": executor})
    async with await open_journal(url) as journal:
        if what == "runs":
            work = run_worker(agents(ledger, [DBOSTools(DBOS, journal)], float(seconds)), journal, **limits)
        else:
            work = run_tool_worker(remote_tools(ledger, float(seconds)), journal, queue="gpu", **limits)
        working = asyncio.create_task(work)
        await asyncio.sleep(0.1)  # DBOS makes its tables before its worker waits for anything
        print(READY, flush=True)  # noqa: T201 - the test waits for it
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
