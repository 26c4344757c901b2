"""The agent of openai-agents, streamed."""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
from tools import PROMPT, ROUNDS, delete_folder, get_weather

set_default_openai_api("chat_completions")
set_tracing_disabled(True)
agent = Agent("helper", model="demo", tools=[function_tool(get_weather), function_tool(delete_folder)])


async def main() -> None:
    result = Runner.run_streamed(agent, PROMPT, max_turns=ROUNDS)
    async for _ in result.stream_events():
        pass
    print(result.final_output)


asyncio.run(main())
