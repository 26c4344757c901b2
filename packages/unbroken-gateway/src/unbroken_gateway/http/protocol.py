"""HTTP with limits. Uvicorn's httptools protocol accepts request heads of any size, at any speed; this subclass does
not.

It limits the bytes and seconds of a head, the bytes after it that are not a body (trailers), the requests that
wait behind another, the rest of a body whose answer is complete, and the seconds that a client takes to read. The wire
is not known yet at this point, so errors have the shape of OpenAI's, which most clients print.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from unbroken.asgi import ClientConnection
from unbroken.clock import Deadline, deadline
from unbroken_gateway.http.large_requests import MemoryBudget
from unbroken_gateway.settings import GatewaySettings

MOST_WAITING = 8
"""Requests that a client may pipeline. No known client does."""
LINGER = 2.0
"""Seconds that a refused client has to read the error before the connection is closed."""


class BoundedConfig(Config):
    """uvicorn's configuration with our limits, so that each worker gets them too."""

    settings: GatewaySettings
    is_stopping = False
    """No connection is accepted any more."""

    @property
    def current(self) -> GatewaySettings:
        """The settings for new connections: the application may have read its configuration again."""
        return getattr(self.loaded_app, "settings", self.settings)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] - any application

    @cached_property
    def unfinished(self) -> MemoryBudget:
        """For the unfinished messages of all WebSockets."""
        return MemoryBudget(self.settings.large_bodies)


def websocket_options(settings: GatewaySettings) -> dict[str, Any]:
    """uvicorn's options for WebSockets. Without the package `websockets` there are none, and upgrades are ignored."""
    if find_spec("websockets") is None:
        return {"ws": "none"}
    return {
        "ws": "unbroken_gateway.http.websocket_protocol:BoundedWebSocket",
        "ws_max_size": settings.max_body,
        "ws_per_message_deflate": False,
    }


class _Refused(Exception):
    """Raised inside the parser to stop it."""


class BoundedProtocol(HttpToolsProtocol):
    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config
        self._settings = config.current
        self._loose = 0
        """Bytes without progress: of an incomplete head, of trailers, of noise."""
        self._useful = False
        """The bytes that are being read made progress."""
        self._head_begun = False
        self._in_body = False
        self._coming = 0
        """Number of bytes that are being read."""
        self._refused = False
        self._upgraded = False
        """The connection is a WebSocket now."""
        self._head_due: Deadline | None = None
        self._read_due: Deadline | None = None
        self._rest = 0
        self._rest_due: Deadline | None = None
        self._earlier: list[RequestResponseCycle] = []
        """Earlier requests on this connection: uvicorn reports a disconnect only to the last one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn has it
        super().connection_made(transport)
        if self._limits.is_stopping:
            # It was accepted as the server stopped, too late to be among those that end after their request. With a
            # client that sends one request after the other, the server would not end.
            self._close_connection()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for due in (self._head_due, self._read_due, self._rest_due):
            if due is not None:
                due.cancel()
        for cycle in self._earlier:
            _report_disconnect(cycle)
        self._earlier.clear()
        super().connection_lost(exc)
        if self.cycle and not self.cycle.response_complete:  # None until the first request
            _report_disconnect(self.cycle)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self._coming = len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if not isinstance(error.__context__, _Refused):
                self.send_400_response("this is not a request of HTTP/1.1")
            return
        if self._upgraded:
            return
        if self._useful:
            self._useful = False
            self._loose = 0
            if self._head_begun and self._head_due is None:
                self._expect_head()
            return
        self._loose += len(data)
        if self._loose > self._settings.max_headers:
            self._refuse_head()
        elif not self._in_body and self._head_due is None:
            self._expect_head()

    def _feed(self, data: bytes) -> None:
        offset = -1
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            offset = upgrade.args[0]
        if offset >= 0 and self._may_open_websocket():
            self._open_websocket(data[offset:])
        elif offset >= 0:
            # We ignore other upgrades, which RFC 9110 (7.8) allows. But the parser has stopped at the head, and what
            # follows would be lost: the body of each first request of a Java client (uvicorn#2722). So the head is
            # parsed again without the header.
            version = self.parser.get_http_version().encode()
            head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
            for name, value in self.headers:
                if name != b"upgrade":
                    head += (name, b": ", value, b"\r\n")
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(b"".join(head) + b"\r\n")
            self._coming = len(data) - offset
            if self._coming:
                self._feed(data[offset:])

    def _may_open_websocket(self) -> bool:
        waiting = bool(self.pipeline) or (self.cycle and not self.cycle.response_complete)
        return self.parser.get_method() == b"GET" and self._should_upgrade() and not waiting

    def _open_websocket(self, rest: bytes) -> None:
        if self._size() > self._settings.max_headers:
            self._refuse_head()
            return
        for due in (self._head_due, self._read_due, self._rest_due):
            if due is not None:
                due.cancel()
        self._unset_keepalive_if_required()
        self._upgraded = True
        self.scope["method"] = "GET"
        self.handle_websocket_upgrade()
        if rest and not self.transport.is_closing():
            self.transport.get_protocol().data_received(rest)  # pyright: ignore - the WebSocket's

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ClientConnection.NAME: _Connection()}  # pyright: ignore[reportGeneralTypeIssues] - any may be there
        self._head_begun = True

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("CONNECT is for proxies, and this is none")
                raise _Refused
            return
        if self._loose + self._coming > self._settings.max_headers and self._size() > self._settings.max_headers:
            self._refuse_head()
            raise _Refused
        self._head_begun = False
        self._in_body = self._useful = True
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
        before = self.cycle
        super().on_headers_complete()
        self.scope["extensions"][ClientConnection.NAME].cycle = self.cycle  # pyright: ignore
        if self.pipeline:
            self._earlier = [cycle for cycle in self._earlier if not cycle.response_complete]
            self._earlier.append(before)
            if len(self.pipeline) > MOST_WAITING:
                self.send_400_response(f"more than {MOST_WAITING} others wait for the answer to an earlier one")
                raise _Refused

    def on_body(self, body: bytes) -> None:
        self._useful = True
        super().on_body(body)
        if self._rest_due is not None:
            self._rest += len(body)
            if self._rest > self._settings.max_body:
                self._close_connection()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._useful = True
        self._in_body = False
        if self._rest_due is not None:
            self._rest_due.cancel()
            self._rest_due = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_end()
        elif self._in_body and self.cycle.response_complete:
            # A client that is answered early may read the answer only after it has sent everything. So the rest of the
            # body is read and discarded, up to a limit.
            self._unset_keepalive_if_required()
            self._rest = 0
            self._rest_due = deadline(self.loop, self._settings.body_timeout, self._close_connection)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_end()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_due is not None and not self.transport.is_closing():
            self._read_due.cancel()
            self._read_due = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_end()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"reading the request failed: {msg}")

    def _size(self) -> int:
        """Bytes of the head as it was sent, except for spaces around values."""
        lines = sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        return len(b"POST  HTTP/1.1\r\n") + len(self.url) + lines

    def _expect_head(self) -> None:
        self._head_due = deadline(self.loop, self._settings.head_timeout, self._head_too_late)

    def _expect_end(self) -> None:
        """Limits how long a client that stopped reading keeps its connection and what was written for it."""
        if self._read_due is None:
            self._read_due = deadline(self.loop, self._settings.write_timeout, self.transport.abort)

    def _head_too_late(self) -> None:
        self._head_due = None
        if self.cycle and not self.cycle.response_complete:
            self._expect_head()  # a pipelined one
        elif not self._loose and not self._head_begun:
            self._close_connection()  # no request was begun
        else:
            within = f"within {self._settings.head_timeout:g} s"
            self._refuse(408, f"reading the request failed: its head did not arrive {within}; send it in one go")

    def _refuse_head(self) -> None:
        most = f"more than {self._settings.max_headers} bytes"
        self._refuse(431, f"reading the request failed: its headers are {most}; send fewer, or raise `max_headers`")

    def _refuse(self, status: int, message: str) -> None:
        """Sends the error and closes the connection a little later: closing at once could lose the answer."""
        if self.transport.is_closing() or not self._can_answer():
            self._close_connection()
            return
        self._refused = True
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._rest_due = deadline(self.loop, LINGER, self.transport.abort)

    def _can_answer(self) -> bool:
        """Whether no other answer was or will be sent. A request in flight gets a disconnect."""
        cycle = self.cycle
        if not cycle or cycle.response_complete:  # None until the first request
            return True
        if cycle.response_started or self.pipeline:
            return False
        _report_disconnect(cycle)
        return True

    def _close_connection(self) -> None:
        self._refused = True
        self.transport.close()
        self._expect_end()


class _Connection(ClientConnection):
    __slots__ = ("cycle",)

    def __init__(self) -> None:
        super().__init__()
        self.cycle: RequestResponseCycle | None = None
        """Set when the head of the request is complete."""

    def body(self) -> bytes | None:
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        cycle.flow.resume_reading()
        return body

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """As `RequestResponseCycle.send` does it for a head and a body, in one system call."""
        cycle = self.cycle
        if (
            cycle is None
            or cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or cycle.flow.write_paused
            or cycle.scope["method"] == "HEAD"
        ):
            return False
        written = [STATUS_LINE[status]]
        for pairs in (cycle.default_headers, headers):
            for name, value in pairs:
                written += (name, b": ", value, b"\r\n")
        written += (b"\r\n", body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(written))
        cycle.message_event.set()
        cycle.on_response()
        return True


def _report_disconnect(cycle: RequestResponseCycle) -> None:
    """Reports the disconnect to the code that answers this request or reads its body."""
    cycle.disconnected = True
    cycle.message_event.set()
    cycle.scope["extensions"][ClientConnection.NAME].report()  # pyright: ignore
