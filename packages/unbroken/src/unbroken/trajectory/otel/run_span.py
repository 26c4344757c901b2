"""The span of one run, and below it those of its requests and its calls (`spans`).

Times are those of the run's own clock, also on virtual time and in a replay. A call's span is current while its tool
runs, so everything that the tool does is a child of it: another agent, an instrumented library.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, cast

from opentelemetry.context import Context, get_current
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from unbroken.events import (
    NAMES,
    ApprovalAsked,
    CallAdopted,
    CallFinished,
    CallsIgnored,
    CallStarted,
    Compacted,
    Event,
    LimitReached,
    ReasoningReplaced,
    RequestRetried,
    RunFailed,
    RunFinished,
    ServerCallFinished,
    ServerCallStarted,
    TextReplaced,
    ToolLate,
)
from unbroken.middleware import Ask, Middleware, RunStart
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.counted import COUNTED, What
from unbroken.trajectory.counting import EventCounter
from unbroken.trajectory.otel import traceparent
from unbroken.trajectory.otel.names import (
    CANCELLED,
    COUNTED_AS,
    ERROR_TYPES,
    Asked,
    Telemetry,
    Tracing,
    answer_content,
    fail,
    history,
    is_foreign,
    known,
    nanoseconds,
)
from unbroken.trajectory.otel.spans import Asking, CallSpans, traced
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Request, ToolCall, ToolResult

_NOTED: dict[type[Event], tuple[str, ...]] = {
    RequestRetried: ("attempt", "kind", "reason", "wait", "model", "elsewhere"),
    TextReplaced: (),
    ReasoningReplaced: (),
    CallsIgnored: ("names",),
    LimitReached: ("kind", "limit"),
    Compacted: ("messages", "before", "after", "problem"),
    ApprovalAsked: ("name", "call_id"),
    ToolLate: ("name", "seconds", "threads"),
}
"""The events that a span has, too, and which of their fields."""
_ENDED = ("stop_reason", "rounds", "requests", "attempts", "calls", "complete", "cut_off")
_NAMED = {"before": "tokens.before", "after": "tokens.after"}


def tracing(
    tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None, content: bool
) -> Callable[[RunStart], RunTrace]:
    """Returns a function that traces runs; the tracer and the instruments are made once."""
    return partial(RunTrace, Telemetry(tracer_provider, meter_provider, content))


def _place(shared: dict[str, str] | None) -> tuple[Context, list[Link]]:
    """Where the span of a run belongs. A part of a durable run belongs below the first part, or below the span that was
    current when the run was started; if another span is current, below that one, with a link."""
    current = get_current()
    if not shared:
        return current, []
    first = TraceContextTextMapPropagator().extract(shared, Context())
    there, here = get_current_span(first).get_span_context(), get_current_span(current).get_span_context()
    if not here.is_valid:
        return first, []
    return current, [] if here.trace_id == there.trace_id else [Link(there)]


class RunTrace(Middleware):
    """The trace of one run. Its parent is the span that is current where the run is awaited."""

    mutates = False
    sees_deltas = True
    edits_answers = False

    def __init__(self, telemetry: Telemetry, head: RunStart) -> None:
        outside, links = _place(head.trace)
        self._tracing = tracing = Tracing(telemetry, head, outside)
        self._elapsed = tracing.stopwatch()
        about: dict[str, Any] = {**Asked.named(head.model).attributes(), "unbroken.run.goes_on": head.resumed or None}
        if tracing.content:
            question = () if head.question is None else (head.question,)
            about["gen_ai.input.messages"] = tracing.content_of(history((*head.messages, *question)))
        self._span = tracing.start("invoke_agent", head.agent, SpanKind.INTERNAL, about, head.clock.now(), links)
        if head.trace is not None and not head.trace and (own := traceparent(self._span)):
            head.trace["traceparent"] = own
        tracing.put_below(self._span)
        self._counter = EventCounter(self._count)
        self._calls = CallSpans(tracing, self._counter)
        self._asked = Asked.of(head.asks) if head.asks is not None else Asked.named(head.model)
        self._asking: Asking | None = None
        self._server_calls: dict[str, Span] = {}
        self._turn = 0
        self._over = False

    def on_tools(self, turn: int, toolbox: Toolbox) -> None:
        self._turn = turn
        self._calls.toolbox = toolbox

    def ask_model(self, request: Request, call_next: Ask) -> AsyncIterator[Sequence[Delta]]:
        return traced(request, call_next, self._begin_asking, self._end_asking)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        return await self._calls.traced(call, context, call_next)

    def _begin_asking(self, request: Request) -> Asking:
        self._tracing.look_for_secrets()
        self._asking = Asking(self._tracing, self._asked, request, self._turn)
        return self._asking

    def _end_asking(self, asking: Asking) -> None:
        asking.end_once()
        self._asking = None

    def on_event(self, event: Event) -> None:
        self._counter(event)
        match event:
            case CallStarted():
                self._calls.start(event)
            case CallFinished():
                self._calls.finish(event)
            case CallAdopted():
                self._calls.adopt(event)
            case RequestRetried():
                self._note(event, self._asking.span if self._asking is not None else self._span)
            case ToolLate():
                self._note(event, self._calls.running.get(event.call, self._span))
            case ServerCallStarted():
                self._server_calls[event.call_id] = self._server_call(event)
            case ServerCallFinished():
                self._end_server_call(event)
            case RunFinished():
                self._finished(event)
            case RunFailed():
                self._failed(event)
            case _ if type(event) in _NOTED:
                self._note(event, self._span)
            case _:
                pass

    def _count(self, what: What, amount: int = 1, label: Any = "") -> None:
        """Measures what the counter has found. The result of a call counts as its answer, unless it will be dropped."""
        counted, name, event, error = COUNTED[what], COUNTED_AS.get(what), self._counter.last, ""
        about = {"gen_ai.tool.name": self._calls.known_name(label)} if counted.label == "tool" else {}
        if isinstance(event, RequestRetried):
            about["unbroken.restart.kind"] = event.kind
        elif isinstance(event, CallFinished) and what != "saved":
            call = self._counter.view(event).by_number[event.call]
            error = ERROR_TYPES[event.outcome] if what in ("seconds", "failures") else ""
            if what != "failures" and not call.interrupted:
                self._tracing.measure("unbroken.tool.calls", 1, about)
            if call.started is None and what == "seconds":
                return  # it ran before its process died
        if name is not None and (amount or what == "seconds"):
            self._tracing.measure(name, counted.value(amount), about, error)

    def _note(self, event: Event, span: Span) -> None:
        """Adds an event to the span."""
        about: dict[str, Any] = {"turn": event.turn}
        for name in _NOTED[type(event)]:
            value = getattr(event, name)
            if isinstance(value, str):
                value = self._tracing.exportable(value)
            elif isinstance(value, list):
                value = [self._tracing.exportable(each) for each in cast("list[str]", value)]
            about[_NAMED.get(name, name)] = value
        if isinstance(event, TextReplaced | ReasoningReplaced):
            about["length"] = len(event.text)
        attributes = {f"unbroken.{name}": value for name, value in about.items()}
        span.add_event(f"unbroken.{NAMES[type(event)]}", attributes, nanoseconds(event.time))

    def _server_call(self, event: ServerCallStarted | ServerCallFinished) -> Span:
        return self._tracing.start_tool(event, {"gen_ai.tool.type": "extension", "unbroken.tool.by_provider": True})

    def _end_server_call(self, event: ServerCallFinished) -> None:
        span = self._server_calls.pop(event.call_id, None) or self._server_call(event)
        if self._tracing.content and event.arguments is not None:
            span.set_attribute("gen_ai.tool.call.arguments", self._tracing.content_of(event.arguments) or "")
        if event.outcome != "done":
            fail(span, event.outcome, self._tracing.content_of(event.error))
        span.end(nanoseconds(event.time))

    def _finished(self, event: RunFinished) -> None:
        usage = event.usage
        about: dict[str, Any] = {
            **{f"unbroken.run.{name}": getattr(event, name) for name in _ENDED},
            "gen_ai.usage.input_tokens": usage["input_tokens"],
            "gen_ai.usage.output_tokens": usage["output_tokens"],
            "unbroken.usage.estimated": usage.get("estimated") or None,
        }
        if self._tracing.content:
            about |= answer_content(Assistant(event.text), event.stop_reason, self._tracing.exportable)
        self._span.set_attributes(known(about))
        self._end(event.time)
        if event.stop_reason != "waiting":  # a run that waits is counted when it has ended
            how = {"unbroken.run.stop_reason": event.stop_reason}
            self._tracing.measure("unbroken.run.duration", event.seconds, how)
            self._tracing.measure("unbroken.run.rounds", event.rounds, {})

    def _failed(self, event: RunFailed) -> None:
        tells = self._tracing.content or is_foreign(event.error)
        fail(self._span, event.error, self._tracing.exportable(event.message) if tells else "")
        self._end(event.time)
        self._tracing.measure("unbroken.run.duration", self._elapsed(), {}, event.error)

    def end(self) -> None:
        self._end(self._tracing.clock.now())

    def _end(self, time: float) -> None:
        """Ends everything that is still open, then the run's span. Works once."""
        if self._over:
            return
        self._over = True
        if self._asking is not None:
            self._asking.fail(CANCELLED)
            self._end_asking(self._asking)
        self._calls.end(time)
        self._span.end(nanoseconds(time))
