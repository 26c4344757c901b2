"""Asynchronous tools, and one that yields."""

import asyncio
from collections.abc import AsyncIterator

from unbroken import Agent, ScriptedModel, tool
from unbroken_testing import Call


@tool(effect="read")
async def fetch(page: int) -> str:
    """Fetch a page."""
    await asyncio.sleep(0)
    return f"page {page}"


@tool(effect="read")
async def fetch_all(count: int) -> AsyncIterator[str]:
    """Fetch some pages."""
    for page in range(count):
        yield f"page {page}"


async def main() -> str:
    model = ScriptedModel([Call("fetch", page=3), Call("fetch_all", count=2)], "Fetched.")
    result = await Agent(model, tools=[fetch, fetch_all]).run("Fetch.")
    return "; ".join(record.result.text for record in result.calls)


assert asyncio.run(main()).startswith("page 3; ")
