"""The agents, by name: what `unbroken worker --agents refunds.agents:agents` drives.

`REFUNDS_LEDGER` is the URL of the ledger. `REFUNDS_MODEL` names a model, such as openai:gpt-5; without it a script
plays the model, and no key is needed.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

from refunds.ledger import Ledger
from unbroken import Agent, CallContext, ScriptedModel, connect, tool
from unbroken.models.scripted import Answer, Call, Say
from unbroken_wires.messages import Request, ToolMessage, User

ORDERS = {7: 20, 8: 35, 9: 480}
"""What was paid for each order."""
LARGEST = 100
"""A larger refund needs a person."""
INSTRUCTIONS = "You refund orders. Look up what was paid, refund exactly that, and say what you did in one sentence."

LEDGER = Ledger(os.environ.get("REFUNDS_LEDGER", "sqlite:///refunds-ledger.db"))


def find_payment(arguments: dict[str, Any], key: str) -> str | None:
    """After a crash: did the payment happen?"""
    paid = LEDGER.find(key)
    return None if paid is None else f"{paid[1]} was refunded for order {paid[0]}"


@tool(effect="read")
def look_up(order: int) -> str:
    """What was paid for an order."""
    return f"{ORDERS[order]} was paid for order {order}" if order in ORDERS else f"there is no order {order}"


@tool(effect="write", approve=lambda arguments: arguments["amount"] > LARGEST, after_crash=find_payment)
async def refund(order: int, amount: int, context: CallContext[Any]) -> str:
    """Refund an amount of money for an order."""
    await asyncio.sleep(0.3)  # the bank is slow
    LEDGER.pay(context.key, order, amount)
    await asyncio.sleep(0.3)
    return f"{amount} was refunded for order {order}"


def script(request: Request) -> Answer:
    """The answers of a model that does its job."""
    asked = next(message for message in request.messages if isinstance(message, User))
    order = int(re.findall(r"\d+", asked.text)[0])
    told = [result for message in request.messages if isinstance(message, ToolMessage) for result in message.results]
    if not told:
        return [Say(f"I will look up order {order}. ", over=0.2), Call("look_up", order=order)]
    if len(told) == 1:
        return [Call("refund", order=order, amount=ORDERS.get(order, 0))]
    last = told[-1].text
    return Say(f"Order {order}: {last}." if not told[-1].error else f"Order {order} was not refunded: {last}", over=0.2)


def make_model() -> Any:
    name = os.environ.get("REFUNDS_MODEL")
    return connect(name) if name else ScriptedModel(script)


agents = {"refunds": Agent(make_model(), [look_up, refund], INSTRUCTIONS)}
