"""Values that are made while they are gone through: generators, cursors, files, `map`. They are gone through once,
where the tool runs, and become lists. What fails on the way is the tool's failure.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, cast

ITEMS = 10_000
"""Items of a lazy value that are taken: it may be endless, and more than this would be cut out of the result."""

REPORTED = 200
"""Characters of an item in a progress report."""

NO_MORE = f"[... only the first {ITEMS:,} were asked for ...]"


class IterationFailed(Exception):
    """Going through a lazy value failed; the cause is what it raised."""


def drain(values: Iterator[Any], stopped: Callable[[], bool] | None = None) -> list[Any]:
    """All of its items, or the first `ITEMS` and a remark. `stopped`: nobody waits for them any more."""
    items: list[Any] = []
    try:
        for value in values:
            items.append(value)
            if len(items) == ITEMS:
                items.append(NO_MORE)
                break
            if stopped is not None and stopped():
                break
    except Exception as error:
        raise IterationFailed from error
    finally:
        # What stays open because it was not gone through to its end, or always does. A cursor may belong to others.
        if isinstance(values, Generator | io.IOBase):
            with suppress(Exception):
                cast("Generator[Any, Any, Any]", values).close()
    return items


async def collect(values: AsyncIterator[Any], report: Callable[[str], None]) -> list[Any]:
    """The same, of an asynchronous one; each item is reported as it comes."""
    items: list[Any] = []
    try:
        async for value in values:
            items.append(value)
            if len(items) == ITEMS:
                items.append(NO_MORE)
                break
            report(_in_short(value))
    finally:
        if isinstance(values, AsyncGenerator):
            await cast("AsyncGenerator[Any, Any]", values).aclose()
    return items


def _in_short(value: Any) -> str:
    """Without foreign code: this runs on the event loop."""
    if type(value) is str:
        text = value
    elif value is None or type(value) in (bool, int, float, list, dict):
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
    else:
        text = type(value).__name__
    return text if len(text) <= REPORTED else f"{text[:REPORTED]}…"
