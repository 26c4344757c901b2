"""Framing: any split of the bytes, any of the framings that providers use, within limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import TooDeep, TooLarge
from unbroken_wires.wires.jsontext import Damaged, dumps, loads, loads_exact, shallow
from unbroken_wires.wires.sse import Framer

A, B = b'{"a": "x\\"}{"}', b'{"b": [1, {"c": 2}]}'


def frames(body: bytes, size: int) -> list[bytes]:
    framer = Framer()
    found: list[bytes] = []
    for at in range(0, len(body), size):
        found += framer.feed(body[at : at + size])
    return [event.strip() for event in found + framer.end()]


BODIES = {
    "plain": b"data: " + A + b"\n\ndata: " + B + b"\n\n",
    "crlf": b"data: " + A + b"\r\n\r\ndata: " + B + b"\r\n\r\n",
    "crlf then lf": b"data: " + A + b"\r\n\ndata: " + B + b"\r\n\n",
    "a byte order mark after a blank line": b"\n\xef\xbb\xbf\xef\xbb\xbf\ndata: " + A + b"\n\ndata: " + B + b"\n\n",
    "empty data to keep the connection alive": b"data:\n\ndata: " + A + b"\n\ndata: \n\ndata: " + B + b"\n\n",
    "lone cr": b"data: " + A + b"\r\rdata: " + B + b"\r\r",
    "no space": b"data:" + A + b"\n\ndata:" + B + b"\n\n",
    "comments": b": keep-alive\n\n: OPENROUTER PROCESSING\n\ndata: " + A + b"\n: x\n\n\ndata: " + B + b"\n\n",
    "event fields": b"event: x\nid: 1\nretry: 5\ndata: " + A + b"\n\nevent: y\ndata: " + B + b"\n\n",
    "unterminated last event": b"data: " + A + b"\n\ndata: " + B,
    "one line end only": b"data: " + A + b"\n\ndata: " + B + b"\n",
    "byte order mark": b"\xef\xbb\xbfdata: " + A + b"\n\ndata: " + B + b"\n\n",
    "leading blank lines": b"\n\r\n \n\ndata: " + A + b"\n\ndata: " + B + b"\n\n",
    "data on two lines": b'data: {"a":\ndata: "x\\"}{"}\n\ndata: ' + B + b"\n\n",
    "no blank line between events": b"data: " + A + b"\ndata: " + B + b"\n",
    "unknown fields that hold JSON": b'x-trace: {"id": 1}\ndata: ' + A + b"\n\ndata: " + B + b'\nmeta: {"b": [2]}\n\n',
    "an id that is JSON": b'id: {"n": 1}\ndata: ' + A + b"\n\nid: [{}]\ndata: " + B + b"\n\n",
    "an unknown field within an event": b'data: {"a":\ntrace: {}\ndata: "x\\"}{"}\n\ndata: ' + B + b"\n\n",
    "no blank line, with event fields": b"event: x\ndata: " + A + b"\nevent: y\ndata: " + B + b"\n",
    "an indented field": b"data: " + A + b"\n\n data: " + B + b"\n\n",
    "one object a line": A + b"\n" + B + b"\n",
    "one object a line, crlf": A + b"\r\n" + B,
    "an array": b"[" + A + b"\n,\r\n" + B + b"]\n",
    "an array after a byte order mark": b"\xef\xbb\xbf\n[" + A + b"," + B + b"]",
    "objects without separator": A + B,
    "an object without its field name": b"data: " + A + b"\n\n" + B + b"\n",
}


@pytest.mark.parametrize("name", BODIES)
def test_every_framing_works_at_every_split(name: str) -> None:
    body = BODIES[name]
    for size in range(1, len(body) + 1):
        assert [json.loads(event) for event in frames(body, size)] == [json.loads(A), json.loads(B)], size


def test_a_pretty_printed_body_is_one_event() -> None:
    value = {"a": [{"b": "}{"}], "c": None}
    for size in (1, 3, 1000):
        assert [json.loads(event) for event in frames(json.dumps(value, indent=2).encode(), size)] == [value]


def test_a_line_that_was_cut_inside_a_string_does_not_swallow_the_next() -> None:
    body = b'{"a": "cut\n{"b": "x"}\n{"c": 1}\n'
    for size in range(1, len(body) + 1):
        assert frames(body, size) == [b'{"a": "cut', b'{"b": "x"}', b'{"c": 1}']


def test_a_bare_line_does_not_overtake_the_event_before_it() -> None:
    body = b"data: " + A + b"\n" + B + b"\ndata: " + A + b"\n\n"
    for size in range(1, len(body) + 1):
        assert frames(body, size) == [A, B, A]


def test_comments_before_a_pretty_printed_body_hide_nothing() -> None:
    body = b": PROCESSING\n\n: PROCESSING\n\n" + json.dumps(json.loads(B), indent=2).encode()
    for size in range(1, len(body) + 1):
        assert [json.loads(event) for event in frames(body, size)] == [json.loads(B)]


def test_event_fields_after_a_first_line_of_json_are_not_noise() -> None:
    body = A + b"\r\n" + b": ping\r\n" * 40 + b"retry: 100\r\ndata: " + B + b"\r\ndata: [DONE]\r\n"
    assert frames(body, 5) == frames(body, len(body)) == [A, B, b"[DONE]"]


def test_utf8_that_is_split_inside_a_character_is_joined() -> None:
    body = 'data: {"a": "é中😀"}\n\n'.encode()
    for size in range(1, len(body)):
        assert [loads(event) for event in frames(body, size)] == [{"a": "é中😀"}]


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_framed_the_same_way_at_any_split(body: bytes, size: int) -> None:
    assert frames(body, size) == frames(body, len(body) + 1)


@given(
    st.lists(st.sampled_from([b"data: ", b"{", b"}", b'"', b"\\", b"\n", b"\r", b"[", b",", b":", b"x", b"\n\n"])),
    st.integers(1, 7),
)
def test_any_marks_are_framed_the_same_way_at_any_split(marks: list[bytes], size: int) -> None:
    body = b"".join(marks)
    assert frames(body, size) == frames(body, len(body) + 1)


def feed_all(framer: Framer, pieces: list[bytes]) -> None:
    for piece in pieces:
        framer.feed(piece)


@pytest.mark.parametrize("head", [b"data: ", b"{", b"x", b"data: {}\n\ndata: ", b'[{"a": "'])
@pytest.mark.parametrize("size", [1000, 5000])
def test_an_event_beyond_the_limit_is_refused_before_it_is_stored(head: bytes, size: int) -> None:
    with pytest.raises(TooLarge, match="larger than 10,000 bytes; if that is meant, raise max_event"):
        feed_all(Framer(max_event=10_000), [head, *[b"y" * size] * (20_000 // size)])


@pytest.mark.parametrize("head", [b'{"a": "', b'[{"a": "', b"data: {}\n\n{", b"data: "])
def test_an_event_in_one_piece_has_the_same_limit(head: bytes) -> None:
    with pytest.raises(TooLarge):
        Framer(max_event=10_000).feed(head + b"y" * 20_000 + b'"}\n\n')


def test_an_event_of_many_data_lines_counts_as_one() -> None:
    with pytest.raises(TooLarge):
        feed_all(Framer(max_event=10_000), [b"data: " + b"y" * 100 + b"\n"] * 200)


def test_a_body_beyond_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge, match="raise max_body"):
        feed_all(Framer(max_body=1000), [b"data: {}\n\n: comment\n\n"] * 100)


def test_noise_is_remembered_for_the_verdict() -> None:
    framer = Framer()
    framer.feed(b"<!DOCTYPE html>\n<html>" + b"x" * 1000)
    framer.end()
    assert framer.noise == b"<!DOCTYPE html>"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600]
)
def test_deep_json_is_refused_without_recursion(text: str) -> None:
    with pytest.raises((TooDeep, Damaged)):
        loads_exact(text.encode())


def test_brackets_inside_strings_are_not_depth() -> None:
    assert shallow(json.dumps({"a": "[" * 5000 + '"' + "{" * 5000}).encode())
    assert not shallow(b"[" * 513)
    assert shallow(b"[" * 512 + b"]" * 512)


def test_the_standard_parser_reads_what_orjson_refuses() -> None:
    assert loads(b'{"a": "\\ud83d"}') == {"a": "\ud83d"}
    with pytest.raises(Damaged, match="not JSON"):
        loads(b'{"a": "\xff"}')  # bytes that are no text: what they were cannot be known
    with pytest.raises(Damaged, match="not JSON"):
        loads(b'{"a": ')


def test_outgoing_surrogate_halves_become_the_replacement_character() -> None:
    assert json.loads(dumps({"a": "x\ud83dy", "b": ["\ude00"]})) == {"a": "x\ufffdy", "b": ["\ufffd"]}
    assert json.loads(dumps({"n": 10**30})) == {"n": 10**30}
