"""The events of a run."""

import asyncio

from unbroken import Agent, CallFinished, CallStarted, RunFinished, ScriptedModel, TextAdded, tool
from unbroken_testing import Call


@tool(effect="read")
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


async def watch() -> list[str]:
    lines: list[str] = []
    agent = Agent(ScriptedModel([Call("get_weather", city="Rome")], "Rome is sunny."), [get_weather])
    async with agent.stream("How is Rome?") as stream:
        async for event in stream:
            if isinstance(event, CallStarted):
                lines.append(f"{event.name} {event.arguments}")
            elif isinstance(event, CallFinished):
                lines.append(f"{event.text} {event.seconds >= 0}")
            elif isinstance(event, TextAdded):
                lines.append(event.text)
            elif isinstance(event, RunFinished):
                lines.append(event.stop_reason)
        assert stream.result.output == "Rome is sunny."
    return lines


assert asyncio.run(watch())[-1] == "answered"
