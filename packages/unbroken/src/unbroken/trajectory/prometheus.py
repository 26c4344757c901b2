"""The same numbers for Prometheus: middleware that counts in `prometheus_client`, which the extra `metrics` brings.

Real counters and histograms of that library, so that they work with several processes. Compute the averages and rates
of `metrics` in Prometheus: they are quotients of these.
"""

from __future__ import annotations

import importlib
from threading import Lock
from typing import Any

from unbroken.errors import UserError, needs_extra
from unbroken.events import Event
from unbroken.middleware import Middleware
from unbroken.trajectory.facts import COST, NANOSECONDS, Fact, Facts, Pricing
from unbroken_wires.validation import checked

MOST_TOOLS = 100
OTHER_TOOLS = "(others)"
"""A model may invent any number of names: after this many, all others share one label."""

LATENCY = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
EXECUTION = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CALLS = (1, 2, 3, 4, 5, 8, 12, 16, 32, 64)
ROUNDS = (0, 1, 2, 3, 4, 5, 8, 12, 16, 32)

COUNTERS: dict[Fact, tuple[str, str, tuple[str, ...]]] = {
    "query": ("queries", "Runs that have ended, by how.", ("outcome",)),
    "cut_off": ("queries_cut_off", "Runs that ended without an answer of the model, by how.", ("outcome",)),
    "broken_query": ("tool_chain_broken_queries", "Queries in which a chain broke.", ()),
    "chain_broken": ("tool_chain_broken", "Responses that broke, and chains left without results.", ()),
    "request": ("model_requests", "Requests to models; one that is made again counts once.", ()),
    "retry": ("model_retries", "Requests that were made again.", ()),
    "restart": ("model_restarts", "Requests that were made again because the response broke.", ()),
    "call": ("tool_calls", "Calls in the messages of models.", ("tool",)),
    "failure": ("tool_failures", "Executions of tools that ended in an error.", ("tool",)),
    "refusal": ("tool_calls_refused", "Calls that were answered with an error and without a tool.", ("tool",)),
    "outside": ("tool_calls_outside", "Calls that somebody outside has answered.", ("tool",)),
    "duplicate": ("duplicates_shared", "Calls that shared the execution of an identical one.", ("tool",)),
    "adoption": ("tool_calls_adopted", "Calls that took over an execution of a broken response.", ("tool",)),
    "drop": ("tool_calls_dropped", "Calls of a broken response that did not come again.", ("tool",)),
    "uncertain": ("tool_calls_uncertain", "Calls whose outcome is unknown after a crash.", ("tool",)),
    "saved": ("early_seconds_saved", "Seconds saved because calls started early.", ("tool",)),
    "tokens": ("model_tokens", "Tokens of queries with an answer, by kind.", ("kind",)),
    "unpriced": ("model_unpriced_runs", "Runs whose cost is not known.", ()),
}
COST_COUNTER = "unbroken_model_cost", "What the runs cost whose cost is known."
"""It does not exist before the first cost is known: 0 would be a cost."""
HISTOGRAMS: dict[Fact, tuple[str, str, tuple[str, ...], tuple[float, ...]]] = {
    "latency": ("query_latency_seconds", "From the start of a query to its answer.", (), LATENCY),
    "rounds": ("tool_rounds_per_query", "Rounds of queries.", (), ROUNDS),
    "turn": ("tool_calls_per_turn", "Calls of responses that had any.", (), CALLS),
    "execution": ("tool_execution_time_seconds", "How long tools ran.", ("tool",), EXECUTION),
}
MULTI = "multi_tool_call_count"
_UNITS: dict[Fact, int] = {"latency": NANOSECONDS, "execution": NANOSECONDS, "saved": NANOSECONDS, "cost": COST}


@checked
class PrometheusMetrics(Middleware):
    """Give it to agents as `middleware`; one for all of them, as a registry takes each name once. `registry` is
    that of `prometheus_client` itself if none is given."""

    mutates = False
    sees_deltas = True  # text is not counted

    def __init__(self, registry: Any = None, *, prices: Pricing | None = None) -> None:
        if registry is not None and not hasattr(registry, "register"):
            kind = type(registry).__name__
            raise UserError(f"PrometheusMetrics(registry=…): expected a registry or None, got {kind}")
        client = self._client = _client()
        where = self._where = {"registry": registry if registry is not None else client.REGISTRY}
        try:
            self._metrics: dict[Fact, Any] = {
                fact: client.Counter(f"unbroken_{name}", words, labels, **where)
                for fact, (name, words, labels) in COUNTERS.items()
            }
        except ValueError as error:
            raise UserError(
                f"PrometheusMetrics: the registry has these metrics already ({error}); one sink serves all agents"
            ) from None
        for fact, (name, words, labels, buckets) in HISTOGRAMS.items():
            self._metrics[fact] = client.Histogram(f"unbroken_{name}", words, labels, buckets=buckets, **where)
        self._multi = client.Counter(f"unbroken_{MULTI}", "Responses that had more than one call.", **where)
        self._facts = Facts(self._take, prices)
        self._lock = Lock()
        self._known: dict[tuple[Fact, str], Any] = {}
        self._tools: set[str] = set()

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._facts(event)

    def _take(self, fact: Fact, amount: int, label: str) -> None:
        units = _UNITS.get(fact)
        value = amount if units is None else amount / units
        if fact == "priced" and "cost" not in self._metrics:
            self._metrics["cost"] = self._client.Counter(*COST_COUNTER, **self._where)
        elif fact == "cost":
            self._metrics["cost"].inc(value)
        if fact in HISTOGRAMS:
            self._series(fact, HISTOGRAMS[fact][2], label).observe(value)
        elif fact in COUNTERS:
            self._series(fact, COUNTERS[fact][2], label).inc(value)
        if fact == "turn" and amount > 1:
            self._multi.inc()

    def _series(self, fact: Fact, labels: tuple[str, ...], label: str) -> Any:
        """Looked up in the library once: the lookup costs more than counting."""
        if labels == ("tool",):
            label = self._tool(label)
        found = self._known.get((fact, label))
        if found is None:
            metric = self._metrics[fact]
            found = self._known[fact, label] = metric.labels(label) if labels else metric
        return found

    def _tool(self, name: str) -> str:
        if name not in self._tools and len(self._tools) >= MOST_TOOLS:
            return OTHER_TOOLS
        self._tools.add(name)
        return name


def _client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError:
        raise needs_extra("PrometheusMetrics", "the package prometheus-client", "metrics") from None
