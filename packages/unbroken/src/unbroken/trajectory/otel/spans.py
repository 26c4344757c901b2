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
from unbroken.run_view import CallView, RunView
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.facts import failed
from unbroken.trajectory.otel.names import (
    CANCELLED,
    ERROR_TYPES,
    OTHER,
    Asked,
    Attributes,
    Tracing,
    answer,
    fail,
    headers_of,
    history,
    instructions,
    is_foreign,
    nanoseconds,
    tools,
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
    """The spans of all calls, by their numbers. The view must have received each event before."""

    def __init__(self, tracing: Tracing, view: RunView) -> None:
        self._tracing = tracing
        self._view = view
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

    def response_ended(self, turn: int) -> None:
        for call in self._view.turn(turn).calls:
            self._measure_saved(call)

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
        call, ran = self._view.by_number[event.call], event.call in self._running
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
        self._measure(event, call, ran)
        self._measure_saved(call)

    def _measure(self, event: CallFinished, call: CallView, ran: bool) -> None:
        before = None if call.adopted is None else self._view.by_number.get(call.adopted)
        if not ran and before is not None and before.outcome is not None:
            return  # its end was reported before its response broke
        about, instruments = self._about(event.name), self._tracing.instruments
        dropped = ran and call.response_broke
        if not dropped:
            instruments.call_answered(about)
        if event.outcome == "unknown":
            instruments.outcome_unknown(about)
        elif ran:
            instruments.tool_ended(event.seconds, about, ERROR_TYPES[event.outcome], failed(event) and not dropped)

    def _measure_saved(self, call: CallView) -> None:
        if call.saved is not None:
            self._tracing.instruments.started_early(call.saved, self._about(call.name))

    def _about(self, name: str) -> Attributes:
        known = name if self._tool(name) is not None else OTHER  # a model may invent any number of names
        return {**self._tracing.measured, "gen_ai.tool.name": known}

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
            "unbroken.turn": event.turn,
            "unbroken.call.number": event.call,
        }
        if tool is not None and tool.spec.description:
            about["gen_ai.tool.description"] = exportable(tool.spec.description)
        return self._tracing.start("execute_tool", exportable(event.name), SpanKind.INTERNAL, about, event.time)


# Requests to a model, traced: a `chat` span for each, current while the model works, and its numbers. The retries of a
# `RetryingModel` belong to one request, as the conventions require. The span is current only while the model is
# awaited, not while its deltas are processed: otherwise an async generator would leave it in the context of its reader.


_SAYING = (TextDelta, ReasoningDelta, CallOpened, CallReady)


class Asking:
    """One active request, and its answer so far."""

    def __init__(self, tracing: Tracing, asked: Asked, request: Request, turn: int) -> None:
        self._tracing = tracing
        self._asked = asked
        about: dict[str, Any] = {**asked.attributes(), **_settings(request), "unbroken.turn": turn}
        if tracing.content:
            about |= _content(tracing, request)
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
        """Counts failed attempts too: they were paid for."""
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
    return {name: tracing.exportable_json(value) for name, value in found.items() if value}


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
