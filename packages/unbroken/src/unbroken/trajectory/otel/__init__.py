"""`OpenTelemetry`: middleware that makes spans and metrics of runs, by the semantic conventions for generative AI.

This module imports without OpenTelemetry installed. `run_span` makes the spans of one run, needs the extra `otel`, and
is imported by the first `OpenTelemetry()`. Where spans and metrics go is up to the program's own providers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from unbroken.errors import UserError, needs_extra
from unbroken.middleware import Middleware, RunStart

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider


def current_traceparent() -> str:
    """The current span as a `traceparent` header; empty if there is none. Loads nothing: without OpenTelemetry there is
    no span."""
    trace = sys.modules.get("opentelemetry.trace")
    return "" if trace is None else traceparent(trace.get_current_span())


def traceparent(span: Span) -> str:
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


class OpenTelemetry(Middleware):
    """Give it to an agent as `middleware`; one object serves any number of agents and runs.

    Without providers it uses those of the program (`trace.set_tracer_provider`). `content` adds messages to the spans:
    prompts, answers, arguments and results. Keys of models, and values of variables that are named like a secret, are
    masked there.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        for name, given in (("tracer_provider", tracer_provider), ("meter_provider", meter_provider)):
            what = name.removesuffix("_provider")
            if given is not None and not hasattr(given, f"get_{what}"):
                raise UserError(
                    f"OpenTelemetry({name}=…): expected a provider with get_{what} or None, got {type(given).__name__}"
                )
        try:
            from unbroken.trajectory.otel.run_span import tracing  # noqa: PLC0415 - needs an optional package
        except ImportError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise needs_extra("OpenTelemetry()", "the package opentelemetry-api", "otel") from error
        self._trace: Callable[[RunStart], Middleware] = tracing(tracer_provider, meter_provider, content)
        self._content = content
        self._last: RunStart | None = None

    def __repr__(self) -> str:
        return f"OpenTelemetry(content={self._content})"

    def start(self, run: RunStart) -> Middleware:
        if run is self._last:  # it is given twice: to the agent and to the run
            return Middleware()
        self._last = run
        return self._trace(run)
