"""The numbers of `Metrics`, as Prometheus reads them."""

from __future__ import annotations

import a_long_run
import pytest
from hidden_packages import hidden
from prometheus_client import CollectorRegistry, generate_latest

from unbroken import Prices
from unbroken.errors import UserError
from unbroken.events import CallFinished, RunFinished
from unbroken.trajectory.counted import COUNTED, MOST_TOOLS, OTHER_TOOLS
from unbroken.trajectory.prometheus import PrometheusMetrics


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    """What is read: each series with its value."""
    lines = generate_latest(registry).decode().splitlines()
    read = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in read if "_created" not in name}


def test_a_run_is_counted_like_in_its_metrics() -> None:
    registry = CollectorRegistry()
    result = a_long_run.play(sinks=[PrometheusMetrics(registry, prices=Prices(2.0, 10.0))])
    told, metrics = scraped(registry), result.metrics
    assert told['unbroken_queries_total{outcome="answered"}'] == metrics.queries == 1
    assert told["unbroken_query_latency_seconds_sum"] == metrics.avg_query_latency
    assert told['unbroken_query_latency_seconds_bucket{le="4.0"}'] == 0
    assert told['unbroken_query_latency_seconds_bucket{le="8.0"}'] == 1
    assert told["unbroken_tool_rounds_per_query_sum"] == 3
    assert told["unbroken_tool_calls_per_turn_sum"] / told["unbroken_tool_calls_per_turn_count"] == 8 / 3
    assert told["unbroken_multi_tool_call_count_total"] == metrics.multi_tool_call_count == 3
    assert told['unbroken_tool_calls_total{tool="weather"}'] == 3
    assert told['unbroken_tool_execution_time_seconds_sum{tool="events_on"}'] == 3.0
    assert told['unbroken_tool_execution_time_seconds_count{tool="events_on"}'] == 2
    assert told['unbroken_tool_failures_total{tool="map_of"}'] == 1
    assert told['unbroken_duplicates_shared_total{tool="weather"}'] == 1
    assert told['unbroken_tool_calls_adopted_total{tool="events_on"}'] == 1
    assert told['unbroken_early_seconds_saved_total{tool="events_on"}'] == pytest.approx(0.4)
    assert (told["unbroken_model_requests_total"], told["unbroken_model_restarts_total"]) == (4, 1)
    assert told["unbroken_tool_chain_broken_total"] == told["unbroken_tool_chain_broken_queries_total"] == 1
    assert told['unbroken_model_tokens_total{kind="input"}'] == metrics.input_tokens
    assert told["unbroken_model_cost_total"] == pytest.approx((1213 * 2.0 + 150 * 10.0) / 1_000_000)


def test_an_unknown_cost_has_no_sample_and_a_known_one_has() -> None:
    registry = CollectorRegistry()
    sink = PrometheusMetrics(registry)
    a_long_run.play(sinks=[sink])
    assert "unbroken_model_cost_total" not in scraped(registry)
    assert scraped(registry)["unbroken_model_unpriced_runs_total"] == 1
    sink.on_event(RunFinished("r", 0, 0, 0.0, "", "answered", 0, 1, 0, {"input_tokens": 9}, 1.0, cost=0.25))
    sink.on_event(RunFinished("s", 0, 0, 0.0, "", "answered", 0, 1, 0, {"input_tokens": 9}, 1.0, cost=0.5))
    assert scraped(registry)["unbroken_model_cost_total"] == 0.75


def test_a_run_without_an_answer_is_counted_apart_from_one_that_answered_at_its_limit() -> None:
    registry = CollectorRegistry()
    sink = PrometheusMetrics(registry)
    sink.on_event(RunFinished("r", 0, 0, 0.0, "Yes.", "round_limit", 1, 2, 1, {}, 1.0))
    sink.on_event(RunFinished("s", 0, 0, 0.0, "", "round_limit", 1, 3, 2, {}, 1.0, cut_off=True))
    assert scraped(registry)['unbroken_queries_total{outcome="round_limit"}'] == 2
    assert scraped(registry)['unbroken_queries_cut_off_total{outcome="round_limit"}'] == 1


def test_invented_names_create_only_a_limited_number_of_series() -> None:
    registry = CollectorRegistry()
    sink = PrometheusMetrics(registry)
    for number in range(MOST_TOOLS + 50):
        sink.on_event(CallFinished("r", 0, number, 0.0, number, "c", f"odd_{number}", 0.0, True, "no", "not_executed"))
    told = {name: value for name, value in scraped(registry).items() if "refused" in name}
    assert len(told) == MOST_TOOLS + 1
    assert told[f'unbroken_tool_calls_refused_total{{tool="{OTHER_TOOLS}"}}'] == 50


def test_each_metric_has_its_own_name_and_help() -> None:
    names = [counted.exported for counted in COUNTED.values() if counted.exported]
    assert len(set(names)) == len(names) == 24
    assert all(counted.words.endswith(".") for counted in COUNTED.values())


def test_without_the_library_the_error_explains_what_to_install() -> None:
    match = r"needs the package prometheus-client: pip install 'unbroken\[metrics\]'"
    with hidden("prometheus_client"), pytest.raises(UserError, match=match):
        PrometheusMetrics()


def test_a_second_sink_on_one_registry_is_refused_with_a_message() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(UserError, match=r"has these metrics already .* one sink serves all agents"):
        PrometheusMetrics(registry)
