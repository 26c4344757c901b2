"""Encoders that continue raw events: wherever they were cut, the client gets one valid response."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import answers, costly

from unbroken import (
    Assistant,
    CallReady,
    Decoder,
    Ended,
    Response,
    TextDelta,
    ToolCall,
    Usage,
    Verdict,
    decode,
)
from unbroken_wires.deltas import CallOpened, Delta, ReasoningDelta, UsageReported, VerdictKind
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.framing import EVENT_STREAM, JSON_LINES, SSE
from unbroken_wires.wires.raw_history import MANY
from unbroken_wires.wires.writer import ResponseWriter

Object = dict[str, Any]
every_wire = pytest.mark.parametrize("wire", WIRES)

LOOK = json.dumps({"path": "a/b.txt", "note": 'Zürich 😀 "}{" \\ \n'}, ensure_ascii=False)
PATCH = "*** Begin Patch\n+ a {line}\n*** End Patch"


def pieces(text: str, size: int = 9) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def framed(event: Object | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


# What providers send, event by event


def chat_events() -> list[bytes]:
    head = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1750000000, "model": "gpt-x"}
    head |= {"service_tier": "default", "system_fingerprint": "fp_1"}

    def chunk(delta: Object, finish: str | None = None) -> Object:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**head, "choices": [choice], "usage": None, "obfuscation": "xK2"}

    def call(index: int, **fields: Any) -> Object:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    events: list[Object | str] = [chunk({"role": "assistant", "content": "", "refusal": None})]
    events += [chunk({"reasoning_content": text}) for text in ("Hm, ", "two.")]
    events += [chunk({"content": text}) for text in ("Let me ", 'say "tool_calls".')]
    events.append(call(0, id="call_1", type="function", function={"name": "look", "arguments": ""}))
    events += [call(0, function={"arguments": text}) for text in pieces(LOOK)]
    events.append(call(1, id="call_2", type="function", function={"name": "list", "arguments": "{}"}))
    events.append(call(2, id="call_3", type="custom", custom={"name": "patch", "input": ""}))
    events += [call(2, custom={"input": text}) for text in pieces(PATCH)]
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    events += [chunk({}, "tool_calls"), {**head, "choices": [], "usage": usage}, "[DONE]"]
    return list(map(framed, events))


def anthropic_events() -> list[bytes]:
    message: Object = {"id": "msg_9", "type": "message", "role": "assistant", "model": "claude-x", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 11, "output_tokens": 1}}
    events: list[Object] = [{"type": "message_start", "message": message}]

    def block(index: int, begun: Object, *deltas: Object) -> None:
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        events.append({"type": "content_block_stop", "index": index})

    def texts(type: str, *said: str) -> list[Object]:
        return [{"type": f"{type}_delta", type: text} for text in said]

    signature = {"type": "signature_delta", "signature": "c2ln"}
    block(0, {"type": "thinking", "thinking": "", "signature": ""}, *texts("thinking", "Hm, ", "two."), signature)
    events.append({"type": "ping"})
    block(1, {"type": "text", "text": ""}, *texts("text", "Let me ", 'say "message_delta".'))
    inputs = [{"type": "input_json_delta", "partial_json": text} for text in ["", *pieces(LOOK)]]
    block(2, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}, *inputs)
    block(3, {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}})
    block(4, {"type": "text", "text": ""}, *texts("text", " And so on."))
    last = {"stop_reason": "tool_use", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": last, "usage": {"output_tokens": 7}})
    events.append({"type": "message_stop"})
    return list(map(framed, events))


def responses_events() -> list[bytes]:
    response: Object = {"id": "resp_9", "object": "response", "created_at": 1750000000, "status": "in_progress"}
    response |= {"model": "gpt-x", "output": [], "tools": [{"type": "custom", "name": "patch"}], "usage": None}
    events: list[Object] = []
    output: list[Object] = []

    def tell(type: str, **fields: Any) -> None:
        events.append({"type": f"response.{type}", "sequence_number": len(events) + 3, **fields})

    def parts(item: Object, frame: str, stream: str, place: str, kind: str, *whole: list[str]) -> None:
        at: Object = {"item_id": item["id"], "output_index": len(output)}
        tell("output_item.added", output_index=len(output), item=item)
        done: list[Object] = []
        for number, said in enumerate(whole):
            begun: Object = {"type": kind, "text": ""} | ({"annotations": []} if kind == "output_text" else {})
            tell(f"{frame}.added", **at, **{place + "_index": number}, part=begun)
            for text in said:
                tell(f"{stream}.delta", **at, **{place + "_index": number}, delta=text)
            done.append({**begun, "text": "".join(said)})
            tell(f"{stream}.done", **at, **{place + "_index": number}, text="".join(said))
            tell(f"{frame}.done", **at, **{place + "_index": number}, part=done[-1])
        ended = {**item, place: done} | ({"status": "completed"} if "status" in item else {})
        tell("output_item.done", output_index=len(output), item=ended)
        output.append(ended)

    def call(item: Object, key: str, stream: str, whole: str) -> None:
        at: Object = {"item_id": item["id"], "output_index": len(output)}
        tell("output_item.added", output_index=len(output), item={**item, key: "", "status": "in_progress"})
        for text in pieces(whole):
            tell(f"{stream}.delta", **at, delta=text)
        tell(f"{stream}.done", **at, **{key: whole})
        output.append({**item, key: whole, "status": "completed"})
        tell("output_item.done", output_index=len(output) - 1, item=output[-1])

    tell("created", response=response)
    tell("in_progress", response=response)
    summary = ("reasoning_summary_part", "reasoning_summary_text", "summary", "summary_text")
    parts({"id": "rs_1", "type": "reasoning", "summary": []}, *summary, ["Hm, "], ["two", "."])
    message: Object = {"id": "msg_1", "type": "message", "status": "in_progress", "content": [], "role": "assistant"}
    parts(message, "content_part", "output_text", "content", "output_text", ["Let me ", "look."])
    look = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "look"}
    call(look, "arguments", "function_call_arguments", LOOK)
    patch = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_2", "name": "patch"}
    call(patch, "input", "custom_tool_call_input", PATCH)
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    tell("completed", response={**response, "status": "completed", "output": output, "usage": usage})
    return list(map(framed, events))


def gemini_events() -> list[bytes]:
    head = {"modelVersion": "gemini-x", "responseId": "r9"}

    def chunk(*parts: Object, **fields: Any) -> Object:
        return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, "index": 0, **fields}], **head}

    look = {"functionCall": {"name": "look", "args": json.loads(LOOK)}, "thoughtSignature": "c2ln"}
    events = [
        chunk({"text": "Hm, ", "thought": True}),
        chunk({"text": "two.", "thought": True}),
        chunk({"text": "Let me "}),
        chunk({"text": 'say "functionCall".'}),
        chunk(look),
        chunk({"functionCall": {"id": "g2", "name": "list", "args": {}}}),
        chunk({"text": ""}, finishReason="STOP"),
    ]
    events[-1]["usageMetadata"] = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    return [framed(event) for event in events]


def ollama_events() -> list[bytes]:
    def line(message: Object, **more: Any) -> Object:
        head = {"model": "qwen-x", "created_at": "2026-01-01T00:00:00Z"}
        return {**head, "message": {"role": "assistant", **message}, **(more or {"done": False})}

    look = {"function": {"index": 0, "name": "look", "arguments": json.loads(LOOK)}}
    events = [
        line({"content": "", "thinking": "Hm, "}),
        line({"content": "", "thinking": "two."}),
        line({"content": "Let me "}),
        line({"content": 'say "tool_calls".'}),
        line({"content": "", "tool_calls": [look]}),
        line({"content": "", "tool_calls": [{"id": "o2", "function": {"index": 1, "name": "list", "arguments": {}}}]}),
        line({"content": ""}, done=True, done_reason="stop", prompt_eval_count=11, eval_count=7),
    ]
    return [JSON_LINES.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()) for event in events]


def cohere_events() -> list[bytes]:
    def delta(kind: str, message: Object, **more: Any) -> Object:
        return {"type": kind, **more, "delta": {"message": message}}

    def call(index: int, id: str, name: str, *arguments: str) -> list[Object]:
        begun = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        return [
            delta("tool-call-start", {"tool_calls": begun}, index=index),
            *(
                delta("tool-call-delta", {"tool_calls": {"function": {"arguments": text}}}, index=index)
                for text in arguments
            ),
            {"type": "tool-call-end", "index": index},
        ]

    events = [
        delta("message-start", {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}, id="r9"),
        delta("tool-plan-delta", {"tool_plan": "Hm, "}),
        delta("tool-plan-delta", {"tool_plan": "two."}),
        delta("content-start", {"content": {"type": "text", "text": ""}}, index=0),
        delta("content-delta", {"content": {"text": "Let me "}}, index=0),
        delta("content-delta", {"content": {"text": 'say "tool-call-start".'}}, index=0),
        {"type": "content-end", "index": 0},
        *call(0, "look_1", "look", *pieces(LOOK)),
        *call(1, "list_2", "list", "{}"),
    ]
    usage = {"tokens": {"input_tokens": 11, "output_tokens": 7}}
    events.append({"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}})
    return list(map(framed, events))


def bedrock_events() -> list[bytes]:
    def block(index: int, *deltas: Object, start: Object | None = None) -> list[Object]:
        at: Object = {"contentBlockIndex": index, "p": "abcdef"}
        begun: list[Object] = [{"contentBlockStart": {"start": start, **at}}] if start else []
        return [*begun, *({"contentBlockDelta": {"delta": one, **at}} for one in deltas), {"contentBlockStop": at}]

    inputs = [{"toolUse": {"input": text}} for text in ["", *pieces(LOOK)]]
    thoughts = [{"reasoningContent": one} for one in ({"text": "Hm, "}, {"text": "two."}, {"signature": "c2ln"})]
    events: list[Object] = [
        {"messageStart": {"role": "assistant", "p": "abc"}},
        *block(0, *thoughts),
        *block(1, {"text": "Let me "}, {"text": 'say "messageStop".'}),
        *block(2, *inputs, start={"toolUse": {"toolUseId": "tooluse_1", "name": "look"}}),
        *block(3, start={"toolUse": {"toolUseId": "tooluse_2", "name": "list"}}),
        *block(4, {"text": " And so on."}),
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": {"usage": {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}}},
    ]
    return [
        EVENT_STREAM.write(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()) for event in events
    ]


STREAMS: dict[str, Callable[[], list[bytes]]] = {
    "openai-chat": chat_events,
    "anthropic-messages": anthropic_events,
    "openai-responses": responses_events,
    "gemini": gemini_events,
    "ollama": ollama_events,
    "cohere-v2": cohere_events,
    "bedrock-converse": bedrock_events,
}
SERVER_SENT = [name for name, wire in WIRES.items() if wire.framing is SSE]


def cut(wire: str, events: list[bytes], at: int, passed: Iterable[bytes] | None = None) -> tuple[bytes, bytes]:
    """The first `at` events unchanged (or as in `passed`), and an encoder's output for the others."""
    decoder = Decoder(wire)
    decoder.feed(b"".join(events[:at]))
    encoder = find_wire(wire).encoder("another", "other_1", created=5)
    for data in events[:at] if passed is None else passed:
        encoder.follow(data)
    deltas = [*decoder.feed(b"".join(events[at:])), *decoder.end()]
    return b"".join(events[:at]), b"".join(map(encoder.feed, deltas))


def said(response: Response) -> Any:
    calls = [
        (call.id, call.name, call.kind, call.raw if call.kind == "custom" else call.arguments, call.problem)
        for call in response.calls
    ]
    return response.text, response.reasoning, calls, response.finish, response.verdict.kind


def data_of(stream: bytes) -> list[Object]:
    lines = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


# One response, whatever the cut


@every_wire
def test_a_stream_that_is_cut_anywhere_and_continued_equals_the_original(wire: str) -> None:
    events = STREAMS[wire]()
    whole = decode(b"".join(events), wire)
    assert whole.verdict.whole
    for at in range(len(events) + 1):
        passed, written = cut(wire, events, at)
        response = decode(passed + written, wire)
        assert said(response) == said(whole), at
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7), at


def crlf(events: list[bytes]) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in events]


def unnamed(events: list[bytes]) -> list[bytes]:
    return [b"data:" + event.partition(b"data: ")[2] for event in events]


def in_one_piece(events: list[bytes]) -> list[bytes]:
    return [b"".join(events)]


def with_comments(events: list[bytes]) -> list[bytes]:
    return [b": still here, data: none\n\n" + event + b"event: ping\ndata: \n\nid: 7\n\n" for event in events]


def without_blank_lines(events: list[bytes]) -> list[bytes]:
    return [event[:-1] for event in events]


def spaced(events: list[bytes]) -> list[bytes]:
    def again(event: bytes) -> bytes:
        name, _, text = event.rpartition(b"data: ")
        return event if b"[DONE]" in text else name + b"data: " + json.dumps(json.loads(text)).encode() + b"\n\n"

    return list(map(again, events))


def on_several_lines(events: list[bytes]) -> list[bytes]:
    def again(event: bytes) -> bytes:
        name, _, text = event.rpartition(b"data: ")
        if b"[DONE]" in text:
            return event
        return name + b"data: " + json.dumps(json.loads(text), indent=1).encode().replace(b"\n", b"\ndata: ") + b"\n\n"

    return list(map(again, events))


def with_rubbish(events: list[bytes]) -> list[bytes]:
    rubbish = [
        b'data: {"type": \n\n',
        b"data: [1, {}]\n\n",
        b'data: {"choices": 7, "delta": 3, "type": []}\n\n',
        b"\n\n",
    ]
    rubbish += [b'data: {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}\n\n'] * (
        "choices" in repr(events[:1])
    )
    return [*rubbish[:4], *(event for one in events for event in (one, rubbish[0], rubbish[3]))]


ODD = [crlf, unnamed, in_one_piece, with_comments, without_blank_lines, spaced, on_several_lines, with_rubbish]


@pytest.mark.parametrize("wire", SERVER_SENT)
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_unusual_framings_are_followed_too(wire: str, odd: Callable[[list[bytes]], list[bytes]]) -> None:
    events = STREAMS[wire]()
    whole = decode(b"".join(events), wire)
    for at in range(1, len(events) + 1):
        passed, written = cut(wire, events, at, odd(events[:at]))
        assert said(decode(passed + written, wire)) == said(whole), at


@every_wire
@given(data=st.binary(max_size=60), told=st.lists(st.sampled_from([b"data: ", b"\n", b'{"', b"type", b"}", b"[]"])))
def test_any_stream_can_be_followed(wire: str, data: bytes, told: list[bytes]) -> None:
    encoder = find_wire(wire).encoder("m", "r_1")
    encoder.follow(b"".join(told) + data + b"\n\n")
    written = encoder.feed(TextDelta("hi")) + encoder.feed(Ended(Verdict("whole")))
    assert decode(written, wire).text == "hi"


@every_wire
@costly
@given(message=answers(), share=st.floats(0, 1), size=st.integers(1, 300))
def test_a_stream_of_one_encoder_can_be_continued_by_another(
    wire: str, message: Assistant, share: float, size: int
) -> None:
    deltas: list[Delta] = [ReasoningDelta(message.reasoning)] if message.reasoning else []
    deltas += [TextDelta(text) for text in pieces(message.text, 3)]
    for call in message.calls:
        deltas += [CallOpened(call.index, call.name, call.id), CallReady(call)]
    deltas += [UsageReported(Usage(11, 7)), Ended(Verdict("whole"))]
    one, other = (ResponseWriter(wire, model, "resp_1") for model in ("a", "b"))
    at = round(share * len(deltas))
    passed = b"".join(map(one.feed, deltas[:at]))
    events = find_wire(wire).framing.events(passed)
    for start in range(0, len(events), size):
        other.follow(b"".join(events[start : start + size]))
    response = decode(passed + b"".join(map(other.feed, deltas[at:])), wire)
    assert (response.text, response.reasoning) == (message.text, message.reasoning)
    assert [(c.id, c.name, c.arguments) for c in response.calls] == [(c.id, c.name, c.arguments) for c in message.calls]
    assert response.verdict.whole


@every_wire
def test_a_long_stream_is_followed_to_its_end(wire: str) -> None:
    """More than is kept unread, so that some of it was read before the switch."""
    first, *rest = STREAMS[wire]()
    text_at = next(at for at, event in enumerate(rest) if b"Let me " in event)
    many = [rest[text_at]] * (3 * MANY // len(rest[text_at]))
    events = [first, *rest[:text_at], *many]
    encoder = find_wire(wire).encoder("another", "other_1")
    for event in events:
        encoder.follow(event)
    written = encoder.feed(TextDelta("the end")) + encoder.feed(Ended(Verdict("whole")))
    response = decode(b"".join(events) + written, wire)
    assert (response.text, response.verdict.kind) == ("Let me " * len(many) + "the end", "whole")
    assert b"other_1" not in written


# Valid in the wire's own terms, at every cut


def test_chat_chunks_belong_to_one_response_and_have_the_role_once() -> None:
    events = chat_events()
    for at in range(1, len(events)):
        told = data_of(b"".join(cut("openai-chat", events, at)))
        heads = {tuple(chunk[key] for key in ("id", "created", "model", "system_fingerprint")) for chunk in told}
        assert heads == {("chatcmpl-9", 1750000000, "gpt-x", "fp_1")}
        choices = [choice for chunk in told for choice in chunk["choices"]]
        assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
        begun = [call for choice in choices for call in choice["delta"].get("tool_calls", ()) if "id" in call]
        assert [(call["index"], call["id"]) for call in begun] == [(0, "call_1"), (1, "call_2"), (2, "call_3")]
        assert sum(1 for chunk in told if chunk.get("usage")) == 1


def test_the_empty_first_chunk_of_azure_is_not_mistaken_for_the_head() -> None:
    encoder = find_wire("openai-chat").encoder("m", "chatcmpl-1", created=5)
    encoder.follow(framed({"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": []}))
    (chunk,) = data_of(encoder.feed(TextDelta("hi")))
    assert (chunk["id"], chunk["model"], chunk["created"]) == ("chatcmpl-1", "m", 5)
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "hi"}


def test_blocks_begin_and_end_one_after_the_other() -> None:
    events = anthropic_events()
    for at in range(1, len(events) + 1):
        stream = b"".join(cut("anthropic-messages", events, at))
        told = data_of(stream)
        names = [line[7:].decode() for line in stream.splitlines() if line.startswith(b"event: ")]
        assert names == [event["type"] for event in told]
        assert (names[0], names.count("message_start")) == ("message_start", 1)
        assert (names[-2:], names.count("message_delta")) == (["message_delta", "message_stop"], 1)
        assert told[-2]["delta"]["stop_reason"] == "tool_use", at
        begun, is_open = 0, False
        for event in told[1:-2]:
            if event["type"] == "content_block_start":
                assert (event["index"], is_open) == (begun, False), at
                begun, is_open = begun + 1, True
            elif event["type"] != "ping":
                assert (event["index"], is_open) == (begun - 1, True), at
                is_open = event["type"] != "content_block_stop"
        assert not is_open


def test_text_continues_in_the_open_block_and_other_content_closes_it() -> None:
    start, *_ = events = anthropic_events()
    text = next(at for at, event in enumerate(events) if b'{"type":"text","text":""}' in event)
    passed = [start, events[text], events[text + 1]]
    encoder = find_wire("anthropic-messages").encoder("m", "msg_1")
    for event in passed:
        encoder.follow(event)
    (more,) = data_of(encoder.feed(TextDelta("and on")))
    assert (more["type"], more["index"]) == ("content_block_delta", 1)
    told = data_of(encoder.feed(ReasoningDelta("Hm.")))
    assert [(event["type"], event["index"]) for event in told] == [
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
    ]


def test_input_tokens_reported_at_the_beginning_are_kept() -> None:
    encoder = find_wire("anthropic-messages").encoder("m", "msg_1")
    encoder.follow(anthropic_events()[0])
    told = data_of(encoder.feed(TextDelta("hi")) + encoder.feed(Ended(Verdict("whole"))))
    assert [event["usage"] for event in told if "usage" in event] == [{"output_tokens": 1}]


def test_events_of_a_response_are_numbered_and_its_end_has_every_item() -> None:
    events = responses_events()
    whole = data_of(events[-1])[0]["response"]
    for at in range(1, len(events)):
        told = data_of(b"".join(cut("openai-responses", events, at)))
        assert [event["sequence_number"] for event in told] == list(range(3, 3 + len(told))), at
        assert_items_are_told_whole(told)
        response = told[-1]["response"]
        for key in ("id", "created_at", "model", "tools", "status"):
            assert response[key] == whole[key], (at, key)
        assert [(item["type"], item["status"]) for item in response["output"][1:]] == [
            (item["type"], item["status"]) for item in whole["output"][1:]
        ]


def assert_items_are_told_whole(told: list[Object]) -> None:
    begun: dict[int, str] = {}
    done: dict[int, Object] = {}
    texts: dict[tuple[str, int], str] = {}
    for event in told:
        match event["type"].removeprefix("response.").split("."):
            case ["output_item", "added"]:
                assert event["output_index"] == len(begun)
                begun[event["output_index"]] = event["item"]["id"]
            case ["output_item", "done"]:
                assert event["item"]["id"] == begun[event["output_index"]]
                done[event["output_index"]] = event["item"]
            case [str(), "delta"]:
                number = event.get("content_index", event.get("summary_index", 0))
                key = event["item_id"], number
                texts[key] = texts.get(key, "") + event["delta"]
                assert event["output_index"] not in done
            case ["output_text" | "reasoning_summary_text", "done"]:
                number = event.get("content_index", event.get("summary_index", 0))
                assert event["text"] == texts[event["item_id"], number]
            case _:
                pass
    assert told[-1]["response"]["output"] == [done[index] for index in sorted(begun)]
    for item in done.values():
        for number, part in enumerate(item.get("content") or item.get("summary") or ()):
            assert part["text"] == texts[item["id"], number]


def test_an_open_message_is_continued_under_its_own_id() -> None:
    events = responses_events()
    at = next(at for at, event in enumerate(events) if b'"delta":"Let me "' in event)
    encoder = find_wire("openai-responses").encoder("m", "resp_1")
    encoder.follow(b"".join(events[: at + 1]))
    (more,) = data_of(encoder.feed(TextDelta("see.")))
    assert (more["type"], more["item_id"], more["output_index"]) == ("response.output_text.delta", "msg_1", 1)
    told = data_of(encoder.feed(CallReady(ToolCall("call_9", "look", {}, "{}"))))
    assert [event["type"] for event in told[:4]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
    ]
    assert told[0]["text"] == told[1]["part"]["text"] == told[2]["item"]["content"][0]["text"] == "Let me see."
    assert told[3]["output_index"] == 2


def test_encrypted_reasoning_without_an_end_is_not_forwarded() -> None:
    first = responses_events()[0]
    begun: Object = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "half"}
    added: Object = {"type": "response.output_item.added", "sequence_number": 4, "output_index": 0, "item": begun}
    encoder = find_wire("openai-responses").encoder("m", "resp_1")
    encoder.follow(first + framed(added))
    told = data_of(encoder.feed(TextDelta("hi")) + encoder.feed(Ended(Verdict("whole"))))
    assert told[0]["item"] == {"id": "rs_1", "type": "reasoning", "summary": []}
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["reasoning", "message"]


def test_gemini_chunks_keep_their_head() -> None:
    events = gemini_events()
    for at in range(1, len(events)):
        told = data_of(b"".join(cut("gemini", events, at)))
        assert {(chunk["modelVersion"], chunk["responseId"]) for chunk in told} == {("gemini-x", "r9")}


# Calls that the client has partly received


def inside_a_call(wire: str) -> tuple[list[bytes], str]:
    """Events that stop in the middle of the arguments of the first call, and the id of that call."""
    events = STREAMS[wire]()
    at = next(at for at, event in enumerate(events) if b"a/b" in event)
    return events[: at + 1], decode(b"".join(events), wire).calls[0].id


PIECEWISE = ["openai-chat", "anthropic-messages", "openai-responses", "cohere-v2", "bedrock-converse"]
piecewise = pytest.mark.parametrize("wire", PIECEWISE)


@piecewise
def test_half_a_call_that_is_never_finished_gives_a_cut_off_answer(wire: str) -> None:
    events, _ = inside_a_call(wire)
    encoder = find_wire(wire).encoder("m", "resp_1")
    encoder.follow(b"".join(events))
    response = decode(b"".join(events) + encoder.feed(Ended(Verdict("whole"))), wire)
    assert (response.verdict.kind, response.verdict.meaning_for_client) == ("cut_call", "length")
    assert [call.complete for call in response.calls] == [False]


@piecewise
def test_a_different_call_after_half_a_call_is_written_completely(wire: str) -> None:
    events, _ = inside_a_call(wire)
    encoder = find_wire(wire).encoder("m", "resp_1")
    encoder.follow(b"".join(events))
    written = encoder.feed(CallReady(ToolCall("call_other", "list", {"n": 1}, '{"n": 1}')))
    response = decode(b"".join(events) + written + encoder.feed(Ended(Verdict("whole"))), wire)
    assert [(call.id, call.complete) for call in response.calls][1:] == [("call_other", True)]
    assert (response.calls[0].complete, response.verdict.meaning_for_client) == (False, "length")


@piecewise
def test_a_call_that_contradicts_what_was_forwarded_is_not_mixed_with_it(wire: str) -> None:
    events, id = inside_a_call(wire)
    encoder = find_wire(wire).encoder("m", "resp_1")
    encoder.follow(b"".join(events))
    written = encoder.feed(CallReady(ToolCall(id, "look", {"n": 1}, '{"n": 1}')))
    response = decode(b"".join(events) + written + encoder.feed(Ended(Verdict("whole"))), wire)
    assert [(call.id, call.complete) for call in response.calls] == [(id, False)]
    assert response.verdict.meaning_for_client == "length"


@every_wire
def test_a_different_call_under_the_id_of_a_forwarded_one_gives_a_cut_off_answer(wire: str) -> None:
    events = STREAMS[wire]()
    *_, last = decode(b"".join(events), wire).calls
    until = {"openai-chat": -3, "anthropic-messages": -2, "bedrock-converse": -2}.get(wire, -1)
    passed = b"".join(events[:until])
    for call, told in ((last, "done"), (replace(last, arguments={"n": 1}, raw='{"n": 1}'), "length")):
        encoder = find_wire(wire).encoder("m", "resp_1")
        encoder.follow(passed)
        assert encoder.feed(CallReady(call)) == b""
        assert decode(passed + encoder.feed(Ended(Verdict("whole"))), wire).verdict.meaning_for_client == told


def test_numbers_beyond_64_bits_are_compared_as_they_were_sent() -> None:
    call = ToolCall("g1", "look", {"n": 2**70}, json.dumps({"n": 2**70}))
    part = {"functionCall": {"id": "g1", "name": "look", "args": call.arguments}}
    passed = framed({"candidates": [{"content": {"parts": [part]}}], "modelVersion": "g", "responseId": "r"})
    encoder = find_wire("gemini").encoder("m", "r_1")
    encoder.follow(passed)
    assert encoder.feed(CallReady(call)) == b""
    assert decode(passed + encoder.feed(Ended(Verdict("whole"))), "gemini").verdict.meaning_for_client == "done"


@every_wire
def test_the_raw_first_call_is_a_valid_answer(wire: str) -> None:
    """One call at a time: the events of the others are held back, and the end is written here."""
    events = STREAMS[wire]()
    first = decode(b"".join(events), wire).calls[0]
    until = {
        "openai-chat": b'"id":"call_2"',
        "anthropic-messages": b'"id":"toolu_2"',
        "openai-responses": b'"id":"ctc_1"',
        "gemini": b'"id":"g2"',
        "ollama": b'"id":"o2"',
        "cohere-v2": b'"id":"list_2"',
        "bedrock-converse": b'"toolUseId":"tooluse_2"',
    }[wire]
    passed = b"".join(events[: next(at for at, event in enumerate(events) if until in event)])
    encoder = find_wire(wire).encoder("m", "resp_1")
    encoder.follow(passed)
    written = encoder.feed(UsageReported(Usage(11, 7))) + encoder.feed(Ended(Verdict("whole")))
    response = decode(passed + written, wire)
    assert [(call.id, call.arguments) for call in response.calls] == [(first.id, first.arguments)]
    assert (response.verdict.kind, response.verdict.meaning_for_client) == ("whole", "done")
    if wire != "gemini":
        assert response.finish == decode(b"".join(events), wire).finish


@every_wire
@pytest.mark.parametrize(("kind", "read_as"), [("lost", "error"), ("too_long", "too_long")])
def test_a_failure_after_raw_events_is_an_error_of_the_wire(wire: str, kind: VerdictKind, read_as: str) -> None:
    events = STREAMS[wire]()[:4]
    encoder = find_wire(wire).encoder("m", "resp_1")
    encoder.follow(b"".join(events))
    written = encoder.feed(Ended(Verdict(kind, "it broke")))
    verdict = decode(b"".join(events) + written, wire).verdict
    assert (verdict.kind, "it broke" in verdict.reason) == (read_as, True)


@every_wire
def test_nothing_follows_an_end_that_was_forwarded(wire: str) -> None:
    for ended in (Ended(Verdict("whole")), Ended(Verdict("error", "late"))):
        encoder = find_wire(wire).encoder("m", "resp_1")
        encoder.follow(b"".join(STREAMS[wire]()))
        assert encoder.feed(ended) == b""


# Options of all encoders


@every_wire
def test_every_encoder_accepts_the_time_and_the_usage_option(wire: str) -> None:
    writer = ResponseWriter(wire, "m", "resp_1", created=1750000000, include_usage=False)
    deltas: list[Delta] = [TextDelta("hi"), UsageReported(Usage(3, 2)), Ended(Verdict("whole"))]
    stream = b"".join(map(writer.feed, deltas))
    if wire == "openai-chat":
        assert {chunk["created"] for chunk in data_of(stream)} == {1750000000}
        assert b"usage" not in stream
        assert json.loads(writer.body())["created"] == 1750000000
    elif wire == "openai-responses":
        assert {event["response"]["created_at"] for event in data_of(stream) if "response" in event} == {1750000000}
        assert json.loads(writer.body())["created_at"] == 1750000000
    usage = decode(writer.body(), wire).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (3, 2)


@every_wire
@pytest.mark.parametrize("text", ["", "a", 'q"\\\n', "日本😀", "half \ud83d of a pair"])
def test_the_fast_way_to_write_text_equals_the_slow_one(wire: str, text: str) -> None:
    def normal(stream: bytes) -> list[Object]:
        return [{**event, "sequence_number": 0} for event in data_of(stream)]

    first, again = (find_wire(wire).encoder("m", "resp_1") for _ in range(2))
    first.feed(TextDelta("x"))
    again.feed(TextDelta("x"))
    again.follow(b": a comment, after which everything is written the slow way\n\n")
    assert normal(first.feed(TextDelta(text))) == normal(again.feed(TextDelta(text)))
