"""How a stream is cut into events for a relay, in each framing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import SAMPLES

from unbroken import Decoder
from unbroken.models.relay import PassingDecoder
from unbroken_wires.deltas import Received
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.framing import JSON_LINES, SSE

STREAMS = [(wire, body) for wire, body in SAMPLES if not body.startswith((b"[", b'{"choices"', b"{\n"))]
every_stream = pytest.mark.parametrize(("wire", "body"), STREAMS, ids=[wire for wire, _ in STREAMS])


@every_stream
@pytest.mark.parametrize("apart", [False, True])
@given(size=st.integers(1, 400))
def test_a_relay_passes_whole_events_and_all_of_them(wire: str, body: bytes, apart: bool, size: int) -> None:
    framing = WIRES[wire].framing
    decoder = PassingDecoder(Decoder(wire), streamed=True, apart=apart)
    deltas = [delta for at in range(0, len(body), size) for delta in decoder.feed(body[at : at + size])]
    passed = [delta.data for delta in [*deltas, *decoder.end()] if isinstance(delta, Received)]
    assert b"".join(passed) == body
    assert all(framing.complete(data, len(data)) == len(data) for data in passed)
    if apart:
        assert [len(framing.texts(data)) for data in passed] == [1] * len(passed)


@every_stream
def test_events_of_a_stream_put_together_are_the_stream(wire: str, body: bytes) -> None:
    framing = WIRES[wire].framing
    events = framing.events(body)
    assert b"".join(events) == body
    assert len(events) == len(framing.texts(body)) > 3
    assert not framing.is_body(body)


@every_stream
def test_what_is_cut_is_not_passed_on(wire: str, body: bytes) -> None:
    framing = WIRES[wire].framing
    *_, last = framing.events(body)
    for at in range(1, len(last) - 3):
        assert framing.rest(last[:at]) == b"", at


def test_a_last_event_that_lacks_only_its_end_gets_it() -> None:
    assert SSE.rest(b"data: [DONE]\n") == b"data: [DONE]\n\n"
    assert JSON_LINES.rest(b'{"done": true}') == b'{"done": true}\n'
    assert JSON_LINES.rest(b" \n") == b""


def test_a_body_in_place_of_a_stream_is_known_as_one() -> None:
    for body in (b'{"a": 1}', b" [1]", b"<html>"):
        assert SSE.is_body(body)
    assert not JSON_LINES.is_body(b'{"done": true}')  # a line, as any other
    assert JSON_LINES.is_body(b"<html>")
