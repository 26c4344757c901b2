"""The Prometheus metrics of a gateway. This part only counts; the callers decide what and when.

A name that a client chose is never a label: a thousand made-up model names would create a thousand series. So the
aliases are given in advance, all other names share one label, and no metric grows beyond `MOST` series.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MultiProcessValue  # pyright: ignore[reportUnknownVariableType] - untyped

from unbroken_wires.messages import Usage

MOST = 2000
UNKNOWN = "unknown"
COUNTS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""With this variable, prometheus-client counts in files, so that all workers can be added up. It reads the variable
when it is imported."""

MOST_TOKENS = 1_000_000_000
"""Of one answer. A report of more, or of less than nothing, is a mistake, and no store could add such numbers up."""
FIRST_TOKEN = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
WHOLE = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

Labels: TypeAlias = tuple[str | int, ...]
M = TypeVar("M", Counter, Histogram)


def is_possible(usage: Usage) -> bool:
    counts = (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens)
    return all(0 <= count <= MOST_TOKENS for count in (*counts, usage.reasoning_tokens))


class GatewayMetrics:
    """Each gateway has a registry of its own: two in one process do not count for each other."""

    def __init__(self, aliases: Iterable[str] = ()) -> None:
        self._registry = CollectorRegistry()
        self._aliases = frozenset(aliases)
        if not _with_workers():
            ProcessCollector(registry=self._registry)
        self._requests = self._counts("requests", "Requests answered.", "alias", "client", "upstream", "status")
        self._tokens = self._counts("tokens", "Tokens, as the models report them.", "alias", "kind")
        self._held = self._counts("held_turns", "Turns with held calls.", "alias")
        self._held_calls = self._counts("held_calls", "Calls held until the one before had its result.", "alias")
        self._released = self._counts("released_calls", "Held calls that were sent without asking the model.", "alias")
        self._lost = self._counts("lost_turns", "Turns whose held calls were never sent.", "alias", "reason")
        self._expired = self._counts("expired_turns", "Held turns whose client did not return in time.", "alias")
        self._repairs = self._counts("repairs", "Repairs of histories, by name.", "kind")
        self._guardrails = self._counts("guardrails", "What guardrails did.", "alias", "guardrail", "outcome")
        self._fallbacks = self._counts("fallbacks", "Answers that came from a fallback.", "alias")
        self._restarts = self._counts("restarts", "Retries of broken answers, by what broke.", "alias", "kind")
        self._errors = self._counts("upstream_errors", "Errors of models, by type.", "alias", "kind")
        self._cost = self._counts("cost_usd", "What requests cost, in US dollars.", "alias")
        self._uncounted = self._counts("uncounted_answers", "Answers whose cost is not known.", "alias", "reason")
        self._estimates = self._counts("estimated_answers", "Answers whose usage was partly estimated.", "alias")
        about = "Tokens that no provider reported, by estimate."
        self._estimated_tokens = self._counts("estimated_tokens", about, "alias", "kind")
        about = "What they cost, by estimate, in US dollars."
        self._estimated_cost = self._counts("estimated_cost_usd", about, "alias")
        self._over = self._counts("limit_refusals", "Requests refused by a budget or a limit.", "kind")
        self._warned = self._counts("budget_warnings", "Budgets of which the warning share is spent.", "budget")
        self._turn_store = self._counts("kept", "What was put into the store.", "kind")
        self._seconds = self._times("request_seconds", "From the request to the end of its answer.", WHOLE)
        self._first = self._times("time_to_first_token_seconds", "From the request to the first token.", FIRST_TOKEN)
        self._in_flight = self._level("requests_in_flight", "Requests in flight.")
        deployment = ("alias", "deployment")
        self._asked = self._counts("deployment_requests", "Requests to a deployment.", *deployment)
        self._failures = self._counts("deployment_failures", "Failed requests, by kind.", *deployment, "kind")
        self._cooldowns = self._counts("deployment_cooldowns", "How often it was left alone for a while.", *deployment)
        self._first_byte = self._times("deployment_first_byte_seconds", "Until its answer began.", WHOLE, *deployment)
        busy = "Requests that it is answering."
        self._busy = self._level("deployment_requests_in_flight", busy, labels=deployment)
        self._reloads = self._counts("config_reloads", "Times that the configuration was read again.", "result")
        self._reload_done = self._level("config_reload_done", "0 if the last reload was refused.", "livemin")
        self._reload_done.set(1)
        # Each call of a turn may be released by a different worker, so no worker knows the total.
        held = "Turns whose held calls wait for results."
        self._held_open = self._level("held_turns_open", held) if not _with_workers() else None

    def know(self, aliases: Iterable[str]) -> None:
        """These aliases may be labels too."""
        self._aliases |= frozenset(aliases)

    def reloaded(self, done: bool) -> None:
        """The configuration was read again, and used or refused."""
        self._reloads["done" if done else "refused",].inc()
        self._reload_done.set(done)

    def request(self, alias: str, client_wire: str, upstream_wire: str, status: int, seconds: float) -> None:
        self._requests[alias, client_wire, upstream_wire, status].inc()
        self._seconds[alias,].observe(seconds)

    def first_token(self, alias: str, seconds: float) -> None:
        self._first[alias,].observe(seconds)

    def tokens(self, alias: str, usage: Usage) -> None:
        """Cached, cache-written and reasoning tokens are also part of input or output, so the kinds must not be added
        up. An impossible report is not counted: a counter that it spoils would stay so until the end of the process."""
        if not is_possible(usage):
            return
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

    def expired(self, alias: str) -> None:
        """The time of a held turn was over before its client returned a result."""
        self._expired[alias,].inc()

    def held(self, alias: str, calls: int) -> None:
        """A turn was held, with this number of calls that were not released at once."""
        self._held[alias,].inc()
        self._held_calls[alias,].inc(calls)

    def released(self, alias: str) -> None:
        self._released[alias,].inc()

    def held_open(self, turns: int) -> None:
        if self._held_open is not None:
            self._held_open.set(turns)

    def repaired(self, kind: str, times: int = 1) -> None:
        self._repairs[kind,].inc(times)

    def guardrail(self, alias: str, name: str, outcome: str) -> None:
        """`outcome`: changed, vetoed, retried, failed."""
        self._guardrails[alias, name, outcome].inc()

    def fallback(self, alias: str) -> None:
        self._fallbacks[alias,].inc()

    def restarted(self, alias: str, kind: str) -> None:
        self._restarts[alias, kind].inc()

    def upstream_error(self, alias: str, kind: str) -> None:
        self._errors[alias, kind].inc()

    def spent(self, alias: str, dollars: float) -> None:
        self._cost[alias,].inc(dollars)

    def uncounted(self, alias: str, reason: str) -> None:
        """Reason: `price`, the price is not known; `usage`, the provider reported no usage."""
        self._uncounted[alias, reason].inc()

    def estimated(self, alias: str, usage: Usage, dollars: float) -> None:
        self._estimates[alias,].inc()
        self._estimated_tokens[alias, "input"].inc(usage.input_tokens)
        self._estimated_tokens[alias, "output"].inc(usage.output_tokens)
        self._estimated_cost[alias,].inc(dollars)

    def over_limit(self, kind: str) -> None:
        self._over[kind,].inc()

    def budget_warning(self, budget: str) -> None:
        self._warned[budget,].inc()

    def in_flight(self, change: int) -> None:
        self._in_flight.inc(change)

    def kept(self, kind: str) -> None:
        self._turn_store[kind,].inc()

    def deployment(self, alias: str, name: str) -> DeploymentCounts:
        """Counts for one deployment. Its name is in the configuration, so their number is limited."""
        return DeploymentCounts(
            self._asked[alias, name],
            self._first_byte[alias, name],
            lambda kind: self._failures[alias, name, kind],
            self._cooldowns[alias, name],
            self._busy.labels(alias, name),
        )

    def render(self) -> tuple[bytes, str]:
        """The body and its content type. With several workers, the sum of all of them."""
        registry = self._registry
        if _with_workers():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(_WithoutCreated(registry)), CONTENT_TYPE_LATEST

    def _counts(self, name: str, help: str, *labels: str) -> _Series[Counter]:
        return _Series(Counter(f"unbroken_{name}", help, labels, registry=self._registry), self._known(labels))

    def _times(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> _Series[Histogram]:
        labels = labels or ("alias",)
        histogram = Histogram(f"unbroken_{name}", help, labels, registry=self._registry, buckets=buckets)
        return _Series(histogram, self._known(labels))

    def _level(
        self,
        name: str,
        help: str,
        over_workers: Literal["livesum", "livemin"] = "livesum",
        labels: tuple[str, ...] = (),
    ) -> Gauge:
        return Gauge(f"unbroken_{name}", help, labels, registry=self._registry, multiprocess_mode=over_workers)

    def _known(self, labels: tuple[str, ...]) -> Callable[[Labels], Labels]:
        if "alias" not in labels:
            return lambda values: values
        assert labels[0] == "alias"
        return lambda values: values if values[0] in self._aliases else (UNKNOWN, *values[1:])


def count_dead_worker(cause: str) -> None:
    """Called by the process that starts the workers. It counts in a file beside theirs, which they add up."""
    name, help = "unbroken_worker_deaths", "Workers that died and were replaced."
    value: Any = MultiProcessValue()  # pyright: ignore[reportUnknownVariableType] - untyped
    series = value("counter", name, f"{name}_total", ("cause",), (cause,), help)
    series.inc(1)
    series.close_all_files()


@dataclass(frozen=True, slots=True)
class DeploymentCounts:
    """The listener of a deployment (`upstreams.pool`)."""

    requests: Counter
    first_byte: Histogram
    failures: Callable[[str], Counter]
    cooldowns: Counter
    busy: Gauge

    def asked(self) -> None:
        self.requests.inc()
        self.busy.inc()

    def answered(self, seconds: float) -> None:
        self.first_byte.observe(seconds)

    def failed(self, kind: str) -> None:
        self.failures(kind).inc()

    def cooled(self) -> None:
        self.cooldowns.inc()

    def ended(self) -> None:
        self.busy.dec()


class _Series(dict[Labels, M]):
    """The series of one metric by their labels. Cached, because the lookup in prometheus-client costs more than
    counting."""

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


class _WithoutCreated:
    """Leaves out the `_created` series that prometheus-client adds to each metric."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family


def _with_workers() -> bool:
    return COUNTS_DIR in os.environ
