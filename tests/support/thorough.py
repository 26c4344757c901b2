"""How much the slowest tests try: a part by default, all of it with `UNBROKEN_TESTS=all`, as `make faults` sets it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("UNBROKEN_TESTS") == "all"


def some(items: Sequence[T], every: int) -> Sequence[T]:
    """Every so many of them and the last one, or all of them."""
    if ALL or not items:
        return items
    return [*items[:-1:every], items[-1]]
