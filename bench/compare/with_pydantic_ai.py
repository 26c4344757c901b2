"""pydantic-ai's agent, streamed."""

import asyncio

from pydantic_ai import Agent, AgentRunResultEvent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from tools import PROMPT, ROUNDS, delete_folder, get_weather

agent = Agent(OpenAIChatModel("demo"), tools=[get_weather, delete_folder])


async def main() -> None:
    async with agent.run_stream_events(PROMPT, usage_limits=UsageLimits(request_limit=ROUNDS)) as events:
        async for event in events:
            if isinstance(event, AgentRunResultEvent):
                print(event.result.output)


asyncio.run(main())
