"""Twenty clients at once, for two seconds and at least 200 requests, through the real command. The upstream breaks one
stream in ten.

The load itself is that of the bench (`bench/gateway_load.py`, 200 clients for a minute), in processes of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from checkout import ROOT

LOAD = ROOT / "bench" / "gateway_load.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    # With this seed nine of the first 200 clients disconnect.
    options = [
        "--connections",
        "20",
        "--seconds",
        "2",
        "--requests",
        "200",
        "--seed",
        "163",
        "--broken",
        "0.1",
        "--json",
    ]
    done = subprocess.run([sys.executable, str(LOAD), *options], capture_output=True, text=True, timeout=90)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_every_client_gets_its_own_answer_even_if_streams_break(found: dict[str, Any]) -> None:
    assert found["problems"] == []
    assert found["upstream"]["broken"] >= 5
    assert found["counts"].get("errors", 0) == 0
    assert found["counts"]["answered"] + found["counts"]["refused"] == found["requests"] >= 200


def test_a_client_that_disconnects_ends_its_request_to_the_upstream(found: dict[str, Any]) -> None:
    assert found["gone"] >= 1
    assert found["gone_slowest_seconds"] < 1.0


def test_nothing_is_left_when_all_clients_have_gone(found: dict[str, Any]) -> None:
    assert found["in_flight"] == 0
    assert found["files_more"] <= 8
    assert found["exit_code"] == 0
