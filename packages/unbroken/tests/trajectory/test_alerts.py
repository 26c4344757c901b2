"""Thresholds as data, and a sink that warns of each once."""

from __future__ import annotations

import logging
from dataclasses import replace

import a_long_run
import pytest

from unbroken.errors import UserError
from unbroken.trajectory.alerts import ALERTS, LEAST, Alert, Alerts, fired
from unbroken.trajectory.metrics import Metrics

HEARD = ("unbroken.metrics", logging.WARNING)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if (record.name, record.levelno) == HEARD]


def test_the_thresholds_are_those_of_the_seed_and_broken_chains() -> None:
    assert {alert.metric: alert.above for alert in ALERTS} == {
        "avg_tool_rounds_per_query": 1.5,
        "tool_failure_rate": 0.05,
        "avg_query_latency": 4.0,
        "tool_chain_broken_rate": 0.0,
    }
    assert {alert.least for alert in ALERTS} == {LEAST}


def test_each_alert_warns_once_after_enough_queries(caplog: pytest.LogCaptureFixture) -> None:
    alerts = Alerts(alerts=[replace(alert, least=2) for alert in ALERTS])
    a_long_run.play(sinks=[alerts])
    assert warnings(caplog) == []
    for _ in range(3):
        a_long_run.play(sinks=[alerts])
    assert alerts.metrics.queries == 4
    assert warnings(caplog) == [
        "alert too_many_rounds avg_tool_rounds_per_query=3 above=1.5 queries=2: queries take many rounds of tool calls",
        "alert tools_fail tool_failure_rate=0.1429 above=0.05 queries=2: more than 5 % of tool executions fail",
        "alert slow_queries avg_query_latency=4.55 above=4 queries=2: queries take more than 4 s",
        "alert broken_chains tool_chain_broken_rate=1 above=0 queries=2: "
        "responses broke, or calls were left without a result",
    ]
    assert [each.queries for each in alerts.fired] == [2, 2, 2, 2]


def test_a_value_at_its_threshold_is_not_an_alert() -> None:
    metrics = a_long_run.play().metrics
    at = Alert("rounds", "avg_tool_rounds_per_query", 3.0, least=1)
    assert fired(metrics, [at]) == []
    assert [each.value for each in fired(metrics, [replace(at, above=2.99)])] == [3.0]


def test_too_few_queries_do_not_warn_by_default() -> None:
    metrics = a_long_run.play().metrics
    assert fired(metrics) == []
    assert len(fired(metrics, least=1)) == 4
    assert fired(Metrics(), least=1) == []


def test_metrics_that_listen_already_may_be_watched(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    alerts = Alerts(metrics=metrics, alerts=[Alert("any", "queries", 0, least=1)])
    a_long_run.play(sinks=[metrics, alerts])
    assert metrics == a_long_run.play().metrics
    assert warnings(caplog) == ["alert any queries=1 above=0 queries=1"]


def test_an_alert_on_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UserError, match="alert `slow`: there is no metric 'latency'; there are: queries, answered"):
        Alert("slow", "latency", 4.0)
    with pytest.raises(UserError, match="expected a number, got nan"):
        Alert("slow", "avg_query_latency", float("nan"))


def test_an_alert_may_watch_the_share_of_queries_with_two_rounds() -> None:
    alert = Alert("two", "queries_with_2_rounds", 0, least=0)
    metrics = Metrics()
    metrics.rounds[2] = 1
    assert [str(each) for each in fired(metrics, [alert])] == ["two queries_with_2_rounds=1 above=0 queries=0"]
    with pytest.raises(UserError, match="expected a number, got str"):
        Alert("two", "queries_with_2_rounds", "4")  # pyright: ignore[reportArgumentType] - that is what is tried
