"""A function as the output: the model writes its arguments, and you get what it returns."""

from datetime import date

from unbroken import Agent, ScriptedModel
from unbroken_testing import Call


def day_of(year: int, month: int, day: int) -> date:
    """The day that is meant."""
    return date(year, month, day)


result = Agent(ScriptedModel([Call("final_answer", year=2026, month=1, day=31)]), output=day_of).run_sync("When?")
assert result.output.isoformat() == "2026-01-31"
