"""Dependencies: what tools find in their context, given to the agent or to a run."""

from dataclasses import dataclass

from unbroken import Agent, CallContext, ScriptedModel, Tool, tool
from unbroken_testing import Call


@dataclass
class Database:
    rows: int


@tool(effect="read")
def count(context: CallContext[Database], least: int = 0) -> int:
    """How many rows there are."""
    return max(context.deps.rows, least)


@tool(effect="read")
async def half(least: int, context: CallContext[Database]) -> int:
    """Half of them."""
    return max(context.deps.rows // 2, least)


def build() -> Agent[Database]:
    return Agent(ScriptedModel([Call("count"), Call("half", least=1)], "Four, and two."), [count, half])


def double(number: int) -> int:
    """Twice as many."""
    return 2 * number


needed: Tool[Database] = count
result = build().run_sync("How many?", deps=Database(4))
assert [record.result.text for record in result.calls] == ["4", "2"]
agent = Agent(ScriptedModel([Call("count")], "Four."), tools=[needed, double], deps=Database(4))
assert agent.run_sync("How many?").output == "Four."
