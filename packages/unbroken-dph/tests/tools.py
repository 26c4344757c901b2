"""The tools that the programs of the corpus call, as a file for `--tools`. It is loaded again for each program, so
counters start at one."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from pydantic import BaseModel

from unbroken import ToolFailed, tool

_DRAWN = itertools.count(1)


class Town(BaseModel):
    name: str
    people: int


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather in a city; it takes a second."""
    await asyncio.sleep(1.0)
    return f"{city}: sunny"


@tool(effect="read")
async def get_news(topic: str) -> str:
    """The news on a topic; it takes two seconds."""
    await asyncio.sleep(2.0)
    return f"news of {topic}"


@tool(effect="read")
def web_search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


@tool(effect="read")
def load(path: str) -> dict[str, Any]:
    """A table from a file."""
    return {"path": path, "rows": [{"id": 1}, {"id": 2}]}


@tool(effect="read")
def check_stock(product: str) -> dict[str, Any]:
    """How many of a product are left."""
    return {"product": product, "left": 3}


@tool
def draw() -> int:
    """The next number: never the same twice."""
    return next(_DRAWN)


@tool(effect="read")
def echo(value: Any) -> Any:
    """Gives back what it is given."""
    return value


@tool(effect="read")
def fs_read(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@tool
def fs_write(path: str, text: str = "") -> str:
    """Write a file."""
    return f"wrote {len(text)} characters to {path}"


@tool
def refuse(reason: str = "closed on Sundays") -> str:
    """Always fails."""
    raise ToolFailed(reason)
