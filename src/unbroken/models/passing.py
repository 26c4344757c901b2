"""The bytes of a body for somebody who passes them on: whole events only, so that nothing that follows them is glued to
half of one. No event is looked into."""

from __future__ import annotations

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Passing:
    """`streamed`: an event ends with a blank line. A whole body is one piece, given at its end."""

    __slots__ = ("_came", "_streamed")

    def __init__(self, streamed: bool) -> None:
        self._streamed = streamed
        self._came = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that there are by now."""
        if not self._streamed:
            self._came += chunk
            return b""
        if chunk.endswith(b"\n\n") and not self._came:
            return chunk
        self._came += chunk
        # An end that lies in what came before was found then; its own bytes may have come in two reads.
        since = max(0, len(self._came) - len(chunk) - 3)
        end = max((at + len(mark) for mark in _ENDS if (at := self._came.rfind(mark, since)) >= 0), default=0)
        whole = bytes(self._came[:end])
        del self._came[:end]
        return whole

    def rest(self) -> bytes:
        """What came after the last whole event; of a whole body: all of it."""
        return bytes(self._came)
