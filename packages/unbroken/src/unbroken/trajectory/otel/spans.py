"""Requests to a model and tool calls, traced: a span for each, and their numbers.

A call that never started has a span of zero length: it shared another's execution, or was refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from opentelemetry.context import attach, detach
from opentelemetry.trace import Span, SpanKind

from unbroken.events import CallAdopted, CallFinished, CallStarted
from unbroken.middleware import Ask
from unbroken.models.model import CARRIED, closing
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.counting import EventCounter
from unbroken.trajectory.otel.names import (
    CANCELLED,
    ERROR_TYPES,
    OTHER,
    Asked,
    Attributes,
    Exportable,
    Telemetry,
    Tracing,
    answer_content,
    fail,
    headers_of,
    is_foreign,
    known,
    nanoseconds,
    request_content,
    usage_attributes,
)
from unbroken_wires.deltas import (
    AttemptFailed,
    CallOpened,
    CallReady,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, Request, ToolCall, ToolResult, Usage


class CallSpans:
    """The spans of all calls, by their numbers. The counter must have received each event before."""

    def __init__(self, tracing: Tracing, counter: EventCounter) -> None:
        self._tracing = tracing
        self._counter = counter
        self.toolbox: Toolbox | None = None
        """The tools that the model was offered last."""
        self.running: dict[int, Span] = {}
        """The spans of calls whose tool has started."""

    async def traced(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        span = self.running.get(context.number)
        if span is None:
            return await call_next(call, context)
        above = self._tracing.within(span)
        token, carried = attach(above), CARRIED.set(headers_of(above))
        try:
            return await call_next(call, context)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def start(self, event: CallStarted) -> None:
        arguments = self._tracing.content_of(event.arguments)
        about = {"unbroken.call.early": event.early, "gen_ai.tool.call.arguments": arguments}
        self.running[event.call] = self._begin(event, about)

    def adopt(self, event: CallAdopted) -> None:
        if (span := self.running.pop(event.adopted, None)) is not None:
            self.running[event.call] = span
            span.set_attribute("unbroken.call.number", event.call)
            span.set_attribute("gen_ai.tool.call.id", self._tracing.exportable(event.call_id))

    def finish(self, event: CallFinished) -> None:
        call, ran = self._counter.view(event).by_number[event.call], event.call in self.running
        span = self.running.pop(event.call) if ran else self._begin(event, {})
        text = self._tracing.content_of(event.text)
        about = {
            "unbroken.call.seconds": event.seconds,
            "unbroken.call.outcome": event.outcome,
            "unbroken.call.duplicate_of": self._tracing.exportable(event.duplicate_of) if event.duplicate_of else None,
            "unbroken.call.adopted": call.adopted,
            "unbroken.call.dropped": (ran and call.response_broke) or None,
            "gen_ai.tool.call.result": text,
        }
        span.set_attributes(known(about))
        if error := ERROR_TYPES[event.outcome]:
            fail(span, error, text)
        span.end(nanoseconds(call.finished if ran and call.finished is not None else event.time))

    def known_name(self, name: str) -> str:
        """A model may invent any number of names."""
        return name if self._tool(name) is not None else OTHER

    def end(self, time: float) -> None:
        """The run is over: ends the spans of calls that still run."""
        for span in self.running.values():
            fail(span, CANCELLED)
            span.end(nanoseconds(time))
        self.running.clear()

    def _tool(self, name: str) -> Tool | None:
        return self.toolbox.get(name) if self.toolbox is not None else None

    def _begin(self, event: CallStarted | CallFinished, more: dict[str, Any]) -> Span:
        tool = self._tool(event.name)
        about: dict[str, Any] = {
            "gen_ai.tool.type": "function",
            "gen_ai.tool.description": None
            if tool is None
            else self._tracing.exportable(tool.spec.description) or None,
            "unbroken.turn": event.turn,
            "unbroken.call.number": event.call,
            **more,
        }
        return self._tracing.start_tool(event, about)


# Requests to a model, traced: a `chat` span for each, current while the model works, and its numbers. The retries of a
# `RetryingModel` belong to one request, as the conventions require. The span is current only while the model is
# awaited, not while its deltas are processed: otherwise an async generator would leave it in the context of its reader.


_SAYING = (TextDelta, ReasoningDelta, CallOpened, CallReady)


class ModelSpan:
    """The span of one request to a model, and its numbers. `elapsed`: the seconds since it began."""

    def __init__(self, span: Span, asked: Asked, exportable: Exportable, elapsed: Callable[[], float]) -> None:
        self.span = span
        self.asked = asked
        self._exportable = exportable
        self._elapsed = elapsed
        self.first: float | None = None
        """Seconds until the first output of the model."""
        self.usage = Usage()
        self._error = ""

    def begin_answer(self) -> None:
        """The first output of the model has arrived; or more of it."""
        if self.first is None:
            self.first = self._elapsed()

    def take_end(self, verdict: Verdict, message: Assistant | None) -> None:
        """Without the message if content is not exported."""
        reasons = None if verdict.finish is None else [self._exportable(verdict.finish)]
        self.span.set_attributes(known({"gen_ai.response.finish_reasons": reasons}))
        if message is not None:
            self.span.set_attributes(answer_content(message, verdict.finish or verdict.kind, self._exportable))

    def fail(self, error: str, words: str = "") -> None:
        self._error = error
        fail(self.span, error, self._exportable(words))

    def end(self, telemetry: Telemetry, about: Attributes, time: int | None = None) -> None:
        """`about` is empty if it is not measured."""
        first = known({"gen_ai.response.time_to_first_chunk": self.first})
        self.span.set_attributes(usage_attributes(self.usage) | first)
        if about:
            telemetry.request_ended(self._elapsed(), self.first, self.usage, about, self._error)
        self.span.end(time)


class Asking(ModelSpan):
    """One active request of a run, and its answer so far."""

    def __init__(self, tracing: Tracing, asked: Asked, request: Request, turn: int) -> None:
        self._tracing = tracing
        about: dict[str, Any] = {**asked.attributes(), **_settings(request), "unbroken.turn": turn}
        if tracing.content:
            about |= request_content(request, tracing.exportable)
        span = tracing.start("chat", asked.model, SpanKind.CLIENT, about, tracing.clock.now())
        super().__init__(span, asked, tracing.exportable, tracing.stopwatch())
        self._context = tracing.within(self.span)
        self._carried = headers_of(self._context)
        self._so_far = PartialResponse() if tracing.content else None
        self._reported = Usage()
        self._ended = False

    async def next(self, batches: AsyncIterator[Sequence[Delta]]) -> Sequence[Delta]:
        token, carried = attach(self._context), CARRIED.set(self._carried)
        try:
            return await anext(batches)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def hear(self, delta: Delta) -> None:
        if self._so_far is not None:
            self._so_far.feed(delta)
        if self.first is None and isinstance(delta, _SAYING):
            self.begin_answer()
        if isinstance(delta, UsageReported):
            self._reported = delta.usage if delta.usage.total_tokens else self._reported
        elif isinstance(delta, AttemptFailed):
            self._count()
        elif isinstance(delta, Ended):
            said = None if self._so_far is None else delta.message or self._so_far.message
            self.take_end(delta.verdict, said)

    def take_end(self, verdict: Verdict, message: Assistant | None) -> None:
        super().take_end(verdict, message)
        if verdict.model and (answered := Asked.named(verdict.model)).model != self.asked.model:
            self.span.set_attribute("gen_ai.response.model", answered.model)
        if verdict.failed:
            self.fail(verdict.kind, verdict.reason)
        elif not verdict.whole:  # still an answer: the model reads an error for a call that was cut
            self.span.set_attribute("unbroken.verdict", verdict.kind)

    def end_once(self) -> None:
        """The end of a run ends requests that are still open."""
        if not self._ended:
            self._ended = True
            self._count()
            about = {"gen_ai.operation.name": "chat", **self.asked.attributes()}
            self.end(self._tracing.telemetry, about, nanoseconds(self._tracing.clock.now()))

    def _count(self) -> None:
        """Counts failed attempts too: they were paid for."""
        self.usage += self._reported
        self._reported = Usage()


def _settings(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    found = {
        f"gen_ai.request.{name}": getattr(sampling, name) for name in ("max_tokens", "temperature", "top_p", "seed")
    }
    return {**found, "gen_ai.request.stop_sequences": sampling.stop or None}


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
        raise  # the reader has stopped
    except BaseException as error:
        kind = type(error).__name__
        asking.fail(kind, str(error) if is_foreign(kind) else "")
        raise
    finally:
        end(asking)
