"""A model behind HTTP: a request out, its bytes through the decoder, deltas out. The only file that awaits a provider.

It does not try again: a provider that does not answer is a typed error, a response that broke off is an `Ended` whose
verdict says how. The one exception is a kept connection that turns out to be dead before anything came back: the server
had closed it while it was idle, and the request is sent again on another, as all clients do. A server that read the
request, and then closed without an answer, gets it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from math import inf
from typing import Self, TypeAlias

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientOSError,
    ClientProxyConnectionError,
    ClientResponse,
    ClientSSLError,
    ServerDisconnectedError,
    StreamReader,
)
from multidict import CIMultiDict
from yarl import URL

from unbroken.clock import RealClock
from unbroken.decoding import Decoder
from unbroken.deltas import Delta
from unbroken.errors import ProviderError, StreamError, TimedOut, Unauthorized, Unreachable
from unbroken.messages import Request
from unbroken.models.addresses import find_proxy, shown
from unbroken.models.failures import Asked, read_failure
from unbroken.models.quirks import Quirks, fit_body, fit_request
from unbroken.models.sessions import Exchange, current, open_session
from unbroken.models.settings import Settings, with_settings
from unbroken.wires import find_wire
from unbroken.wires.jsontext import dumps

Key: TypeAlias = str | Callable[[], str | Awaitable[str]] | None
"""A key, or what gives one for each request, or none."""

AFTER_FINISH = 3.0
"""Seconds of silence after a finish reason: openai-chat may still send its usage, and some servers never close."""
AFTER_LAST = 0.25
"""The same after the wire's very last event."""
_TRIES = 3
"""Times that a request is sent at most, when each try before met a kept connection that was dead."""
_MOST_OF_AN_ERROR = 64 * 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `connect`: until the connection stands; `first_byte`: from there to the first byte of the answer;
    `idle`: between two reads; `total`: for all of it. `None` waits for ever. Time that the consumer takes counts only
    for `total`."""

    connect: float | None = 10
    first_byte: float | None = 120
    idle: float | None = 60
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how a provider is asked: its row, after `connect` has read it."""

    provider: str
    model: str
    wire: str
    stream_url: URL
    whole_url: URL
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    key_variable: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    quirks: Quirks = field(default_factory=Quirks)


class HTTPModel:
    """Made by `connect`. Belongs to no loop: one object serves any number of runs, loops and threads at once."""

    def __init__(
        self,
        endpoint: Endpoint,
        key: Key = None,
        *,
        stream: bool = True,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        settings: Settings = Settings(),  # noqa: B008 - frozen
    ) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.settings = settings
        self._key = key if callable(key) else check_key(key or "", endpoint.provider)
        self._streams = stream
        self._wire = find_wire(endpoint.wire)
        proxy = find_proxy(endpoint.stream_url)
        self._proxy_url = proxy.url if proxy else None
        self._proxy_headers = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else None
        self._recovers = endpoint.quirks.prose and endpoint.wire == "openai-chat"
        # Written once, not for each request; a key that changes is filled in then.
        self._stream_headers = self._write_headers(stream=True)
        self._whole_headers = self._write_headers(stream=False)

    def __repr__(self) -> str:
        return f"HTTPModel({self.name!r}, {shown(self.endpoint.stream_url)!r})"

    @property
    def name(self) -> str:
        return f"{self.endpoint.provider}:{self.endpoint.model}"

    @property
    def wire(self) -> str:
        return self.endpoint.wire

    async def aclose(self) -> None:
        """Nothing to do: connections belong to the loop and close with it. Here so that any model may be closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def write(self, request: Request) -> tuple[Request, bytes]:
        """The request as this provider is asked, and its body. Pure; what `stream` sends."""
        endpoint = self.endpoint
        request = with_settings(request, self.settings, endpoint.model, endpoint.wire, self._streams)
        request = fit_request(request, endpoint.quirks)
        return request, dumps(fit_body(self._wire.encode_request(request), request, endpoint.quirks))

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        request, body = self.write(request)
        names = [tool.name for tool in request.tools] if self._recovers and request.tools else None
        decoder = Decoder(self.endpoint.wire, names, request)
        loop = asyncio.get_running_loop()
        deadline = inf if self.timeouts.total is None else loop.time() + self.timeouts.total
        key = self._key if isinstance(self._key, str) else await self._ask_for_key(self._key)
        response, first_byte_at = await self._post(request.stream, key, body, deadline)
        content, feed, time = response.content, decoder.feed, loop.time
        patience = Patience(loop, content, first_byte_at, deadline, self.timeouts.idle)
        read = content.readany
        received, cause = False, ""
        try:
            while True:
                patience.since = time()
                try:
                    chunk = await read()
                except (ClientError, OSError, TimeoutError) as error:
                    if not received:
                        raise self._lost(key, error, patience) from error
                    cause = self._cause(key, error, patience)
                    break
                patience.since = inf
                if not chunk:
                    break
                if not received:
                    received = True
                    patience.allow(self.timeouts.idle)
                try:
                    deltas = feed(chunk)
                except StreamError:
                    break  # beyond a limit: `end` says so in its verdict
                for delta in deltas:
                    yield delta
                if decoder.terminal:
                    patience.allow(self._grace(decoder))
        finally:
            patience.end()
            response.close()  # back in the pool already, if its end was read
        for delta in _end(decoder, cause):
            yield delta

    def _grace(self, decoder: Decoder) -> float:
        """How long to wait for more once the response has its terminal sign."""
        last = decoder.done or self.endpoint.wire in ("anthropic-messages", "openai-responses")
        return AFTER_LAST if last else AFTER_FINISH

    async def _post(self, stream: bool, key: str, body: bytes, deadline: float) -> tuple[ClientResponse, float]:
        """Send it and wait for the head of the answer; when the first byte of the body is due comes with it."""
        for tries_left in reversed(range(_TRIES)):
            try:
                response, due = await self._post_once(stream, key, body, deadline)
            except _DeadConnection as dead:
                if tries_left:
                    continue
                raise self._unreachable(key, dead.error) from dead.error
            except TimeoutError as error:
                raise self._timed_out(str(error), deadline) from None
            except (ClientError, OSError) as error:
                raise self._unreachable(key, error) from error
            break
        else:
            raise AssertionError("the last try ends the loop")
        if response.status >= 300:
            raise await self._read_failure(key, response)
        return response, due

    async def _post_once(self, stream: bool, key: str, body: bytes, deadline: float) -> tuple[ClientResponse, float]:
        session = await open_session()
        endpoint, timeouts = self.endpoint, self.timeouts
        headers = self._stream_headers if stream else self._whole_headers
        if key is not self._key:
            headers = CIMultiDict(headers)
            headers[endpoint.key_header] = endpoint.key_prefix + key
        now = asyncio.get_running_loop().time()
        connected_by = min(deadline, inf if timeouts.connect is None else now + timeouts.connect)
        limit = asyncio.timeout_at(None if connected_by == inf else connected_by)
        exchange = Exchange(limit, timeouts.first_byte, deadline)
        token = current.set(exchange)
        try:
            async with limit:
                response = await session.post(
                    endpoint.stream_url if stream else endpoint.whole_url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxy_url,
                    proxy_headers=self._proxy_headers,
                )
        except TimeoutError:
            raise TimeoutError("first_byte" if exchange.connected else "connect") from None
        except (ServerDisconnectedError, ClientOSError) as error:
            if exchange.reused and not isinstance(error, ClientConnectorError):
                raise _DeadConnection(error) from error
            raise
        finally:
            current.reset(token)
        return response, exchange.due

    def _write_headers(self, stream: bool) -> CIMultiDict[str]:
        endpoint = self.endpoint
        headers = CIMultiDict[str]({"Content-Type": "application/json", "User-Agent": "unbroken"})
        if stream:
            headers["Accept-Encoding"] = "identity"  # a compressing proxy holds events back until its block is full
        headers.update(endpoint.headers)
        if isinstance(self._key, str) and self._key:
            headers[endpoint.key_header] = endpoint.key_prefix + self._key
        if self._proxy_headers and endpoint.stream_url.scheme == "http":
            headers.update(self._proxy_headers)  # there is no tunnel, the proxy reads the request itself
        headers.update(self.settings.headers)
        return headers

    async def _ask_for_key(self, give: Callable[[], str | Awaitable[str]]) -> str:
        key = give()
        if isawaitable(key):
            key = await key
        return check_key(key or "", self.endpoint.provider)

    def _asked(self, key: str) -> Asked:
        e = self.endpoint
        return Asked(e.provider, e.model, shown(e.stream_url), e.key_variable, key)

    async def _read_failure(self, key: str, response: ClientResponse) -> ProviderError:
        body = b""
        try:
            async with asyncio.timeout(10):
                while len(body) < _MOST_OF_AN_ERROR and (chunk := await response.content.readany()):
                    body += chunk
        except (ClientError, OSError, TimeoutError):
            pass  # the status alone says enough
        finally:
            response.close()
        return read_failure(self._asked(key), response.status, response.headers, body, RealClock().now())

    def _timed_out(self, waiting_for: str, deadline: float) -> TimedOut:
        t, at = self.timeouts, shown(self.endpoint.stream_url)
        provider = f"provider `{self.endpoint.provider}`"
        if asyncio.get_running_loop().time() >= deadline:
            return TimedOut(f"{provider} was not done within total={t.total} s ({at})")
        if waiting_for == "connect":
            return TimedOut(f"no connection to {provider} within connect_timeout={t.connect} s ({at})")
        return TimedOut(
            f"{provider} sent nothing within first_byte={t.first_byte} s ({at}); a slow model needs a larger first_byte"
        )

    def _lost(self, key: str, error: Exception, patience: Patience) -> ProviderError:
        """There was a head, and then not one byte of the body."""
        if patience.expired:
            return self._timed_out("first_byte", patience.deadline)
        return self._unreachable(key, error)

    def _cause(self, key: str, error: Exception, patience: Patience) -> str:
        match patience.expired:
            case "idle":
                return f"the stream fell silent: nothing came for idle={self.timeouts.idle} s"
            case "total":
                return f"the time was up: total={self.timeouts.total} s"
            case _:
                return f"the connection was lost: {_in_words(self._asked(key), error)}"

    def _unreachable(self, key: str, error: Exception) -> ProviderError:
        asked = self._asked(key)
        match error:
            case ClientHttpProxyError():
                words = f"the proxy {self._shown_proxy()} answered {error.status}: check HTTPS_PROXY or set NO_PROXY"
                return (Unauthorized if error.status == 407 else Unreachable)(words, status=error.status)
            case ServerDisconnectedError():
                words = f"provider `{asked.provider}` closed the connection without an answer ({asked.address})"
                return Unreachable(words)
            case ClientProxyConnectionError():
                way_out = f"the proxy {self._shown_proxy()} does not answer: check HTTPS_PROXY or set NO_PROXY"
            case ClientConnectorCertificateError() | ClientSSLError():
                way_out = "set SSL_CERT_FILE to the certificates that this network uses, or check https:// in base_url"
            case _:
                way_out = "check base_url, and that the server runs"
        words = _in_words(asked, error)
        return Unreachable(f"provider `{asked.provider}` cannot be reached at {asked.address}: {words}; {way_out}")

    def _shown_proxy(self) -> str:
        return shown(self._proxy_url) if self._proxy_url else ""


class Patience:
    """Ends a read that has waited too long: one timer for a whole stream, which looks when it is due whether anybody
    has been waiting that long. A timer for each read would cost more than the read."""

    __slots__ = ("_at", "_content", "_limit", "_loop", "_timer", "deadline", "expired", "since")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        content: StreamReader,
        due: float,
        deadline: float,
        next_limit: float | None,
    ) -> None:
        self._loop = loop
        self._content = content
        self.since = loop.time()
        """When the read that is waiting began; infinite while none is."""
        self.deadline = deadline
        self.expired = ""
        self._limit = due - self.since
        self._timer: asyncio.TimerHandle | None = None
        # Looked at as early as the limit that comes after this one wants it: then that one needs no timer of its own.
        self._look_at(min(due, deadline, inf if next_limit is None else self.since + next_limit))

    def allow(self, seconds: float | None) -> None:
        """From now on a read may wait this long."""
        limit = inf if seconds is None else seconds
        if limit != self._limit:
            self._limit = limit
            at = min(self._loop.time() + limit, self.deadline)
            if at < self._at:
                self._look_at(at)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = when
        self._timer = None if when == inf else self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self.since == inf:
            self._look_at(now + min(max(self._limit, 0.01), 1.0))
            return
        due = min(self.since + self._limit, self.deadline)
        if now < due:
            self._look_at(due)
            return
        self.expired = "total" if now >= self.deadline else "idle"
        self._content.set_exception(TimeoutError())


class _DeadConnection(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def check_key(key: str, provider: str) -> str:
    """The key without the line end that files and shells leave; never quoted in an error."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise Unauthorized(f"the key of provider `{provider}` holds characters that no key has: copy it once more")
    return key


def _end(decoder: Decoder, cause: str) -> list[Delta]:
    try:
        return decoder.end(cause)
    except StreamError:  # the last event was beyond a limit; asked again, the decoder says so in its verdict
        return decoder.end(cause)


def _in_words(asked: Asked, error: Exception) -> str:
    words = asked.masked(" ".join(str(error).split()))
    return words[:200] or type(error).__name__
