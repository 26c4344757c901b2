"""The chain grows only in valid steps, and its saved form is exact."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import InvalidStep, UserError
from unbroken_wires.messages import (
    Assistant,
    Media,
    Message,
    Native,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.transcript import Transcript, from_json, to_json


def call(id: str, name: str = "search") -> ToolCall:
    return ToolCall(id, name, {})


def result(id: str, text: str = "ok") -> ToolResult:
    return ToolResult(id, (Text(text),))


def asked(*ids: str) -> Transcript:
    return Transcript([User.of("hi"), Assistant(calls=tuple(call(id) for id in ids))])


def test_results_in_any_order_are_put_in_call_order() -> None:
    transcript = asked("a", "b", "c")
    transcript.answer(result("c"))
    transcript.answer(result("a"))
    assert [call.id for call in transcript.open] == ["b"]
    assert len(transcript.messages) == 2
    transcript.answer(result("b"))
    assert transcript.messages[-1] == ToolMessage((result("a"), result("b"), result("c")))
    assert transcript.closed
    assert transcript.open == ()


def test_results_may_be_added_all_at_once() -> None:
    transcript = asked("a", "b")
    transcript.add(ToolMessage((result("a"), result("b"))))
    transcript.add(Assistant("done"))
    assert transcript.closed


def test_ids_may_repeat_in_the_next_round() -> None:
    transcript = asked("a")
    transcript.answer(result("a"))
    transcript.add(Assistant(calls=(call("a"),)))
    transcript.answer(result("a", "again"))
    assert transcript.closed


def test_a_history_may_end_with_open_calls() -> None:
    assert [call.id for call in asked("a", "b").open] == ["a", "b"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (User.of("well?"), "User cannot be added while a call lacks its result; open: `a` (`search`), `b` (`search`)"),
        (System.of("be brief"), "System cannot be added"),
        (Assistant("I guess"), "Assistant cannot be added"),
        (ToolMessage((result("a"),)), "call `b` (`search`) has no result"),
        (ToolMessage((result("b"), result("a"))), "the result of call `b` (`search`) is not in call order"),
        (ToolMessage((result("a"), result("a"), result("b"))), "call `a` (`search`) has two results"),
        (ToolMessage((result("a"), result("b"), result("x"))), "no open call has the id `x`"),
        (ToolMessage(()), "call `a` (`search`) has no result"),
    ],
)
def test_a_step_that_breaks_the_chain_is_refused_and_changes_nothing(step: Message, words: str) -> None:
    transcript = asked("a", "b")
    before = transcript.messages
    with pytest.raises(InvalidStep) as refused:
        transcript.add(step)
    assert words in str(refused.value)
    assert "use `repair`" in str(refused.value)
    assert transcript.messages == before
    assert [call.id for call in transcript.open] == ["a", "b"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Assistant(calls=(call("a"), call("a"))), "two calls of one message have the id `a`"),
        (Assistant(calls=(call("a"), call(""))), "call 1 (`search`) has no id"),
        (ToolMessage((result("a"),)), "no open call has the id `a`; no call is open"),
        (ToolMessage(()), "a ToolMessage without results"),
    ],
)
def test_a_closed_transcript_refuses_invalid_messages(step: Message, words: str) -> None:
    transcript = Transcript([User.of("hi")])
    with pytest.raises(InvalidStep) as refused:
        transcript.add(step)
    assert words in str(refused.value)
    assert transcript.messages == (User.of("hi"),)
    assert transcript.closed


def test_a_call_gets_only_one_result() -> None:
    transcript = asked("a", "b")
    transcript.answer(result("a"))
    with pytest.raises(InvalidStep, match="has a result already"):
        transcript.answer(result("a", "another"))
    with pytest.raises(InvalidStep, match="no open call has the id `x`"):
        transcript.answer(result("x"))
    with pytest.raises(InvalidStep, match="answer the others one at a time"):
        transcript.add(ToolMessage((result("a"), result("b"))))
    transcript.answer(result("b"))
    assert transcript.messages[-1] == ToolMessage((result("a"), result("b")))


def test_a_broken_history_is_refused_with_its_position() -> None:
    with pytest.raises(InvalidStep, match="message 2: User cannot be added"):
        Transcript([User.of("hi"), Assistant(calls=(call("a"),)), User.of("hello?")])


_ids = st.sampled_from(["a", "b", "c", ""])
_steps = st.one_of(
    st.just(User.of("u")),
    st.builds(Assistant, calls=st.lists(st.builds(call, _ids), max_size=3).map(tuple)),
    st.builds(ToolMessage, st.lists(st.builds(result, _ids), max_size=3).map(tuple)),
    st.builds(result, _ids),
)


@given(st.lists(_steps, max_size=25))
def test_no_sequence_of_steps_breaks_the_chain(steps: list[Message | ToolResult]) -> None:
    transcript = Transcript()
    for step in steps:
        before = (transcript.messages, transcript.open)
        try:
            if isinstance(step, ToolResult):
                transcript.answer(step)
            else:
                transcript.add(step)
        except InvalidStep:
            assert (transcript.messages, transcript.open) == before
        _assert_chain(transcript)


def _assert_chain(transcript: Transcript) -> None:
    due: list[str] = []
    for message in transcript.messages:
        if isinstance(message, ToolMessage):
            assert [result.call_id for result in message.results] == due != []
            due = []
        else:
            assert not due
            due = [call.id for call in message.calls] if isinstance(message, Assistant) else []
            assert len(set(due)) == len(due)
            assert all(due)
    assert transcript.closed == (not due)
    assert {call.id for call in transcript.open} <= set(due)


_text = st.text(st.characters(), max_size=6)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_cache: st.SearchStrategy[Any] = st.sampled_from(["", "5m", "1h"])
_texts = st.builds(Text, _text, _cache)
_media = st.builds(Media, mime=st.just("image/png"), data=st.just("aGk="), cache=_cache) | st.builds(
    Media, mime=_text, url=st.just("https://example.org/i"), cache=_cache
)
_parts = st.lists(_texts | _media, max_size=3).map(tuple)
_strings = st.lists(_text, max_size=2).map(tuple)
_calls = st.builds(
    ToolCall,
    id=_text,
    name=_text,
    arguments=st.none() | st.dictionaries(_text, _json, max_size=3),
    raw=_text,
    index=st.integers(0, 9),
    complete=st.booleans(),
    kind=st.sampled_from(["function", "custom"]),
    problem=_text,
    notes=_strings,
)
_results = st.builds(
    ToolResult, call_id=_text, content=_parts, error=st.booleans(), name=_text, duplicate_of=_text, cache=_cache
)
_natives = st.builds(Native, wire=_text, value=_json, ids=_strings)
_messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(System, st.lists(_texts, max_size=2).map(tuple)),
    st.builds(User, _parts),
    st.builds(Assistant, _text, st.lists(_calls, max_size=3).map(tuple), _text, st.none() | _natives),
    st.builds(ToolMessage, st.lists(_results, max_size=3).map(tuple)),
)


@given(st.lists(_messages, max_size=6))
def test_the_saved_form_is_exact(messages: list[Message]) -> None:
    assert from_json(json.loads(json.dumps(to_json(messages)))) == tuple(messages)


def test_an_error_result_is_saved_as_metadata() -> None:
    saved = to_json([ToolMessage((ToolResult("a", (Text("Error: no"),), error=True),))])
    content = [{"type": "text", "text": "Error: no"}]
    assert saved == [{"role": "tool", "results": [{"call_id": "a", "content": content, "metadata": {"error": True}}]}]


def test_a_saved_history_shares_nothing_with_its_messages() -> None:
    message = Assistant(calls=(ToolCall("a", "pay", {"to": {"iban": "DE1"}}),), native=Native("gemini", [{"n": [1]}]))
    saved = to_json([message])
    saved[0]["calls"][0]["arguments"]["to"]["iban"] = "DE2"
    saved[0]["native"]["value"][0]["n"].append(2)
    assert message.calls[0].arguments == {"to": {"iban": "DE1"}}
    assert message.native == Native("gemini", [{"n": [1]}])


UNREADABLE: list[tuple[Any, str]] = [
    ({}, "a saved history is a list of messages, not an object"),
    ([7], "message 0 of the saved history cannot be read: a number stands where an object should"),
    ([{"role": "robot"}], "its role is 'robot'"),
    ([{"role": "user"}], "`content` is missing"),
    ([{"role": "user", "content": "hi"}], "`content` is text, not a list"),
    ([{"role": "user", "content": [{"type": "media"}]}], "Media needs either data"),
    ([{"role": "user", "content": [{"type": "text", "text": "", "cache": []}]}], "`cache` is []"),
    ([{"role": "system", "content": [{"type": "media", "url": "x"}]}], "nothing but text"),
    ([{"role": "assistant", "calls": [{"id": "a", "name": "f"}]}], "`complete` is missing"),
    ([{"role": "assistant", "calls": [{"id": 1, "name": "f"}]}], "`id` is a number, not text"),
    ([{"role": "assistant", "native": {"wire": "gemini", "ids": [1]}}], "`ids` holds something other than text"),
    ([{"role": "tool", "results": [{"call_id": "a", "content": [], "metadata": 1}]}], "`metadata` is a number"),
]


@pytest.mark.parametrize(("saved", "words"), UNREADABLE)
def test_an_invalid_saved_history_is_refused_with_a_message(saved: Any, words: str) -> None:
    with pytest.raises(UserError) as refused:
        from_json(saved)
    assert words in str(refused.value)


@given(_json)
def test_any_json_is_read_or_refused(saved: Any) -> None:
    for value in (saved, [saved], [{"role": "assistant", "calls": [saved]}], [{"role": "tool", "results": [saved]}]):
        with suppress(UserError):
            from_json(value)
