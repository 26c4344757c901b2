"""WebSocket connections with limits: uvicorn's protocol, except that a stop lets a running answer end, and that a
client that does not read, or does not complete a message, is disconnected. Needs the package `websockets`."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from unbroken.asgi import Refused
from unbroken.clock import Deadline, deadline
from unbroken_gateway.http.protocol import BoundedConfig
from unbroken_gateway.http.websocket import ConnectionState

MOST_FRAGMENTS = 10_000
"""Of a message. An empty one takes memory too, and counts for no limit of size."""

TRY_AGAIN_LATER = 1013


class BoundedWebSocket(WebSocketsSansIOProtocol):
    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        config.ws_max_size = config.current.max_body
        super().__init__(config, server_state, app_state, _loop)
        self.close_timeout = 2.0
        self._write_timeout = config.current.write_timeout
        self._read_due: Deadline | None = None
        self._body_timeout = config.current.body_timeout
        self._message_due: Deadline | None = None
        self._unfinished = config.unfinished
        self._held = 0
        """Bytes of an unfinished message."""
        self._state = ConnectionState()

    async def run_asgi(self) -> None:
        self.scope["extensions"][ConnectionState.NAME] = self._state  # pyright: ignore - any may be there
        await super().run_asgi()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        incomplete = bool(self.frames or self.conn.reader.buffer)
        if len(self.frames) > MOST_FRAGMENTS:
            self.transport.abort()
        elif not incomplete:
            self._forget_message()
        elif self.close_sent:
            return
        else:
            self._hold(len(data))
            if self._message_due is None:
                self._message_due = deadline(self.loop, self._body_timeout, self.transport.abort)

    def _hold(self, size: int) -> None:
        try:
            self._unfinished.change(size)
            self._held += size
        except Refused:
            self.conn.send_close(TRY_AGAIN_LATER, "the gateway receives as many messages as it has memory for")
            self.handle_parser_exception()

    def handle_text(self, event: Frame) -> None:
        self.handle_bytes(event)  # a text that is not UTF-8 is an error of its JSON, as over HTTP

    def send_receive_event_to_app(self) -> None:
        self._forget_message()  # the next one has its own time
        super().send_receive_event_to_app()

    def shutdown(self) -> None:
        if self._state.busy and not self.close_sent:
            self._state.stopping = True
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_due is None:
            self._read_due = deadline(self.loop, self._write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._forget_message()
        super().connection_lost(exc)

    def _forget_deadline(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None

    def _forget_message(self) -> None:
        if self._held:
            self._unfinished.change(-self._held)
            self._held = 0
        if self._message_due is not None:
            self._message_due.cancel()
            self._message_due = None
