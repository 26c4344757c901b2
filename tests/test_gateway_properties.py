"""Whatever a client does to its history: what reaches the model is valid, each call is handed out once and in its turn,
and no result is lost. `UNBROKEN_FUZZ` tries more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway_client import Clock, Inside
from hypothesis import given
from strategies_gateway import ACTIONS_DRAWN, HOLD, PLANS, Action, Habits, Plan, Talk, habits

from unbroken.gateway.settings import ClientProfile
from unbroken.gateway.stores.memory import MemoryStore
from unbroken.testing import ScriptedModel

SERIAL = (ClientProfile("one at a time", user_agent="serial"),)


@given(habits(), PLANS, ACTIONS_DRAWN)
def test_whatever_a_client_does_no_call_is_doubled_and_no_result_is_lost(
    habits: Habits, plans: Sequence[Plan], actions: Sequence[Action]
) -> None:
    async def story() -> None:
        clock = Clock()
        talk = Talk(habits, plans, clock)
        model = ScriptedModel(talk.speak, wire=habits.upstream, recover=False)
        store = MemoryStore(now=clock)

        def reopen() -> Inside:
            window = HOLD * 10 if habits.retries else 0.0
            return Inside({"m": model}, store, clock, clients=SERIAL, hold_timeout=HOLD, retry_window=window)

        talk.upstream, talk.reopen = model, reopen
        talk.gateways = [reopen(), reopen()]
        for action in actions:
            await talk.act(action)

    asyncio.run(story())
