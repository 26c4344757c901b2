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
    Asked,
    Telemetry,
    answer,
    fail,
    headers_of,
    history,
    instructions,
    json_text,
    tools,
    usage_attributes,
)
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
_SECONDS = [0.01 * 2**step for step in range(14)]
_OPERATIONS = {"/v1/embeddings": "embeddings", "/v1/images/generations": "generate_content"}


class GatewayTelemetry:
    """`longest_end`: seconds that a collector which hangs may delay the end of the process."""

    def __init__(self, settings: GatewaySettings, *, longest_end: float = 5.0) -> None:
        self._longest_end = longest_end
        tracers, meters, self._closers = _providers(settings)
        self.shared = Telemetry(tracers, meters, settings.telemetry_content)
        self.propagates = settings.telemetry_propagate
        self._redactor = Redactor(secrets_in_environment())
        self._models: set[str] = set()
        self._turns: OrderedDict[str, SpanContext] = OrderedDict()
        meter = metrics.get_meter("unbroken", meter_provider=meters)
        self.duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            "s",
            "From a request to the end of its answer",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "From a request to the first output of the model",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

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
        self._turns[turn] = span.get_span_context()
        while len(self._turns) > MOST_TURNS:
            self._turns.popitem(last=False)

    def first_request(self, turn: str) -> SpanContext | None:
        return self._turns.get(turn)


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
        }
        if agent := state.headers.get("user-agent"):
            about["user_agent.original"] = telemetry.exportable(agent[:200])
        above = extract(state.headers)
        self.span = telemetry.shared.tracer.start_span(f"{method} {route}", above, SpanKind.SERVER, about)
        self._context = set_span_in_context(self.span, above)
        self._attempt: _Attempt | None = None
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
        about: dict[str, Any] = {
            **({"gen_ai.operation.name": self._operation} if self._operation else {}),
            **asked.attributes(),
            "unbroken.alias": self._state.alias,
            "unbroken.attempt": self._attempts,
        }
        http = model if isinstance(model, HTTPModel) else None
        if http is not None and http.label:
            about["unbroken.deployment"] = http.label
        if self.content and self.request is not None:
            about |= self._content(self.request, http)
        tracer = self._telemetry.shared.tracer
        span = tracer.start_span(f"{operation} {asked.model}", self._context, SpanKind.CLIENT, about)
        self._attempt = _Attempt(span, asked, http)
        return headers_of(set_span_in_context(span, self._context)) if self._telemetry.propagates else None

    def asks(self, upstream: Upstream, request: Request) -> None:
        """The model is going to be asked. A model in Python has no attempts of its own."""
        self.request = request if self.content else None
        if upstream.http is None:
            self.begin(upstream.model)

    def _content(self, request: Request, model: HTTPModel | None) -> dict[str, str]:
        found = {
            "gen_ai.system_instructions": instructions(request.messages),
            "gen_ai.input.messages": history(request.messages),
            "gen_ai.tool.definitions": tools(request.tools),
        }
        return {name: self._telemetry.exportable(json_text(value), model) for name, value in found.items() if value}

    def first(self) -> None:
        """The first output of the model has arrived."""
        if (attempt := self._attempt) is not None and attempt.first is None:
            attempt.first = time.perf_counter() - attempt.began
            attempt.span.set_attribute("gen_ai.response.time_to_first_chunk", attempt.first)

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
        if verdict.finish is not None:
            attempt.span.set_attribute("gen_ai.response.finish_reasons", [self._telemetry.exportable(verdict.finish)])
        if self.content and ended.message is not None:
            said = json_text(answer(ended.message, verdict.finish or verdict.kind))
            attempt.span.set_attribute("gen_ai.output.messages", self._telemetry.exportable(said, attempt.model))
        self.span.set_attribute("gen_ai.response.model", attempt.asked.model)
        self._end_attempt(verdict.kind if verdict.failed else "", verdict.reason if verdict.failed else "")

    def held(self, turn: str, calls: int) -> None:
        """All calls of this turn but one are held until the client returns a result."""
        self.span.set_attribute("unbroken.turn.session", turn[-8:])
        self.span.add_event("unbroken.calls_held", {"unbroken.turn.session": turn[-8:], "unbroken.turn.calls": calls})
        self._telemetry.remember(turn, self.span)

    def released(self, turn: str, handed: str) -> None:
        """A held call was released, without asking the model."""
        self.span.set_attribute("unbroken.turn.session", turn[-8:])
        about = {"unbroken.turn.session": turn[-8:], "unbroken.turn.handed": handed}
        self.span.add_event("unbroken.call_released", about)
        self._link(turn)

    def continued(self, turn: str) -> None:
        """The model is asked after this turn; if calls of it were held, it is linked."""
        self._link(turn)

    def _link(self, turn: str) -> None:
        if (first := self._telemetry.first_request(turn)) is not None:
            self.span.add_link(first, {"unbroken.turn.session": turn[-8:]})

    def end(self, status: int, failure: Failure | None) -> None:
        state, span = self._state, self.span
        status = failure.status if failure is not None else status or GONE
        if failure is not None:
            self._end_attempt(failure.upstream or ("cancelled" if status == GONE else ""), failure.words)
        self._end_attempt(state.outcome.error_kind)
        span.set_attribute("http.response.status_code", status)
        if state.alias:
            span.set_attribute("gen_ai.request.model", self._telemetry.exportable(state.alias))
        if state.key is not None:
            span.set_attribute("unbroken.key", state.key.name)
        error = state.outcome.error_kind or (failure.upstream if failure is not None else "")
        error = error or (str(status) if status >= 500 else "")
        if error:
            words = failure.words if failure is not None else state.outcome.error
            fail(span, error, self._words(words))
        span.end()
        if self._operation:
            about: dict[str, str | int] = {
                "gen_ai.operation.name": self._operation,
                "gen_ai.request.model": self._telemetry.counted(state.alias) if state.alias else OTHER,
                "http.response.status_code": status,
            }
            seconds = time.perf_counter() - state.outcome.began
            self._telemetry.duration.record(seconds, {**about, "error.type": error} if error else about)
            if state.outcome.first_after is not None:
                self._telemetry.first_token.record(state.outcome.first_after, about)

    def _words(self, words: str, model: HTTPModel | None = None) -> str:
        """The text of an error is content: providers quote in it what they were sent."""
        return self._telemetry.exportable(words, model) if self.content else ""

    def _end_attempt(self, error: str = "", words: str = "") -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        usage, telemetry = attempt.usage, self._telemetry
        attempt.span.set_attributes(usage_attributes(usage))
        if error:
            fail(attempt.span, error, self._words(words, attempt.model))
        attempt.span.end()
        if self._operation:
            about = {**attempt.asked.attributes(), "gen_ai.request.model": telemetry.counted(attempt.asked.model)}
            about["gen_ai.operation.name"] = self._operation
            seconds = time.perf_counter() - attempt.began
            telemetry.shared.request_ended(seconds, attempt.first, usage, about, error)


class _Attempt:
    __slots__ = ("asked", "began", "first", "model", "span", "usage")

    def __init__(self, span: Span, asked: Asked, model: HTTPModel | None) -> None:
        self.span = span
        self.asked = asked
        self.model = model
        self.began = time.perf_counter()
        self.first: float | None = None
        self.usage = Usage()


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
