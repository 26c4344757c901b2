"""The spans of the calls of one run: from the start of a tool to its end, current while it runs, and their numbers.

A call that never started has a span too, without length: it shared another's execution, or was refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind

from unbroken.events import CallFinished, CallStarted
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trace_headers import CARRIED
from unbroken.trajectory.facts import failed
from unbroken.trajectory.otel.instruments import Attributes
from unbroken.trajectory.otel.names import CANCELLED, OTHER, error_type_of, nanoseconds
from unbroken.trajectory.otel.tracing import Tracing, fail, headers_of


@dataclass(slots=True)
class Running:
    """A call whose tool has begun."""

    span: Span
    context: Context
    started: float
    early: bool


class CallSpans:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._toolbox: Toolbox | None = None
        self._running: dict[str, Running] = {}
        self._orphans: dict[str, Running] = {}
        """Of a response that broke off. A call of the response that came instead may have the id of one of them."""
        self._response_ended = 0.0
        """When the last response was complete."""
        self._saved: dict[str, tuple[float, Attributes]] = {}
        """Seconds of calls that have ended before their response has: if it breaks, nothing was saved, unless somebody
        takes them over."""
        self._lost: dict[str, tuple[float, Attributes]] = {}
        self._is_ended = False
        """The response of this turn is complete."""

    def offered(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._lost.clear()
        self._is_ended = False

    async def traced(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        running = self._running.get(call.id)
        if running is None:
            return await call_next(call, context)
        token, carried = attach(running.context), CARRIED.set(headers_of(running.context))
        try:
            return await call_next(call, context)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def span_of(self, call_id: str) -> Span | None:
        running = self._running.get(call_id)
        return running.span if running is not None else None

    def response_broke(self) -> None:
        self._orphans |= self._running
        self._running.clear()
        self._lost |= self._saved
        self._saved.clear()

    def response_ended(self, time: float) -> None:
        self._response_ended = time
        for saved, about in self._saved.values():
            self._tracing.instruments.started_early(saved, about)
        self._saved.clear()
        self._is_ended = True

    def start(self, event: CallStarted) -> None:
        span = self._begin(event)
        span.set_attribute("unbroken.call.early", event.early)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.arguments", self._tracing.told_json(event.arguments))
        self._running[event.call_id] = Running(span, self._tracing.within(span), event.time, event.early)

    def finish(self, event: CallFinished) -> None:
        ran_before = event.adopted_from == event.call_id and event.call_id in self._running
        """Before its process died: it gives what it gave then."""
        running = self._running.pop(event.call_id) if ran_before else self._take(event)
        span = running.span if running is not None else self._begin(event)
        tool, told = self._tool(event.name), self._tracing.told
        error = error_type_of(event, tool.timeout if tool is not None else None) if event.error else ""
        span.set_attribute("unbroken.call.seconds", event.seconds)
        span.set_attribute("unbroken.call.executed", event.executed)
        if event.duplicate_of:
            span.set_attribute("unbroken.call.duplicate_of", told(event.duplicate_of))
        if event.adopted_from:
            span.set_attribute("unbroken.call.adopted_from", told(event.adopted_from))
            span.set_attribute("gen_ai.tool.call.id", told(event.call_id))
        if event.dropped:
            span.set_attribute("unbroken.call.dropped", True)
        if event.uncertain:
            span.set_attribute("unbroken.call.uncertain", True)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.result", told(event.text))
        if error:
            fail(span, error, told(event.text) if self._tracing.content else "")
        ended = event.time
        if running is not None and not ran_before and (event.adopted_from or event.dropped):
            ended = running.started + event.seconds  # it is told when it is known whose it is: later, perhaps
        span.end(nanoseconds(ended))
        self._measure(event, None if ran_before else running, ended, error)

    def _measure(self, event: CallFinished, running: Running | None, ended: float, error: str) -> None:
        name = event.name if self._tool(event.name) is not None else OTHER  # a model may make up any number of names
        about = {**self._tracing.measured, "gen_ai.tool.name": name}
        instruments = self._tracing.instruments
        if running is None and (lost := self._lost.pop(event.adopted_from, None)) is not None:
            if self._is_ended:  # its own end was told before its response broke
                instruments.started_early(*lost)
            else:
                self._saved[event.call_id] = lost
            return
        if not event.dropped:
            instruments.call_answered(about)
        if event.uncertain:
            instruments.outcome_unknown(about)
            return
        if running is None:
            return
        instruments.tool_ended(event.seconds, about, error, failed(event))
        if not running.early or event.dropped:
            return
        if self._response_ended < running.started:
            self._saved[event.call_id] = ended - running.started, about
        else:
            instruments.started_early(min(ended, self._response_ended) - running.started, about)

    def end(self, time: float) -> None:
        """The run is over, and with it what still runs."""
        for running in (*self._running.values(), *self._orphans.values()):
            fail(running.span, CANCELLED)
            running.span.end(nanoseconds(time))
        self._running.clear()
        self._orphans.clear()

    def _take(self, event: CallFinished) -> Running | None:
        if event.adopted_from or event.dropped:
            return self._orphans.pop(event.adopted_from or event.call_id, None)
        return self._running.pop(event.call_id, None)

    def _tool(self, name: str) -> Tool | None:
        return self._toolbox.get(name) if self._toolbox is not None else None

    def _begin(self, event: CallStarted | CallFinished) -> Span:
        told, tool = self._tracing.told, self._tool(event.name)
        about: dict[str, Any] = {
            "gen_ai.tool.name": told(event.name),
            "gen_ai.tool.call.id": told(event.call_id),
            "gen_ai.tool.type": "function",
            "unbroken.turn": event.turn,
        }
        if tool is not None and tool.spec.description:
            about["gen_ai.tool.description"] = told(tool.spec.description)
        return self._tracing.start("execute_tool", told(event.name), SpanKind.INTERNAL, about, event.time)
