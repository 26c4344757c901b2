"""An agent as a tool of another, both with their dependencies."""

from dataclasses import dataclass

from unbroken import Agent, CallContext, ScriptedModel, tool
from unbroken_testing import Call


@dataclass
class Shop:
    name: str


@tool(effect="read")
def stock(context: CallContext[Shop], item: str) -> str:
    """What is in stock."""
    return f"{item} at {context.deps.name}"


clerk = Agent[Shop](ScriptedModel([Call("stock", item="tea")], "There is tea."), [stock])
boss = Agent(
    ScriptedModel([Call("clerk", task="Is there tea?")], "Yes."), [clerk.as_tool("clerk", "Asks.")], deps=Shop("A")
)
assert boss.run_sync("Tea?").calls[0].result.text == "There is tea."
