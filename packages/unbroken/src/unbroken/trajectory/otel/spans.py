"""Requests to a model and tool calls, traced: a span for each, and their numbers.

A call that never started has a span of zero length: it shared another's execution, or was refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from opentelemetry.context import Context, attach, detach
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
    Tracing,
    answer,
    fail,
    headers_of,
    history,
    instructions,
    is_foreign,
    nanoseconds,
    tools,
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
)
from unbroken_wires.messages import Request, ToolCall, ToolResult, Usage


class CallSpans:
    """The spans of all calls, by their numbers. The counter must have received each event before."""

    def __init__(self, tracing: Tracing, counter: EventCounter) -> None:
        self._tracing = tracing
        self._counter = counter
        self._toolbox: Toolbox | None = None
        self._running: dict[int, tuple[Span, Context]] = {}
        """The spans of calls whose tool has started."""

    def offered(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def traced(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        running = self._running.get(context.number)
        if running is None:
            return await call_next(call, context)
        _, above = running
        token, carried = attach(above), CARRIED.set(headers_of(above))
        try:
            return await call_next(call, context)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def span_of(self, number: int) -> Span | None:
        running = self._running.get(number)
        return running[0] if running is not None else None

    def start(self, event: CallStarted) -> None:
        span = self._begin(event)
        span.set_attribute("unbroken.call.early", event.early)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.arguments", self._tracing.exportable_json(event.arguments))
        self._running[event.call] = span, self._tracing.within(span)

    def adopt(self, event: CallAdopted) -> None:
        if (running := self._running.pop(event.adopted, None)) is not None:
            self._running[event.call] = running
            running[0].set_attribute("unbroken.call.number", event.call)
            running[0].set_attribute("gen_ai.tool.call.id", self._tracing.exportable(event.call_id))

    def finish(self, event: CallFinished) -> None:
        call, ran = self._counter.view(event).by_number[event.call], event.call in self._running
        span = self._running.pop(event.call)[0] if ran else self._begin(event)
        exportable, error = self._tracing.exportable, ERROR_TYPES[event.outcome]
        span.set_attribute("unbroken.call.seconds", event.seconds)
        span.set_attribute("unbroken.call.outcome", event.outcome)
        if event.duplicate_of:
            span.set_attribute("unbroken.call.duplicate_of", exportable(event.duplicate_of))
        if call.adopted is not None:
            span.set_attribute("unbroken.call.adopted", call.adopted)
        if ran and call.response_broke:
            span.set_attribute("unbroken.call.dropped", True)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.result", exportable(event.text))
        if error:
            fail(span, error, exportable(event.text) if self._tracing.content else "")
        span.end(nanoseconds(call.finished if ran and call.finished is not None else event.time))

    def known_name(self, name: str) -> str:
        """A model may invent any number of names."""
        return name if self._tool(name) is not None else OTHER

    def end(self, time: float) -> None:
        """The run is over: ends the spans of calls that still run."""
        for span, _ in self._running.values():
            fail(span, CANCELLED)
            span.end(nanoseconds(time))
        self._running.clear()

    def _tool(self, name: str) -> Tool | None:
        return self._toolbox.get(name) if self._toolbox is not None else None

    def _begin(self, event: CallStarted | CallFinished) -> Span:
        exportable, tool = self._tracing.exportable, self._tool(event.name)
        about: dict[str, Any] = {
            "gen_ai.tool.name": exportable(event.name),
            "gen_ai.tool.call.id": exportable(event.call_id),
            "gen_ai.tool.type": "function",
            "gen_ai.tool.description": (exportable(tool.spec.description) or None) if tool is not None else None,
            "unbroken.turn": event.turn,
            "unbroken.call.number": event.call,
        }
        return self._tracing.start("execute_tool", exportable(event.name), SpanKind.INTERNAL, about, event.time)


# Requests to a model, traced: a `chat` span for each, current while the model works, and its numbers. The retries of a
# `RetryingModel` belong to one request, as the conventions require. The span is current only while the model is
# awaited, not while its deltas are processed: otherwise an async generator would leave it in the context of its reader.


_CONTENT = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.tool.definitions")
_SAYING = (TextDelta, ReasoningDelta, CallOpened, CallReady)


class Asking:
    """One active request, and its answer so far."""

    def __init__(self, tracing: Tracing, asked: Asked, request: Request, turn: int) -> None:
        self._tracing = tracing
        self._asked = asked
        about: dict[str, Any] = {**asked.attributes(), **_settings(request), "unbroken.turn": turn}
        if tracing.content:
            content = instructions(request.messages), history(request.messages), tools(request.tools)
            about |= {name: tracing.exportable_json(each) for name, each in zip(_CONTENT, content, strict=True) if each}
        self.span = tracing.start("chat", asked.model, SpanKind.CLIENT, about, tracing.clock.now())
        self._context = tracing.within(self.span)
        self._carried = headers_of(self._context)
        self._so_far = PartialResponse() if tracing.content else None
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
        if self._so_far is not None:
            self._so_far.feed(delta)
        if self._first is None and isinstance(delta, _SAYING):
            self._first = self._elapsed()
        if isinstance(delta, UsageReported):
            self._reported = delta.usage if delta.usage.total_tokens else self._reported
        elif isinstance(delta, AttemptFailed):
            self._count()
        elif isinstance(delta, Ended):
            self._take_end(delta)

    def _take_end(self, ended: Ended) -> None:
        verdict, exportable = ended.verdict, self._tracing.exportable
        if verdict.finish is not None:
            self.span.set_attribute("gen_ai.response.finish_reasons", [exportable(verdict.finish)])
        if verdict.model and (answered := Asked.named(verdict.model)).model != self._asked.model:
            self.span.set_attribute("gen_ai.response.model", answered.model)
        if self._so_far is not None:
            said = answer(ended.message or self._so_far.message, verdict.finish or verdict.kind)
            self.span.set_attribute("gen_ai.output.messages", self._tracing.exportable_json(said))
        if verdict.failed:
            self.fail(verdict.kind, verdict.reason)
        elif not verdict.whole:  # still an answer: the model reads an error for a call that was cut
            self.span.set_attribute("unbroken.verdict", verdict.kind)

    def fail(self, error: str, words: str = "") -> None:
        self._error = error
        fail(self.span, error, self._tracing.exportable(words))

    def end(self) -> None:
        """Ends the span. Works once: the end of a run ends requests that are still open."""
        if self._ended:
            return
        self._ended = True
        self._count()
        self.span.set_attributes(usage_attributes(self._spent))
        if self._first is not None:
            self.span.set_attribute("gen_ai.response.time_to_first_chunk", self._first)
        about = {"gen_ai.operation.name": "chat", **self._asked.attributes()}
        self._tracing.telemetry.request_ended(self._elapsed(), self._first, self._spent, about, self._error)
        self.span.end(nanoseconds(self._tracing.clock.now()))

    def _count(self) -> None:
        """Counts failed attempts too: they were paid for."""
        if self._reported is not None:
            self._spent += self._reported
            self._reported = None

    def _elapsed(self) -> float:
        return round(self._tracing.clock.elapsed() - self._began, 9)


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
