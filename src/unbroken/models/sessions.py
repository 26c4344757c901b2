"""One aiohttp session for each event loop, shared by all models and runs on it, and closed with the loop by itself.

A session belongs to the loop it was made on, and nobody wants to close one. So it is held by an async generator that
the loop knows of: `asyncio.run` ends with `loop.shutdown_asyncgens()`, which closes it. A loop that lives until the
process ends calls `close_session`, or is closed at exit.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass

from aiohttp import ClientRequest, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from unbroken.models.patience import Patience

KEPT_ALIVE = 50.0
"""Seconds that an idle connection is kept: below the 60 after which usual load balancers drop it."""


class Exchange:
    """What happened on the way to one response: told by the connector, read by who sent the request."""

    __slots__ = ("_first_byte", "_patience", "fresh", "reused")

    def __init__(self, patience: Patience, first_byte: float | None, fresh: bool = False) -> None:
        self.fresh = fresh
        """A kept connection will not do."""
        self.reused = True
        self._patience = patience
        self._first_byte = first_byte

    def connect(self) -> None:
        self._patience.connected(self._first_byte)


current: ContextVar[Exchange] = ContextVar("unbroken_exchange")
"""Set by who sends a request, for as long as it takes to get the head of the answer."""


class Connector(TCPConnector):
    """Tells the current exchange when its connection stands, and whether it is a new one; makes a new one where it has
    to be. aiohttp's own tracing would tell the same at a sixth of the cost of a whole request."""

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        """A kept connection."""
        exchange = current.get(None)
        if exchange is not None and exchange.fresh:
            return None
        connection = await super()._get(key, traces)
        while connection is not None and connection.protocol is not None and connection.protocol.should_close:
            # Something came while nobody had asked: it would be taken for the answer to what is asked next.
            connection.close()
            connection = await super()._get(key, traces)
        if connection is not None and exchange is not None:
            exchange.connect()
        return connection

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> ResponseHandler:
        exchange = current.get(None)
        if exchange is None:
            return await super()._create_connection(req, traces, timeout)
        exchange.reused = False
        protocol = await super()._create_connection(req, traces, timeout)
        exchange.connect()
        return protocol


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
    loop = asyncio.get_running_loop()
    session = ClientSession(
        connector=Connector(limit=0, keepalive_timeout=KEPT_ALIVE, ttl_dns_cache=300),
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None, sock_connect=None),
    )
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
    """The session of a loop that was closed without `shutdown_asyncgens`: nothing can be awaited there any more."""
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
