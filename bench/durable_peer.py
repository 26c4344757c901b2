"""The run of `durable.py` with pydantic-ai on DBOS, on SQLite: for the comparison that `make bench-durable` prints. It
is a program of its own, because it has an environment of its own."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from upstream import upstream


async def get_weather(city: str, days: int) -> str:
    """How the weather will be in a city."""
    return f"sunny in {city} for {days} days"


async def read(context: Any, events: Any) -> None:
    async for _ in events:
        pass


async def measure(run: Any, times: int) -> float:
    for _ in range(3):
        await run()
    began = time.process_time()
    for _ in range(times):
        await run()
    return (time.process_time() - began) / times


async def main() -> None:
    logging.disable(logging.WARNING)
    with upstream(0.0) as url, tempfile.TemporaryDirectory() as folder:
        model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(base_url=url, api_key="x"))
        agent: Any = Agent(model, instructions="You are a weather service.", tools=[get_weather], name="weather")
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db", "log_level": "ERROR"})
        durable = DBOSAgent(agent, event_stream_handler=read)  # with it the answers are streamed, as in ours
        DBOS.launch()
        number = 0

        async def in_memory() -> None:
            await agent.run("How is the weather there?", event_stream_handler=read)

        async def on_dbos() -> None:
            nonlocal number
            number += 1
            with SetWorkflowID(f"run-{number}"):
                await durable.run("How is the weather there?")

        spent = {"in memory": await measure(in_memory, 20), "on DBOS": await measure(on_dbos, 20)}
        for name, seconds in spent.items():
            print(f"  pydantic-ai {name:9} {seconds * 1000:7.2f} ms CPU")
        print(f"  on DBOS / in memory, CPU  {spent['on DBOS'] / spent['in memory']:.2f}")
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
