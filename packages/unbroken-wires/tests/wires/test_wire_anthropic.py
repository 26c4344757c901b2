"""anthropic-messages, responses: decoding a stream of blocks at any chunk size, and writing one for a client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import calls_of, feed
from work_done import counted

from unbroken import (
    Assistant,
    CallReady,
    Decoder,
    Ended,
    Request,
    Response,
    TextDelta,
    ToolCall,
    Usage,
    User,
    Verdict,
    decode,
)
from unbroken_wires.deltas import (
    CallArguments,
    CallSpoiled,
    Delta,
    Meaning,
    ReasoningDelta,
    ServerCallSeen,
    UsageReported,
)
from unbroken_wires.wires.anthropic import WIRE, MessagesEncoder
from unbroken_wires.wires.anthropic.messages_content import UNSIGNED

Event = dict[str, Any]

START: Event = {
    "type": "message_start",
    "message": {"id": "m", "type": "message", "content": [], "usage": {"input_tokens": 5}},
}
STOP: Event = {"type": "message_stop"}


def sse(*events: Event) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def begin(index: Any, **block: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: Any, kind: str, **fields: Any) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def piece(index: Any, partial_json: str) -> Event:
    return delta(index, "input_json_delta", partial_json=partial_json)


def end(index: Any) -> Event:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str | None, **usage: Any) -> Event:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def use(index: Any, id: str, name: str, *pieces: str) -> list[Event]:
    opened = begin(index, type="tool_use", id=id, name=name, input={})
    return [opened, *(piece(index, text) for text in pieces), end(index)]


def text(index: Any, *pieces: str) -> list[Event]:
    return [begin(index, type="text", text=""), *(delta(index, "text_delta", text=p) for p in pieces), end(index)]


def streamed(*events: Event, reason: str | None = "tool_use") -> bytes:
    return sse(START, {"type": "ping"}, *events, finish(reason), STOP)


def whole(*content: Event, reason: str = "tool_use", **more: Any) -> bytes:
    body = {"id": "m", "type": "message", "role": "assistant", "content": list(content), "stop_reason": reason}
    return json.dumps({**body, **more}).encode()


def read(body: bytes, size: int = 1 << 20) -> Response:
    decoder = Decoder(WIRE.name)
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])
    return decoder.response()


# Streams

EVERYTHING = streamed(
    begin(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Let me "),
    delta(0, "thinking_delta", thinking="see. 🙂"),
    delta(0, "signature_delta", signature="sig=="),
    end(0),
    *text(1, "I ", "look."),
    *use(2, "toolu_1", "find", "", '{"q": "sn', 'ow", "n": 123456789012345678901234567890}'),
    *use(3, "toolu_2", "now"),
)


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
def test_a_stream_is_the_same_at_every_chunk_size(size: int) -> None:
    assert feed(EVERYTHING, size, WIRE.name) == feed(EVERYTHING, 1 << 20, WIRE.name)
    response = read(EVERYTHING, size)
    assert (response.reasoning, response.text) == ("Let me see. 🙂", "I look.")
    big = 123456789012345678901234567890
    assert calls_of(response) == [("toolu_1", "find", {"q": "snow", "n": big}), ("toolu_2", "now", {})]
    assert (response.finish, response.verdict.kind, response.complete) == ("tool_use", "whole", True)


def test_a_call_is_ready_at_its_own_end_and_not_at_its_closing_brace() -> None:
    decoder = Decoder(WIRE.name)
    opened = begin(0, type="tool_use", id="a", name="f", input={})
    before = decoder.feed(sse(START, opened, piece(0, '{"x": 1}')))
    assert [type(d) for d in before if isinstance(d, CallArguments | CallReady)] == [CallArguments]
    (ready,) = decoder.feed(sse(end(0)))
    assert isinstance(ready, CallReady)
    assert ready.call.arguments == {"x": 1}


def test_interleaved_blocks_are_kept_apart_by_their_index() -> None:
    events = [begin(n, type="tool_use", id=f"t{n}", name="f", input={}) for n in (0, 1)]
    events += [piece(0, '{"a"'), piece(1, '{"b"'), piece(0, ": 1}"), piece(1, ": 2}"), end(1), end(0)]
    assert calls_of(read(streamed(*events))) == [("t0", "f", {"a": 1}), ("t1", "f", {"b": 2})]


def test_a_repeated_index_is_another_block() -> None:
    body = streamed(*use(0, "a", "f", '{"n": 1}'), *use(0, "b", "f", '{"n": 2}'))
    assert calls_of(read(body)) == [("a", "f", {"n": 1}), ("b", "f", {"n": 2})]


def test_a_used_id_is_replaced_and_the_block_is_sent_back_with_the_new_one() -> None:
    history = (User.of("x"), Assistant("", (ToolCall("a", "f", {}, "{}"),)))
    decoder = Decoder(WIRE.name, request=Request(messages=history))
    decoder.feed(streamed(begin(0, type="redacted_thinking", data="zz"), end(0), *use(1, "a", "f", '{"n": 1}')))
    message = decoder.response().message
    assert [call.id for call in message.calls] == ["call_1_0"]
    (turn,) = WIRE.encode_request(Request(messages=(message,)))["messages"]
    assert [block.get("id") for block in turn["content"]] == [None, "call_1_0"]


def test_arguments_after_the_end_of_their_block_invalidate_the_call() -> None:
    deltas = feed(streamed(*use(0, "a", "f", '{"n": 1}'), piece(0, '{"n": 2}')), 64, WIRE.name)
    assert [d.call.complete for d in deltas if isinstance(d, CallReady | CallSpoiled)] == [True, False]


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("pieces", [[], ['{"path": "/etc', "/ho"]])
def test_a_call_cut_off_by_the_limit_never_runs_even_if_its_block_ends(reason: str, pieces: list[str]) -> None:
    response = read(streamed(*use(0, "a", "write", *pieces), reason=reason))
    (call,) = response.calls
    assert (call.arguments, call.complete, response.verdict.kind) == (None, False, "cut_call")
    assert response.verdict.meaning == "length"


@pytest.mark.parametrize("shown", [{}, {"path": "/etc"}])
def test_the_last_call_of_a_non_streaming_body_that_the_limit_cut_off_never_runs(shown: dict[str, Any]) -> None:
    first = {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}}
    last = {"type": "tool_use", "id": "b", "name": "f", "input": shown}
    assert [call.arguments for call in read(whole(first, last, reason="max_tokens")).calls] == [{"n": 1}, None]
    assert [call.arguments for call in read(whole(first, last)).calls] == [{"n": 1}, shown]


def test_input_at_the_beginning_of_a_block_is_complete() -> None:
    opened = begin(0, type="tool_use", id="a", name="f", input={"n": 10**30})
    assert calls_of(read(streamed(opened, end(0)))) == [("a", "f", {"n": 10**30})]
    assert calls_of(read(streamed(opened))) == [("a", "f", {"n": 10**30})]
    assert calls_of(read(streamed(opened, piece(0, '{"n": 2}'), end(0)))) == [("a", "f", {"n": 2})]


def test_a_block_without_its_end_is_decided_by_the_end_of_the_stream() -> None:
    opened = [begin(0, type="tool_use", id="a", name="f", input={}), piece(0, '{"n": 1}')]
    assert read(streamed(*opened)).calls[0].arguments == {"n": 1}
    assert read(streamed(*opened, reason="max_tokens")).calls[0].arguments is None
    assert read(sse(START, *opened)).verdict.kind == "unfinished"


def test_a_stop_reason_ends_a_response_and_done_does_not() -> None:
    assert read(sse(START, *text(0, "hi"), finish("end_turn"))).verdict.whole
    assert read(sse(START, *text(0, "hi"), STOP)).verdict.whole
    assert read(sse(START, *text(0, "hi")) + b"data: [DONE]\n\n").verdict.kind == "unfinished"


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("end_turn", "done"),
        ("stop_sequence", "done"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        ("pause_turn", "paused"),
    ],
)
def test_stop_reasons_have_meanings(reason: str, meaning: Meaning) -> None:
    for body in (streamed(*text(0, "hi"), reason=reason), whole({"type": "text", "text": "hi"}, reason=reason)):
        verdict = read(body).verdict
        assert (verdict.finish, verdict.meaning, verdict.kind) == (reason, meaning, "whole")


def test_usage_counts_what_is_cached_for_an_hour_and_the_searches_of_the_provider() -> None:
    cached = {"ephemeral_5m_input_tokens": 12, "ephemeral_1h_input_tokens": 8}
    used = {"cache_creation_input_tokens": 20, "cache_creation": cached, "server_tool_use": {"web_search_requests": 2}}
    body = sse({"type": "message_start", "message": {"usage": used}}, *text(0, "hi"), finish("end_turn"), STOP)
    usage = read(body).usage
    assert usage is not None
    assert (usage.cache_write_tokens, usage.cache_write_1h_tokens, usage.web_searches) == (20, 8, 2)
    both = usage + usage
    assert (both.cache_write_1h_tokens, both.web_searches) == (16, 4)
    assert {"cache_write_1h_tokens": 16, "web_searches": 4}.items() <= both.to_json().items()


def test_usage_of_start_and_end_is_merged_and_input_includes_everything() -> None:
    start = {"input_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    body = sse(
        {"type": "message_start", "message": {"usage": start}},
        *text(0, "hi"),
        finish("end_turn", output_tokens=9, input_tokens=None, output_tokens_details={"thinking_tokens": 4}),
        STOP,
    )
    usage = read(body).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (127, 100, 20)
    assert (usage.output_tokens, usage.reasoning_tokens) == (9, 4)
    assert usage.raw == {**start, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_a_tool_that_the_provider_runs_is_reported_and_is_never_a_call(kind: str) -> None:
    opened = begin(0, type=kind, id="srv_1", name="web_search", input={})
    found = begin(1, type="web_search_tool_result", tool_use_id="srv_1", content=[{"encrypted_content": "xyz"}])
    body = streamed(opened, piece(0, '{"query":'), piece(0, ' "snow"}'), end(0), found, end(1), *text(2, "It snows."))
    (seen,) = [d.call for d in feed(body, 7, WIRE.name) if isinstance(d, ServerCallSeen)]
    assert (seen.type, seen.id, seen.name, seen.arguments) == (kind, "srv_1", "web_search", {"query": "snow"})
    response = read(body)
    assert response.calls == ()
    native = response.message.native
    assert native is not None
    assert [block["type"] for block in native.value] == [kind, "web_search_tool_result", "text"]
    assert native.value[0]["input"] == {"query": "snow"}


def test_the_work_for_a_result_of_the_provider_does_not_grow_with_the_results_before() -> None:
    def work(results: int) -> int:
        blocks = [begin(at, type="web_search_tool_result", tool_use_id=f"s{at}", content=[]) for at in range(results)]
        body = streamed(*(event for at, found in enumerate(blocks) for event in (found, end(at))))
        return counted(lambda: read(body))

    assert work(400) < 5 * work(100)


# What has to be sent back


def test_plain_text_then_calls_needs_no_native_form() -> None:
    assert read(streamed(*text(0, "I look."), *use(1, "a", "f", "{}"))).message.native is None
    assert read(streamed(*use(0, "a", "f", "{}"), *text(1, "I look."))).message.native is not None
    assert read(streamed(*text(0, "I"), *text(1, "look."))).message.native is not None


def test_blocks_are_rebuilt_from_deltas_with_citations_and_unknown_fields() -> None:
    cited = [{"type": "char_location", "cited_text": "snow", "start_char_index": 0}, {"type": "page_location"}]
    body = streamed(
        begin(0, type="text", text="", citations=[]),
        delta(0, "text_delta", text="It "),
        *(delta(0, "citations_delta", citation=citation) for citation in cited),
        delta(0, "text_delta", text="snows."),
        end(0),
        begin(1, type="compaction", content=""),
        delta(1, "compaction_delta", content="so "),
        delta(1, "compaction_delta", content="far", level=2),
        end(1),
        begin(2, type="tool_use", id="a", name="f", input={}, caller={"type": "direct"}),
        piece(2, '{"n": 1}'),
        end(2),
    )
    native = read(body).message.native
    assert native is not None
    assert native.value == [
        {"type": "text", "text": "It snows.", "citations": cited},
        {"type": "compaction", "content": "so far", "level": 2},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1}, "caller": {"type": "direct"}},
    ]
    assert native.ids == ("a",)


def test_thinking_that_was_cut_before_its_signature_is_not_sent_back() -> None:
    opened = begin(0, type="thinking", thinking="", signature="")
    response = read(sse(START, opened, delta(0, "thinking_delta", thinking="Hm"), *text(1, "a"), *text(2, "b")))
    assert response.reasoning == "Hm"
    native = response.message.native
    assert native is not None
    assert [block["type"] for block in native.value] == ["text", "text"]


# Unusual and broken input


def test_an_error_event_inside_a_stream_and_an_error_body_are_errors() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    for body in (
        sse(START, *text(0, "hi"), {"type": "error", "error": error}),
        json.dumps({"type": "error", "error": error}).encode(),
        json.dumps({"error": error}).encode(),
    ):
        response = read(body)
        assert (response.error, response.verdict.kind) == (error, "error")
        assert "Overloaded" in response.verdict.reason


def test_text_without_the_beginning_of_its_block_is_still_text() -> None:
    response = read(sse(delta(0, "text_delta", text="hi"), delta(0, "text_delta", text="!"), finish("end_turn")))
    assert (response.text, response.verdict.kind) == ("hi!", "whole")


def test_arguments_without_a_call_damage_the_response() -> None:
    response = read(streamed(piece(5, "{}"), *text(0, "hi")))
    assert response.verdict.kind == "damaged"


@pytest.mark.parametrize(
    "event",
    [
        delta(0, "text_delta", text=5),
        delta(0, "text_delta", text=None),
        delta([], "text_delta", text="x"),
        delta(0, "input_json_delta", partial_json={}),
        {"type": "content_block_delta", "index": 0, "delta": "x"},
        {"type": "content_block_delta"},
        {"type": "content_block_start", "index": 0, "content_block": None},
        {"type": "content_block_start", "index": 0, "content_block": {"type": []}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": 1, "name": {}, "input": [1]},
        },
        {"type": "message_start", "message": None},
        {"type": "message_delta", "delta": [], "usage": 3},
        {"type": "message_delta", "delta": {"stop_reason": {}}, "usage": {"input_tokens": "many"}},
        {"type": "message", "content": 7},
        {
            "type": "message",
            "content": [{"type": "tool_use", "name": "f", "input": [1]}, 3, {"type": "text", "text": 4}],
        },
        {"type": ["ping"]},
    ],
)
def test_values_of_a_wrong_type_never_raise(event: Event) -> None:
    response = read(sse(START, *text(0, "hi"), event, event))
    assert response.text == "hi"
    assert not any(call.complete for call in response.calls)


def test_arguments_that_are_not_an_object_are_refused() -> None:
    body = whole({"type": "tool_use", "id": "a", "name": "f", "input": [1]})
    assert read(body).calls[0].problem == "the arguments are not a JSON object but an array"


def test_a_body_of_another_format_is_not_recognised() -> None:
    assert read(b'data: {"choices": []}\n\n').verdict.kind == "foreign"


# Writing a response


def deltas_of(message: Assistant, meaning: Meaning = "done") -> list[Delta]:
    said = [*map(ReasoningDelta, message.reasoning), *map(TextDelta, message.text)]
    usage = Usage(input_tokens=30, output_tokens=4, cached_tokens=10, cache_write_tokens=5)
    return [*said, *map(CallReady, message.calls), UsageReported(usage), Ended(Verdict("whole", meaning=meaning))]


def written(deltas: list[Delta]) -> tuple[bytes, bytes]:
    encoder = MessagesEncoder("claude", "msg_1")
    return b"".join(map(encoder.feed, deltas)), encoder.body()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def assistants(draw: st.DrawFn) -> Assistant:
    objects = draw(st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3))
    calls = [
        ToolCall(f"toolu_{n}", draw(st.from_regex("[a-z_]{1,9}", fullmatch=True)), value, json.dumps(value), n)
        for n, value in enumerate(objects)
    ]
    return Assistant(draw(st.text(max_size=30)), tuple(calls), draw(st.text(max_size=30)))


@given(assistants())
def test_a_written_response_is_read_back_streamed_or_not(message: Assistant) -> None:
    for body in written(deltas_of(message)):
        response = read(body, 1000)
        assert (response.text, response.reasoning) == (message.text, message.reasoning)
        assert calls_of(response) == [(call.id, call.name, call.arguments) for call in message.calls]
        assert response.finish == ("tool_use" if message.calls else "end_turn")
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.cached_tokens) == (30, 10)


@pytest.mark.parametrize(
    ("meaning", "reason"), [("length", "max_tokens"), ("refused", "refusal"), ("paused", "pause_turn")]
)
def test_a_meaning_is_written_in_the_format_of_this_wire(meaning: Meaning, reason: str) -> None:
    for body in written(deltas_of(Assistant("hi"), meaning)):
        assert read(body).finish == reason


def test_a_written_stream_opens_and_closes_each_block_in_turn() -> None:
    call = ToolCall("toolu_1", "f", {"n": 1}, '{"n":  1}')
    deltas: list[Delta] = [
        ReasoningDelta("r"),
        TextDelta("t"),
        CallReady(call),
        TextDelta("u"),
        Ended(Verdict("whole")),
    ]
    stream, body = written(deltas)
    lines = stream.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [line[7:] for line in lines if line.startswith("event: ")] == [event["type"] for event in events]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    signed = [*block[:2], *block[1:]]  # thinking ends with a signature, as the provider's does
    assert [e["type"] for e in events] == ["message_start", *signed, *block * 3, "message_delta", "message_stop"]
    assert [e["index"] for e in events if "index" in e] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert events[3]["delta"] == {"type": "signature_delta", "signature": UNSIGNED}
    assert events[8]["content_block"]["input"] == {}
    assert events[9]["delta"]["partial_json"] == '{"n":  1}'
    assert [b["type"] for b in json.loads(body)["content"]] == ["thinking", "text", "tool_use", "text"]


def test_a_call_with_free_text_is_written_as_an_object() -> None:
    call = ToolCall("c", "patch", None, "*** begin", complete=False, kind="custom")
    for body in written([CallReady(call), Ended(Verdict("whole"))]):
        assert calls_of(read(body)) == [("c", "patch", {"input": "*** begin"})]


def test_an_empty_response_is_still_a_valid_stream() -> None:
    stream, body = written([Ended(Verdict("empty"))])
    assert [read(b).finish for b in (stream, body)] == ["end_turn", "end_turn"]
    assert decode(body, wire=WIRE.name).verdict.kind == "empty"


@pytest.mark.parametrize("pieces", [(), ('{"a":',)], ids=["before its arguments", "in them"])
def test_an_incomplete_call_is_retried_wherever_it_was_cut(pieces: tuple[str, ...]) -> None:
    call = begin(0, type="tool_use", id="t", name="look", input={})
    lies = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    response = decode(sse(START, call, *(piece(0, text) for text in pieces), lies, STOP), "anthropic-messages")
    assert (response.verdict.kind, response.verdict.again) == ("cut_call", True)
