"""Requests to a model, traced: a `chat` span for each, current while the model works, and its numbers.

Tries that a `RetryingModel` makes again belong to the one request, as the conventions have it. The span is current only
while the model is waited for, and not while its deltas are looked at: what an async generator sets it would otherwise
leave in the context of whoever reads from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from opentelemetry.context import attach, detach
from opentelemetry.trace import SpanKind

from unbroken.deltas import AttemptFailed, CallOpened, CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken.messages import Request, Usage
from unbroken.middleware import Ask
from unbroken.models.model import closing
from unbroken.partial_response import PartialResponse
from unbroken.trace_headers import CARRIED
from unbroken.trajectory.otel.message_content import answer, history, instructions, tools
from unbroken.trajectory.otel.names import Asked, is_foreign, nanoseconds
from unbroken.trajectory.otel.tracing import Tracing, fail, headers_of

_SAYING = (TextDelta, ReasoningDelta, CallOpened, CallReady)


class Asking:
    """One request on its way, and what came of it so far."""

    def __init__(self, tracing: Tracing, asked: Asked, request: Request, turn: int) -> None:
        self._tracing = tracing
        self._asked = asked
        about: dict[str, Any] = {**asked.attributes(), **_settings(request), "unbroken.turn": turn}
        if tracing.content:
            about |= _content(tracing, request)
        self.span = tracing.start("chat", asked.model, SpanKind.CLIENT, about, tracing.clock.now())
        self._context = tracing.within(self.span)
        self._carried = headers_of(self._context)
        self._hearing = PartialResponse() if tracing.content else None
        self._began = tracing.clock.elapsed()
        self._first: float | None = None
        self._reported: Usage | None = None
        self._spent = Usage()
        self._error = ""
        self._ended = False

    async def next(self, batches: AsyncIterator[Sequence[Delta]]) -> Sequence[Delta]:
        token, carried = attach(self._context), CARRIED.set(self._carried)
        try:
            return await anext(batches)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def hear(self, delta: Delta) -> None:
        if self._hearing is not None:
            self._hearing.feed(delta)
        if self._first is None and isinstance(delta, _SAYING):
            self._first = self._elapsed()
        if isinstance(delta, UsageReported):
            self._reported = delta.usage if delta.usage.total_tokens else self._reported
        elif isinstance(delta, AttemptFailed):
            self._count()
        elif isinstance(delta, Ended):
            self._take_end(delta)

    def _take_end(self, ended: Ended) -> None:
        verdict, told = ended.verdict, self._tracing.told
        if verdict.finish is not None:
            self.span.set_attribute("gen_ai.response.finish_reasons", [told(verdict.finish)])
        if verdict.model and (answered := Asked.named(verdict.model)).model != self._asked.model:
            self.span.set_attribute("gen_ai.response.model", answered.model)
        if self._hearing is not None:
            said = answer(ended.message or self._hearing.message, verdict.finish or verdict.kind)
            self.span.set_attribute("gen_ai.output.messages", self._tracing.told_json(said))
        if verdict.failed:
            self.fail(verdict.kind, verdict.reason)
        elif not verdict.whole:  # an answer all the same: the model is told of a call that was cut
            self.span.set_attribute("unbroken.verdict", verdict.kind)

    def fail(self, error: str, words: str = "") -> None:
        self._error = error
        fail(self.span, error, self._tracing.told(words))

    def end(self) -> None:
        """Once: the end of a run ends what it still waits for."""
        if self._ended:
            return
        self._ended = True
        self._count()
        spent = self._spent
        numbers: dict[str, float | None] = {
            "gen_ai.usage.input_tokens": spent.input_tokens,
            "gen_ai.usage.output_tokens": spent.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": spent.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": spent.cache_write_tokens,
            "gen_ai.usage.reasoning.output_tokens": spent.reasoning_tokens,
        }
        self.span.set_attributes({name: number for name, number in numbers.items() if number})
        if self._first is not None:
            self.span.set_attribute("gen_ai.response.time_to_first_chunk", self._first)
        self.span.end(nanoseconds(self._tracing.clock.now()))
        self._tracing.instruments.request_ended(
            self._elapsed(), self._first, spent, self._asked.attributes(), self._error
        )

    def _count(self) -> None:
        """Of a try that failed, too: it was paid for."""
        if self._reported is not None:
            self._spent += self._reported
            self._reported = None

    def _elapsed(self) -> float:
        return round(self._tracing.clock.elapsed() - self._began, 9)


def _settings(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    found: dict[str, Any] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.stop_sequences": sampling.stop or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _content(tracing: Tracing, request: Request) -> dict[str, Any]:
    found = {
        "gen_ai.system_instructions": instructions(request.messages),
        "gen_ai.input.messages": history(request.messages),
        "gen_ai.tool.definitions": tools(request.tools),
    }
    return {name: tracing.told_json(value) for name, value in found.items() if value}


async def traced(
    request: Request, call_next: Ask, begin: Callable[[Request], Asking], end: Callable[[Asking], None]
) -> AsyncIterator[Sequence[Delta]]:
    """`begin` opens the span of a request, `end` closes it."""
    asking = begin(request)
    try:
        async with closing(call_next(request)) as batches:
            iterator = aiter(batches)
            while True:
                try:
                    deltas = await asking.next(iterator)
                except StopAsyncIteration:
                    break
                for delta in deltas:
                    asking.hear(delta)
                yield deltas
    except GeneratorExit:
        raise  # nobody wants the rest
    except BaseException as error:
        kind = type(error).__name__
        asking.fail(kind, str(error) if is_foreign(kind) else "")
        raise
    finally:
        end(asking)
