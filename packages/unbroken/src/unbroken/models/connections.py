"""Connections to providers: opening them, a request in flight, and its time-outs.

One timer covers an exchange from the connection to the last byte. It cancels the task that sends the request, or the
read of its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from io import BytesIO
from math import inf
from typing import Literal, TypeAlias

from aiohttp import (
    ClientConnectorError,
    ClientOSError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    StreamReader,
    TCPConnector,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from multidict import CIMultiDict

from unbroken.clock import SLACK, Deadline, deadline
from unbroken.errors import ProviderError
from unbroken.models.addresses import Endpoint, Timeouts, find_proxy
from unbroken.models.connection_errors import in_words, not_in_time, unreachable
from unbroken.models.error_responses import Asked
from unbroken.models.model import RESPONSE_HEAD
from unbroken.models.sessions import current_session, open_session
from unbroken_wires.decoding.verdict import How

Waiting: TypeAlias = Literal["connect", "first_byte", "idle", "total", ""]
"""What was being waited for when the time was up."""


class ExchangeTimeout:
    """Ends what has waited too long: the task, while it waits for the head of the answer, or a read of the body. One
    timer serves the whole exchange; when it fires, it checks whether anything has waited that long, and is set again if
    not. A timer for each read would cost more than the read.
    """

    __slots__ = (
        "_at",
        "_cancelling",
        "_content",
        "_deadline",
        "_limit",
        "_loop",
        "_task",
        "_total",
        "expired",
        "for_what",
        "on_end",
        "since",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: float | None, total: float, soonest: float) -> None:
        """`total` is a time of the loop's clock; `soonest` is the shortest of the limits, which sets the timer."""
        self._loop = loop
        self._total = total
        self._content: StreamReader | None = None
        self._task: asyncio.Task[object] | None = asyncio.current_task(loop)
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self.on_end: Callable[[], None] | None = None
        """Called once, when the answer is over."""
        self.for_what: Waiting = "connect"
        self.expired: Waiting = ""
        self.since = loop.time()
        """When the current wait began; infinite while nothing waits."""
        self._limit = inf if connect is None else connect
        self._deadline: Deadline | None = None
        seconds = min(self._limit, soonest)
        self._at = self.since + seconds
        if self._at > total:
            self._look_at(total)
        elif seconds < inf:
            self._deadline = deadline(loop, seconds, self._look)

    def connected(self, first_byte: float | None) -> None:
        """The connection is open: the wait for the first byte begins."""
        self.for_what = "first_byte"
        self.since = now = self._loop.time()
        self._allow(first_byte, now)

    def reads(self, content: StreamReader) -> None:
        """The head has arrived; from now on the body is read."""
        self._task, self._content = None, content
        if self.expired:  # if the task that waited for the head was done already
            content.set_exception(TimeoutError())

    def allow(self, seconds: float | None) -> None:
        """Sets how long a read may wait from now on."""
        self.for_what = "idle"
        self._allow(seconds, self._loop.time())

    def _allow(self, seconds: float | None, now: float) -> None:
        self._limit = inf if seconds is None else seconds
        at = min(now + self._limit, self._total)
        if at < self._at:
            self._look_at(at)

    def end(self) -> None:
        self._task = self._content = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self.on_end is not None:
            over, self.on_end = self.on_end, None
            over()

    def cancelled_it(self) -> bool:
        """If the task was cancelled while it waited for the head: was it only by us?"""
        task, self._task = self._task, None
        return bool(self.expired) and task is not None and task.uncancel() <= self._cancelling

    def _look_at(self, when: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._at = when
        self._deadline = None
        if when < inf:
            self._deadline = deadline(self._loop, max(when - self._loop.time(), 0.0), self._look, usual=False)

    def _look(self) -> None:
        now = self._loop.time()
        if self.since == inf and now < self._total:
            self._look_at(now + min(max(self._limit, 0.01), 1.0))
            return
        due = min(self.since + self._limit, self._total)
        if due - now > SLACK:
            self._look_at(due)
            return
        self.expired = "total" if due == self._total else self.for_what
        if self._content is not None:
            self._content.set_exception(TimeoutError())
        elif self._task is not None:
            self._task.cancel()


KEPT_ALIVE = 50.0
"""Seconds that an idle connection is kept: below the 60 after which usual load balancers drop it."""


class Exchange:
    """The connection of one request. The connector sets it, the sender of the request reads it."""

    __slots__ = ("_first_byte", "_timeout", "fresh", "reused")

    def __init__(self, timeout: ExchangeTimeout, first_byte: float | None, fresh: bool = False) -> None:
        self.fresh = fresh
        """Do not use a kept connection."""
        self.reused = True
        self._timeout = timeout
        self._first_byte = first_byte

    def connect(self) -> None:
        self._timeout.connected(self._first_byte)


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


class HeadTimeout(TimeoutError):
    """The head of an answer did not come in time."""

    def __init__(self, waiting_for: Waiting) -> None:
        super().__init__(waiting_for)
        self.waiting_for: Waiting = waiting_for


_IN_PIECES = 1 << 20
"""A body from this many bytes on is written in pieces, so that it does not block the loop."""


class Transport:
    """Sends requests to one endpoint, through the proxy of the environment, within the time-outs."""

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._soonest = timeouts.soonest
        proxy = find_proxy(endpoint.stream_url)
        self.proxy = proxy.url if proxy else None
        self.proxy_headers = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else None
        self.secrets = proxy.secrets if proxy else ()

    def deadline(self) -> float:
        """When a request that begins now has to be done, by the clock of the loop."""
        return inf if self._timeouts.total is None else asyncio.get_running_loop().time() + self._timeouts.total

    async def post(
        self, stream: bool, headers: CIMultiDict[str], body: bytes, deadline: float, fresh: bool = False
    ) -> tuple[ClientResponse, ExchangeTimeout] | None:
        """Waits for the head of the answer; also returns the time-out of its body. None if the request was sent on a
        kept connection that was dead. `fresh`: use a new one, because if one is dead, all may be."""
        loop = asyncio.get_running_loop()
        session = current_session(loop) or await open_session()
        endpoint, timeouts = self._endpoint, self._timeouts
        timeout = ExchangeTimeout(loop, timeouts.connect, deadline, self._soonest)
        exchange = Exchange(timeout, timeouts.first_byte, fresh)
        token = current.set(exchange)
        begun = False
        try:
            response = await session.post(
                endpoint.stream_url if stream else endpoint.whole_url,
                data=body if len(body) < _IN_PIECES else BytesIO(body),
                headers=headers,
                allow_redirects=False,
                proxy=self.proxy,
                proxy_headers=self.proxy_headers,
            )
            begun = True
        except asyncio.CancelledError:
            if timeout.cancelled_it():
                raise HeadTimeout(timeout.expired) from None
            if timeout.for_what == "connect" and (head := RESPONSE_HEAD.get()) is not None:
                head.asked = ""
            raise
        except TimeoutError:  # the system's own
            raise HeadTimeout(timeout.for_what) from None
        except (ServerDisconnectedError, ClientOSError) as error:
            if exchange.reused and not fresh and not isinstance(error, ClientConnectorError):
                return None
            raise
        finally:
            current.reset(token)
            if not begun:
                timeout.end()
        return response, timeout

    def failed(self, asked: Asked, error: Exception, late: Waiting) -> ProviderError:
        """There was no answer. `late`: which time-out was reached, if any."""
        url = self._endpoint.stream_url
        return not_in_time(asked, url, self._timeouts, late) if late else unreachable(asked, url, self.proxy, error)

    def cause(self, asked: Asked, error: Exception, late: Waiting) -> tuple[str, How]:
        """Why an answer broke off."""
        match late:
            case "idle":
                return f"the stream fell silent: nothing came for idle={self._timeouts.idle} s", "silent"
            case "total":
                return f"the time was up: total={self._timeouts.total} s", "late"
            case _:
                return f"the connection was lost: {in_words(asked, error)}", "lost"


# A request that was sent while it is still being decoded; the code that needs its answer continues from here.


class Sent:
    """A request in flight that waits for the head of its answer. Call `drop` once nobody needs it."""

    def __init__(self, posting: asyncio.Task[tuple[ClientResponse, ExchangeTimeout, str]]) -> None:
        self._posting = posting
        self._taken = False

    async def head(self) -> tuple[ClientResponse, ExchangeTimeout, str]:
        head = await self._posting
        self._taken = True
        return head

    def drop(self) -> None:
        """Closes the connection, unless the answer is being read."""
        if not self._taken:
            self._posting.cancel()
            self._posting.add_done_callback(_hang_up)


def _hang_up(posting: asyncio.Task[tuple[ClientResponse, ExchangeTimeout, str]]) -> None:
    if not posting.cancelled() and posting.exception() is None:
        response, timeout, _ = posting.result()
        timeout.end()
        response.close()
