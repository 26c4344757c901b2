"""Who takes events from a stream and stops early ends the run behind it, if there is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import asynccontextmanager

from unbroken.events import Event


@asynccontextmanager
async def closing(stream: AsyncIterable[Event]) -> AsyncGenerator[AsyncIterable[Event]]:
    try:
        yield stream
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
        if close is not None:
            await close()
