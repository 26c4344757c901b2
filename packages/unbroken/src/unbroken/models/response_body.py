"""Reads the body of a provider's answer: in slices that are short to decode, until its end or until a time-out.

A stream is read with `read`, slice after slice; what was read decides how long to wait for more. A non-streaming body
is read with `read_all`.
"""

from __future__ import annotations

import asyncio
from math import inf

from aiohttp import ClientError, ClientResponse

from unbroken.models.addresses import Timeouts
from unbroken.models.connections import ExchangeTimeout
from unbroken.models.model import RESPONSE_LIMIT
from unbroken.models.raw_log import Logged
from unbroken_wires.wires.sse import MAX_BODY, is_only_alive

AFTER_FINISH = 3.0
"""Seconds of silence after a finish reason: usage may still follow, and some servers never close."""
AFTER_LAST = 0.25
"""The same after the wire's very last event."""
_SLICE = 32 << 10
"""Bytes of a stream that are decoded at once, before other tasks may run. A longer non-streaming body is decoded on a
thread, all of it at its end."""
_SHORT = 4 << 10
"""This many bytes are few, however many events they contain."""
_MOST_LINES = 1200
"""Approximate lines of a stream that are decoded at once: an event has two or three, and takes 40 us."""


class ResponseBody:
    """The body of one answer. `lost` is the error that ended it too early, if there was one."""

    __slots__ = (
        "_alive",
        "_content",
        "_idle",
        "_limit",
        "_progress_at",
        "_read",
        "_response",
        "_rest",
        "_size",
        "_streams",
        "_terminal_at",
        "_time",
        "_timeout",
        "is_long",
        "lost",
        "received",
    )

    def __init__(
        self,
        response: ClientResponse,
        timeout: ExchangeTimeout,
        timeouts: Timeouts,
        log: Logged | None = None,
        *,
        stream: bool,
    ) -> None:
        content = response.content
        timeout.reads(content)
        self._response, self._content, self._timeout = response, content, timeout
        self._read = content.readany if log is None else log.reading(content.readany)
        self._idle = timeouts.idle
        self._alive = inf if timeouts.idle is None else timeouts.idle * timeouts.alive
        self._limit = RESPONSE_LIMIT.get()
        self._streams = stream
        self._time = asyncio.get_running_loop().time
        self._progress_at = self._time()
        self._terminal_at = 0.0
        self._size, self._rest = 0, b""
        self.is_long = False
        """Whether decoding it takes so long that it belongs on a thread. A stream is decoded slice by slice."""
        self.received = False
        """Whether a byte has arrived."""
        self.lost: Exception | None = None

    async def read(self) -> bytes:
        """The next slice. Empty at the end, and if the connection is lost or silent for too long."""
        if self._rest:
            chunk, self._rest = self._rest, b""
            await asyncio.sleep(0)
        else:
            try:
                chunk = await self._read()
            except (ClientError, OSError) as error:
                self.lost = error
                return b""
        self._timeout.since = inf  # nothing waits while the slice is decoded
        if not chunk:
            return chunk
        if not self._streams:
            self._size += len(chunk)
            self.is_long = self._size > _SLICE
        elif len(chunk) > _SHORT and len(chunk) > (most := _slice(chunk)):
            chunk, self._rest = chunk[:most], chunk[most:]
        if self._limit is not None:
            self._limit.take(len(chunk))
        if not self.received:
            self.received = True
            self._timeout.allow(self._idle)
        return chunk

    def waits_for_more(self, chunk: bytes, has_deltas: bool) -> bool:
        """Starts the wait for the rest of the answer. False if nothing but keep-alive bytes came for too long."""
        self._timeout.since = now = self._time()
        if has_deltas or not is_only_alive(chunk):
            self._progress_at = now  # a long event or a non-streaming body yields nothing before its end
        elif now - self._progress_at > self._alive:
            self.lost, self._timeout.expired = TimeoutError(), "idle"
            return False
        elif self._limit is not None and self._limit.on_alive is not None:
            self._limit.on_alive()
        return True

    def waits_for_end(self, has_deltas: bool, is_last: bool) -> None:
        """Starts the short wait after a terminal event. `is_last`: nothing follows it on this wire."""
        if self._content.is_eof():
            return
        # Only content extends the wait: some servers keep a connection alive for ever.
        if has_deltas or not self._terminal_at:
            self._terminal_at = self._time()
        self._timeout.since = self._terminal_at
        grace = AFTER_LAST if is_last else AFTER_FINISH
        self._timeout.allow(grace if self._idle is None else min(grace, self._idle))

    def close(self) -> None:
        """Ends the time-outs, and closes the connection unless all of the body was read."""
        self._timeout.end()
        if not self._response.closed:  # otherwise its end was read, and the connection is back in the pool
            self._response.close()

    async def read_all(self) -> bytes:
        """All of a non-streaming body, and closes it. If the connection is lost or never closed, the bytes so far: the
        caller has to check whether they are complete."""
        parts: list[bytes] = []
        size = 0
        try:
            while size <= MAX_BODY and (part := await self._read()):
                parts.append(part)
                size += len(part)
                if self._limit is not None:
                    self._limit.take(len(part))
                if self._content.at_eof():
                    break
                self._timeout.since = self._time()
                # Some servers send everything and never close: after a closing brace the wait is short.
                closed = part.rstrip().endswith(b"}")
                self._timeout.allow(min(AFTER_FINISH, self._idle or inf) if closed else self._idle)
        except (ClientError, OSError) as error:
            self.lost = error
        finally:
            self._timeout.end()
            self._response.close()
        self.received = bool(parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _slice(chunk: bytes) -> int:
    """How many of its bytes are decoded at once."""
    lines = chunk.count(b"\n", 0, _SLICE) or chunk.count(b"\r", 0, _SLICE)
    return _SLICE if lines <= _MOST_LINES else max(_SHORT, _SLICE * _MOST_LINES // lines)
