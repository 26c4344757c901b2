"""Input that is not a response, too large, too deep, or malformed: a typed error or verdict, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from samples import SAMPLES
from streams import calls_chunk, chat, chunk, feed, piece, sse
from work_done import counted

from unbroken import Decoder, UserError, decode
from unbroken.errors import NotAResponse, StreamError, TooDeep, TooLarge, UnknownWire
from unbroken_wires.deltas import TextDelta
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.sse import Framer

HTML = b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head></html>\n"
every_wire = pytest.mark.parametrize("wire", WIRES)


def test_an_unknown_wire_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownWire, match="no wire 'openai'; there are: openai-chat, openai-responses"):
        decode(b"{}", wire="openai")


@every_wire
@pytest.mark.parametrize("body", [b"", b" \n\r\n", b"\xef\xbb\xbf"])
def test_an_empty_body_is_not_a_response(wire: str, body: bytes) -> None:
    with pytest.raises(NotAResponse, match=f"decoding as {wire} failed"):
        decode(body, wire=wire)


@every_wire
def test_html_instead_of_json_is_named_as_such(wire: str) -> None:
    with pytest.raises(NotAResponse, match="the body is HTML, not a response: <!DOCTYPE html>"):
        decode(HTML, wire=wire)


@every_wire
@pytest.mark.parametrize(
    "body", [b"Service Unavailable", b"null", b"[]", b"{}", b'"text"', b"data: 5\n\n", b'{"x": 1}']
)
def test_noise_is_not_a_response(wire: str, body: bytes) -> None:
    with pytest.raises(NotAResponse):
        decode(body, wire=wire)


@pytest.mark.parametrize(
    "piece", [b"x" * 65536, b"\x00\xff" * 32768, b"[" * 65536, b'{"a' * 21000, b"data: " + b"y" * 65530]
)
def test_a_hundred_megabytes_of_garbage_are_refused_in_bounded_memory(piece: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(StreamError):
            read_over_and_over(piece, times=1600)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 1024 * 1024


def read_over_and_over(piece: bytes, times: int) -> None:
    decoder = Decoder("openai-chat", max_event=4 * 1024 * 1024)
    for _ in range(times):
        decoder.feed(piece)
    verdict = decoder.response().verdict
    if not verdict.whole:
        raise NotAResponse(verdict.reason)


def test_a_single_event_of_fifty_megabytes_is_refused() -> None:
    with pytest.raises(TooLarge, match="one event is larger than 33,554,432 bytes"):
        decode(b'data: {"choices": "' + b"x" * 50_000_000 + b'"}\n\n')


def test_a_non_streaming_body_of_fifty_megabytes_is_refused() -> None:
    with pytest.raises(TooLarge):
        decode(b'{"choices": [{"message": {"content": "' + b"x" * 50_000_000 + b'"}}]}')


def test_after_a_limit_nothing_that_was_open_counts_as_complete() -> None:
    decoder = Decoder("openai-chat")
    decoder.feed(sse(calls_chunk(piece(0, "a", "f", '{"path": "/tmp/')), done=False))
    lost = b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x/"}}]}}],"z":'
    with pytest.raises(TooDeep):
        decoder.feed(b"data: " + lost + b"[" * 1200 + b"]" * 1200 + b"}\n\n")
    with pytest.raises(TooDeep):
        decoder.feed(sse(calls_chunk(piece(0, arguments='y"}'), finish="tool_calls")))
    response = decoder.response()
    assert (response.calls[0].complete, response.verdict.kind) == (False, "damaged")


@every_wire
def test_objects_nested_almost_too_deep_never_recurse(wire: str) -> None:
    deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
    bodies = {
        "openai-chat": b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]}}]}',
        "anthropic-messages": b'{"type":"message","content":[{"type":"tool_use","id":"a","name":"f","input":%s}]}',
        "gemini": b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":%s}}]}}]}',
        "openai-responses": b'{"object":"response","output":[{"type":"shell_call","call_id":"a","action":%s}]}',
        "ollama": b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]},"done":true}',
        "cohere-v2": b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]},"finish_reason":"ERROR"}',
        "bedrock-converse": b'{"output":{"message":{"content":[{"toolUse":{"name":"f","input":%s}}]}}}',
    }
    for body in (bodies[wire] % deep, b'{"error": %s}' % deep):
        decoder = Decoder(wire)
        decoder.feed(b"data: " + body + b"\n\n")
        assert not any(call.complete for call in decoder.response().calls)


def test_the_limits_can_be_set() -> None:
    body = sse(chunk({"content": "x" * 5000}), chunk({}, "stop"))
    for decoder in (Decoder("openai-chat", max_event=1000), Decoder("openai-chat", max_body=1000)):
        with pytest.raises(TooLarge):
            decoder.feed(body)


@every_wire
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":[' * 50_000 + "]}" * 50_000])
def test_json_nested_a_hundred_thousand_deep_never_recurses(wire: str, text: str) -> None:
    for body in (text.encode(), b"data: " + text.encode() + b"\n\n", b"data: " + text.encode()):
        with pytest.raises((TooDeep, NotAResponse)):
            decode(body, wire=wire)


def test_an_incomplete_body_is_unfinished_and_not_foreign() -> None:
    for body in (
        b'{"choices":[{"index":0,"message":{"content":"Hel',
        b'data: {"choices":[{"del',
        b'[{"candidates": [{',
    ):
        response = decode(body)
        assert (response.verdict.kind, response.complete) == ("unfinished", False)


PIECES = [piece(0, "a", "f", '{"x": "a'), piece(0, arguments="bbb"), piece(0, arguments='"}')]
FINISHES = (None, None, "tool_calls")
A, B, C = (json.dumps(calls_chunk(p, finish=f)).encode() for p, f in zip(PIECES, FINISHES, strict=True))


BENT_FIELDS = [b"data; ", b"data ", b"dataz: ", b"datadata: ", b"event: xdata: ", b"id: 1data: "]


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    "body",
    [
        b"data: " + A + b"\n\ndata: " + B.replace(b"}", b"!", 1) + b"\ndata: " + C,
        b"data: " + A + b"\n\ndat!: " + B + b"\n\ndata: " + C + b"\n\n",
        A + b"\n" + B[1:] + b"\n" + C + b"\n",
        A + b"\nxx\n" + C + b"\n",
        *(b"data: " + A + b"\n\n" + field + B + b"\n\ndata: " + C + b"\n\n" for field in BENT_FIELDS),
        b"data: " + A + b"\n\n" + B[-30:] + b"\n\ndata: " + C + b"\n\n",
        b"data: " + A + b"\n\ndata: " + B[-30:] + b"\n\ndata: " + C + b"\n\n",
        b"[" + A + b",\n(" + B[1:] + b",\n" + C + b"]",
        b"data: " + A + b"\n\ndata: " + B.replace(b"bbb", b"b\xffb") + b"\n\ndata: " + C + b"\n\n",
    ],
)
def test_a_damaged_piece_never_leaves_a_call_that_looks_complete(body: bytes, size: int) -> None:
    decoder = Decoder("openai-chat")
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])
    response = decoder.response()
    assert not any(call.complete for call in response.calls)
    assert response.verdict.kind == "damaged"


def test_a_keep_alive_word_is_not_damage() -> None:
    body = sse(calls_chunk(piece(0, "a", "f", '{"x"')), done=False) + b"data: ping\n\ndata: [done]\n\n"
    assert decode(body + sse(calls_chunk(piece(0, arguments=": 1}"), finish="tool_calls"))).verdict.whole


@pytest.mark.parametrize("tail", [b"data: " + b"x" * 1000, b'data: {"a": ' + b"[" * 600])
def test_a_limit_that_is_reached_at_the_end_is_remembered(tail: bytes) -> None:
    decoder = Decoder("openai-chat", max_event=900)
    with pytest.raises(StreamError):  # noqa: PT012 - whichever of the two meets it
        decoder.feed(sse(chunk({"content": "hi"}, "stop"), done=False) + tail)
        decoder.end()
    assert decoder.response().verdict.kind == "damaged"


def test_a_gap_in_a_form_that_is_read_from_the_text_is_noticed() -> None:
    before, after = '<tool_call>{"name": "f", "arguments": {"a": "x', 'y"}}</tool_call>'
    body = (
        sse(chunk({"content": before}), done=False) + b'data: {"choi\x00\n\n' + sse(chunk({"content": after}, "stop"))
    )
    response = decode(body, tools=["f"])
    assert (response.calls, response.text) == ((), before + after)


def test_html_in_the_middle_of_a_stream_is_damage() -> None:
    body = chat(piece(0, "a", "f", "{}"), finish=None, done=False) + HTML
    assert decode(body).verdict.kind == "damaged"
    assert decode(body + sse(chunk({}, "tool_calls"))).verdict.kind == "damaged"


def test_a_json_error_in_the_middle_of_a_stream_is_an_error() -> None:
    body = chat(piece(0, "a", "f", '{"x"'), finish=None, done=False) + b'{"error": {"message": "upstream died"}}\n'
    response = decode(body)
    assert response.error == {"message": "upstream died"}
    assert response.verdict.kind == "error"
    assert "upstream died" in response.verdict.reason


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "overloaded", "type": "server_error"}},
        {"error": "overloaded"},
        {"object": "error", "message": "overloaded", "code": 40302},
        {"message": "overloaded", "type": "x"},
        {"detail": "overloaded"},
        {"detail": [{"msg": "overloaded"}]},
    ],
)
def test_an_error_body_of_any_shape_is_an_error(error: dict[str, object]) -> None:
    for body in (json.dumps(error, indent=2).encode(), sse(error, done=False)):
        response = decode(body)
        assert not response.complete
        assert response.verdict.kind == "error"
        assert "overloaded" in response.verdict.reason


MISSHAPEN: list[dict[str, Any]] = [
    {"choices": 5},
    {"choices": {"0": 1}},
    {"choices": [5]},
    {"choices": [{"delta": 5}]},
    {"choices": [{"delta": {"tool_calls": 5}}]},
    {"choices": [{"delta": {"tool_calls": [5]}}]},
    {"choices": [{"delta": {"tool_calls": [{"function": 5}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": [], "id": {}, "function": {"name": [], "arguments": [[]]}}]}}]},
    {"choices": [{"delta": {"content": {"a": 1}, "reasoning_details": 5, "function_call": []}}]},
    {"choices": [{"message": 5}]},
    {"choices": [{"delta": {}, "finish_reason": {"a": 1}}]},
    {"choices": [{"delta": {"content": "x"}}], "usage": []},
    {"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": "many"}},
]


@pytest.mark.parametrize("event", MISSHAPEN)
def test_values_of_unexpected_types_never_raise_and_lose_nothing_else(event: object) -> None:
    response = decode(sse(chunk({"content": "before "}), event, chunk({"content": "after"}), chunk({}, "stop")))
    assert response.text.startswith("before ")
    assert response.text.endswith("after")


def test_feeding_after_the_end_explains_what_to_do() -> None:
    decoder = Decoder("openai-chat")
    decoder.end()
    with pytest.raises(UserError, match="use a new Decoder"):
        decoder.feed(b"data: {}\n\n")


@pytest.mark.parametrize(("wire", "body"), SAMPLES)
def test_a_body_of_another_wire_is_not_accepted_as_a_good_answer(wire: str, body: bytes) -> None:
    for other in WIRES:
        if other == wire:
            continue
        try:
            response = decode(body, wire=other)
        except NotAResponse:
            continue
        assert not response.verdict.whole
        assert response.calls == ()


def test_an_invalid_index_is_damage_even_next_to_a_valid_call() -> None:
    call = {**piece([0], "a", "f", "{}"), "extra_content": {"x": 1}}
    response = decode(sse(chunk({"tool_calls": [call]}), done=False))
    assert response.verdict.kind == "damaged"
    assert response.message.native is None


def test_reasoning_that_cannot_be_placed_is_not_sent_back() -> None:
    odd = {"index": [0], "type": "t", "text": "x"}
    response = decode(sse(chunk({"content": "hi", "reasoning_details": [odd]}), done=False))
    assert response.verdict.kind == "damaged"
    assert response.message.native is None


def test_a_body_that_is_indented_after_a_comment_is_read() -> None:
    body = b': x\n {"choices":[{"index":0,\n\n"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    for size in (1, 5, 1 << 20):
        decoder = Decoder("openai-chat")
        for at in range(0, len(body), size):
            decoder.feed(body[at : at + size])
        assert (decoder.response().verdict.kind, decoder.response().text) == ("whole", "a")


def test_a_long_event_is_not_scanned_again_with_each_read() -> None:
    event = sse(chunk({"role": "assistant", "content": "x" * 100_000}, "stop"))
    texts = [delta.text for delta in feed(event, 1000) if isinstance(delta, TextDelta)]
    assert "".join(texts) == "x" * 100_000
    framer, pieces = Framer(), [event[at : at + 1000] for at in range(0, 100_000, 1000)]
    framer.feed(pieces[0])
    assert counted(lambda: [framer.feed(piece) for piece in pieces[1:]]) < 4 * len(pieces)  # kept, and nothing else
