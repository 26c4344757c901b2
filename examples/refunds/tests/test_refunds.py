"""The story of `make refunds`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_each_order_is_paid_once_though_a_worker_is_killed_in_the_middle_of_a_payment() -> None:
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "refunds", "--yes"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert told[2].startswith("The worker was killed (SIGKILL)")
    assert told[4] == "order-9 waits: may it refund 480? yes"
    assert told[6:9] == [
        f"  order-{order}: Order {order}: {amount} was refunded for order {order}."
        for order, amount in ((7, 20), (8, 35), (9, 480))
    ]
    assert told[9] == "The ledger has one payment for each order: [(7, 20), (8, 35), (9, 480)]"
