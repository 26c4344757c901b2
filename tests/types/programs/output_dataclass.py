"""A dataclass, and lists of them."""

from dataclasses import dataclass

from unbroken import Agent, ScriptedModel
from unbroken_testing import Call


@dataclass
class Place:
    name: str
    people: int = 0


one = Agent(ScriptedModel([Call("final_answer", name="Rome", people=3)]), output=Place).run_sync("Where?").output
assert one.name.lower() == "rome" and one.people > 2
many = Agent(ScriptedModel([Call("final_answer", value=[{"name": "Rome"}])]), output=list[Place]).run_sync("Where?")
assert [place.name for place in many.output] == ["Rome"]
counts = Agent(ScriptedModel([Call("final_answer", a=1)]), output=dict[str, int]).run_sync("Count.")
assert sum(counts.output.values()) == 1
