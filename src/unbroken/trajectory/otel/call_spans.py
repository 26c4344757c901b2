"""The spans of the calls of one run: from the start of a tool to its end, current while it runs, and their numbers.

A call that never started has a span too, without length: it shared another's execution, or was refused.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind

from unbroken.events import CallAdopted, CallFinished, CallStarted
from unbroken.messages import ToolCall, ToolResult
from unbroken.run_view import CallView, RunView
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trace_headers import CARRIED
from unbroken.trajectory.facts import failed
from unbroken.trajectory.otel.instruments import Attributes
from unbroken.trajectory.otel.names import CANCELLED, ERROR_TYPES, OTHER, nanoseconds
from unbroken.trajectory.otel.tracing import Tracing, fail, headers_of


class CallSpans:
    """All calls are known by their numbers. The view has had each event before it comes here."""

    def __init__(self, tracing: Tracing, view: RunView) -> None:
        self._tracing = tracing
        self._view = view
        self._toolbox: Toolbox | None = None
        self._running: dict[int, tuple[Span, Context]] = {}
        """Of calls whose tool has begun."""

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
            span.set_attribute("gen_ai.tool.call.arguments", self._tracing.told_json(event.arguments))
        self._running[event.call] = span, self._tracing.within(span)

    def adopt(self, event: CallAdopted) -> None:
        if (running := self._running.pop(event.adopted, None)) is not None:
            self._running[event.call] = running
            running[0].set_attribute("unbroken.call.number", event.call)
            running[0].set_attribute("gen_ai.tool.call.id", self._tracing.told(event.call_id))

    def finish(self, event: CallFinished) -> None:
        call, ran = self._view.by_number[event.call], event.call in self._running
        span = self._running.pop(event.call)[0] if ran else self._begin(event)
        told, error = self._tracing.told, ERROR_TYPES[event.outcome]
        span.set_attribute("unbroken.call.seconds", event.seconds)
        span.set_attribute("unbroken.call.outcome", event.outcome)
        if event.duplicate_of:
            span.set_attribute("unbroken.call.duplicate_of", told(event.duplicate_of))
        if call.adopted is not None:
            span.set_attribute("unbroken.call.adopted", call.adopted)
        if ran and call.response_broke:
            span.set_attribute("unbroken.call.dropped", True)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.result", told(event.text))
        if error:
            fail(span, error, told(event.text) if self._tracing.content else "")
        span.end(nanoseconds(call.finished if ran and call.finished is not None else event.time))
        self._measure(event, call, ran)
        self._measure_saved(call)

    def _measure(self, event: CallFinished, call: CallView, ran: bool) -> None:
        before = None if call.adopted is None else self._view.by_number.get(call.adopted)
        if not ran and before is not None and before.outcome is not None:
            return  # its end was told before its response broke
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
        known = name if self._tool(name) is not None else OTHER  # a model may make up any number of names
        return {**self._tracing.measured, "gen_ai.tool.name": known}

    def end(self, time: float) -> None:
        """The run is over, and with it what still runs."""
        for span, _ in self._running.values():
            fail(span, CANCELLED)
            span.end(nanoseconds(time))
        self._running.clear()

    def _tool(self, name: str) -> Tool | None:
        return self._toolbox.get(name) if self._toolbox is not None else None

    def _begin(self, event: CallStarted | CallFinished) -> Span:
        told, tool = self._tracing.told, self._tool(event.name)
        about: dict[str, Any] = {
            "gen_ai.tool.name": told(event.name),
            "gen_ai.tool.call.id": told(event.call_id),
            "gen_ai.tool.type": "function",
            "unbroken.turn": event.turn,
            "unbroken.call.number": event.call,
        }
        if tool is not None and tool.spec.description:
            about["gen_ai.tool.description"] = told(tool.spec.description)
        return self._tracing.start("execute_tool", told(event.name), SpanKind.INTERNAL, about, event.time)
