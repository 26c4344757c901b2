"""What every process of the torture test records: one JSON object per line, appended as it happens.

Clients write `start`, `invoke`, then `ok`, `fail` (an HTTP error) or `info` (the outcome is unknown); the model writes
`turn` for each answer and `refused` for each request that no provider would accept; faults and health checks are lines
too. Everything of one conversation carries a mark, so that the checker finds it wherever it appears.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

Record = dict[str, Any]

ACCOUNT = re.compile(r"zqa[0-9a-f]{13}")
"""The mark of a conversation: its account number, which only its own client and the model's answers to it know."""
TURN = re.compile(r"zqt[0-9a-f]{13}")
"""The mark of one answer of the model."""


def account_mark(*names: object) -> str:
    return f"zqa{_digest(names)}"


def turn_mark(*names: object) -> str:
    return f"zqt{_digest(names)}"


def _digest(names: Iterable[object]) -> str:
    """Base64 characters, 16 with the prefix: it can be used where a wire requires base64."""
    return blake2b("/".join(map(str, names)).encode(), digest_size=7).hexdigest()[:13]


class History:
    """A file that only grows. A line is written with one call, so that a kill never leaves half of two lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, op: str, **fields: Any) -> None:
        self._file.write(json.dumps({"op": op, "t": round(time.time(), 4), **fields}).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def read_histories(folder: Path) -> list[Record]:
    """All records of all processes, in the order of their times."""
    records: list[Record] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                continue  # the last line of a process that was killed
    return sorted(records, key=lambda record: record["t"])
