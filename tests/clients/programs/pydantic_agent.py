"""An agent of `pydantic-ai`, over any of the wires that it speaks."""

# pyright: basic, reportMissingImports=false
# Runs where the client is installed, which is not where the types are checked.
from __future__ import annotations

import asyncio
import os
from base64 import b64decode

from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from task import IMAGE, KEY, MODEL, PROMPT, SERIAL, STREAM, URL, Report, finish, write_file

match os.environ["GATEWAY_WIRE"]:
    case "anthropic-messages":
        model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY))
    case "openai-responses":
        model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))
    case _:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))
settings = {"parallel_tool_calls": False} if SERIAL else {}
shape = NativeOutput(Report) if IMAGE else str
agent = Agent(model, output_type=shape, instructions="You write files.", tools=[write_file], model_settings=settings)
question = [PROMPT, BinaryContent(b64decode(IMAGE), media_type="image/png")] if IMAGE else PROMPT


def show(output):
    finish(output.summary if IMAGE else output)


async def main():
    if not STREAM:
        show((await agent.run(question)).output)
        return
    async with agent.run_stream_events(question) as events:
        async for event in events:
            if event.event_kind == "agent_run_result":
                show(event.result.output)


asyncio.run(main())
