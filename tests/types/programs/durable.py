"""A run in a journal, which any process can continue."""

import asyncio
import tempfile
from pathlib import Path

from unbroken import Agent, Allow, ScriptedModel, tool
from unbroken_durable import drive, open_journal
from unbroken_testing import Call


@tool(approve=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} was refunded"


async def main() -> str | None:
    agents = {"support": Agent(ScriptedModel([Call("refund", order=7)], "Refunded."), [refund])}
    async with await open_journal(f"sqlite:///{Path(tempfile.mkdtemp()) / 'runs.db'}") as journal:
        run = await journal.start("support", "Refund order 7", run_id="order-7")
        assert (await drive(agents, journal, run)).state == "waiting"
        for waiting in await journal.runs(state="waiting"):
            await journal.answer(waiting.run_id, {call.id: Allow() for call in waiting.pending})
        outcome = await drive(agents, journal, run)
        return outcome.result.text if outcome.result is not None else None


assert asyncio.run(main()) == "Refunded."
