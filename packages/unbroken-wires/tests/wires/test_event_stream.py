"""Amazon's binary frames: any split of the bytes, every damage noticed, and read as Amazon's own parser reads them."""

from __future__ import annotations

import json
from base64 import b64encode
from struct import pack
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SAMPLES, frames
from streams import feed

from unbroken import Decoder, decode
from unbroken.errors import TooLarge
from unbroken_wires.wires.event_stream import EventStreamSplitter, write_frame
from unbroken_wires.wires.framing import EVENT_STREAM
from unbroken_wires.wires.sse import Framer

STREAM = dict(SAMPLES)["bedrock-converse"]
A: dict[str, Any] = {"messageStart": {"role": "assistant"}}
B: dict[str, Any] = {"contentBlockDelta": {"delta": {"text": 'Zürich 😀 "}{"\n\n'}, "contentBlockIndex": 0}}


def frame(headers: bytes, payload: bytes) -> bytes:
    """By hand, for headers that we do not write ourselves."""
    prelude = pack(">II", len(headers) + len(payload) + 16, len(headers))
    data = prelude + pack(">I", crc32(prelude)) + headers + payload
    return data + pack(">I", crc32(data))


def header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + pack(">H", len(value)) + value.encode()


def texts(body: bytes, size: int = 1 << 20) -> list[bytes]:
    framer = Framer()
    found: list[bytes] = []
    for at in range(0, len(body), size):
        found += framer.feed(body[at : at + size])
    return found + framer.end()


def test_frames_are_read_at_every_split() -> None:
    body = frames(A, B, A)
    for size in range(1, len(body) + 1):
        assert [json.loads(text) for text in texts(body, size)] == [A, B, A], size


def test_a_frame_is_written_as_it_is_read() -> None:
    for event in (A, B, {"throttlingException": {"message": "slow down"}}):
        text = json.dumps(event, separators=(",", ":")).encode()
        assert texts(write_frame(text)) == [text]
    with pytest.raises(ValueError, match="one field"):
        write_frame(b"[1]")


def test_an_event_of_an_invoked_model_is_the_text_inside_of_its_chunk() -> None:
    inner = b'{"type":"message_stop"}'
    chunk = {"chunk": {"bytes": b64encode(inner).decode(), "p": "abc"}}
    assert texts(frames(chunk)) == [inner]
    odd: list[Any] = [{}, {"bytes": "?"}, []]
    for chunk in odd:
        (text,) = texts(frames({"chunk": chunk}))
        assert text.startswith(b"{\x00")


def test_headers_of_every_type_are_read_and_an_error_has_its_words_there() -> None:
    others = b"\x01a\x00" + b"\x01b\x01" + b"\x01c\x02." + b"\x01d\x03.." + b"\x01e\x04...." + b"\x01f\x05........"
    others += b"\x01g\x06\x00\x03..." + b"\x01h\x08........" + b"\x01i\x09................"
    event = others + header(":event-type", "messageStop") + header(":message-type", "event")
    assert texts(frame(event, b'{"stopReason":"end_turn"}')) == [b'{"messageStop":{"stopReason":"end_turn"}}']
    assert texts(frame(header(":event-type", "ping"), b"")) == [b'{"ping":{}}']
    told = header(":message-type", "error") + header(":error-code", "InternalError") + header(":error-message", "no")
    assert texts(frame(told, b"")) == [b'{"error":{"code":"InternalError","message":"no"}}']


@pytest.mark.parametrize(
    "headers",
    [
        b"\x05a",
        b"\x01a\x0a",
        b"\x01a\x07\xff\xff.",
        header(":event-type", 'x":1,"y'),
        header("a", "b"),
        b"\x01\xff\x00",
    ],
)
def test_headers_that_cannot_be_read_are_a_damaged_event(headers: bytes) -> None:
    (text,) = texts(frame(headers, b"{}"))
    assert text.startswith(b"{\x00")


@given(at=st.integers(0, len(STREAM) - 1), bit=st.integers(0, 7), size=st.integers(1, 300))
def test_no_flipped_bit_goes_unnoticed(at: int, bit: int, size: int) -> None:
    body = bytearray(STREAM)
    body[at] ^= 1 << bit
    whole, decoder = decode(STREAM, "bedrock-converse"), Decoder("bedrock-converse")
    for start in range(0, len(body), size):
        decoder.feed(bytes(body[start : start + size]))
    response = decoder.response()
    assert not response.verdict.whole
    complete = [call for call in response.calls if call.complete]
    assert [(call.id, call.arguments) for call in complete] == [
        (call.id, call.arguments) for call in whole.calls if call.id in {one.id for one in complete}
    ]


@given(at=st.integers(0, len(STREAM) - 1))
def test_a_stream_that_is_cut_anywhere_is_not_taken_for_a_complete_one(at: int) -> None:
    decoder = Decoder("bedrock-converse")
    decoder.feed(STREAM[:at])
    verdict = decoder.response().verdict
    # Once the stop reason has come, only usage is missing.
    assert verdict.whole == (b"messageStop" in STREAM[:at] and at >= STREAM.index(b'"stopReason":"tool_use"}') + 28)
    assert not verdict.whole or decoder.response().calls == decode(STREAM, "bedrock-converse").calls


def test_after_a_damaged_prelude_nothing_is_guessed() -> None:
    first = frames(A)
    body = bytearray(first + frames(B, A))
    body[len(first) + 2] ^= 1
    assert [text[:2] for text in texts(bytes(body))] == [first[:0] + b'{"', b"{\x00"]


def test_a_frame_beyond_the_limit_is_refused_before_it_has_arrived() -> None:
    body = frames({"contentBlockDelta": {"delta": {"text": "x" * 5000}}})
    splitter = EventStreamSplitter(1000)
    with pytest.raises(TooLarge, match="raise max_event"):
        splitter.feed(body[:20])


def test_other_bytes_that_begin_with_a_zero_are_no_frames() -> None:
    assert not Decoder("bedrock-converse").feed(b"\x00" * 40)
    assert decode(b'\x00data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n').verdict.kind != "whole"


def test_time_grows_with_a_frame_and_not_with_its_square() -> None:
    body = frames({"contentBlockDelta": {"delta": {"text": "x" * 400_000}, "contentBlockIndex": 0}})
    assert len(feed(body, 16, "bedrock-converse")) == len(feed(body, len(body), "bedrock-converse"))


def test_complete_frames_are_found_for_a_relay() -> None:
    one, two = frames(A), frames(B)
    assert EVENT_STREAM.complete(one + two[:-1], 5) == len(one)
    assert EVENT_STREAM.complete(one + two, 5) == len(one + two)
    assert EVENT_STREAM.complete(one[:9], 9) == 0
    assert EVENT_STREAM.events(one + two) == [one, two]
    assert EVENT_STREAM.rest(two[:-1]) == b""


def test_botocore_reads_our_frames_and_we_read_what_it_reads() -> None:
    eventstream = pytest.importorskip("botocore.eventstream", reason="the extra `bedrock` is not installed")
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(STREAM)
    theirs = [{event.headers[":event-type"]: json.loads(event.payload)} for event in buffer]
    assert theirs == [json.loads(text) for text in texts(STREAM)]
