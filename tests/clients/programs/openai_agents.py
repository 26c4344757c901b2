"""An agent of `openai-agents`, over Responses or Chat Completions."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from task import IMAGE, IMAGE_URL, KEY, MODEL, PROMPT, SERIAL, STREAM, URL, Report, finish, write_file

set_tracing_disabled(True)
PARTS = [{"type": "input_text", "text": PROMPT}, {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"}]
QUESTION = [{"role": "user", "content": PARTS}] if IMAGE else PROMPT
make = OpenAIResponsesModel if os.environ["GATEWAY_WIRE"] == "openai-responses" else OpenAIChatCompletionsModel


async def main():
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    agent = Agent(
        name="writer",
        instructions="You write files.",
        model=make(MODEL, client),
        tools=[function_tool(write_file)],
        output_type=Report if IMAGE else None,
        model_settings=ModelSettings(parallel_tool_calls=False if SERIAL else None),
    )
    if STREAM:
        result = Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, QUESTION)
    finish(result.final_output.summary if IMAGE else result.final_output)


asyncio.run(main())
