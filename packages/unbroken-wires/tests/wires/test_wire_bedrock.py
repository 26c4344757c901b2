"""The wire bedrock-converse: blocks in binary frames, signed reasoning, exceptions inside of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from samples import frames
from streams import calls_of, feed

from unbroken import Decoder, Request, Response, User, decode
from unbroken_wires.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Native, ToolCall, ToolMessage, ToolResult, Usage
from unbroken_wires.wires.bedrock import WIRE, ConverseEncoder
from unbroken_wires.wires.bedrock.converse_content import UNSIGNED
from unbroken_wires.wires.framing import EVENT_STREAM

Object = dict[str, Any]
SIZES = (1, 7, 64, 100_000)
START: Object = {"messageStart": {"role": "assistant", "p": "abc"}}
USAGE: Object = {"inputTokens": 5, "outputTokens": 4, "totalTokens": 12, "cacheReadInputTokens": 3}


def begin(index: Any, **start: Any) -> Object:
    return {"contentBlockStart": {"start": start, "contentBlockIndex": index, "p": "ab"}}


def use(index: Any, id: str, name: str, **more: Any) -> Object:
    return begin(index, toolUse={"toolUseId": id, "name": name, **more})


def delta(index: Any, **delta: Any) -> Object:
    return {"contentBlockDelta": {"delta": delta, "contentBlockIndex": index, "p": "abcdef"}}


def grow(index: Any, text: Any) -> Object:
    return delta(index, toolUse={"input": text})


def stop(index: Any) -> Object:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def end(reason: str = "tool_use") -> list[Object]:
    return [{"messageStop": {"stopReason": reason}}, {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 3}}}]


def bedrock(*events: Object) -> Response:
    return decode(frames(START, *events), "bedrock-converse")


def body_of(*blocks: Object, reason: str = "tool_use") -> bytes:
    message = {"role": "assistant", "content": list(blocks)}
    return json.dumps({"output": {"message": message}, "stopReason": reason, "usage": USAGE}).encode()


def sent_back(response: Response, model: str = "us.anthropic.claude") -> list[Object]:
    results = ToolMessage(tuple(ToolResult.of(call, "ok") for call in response.calls))
    history = (User.of("?"), response.message, *([results] if response.calls else []))
    return WIRE.encode_request(Request(history, model=model))["messages"][1]["content"]


@pytest.mark.parametrize("size", SIZES)
def test_frames_lines_and_a_body_are_read_alike(size: int) -> None:
    events = [
        START,
        delta(0, reasoningContent={"text": "Hm, "}),
        delta(0, reasoningContent={"text": "two."}),
        delta(0, reasoningContent={"signature": "c2ln"}),
        stop(0),
        delta(1, text="Zürich "),
        delta(1, text="😀"),
        stop(1),
        use(2, "tooluse_1", "look"),
        grow(2, ""),
        grow(2, '{"ci'),
        grow(2, 'ty": "Zürich"}'),
        stop(2),
        use(3, "tooluse_2", "now"),
        stop(3),
        *end(),
    ]
    blocks: list[Object] = [
        {"reasoningContent": {"reasoningText": {"text": "Hm, two.", "signature": "c2ln"}}},
        {"text": "Zürich 😀"},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"city": "Zürich"}}},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "now", "input": {}}},
    ]
    lines = b"\n".join(json.dumps(event).encode() for event in events)
    for body in (frames(*events), lines, body_of(*blocks)):
        decoder = Decoder("bedrock-converse")
        for at in range(0, len(body), size):
            decoder.feed(body[at : at + size])
        r = decoder.response()
        assert r.verdict.whole
        assert (r.text, r.reasoning, r.finish) == ("Zürich 😀", "Hm, two.", "tool_use")
        assert calls_of(r) == [("tooluse_1", "look", {"city": "Zürich"}), ("tooluse_2", "now", {})]
        assert r.usage is not None
        assert (r.usage.input_tokens, r.usage.output_tokens, r.usage.cached_tokens) == (8, 4, 3)
        assert dict(r.usage.raw) == USAGE
        assert r.message.native == Native("bedrock-converse", blocks, ("tooluse_1", "tooluse_2"))
        assert sent_back(r) == blocks


def test_a_call_is_ready_with_its_own_end() -> None:
    decoder = Decoder("bedrock-converse")
    begun = decoder.feed(frames(START, use(0, "a", "f"), grow(0, '{"n": 1'), grow(0, "}")))
    assert not [one for one in begun if isinstance(one, CallReady)]
    then = decoder.feed(frames(stop(0)))
    assert [one.call.arguments for one in then if isinstance(one, CallReady)] == [{"n": 1}]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([use(0, "a", "f"), grow(0, '{"n": ')], "unfinished"),
        ([use(0, "a", "f"), grow(0, '{"n": '), *end("max_tokens")], "cut_call"),
        ([use(0, "a", "f"), stop(0), *end("max_tokens")], "cut_call"),
        ([use(0, "a", "f"), grow(0, '{"n": '), stop(0), *end()], "cut_call"),
        ([grow(0, "{}"), *end()], "damaged"),
    ],
)
def test_half_a_call_is_never_complete(events: list[Object], kind: str) -> None:
    response = bedrock(*events)
    assert not any(call.complete for call in response.calls)
    assert response.verdict.kind == kind


def test_the_call_that_the_limit_fell_into_is_not_complete_though_its_input_was_repaired() -> None:
    calls: list[Object] = [{"toolUse": {"toolUseId": id, "name": "f", "input": {}}} for id in "ab"]
    response = decode(body_of(*calls, reason="max_tokens"), "bedrock-converse")
    assert [call.complete for call in response.calls] == [True, False]
    assert response.verdict.kind == "cut_call"
    spoken = decode(body_of(*calls, {"text": "And"}, reason="max_tokens"), "bedrock-converse")
    assert [call.complete for call in spoken.calls] == [True, True]  # the limit fell into the text


@pytest.mark.parametrize(
    ("reason", "meaning", "kind"),
    [
        ("end_turn", "done", "whole"),
        ("stop_sequence", "done", "whole"),
        ("max_tokens", "length", "whole"),
        ("model_context_window_exceeded", "length", "whole"),
        ("guardrail_intervened", "refused", "whole"),
        ("content_filtered", "refused", "whole"),
        ("malformed_tool_use", "other", "error"),
        ("malformed_model_output", "other", "error"),
        ("something_new", "other", "whole"),
    ],
)
def test_each_reason_has_its_meaning(reason: str, meaning: str, kind: str) -> None:
    for body in (frames(START, delta(0, text="hi"), stop(0), *end(reason)), body_of({"text": "hi"}, reason=reason)):
        verdict = decode(body, "bedrock-converse").verdict
        assert (verdict.meaning, verdict.kind) == (meaning, kind)


@pytest.mark.parametrize(
    ("name", "retryable"),
    [
        ("throttlingException", True),
        ("serviceUnavailableException", True),
        ("internalServerException", True),
        ("modelStreamErrorException", True),
        ("validationException", False),
    ],
)
def test_an_exception_inside_of_a_stream_is_an_error_of_its_kind(name: str, retryable: bool) -> None:
    response = bedrock(delta(0, text="Let me"), {name: {"message": "no"}})
    assert (response.verdict.kind, response.error) == ("error", {"type": name, "message": "no"})
    assert response.verdict.retryable is retryable


def test_the_body_of_an_error_is_an_error() -> None:
    assert "invalid" in decode(b'{"message": "The model id is invalid."}', "bedrock-converse").verdict.reason


def test_usage_may_come_before_or_after_the_end() -> None:
    stopped, told = end("end_turn")
    said = [delta(0, text="hi"), stop(0)]
    assert bedrock(*said, stopped, told).usage == bedrock(*said, told, stopped).usage
    assert bedrock(*said, told).verdict.kind == "unfinished"


def test_a_tool_that_the_provider_ran_is_reported_and_goes_back() -> None:
    ran = {"toolUseId": "srv", "name": "nova_grounding", "type": "server_tool_use"}
    found = {"toolUseId": "srv", "status": "success", "type": "nova_grounding_result"}
    response = bedrock(
        begin(0, toolUse=ran),
        grow(0, '{"query": "x"}'),
        stop(0),
        begin(1, toolResult=found),
        delta(1, toolResult=[{"text": "y"}]),
        stop(1),
        delta(2, text="It is y."),
        stop(2),
        delta(3, citation={"location": {"web": {"url": "https://example.com"}}}),
        stop(3),
        *end("end_turn"),
    )
    (call,) = response.server_calls
    assert (call.type, call.id, call.name, call.arguments) == (
        "server_tool_use",
        "srv",
        "nova_grounding",
        {"query": "x"},
    )
    assert (response.calls, response.text) == ((), "It is y.")
    assert sent_back(response) == [
        {"toolUse": {**ran, "input": {"query": "x"}}},
        {"toolResult": {**found, "content": [{"text": "y"}]}},
        {"text": "It is y."},
    ]


def test_text_with_citations_is_text_and_goes_back_as_it_came() -> None:
    block: Object = {"citationsContent": {"content": [{"text": "It is y."}], "citations": [{"title": "a"}]}}
    response = decode(body_of(block, reason="end_turn"), "bedrock-converse")
    assert response.text == "It is y."
    assert sent_back(response) == [block]


def test_only_signed_or_encrypted_reasoning_goes_back_and_never_as_the_last_block() -> None:
    signed, hidden = {"text": "a", "signature": "s"}, {"redactedContent": "eHl6"}
    blocks: list[Object] = [{"reasoningContent": one} for one in ({"reasoningText": signed}, hidden)]
    blocks += [{"reasoningContent": {"reasoningText": {"text": "b", "signature": own}}} for own in ("", UNSIGNED)]
    response = decode(body_of(*blocks, {"text": "hi"}, reason="end_turn"), "bedrock-converse")
    assert response.reasoning == "abb"
    assert sent_back(response) == [*blocks[:2], {"text": "hi"}]
    assert not WIRE.takes_back(blocks)
    assert WIRE.takes_back(blocks[:2])
    cut = decode(body_of({"text": "hi"}, blocks[0], reason="max_tokens"), "bedrock-converse")
    assert sent_back(cut) == [{"text": "hi"}]
    streamed = bedrock(delta(0, reasoningContent=hidden), stop(0), delta(1, text="hi"), stop(1), *end("end_turn"))
    assert sent_back(streamed)[0] == {"reasoningContent": hidden}


def test_indexes_may_be_missing_or_the_same_for_all() -> None:
    def called(*indexes: Any) -> list[tuple[str, str, Any]]:
        events = [delta(indexes[0], text="Let me look."), stop(indexes[0])]
        for index, id in zip(indexes[1:], "abc", strict=False):
            events += [use(index, id, "f"), grow(index, f'{{"n": "{id}"}}'), stop(index)]
        response = bedrock(*events, *end())
        assert response.text == "Let me look."
        return calls_of(response)

    assert called(0, 1, 2) == called(0, 0, 0) == called(None, None, None) == called("0", "1", "2") == called(5, 7, 9)


def test_numbers_beyond_64_bits_stay_exact() -> None:
    response = decode(body_of({"toolUse": {"toolUseId": "a", "name": "f", "input": {"n": 2**70}}}), "bedrock-converse")
    assert response.calls[0].arguments == {"n": 2**70}


@pytest.mark.parametrize(
    "event",
    [
        {"contentBlockDelta": 5},
        {"contentBlockDelta": {"delta": 5}},
        {"contentBlockStart": {"start": {"toolUse": 5}}},
        {"contentBlockStop": []},
        {"metadata": {"usage": "many"}},
        {"somethingNew": {}},
    ],
)
def test_values_of_unexpected_types_never_raise(event: Object) -> None:
    response = bedrock(delta(0, text="before "), event, delta(0, text="after"), stop(0), *end("end_turn"))
    assert response.text == "before after"


def test_the_deltas_are_the_same_at_every_chunk_size() -> None:
    body = frames(START, delta(0, text="é😀"), stop(0), use(1, "a", "f"), grow(1, "{}"), stop(1), *end())
    whole = feed(body, len(body), "bedrock-converse")
    assert all(feed(body, size, "bedrock-converse") == whole for size in range(1, 200))


# For a client


def test_a_client_gets_frames_and_unsigned_reasoning_is_marked_as_such() -> None:
    encoder = ConverseEncoder("m")
    deltas: list[Delta] = [
        ReasoningDelta("Hm."),
        TextDelta("hi"),
        CallReady(ToolCall("a", "f", {"n": 1}, '{"n": 1}')),
        UsageReported(Usage(9, 4, 3)),
        Ended(Verdict("whole")),
    ]
    events = [json.loads(text) for text in EVENT_STREAM.texts(b"".join(map(encoder.feed, deltas)))]
    assert [next(iter(event)) for event in events] == [
        "messageStart",
        "contentBlockDelta",
        "contentBlockDelta",
        "contentBlockStop",
        "contentBlockDelta",
        "contentBlockStop",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
    ]
    assert events[2]["contentBlockDelta"]["delta"] == {"reasoningContent": {"signature": UNSIGNED}}
    assert events[-1]["metadata"]["usage"]["inputTokens"] == 6
    content = json.loads(encoder.body())["output"]["message"]["content"]
    assert [next(iter(block)) for block in content] == ["reasoningContent", "text", "toolUse"]
