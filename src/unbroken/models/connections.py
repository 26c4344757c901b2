"""Connections to providers: opening them, a request in flight, and a typed error for each way to get no answer."""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientHttpProxyError,
    ClientPayloadError,
    ClientProxyConnectionError,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from unbroken.errors import ProviderError, TimedOut, Unauthorized, Unreachable
from unbroken.models.addresses import Timeouts, shown
from unbroken.models.error_responses import Asked
from unbroken.models.exchange_timeout import Patience

KEPT_ALIVE = 50.0
"""Seconds that an idle connection is kept: below the 60 after which usual load balancers drop it."""


class Exchange:
    """The connection of one request. The connector sets it, the sender of the request reads it."""

    __slots__ = ("_first_byte", "_patience", "fresh", "reused")

    def __init__(self, patience: Patience, first_byte: float | None, fresh: bool = False) -> None:
        self.fresh = fresh
        """Do not use a kept connection."""
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
            # Bytes arrived on the idle connection: they would be taken for the next answer.
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


# Errors without an HTTP answer: a connection that was refused, lost or too slow, a proxy in between, bytes that are not
# HTTP. One typed error each, in one line. `error_responses` reads answers that are errors.
#
# Pure: what happened in, the error out.


_QUOTED = re.compile(r"Error\(\d+, '([^']+)'\)")


def unreachable(asked: Asked, url: URL, proxy: URL | None, error: Exception) -> ProviderError:
    provider, words = f"provider `{asked.provider}`", in_words(asked, error)
    match error:
        case ClientHttpProxyError():
            return refused_by_proxy(url, proxy, error.status)
        case ServerDisconnectedError():
            return Unreachable(f"{provider} closed the connection without an answer ({asked.address})")
        case ClientResponseError() | ClientPayloadError():
            return Unreachable(
                f"{provider} sent an answer that cannot be read ({asked.address}): {words}; "
                f"check base_url and its port, and any proxy in between"
            )
        case ClientProxyConnectionError():
            way_out = f"the proxy {_named(proxy)} does not answer: check {_variable(url)} or set NO_PROXY"
        case ClientConnectorCertificateError() | ClientSSLError():
            way_out = "set SSL_CERT_FILE to the certificates that this network uses, or check https:// in base_url"
        case _:
            way_out = "check base_url, and that the server runs"
    return Unreachable(f"{provider} cannot be reached at {asked.address}: {words}; {way_out}")


def refused_by_proxy(url: URL, proxy: URL | None, status: int) -> ProviderError:
    words = f"the proxy {_named(proxy)} answered {status}: check {_variable(url)} or set NO_PROXY"
    return (Unauthorized if status == 407 else Unreachable)(words, status=status)


def not_in_time(asked: Asked, url: URL, timeouts: Timeouts, waiting_for: str) -> TimedOut:
    provider, at = f"provider `{asked.provider}`", asked.address
    match waiting_for:
        case "total":
            error = TimedOut(f"{provider} was not done within total={timeouts.total} s ({at})")
            error.total = True
            return error
        case "connect":
            words = f"no connection to {provider} within connect_timeout={timeouts.connect} s ({at})"
            if (
                url.scheme == "https" and url.explicit_port is not None
            ):  # the user's own server, which waits for a request
                words += "; if that server does not speak https, write http:// in base_url"
            return TimedOut(words)
        case _:
            return TimedOut(
                f"{provider} sent nothing within first_byte={timeouts.first_byte} s ({at}); "
                f"a slow model needs a larger first_byte"
            )


def in_words(asked: Asked, error: Exception) -> str:
    match error:
        case ClientResponseError():
            text = error.message
        case ClientConnectorError() if not isinstance(error, ClientConnectorCertificateError):
            text = str(error.os_error)  # its own text contains "ssl:default" even without TLS
        case ClientPayloadError():
            text = _of_the_system(error) or "it ended in the middle of the body"
        case _:
            text = str(error)
    return " ".join(asked.masked(text).split())[:200] or type(error).__name__


def _of_the_system(error: BaseException) -> str:
    """The system's message, without the library's text about its own parser."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    quoted = _QUOTED.search(str(error))  # aiohttp 3.14 has it only in its message
    return quoted[1] if quoted else ""


def cause_of(error: Exception) -> Exception | None:
    """The `__cause__` of our error. Not an error that holds the request's headers, and so the key, and not our own
    time-out."""
    return None if isinstance(error, (ClientResponseError, TimeoutError)) else error


def _named(proxy: URL | None) -> str:
    return shown(proxy) if proxy is not None else "in between"


def _variable(url: URL) -> str:
    return f"{url.scheme.upper()}_PROXY"


# A request that was sent while it is still being decoded; the code that needs its answer continues from here.


class Sent:
    """A request in flight that waits for the head of its answer. Call `drop` once nobody needs it."""

    def __init__(self, posting: asyncio.Task[tuple[ClientResponse, Patience, str]]) -> None:
        self._posting = posting
        self._taken = False

    async def head(self) -> tuple[ClientResponse, Patience, str]:
        head = await self._posting
        self._taken = True
        return head

    def drop(self) -> None:
        """Closes the connection, unless the answer is being read."""
        if not self._taken:
            self._posting.cancel()
            self._posting.add_done_callback(_hang_up)


def _hang_up(posting: asyncio.Task[tuple[ClientResponse, Patience, str]]) -> None:
    if not posting.cancelled() and posting.exception() is None:
        response, patience, _ = posting.result()
        patience.end()
        response.close()
