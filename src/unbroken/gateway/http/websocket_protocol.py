"""WebSocket connections with limits: uvicorn's protocol, except that a stop lets a running answer end, and that a
client that does not read is disconnected. Needs the package `websockets`."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from unbroken.clock import Deadline, deadline
from unbroken.gateway.http.protocol import BoundedConfig
from unbroken.gateway.http.websocket import ConnectionState


class BoundedWebSocket(WebSocketsSansIOProtocol):
    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.close_timeout = 2.0
        self._write_timeout = config.settings.write_timeout
        self._read_due: Deadline | None = None
        self._state = ConnectionState()

    async def run_asgi(self) -> None:
        self.scope["extensions"][ConnectionState.NAME] = self._state  # pyright: ignore - any may be there
        await super().run_asgi()

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
        super().connection_lost(exc)

    def _forget_deadline(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None
