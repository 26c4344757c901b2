"""The story of `make refunds`, as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_each_order_is_paid_once_though_a_worker_is_killed_in_the_middle_of_a_payment() -> None:
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "refunds", "--yes"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = re.findall(r"\$ make refunds\n(.*?)```", (folder.parent / "README.md").read_text("utf-8"), re.DOTALL)
    assert done.stdout == shown
