"""A stream of Gemini without `alt=sse`: the events of server-sent events as one JSON array, written as it grows."""

from __future__ import annotations


class ArrayFrames:
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
