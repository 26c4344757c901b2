"""One aiohttp session for each event loop, shared by all models and runs on it, and closed automatically with the loop.

A session belongs to the loop it was made on, and users should not have to close it. So it is held by an async generator
of the loop: `asyncio.run` ends with `loop.shutdown_asyncgens()`, which closes it. A loop that lives until the process
ends calls `close_session`, or is closed at exit.

Loading aiohttp takes longer than loading the rest of the library, so this module does not import it: every agent
imports `close_session`, even if its model does not use HTTP.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import ClientSession


@dataclass(slots=True)
class _Held:
    session: ClientSession
    holder: AsyncGenerator[ClientSession, None]


_held: dict[asyncio.AbstractEventLoop, _Held] = {}


def current_session(loop: asyncio.AbstractEventLoop) -> ClientSession | None:
    """The session of this loop, if it has one."""
    held = _held.get(loop)
    return None if held is None or held.session.closed else held.session


async def open_session() -> ClientSession:
    """The session of the running loop."""
    loop = asyncio.get_running_loop()
    session = current_session(loop)
    if session is None:
        _forget_closed_loops()
        holder = _hold()
        session = await anext(holder)
        _held[loop] = _Held(session, holder)
    return session


async def close_session() -> None:
    """Close the session of the running loop, if there is one: for a loop that nobody shuts down."""
    if (held := _held.pop(asyncio.get_running_loop(), None)) is not None:
        await held.holder.aclose()


async def _hold() -> AsyncGenerator[ClientSession, None]:
    from unbroken.models.connections import new_session  # noqa: PLC0415 - start-up time

    loop = asyncio.get_running_loop()
    session = new_session()
    try:
        yield session
    finally:
        if (held := _held.get(loop)) is not None and held.session is session:
            del _held[loop]
        await session.close()


def _forget_closed_loops() -> None:
    for loop, held in list(_held.items()):
        if loop.is_closed():
            _abandon(loop, held)


def _abandon(loop: asyncio.AbstractEventLoop, held: _Held) -> None:
    """Closes the session of a loop that was closed without `shutdown_asyncgens`, where nothing can be awaited."""
    _held.pop(loop, None)
    connector = held.session.connector
    held.session.detach()
    if connector is not None:
        with suppress(StopIteration):
            connector.close().__await__().__next__()


@atexit.register
def _close_the_rest() -> None:
    for loop, held in list(_held.items()):
        if loop.is_closed():
            _abandon(loop, held)
        elif not loop.is_running():
            _held.pop(loop, None)
            loop.run_until_complete(held.session.close())
