"""A TypedDict, a number, a Literal."""

from typing import Literal

from typing_extensions import TypedDict

from unbroken import Agent, ScriptedModel
from unbroken_testing import Call


class Row(TypedDict):
    name: str
    count: int


row = Agent(ScriptedModel([Call("final_answer", name="a", count=2)]), output=Row).run_sync("Row?").output
assert row["count"] + 1 == 3 and row["name"].isalpha()
number = Agent(ScriptedModel([Call("final_answer", value=3)]), output=int).run_sync("How many?").output
assert number.bit_length() == 2
mood = (
    Agent(ScriptedModel([Call("final_answer", value="good")]), output=Literal["good", "bad"]).run_sync("Mood?").output
)
rated: Literal["good", "bad"] = mood
assert rated == "good"
