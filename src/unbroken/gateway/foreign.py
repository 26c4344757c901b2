"""A model that somebody wrote in Python, as the gateway wants one: what it raises is its own failure, nobody else's.

Any exception is a try that failed: it is logged, counted, and the fallback is asked. What it says may come piece by
piece, or all at once at the end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from unbroken.deltas import (
    CallReady,
    CallSpoiled,
    CallWithdrawn,
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
    text: str = ""
    reasoning: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict[int, ToolCall])

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta(text):
                self.reasoning += text
            case CallReady(call):
                self.calls[call.index if call.index not in self.calls else len(self.calls)] = call
            case CallSpoiled(call):
                self.calls.pop(call.index, None)
            case CallWithdrawn(index):
                self.calls.pop(index, None)
            case Restarted():
                self.text, self.reasoning, self.calls = "", "", {}
            case _:
                pass

    def missing(self, message: Assistant) -> list[Delta]:
        """What the message says and the deltas did not."""
        deltas: list[Delta] = []
        if message.reasoning and not self.reasoning:
            deltas.append(ReasoningDelta(message.reasoning))
        if message.text and not self.text:
            deltas.append(TextDelta(message.text))
        said = {call.id for call in self.calls.values()}
        return [*deltas, *(CallReady(call) for call in message.calls if call.id not in said and not call.problem)]


class ForeignModel:
    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        heard = _Heard()
        try:
            async with closing(self.model.stream(request)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Ended):
                        if delta.message is None:
                            calls = tuple(heard.calls.values())
                            delta = Ended(delta.verdict, Assistant(heard.text, calls, heard.reasoning))
                        elif delta.verdict.whole:
                            for more in heard.missing(delta.message):
                                yield more
                        yield delta
                        return
                    heard.feed(delta)
                    yield delta
        except (ProviderError, StreamError):
            raise
        except Exception as error:
            # Somebody else's code: anything may come of it, a `UserError` of ours too, and no client is to blame.
            log.exception("the model `%s` failed", self.name)
            raise Unavailable(f"model `{self.name}` failed: {type(error).__name__}", status=502) from error
