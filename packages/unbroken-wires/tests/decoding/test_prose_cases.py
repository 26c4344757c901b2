"""Leaked calls as other engines' parsers are tested on them: read at every chunk size, and nothing more than that."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import pytest
from corpus import LEAKS, NO_LEAKS, NOT_COUNTED, LeakCase, leak_cases
from leaks import Item, calls_in, everything, join, texts_in
from streams import chunk, sse

from unbroken import decode
from unbroken_wires.decoding.leaked_calls import Prose

CASES = leak_cases("vllm.jsonl")
WITH_CALLS = [case for case in CASES if case.calls and case.dialect not in NOT_COUNTED]
PLAIN = [case for case in CASES if not case.calls]
BROKEN = leak_cases("vllm-broken.jsonl")
SIZES = (1, 2, 3, 5, 8, 13, 40)

pytestmark = pytest.mark.skipif(not LEAKS.exists(), reason=NO_LEAKS)

STRINGS_WITHOUT_A_SCHEMA = "vllm-step3-1a187575"
"""Its tool has no schema, and the engine takes all values for strings; strict JSON is taken for what it is here."""


def read(case: LeakCase, pieces: list[str]) -> list[Item]:
    prose = Prose(case.tools, case.tools)
    return join([item for piece in pieces for item in prose.feed(piece)] + prose.end())


def found(items: list[Item]) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in calls_in(items)]


def loosely(value: Any) -> Any:
    """Where only a schema could tell, "3" and 3 are the same."""
    match value:
        case dict():
            return {key: loosely(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [loosely(item) for item in cast("list[Any]", value)]
        case str():
            return value
        case _:
            return json.dumps(value)


def is_read(case: LeakCase, items: list[Item]) -> bool:
    calls = found(items)
    alike = loosely(calls) == loosely(case.calls) if case.needs else calls == case.calls
    return alike and (case.rest is None or "".join(texts_in(items).split()) == "".join(case.rest.split()))


def test_the_cases_are_all_there() -> None:
    assert (len(WITH_CALLS), len(PLAIN), len(BROKEN)) == (392, 55, 48)


def test_the_calls_of_all_dialects_are_read() -> None:
    unread = [case.id for case in WITH_CALLS if not is_read(case, read(case, [case.text]))]
    assert unread == [STRINGS_WITHOUT_A_SCHEMA]
    assert len(Counter(case.dialect for case in WITH_CALLS)) == 44


ALL_CASES = [*CASES, *BROKEN]


@pytest.mark.parametrize("cases", [ALL_CASES[at : at + 50] for at in range(0, len(ALL_CASES), 50)], ids=lambda _: "")
def test_no_split_changes_anything_and_no_character_is_lost(cases: list[LeakCase]) -> None:
    for case in cases:
        items = read(case, [case.text])
        assert everything(items) == case.text, case.id
        for pieces in [case.pieces(size) for size in SIZES] + [case.chunks]:
            if "".join(pieces) == case.text:
                assert read(case, pieces) == items, case.id


def test_plain_text_stays_as_it_is() -> None:
    for case in PLAIN:
        assert read(case, [case.text]) == [case.text], case.id


def test_a_broken_form_is_no_call() -> None:
    for case in BROKEN:
        assert all(call in case.calls for call in found(read(case, [case.text]))), case.id


def test_whole_calls_beside_broken_ones_are_read() -> None:
    missed = [case.id for case in BROKEN if found(read(case, [case.text])) != case.calls]
    assert missed == []


@pytest.mark.parametrize("case", [case for case in CASES if case.dialect == "unclosed"], ids=lambda case: case.id)
def test_a_call_without_its_closing_mark_counts_only_at_a_clean_end(case: LeakCase) -> None:
    well = decode(sse(chunk({"content": case.text}), chunk({}, "stop")), tools=case.tools)
    assert [{"name": call.name, "arguments": call.arguments} for call in well.calls] == case.calls
    for finish in ("length", "content_filter"):
        cut = decode(sse(chunk({"content": case.text}), chunk({}, finish)), tools=case.tools)
        assert (cut.calls, cut.text) == ((), case.text) or "<|close|>call<|sep|>" in case.text


@pytest.mark.parametrize("size", [1, 4, 4096])
def test_the_decoder_reads_the_same(size: int) -> None:
    for case in [*WITH_CALLS, *PLAIN]:
        body = sse(*(chunk({"content": piece}) for piece in case.pieces(size)), chunk({}, "stop"))
        response = decode(body, tools=case.tools)
        items = read(case, [case.text])
        assert response.text == texts_in(items), case.id
        assert [(call.name, call.arguments) for call in response.calls] == calls_in(items), case.id
