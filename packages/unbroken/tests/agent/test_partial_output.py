"""A structured answer while it is written: values are valid, never contradict each other, and cost linear work."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from unbroken import Agent, Output, RetryingModel, ScriptedModel, UserError
from unbroken.agent.output import ANSWER
from unbroken.agent.partial_output import FREE, WORK, Prefix
from unbroken_testing import Break, Call, Say, run_virtual


class Line(BaseModel):
    text: str
    number: int


class Story(BaseModel):
    title: str = ""
    lines: list[Line] = []
    end: bool = False


STORY = Story(title='A "new" day', lines=[Line(text="Rain.", number=12), Line(text="{[sun", number=345)], end=True)
TEXT = STORY.model_dump_json(indent=1)


def watched(*script: Any, output: Any = Story, **options: Any) -> list[Any]:
    async def main() -> list[Any]:
        model = RetryingModel(ScriptedModel(*script), first_wait=0.01)
        async with Agent(model, output=output, **options).stream("?") as stream:
            seen = [value async for value in stream.outputs()]
            assert seen[-1] == stream.result.output
            return seen

    return run_virtual(main())


@pytest.mark.parametrize("chunks", [1, 7, len(TEXT)])
@pytest.mark.parametrize("by_call", [False, True], ids=["as text", "as a call"])
def test_the_answer_grows_to_its_final_value(by_call: bool, chunks: int) -> None:
    seen = watched(Call(ANSWER, TEXT, pieces=chunks) if by_call else Say(TEXT, chunks=chunks))
    assert seen[-1] == STORY
    assert (len(seen) > 10) is (chunks > 7)
    for before, after in pairwise(seen):
        assert after.title.startswith(before.title)
        assert after.lines[: len(before.lines)] == before.lines
    assert {line.number for value in seen for line in value.lines} == {12, 345}


NATIVE_TEXT = Output(str, via="native")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(int, 123), (list[int], [10, 200]), (NATIVE_TEXT, "a long text"), (dict[str, int], {"a": 1, "b": 22})],
)
def test_plain_types_grow_as_well(kind: Any, value: Any) -> None:
    text = json.dumps(value if isinstance(value, dict) else {"value": value})
    seen = watched(Say(text, chunks=len(text)), output=kind)
    assert seen[-1] == value
    assert len(seen) > 1 or kind is int


def test_a_repeated_answer_continues_where_its_stream_broke() -> None:
    seen = watched([Say(TEXT[:60], chunks=20), Break()], Say(TEXT, chunks=20))
    titles = [value.title for value in seen]
    assert titles == sorted(titles, key=len)
    assert seen[-1] == STORY
    assert len({value.model_dump_json() for value in seen}) == len(seen)


def test_a_different_answer_after_a_broken_stream_is_shown_only_when_it_is_complete() -> None:
    first, second = '{"title": "One", "lines": []', '{"title": "Two", "lines": [], "end": true}'
    seen = watched([Say(first, chunks=10), Break()], Say(second, chunks=10))
    assert [value.title for value in seen if value.end] == ["Two"]
    assert all("One".startswith(value.title) for value in seen[:-1])


def test_an_answer_that_does_not_fit_is_shown_until_its_correction() -> None:
    wrong = '{"title": "One", "lines": 3}'
    seen = watched(Say(wrong, chunks=10), Say('{"title": "Two"}', chunks=5))
    assert all("One".startswith(value.title) for value in seen[:-1])
    assert seen[-1] == Story(title="Two")


def test_words_before_the_answer_are_no_part_of_it() -> None:
    seen = watched([Say("Let me see."), Call(ANSWER, TEXT, pieces=9)])
    assert seen[-1] == STORY
    assert len(seen) > 2


def test_a_long_answer_is_validated_less_often() -> None:
    read = 0

    class Long(BaseModel):
        parts: list[str]

        @field_validator("parts")
        @classmethod
        def count(cls, parts: list[str]) -> list[str]:
            nonlocal read
            read += sum(map(len, parts))
            return parts

    for size in (20_000, 80_000):
        read = 0
        text = json.dumps({"parts": ["x" * 20] * (size // 25)})
        seen = watched(Say(text, chunks=len(text) // 20), output=Long)
        assert len(seen) > 20
        assert read < WORK * len(text) + FREE + 3 * len(text)


def test_a_stream_of_values_needs_a_type_and_an_unread_stream() -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="give it one with output="):
            await anext(Agent(ScriptedModel("Hello.")).stream("?").outputs())
        stream = Agent(ScriptedModel(TEXT), output=Story).stream("?")
        await anext(stream)
        with pytest.raises(UserError, match="read already"):
            await anext(stream.outputs())
        await stream.aclose()

    run_virtual(main())


def test_a_stream_whose_values_are_read_does_not_yield_events() -> None:
    async def main() -> None:
        async with Agent(ScriptedModel(Say(TEXT, chunks=9)), output=Story).stream("?") as stream:
            async for value in stream.outputs():
                assert value.title
                break
            for _ in range(2):
                with pytest.raises(UserError, match=r"read with stream\.outputs\(\); events go to `sinks=`"):
                    await anext(stream)
        with pytest.raises(RuntimeError, match="closed before the end"):
            _ = stream.result
        async with Agent(ScriptedModel(TEXT), output=Story).stream("?") as stream:
            assert [value async for value in stream.outputs()][-1] == STORY
            with pytest.raises(UserError, match=r"read with stream\.outputs"):
                await anext(stream)
            assert stream.result.output == STORY

    run_virtual(main())


Values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def extends(before: Any, after: Any, last: bool = True) -> bool:
    """Whether `after` has all of `before`, and more only at its end."""
    match before, after:
        case {**old}, {**new}:
            names = list(old)
            return list(new)[: len(names)] == names and all(
                extends(old[name], new[name], last and name == names[-1]) for name in names
            )
        case [*old], [*new]:
            each = zip(old, new, strict=False)
            return len(new) >= len(old) and all(
                extends(one, other, last and n == len(old) - 1) for n, (one, other) in enumerate(each)
            )
        case str(), str() if last:
            return after.startswith(before)
        case _:
            return type(before) is type(after) and before == after


@given(st.dictionaries(st.text(max_size=4), Values, max_size=4), st.booleans())
def test_no_value_contradicts_an_earlier_one(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    output: Output[Any] = Output(dict[str, Any])
    prefix, seen = Prefix(), list[Any]()
    for letter in text:
        prefix.add(letter)
        for candidate in prefix.candidates():
            try:
                seen.append(output.read_partial(candidate))
            except ValueError:
                continue
            break
    assert seen[-1] == value
    longest: Any = {}
    for each in seen:
        assert extends(longest, each) or extends(each, longest), (longest, each)
        longest = each if extends(longest, each) else longest
