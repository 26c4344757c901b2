"""What the gateway counts: the names that dashboards use, and that no client can create series."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from unbroken.clock import VirtualClock
from unbroken_gateway.admin import gateway_metrics as module
from unbroken_gateway.admin.gateway_metrics import GatewayMetrics
from unbroken_gateway.admin.stats import Stats
from unbroken_wires.messages import Usage


def read(metrics: GatewayMetrics) -> dict[str, float]:
    """Each series as Prometheus reads it: `name{label=value,…}`, labels in the order of their names."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_every_event_is_counted_under_its_name() -> None:
    metrics = GatewayMetrics(["fast"])
    metrics.in_flight(1)
    metrics.in_flight(1)
    metrics.in_flight(-1)
    metrics.request("fast", "openai-chat", "gemini", 200, 0.3)
    metrics.request("fast", "openai-chat", "gemini", 200, 7.0)
    metrics.first_token("fast", 0.2)
    metrics.tokens("fast", Usage(100, 20, cached_tokens=60, reasoning_tokens=5))
    metrics.tokens("fast", Usage(1, 2))
    metrics.held("fast", 2)
    metrics.released("fast")
    metrics.expired("fast")
    metrics.held_open(3)
    metrics.repaired("drop", 2)
    metrics.fallback("fast")
    metrics.restarted("fast", "cut")
    metrics.upstream_error("fast", "RateLimited")
    metrics.kept("turn")
    found = read(metrics)
    expected = {
        "unbroken_requests_in_flight": 1,
        "unbroken_requests_total{alias=fast,client=openai-chat,status=200,upstream=gemini}": 2,
        "unbroken_request_seconds_count{alias=fast}": 2,
        "unbroken_request_seconds_sum{alias=fast}": 7.3,
        "unbroken_request_seconds_bucket{alias=fast,le=0.5}": 1,
        "unbroken_time_to_first_token_seconds_count{alias=fast}": 1,
        "unbroken_tokens_total{alias=fast,kind=input}": 101,
        "unbroken_tokens_total{alias=fast,kind=output}": 22,
        "unbroken_tokens_total{alias=fast,kind=cached}": 60,
        "unbroken_tokens_total{alias=fast,kind=reasoning}": 5,
        "unbroken_held_turns_total{alias=fast}": 1,
        "unbroken_held_calls_total{alias=fast}": 2,
        "unbroken_released_calls_total{alias=fast}": 1,
        "unbroken_expired_turns_total{alias=fast}": 1,
        "unbroken_held_turns_open": 3,
        "unbroken_repairs_total{kind=drop}": 2,
        "unbroken_fallbacks_total{alias=fast}": 1,
        "unbroken_restarts_total{alias=fast,kind=cut}": 1,
        "unbroken_upstream_errors_total{alias=fast,kind=RateLimited}": 1,
        "unbroken_kept_total{kind=turn}": 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "unbroken_tokens_total{alias=fast,kind=cache_write}" not in found
    assert not any("_created" in name for name in found)


def test_names_chosen_by_clients_share_one_series() -> None:
    metrics = GatewayMetrics(["fast"])
    for number in range(1000):
        metrics.request(f"model-{number}", "openai-chat", "", 404, 0.001)
    found = {name: value for name, value in read(metrics).items() if name.startswith("unbroken_requests_total")}
    assert found == {"unbroken_requests_total{alias=unknown,client=openai-chat,status=404,upstream=}": 1000}


def test_no_metric_grows_without_limit() -> None:
    metrics = GatewayMetrics()
    for number in range(module.MOST + 100):
        metrics.repaired(f"kind-{number}")
    found = {name: value for name, value in read(metrics).items() if name.startswith("unbroken_repairs_total")}
    assert len(found) == module.MOST + 1
    assert found["unbroken_repairs_total{kind=unknown}"] == 100


def test_two_gateways_in_one_process_count_separately() -> None:
    one, other = GatewayMetrics(["a"]), GatewayMetrics(["a"])
    one.fallback("a")
    assert read(one)["unbroken_fallbacks_total{alias=a}"] == 1
    assert "unbroken_fallbacks_total{alias=a}" not in read(other)


def test_the_process_reports_its_memory() -> None:
    assert read(GatewayMetrics())["process_resident_memory_bytes"] > 1_000_000


def test_workers_are_added_up(tmp_path: Path) -> None:
    code = (
        "from unbroken_gateway.admin.gateway_metrics import GatewayMetrics; m = GatewayMetrics(['a']);"
        "m.fallback('a'); m.in_flight(1); m.held_open(1); print(m.render()[0].decode())"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={module.COUNTS_DIR: str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert 'unbroken_fallbacks_total{alias="a"} 1.0' in texts[0]
    assert 'unbroken_fallbacks_total{alias="a"} 2.0' in texts[1]
    assert "unbroken_requests_in_flight 2.0" in texts[1]
    assert "held_turns_open" not in texts[1]  # none of them could know


def test_a_held_turn_that_nobody_waits_for_is_not_open() -> None:
    clock = VirtualClock(1_000_000)
    book = Stats((), hold_timeout=60, now=clock.now)
    book.pending.hold("one", 2)
    assert b"unbroken_held_turns_open 1.0" in book.counts()[0]
    clock.advance(61)
    assert b"unbroken_held_turns_open 0.0" in book.counts()[0]
