"""Middleware around the model."""

from collections.abc import AsyncIterator, Sequence

from unbroken import Agent, Middleware, Request, ScriptedModel, TextDelta
from unbroken.middleware import Ask
from unbroken_wires.deltas import Delta


class Shout(Middleware):
    async def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        async for deltas in call_next(request):
            yield [TextDelta(each.text.upper()) if isinstance(each, TextDelta) else each for each in deltas]


assert Agent(ScriptedModel("Hello."), middleware=[Shout()]).run_sync("Hi.").output == "HELLO."
