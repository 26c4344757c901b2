"""Limits and prices, fixed or chosen for each run."""

from dataclasses import dataclass

from unbroken import Agent, Limits, Prices, RunContext, ScriptedModel, tool
from unbroken_testing import Call, Uses


@dataclass
class Customer:
    premium: bool


@tool(effect="read")
def search(query: str) -> str:
    """Search."""
    return query


def choose(context: RunContext[Customer]) -> Limits:
    return Limits(rounds=20 if context.deps.premium else 1, prices=Prices(input=1.0, output=2.0))


model = ScriptedModel([Call("search", query="tea"), Uses(1000, 10)], ["Tea.", Uses(1000, 10)])
result = Agent(model, [search], limits=choose, deps=Customer(False)).run_sync("Tea?")
assert result.stop_reason == "round_limit" and result.output == "Tea."
assert result.cost is not None and 0 < round(result.cost, 4) < 0.01
