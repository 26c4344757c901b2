"""Objects, classes and modules as tools."""

import types
from dataclasses import dataclass

from unbroken import Agent, CallContext, ScriptedModel, Toolbox, tool
from unbroken_testing import Call


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @tool(overlap=True)
    def increase(self, context: CallContext[None], by: int = 1) -> int:
        """Count."""
        self.count += by
        return self.count


@dataclass
class Shelf:
    books: int

    @tool(effect="read")
    def look(self) -> int:
        """How many books there are."""
        return self.books


@tool(effect="read")
def peek() -> str:
    """Look."""
    return "nothing"


plugin = types.ModuleType("plugin")
vars(plugin)["peek"] = peek
counter = Counter()
agent = Agent(ScriptedModel([Call("increase", by=2), Call("look")], "Two."), [counter, Toolbox(Shelf(3)), plugin])
assert [record.result.text for record in agent.run_sync("Count.").calls] == ["2", "3"] and counter.count == 2
