"""A worker on Temporal: `temporal_process.py runs|tools ADDRESS JOURNAL LEDGER SECONDS LIMITS`. The limits are JSON."""

# pyright: basic, reportMissingImports=false
# The engines are in an environment of their own.

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

from ledger import Ledger
from servers import READY
from temporalio.client import Client
from worker_agents import agents, remote_tools

from unbroken_durable import open_journal
from unbroken_durable.temporal import TemporalTools, run_tool_worker, run_worker


async def main(what: str, address: str, url: str, path: str, seconds: str, given: str) -> None:
    logging.basicConfig(level=logging.INFO)
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ledger, limits = Ledger(path), json.loads(given)
    client = await Client.connect(address)
    async with await open_journal(url) as journal:
        print(READY, flush=True)  # noqa: T201 - the test waits for it
        if what == "runs":
            sends = TemporalTools(client, journal, lost_after=3)
            await run_worker(client, agents(ledger, [sends], float(seconds)), journal, **limits)
        else:
            tools = remote_tools(ledger, float(seconds))
            await run_tool_worker(client, tools, journal, queue="gpu", **limits)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
