"""OpenTelemetry for a gateway: a span for each request of a client, one below it for each attempt at a provider, and
metrics, by the semantic conventions for HTTP and for generative AI.

Needs the extra `otel`, and is imported only if telemetry is on. The OTEL_* variables work as with any program that uses
the SDK. If the program that embeds the gateway has set providers of its own, those are used.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanContext, SpanKind, set_span_in_context

from unbroken import __version__
from unbroken.asgi import REQUEST_ID, Scope
from unbroken.errors import needs_extra
from unbroken.models.http import HTTPModel
from unbroken.trajectory.otel.names import (
    OTHER,
    SECONDS,
    Asked,
    Telemetry,
    fail,
    headers_of,
    known,
    request_content,
)
from unbroken.trajectory.otel.spans import ModelSpan
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken_gateway.admin.gateway_metrics import is_possible
from unbroken_gateway.http.client_response import Failure
from unbroken_gateway.relay.references import PROVIDER_ID
from unbroken_gateway.request_state import GONE, RequestState
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.upstreams.upstream import Upstream
from unbroken_wires.deltas import Ended, Verdict
from unbroken_wires.messages import Request, Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

MOST_TURNS = 10_000
"""Held turns whose first request is remembered, for links from the requests that return their results."""
MOST_MODELS = 200
"""Names of models in metrics. With an alias like `gpt-*` clients choose them; further ones are counted together."""
_HISTOGRAMS = (
    ("gen_ai.server.request.duration", "s", "From a request to the end of its answer", SECONDS),
    ("gen_ai.server.time_to_first_token", "s", "From a request to the first output of the model", SECONDS),
)
_OPERATIONS = {"/v1/embeddings": "embeddings", "/v1/images/generations": "generate_content"}


class GatewayTelemetry:
    """`longest_end`: seconds that a collector which hangs may delay the end of the process."""

    def __init__(self, settings: GatewaySettings, *, longest_end: float = 5.0) -> None:
        self._longest_end = longest_end
        tracers, meters, self._closers = _providers(settings)
        self.shared = Telemetry(tracers, meters, settings.telemetry_content, _HISTOGRAMS)
        self.propagates = settings.telemetry_propagate
        self._redactor = Redactor(secrets_in_environment())
        self._models: set[str] = set()
        self.turns: OrderedDict[str, SpanContext] = OrderedDict()
        """The first request of each held turn."""

    def begin(self, scope: Scope, state: RequestState) -> RequestTrace:
        return RequestTrace(self, scope, state)

    async def aclose(self) -> None:
        """Exports what is left. A collector that hangs delays the end of the process by a few seconds only: its
        exporter waits for it in threads that end with the process."""
        loop = asyncio.get_running_loop()
        closed = [_in_thread(loop, close) for close in self._closers]
        if closed:
            await asyncio.wait(closed, timeout=self._longest_end)

    def exportable(self, text: str, model: HTTPModel | None = None) -> str:
        """The text without secrets. Half a surrogate pair becomes a question mark: no exporter can send it."""
        text = self._redactor.text(text) if model is None else model.masked(self._redactor.text(text))
        return text.encode("utf-8", "replace").decode()

    def counted(self, model: str) -> str:
        """The name of the model in metrics."""
        if model not in self._models and len(self._models) >= MOST_MODELS:
            return OTHER
        self._models.add(model)
        return model

    def remember(self, turn: str, span: Span) -> None:
        self.turns[turn] = span.get_span_context()
        while len(self.turns) > MOST_TURNS:
            self.turns.popitem(last=False)


class RequestTrace:
    """The spans of one request. `begin` is called for each attempt; an attempt ends with `attempt_failed`, `ended`, the
    next attempt or the request."""

    def __init__(self, telemetry: GatewayTelemetry, scope: Scope, state: RequestState) -> None:
        self._telemetry = telemetry
        self._state = state
        method, path = scope["method"], scope["path"]
        self._operation = _OPERATIONS.get(path, "chat" if state.client_wire != "passed" else "")
        route = _route(path)
        about: dict[str, Any] = {
            "http.request.method": method,
            "http.route": route,
            "url.path": path[:200],
            "url.scheme": scope.get("scheme", "http"),
            "unbroken.request.id": REQUEST_ID.get(),
            "unbroken.client.wire": state.client_wire,
            "user_agent.original": telemetry.exportable(state.headers.get("user-agent", "")[:200]) or None,
        }
        above = extract(state.headers)
        self.span = telemetry.shared.tracer.start_span(f"{method} {route}", above, SpanKind.SERVER, known(about))
        self._context = set_span_in_context(self.span, above)
        self._attempt: ModelSpan | None = None
        self._attempts = 0
        self.request: Request | None = None
        """What the model is asked, if content is exported."""
        state.outcome.trace = self

    @property
    def content(self) -> bool:
        return self._telemetry.shared.content

    def begin(self, model: Any) -> Mapping[str, str] | None:
        """An attempt at this model. Returns the headers for its request, if the trace is propagated."""
        self._end_attempt()
        self._attempts += 1
        asked = Asked.of(model)
        operation = self._operation or "request"
        http, began = model if isinstance(model, HTTPModel) else None, time.perf_counter()
        exportable = partial(self._telemetry.exportable, model=http)
        about: dict[str, Any] = {
            "gen_ai.operation.name": self._operation or None,
            **asked.attributes(),
            "unbroken.alias": self._state.alias,
            "unbroken.attempt": self._attempts,
            "unbroken.deployment": (http and http.label) or None,
        }
        if self.content and self.request is not None:
            about |= request_content(self.request, exportable)
        tracer = self._telemetry.shared.tracer
        span = tracer.start_span(f"{operation} {asked.model}", self._context, SpanKind.CLIENT, known(about))
        self._attempt = ModelSpan(span, asked, exportable, lambda: time.perf_counter() - began)
        return headers_of(set_span_in_context(span, self._context)) if self._telemetry.propagates else None

    def asks(self, upstream: Upstream, request: Request) -> None:
        """The model is going to be asked. A model in Python has no attempts of its own."""
        self.request = request if self.content else None
        if upstream.http is None:
            self.begin(upstream.model)

    def first(self) -> None:
        """The first output of the model has arrived."""
        if self._attempt is not None:
            self._attempt.begin_answer()

    def reported(self, usage: Usage) -> None:
        """An impossible report is left out: no collector takes numbers below 0, or of more than 64 bits."""
        if self._attempt is not None:
            self._attempt.usage = usage if is_possible(usage) else Usage()

    def attempt_failed(self, verdict: Verdict) -> None:
        self._end_attempt(verdict.kind, verdict.reason)

    def answered(self, status: int, error: str) -> None:
        if (attempt := self._attempt) is not None:
            if status:
                attempt.span.set_attribute("http.response.status_code", status)
            self._end_attempt(error or (str(status) if status >= 400 else ""))

    def ended(self, ended: Ended) -> None:
        verdict, attempt = ended.verdict, self._attempt
        if attempt is None:
            return
        attempt.take_end(verdict, ended.message if self.content else None)
        self.span.set_attribute("gen_ai.response.model", attempt.asked.model)
        self._end_attempt(verdict.kind if verdict.failed else "", verdict.reason if verdict.failed else "")

    def held(self, turn: str, calls: int) -> None:
        """All calls of this turn but one are held until the client returns a result."""
        self._note(turn, "unbroken.calls_held", {"unbroken.turn.calls": calls})
        self._telemetry.remember(turn, self.span)

    def released(self, turn: str, handed: str) -> None:
        """A held call was released, without asking the model."""
        self._note(turn, "unbroken.call_released", {"unbroken.turn.handed": handed})
        self.continued(turn)

    def continued(self, turn: str) -> None:
        """The model is asked after this turn; if calls of it were held, it is linked."""
        if (first := self._telemetry.turns.get(turn)) is not None:
            self.span.add_link(first, {"unbroken.turn.session": turn[-8:]})

    def _note(self, turn: str, event: str, about: dict[str, Any]) -> None:
        session = {"unbroken.turn.session": turn[-8:]}
        self.span.set_attributes(session)
        self.span.add_event(event, session | about)

    def end(self, status: int, failure: Failure | None) -> None:
        state, span = self._state, self.span
        status = failure.status if failure is not None else status or GONE
        if failure is not None:
            self._end_attempt(failure.upstream or ("cancelled" if status == GONE else ""), failure.words)
        self._end_attempt(state.outcome.error_kind)
        ended = {
            "http.response.status_code": status,
            "gen_ai.request.model": self._telemetry.exportable(state.alias) or None,
            "unbroken.key": None if state.key is None else state.key.name,
        }
        span.set_attributes(known(ended))
        error = state.outcome.error_kind or (failure.upstream if failure is not None else "")
        error = error or (str(status) if status >= 500 else "")
        if error:
            words = failure.words if failure is not None else state.outcome.error
            fail(span, error, self._telemetry.exportable(words) if self.content else "")
        span.end()
        if self._operation:
            about: dict[str, str | int] = {
                "gen_ai.operation.name": self._operation,
                "gen_ai.request.model": self._telemetry.counted(state.alias) if state.alias else OTHER,
                "http.response.status_code": status,
            }
            measure, outcome = self._telemetry.shared.measure, state.outcome
            measure("gen_ai.server.request.duration", time.perf_counter() - outcome.began, about, error)
            if outcome.first_after is not None:
                measure("gen_ai.server.time_to_first_token", outcome.first_after, about)

    def _end_attempt(self, error: str = "", words: str = "") -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if error:  # its text is content: providers quote in it what they were sent
            attempt.fail(error, words if self.content else "")
        about: dict[str, str | int] = {}
        if self._operation:
            about |= {**attempt.asked.attributes(), "gen_ai.operation.name": self._operation}
            about["gen_ai.request.model"] = self._telemetry.counted(attempt.asked.model)
        attempt.end(self._telemetry.shared, about)


def _route(path: str) -> str:
    """The path without names and ids, so that there are few different ones."""
    steps: list[str] = []
    for step in path[:200].split("/"):
        if steps and steps[-1] in ("models", "model"):
            _, colon, method = step.partition(":")
            step = f"{{model}}{colon}{method[:40]}"
        elif PROVIDER_ID.fullmatch(step):
            step = "{id}"
        steps.append(step)
    return "/".join(steps)


def _in_thread(loop: asyncio.AbstractEventLoop, close: Callable[[], None]) -> asyncio.Future[None]:
    """Not in the threads of the loop, which waits for them at its end."""
    done = loop.create_future()

    def work() -> None:
        try:
            close()
        finally:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

    threading.Thread(target=work, name="unbroken-telemetry", daemon=True).start()
    return done


def _providers(settings: GatewaySettings) -> tuple[TracerProvider, MeterProvider, Sequence[Callable[[], None]]]:
    """Those of the program, or new ones that export over OTLP; and the functions that close them."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return trace.get_tracer_provider(), metrics.get_meter_provider(), ()
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415 - optional
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - optional
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - optional
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415 - optional
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - optional
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - optional
    except ImportError as error:
        packages = "the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        raise needs_extra("telemetry of the gateway", packages, "otel") from error
    about = {"service.version": __version__}
    named = os.environ.get("OTEL_SERVICE_NAME"), "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not any(named):
        about["service.name"] = "unbroken-gateway"
    resource = Resource.create(about)
    base = settings.telemetry_endpoint.rstrip("/")
    spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces" if base else None)
    numbers = OTLPMetricExporter(endpoint=f"{base}/v1/metrics" if base else None)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)  # it would wait for the collector again
    tracers.add_span_processor(BatchSpanProcessor(spans))
    meters = MeterProvider([PeriodicExportingMetricReader(numbers)], resource=resource, shutdown_on_exit=False)
    return tracers, meters, (tracers.shutdown, meters.shutdown)
