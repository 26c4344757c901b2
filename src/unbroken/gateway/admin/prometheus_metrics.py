"""What a gateway counts, for Prometheus. Only counting: who counts what, and when, is known above.

A name that a client chose is never a label: who sends a thousand names of models would make a thousand series. So the
aliases are given in advance, and all other names are one; and no metric grows beyond `MOST` series.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from unbroken.messages import Usage

MOST = 2000
UNKNOWN = "unknown"
COUNTS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus-client counts in files that all workers add up. It looks for this variable when it is imported."""

FIRST_TOKEN = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

Labels: TypeAlias = tuple[str | int, ...]
M = TypeVar("M", Counter, Histogram)


class GatewayMetrics:
    """Each gateway has a registry of its own: two in one process do not count for each other."""

    def __init__(self, aliases: Iterable[str] = ()) -> None:
        self._registry = CollectorRegistry()
        self._aliases = frozenset(aliases)
        if not _with_workers():
            ProcessCollector(registry=self._registry)
        self._requests = self._counts("requests", "Requests answered.", "alias", "client", "upstream", "status")
        self._tokens = self._counts("tokens", "Tokens, as the models report them.", "alias", "kind")
        self._held = self._counts("held_turns", "Turns of which calls were held back.", "alias")
        self._held_calls = self._counts("held_calls", "Calls held back.", "alias")
        self._released = self._counts("released_calls", "Held calls handed out without asking the model.", "alias")
        self._lost = self._counts("lost_turns", "Turns whose held calls were not handed out.", "alias", "reason")
        self._repairs = self._counts("repairs", "Repairs of histories, by name.", "kind")
        self._fallbacks = self._counts("fallbacks", "Answers that came from a fallback.", "alias")
        self._restarts = self._counts("restarts", "Broken answers asked for again, by what broke.", "alias", "kind")
        self._errors = self._counts("upstream_errors", "Errors of models, by type.", "alias", "kind")
        self._turn_store = self._counts("kept", "What was put into the store.", "kind")
        self._seconds = self._times("request_seconds", "From the request to the end of its answer.", WHOLE)
        self._first = self._times("time_to_first_token_seconds", "From the request to the first token.", FIRST_TOKEN)
        self._in_flight = self._level("requests_in_flight", "Requests in work.")
        # Each call of a turn may be released by another worker, and none would know what waits in all.
        held = "Turns whose held calls wait for results."
        self._held_open = self._level("held_turns_open", held) if not _with_workers() else None

    def request(self, alias: str, client_wire: str, upstream_wire: str, status: int, seconds: float) -> None:
        self._requests[alias, client_wire, upstream_wire, status].inc()
        self._seconds[alias,].observe(seconds)

    def first_token(self, alias: str, seconds: float) -> None:
        self._first[alias,].observe(seconds)

    def tokens(self, alias: str, usage: Usage) -> None:
        """Cached, written and reasoned tokens are also in the input and the output: what is counted twice by adding
        all kinds up, is to be read by kind."""
        tokens = self._tokens
        if usage.input_tokens > 0:
            tokens[alias, "input"].inc(usage.input_tokens)
        if usage.output_tokens > 0:
            tokens[alias, "output"].inc(usage.output_tokens)
        if usage.cached_tokens > 0:
            tokens[alias, "cached"].inc(usage.cached_tokens)
        if usage.cache_write_tokens > 0:
            tokens[alias, "cache_write"].inc(usage.cache_write_tokens)
        if usage.reasoning_tokens > 0:
            tokens[alias, "reasoning"].inc(usage.reasoning_tokens)

    def lost(self, alias: str, reason: str) -> None:
        """Held calls of a turn are not released."""
        self._lost[alias, reason].inc()

    def held(self, alias: str, calls: int) -> None:
        """A turn was held, with so many calls that were not released at once."""
        self._held[alias,].inc()
        self._held_calls[alias,].inc(calls)

    def released(self, alias: str) -> None:
        self._released[alias,].inc()

    def held_open(self, turns: int) -> None:
        if self._held_open is not None:
            self._held_open.set(turns)

    def repaired(self, kind: str, times: int = 1) -> None:
        self._repairs[kind,].inc(times)

    def fallback(self, alias: str) -> None:
        self._fallbacks[alias,].inc()

    def restarted(self, alias: str, kind: str) -> None:
        self._restarts[alias, kind].inc()

    def upstream_error(self, alias: str, kind: str) -> None:
        self._errors[alias, kind].inc()

    def in_flight(self, change: int) -> None:
        self._in_flight.inc(change)

    def kept(self, kind: str) -> None:
        self._turn_store[kind,].inc()

    def render(self) -> tuple[bytes, str]:
        """The body and its content type. With several workers: what all of them counted."""
        registry = self._registry
        if _with_workers():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(_WithoutTimesOfBirth(registry)), CONTENT_TYPE_LATEST

    def _counts(self, name: str, help: str, *labels: str) -> _Series[Counter]:
        return _Series(Counter(f"unbroken_{name}", help, labels, registry=self._registry), self._known(labels))

    def _times(self, name: str, help: str, buckets: tuple[float, ...]) -> _Series[Histogram]:
        histogram = Histogram(f"unbroken_{name}", help, ("alias",), registry=self._registry, buckets=buckets)
        return _Series(histogram, self._known(("alias",)))

    def _level(self, name: str, help: str) -> Gauge:
        return Gauge(f"unbroken_{name}", help, registry=self._registry, multiprocess_mode="livesum")

    def _known(self, labels: tuple[str, ...]) -> Callable[[Labels], Labels]:
        if "alias" not in labels:
            return lambda values: values
        assert labels[0] == "alias"
        return lambda values: values if values[0] in self._aliases else (UNKNOWN, *values[1:])


class _Series(dict[Labels, M]):
    """The series of one metric by their labels, each looked up in prometheus-client once: that costs more than to
    count."""

    def __init__(self, metric: M, known: Callable[[Labels], Labels]) -> None:
        super().__init__()
        self._metric = metric
        self._known = known

    def __missing__(self, labels: Labels) -> M:
        known = self._known(labels)
        if len(self) >= MOST:
            known = tuple(UNKNOWN for _ in labels)
        if known in self:
            return self[known]
        series = self[known] = self._metric.labels(*known)
        return series


class _WithoutTimesOfBirth:
    """prometheus-client adds a series to each that says when it was made; nobody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family


def _with_workers() -> bool:
    return COUNTS_DIR in os.environ
