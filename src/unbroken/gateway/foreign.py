"""A model that somebody wrote in Python, as the gateway wants one: what it raises is its own failure, nobody else's.

Any exception is a try that failed: it is logged, counted, and the fallback is asked. What it says may come piece by
piece, or all at once at the end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from unbroken.deltas import (
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    ReasoningDelta,
    Restarted,
    TextDelta,
)
from unbroken.errors import ProviderError, StreamError, Unavailable
from unbroken.messages import Assistant, Request, ToolCall
from unbroken.models.model import Model, closing

log = logging.getLogger("unbroken.gateway")


@dataclass(slots=True)
class _Heard:
    """What was said so far. Calls are numbered by their arrival, and named where they have no id of their own: those
    who make them by hand leave both out."""

    round: int
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    given: list[ToolCall] = field(default_factory=list[ToolCall])
    """The same calls as the model gave them."""

    def hear(self, delta: Delta) -> Delta:
        match delta:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta(text):
                self.reasoning += text
            case CallReady(call):
                return CallReady(self._number(call))
            case CallSpoiled(call):
                self._forget(call.id)
            case Restarted():
                self.text, self.reasoning = "", ""
                self.calls.clear()
                self.given.clear()
            case _:
                pass
        return delta

    def end(self, ended: Ended) -> list[Delta]:
        """The end, with all that was said in its message, and before it what only the message says."""
        message, deltas = ended.message, list[Delta]()
        if message is None:
            return [Ended(ended.verdict, Assistant(self.text, tuple(self.calls), self.reasoning))]
        if message.reasoning and not self.reasoning:
            deltas.append(ReasoningDelta(message.reasoning))
        if message.text and not self.text:
            deltas.append(TextDelta(message.text))
        left = list(self.given)
        calls: list[ToolCall] = []
        for call in message.calls:
            at = next((at for at, said in enumerate(left) if said == call or (said.id and said.id == call.id)), None)
            if at is not None:
                calls.append(self.calls[self.given.index(left.pop(at))])
            elif call.problem:
                calls.append(call)
            else:
                calls.append(self._number(call))
                deltas.append(CallReady(calls[-1]))
        return [*deltas, Ended(ended.verdict, replace(message, calls=tuple(calls)))]

    def _number(self, call: ToolCall) -> ToolCall:
        index = len(self.calls)
        id = call.id if call.id and all(call.id != said.id for said in self.calls) else f"call_{self.round}_{index}"
        self.given.append(call)
        self.calls.append(replace(call, id=id, index=index))
        return self.calls[-1]

    def _forget(self, id: str) -> None:
        at = next((at for at, said in enumerate(self.given) if said.id == id), None)
        if at is not None:
            del self.given[at], self.calls[at]


class ForeignModel:
    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        heard = _Heard(sum(isinstance(said, Assistant) and bool(said.calls) for said in request.messages))
        try:
            async with closing(self.model.stream(request)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Ended):
                        for last in heard.end(delta):
                            yield last
                        return
                    yield heard.hear(delta)
        except (ProviderError, StreamError):
            raise
        except Exception as error:
            # Somebody else's code: anything may come of it, a `UserError` of ours too, and no client is to blame.
            log.exception("the model `%s` failed", self.name)
            raise Unavailable(f"model `{self.name}` failed: {type(error).__name__}", status=502) from error
