"""Alerts on metrics: thresholds as data, and a sink that logs a warning, once for each.

It watches the numbers of `metrics` from the start of the process on. For alerts over a window of time use what collects
the metrics, for example Prometheus.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from unbroken.errors import UserError
from unbroken.events import Event, RunFailed, RunFinished
from unbroken.trajectory.metrics import NUMBERS, ROUNDS, Metrics
from unbroken_wires.validation import checked

LOG = logging.getLogger("unbroken.metrics")

LEAST = 20
"""Fewer queries are not significant: the first slow one would fire."""


@checked
@dataclass(frozen=True, slots=True)
class Alert:
    """Fires when a metric is above a threshold, once there were enough queries."""

    name: str
    metric: str
    """One of `metrics.NUMBERS`, or `queries_with_2_rounds` with any number."""
    above: float
    words: str = ""
    """What it means, for the reader of the log."""
    least: int = LEAST

    def __post_init__(self) -> None:
        if self.metric not in NUMBERS and ROUNDS.fullmatch(self.metric) is None:
            raise UserError(f"alert `{self.name}`: there is no metric {self.metric!r}; there are: {', '.join(NUMBERS)}")


ALERTS = (
    Alert("too_many_rounds", "avg_tool_rounds_per_query", 1.5, "queries take many rounds of tool calls"),
    Alert("tools_fail", "tool_failure_rate", 0.05, "more than 5 % of tool executions fail"),
    Alert("slow_queries", "avg_query_latency", 4.0, "queries take more than 4 s"),
    Alert("broken_chains", "tool_chain_broken_rate", 0.0, "responses broke, or calls were left without a result"),
)
"""`dataclasses.replace(alert, above=…)` changes a threshold."""


@dataclass(frozen=True, slots=True)
class Fired:
    alert: Alert
    value: float
    queries: int

    def __str__(self) -> str:
        alert = self.alert
        words = f": {alert.words}" if alert.words else ""
        return f"{alert.name} {alert.metric}={self.value:.4g} above={alert.above:g} queries={self.queries}{words}"


def fired(metrics: Metrics, alerts: Iterable[Alert] = ALERTS, *, least: int | None = None) -> list[Fired]:
    """The alerts that fire now. `least` replaces each alert's own."""
    queries = metrics.queries
    found: list[Fired] = []
    for alert in alerts:
        if queries >= (alert.least if least is None else least):
            value = getattr(metrics, alert.metric)
            if value is not None and value > alert.above:  # the cost may be unknown
                found.append(Fired(alert, float(value), queries))
    return found


@checked
class Alerts:
    """A sink that logs a warning when an alert fires for the first time (logger `unbroken.metrics`). `metrics` does the
    counting: it may also be a sink itself."""

    def __init__(self, *, metrics: Metrics | None = None, alerts: Iterable[Alert] = ALERTS) -> None:
        self.metrics = metrics if metrics is not None else Metrics()
        self.fired: list[Fired] = []
        """The alerts that have fired, with their values at that time."""
        self._watched = list(alerts)

    def __call__(self, event: Event) -> None:
        self.metrics(event)
        if isinstance(event, RunFinished | RunFailed) and self._watched:
            for found in fired(self.metrics, self._watched):
                if found.alert in self._watched:  # another thread may have logged it
                    self._watched.remove(found.alert)
                    self.fired.append(found)
                    LOG.warning("alert %s", found)
