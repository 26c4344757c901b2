"""A test on virtual time."""

import asyncio

from unbroken import Agent, ScriptedModel, tool
from unbroken_testing import Call, TestModel, run_virtual


@tool(effect="read")
async def slow(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


agent = Agent(ScriptedModel([Call("slow", seconds=20.0), Call("slow", seconds=10.0)], "Done."), [slow])
result = run_virtual(agent.run("Wait."))
assert result.seconds == 20.0 and result.output == "Done."
with agent.override(model=TestModel()):
    assert run_virtual(agent.run("Wait.")).calls
