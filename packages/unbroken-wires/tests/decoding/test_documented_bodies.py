"""An unambiguous non-streaming body is read on a fast path, with exactly the result of the decoder."""

from __future__ import annotations

import json
from typing import Any

import pytest
from corpus import ABSENT, recordings
from hypothesis import given
from hypothesis import strategies as st

from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.decoder import look_at
from unbroken_wires.deltas import Ended, UsageReported
from unbroken_wires.messages import Request, Sampling, User
from unbroken_wires.wires import find_wire

CHAT = find_wire("openai-chat")
ASKED = Request((User.of("Hello?"),))


def call(id: str = "call_1", name: str = "look", arguments: str = '{"at": 1}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def body(*calls: dict[str, Any], content: str | None = None, finish: str = "", **more: Any) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], **more}).encode()


def assert_read_alike(data: bytes, request: Request = ASKED) -> bool:
    """If the fast path applies, its result equals the decoder's. Returns whether it applied."""
    plain = look_at(CHAT, data, request.sampling.max_tokens)
    if plain is None:
        return False
    decoder = Decoder("openai-chat", None, request)
    deltas = [*decoder.feed(data), *decoder.end()]
    usage = [delta.usage for delta in deltas if isinstance(delta, UsageReported)]
    ended = deltas[-1]
    assert isinstance(ended, Ended)
    assert ended.verdict.whole
    assert (plain.message(), plain.finish) == (ended.message, ended.verdict.finish)
    assert ([plain.usage] if plain.usage else []) == usage[-1:]
    return True


def test_text_and_calls_are_read_on_the_fast_path() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    assert assert_read_alike(body(content="Hello.", usage=usage))
    assert assert_read_alike(body(call("a"), call("b", arguments='{"long": 123456789012345678901234567890}')))
    assert assert_read_alike(body(call("a"), content="Let me look."))


@pytest.mark.parametrize(
    "data",
    [
        body(call("")),
        body(call("a"), call("a")),
        body(call(arguments="")),
        body(call(arguments='{"cut')),
        body(call(arguments='"{}"')),
        body(call(arguments="[1]")),
        body(call(arguments='{"x": NaN}')),
        body(call(name="")),
        body(call(), finish="stop"),
        body(content="Hello.", finish="length"),
        body(content="", finish="stop"),
        body(content="Hello.", error={"message": "no"}),
        b'{"choices": []}',
        b"[]",
        b"{",
        b"<html>",
        b"",
    ],
)
def test_unusual_bodies_are_left_to_the_decoder(data: bytes) -> None:
    assert look_at(CHAT, data) is None


def test_content_that_must_be_sent_back_is_left_to_the_decoder() -> None:
    value = json.loads(body(call()))
    value["choices"][0]["message"]["reasoning_content"] = "Hm."
    assert look_at(CHAT, json.dumps(value).encode()) is None


def test_a_response_that_reached_its_limit_is_left_to_the_decoder() -> None:
    limited = Request(ASKED.messages, sampling=Sampling(max_tokens=7))
    spent = {"prompt_tokens": 5, "completion_tokens": 7}
    assert look_at(CHAT, body(content="Hello.", usage=spent), 7) is None
    assert assert_read_alike(body(content="Hello.", usage={"prompt_tokens": 5, "completion_tokens": 6}), limited)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.none() | st.text(max_size=20) | JSON,
    arguments=st.lists(JSON | st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=3),
    ids=st.lists(st.text(max_size=6), min_size=3, max_size=3),
    finish=st.sampled_from(["stop", "tool_calls", "length", "", None]),
    usage=st.none() | st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]), JSON),
)
def test_any_body_is_read_the_same_way(
    content: Any, arguments: list[Any], ids: list[str], finish: str | None, usage: Any
) -> None:
    calls = [call(id, arguments=json.dumps(value)) for id, value in zip(ids, arguments, strict=False)]
    message = {"role": "assistant", "content": content, "tool_calls": calls or None}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    assert_read_alike(json.dumps({"choices": [choice], "usage": usage}).encode())


def test_all_recorded_bodies_are_read_the_same_way() -> None:
    recorded = recordings()
    if not recorded:
        pytest.skip(ABSENT)
    bodies = [each.body for each in recorded if each.wire == "openai-chat" and not each.stream]
    assert sum(map(assert_read_alike, bodies)) > 10
