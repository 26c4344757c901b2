"""A call whose outcome is unknown after a crash is shown as that: by the viewer, by statistics, by Prometheus and by
OpenTelemetry, whether it was reported to the model or waits for a person."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import SUPPORT
from killed_runs import killed, resumed
from prometheus_client import CollectorRegistry
from terminals import invoke
from test_otel import Watched
from test_prometheus_metrics import scraped
from viewer_pages import data_of

from unbroken import Allow, Deny, UserError
from unbroken.mcp.client.server import MCPServer
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.prometheus import PrometheusMetrics
from unbroken.trajectory.recording import list_recordings
from unbroken_viewer.listing import Shelf
from unbroken_viewer.page import whole_page

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


def picture_of(record: Path) -> dict[str, Any]:
    """What the page of a recording draws."""
    page, left_out = whole_page(Shelf(record))
    assert left_out == []
    return data_of(page)["pictures"][record.name]


def state_and_totals(picture: dict[str, Any]) -> tuple[list[str], int, int, int]:
    totals = picture["totals"]
    states = [call["state"] for turn in picture["turns"] for call in turn["calls"]]
    return states, totals["rounds"], totals["calls"], totals["uncertain"]


def plain(record: Path) -> str:
    done = invoke("view", "--plain", str(record))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_viewer_shows_a_reported_call_as_uncertain(tmp_path: Path) -> None:
    done, record = killed(tmp_path)
    resumed(done, record)
    assert state_and_totals(picture_of(record)) == (["uncertain"], 1, 1, 1)
    assert "1 round · 1 call · 1 failed · 1 uncertain" in plain(record)


def test_the_viewer_shows_a_waiting_call_as_uncertain_until_it_is_answered(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    resumed(done, record, after_crash="wait")
    picture = picture_of(record)
    assert picture["state"] == "waiting"
    assert state_and_totals(picture) == (["uncertain"], 1, 1, 1)
    assert "somebody has to say what to do" in picture["turns"][0]["calls"][0]["notes"][0]
    shown = plain(record)
    assert "waiting · 1 round · 1 call · 1 uncertain" in shown
    assert next(line for line in shown.splitlines() if line.startswith("  pay")).endswith("unknown")
    resumed(done, record, {"a": "the bank says: paid"}, after_crash="wait")
    assert state_and_totals(picture_of(record))[2:] == (1, 0)


def test_a_call_that_was_allowed_to_run_again_is_no_longer_uncertain(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    resumed(done, record, after_crash="wait")
    resumed(done, record, {"a": Allow()}, after_crash="wait")
    assert state_and_totals(picture_of(record)) == (["done"], 1, 1, 0)


def test_lists_count_a_waiting_call(tmp_path: Path) -> None:
    done, record = killed(tmp_path, after_crash="wait")
    resumed(done, record, after_crash="wait")
    (row,) = Shelf(tmp_path).rows()
    assert (row.state, row.rounds, row.calls, row.failed) == ("waiting", 1, 1, 0)
    assert list_recordings(tmp_path)[0].calls == 1


def test_statistics_count_reported_calls_and_waiting_runs(tmp_path: Path) -> None:
    for policy in ("report", "wait"):
        (tmp_path / policy).mkdir()
        done, record = killed(tmp_path / policy, after_crash=policy)
        resumed(done, record, after_crash=policy)
    reported, waits = (
        json.loads(invoke("stats", str(tmp_path / policy), "--json").stdout)["all"] for policy in ("report", "wait")
    )
    assert (reported["uncertain"], reported["tools"]["pay"]["uncertain"], reported["tool_executions"]) == (1, 1, 0)
    assert (waits["uncertain"], waits["waiting"], waits["tool_calls"]) == (0, 1, 1)
    assert "  uncertain\t1\n" in invoke("stats", str(tmp_path / "report")).stdout


@pytest.mark.parametrize(("policy", "answers"), [("report", {}), ("wait", {"a": Deny("ask the bank")})])
def test_prometheus_and_opentelemetry_count_an_uncertain_call(
    policy: str, answers: dict[str, Any], tmp_path: Path
) -> None:
    done, record = killed(tmp_path, after_crash=policy)
    registry, watched = CollectorRegistry(), Watched()
    if answers:
        resumed(done, record, after_crash=policy)
    resumed(done, record, answers, after_crash=policy, sinks=[PrometheusMetrics(registry), watched.sink])
    told = scraped(registry)
    assert told['unbroken_tool_calls_uncertain_total{tool="pay"}'] == 1
    assert 'unbroken_tool_failures_total{tool="pay"}' not in told
    assert "unbroken_tool_execution_time_seconds_count" not in " ".join(told)
    span = watched.span("execute_tool pay")
    assert span.attributes is not None
    assert (span.attributes["unbroken.call.outcome"], span.attributes["error.type"]) == ("unknown", "outcome_unknown")
    assert {name[0]: count for name, count in watched.numbers().items() if "uncertain" in name[0]} == {
        "unbroken.tool.uncertain": 1
    }


def test_writing_tools_of_an_mcp_server_have_its_after_crash_setting() -> None:
    async def policies() -> tuple[Any, ...]:
        program = [sys.executable, str(SUPPORT.joinpath("mcp_server.py"))]
        async with MCPServer(program, after_crash="wait") as server:
            found = Toolbox(server).get("greet"), Toolbox(server).get("slow")
            return tuple(tool.crash_policy for tool in found if tool is not None)

    assert asyncio.run(policies()) == ("rerun", "wait")


def test_an_invalid_after_crash_setting_of_an_mcp_server_is_refused() -> None:
    with pytest.raises(UserError, match=r"MCPServer\(after_crash=.again.\): expected .report., .rerun., .wait."):
        MCPServer("program", after_crash="again")  # pyright: ignore[reportArgumentType] - that is the point
