"""An answer as HTTP: a stream as it arrives, or one body with its length; errors in the client's wire."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from unbroken.gateway.http.asgi import EVENTS, JSON, Response
from unbroken.gateway.http.error_responses import Failure
from unbroken.gateway.http.large_bodies import send_on_main_loop
from unbroken.gateway.passthrough.references import Claiming
from unbroken.wires import find_wire
from unbroken.wires.jsontext import dumps


class ClientResponse:
    """An answer as HTTP: a stream as it comes, or one body with its length."""

    def __init__(self, response: Response, as_array: bool = False) -> None:
        self._response = response
        self._stream = False
        self._frames = _ArrayFrames() if as_array else None
        self._headers: Mapping[str, str] = {}
        self._body = b""
        self.claiming: Claiming | None = None
        """Where the provider's ids in the answer are to be this key's own."""

    @property
    def status(self) -> int:
        return self._response.status

    def send_from_elsewhere(self, home: asyncio.AbstractEventLoop) -> None:
        self._response.reroute(partial(send_on_main_loop, home))

    async def begin(self, stream: bool, headers: Mapping[str, str]) -> None:
        self._stream = stream
        self._headers = headers
        if stream:
            await self._response.begin(200, JSON if self._frames is not None else EVENTS, headers, None)

    async def send(self, data: bytes) -> None:
        if not self._stream:
            self._body += data
            return
        if self.claiming is not None:
            await self.claiming.feed(data)
        if self._frames is not None:
            data = self._frames.feed(data)
        await self._response.send(data)

    async def end(self) -> None:
        if self._stream:
            await self._response.send(self._frames.end() if self._frames is not None else b"", more=False)
        else:
            if self.claiming is not None:
                await self.claiming.read(self._body)
            await self._response.complete(200, self._body, self._headers)

    async def fail(self, wire: str, failure: Failure) -> None:
        """Before anything was sent: an HTTP error. After that: an error in the stream, as its wire has it."""
        if not self._response.status:
            body = dumps(find_wire(wire).error_body(failure.status, failure.words, failure.kind))
            await self._response.complete(failure.status, body, failure.headers)
        elif self._stream:
            await self.send(find_wire(wire).error_event(failure.status, failure.words, failure.kind))
            await self.end()


class _ArrayFrames:
    """Feed it whole events."""

    def __init__(self) -> None:
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        framed = b""
        for line in data.splitlines():
            if line.startswith(b"data:"):
                framed += (b",\n" if self._begun else b"[") + line[5:].strip()
                self._begun = True
        return framed

    def end(self) -> bytes:
        return b"]" if self._begun else b"[]"
