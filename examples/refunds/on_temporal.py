"""The same agent on Temporal and PostgreSQL, for many machines: `compose.yaml` runs it.

`python -m refunds.on_temporal worker` drives runs; `… start 9` starts one; `… answer order-9 allow` answers it.
"""

# pyright: basic, reportMissingImports=false
# temporalio is an extra of its own, and not in the environment in which the types are checked.

from __future__ import annotations

import argparse
import asyncio
import os

from temporalio.client import Client

from refunds.agents import agents
from unbroken import Allow, Deny
from unbroken_durable import open_journal
from unbroken_durable.temporal import answer_run, run_worker, start_run


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m refunds.on_temporal", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("worker")
    commands.add_parser("start").add_argument("order", type=int)
    answer = commands.add_parser("answer")
    answer.add_argument("run_id")
    answer.add_argument("decision", choices=["allow", "deny"])
    given = parser.parse_args()
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "127.0.0.1:7233"))
    async with await open_journal(os.environ["REFUNDS_JOURNAL"]) as journal:
        match given.command:
            case "worker":
                await run_worker(client, agents, journal)
            case "start":
                await start_run(
                    client, journal, "refunds", f"Refund order {given.order}.", run_id=f"order-{given.order}"
                )
            case _:
                pending = (await journal.run(given.run_id)).pending
                decision = Allow() if given.decision == "allow" else Deny()
                await answer_run(client, journal, given.run_id, {call.id: decision for call in pending})


if __name__ == "__main__":
    asyncio.run(main())
