"""The raw bytes of a stream, for forwarding: complete events, at any split, after the deltas read from them."""

from __future__ import annotations

import pytest

from unbroken.models.relay import PassingDecoder
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta, Ended, Received, TextDelta

EVENTS = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"One "}}]}\n\n',
    b": alive\n\n",
    b'event: x\ndata: {"choices":[{"index":0,"delta":{"content":"two."}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]


def passing(streamed: bool = True, apart: bool = False) -> PassingDecoder:
    return PassingDecoder(Decoder("openai-chat"), streamed, apart)


def received(deltas: list[Delta]) -> list[bytes]:
    return [delta.data for delta in deltas if isinstance(delta, Received)]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_only_complete_events_are_yielded_and_none_is_lost(size: int, end: bytes, apart: bool) -> None:
    body = b"".join(EVENTS).replace(b"\n", end[: len(end) // 2])
    decoder = passing(apart=apart)
    deltas: list[Delta] = []
    for at in range(0, len(body), size):
        deltas += decoder.feed(body[at : at + size])
    deltas += decoder.end()
    assert all(part.endswith(end) for part in received(deltas))
    assert b"".join(received(deltas)) == body
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "One two."
    assert isinstance(deltas[-1], Ended)
    assert deltas[-1].verdict.whole


def test_apart_each_event_comes_right_after_its_deltas() -> None:
    deltas = passing(apart=True).feed(b"".join(EVENTS))
    assert received(deltas) == [EVENTS[0], EVENTS[1] + EVENTS[2], *EVENTS[3:]]
    assert [type(delta) for delta in deltas][:3] == [TextDelta, Received, TextDelta]


@pytest.mark.parametrize("alive", [b"data:\n\n", b"data: \r\n\r\n", b": ping\n\n", b"\n\n"])
def test_keep_alive_events_are_forwarded_together(alive: bytes) -> None:
    assert received(passing(apart=True).feed(alive * 4000)) == [alive * 4000]
    assert received(passing(apart=True).feed(alive * 4000 + EVENTS[0])) == [alive * 4000 + EVENTS[0]]


def test_half_an_event_waits_for_its_end_and_is_never_forwarded_alone() -> None:
    decoder = passing()
    assert received(decoder.feed(EVENTS[0] + EVENTS[2][:30])) == [EVENTS[0]]
    assert received(decoder.feed(EVENTS[2][30:])) == [EVENTS[2]]
    decoder.feed(EVENTS[3][:20])
    assert received(decoder.end()) == []


def test_a_last_event_without_its_blank_line_gets_one() -> None:
    decoder = passing()
    decoder.feed(b"".join(EVENTS).rstrip())
    assert received(decoder.end()) == [EVENTS[-1]]


def test_the_end_is_held_until_its_verdict_is_known() -> None:
    decoder = passing()
    deltas = [delta for event in EVENTS for delta in decoder.feed(event)]
    assert [delta.wait for delta in deltas if isinstance(delta, Received)] == [False, False, False, True, True]


def test_an_error_and_an_incomplete_call_are_held_too() -> None:
    decoder = passing()
    call = b'{"index":0,"id":"a","function":{"name":"f","arguments":""}}'
    opened = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[' + call + b"]}}]}\n\n"
    assert [delta.wait for delta in decoder.feed(opened) if isinstance(delta, Received)] == [True]
    decoder = passing()
    failed = b'data: {"error": {"message": "overloaded"}}\n\n'
    assert [delta.wait for delta in decoder.feed(failed) if isinstance(delta, Received)] == [True]


def begun(index: int) -> bytes:
    call = b'{"index":%d,"id":"call_%d","function":{"name":"f","arguments":""}}' % (index, index)
    return b'data: {"choices":[{"index":0,"delta":{"tool_calls":[' + call + b"]}}]}\n\n"


def arguments(index: int, text: bytes) -> bytes:
    call = b'{"index":%d,"function":{"arguments":"%s"}}' % (index, text)
    return b'data: {"choices":[{"index":0,"delta":{"tool_calls":[' + call + b"]}}]}\n\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_of_one_read_are_cut_only_before_a_call(end: bytes) -> None:
    said = EVENTS[0] + EVENTS[2]
    calls = [begun(n) + arguments(n, b"{") + arguments(n, b"}") for n in range(2)]
    pieces = [piece.replace(b"\n", end) for piece in [said, *calls]]
    assert received(passing().feed(b"".join(pieces))) == pieces


def test_a_response_that_arrives_at_once_is_not_cut() -> None:
    body = begun(0) + arguments(0, b"{}") + begun(1) + arguments(1, b"{}") + EVENTS[3] + EVENTS[4]
    assert received(passing().feed(body)) == [body]


def test_a_non_streaming_body_is_one_piece_whatever_it_contains() -> None:
    decoder = passing(streamed=False)
    body = b'{"choices": [{"index": 0, "message": {"content": "a\\n\\nb"}, "finish_reason": "stop"}]}'
    assert received(decoder.feed(body[:30])) == []
    assert received(decoder.feed(body[30:])) == []
    assert received(decoder.end()) == [body]
