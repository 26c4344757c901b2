"""JSON in pieces is the same JSON: what is read, what is written, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import costly

from unbroken.errors import TooDeep
from unbroken_wires.wires.json_pieces import dumps_in_pieces, loads_in_pieces
from unbroken_wires.wires.jsontext import MAX_DEPTH, Damaged, dumps, loads_faithful, shallow, without_halves

TEXTS = st.text('ab"\\,[]{}:NI\n é汉😀\ud83d\ude00', max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=40,
)
SPACES = st.sampled_from([None, 0, 2])


PIECES = pytest.mark.parametrize("piece", [16, 40, 300, 1 << 18])
"""Small sizes, so that every split is tried on small texts."""


def _inner(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def _values(value: Any) -> int:
    return 1 + sum(map(_values, _inner(value)))


@PIECES
@costly
@given(st.dictionaries(TEXTS, JSON) | st.lists(JSON), SPACES, st.booleans())
def test_reading_in_pieces_equals_parsing(piece: int, value: Any, indent: int | None, ascii: bool) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii).encode("utf-8", "replace")
    counts: list[int] = []
    assert loads_in_pieces(data, counts.append, piece=piece) == loads_faithful(data)
    assert _values(loads_faithful(data)) <= counts[-1] <= 2 * _values(value) + 1


@PIECES
@costly
@given(JSON, st.lists(TEXTS))
def test_writing_in_pieces_equals_serialising(piece: int, value: Any, texts: list[str]) -> None:
    assert loads_faithful(dumps_in_pieces(value, piece=piece)) == loads_faithful(dumps(value))
    assert dumps_in_pieces(texts, piece=piece) == dumps(texts)


@PIECES
@example(b'["a" ["b"]]', 0, b"")
@example(b'{"a": 1 "b": [1, 2]}', 0, b"")
@example(b'{"a": 12 [1]}', 0, b"")
@example(b"[[1], ]", 0, b"")
@example(b"[, [1]]", 0, b"")
@example(b"[[1] 2]", 0, b"")
@example(b'{"a":"b":[1]}', 0, b"")
@example(b"[1] [2]", 0, b"")
@example(b"[1]]", 0, b"")
@example(b"[[1}", 0, b"")
@example(b'{"a": "bbbbbbbbbbbb"} x', 0, b"")
@example(b'["\\u12"]', 0, b"")
@example(b'["aaaaaaaaaa\\', 0, b"")
@example(b'["a', 0, b"")
@example(b"", 0, b"")
@costly
@given(
    (st.lists(JSON) | st.dictionaries(TEXTS, JSON)).map(_encoded),
    st.integers(0, 400),
    st.sampled_from([b"", b",", b"]", b"[", b"}", b"{", b":", b'"', b" ", b"\\", b"1", b"x"]),
)
def test_reading_in_pieces_refuses_what_a_parser_refuses(piece: int, data: bytes, at: int, put: bytes) -> None:
    broken = data[: at % (len(data) + 1)] + put + data[at % (len(data) + 1) + 1 :] if put or at else data
    try:
        whole = loads_faithful(broken)
    except Damaged:
        whole = None
    try:
        pieces = loads_in_pieces(broken, piece=piece)
    except Damaged:
        pieces = None
    if isinstance(whole, dict | list) or pieces is not None:
        assert pieces == whole


@PIECES
@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_refused(piece: int, name: str) -> None:
    with pytest.raises(Damaged):
        loads_in_pieces(f'{{"a": [1, {name}], "b": "NaN"}}'.encode(), piece=piece)
    assert loads_in_pieces(b'{"NaN": "Infinity"}', piece=piece) == {"NaN": "Infinity"}


@PIECES
def test_deep_nesting_is_refused_and_the_rest_is_read(piece: int) -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert loads_in_pieces(deep, piece=piece) == loads_faithful(deep)
    with pytest.raises(TooDeep):
        loads_in_pieces(b"[" + deep + b"]", piece=piece)


@PIECES
def test_reading_stops_when_the_count_of_values_is_exceeded(piece: int) -> None:
    def check(values: int) -> None:
        if values > 5000:
            raise LookupError(values)

    with pytest.raises(LookupError, match="5120"):
        loads_in_pieces(b'{"a": [' + b"[]," * 100_000 + b"[]]}", check, piece=piece)


@pytest.mark.parametrize("inside", ["x", '"', "\\", "[", "{"])
def test_a_long_text_is_as_deep_as_its_brackets_outside_of_strings(inside: str) -> None:
    for depth in (MAX_DEPTH, MAX_DEPTH + 1):
        data = b"[" * depth + json.dumps(inside * (1 << 20)).encode() + b"]" * depth
        assert shallow(data) == (depth == MAX_DEPTH)


@pytest.mark.parametrize("text", ["x", "\n", "é", "汉", "😀", "\ud83d", "\\", '"', "\ud83d\\ude00", "aé😀\n"])
def test_a_string_longer_than_a_piece_is_read_and_written(text: str) -> None:
    value = {"a": 1, "b": [text * 5000, "c", {"d" * 2000: text * 3000}], "e": text}
    for data in (dumps(value), json.dumps(value).encode()):
        for piece in range(1000, 1013):
            assert loads_in_pieces(data, piece=piece) == loads_faithful(data)
    for piece in range(1000, 1013):
        assert dumps_in_pieces(value, piece=piece) == dumps(value)


@given(st.text(alphabet="a\ud800\udbff\udc00\udfff\U0001f642é\n", max_size=12))
def test_surrogate_halves_are_joined_or_replaced_as_in_utf_16(text: str) -> None:
    assert without_halves(text) == text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
