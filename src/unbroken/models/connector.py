"""The connector of our aiohttp sessions: it reports to the exchange in progress when its connection is open."""

from __future__ import annotations

from contextvars import ContextVar

from aiohttp import ClientRequest, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from unbroken.models.exchange_timeout import Patience

KEPT_ALIVE = 50.0
"""Seconds that an idle connection is kept: below the 60 after which usual load balancers drop it."""


class Exchange:
    """What happened on the way to one response. The connector sets it, the sender of the request reads it."""

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
"""Set by the sender of a request until it has the head of the answer."""


class Connector(TCPConnector):
    """Reports to the current exchange when its connection is open and whether it is new, and opens a new one if the
    exchange requires it. aiohttp's own tracing would report the same at a sixth of the cost of a complete request."""

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


def new_session() -> ClientSession:
    return ClientSession(
        connector=Connector(limit=0, keepalive_timeout=KEPT_ALIVE, ttl_dns_cache=300),
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None, sock_connect=None),
    )
