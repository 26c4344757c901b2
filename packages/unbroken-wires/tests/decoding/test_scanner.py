"""The scanner against a reference: a slow, simple parser that finds the end of the first object."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unbroken_wires.decoding.arguments import MAX_DEPTH, Scanner

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)
MARKS = st.lists(st.sampled_from(list('{}[]"\\,: a1\n')), max_size=40).map("".join)


def reference(text: str) -> tuple[bool, bool]:
    """(closed, something but white space after the close), by the standard parser."""
    start = text.lstrip(" \t\r\n")
    if not start.startswith("{"):
        return False, False
    try:
        _, end = json.JSONDecoder().raw_decode(start)
    except ValueError:
        return False, False
    return True, bool(start[end:].strip(" \t\r\n"))


def scan(text: str, size: int) -> Scanner:
    scanner = Scanner()
    for at in range(0, len(text), size):
        scanner.feed(text[at : at + size])
    return scanner


@given(OBJECTS, st.sampled_from(["", " ", "\n\t", "x", "{}", "}"]), st.booleans(), st.integers(1, 9))
def test_closes_where_the_reference_parser_does(value: dict[str, object], after: str, ascii: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii) + after
    scanner = scan(text, size)
    assert (scanner.closed, scanner.spoiled) == reference(text)


@given(OBJECTS, st.data())
def test_a_proper_prefix_never_closes(value: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    assert not scan(text[:cut], 3).closed


@given(MARKS, st.integers(1, 9))
@example("{]}", 1)
def test_every_split_scans_the_same(text: str, size: int) -> None:
    whole, pieces = scan(text, len(text) + 1), scan(text, size)
    assert (whole.closed, whole.spoiled, whole.foreign) == (pieces.closed, pieces.spoiled, pieces.foreign)


@given(MARKS)
def test_the_scanner_closes_what_the_reference_reads(text: str) -> None:
    closed, more = reference(text)
    if closed:
        scanner = scan(text, 4)
        assert (scanner.closed, scanner.spoiled) == (True, more)


def test_call_completes_at_its_closing_brace_and_not_before() -> None:
    scanner = Scanner()
    text = '{"a": "}", "b": {"c": [1, {}]}}'
    assert [scanner.feed(char) for char in text] == [False] * (len(text) - 1) + [True]


def test_anything_but_white_space_after_the_close_is_invalid() -> None:
    scanner = Scanner()
    scanner.feed('{"a": 1}')
    scanner.feed(" \n")
    assert not scanner.spoiled
    scanner.feed(" x")
    assert scanner.spoiled


@pytest.mark.parametrize("text", ['{"a": [1}', '{"a": ]', "{]"])
def test_a_bracket_that_closes_what_it_did_not_open_is_invalid(text: str) -> None:
    assert scan(text, 1).spoiled


@pytest.mark.parametrize("text", ["[1]", "12", '"{}"', "null", "x {}"])
def test_text_that_does_not_start_with_a_brace_never_closes(text: str) -> None:
    scanner = scan(text, 2)
    assert (scanner.closed, scanner.foreign) == (False, True)


def test_depth_is_limited() -> None:
    assert scan('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH, 7).closed
    assert scan('{"a":' * (MAX_DEPTH + 1), 7).too_deep
