"""Whatever a client does to its history: the model gets valid requests, each call is released once and in order, and no
result is lost. `UNBROKEN_FUZZ` runs more examples."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import valkey_server
from gateway_client import Clock, Inside, run, serving, settings_for, upstream_settings
from hypothesis import given, settings
from strategies import costly
from strategies_gateway import ACTIONS_DRAWN, HOLD, PLANS, Action, Habits, Plan, Talk, habits

from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.stores.store import MemoryStore
from unbroken_testing import ScriptedModel, ScriptedServer

SERIAL = (ClientProfile("one at a time", user_agent="serial"),)
FOREVER = 1e6
MORE = int(os.environ.get("UNBROKEN_FUZZ") or 0)


def options(habits: Habits) -> dict[str, Any]:
    return {"clients": SERIAL, "hold_timeout": HOLD, "retry_window": FOREVER if habits.retries else 0.0}


@costly
@given(habits(), PLANS, ACTIONS_DRAWN)
def test_whatever_a_client_does_no_call_is_repeated_and_no_result_is_lost(
    habits: Habits, plans: Sequence[Plan], actions: Sequence[Action]
) -> None:
    async def story() -> None:
        clock = Clock()
        talk = Talk(habits, plans, clock)
        model = ScriptedModel(talk.speak, wire=habits.upstream, recover=False)
        store = MemoryStore(now=clock)

        async def open(replica: int) -> Inside:
            return Inside({"m": model}, store, clock, **options(habits))

        talk.upstream, talk.reopen = model, open
        talk.gateways = [await open(0), await open(1)]
        for action in actions:
            await talk.act(action)

    asyncio.run(story())


@settings(max_examples=MORE // 50 or 15)
@given(habits(), PLANS, ACTIONS_DRAWN)
def test_the_same_over_http_with_two_replicas_on_valkey(
    habits: Habits, plans: Sequence[Plan], actions: Sequence[Action]
) -> None:
    store = valkey_server.empty_url()

    async def story() -> None:
        clock = Clock()
        talk = Talk(habits, plans, clock)
        async with ScriptedServer(talk.speak) as upstream, AsyncExitStack() as first, AsyncExitStack() as second:
            row = upstream_settings(upstream, habits.upstream, options={"attempts": 1})
            replicas = [first, second]

            async def open(replica: int) -> str:
                await replicas[replica].aclose()
                gateway = serving(settings_for(row, store=store, **options(habits)), now=clock)
                return await replicas[replica].enter_async_context(gateway)

            talk.upstream, talk.reopen = upstream, open
            talk.gateways = [await open(0), await open(1)]
            for action in actions:
                await talk.act(action)

    run(story)
