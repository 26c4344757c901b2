"""anthropic-messages, responses that deviate from the protocol, as some servers and some of Anthropic's tools send
them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams import calls_of, feed
from test_wire_anthropic import START, STOP, Event, begin, delta, end, finish, piece, read, sse, streamed, text, use

from unbroken import Decoder, Ended, TextDelta, Verdict
from unbroken_wires.deltas import VerdictKind
from unbroken_wires.wires.anthropic import WIRE, MessagesEncoder

CALL: Event = {"type": "tool_use", "id": "toolu_f", "name": "lookup", "input": {"id": "c"}}


def start_with(*content: Event, reason: str | None = None) -> Event:
    return {"type": "message_start", "message": {"content": list(content), "stop_reason": reason, "usage": {}}}


# A message that begins with content


@pytest.mark.parametrize("last", [[STOP], [finish("tool_use"), STOP], [finish("tool_use")], []])
def test_a_call_at_the_beginning_of_the_message_is_complete(last: list[Event]) -> None:
    response = read(sse(start_with(CALL, reason="tool_use"), *last))
    assert calls_of(response) == [("toolu_f", "lookup", {"id": "c"})]
    assert (response.finish, response.verdict.kind) == ("tool_use", "whole")


def test_blocks_after_the_initial_content_are_separate() -> None:
    for index in (0, 1):
        body = sse(start_with(CALL), *use(index, "b", "f", '{"n": 1}'), finish("tool_use"), STOP)
        assert calls_of(read(body)) == [("toolu_f", "lookup", {"id": "c"}), ("b", "f", {"n": 1})]
        assert feed(body, 7, WIRE.name) == feed(body, 1000, WIRE.name)


def test_numbers_in_the_initial_message_are_exact() -> None:
    body = sse(start_with({**CALL, "input": {"n": 10**30}}, reason="tool_use"))
    assert read(body).calls[0].arguments == {"n": 10**30}


def test_a_call_in_the_initial_message_that_the_limit_cut_off_never_runs() -> None:
    (first, last) = read(sse(start_with(CALL, {**CALL, "id": "b"}, reason="max_tokens"), STOP)).calls
    assert (first.arguments, last.arguments) == ({"id": "c"}, None)


def test_an_initial_block_can_be_continued() -> None:
    opened: Event = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    body = sse(start_with(opened), piece(0, '{"n": 1}'), end(0), finish("tool_use"), STOP)
    assert calls_of(read(body)) == [("a", "f", {"n": 1})]


def test_a_call_with_initial_input_keeps_it_without_an_end_of_the_block() -> None:
    opened = begin(0, type="tool_use", id="a", name="f", input={"n": 1})
    assert read(sse(START, opened, finish("tool_use"))).calls[0].arguments == {"n": 1}
    assert read(sse(START, opened, finish("max_tokens"), STOP)).calls[0].arguments is None


# A body without its type


def test_a_body_without_its_type_is_read_by_its_role_and_content() -> None:
    said: list[Event] = [{"type": "text", "text": "hi"}, {**CALL, "input": {"n": 10**30}}]
    body: Event = {"role": "assistant", "content": said, "stop_reason": "tool_use", "usage": {"input_tokens": 3}}
    for typed in (body, {**body, "type": None}):
        response = read(json.dumps(typed).encode())
        assert (response.text, response.finish, response.verdict.kind) == ("hi", "tool_use", "whole")
        assert calls_of(response) == [("toolu_f", "lookup", {"n": 10**30})]


@pytest.mark.parametrize("body", [{"role": "user", "content": []}, {"role": "assistant"}, {"content": [CALL]}])
def test_an_ambiguous_body_is_not_a_message(body: Any) -> None:
    assert read(json.dumps(body).encode()).verdict.kind == "foreign"


# Repeated texts


@pytest.mark.parametrize(
    ("opening", "pieces", "whole"),
    [
        ("", ["Hel", "lo"], "Hello"),
        ("Hel", ["Hello", "!"], "Hello!"),
        ("Hel", ["Hel", "lo", "Hel"], "HelloHel"),
        ("Hel", ["lo", "Hel"], "HelloHel"),
        ("Hel", [], "Hel"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "thinking"])
def test_initial_text_of_a_block_counts_once(kind: str, opening: str, pieces: list[str], whole: str) -> None:
    opened = begin(0, **{"type": kind, kind: opening})
    deltas = [delta(0, f"{kind}_delta", **{kind: text}) for text in pieces]
    response = read(streamed(opened, *deltas, end(0), *text(1, "."), reason="end_turn"))
    assert response.reasoning + response.text == f"{whole}."
    native = response.message.native
    assert native is not None
    assert native.value[0][kind] == whole


def test_a_stream_that_ends_with_the_complete_message_reads_it_once() -> None:
    said = [{"type": "text", "text": "Hello"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}}]
    summary = {"type": "message", "role": "assistant", "content": said, "stop_reason": "tool_use"}
    body = sse(START, *text(0, "Hel", "lo"), *use(1, "a", "f", '{"n": 1}'), summary)
    response = read(body)
    assert (response.text, calls_of(response), response.finish) == ("Hello", [("a", "f", {"n": 1})], "tool_use")


# Broken responses are written as errors


@pytest.mark.parametrize("kind", ["unfinished", "damaged", "error", "foreign"])
def test_a_failed_response_is_written_as_an_error(kind: VerdictKind) -> None:
    encoder = MessagesEncoder("claude", "msg_1")
    stream = encoder.feed(TextDelta("Hel")) + encoder.feed(Ended(Verdict(kind, "the connection broke")))
    *_, name, data = stream.decode().strip().splitlines()
    assert name == "event: error"
    error = {"type": "error", "error": {"type": "api_error", "message": "the connection broke"}}
    assert json.loads(data.removeprefix("data: ")) == json.loads(encoder.body()) == error
    decoder = Decoder(WIRE.name)
    decoder.feed(stream)
    assert (decoder.response().verdict.kind, decoder.response().text) == ("error", "Hel")
