"""Records the traffic of the gateway: each request of the client and its response, as bytes and headers. Wraps the
application and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.asgi import Receive, Scope, Send
from unbroken_gateway.http.uvicorn_server import App


@dataclass(slots=True)
class Exchange:
    method: str
    path: str
    asked: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Headers of the response, with names in lower case."""
    answered: bytearray = field(default_factory=bytearray)


class Tap:
    def __init__(self, app: App, exchanges: list[Exchange]) -> None:
        self._app = app
        self._exchanges = exchanges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope["method"], scope["path"])
        self._exchanges.append(exchange)

        async def heard() -> Mapping[str, Any]:
            message = await receive()
            exchange.asked += message.get("body", b"")
            return message

        async def said(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            exchange.answered += message.get("body", b"")
            await send(message)

        # The server's own extension writes complete answers past `send`; without it the gateway uses `send`.
        await self._app({**scope, "extensions": {}}, heard, said)
