"""Wraps a model written in Python: an exception in it is its own failure, and never the client's.

Any exception is a failed attempt: it is logged and counted, and the fallback is asked. The model may yield its answer
piece by piece, or all at once at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from unbroken.deltas import (
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    TextDelta,
)
from unbroken.errors import ProviderError, StreamError, Unavailable
from unbroken.gateway.http.asgi import MAIN_LOOP
from unbroken.messages import Assistant, Request, ToolCall
from unbroken.models.model import Model, closing
from unbroken.models.relay import without_relay

log = logging.getLogger("unbroken.gateway")


@dataclass(slots=True)
class _Response:
    """The response so far. Calls are numbered by arrival and get an id if they have none, because handwritten models
    often leave both out."""

    round: int
    heard: PartialResponse = field(default_factory=PartialResponse)
    given: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])
    """The calls as the model gave them, by their number here."""

    def feed(self, delta: Delta) -> Delta:
        match delta:
            case CallReady(call):
                return CallReady(self._number(call))
            case CallSpoiled(call):
                self._forget(call.id)
            case Restarted():
                self.given.clear()
                self.heard.restart()
            case TextDelta() | ReasoningDelta():
                self.heard.feed(delta)
            case _:
                pass  # it has the model's own numbers
        return delta

    def end(self, ended: Ended) -> list[Delta]:
        """The end, with the complete message, and before it the deltas for what only the message contains."""
        message, heard, deltas = ended.message, self.heard.message, list[Delta]()
        if message is None:
            return [Ended(ended.verdict, heard)]
        if message.reasoning and not heard.reasoning:
            deltas.append(ReasoningDelta(message.reasoning))
        if message.text and not heard.text:
            deltas.append(TextDelta(message.text))
        left = dict(self.given)
        calls: list[ToolCall] = []
        for call in message.calls:
            at = next((at for at, said in left.items() if said == call or (said.id and said.id == call.id)), None)
            if at is not None:
                del left[at]
                calls.append(self.heard.calls[at])
            elif call.problem:
                calls.append(call)
            else:
                calls.append(self._number(call))
                deltas.append(CallReady(calls[-1]))
        return [*deltas, Ended(ended.verdict, replace(message, calls=tuple(calls)))]

    def _number(self, call: ToolCall) -> ToolCall:
        calls = self.heard.calls
        index = max(calls, default=-1) + 1
        id = call.id if call.id and all(call.id != said.id for said in calls.values()) else f"call_{self.round}_{index}"
        self.given[index] = call
        numbered = replace(call, id=id, index=index)
        self.heard.feed(CallReady(numbered))
        return numbered

    def _forget(self, id: str) -> None:
        at = next((at for at, said in self.given.items() if said.id == id), None)
        if at is not None:
            del self.given[at], self.heard.calls[at]


class PythonModel:
    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        response = _Response(sum(isinstance(said, Assistant) and bool(said.calls) for said in request.messages))
        home, request = MAIN_LOOP.get(), without_relay(request)
        said = self.model.stream(request) if home is None else _stream_on_main_loop(home, self.model, request)
        try:
            async with closing(said) as batches:
                async for deltas in batches:
                    batch: list[Delta] = []
                    for delta in deltas:
                        if isinstance(delta, Ended):
                            yield [*batch, *response.end(delta)]
                            return
                        batch.append(response.feed(delta))
                    yield batch
        except (ProviderError, StreamError):
            raise
        except Exception as error:
            # The user's code may raise anything, even our `UserError`, and the client is not to blame.
            log.exception("the model `%s` failed", self.name)
            raise Unavailable(f"model `{self.name}` failed: {type(error).__name__}", status=502) from error


async def _stream_on_main_loop(
    home: asyncio.AbstractEventLoop, model: Model, request: Request
) -> AsyncIterator[Sequence[Delta]]:
    """A model may be bound to the loop that it was first used on, so it runs there, in one task."""
    here = asyncio.get_running_loop()
    queue: asyncio.Queue[Sequence[Delta] | None] = asyncio.Queue()

    async def ask() -> None:
        try:
            async with closing(model.stream(request)) as batches:
                async for deltas in batches:
                    here.call_soon_threadsafe(queue.put_nowait, deltas)
        finally:
            here.call_soon_threadsafe(queue.put_nowait, None)

    asking = asyncio.run_coroutine_threadsafe(ask(), home)
    try:
        while (deltas := await queue.get()) is not None:
            yield deltas
        await asyncio.wrap_future(asking)
    finally:
        asking.cancel()
