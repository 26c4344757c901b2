"""What the tests serve as an MCP server: `python -m unbroken mcp serve served_app.py:agent`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from unbroken import Agent, CallContext, MCPServer, ToolFailed, tool
from unbroken.agent import Image
from unbroken_testing import Call, ScriptedModel


@tool(effect="read")
def get_weather(city: str) -> str:
    """The weather in a city."""
    print("this is not for the client")  # noqa: T201 - what tools print must not reach the client
    return f"Sunny in {city}."


@tool(effect="read")
def half(context: CallContext[Any]) -> str:
    """Half of a character."""
    context.report("at \ud83d")
    return "half: \ud83d"


@tool(approve=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"Paid {amount}."


@tool
def fail() -> str:
    """Fail."""
    raise ToolFailed("there is no paper")


@tool(effect="read", timeout=0.1)
async def hang() -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return "done"


@tool(timeout=None)
async def work(context: CallContext[Any], folder: str) -> str:
    """Report, work until it is cancelled, and leave a note."""
    context.report("half way", 0.5)
    Path(folder, "begun").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(folder, "cancelled").touch()
        raise
    return "done"


@tool
async def step(folder: str, name: str) -> str:
    """Write down that it begins, and that it ends."""
    with Path(folder, "steps").open("a") as file:
        file.write(f"{name} ")
        file.flush()
        await asyncio.sleep(0.05)
        file.write(f"/{name} ")
    return name


@tool(effect="read")
def picture() -> Any:
    """A picture with words."""
    return ["one pixel", Image(b"\x89PNG", mime="image/png")]


TOOLS = [get_weather, pay, fail, hang, work, step, picture]


def _result(request: Any) -> str:
    last = request.messages[-1]
    return last.results[0].text if type(last).__name__ == "ToolMessage" else ""


class Scripted(ScriptedModel):
    """The same script for each run."""

    def stream(self, request: Any) -> Any:
        turn = sum(type(message).__name__ == "Assistant" for message in request.messages)
        prompt = request.messages[-1 - 2 * turn].text
        folder = os.environ.get("FOLDER", "")
        script: list[Any] = {
            "weather": [[Call("get_weather", city="Rome")], "It is sunny."],
            "pay": [[Call("pay", amount=3)], f"Done: {_result(request)}"],
            "work": [[Call("work", folder=folder)], "Done."],
        }[prompt]
        return ScriptedModel(*script[turn:]).stream(request)


@dataclass
class Answer:
    city: str
    degrees: int


class Town(BaseModel):
    city: str


class Tree(BaseModel):
    kids: list[Tree] = []


agent = Agent(Scripted(), tools=TOOLS, name="helper")
typed = Agent(ScriptedModel([Call("final_answer", city="Rome", degrees=21)]), name="typed", output=Answer)
everything = [agent, *TOOLS]
agents = {"first": agent, "second": typed}
wrapped = {
    "either": Agent(ScriptedModel([Call("final_answer", value={"city": "Rome"})]), output=Town | Tree),
    "tree": Agent(ScriptedModel([Call("final_answer", value={"kids": [{}]})]), output=Tree),
}
halves = [
    half,
    Agent(ScriptedModel("\ud83d", loop_last=True), name="answer"),
    Agent(ScriptedModel([Call("final_answer", r'{"city": "\ud83d"}')], loop_last=True), name="typed", output=Town),
]
LIBRARY = [sys.executable, str(Path(__file__).with_name("mcp_library.py"))]
library = [MCPServer(json.loads(os.environ.get("LIBRARY", "null")) or LIBRARY)]

NUMBER = 5
MIXED = {"first": agent, "number": NUMBER}
ODD = {"my agent!": agent}
