"""`@in_loop`: a test that is a coroutine function runs on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")

SECONDS = 120.0
"""For a test that does not end."""


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*arguments: P.args, **more: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **more), SECONDS))

    return run
