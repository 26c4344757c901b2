"""A run waits in a journal, and continues."""

import asyncio

from unbroken import Agent, Allow, ScriptedModel, tool
from unbroken.models.scripted import Call
from unbroken_durable import drive, open_journal


@tool(approve=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} was refunded"


async def main() -> None:
    agents = {"support": Agent(ScriptedModel(Call("refund", order=7), "Done."), [refund])}
    async with await open_journal("sqlite:///runs.db") as journal:
        run_id = await journal.start("support", "Refund order 7")
        assert (await drive(agents, journal, run_id)).state == "waiting"
        (row,) = await journal.runs(state="waiting")
        await journal.answer(run_id, {call.id: Allow() for call in row.pending})
        outcome = await drive(agents, journal, run_id)
        assert outcome.result is not None
        assert outcome.result.text == "Done."


asyncio.run(main())
