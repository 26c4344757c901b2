"""Raw events that any client can read, and those that only our decoder can."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unbroken_wires.wires import find_wire
from unbroken_wires.wires.event_stream import write_frame

Object = dict[str, Any]


def sse(*events: Object, named: bool = False) -> bytes:
    names = [f"event: {event['type']}\n" if named else "" for event in events]
    return "".join(f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(names, events, strict=True)).encode()


def chat(*pieces: Object, choice: int = 0) -> Object:
    return {"choices": [{"index": choice, "delta": {"tool_calls": list(pieces)}}]}


def first(index: Any = 0, id: str = "a", name: str = "f", arguments: Any = "") -> Object:
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def more(index: Any = 0, arguments: Any = "{}") -> Object:
    return {"index": index, "function": {"arguments": arguments}}


def test_calls_in_pieces_from_openai_are_well_formed_in_one_portion_or_many() -> None:
    events = [chat(first()), chat(more()), chat(first(1, "b")), chat(more(1))]
    assert find_wire("openai-chat").relay.check().feed(sse(*events))
    stream = find_wire("openai-chat").relay.check()
    assert all(stream.feed(sse(event)) for event in events)


def test_each_choice_counts_its_own_calls() -> None:
    events = [chat(first()), chat(first(0, "b"), choice=1), chat(more(0), choice=1), chat(more(0))]
    assert find_wire("openai-chat").relay.check().feed(sse(*events))


@pytest.mark.parametrize(
    "events",
    [
        [chat({"id": "a", "function": {"name": "f", "arguments": "{}"}})],
        [chat(first("0"))],
        [chat(first(True))],
        [chat(first(1))],
        [chat(first(id=""))],
        [chat(first(name=""))],
        [chat(first(), first(1, "a"))],
        [chat(first(arguments={"n": 1}))],
        [chat(first()), chat(more(arguments={"n": 1}))],
        [chat(first()), chat(first())],
        [chat(first()), chat(first(0, "b"))],
        [{"choices": [{"index": 0, "delta": {"function_call": {"name": "f", "arguments": "{}"}}}]}],
        [{"choices": [{"index": 0, "message": {"tool_calls": [first()]}}]}],
    ],
)
def test_anything_that_clients_merge_or_lose_is_malformed(events: list[Object]) -> None:
    assert not find_wire("openai-chat").relay.check().feed(sse(*events))


def block(index: Any, **fields: Any) -> Object:
    return {"type": "content_block_start", "index": index, "content_block": fields}


TOOL_USE: Object = {"type": "tool_use", "id": "a", "name": "f", "input": {}}


def test_blocks_in_order_are_well_formed() -> None:
    delta = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    events = [block(0, type="text", text=""), block(1, **TOOL_USE), delta]
    assert find_wire("anthropic-messages").relay.check().feed(sse(*events, named=True))


@pytest.mark.parametrize(
    "events",
    [
        [block(1, **TOOL_USE)],
        [block("0", **TOOL_USE)],
        [block(0, **TOOL_USE), block(0, **TOOL_USE)],
        [block(0, **{**TOOL_USE, "input": None})],
        [block(0, **TOOL_USE), {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta"}}],
    ],
)
def test_blocks_out_of_order_or_of_a_wrong_type_are_malformed(events: list[Object]) -> None:
    assert not find_wire("anthropic-messages").relay.check().feed(sse(*events, named=True))


def test_events_without_names_are_malformed_if_clients_need_them() -> None:
    assert not find_wire("anthropic-messages").relay.check().feed(sse(block(0, type="text", text="")))
    assert not find_wire("openai-responses").relay.check().feed(sse({"type": "response.created"}))


def test_items_of_responses_are_checked_too() -> None:
    item = {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    assert find_wire("openai-responses").relay.check().feed(sse(added, named=True))
    assert not find_wire("openai-responses").relay.check().feed(sse({**added, "output_index": 3}, named=True))
    assert (
        not find_wire("openai-responses")
        .relay.check()
        .feed(sse({**added, "item": {**item, "arguments": {}}}, named=True))
    )


def test_arguments_of_gemini_must_be_an_object() -> None:
    def event(args: Any) -> Object:
        return {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": args}}]}}]}

    assert find_wire("gemini").relay.check().feed(sse(event({"n": 1})))
    assert not find_wire("gemini").relay.check().feed(sse(event("{}")))
    assert not find_wire("gemini").relay.body_conforms(event(None))


def test_calls_of_ollama_are_whole_objects() -> None:
    def line(**function: Any) -> bytes:
        return json.dumps({"message": {"tool_calls": [{"function": function}]}, "done": False}).encode() + b"\n"

    relay = find_wire("ollama").relay
    assert relay.check().feed(line(name="f", arguments={"n": 1}) + line(name="g", arguments={}))
    assert not relay.check().feed(line(name="f", arguments='{"n": 1}'))
    assert not relay.check().feed(line(name="", arguments={}))
    assert not relay.body_conforms({"message": {"tool_calls": [{"function": {"name": "f"}}]}})


def test_calls_of_cohere_are_counted_and_named() -> None:
    def start(index: Any, id: str = "a", arguments: Any = "") -> Object:
        call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": call}}}

    def more(index: Any, arguments: Any) -> Object:
        call = {"function": {"arguments": arguments}}
        return {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": call}}}

    relay = find_wire("cohere-v2").relay
    assert relay.check().feed(sse(start(0), more(0, "{}"), start(1, "b"), named=True))
    assert not relay.check().feed(sse(start(0), more(0, "{}")))
    for events in ([start(1)], [start(0, "")], [start(0), start(0)], [start(0), more(1, "")], [start(0), more(0, {})]):
        assert not relay.check().feed(sse(*events, named=True))


def test_calls_of_bedrock_have_their_own_blocks() -> None:
    def start(index: Any, **use: Any) -> Object:
        return {"contentBlockStart": {"start": {"toolUse": use}, "contentBlockIndex": index}}

    def more(index: Any, input: Any) -> Object:
        return {"contentBlockDelta": {"delta": {"toolUse": {"input": input}}, "contentBlockIndex": index}}

    def fits(*events: Object) -> bool:
        data = b"".join(write_frame(json.dumps(event).replace(": ", ":").encode()) for event in events)
        return find_wire("bedrock-converse").relay.check().feed(data)

    a, b = start(1, toolUseId="a", name="f"), start(3, toolUseId="b", name="f")
    assert fits(a, more(1, "{}"), b, more(3, ""))
    assert not fits(a, a)
    assert not fits(a, more(2, "{}"))
    assert not fits(a, more(1, {}))
    assert not fits(start(0, name="f"))
    assert not fits(start("0", toolUseId="a", name="f"))


def test_a_stream_that_is_not_json_is_malformed_if_it_contains_calls() -> None:
    assert not find_wire("openai-chat").relay.check().feed(b'data: {"tool_calls": \n\n')


@pytest.mark.parametrize(
    ("wire", "whole", "cut"),
    [
        ("openai-chat", b'data: {"finish_reason":"stop"}\n\ndata: [DONE]\n\n', b'data: {"finish_reason":null}\n\n'),
        ("openai-chat", b'{"finish_reason": "stop"} [DONE]', b'{"finish_reason": "stop"}'),
        ("anthropic-messages", b"event: message_stop\n\n", b"event: message_delta\n\n"),
        ("openai-responses", b"event: response.completed\n\n", b"event: response.output_item.done\n\n"),
        ("gemini", b'{"finishReason": "STOP"}', b'{"candidates": []}'),
        ("ollama", b'{"done": true}\n', b'{"done": false}\n'),
        ("cohere-v2", b"event: message-end\n", b"event: tool-call-end\n"),
        (
            "bedrock-converse",
            write_frame(b'{"messageStop":{}}') + write_frame(b'{"metadata":{}}'),
            write_frame(b'{"messageStop":{}}'),
        ),
    ],
    ids=range(8),
)
def test_the_last_event_of_each_wire_is_recognised(wire: str, whole: bytes, cut: bytes) -> None:
    assert find_wire(wire).relay.has_end(whole)
    assert not find_wire(wire).relay.has_end(cut)
