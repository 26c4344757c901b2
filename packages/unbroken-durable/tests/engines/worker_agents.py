"""The agents and tools that the workers of these tests run. Their model answers by the question and by what was said
so far, so it continues in any process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ledger import Ledger

from unbroken import Agent, CallContext, Policy, ScriptedModel, Tool, tool
from unbroken.errors import ProviderError
from unbroken.middleware import Middleware
from unbroken.models.scripted import Answer, Call
from unbroken_wires.messages import Assistant, Request, User

LARGE = 10_000_000


def answer(request: Request, folder: Path) -> Answer:
    """`steps 4`: four writes, one after another. `pay 5`: a write that needs an approval, `pays 2`: two
    of them. `render 3`: three calls at
    once on other machines. `large`, `slow`: one call elsewhere. `crash` ends each
    process that drives it. The provider is down while the folder has a file
    `down`."""
    if (folder / "down").exists():
        raise ProviderError("the provider is down")
    words = next(message.text for message in request.messages if isinstance(message, User)).split()
    said = sum(isinstance(message, Assistant) for message in request.messages)
    number = int(words[1]) if len(words) > 1 else 1
    match words[0]:
        case "steps" if said < number:
            return [Call("step", number=said, id=f"step-{said}"), Call("look", number=said, id=f"look-{said}")]
        case "pay" if said == 0:
            return [Call("pay", amount=number, id="pay-1")]
        case "pays" if said == 0:
            return [Call("pay", amount=each, id=f"pay-{each}") for each in range(number)]
        case "render" if said == 0:
            return [Call("render", number=each, id=f"render-{each}") for each in range(number)]
        case "large" if said == 0:
            return [Call("large", id="large-1")]
        case "crash":
            return [Call("crash")]
        case "slow" if said == 0:
            return [Call("slow", id="slow-1")]
        case _:
            return "Done."


def tenant_of(context: CallContext[Any]) -> str:
    """The runs of these tests are called `acme-1`."""
    return context.run.partition("-")[0]


def local_tools(ledger: Ledger, seconds: float = 0.2) -> list[Tool]:
    @tool
    async def step(number: int, context: CallContext[Any]) -> str:
        with ledger.execution("step", context.key, tenant_of(context)):
            await asyncio.sleep(seconds)
        return f"step {number}"

    @tool(effect="read")
    async def look(number: int, context: CallContext[Any]) -> str:
        with ledger.execution("look", context.key):
            await asyncio.sleep(0.01)
        return f"look {number}"

    @tool(approve=True)
    async def pay(amount: int, context: CallContext[Any]) -> str:
        with ledger.execution("pay", context.key):
            return f"paid {amount}"

    @tool(effect="read")
    async def crash() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return [step, look, pay, crash]


def remote_tools(ledger: Ledger, seconds: float = 0.2) -> list[Tool]:
    @tool(queue="gpu", overlap=True)
    async def render(number: int, context: CallContext[Any]) -> str:
        with ledger.execution("render", context.key, tenant_of(context)):
            await asyncio.sleep(seconds)
        return f"picture {number}"

    @tool(queue="gpu")
    async def large(context: CallContext[Any]) -> str:
        with ledger.execution("large", context.key):
            return "x" * LARGE

    @tool(queue="gpu", timeout=600)
    async def slow(context: CallContext[Any]) -> str:
        with ledger.execution("slow", context.key):
            context.report("rendering", 0.5)
            await asyncio.sleep(600)
        return "late"

    return [render, large, slow]


def agents(ledger: Ledger, middleware: Sequence[Middleware] = (), seconds: float = 0.2) -> dict[str, Agent[Any, Any]]:
    tools = [*local_tools(ledger, seconds), *remote_tools(ledger, seconds)]
    policy = Policy(result_limit=2 * LARGE)
    return {
        "worker": Agent(
            ScriptedModel(lambda request: answer(request, ledger.folder)), tools, middleware=middleware, policy=policy
        )
    }
