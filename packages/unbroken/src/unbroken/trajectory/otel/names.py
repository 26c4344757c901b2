"""The names and values that OpenTelemetry uses: times, providers, addresses, kinds of failures. Pure.

The names are those of the semantic conventions for generative AI; others begin with `unbroken.`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from opentelemetry.context import Context
from opentelemetry.metrics import Meter, MeterProvider, get_meter
from opentelemetry.propagate import inject
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)

from unbroken.errors import ProviderError, StreamError, named
from unbroken.events import CallEvent, ServerCallFinished, ServerCallStarted
from unbroken.middleware import RunStart
from unbroken.trajectory.counted import What
from unbroken.trajectory.redaction import Redactor, secrets_in_environment
from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Outcome,
    Part,
    Request,
    System,
    Text,
    ToolMessage,
    Usage,
    User,
)
from unbroken_wires.wires.jsontext import dumps

OTHER = "_OTHER"
"""The conventions' value for anything that has no name of its own."""
CANCELLED = "cancelled"

PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "vertex-claude": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Our provider names that the conventions spell differently."""


def nanoseconds(seconds: float) -> int:
    """A time in seconds as nanoseconds, rounded to the microsecond: a float is no more precise."""
    return round(seconds * 1e6) * 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """The model that is asked, by its name and its address."""

    provider: str
    model: str
    address: str = ""
    port: int = 0

    @classmethod
    def named(cls, name: str) -> Asked:
        """`openai:gpt-5`; a custom model may have any name."""
        provider, colon, model = name.partition(":")
        return cls(PROVIDERS.get(provider, provider), model) if colon else cls(OTHER, name)

    @classmethod
    def of(cls, model: Any) -> Asked:
        named = cls.named(model.name)
        inner = getattr(model, "model", model)  # of a `RetryingModel`
        url = getattr(getattr(inner, "endpoint", None), "stream_url", None)
        return named if url is None else cls(named.provider, named.model, url.host or "", url.port or 0)

    def attributes(self) -> dict[str, str | int]:
        found: dict[str, str | int] = {"gen_ai.provider.name": self.provider, "gen_ai.request.model": self.model}
        if self.address:
            found |= {"server.address": self.address, "server.port": self.port}
        return found


ERROR_TYPES: dict[Outcome, str] = {
    "done": "",
    "cached": "",
    "failed": "tool_error",
    "retry": "tool_retry",
    "timed_out": "timeout",
    "cancelled": CANCELLED,
    "not_executed": "not_executed",
    "unknown": "outcome_unknown",
    "running": "",
}
"""The `error.type` of each outcome of a call."""


def is_foreign(error: str) -> bool:
    """Is it an error of a provider or of the connection? Its text then reveals nothing of the conversation."""
    return issubclass(named(error) or Exception, (ProviderError, StreamError))


# The instruments: what is measured of runs, through a meter.


Attributes: TypeAlias = Mapping[str, str | int]
Histogram: TypeAlias = tuple[str, str, str, Sequence[float]]
"""Its name, its unit, what it measures, and its buckets."""
Exportable: TypeAlias = Callable[[str], str]
"""Makes a text one that may be exported."""

SECONDS = [0.01 * 2**step for step in range(14)]
_TOKENS = [float(4**step) for step in range(14)]
"""Buckets that the conventions recommend."""
_ROUNDS = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 20.0, 50.0]

_HISTOGRAMS: tuple[Histogram, ...] = (
    ("gen_ai.client.token.usage", "{token}", "Tokens that a request used", _TOKENS),
    ("gen_ai.client.operation.duration", "s", "How long a request took", SECONDS),
    ("gen_ai.client.operation.time_to_first_chunk", "s", "From a request to the first of its answer", SECONDS),
    ("unbroken.run.duration", "s", "How long a run took", SECONDS),
    ("unbroken.run.rounds", "{round}", "Rounds of calls in a run", _ROUNDS),
    ("unbroken.tool.duration", "s", "How long a tool ran", SECONDS),
)
_COUNTERS = (
    ("unbroken.tool.calls", "{call}", "Calls that were answered"),
    ("unbroken.tool.failures", "{call}", "Executions that ended in an error"),
    ("unbroken.tool.uncertain", "{call}", "Calls whose outcome is unknown after a crash"),
    ("unbroken.restarts", "{restart}", "Requests that were made again because the response broke"),
    ("unbroken.early.saved", "s", "Seconds that calls ran while their response was written"),
)
COUNTED_AS: dict[What, str] = {
    "seconds": "unbroken.tool.duration",
    "failures": "unbroken.tool.failures",
    "uncertain": "unbroken.tool.uncertain",
    "restarts": "unbroken.restarts",
    "saved": "unbroken.early.saved",
}
"""The instruments of what `counting` counts. The others measure requests and whole runs."""


def _instruments(meter: Meter, histograms: Iterable[Histogram]) -> Mapping[str, Callable[[float, Attributes], None]]:
    counters = {name: meter.create_counter(name, *about).add for name, *about in _COUNTERS}
    return counters | {
        name: meter.create_histogram(name, unit, words, explicit_bucket_boundaries_advisory=buckets).record
        for name, unit, words, buckets in histograms
    }


_USED = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read.input_tokens": "cached_tokens",
    "cache_creation.input_tokens": "cache_write_tokens",
    "reasoning.output_tokens": "reasoning_tokens",
}


def usage_attributes(usage: Usage) -> dict[str, int]:
    """What a request has used, without zeros."""
    used = {f"gen_ai.usage.{name}": getattr(usage, field) for name, field in _USED.items()}
    return {name: number for name, number in used.items() if number}


# Messages and tools as the semantic conventions for generative AI write them: JSON texts, where content is wanted.
#
# The data of media is left out: a span is no place for a picture.


def json_text(value: Json) -> str:
    try:
        return dumps(value).decode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001 - a user's value that is no JSON must not end a run
        return f"(this cannot be written: {type(error).__name__})"


def history(messages: Iterable[Message]) -> list[Json]:
    return [_message(message) for message in messages if not isinstance(message, System)]


def request_content(request: Request, exportable: Exportable) -> dict[str, str]:
    """The attributes for what a request holds. The system texts are kept apart from the history."""
    found: dict[str, list[Json]] = {
        "gen_ai.system_instructions": [
            part for message in request.messages if isinstance(message, System) for part in _parts(message.parts)
        ],
        "gen_ai.input.messages": history(request.messages),
        "gen_ai.tool.definitions": [
            {"type": "function", "name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in request.tools
        ],
    }
    return {name: exportable(json_text(value)) for name, value in found.items() if value}


def answer_content(message: Assistant, finish: str, exportable: Exportable) -> dict[str, str]:
    return {"gen_ai.output.messages": exportable(json_text([{**_message(message), "finish_reason": finish}]))}


def _message(message: Message) -> dict[str, Json]:
    match message:
        case System(parts):
            return {"role": "system", "parts": _parts(parts)}
        case User(parts):
            return {"role": "user", "parts": _parts(parts)}
        case Assistant():
            return {"role": "assistant", "parts": _assistant_parts(message)}
        case ToolMessage(results):
            answered = [{"type": "tool_call_response", "id": each.call_id, "response": each.text} for each in results]
            return {"role": "tool", "parts": answered}
        case _:
            assert_never(message)


def _assistant_parts(message: Assistant) -> list[Json]:
    parts: list[Any] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.text:
        parts.append({"type": "text", "content": message.text})
    for call in message.calls:
        arguments = call.raw if call.arguments is None else call.arguments
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return parts


def _parts(parts: Sequence[Part]) -> list[Json]:
    return [{"type": "text", "content": part.text} if isinstance(part, Text) else _media(part) for part in parts]


def _media(media: Media) -> Json:
    about = {"type": "uri" if media.url else "blob", "modality": media.mime.partition("/")[0] or "file"}
    if media.mime:
        about["mime_type"] = media.mime
    return about | {"uri": media.url} if media.url else about


# What the spans of one run share: the tracer, the instruments, and the parent span of the run.


SCOPE = "unbroken"


class Telemetry:
    """What all runs share. `content`: messages are exported too. `more`: what else is measured."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        content: bool,
        more: Sequence[Histogram] = (),
    ) -> None:
        self.tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._instruments = _instruments(get_meter(SCOPE, meter_provider=meter_provider), (*_HISTOGRAMS, *more))
        self.content = content

    def measure(self, name: str, amount: float, about: Attributes, error: str = "") -> None:
        self._instruments[name](amount, {**about, "error.type": error} if error else about)

    def request_ended(self, seconds: float, first: float | None, usage: Usage, about: Attributes, error: str) -> None:
        self.measure("gen_ai.client.operation.duration", seconds, about, error)
        if first is not None:
            self.measure("gen_ai.client.operation.time_to_first_chunk", first, about)
        if usage.total_tokens:
            for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                self.measure("gen_ai.client.token.usage", tokens, {**about, "gen_ai.token.type": kind})


class Tracing:
    def __init__(self, telemetry: Telemetry, head: RunStart, outside: Context) -> None:
        self.telemetry = telemetry
        self.content = telemetry.content
        self.clock = head.clock
        self._agent = {"gen_ai.agent.name": head.agent}
        self._about = {"unbroken.run.id": head.run, **self._agent}
        self._secrets = head.secrets
        self._redactor = Redactor((*secrets_in_environment(), *head.secrets()))
        self._above = outside

    def stopwatch(self) -> Callable[[], float]:
        """The seconds from now on."""
        began = self.clock.elapsed()
        return lambda: round(self.clock.elapsed() - began, 9)

    def look_for_secrets(self) -> None:
        """A key may be known only after the first request."""
        if not self._redactor.covers(known := tuple(self._secrets())):
            self._redactor = Redactor((*secrets_in_environment(), *known))

    def exportable(self, text: str) -> str:
        """The text as it may be exported, with secrets masked. Half a surrogate pair becomes a question mark: no
        exporter can send it."""
        return self._redactor.text(text).encode("utf-8", "replace").decode()

    def content_of(self, value: Any) -> str | None:
        """A text, or another value as JSON, if content is exported."""
        if not self.content:
            return None
        return self.exportable(value if isinstance(value, str) else json_text(value))

    def start(
        self,
        operation: str,
        of: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        time: float,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span below that of the run."""
        about = {"gen_ai.operation.name": operation, **self._about, **known(attributes)}
        return self.telemetry.tracer.start_span(f"{operation} {of}", self._above, kind, about, links, nanoseconds(time))

    def start_tool(self, event: CallEvent | ServerCallStarted | ServerCallFinished, about: dict[str, Any]) -> Span:
        name = self.exportable(event.name)
        called = {"gen_ai.tool.name": name, "gen_ai.tool.call.id": self.exportable(event.call_id)}
        return self.start("execute_tool", name, SpanKind.INTERNAL, called | about, event.time)

    def measure(self, name: str, amount: float, about: Attributes, error: str = "") -> None:
        """Of the run, or of one of its calls."""
        self.telemetry.measure(name, amount, {**self._agent, **about}, error)

    def put_below(self, span: Span) -> None:
        """The spans that start from now on are below this one."""
        self._above = self.within(span)

    def within(self, span: Span) -> Context:
        return set_span_in_context(span, self._above)


def known(attributes: dict[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}


def fail(span: Span, error: str, words: str | None = None) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, words or None))


def headers_of(context: Context) -> dict[str, str] | None:
    """The headers that propagate a context; None if there are none."""
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers or None
