"""Agents for workers and commands, as a user's module has them: `write_app` writes it to a folder."""

from __future__ import annotations

from pathlib import Path

APP = """
import asyncio
import os
from pathlib import Path
from unbroken import Agent, ScriptedModel, client_tool, tool
from unbroken_wires.messages import Assistant, User
from unbroken_testing import Call


@tool(approve=True)
def refund(order: int) -> str:
    "Refund an order."
    print("a tool prints this")
    return f"order {order} was refunded"


@tool
async def ship(order: int) -> str:
    "Ship an order: it takes until the file `may_end` is there."
    with open("ledger", "a") as ledger:
        ledger.write(f"began {order}\\n")
    while not Path("may_end").exists():
        await asyncio.sleep(0.02)
    with open("ledger", "a") as ledger:
        ledger.write(f"ended {order}\\n")
    return f"order {order} was shipped"


pick = client_tool("pick", "The user picks one.", {"type": "object", "properties": {}})


def answer(request):
    words = next(message for message in request.messages if isinstance(message, User)).parts[0].text.split()
    asked = sum(isinstance(message, Assistant) for message in request.messages)
    calls = [Call(name, id=f"{name}-1", **({} if name == "pick" else {"order": 7})) for name in words if name in NAMES]
    if "fail" in words:
        raise RuntimeError("no such model")
    return [calls[asked]] if asked < len(calls) else "Done."


NAMES = ("refund", "ship", "pick")
agents = {"support": Agent(ScriptedModel(answer), [refund, ship, pick])}
single = Agent(ScriptedModel(answer), [refund], name="single")
nothing = {}
number = 5


def made():
    return agents


def broken():
    raise ValueError("no key")
"""


def write_app(folder: Path) -> None:
    (folder / "app.py").write_text(APP, "utf-8")
