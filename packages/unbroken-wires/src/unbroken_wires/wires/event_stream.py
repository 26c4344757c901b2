"""The binary event streams of Amazon (`application/vnd.amazon.eventstream`): frames in and out.

A frame is a prelude (its length, the length of its headers, the CRC of both), headers, a payload, and a CRC of all of
it. Here a frame is read as one JSON text, `{"type of the event": payload}`, which is how Amazon's own clients show it;
the `chunk` of an invoked model is the JSON text in it.
"""

from __future__ import annotations

import re
from base64 import b64decode
from functools import lru_cache
from struct import Struct
from zlib import crc32

import orjson

from unbroken_wires.errors import TooLarge
from unbroken_wires.wires.jsontext import dumps

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_PRELUDE = Struct(">III")
_CRC = Struct(">I")
_SMALLEST = _PRELUDE.size + _CRC.size

_UNREADABLE = b"{\x00"
"""In place of a frame that is damaged: looks like an event, and like one that no parser takes."""


def begins_stream(head: bytes) -> bool:
    """Is this the prelude of a frame? No text begins with the high byte of a length."""
    if len(head) < _PRELUDE.size:
        return False
    _, _, crc = _PRELUDE.unpack_from(head)
    return crc32(head[:8]) == crc


def may_begin_stream(head: bytes) -> bool:
    """Could it become one? Frames have less than 32 MB."""
    return head[:1] in (b"\x00", b"\x01")


def frame_length(data: bytes | bytearray, at: int) -> int:
    """The length of the frame that begins there, if its prelude is complete and intact; otherwise 0."""
    if len(data) - at < _PRELUDE.size or not begins_stream(bytes(data[at : at + _PRELUDE.size])):
        return 0
    total, headers, _ = _PRELUDE.unpack_from(data, at)
    return total if total >= headers + _SMALLEST else 0


def event_start(data: bytes, type: bytes, at: int) -> int:
    """The place, from `at` on, where a frame with an event of this type begins; -1 if there is none. The type is the
    first header, as Amazon writes frames."""
    header = b"\x0b:event-type\x07" + len(type).to_bytes(2, "big") + type
    found = data.find(header, at + _PRELUDE.size)
    while found >= 0 and not frame_length(data, found - _PRELUDE.size):
        found = data.find(header, found + 1)
    return found - _PRELUDE.size if found >= 0 else -1


class EventStreamSplitter:
    """Cuts a stream into frames and gives the JSON text of each. Where a CRC is wrong it gives a text that no parser
    takes; if it is that of a prelude, nothing after it can be found, and the rest is dropped."""

    def __init__(self, max_event: int) -> None:
        self.max_event = max_event
        self._begun = bytearray()
        self._lost = False

    @property
    def held(self) -> int:
        """The bytes of a frame that has not ended."""
        return len(self._begun)

    @property
    def inside(self) -> bool:
        """The last frame has begun and not ended."""
        return bool(self._begun)

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._lost:
            return []
        self._begun += chunk
        texts: list[bytes] = []
        at, size = 0, len(self._begun)
        while size - at >= _PRELUDE.size:
            total = frame_length(self._begun, at)
            if not total:
                self._lost = True
                at = size
                texts.append(_UNREADABLE)
                break
            if total > self.max_event:
                raise TooLarge(
                    f"reading the response stopped: one event is larger than {self.max_event:,} bytes; "
                    "if that is meant, raise max_event (`max_answer` of `connect`)"
                )
            if size - at < total:
                break
            if (text := _text(bytes(self._begun[at : at + total]))) is not None:
                texts.append(text)
            at += total
        del self._begun[:at]
        return texts

    def end(self) -> list[bytes]:
        return [b"{"] if self.inside else []  # an object that was cut


def _text(frame: bytes) -> bytes | None:
    """None for a frame that says nothing."""
    if crc32(frame[:-4]) != _CRC.unpack_from(frame, len(frame) - 4)[0]:
        return _UNREADABLE
    start = _PRELUDE.size
    end = start + _PRELUDE.unpack_from(frame)[1]
    payload = frame[end:-4]
    try:
        kind, name, message = _read_headers(frame[start:end])
        if kind == "error":
            return dumps({"error": {"code": name, "message": message}})
        if name == "chunk":
            return b64decode(orjson.loads(payload)["bytes"], validate=True)
    except (LookupError, TypeError, ValueError):
        return _UNREADABLE
    if name == "initial-response":
        return None
    return b'{"' + name.encode() + b'":' + (payload or b"{}") + b"}"


_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The length of a header's value by its type; texts (7) and bytes (6) have theirs before them."""


@lru_cache(256)
def _read_headers(data: bytes) -> tuple[str, str, str]:
    """The kind of the message (event, exception, error), the name of its type, and the words of an error. Events of one
    type have the same headers, so few are read at all."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]].decode()
        at += 1 + data[at]
        kind = data[at]
        at += 1
        if kind in _FIXED:
            at += _FIXED[kind]
            continue
        size = int.from_bytes(data[at : at + 2], "big")
        at += 2
        if kind == 7:
            found[name] = data[at : at + size].decode()
        elif kind != 6:
            raise ValueError(f"there is no type of headers {kind}")
        at += size
    if at != len(data):
        raise ValueError("the headers are cut")
    kind = found.get(":message-type", "event")
    if kind == "error":
        return kind, found.get(":error-code", ""), found.get(":error-message", "")
    name = found[":exception-type" if kind == "exception" else ":event-type"]
    if not _NAME.fullmatch(name):
        raise ValueError("the name of an event is not a word")
    return kind, name, ""


_NAME = re.compile(r"[\w.-]+")
_ONE_FIELD = re.compile(rb'\{"([\w.-]+)":(.*)\}', re.DOTALL)


def write_frame(text: bytes) -> bytes:
    """The frame that is read as this JSON text: an object with one field, the type of the event."""
    found = _ONE_FIELD.fullmatch(text)
    if found is None:
        raise ValueError("an event is an object with one field, the name of its type")
    name, payload = found[1], found[2]
    kind = b"exception" if name.endswith(b"Exception") else b"event"
    headers = b"".join(
        bytes([len(key)]) + key + b"\x07" + len(value).to_bytes(2, "big") + value
        for key, value in (
            (b":" + kind + b"-type", name),
            (b":content-type", b"application/json"),
            (b":message-type", kind),
        )
    )
    prelude = (len(headers) + len(payload) + _SMALLEST).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    frame = prelude + _CRC.pack(crc32(prelude)) + headers + payload
    return frame + _CRC.pack(crc32(frame))
