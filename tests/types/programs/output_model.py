"""A pydantic model as the output, of an agent, of a run, of a stream and of a conversation."""

import asyncio

from pydantic import BaseModel

from unbroken import Agent, Conversation, Output, ScriptedModel


class Report(BaseModel):
    city: str
    celsius: int


TEXT = '{"city": "Rome", "celsius": 24}'
agent = Agent(ScriptedModel(*[TEXT] * 5), output=Report)
result = agent.run_sync("Rome?")
assert result.output.celsius + 1 == 25
assert Conversation(agent).say_sync("Rome?").output.city == "Rome"


async def watch() -> list[int]:
    stream = agent.stream("Rome?")
    seen = [report.celsius async for report in stream.outputs()]
    return [*seen, stream.result.output.celsius, (await agent.run("Rome?")).output.celsius]


assert asyncio.run(watch())[-1] == 24
native = Agent(ScriptedModel(TEXT), output=Output(Report, via="native"))
assert native.run_sync("Rome?").output.city == "Rome"
