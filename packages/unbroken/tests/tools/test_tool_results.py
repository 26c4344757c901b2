"""What tools return, as a model reads it."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from unbroken import Agent, ScriptedModel, ToolOutput, tool
from unbroken.tools.results import NOTHING, RESULT_LIMIT, to_parts
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Media, Part, Text

PICTURE = Media(mime="image/png", data="AAAA")


class Colour(str, Enum):  # noqa: UP042 - older code has these
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    y: Any = None


class Place(BaseModel):
    name: str = Field(serialization_alias="title")
    when: date


class Pair(NamedTuple):
    a: int
    b: int


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Array:
    def tolist(self) -> list[float]:
        return [1.0, math.nan]


def text_of(value: object, limit: int = RESULT_LIMIT) -> str:
    (part,) = to_parts(value, limit)
    assert isinstance(part, Text)
    return part.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, NOTHING),
        ("", NOTHING),
        (" \n", NOTHING),
        (0, "0"),
        (True, "true"),
        (2**100, str(2**100)),
        (1.5, "1.5"),
        (math.nan, "nan"),
        ([math.inf, None], '["inf",null]'),
        ([], "[]"),
        ({"a": [1, "ä"], "b": {}}, '{"a":[1,"ä"],"b":{}}'),
        ({1: 2, (3, 4): 5, None: 6, Colour.RED: 7}, '{"1":2,"[3,4]":5,"null":6,"red":7}'),
        ({"b", "a", "c"}, '["a","b","c"]'),
        ({2, 1, "x"}, '[1,2,"x"]'),
        (Colour.RED, "red"),
        ([Colour.RED, Level.HIGH], '["red",3]'),
        (Point(1, [Point(2)]), '{"x":1,"y":[{"x":2,"y":null}]}'),
        (Place(name="Rome", when=date(2024, 2, 29)), '{"title":"Rome","when":"2024-02-29"}'),
        ([Place(name="Rome", when=date(2024, 2, 29))], '[{"title":"Rome","when":"2024-02-29"}]'),
        (datetime(2024, 2, 29, tzinfo=UTC), "2024-02-29T00:00:00Z"),
        ([Decimal("1.10"), timedelta(seconds=1)], '["1.10","PT1S"]'),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/a"), "/a"),
        (Pair(1, 2), "[1,2]"),
        (deque([1]), "[1]"),
        (range(3), "[0,1,2]"),
        ({"a": 1}.keys(), '["a"]'),
        (OrderedDict[str, int](a=1), '{"a":1}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (b"bytes that are text", "bytes that are text"),
        (b"\xff\xfe", "(2 bytes that are not text)"),
        ({"x": "\ud83d"}, '{"x":"\ud83d"}'),
        (Array(), '[1.0,"nan"]'),
        (Silent(), "(a result of the type `Silent` that cannot be shown: RuntimeError)"),
        ([Silent()], '["(a result of the type `Silent` that cannot be shown: RuntimeError)"]'),
        (ValueError("wrong"), "wrong"),
        (Text("a part"), "a part"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_values_become_text(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_circular_value_is_shown_somehow() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert text_of(value) == "[1, [...]]"


def test_a_value_that_is_too_deep_is_reported() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert text_of(value) == "(a result of the type `list` that cannot be shown: RecursionError)"


def test_an_iterator_is_read_as_far_as_it_can_be_shown() -> None:
    assert text_of(map(str, range(3))) == '["0","1","2"]'
    assert text_of({"numbers": itertools.count()}, 10**6).endswith(
        ',9999,"[... only the first 10,000 were asked for ...]"]}'
    )


def test_media_stay_media_in_their_order() -> None:
    assert to_parts(PICTURE) == (PICTURE,)
    assert to_parts(["Look:", PICTURE, {"a": 1}, Text("end")]) == (Text("Look:"), PICTURE, Text('{"a":1}'), Text("end"))
    assert to_parts((PICTURE, None)) == (PICTURE,)


def test_media_inside_json_follow_after_it() -> None:
    assert to_parts({"caption": "x", "image": PICTURE, "more": [PICTURE]}) == (
        Text('{"caption":"x","image":"[media 1]","more":["[media 2]"]}'),
        PICTURE,
        PICTURE,
    )


def test_a_long_text_is_cut_in_the_middle_with_a_note() -> None:
    text = "a" * 60_000 + "b" * 90_000
    assert text_of(text) == "a" * 25_000 + "\n\n[... 100,000 characters left out here ...]\n\n" + "b" * 25_000
    assert text_of("x" * RESULT_LIMIT) == "x" * RESULT_LIMIT


def test_all_texts_count_together_and_media_are_not_cut() -> None:
    parts: list[Part] = [Text("a" * 6), PICTURE, Text("b" * 6), PICTURE, Text("c" * 6)]
    assert to_parts(parts, limit=10) == (
        Text("aaaaa\n\n[... 8 characters left out here ...]\n\n"),
        PICTURE,
        PICTURE,
        Text("ccccc"),
    )


@pytest.mark.parametrize("one", ["👩‍👩‍👧‍👦", "é", "👍🏽", "🇫🇷", "\ud83d\ude00", "நி"])
@pytest.mark.parametrize("limit", range(20, 30))
def test_a_cut_does_not_split_what_a_reader_sees_as_one_character(one: str, limit: int) -> None:
    head, tail = text_of(one * 30, limit).split("\n\n[...")
    tail = tail.partition("...]\n\n")[2]
    assert head == one * (len(head) // len(one))
    assert tail == one * (len(tail) // len(one))


@given(st.text(max_size=60), st.integers(2, 40))
def test_a_cut_keeps_the_ends_and_counts_what_is_left_out(text: str, limit: int) -> None:
    (part,) = to_parts(text or "x", limit)
    assert isinstance(part, Text)
    if len(text) <= limit or not text.strip():
        return
    head, _, rest = part.text.partition("\n\n[... ")
    count, _, tail = rest.partition(" characters left out here ...]\n\n")
    if count.isdigit():  # the text itself may contain these words
        assert len(head) + int(count) + len(tail) == len(text)
        assert text.startswith(head)
        assert text.endswith(tail)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(VALUES)
def test_any_value_becomes_meaningful_parts(value: object) -> None:
    parts = to_parts(value)
    assert parts
    assert all(isinstance(part, Text) and part.text.strip() for part in parts)
    assert parts == to_parts(value)


def test_a_tool_may_return_data_for_the_program_next_to_the_text_for_the_model() -> None:
    @tool(effect="read")
    def search(query: str) -> ToolOutput:
        """Search."""
        return ToolOutput({"found": query}, data=[f"source of {query}"])

    model = ScriptedModel([Call("search", query="a"), Call("search", query="a"), Call("search", query="b")], "Done.")
    result = run_virtual(Agent(model, [search]).run("Search."))
    assert [call.result.text for call in result.calls] == ['{"found":"a"}', '{"found":"a"}', '{"found":"b"}']
    assert [call.result.data for call in result.calls] == [["source of a"], ["source of a"], ["source of b"]]
    assert "source of" not in str(model.bodies[-1])
