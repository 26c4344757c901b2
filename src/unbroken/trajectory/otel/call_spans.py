"""The spans of the calls of one run: from the start of a tool to its end, current while it runs, and their numbers.

A call that never started has a span too, without length: it shared another's execution, or was refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind

from unbroken.events import CallAdopted, CallFinished, CallStarted
from unbroken.messages import ToolCall, ToolResult
from unbroken.tools.caller import Caller
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trace_headers import CARRIED
from unbroken.trajectory.facts import failed
from unbroken.trajectory.otel.instruments import Attributes
from unbroken.trajectory.otel.names import CANCELLED, ERROR_TYPES, OTHER, nanoseconds
from unbroken.trajectory.otel.tracing import Tracing, fail, headers_of


@dataclass(slots=True)
class Running:
    """A call whose tool has begun."""

    span: Span
    context: Context
    started: float
    early: bool


class CallSpans:
    """All calls are known by their numbers."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._toolbox: Toolbox | None = None
        self._running: dict[int, Running] = {}
        self._adopted: dict[int, int] = {}
        """Of each call of this turn that continues another one, the number of that one."""
        self._orphans: set[int] = set()
        """Running calls of a response that broke off: if they finish under their own number, they are dropped."""
        self._response_ended = 0.0
        """When the last response was complete."""
        self._saved: dict[int, tuple[float, Attributes]] = {}
        """Seconds of calls that have ended before their response has: if it breaks, nothing was saved, unless somebody
        takes them over."""
        self._lost: dict[int, tuple[float, Attributes]] = {}
        self._is_ended = False
        """The response of this turn is complete."""

    def offered(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._lost.clear()
        self._adopted.clear()
        self._is_ended = False

    async def traced(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        running = self._running.get(context.number)
        if running is None:
            return await call_next(call, context)
        token, carried = attach(running.context), CARRIED.set(headers_of(running.context))
        try:
            return await call_next(call, context)
        finally:
            CARRIED.reset(carried)
            detach(token)

    def span_of(self, number: int) -> Span | None:
        running = self._running.get(number)
        return running.span if running is not None else None

    def response_broke(self) -> None:
        self._orphans.update(self._running)
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
        self._running[event.call] = Running(span, self._tracing.within(span), event.time, event.early)

    def adopt(self, event: CallAdopted) -> None:
        self._adopted[event.call] = event.adopted
        self._orphans.discard(event.adopted)
        if (running := self._running.pop(event.adopted, None)) is not None:
            self._running[event.call] = running
            running.span.set_attribute("unbroken.call.number", event.call)
            running.span.set_attribute("gen_ai.tool.call.id", self._tracing.told(event.call_id))

    def finish(self, event: CallFinished) -> None:
        running = self._running.pop(event.call, None)
        span = running.span if running is not None else self._begin(event)
        told, error = self._tracing.told, ERROR_TYPES[event.outcome]
        adopted, dropped = self._adopted.get(event.call), event.call in self._orphans
        self._orphans.discard(event.call)
        span.set_attribute("unbroken.call.seconds", event.seconds)
        span.set_attribute("unbroken.call.outcome", event.outcome)
        if event.duplicate_of:
            span.set_attribute("unbroken.call.duplicate_of", told(event.duplicate_of))
        if adopted is not None:
            span.set_attribute("unbroken.call.adopted", adopted)
        if dropped:
            span.set_attribute("unbroken.call.dropped", True)
        if self._tracing.content:
            span.set_attribute("gen_ai.tool.call.result", told(event.text))
        if error:
            fail(span, error, told(event.text) if self._tracing.content else "")
        ended = event.time
        if running is not None and (adopted is not None or dropped):
            ended = running.started + event.seconds  # it is told when it is known whose it is: later, perhaps
        span.end(nanoseconds(ended))
        self._measure(event, running, ended, dropped)

    def _measure(self, event: CallFinished, running: Running | None, ended: float, dropped: bool) -> None:
        name = event.name if self._tool(event.name) is not None else OTHER  # a model may make up any number of names
        about = {**self._tracing.measured, "gen_ai.tool.name": name}
        instruments = self._tracing.instruments
        if running is None and (lost := self._lost.pop(self._adopted.get(event.call, -1), None)) is not None:
            if self._is_ended:  # its own end was told before its response broke
                instruments.started_early(*lost)
            else:
                self._saved[event.call] = lost
            return
        if not dropped:
            instruments.call_answered(about)
        if event.outcome == "unknown":
            instruments.outcome_unknown(about)
            return
        if running is None:
            return
        instruments.tool_ended(event.seconds, about, ERROR_TYPES[event.outcome], failed(event) and not dropped)
        if not running.early or dropped:
            return
        if self._response_ended < running.started:
            self._saved[event.call] = ended - running.started, about
        else:
            instruments.started_early(min(ended, self._response_ended) - running.started, about)

    def end(self, time: float) -> None:
        """The run is over, and with it what still runs."""
        for running in self._running.values():
            fail(running.span, CANCELLED)
            running.span.end(nanoseconds(time))
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
