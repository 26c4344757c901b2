"""The bytes of a stream for somebody who passes them on: whole events, at any split."""

from __future__ import annotations

import pytest

from unbroken.models.passing import Passing

EVENTS = [b'data: {"a": 1}\n\n', b"event: x\ndata: 2\n\n", b": alive\n\n", b"data: [DONE]\n\n"]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_only_whole_events_are_given_and_none_is_lost(size: int, end: bytes) -> None:
    line = end[: len(end) // 2]
    body = b"".join(EVENTS).replace(b"\n", line)
    passing = Passing(streamed=True)
    given: list[bytes] = []
    for at in range(0, len(body), size):
        if part := passing.feed(body[at : at + size]):
            assert part.endswith(end)
            given.append(part)
    assert b"".join(given) == body
    assert passing.rest() == b""


def test_half_an_event_waits_for_its_end() -> None:
    passing = Passing(streamed=True)
    assert passing.feed(b'data: 1\n\ndata: {"half') == b"data: 1\n\n"
    assert passing.rest() == b'data: {"half'
    assert passing.feed(b'"}\n') == b""
    assert passing.feed(b"\n") == b'data: {"half"}\n\n'


def test_a_whole_body_is_one_piece_whatever_stands_in_it() -> None:
    passing = Passing(streamed=False)
    assert passing.feed(b'{"text": "a\n\n') == b""
    assert passing.feed(b'b"}') == b""
    assert passing.rest() == b'{"text": "a\n\nb"}'
