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
from unbroken.trajectory.counted import COUNTED, ToolNames, What
from unbroken.trajectory.counting import EventCounter, Pricing
from unbroken_wires.validation import checked


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
        self._client = _client()
        self._registry = registry if registry is not None else self._client.REGISTRY
        self._series: dict[tuple[What, str], Any] = {}
        """By label; without one it is the metric itself."""
        try:
            for what, counted in COUNTED.items():
                if counted.exported and what != "cost":
                    self._export(what)
        except ValueError as error:
            raise UserError(
                f"PrometheusMetrics: the registry has these metrics already ({error}); one sink serves all agents"
            ) from None
        self._counter = EventCounter(self._count, prices)
        self._lock = Lock()
        self._names = ToolNames()

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._counter(event)

    def _export(self, what: What) -> Any:
        counted = COUNTED[what]
        about = f"unbroken_{counted.exported}", counted.words, [counted.label] if counted.has_label else []
        if counted.buckets:
            made = self._client.Histogram(*about, buckets=counted.buckets, registry=self._registry)
        else:
            made = self._client.Counter(*about, registry=self._registry)
        self._series[what, ""] = made
        return made

    def _count(self, what: What, amount: int = 1, label: Any = "") -> None:
        if what == "priced":
            what, amount = "cost", 0  # it exists from the first known cost on: before, 0 would be a cost
        counted = COUNTED[what]
        if not counted.exported or amount < 0:  # a counter cannot decrease
            return
        series = self._one_series(what, label if counted.has_label else "")
        if counted.buckets:
            series.observe(label if counted.label == "size" else counted.value(amount))
        else:
            series.inc(counted.value(amount))

    def _one_series(self, what: What, label: str) -> Any:
        """Looked up in the library once: the lookup costs more than counting."""
        if COUNTED[what].label == "tool":
            label = self._names.known(label)
        found = self._series.get((what, label))
        if found is None:
            metric = self._series.get((what, "")) or self._export(what)
            found = self._series[what, label] = metric.labels(label) if label else metric
        return found


def _client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError:
        raise needs_extra("PrometheusMetrics", "the package prometheus-client", "metrics") from None
