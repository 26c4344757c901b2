"""What the spans of one run share: the tracer and the instruments, the span of the run above them, whose they are."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.propagate import inject
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer, set_span_in_context

from unbroken.middleware import RunStart
from unbroken.trajectory.otel.instruments import Instruments
from unbroken.trajectory.otel.message_content import json_text
from unbroken.trajectory.otel.names import nanoseconds
from unbroken.trajectory.redaction import Hiding, secrets_in_environment

SCOPE = "unbroken"


class Telemetry:
    """What all runs share. `content`: what was said is told too."""

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None, content: bool
    ) -> None:
        self.tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self.instruments = Instruments(get_meter(SCOPE, meter_provider=meter_provider))
        self.content = content


class Tracing:
    def __init__(self, telemetry: Telemetry, head: RunStart, outside: Context) -> None:
        self.instruments = telemetry.instruments
        self.content = telemetry.content
        self.clock = head.clock
        self.measured = {"gen_ai.agent.name": head.agent}
        self._tracer = telemetry.tracer
        self._about = {"unbroken.run.id": head.run, "gen_ai.agent.name": head.agent}
        self._secrets = head.secrets
        self._hiding = Hiding((*secrets_in_environment(), *head.secrets()))
        self._above = outside

    def look_for_secrets(self) -> None:
        """A key may be known only once somebody was asked."""
        if not self._hiding.covers(known := tuple(self._secrets())):
            self._hiding = Hiding((*secrets_in_environment(), *known))

    def told(self, text: str) -> str:
        """What may be told of a text. Half a surrogate pair becomes a question mark: no exporter can send it."""
        return self._hiding.text(text).encode("utf-8", "replace").decode()

    def told_json(self, value: Any) -> str:
        return self.told(json_text(value))

    def start(self, operation: str, of: str, kind: SpanKind, attributes: dict[str, Any], time: float) -> Span:
        """A span below that of the run."""
        about = {"gen_ai.operation.name": operation, **self._about, **attributes}
        return self._tracer.start_span(f"{operation} {of}", self._above, kind, about, start_time=nanoseconds(time))

    def put_below(self, span: Span) -> None:
        """The spans that start from now on are below this one."""
        self._above = self.within(span)

    def within(self, span: Span) -> Context:
        return set_span_in_context(span, self._above)


def fail(span: Span, error: str, words: str = "") -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, words or None))


def headers_of(context: Context) -> dict[str, str] | None:
    """What tells others of a context; None if there is nothing to tell."""
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers or None
