"""Plain functions and `@tool` functions, called by a model and directly."""

from unbroken import Agent, ScriptedModel, tool
from unbroken_testing import Call


@tool(effect="read", timeout=5)
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


def add(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


model = ScriptedModel([Call("get_weather", city="Rome"), Call("add", first=2)], "Sunny, and 3.")
result = Agent(model, [get_weather, add]).run_sync("Go.")
assert [record.result.text for record in result.calls] == ["Rome: sunny", "3"]
assert get_weather("Oslo") == "Oslo: sunny"
assert get_weather.name == "get_weather"
