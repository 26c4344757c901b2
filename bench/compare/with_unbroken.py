"""Our agent, streamed."""

import asyncio

from tools import PROMPT, ROUNDS, delete_folder, get_weather

from unbroken import Agent, Limits, TextAdded

agent = Agent("openai:demo", tools=[get_weather, delete_folder], limits=Limits(rounds=ROUNDS))


async def main() -> None:
    async for event in agent.stream(PROMPT):
        if isinstance(event, TextAdded):
            print(event.text, end="", flush=True)


asyncio.run(main())
