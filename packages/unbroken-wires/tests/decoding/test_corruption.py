"""Streams that were cut, flipped, doubled and shuffled: never another library's exception, a hang, or half a call that
counts as complete.

500 cases in the tests; `make fuzz` sets UNBROKEN_FUZZ=20000. Seeds are fixed, so a failure names its case.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any, NoReturn

import pytest
from corpus import RECORDINGS
from samples import SAMPLES
from thorough import some

from unbroken import Decoder, Response, ToolCall, UnbrokenError

CASES = int(os.environ.get("UNBROKEN_FUZZ", "500"))

BODIES: list[tuple[str, bytes]] = SAMPLES + [(r.wire, r.body) for r in RECORDINGS if len(r.body) < 30_000]


def cut(body: bytes, r: random.Random) -> bytes:
    return body[: r.randrange(len(body) + 1)]


def flip(body: bytes, r: random.Random) -> bytes:
    flipped = bytearray(body)
    for _ in range(r.randint(1, 8)):
        flipped[r.randrange(len(flipped))] = r.randrange(256)
    return bytes(flipped)


def double(body: bytes, r: random.Random) -> bytes:
    lines = body.split(b"\n")
    at = r.randrange(len(lines))
    return b"\n".join([*lines[: at + 1], *lines[max(0, at - r.randint(0, 3)) :]])


def shuffle(body: bytes, r: random.Random) -> bytes:
    events = body.split(b"\n\n")
    a, b = r.randrange(len(events)), r.randrange(len(events))
    events[a], events[b] = events[b], events[a]
    return b"\n\n".join(events)


def drop(body: bytes, r: random.Random) -> bytes:
    start = r.randrange(len(body))
    return body[:start] + body[start + r.randint(1, 200) :]


def swap_types(body: bytes, r: random.Random) -> bytes:
    """Replaces a value by one of another type."""
    values = [b"null", b"[]", b"{}", b"5", b'"x"', b"true", b"-1e99", b"[[1]]"]
    colons = [i for i, char in enumerate(body) if char == ord(":")]
    if not colons:
        return body
    at = r.choice(colons) + 1
    end = min((i for i in (body.find(c, at) for c in (b",", b"}", b"]")) if i >= 0), default=len(body))
    return body[:at] + r.choice(values) + body[end:]


WAYS = [cut, flip, double, shuffle, drop, swap_types]


def decode_in_pieces(wire: str, body: bytes, r: random.Random) -> Response | None:
    decoder = Decoder(wire, tools=["get_weather"] if r.random() < 0.3 else None)
    at = 0
    try:
        while at < len(body):
            size = r.choice([1, 5, 60, 700, 5000])
            decoder.feed(body[at : at + size])
            at += size
        return decoder.response()
    except UnbrokenError:
        return None


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=refuse)


def assert_honest(call: ToolCall, response: Response) -> None:
    """Complete means: the raw text is one strict JSON object, or a strict string of one, or empty at a good end."""
    if not call.complete:
        assert call.arguments is None
        return
    assert call.name
    if not call.raw.strip():
        assert call.arguments == {}
        assert response.complete
        return
    value = strict(call.raw)
    if isinstance(value, str):
        value = strict(value)
    assert isinstance(value, dict)
    assert value == call.arguments


def corrupt(case: int) -> tuple[str, bytes, random.Random]:
    r = random.Random(case)
    wire, body = r.choice(BODIES)
    for _ in range(r.randint(1, 3)):
        if body:
            body = r.choice(WAYS)(body, r)
    return wire, body, r


@pytest.mark.parametrize("part", range(10))
def test_corrupted_streams_yield_verdicts_and_no_exceptions(part: int) -> None:
    for case in range(part * CASES // 10, (part + 1) * CASES // 10):
        wire, body, r = corrupt(case)
        try:
            response = decode_in_pieces(wire, body, r)
        except Exception as error:
            raise AssertionError(f"case {case} on {wire}: {error!r}") from error
        if response is not None:
            for call in response.calls:
                assert_honest(call, response)


@pytest.mark.parametrize(("wire", "body"), SAMPLES, ids=[f"{n}-{wire}" for n, (wire, _) in enumerate(SAMPLES)])
def test_a_stream_cut_at_any_byte_never_turns_half_a_call_into_a_complete_one(wire: str, body: bytes) -> None:
    def essence(call: ToolCall) -> tuple[str, Any]:
        return call.name, call.arguments

    decoder = Decoder(wire)
    decoder.feed(body)
    whole = [essence(call) for call in decoder.response().calls]
    assert decoder.response().verdict.whole
    for end in some(range(len(body)), 3):
        decoder = Decoder(wire)
        decoder.feed(body[:end])
        response = decoder.response()
        for call in response.calls:
            if call.complete:
                assert essence(call) in whole, f"cut at {end}"
