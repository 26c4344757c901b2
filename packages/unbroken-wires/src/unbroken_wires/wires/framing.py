"""How the stream of a wire is cut into events: each wire has one `Framing`, which writes events and finds their ends.

Decoding does not need it: the bytes themselves show how they are framed (`sse.Framer`), and servers do not always frame
as their wire documents. It is for code that writes a stream, or passes one on event by event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from unbroken_wires.errors import StreamError
from unbroken_wires.wires.event_stream import CONTENT_TYPE, event_start, frame_length, write_frame
from unbroken_wires.wires.sse import Framer


class Framing:
    content_type: str

    def write(self, data: bytes, name: str = "") -> bytes:
        """One event with this JSON text. `name` is its type, where events are named."""
        raise NotImplementedError

    def complete(self, data: bytes | bytearray, fresh: int) -> int:
        """Where the last complete event ends, in bytes that begin with an event; 0 if none is complete. Only the last
        `fresh` bytes are new since the last call."""
        raise NotImplementedError

    def events(self, data: bytes) -> Sequence[bytes]:
        """Complete events, one by one."""
        raise NotImplementedError

    def pieces(self, data: bytes, start: bytes) -> Sequence[bytes]:
        """The bytes of one read, cut before each event that contains `start`, as far as these bytes alone show it."""
        return (data,)

    def texts(self, data: bytes) -> Sequence[bytes]:
        """The JSON texts of complete events. Never raises: what cannot be read is left out."""
        framer = Framer()
        try:
            return framer.feed(data) + framer.end()
        except StreamError:
            return ()

    def rest(self, data: bytes) -> bytes:
        """At the end of a stream, the bytes after the last complete event: with its end added, if only that is missing,
        and otherwise nothing."""
        return b""

    def is_body(self, data: bytes) -> bool:
        """Does something begin here that is not a stream: a JSON body, a page?"""
        return data.lstrip()[:1] in (b"{", b"[", b"<")

    def is_one_body(self, data: bytes) -> bool:
        """Is all of it one body, and no stream?"""
        return data[:1] == b"{"


class ServerSentEvents(Framing):
    content_type = "text/event-stream"

    _ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
    _EVENTS = re.compile(
        rb"(?:(?:data: ?|:[^\r\n]*)?(?:\r\n\r\n|\n\n|\r\r))*+(?:(?!\Z).*?(?:\r\n\r\n|\n\n|\r\r))?", re.DOTALL
    )
    """One event, with the keep-alive events before it."""
    _END = re.compile(rb"\r\n\r\n|\n\n|\r\r")

    def write(self, data: bytes, name: str = "") -> bytes:
        head = b"event: " + name.encode() + b"\n" if name else b""
        return head + b"data: " + data + b"\n\n"

    def complete(self, data: bytes | bytearray, fresh: int) -> int:
        if data.endswith(b"\n\n"):
            return len(data)
        # An end in earlier bytes was found then, but its own bytes may span two reads.
        since = max(0, len(data) - fresh - 3)
        return self._last_end(data, since, len(data))

    def _last_end(self, data: bytes | bytearray, since: int, until: int) -> int:
        """Where the last event ends that ends between these; 0 if none does."""
        return max((at + len(mark) for mark in self._ENDS if (at := data.rfind(mark, since, until)) >= 0), default=0)

    def events(self, data: bytes) -> Sequence[bytes]:
        return [event for event in self._EVENTS.findall(data) if event]

    def pieces(self, data: bytes, start: bytes) -> Sequence[bytes]:
        pieces: list[bytes] = []
        begin, at = 0, data.find(start)
        while at >= 0:
            event = self._last_end(data, begin, at)
            if event > begin:
                pieces.append(data[begin:event])
                begin = event
            end = self._END.search(data, at)
            at = data.find(start, end.end()) if end is not None else -1
        return [*pieces, data[begin:]]

    def texts(self, data: bytes) -> Sequence[bytes]:
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        texts: list[bytes] = []
        for event in data.split(b"\n\n"):
            at = event.find(b"data:")
            if at >= 0 and event.find(b"\n", at) < 0 and (not at or event[at - 1] == 10):
                if len(event) - at > 13 or event[at + 5 :].strip():  # else it only keeps the connection alive
                    texts.append(event[at + 5 :])
            elif at < 0 and event[:1] == b":" and b"\n" not in event:
                continue  # so does a comment
            elif event:  # no blank line between events, one event on several lines, comments: as a decoder takes them
                texts += super().texts(event + b"\n\n")
        return texts

    def rest(self, data: bytes) -> bytes:
        """Some servers leave out the blank line after the last event."""
        if not data.strip():
            return b""
        line = data.rstrip().splitlines()[-1]
        said = line.removeprefix(b"data:").strip()
        return data.rstrip() + b"\n\n" if line.startswith(b"data:") and _is_complete(said) else b""


class JsonLines(Framing):
    """One JSON object on each line. A body that is not streamed is one such line, so it can stand in for a stream."""

    content_type = "application/x-ndjson"

    def write(self, data: bytes, name: str = "") -> bytes:
        return data + b"\n"

    def complete(self, data: bytes | bytearray, fresh: int) -> int:
        """A line that is no object, as of a page, is no event: nothing from there on is complete."""
        end = 0
        for line in bytes(data[: data.rfind(b"\n") + 1]).splitlines(keepends=True):
            if line.strip() and line.lstrip()[:1] != b"{":
                break
            end += len(line)
        return end

    def events(self, data: bytes) -> Sequence[bytes]:
        return data.splitlines(keepends=True)

    def rest(self, data: bytes) -> bytes:
        return data.rstrip() + b"\n" if data.strip() and _is_complete(data) else b""

    def is_body(self, data: bytes) -> bool:
        return data.lstrip()[:1] in (b"[", b"<")

    def is_one_body(self, data: bytes) -> bool:
        return data[:1] == b"{" and len(self.texts(data)) == 1


class EventStream(Framing):
    """Amazon's binary frames. A frame that is cut stays cut."""

    content_type = CONTENT_TYPE

    def write(self, data: bytes, name: str = "") -> bytes:
        """The type of the event is the only field of its JSON text."""
        return write_frame(data)

    def pieces(self, data: bytes, start: bytes) -> Sequence[bytes]:
        """Only before events of the type `start`."""
        pieces: list[bytes] = []
        begin, at = 0, event_start(data, start, 0)
        while at >= 0:
            if at > begin:
                pieces.append(data[begin:at])
            begin, at = at, event_start(data, start, at + 1)
        return [*pieces, data[begin:]]

    def complete(self, data: bytes | bytearray, fresh: int) -> int:
        at = 0
        while (length := frame_length(data, at)) and at + length <= len(data):
            at += length
        return at

    def events(self, data: bytes) -> Sequence[bytes]:
        events: list[bytes] = []
        at = 0
        while at < len(data) and (length := frame_length(data, at)):
            events.append(data[at : at + length])
            at += length
        return events


def _is_complete(said: bytes) -> bool:
    try:
        return said == b"[DONE]" or orjson.loads(said) is not None
    except orjson.JSONDecodeError:
        return False


SSE = ServerSentEvents()
JSON_LINES = JsonLines()
EVENT_STREAM = EventStream()
