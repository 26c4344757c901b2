"""Tools that the provider runs, beside your own."""

from unbroken import Agent, ScriptedModel, tool
from unbroken_wires.server_tools import CodeExecution, WebSearch


@tool(effect="read")
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


model = ScriptedModel("Hello.", wire="anthropic-messages")
agent = Agent(model, tools=[WebSearch(max_uses=3, allowed_domains=["yr.no"]), CodeExecution(), get_weather])
result = agent.run_sync("Hi.")
assert result.output == "Hello." and [call.tool for call in result.server_calls] == []
