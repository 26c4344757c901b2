"""The wire cohere-v2: plans and thinking that go back, calls in pieces, citations, the two choices that it has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams import calls_of, feed

from unbroken import Assistant, Decoder, Request, Response, Sampling, User, decode
from unbroken_wires.deltas import CallReady, Delta, Ended, ReasoningDelta, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import Media, Native, OneTool, System, ToolCall, ToolMessage, ToolResult, ToolSpec, Usage
from unbroken_wires.wires.cohere import WIRE, CohereEncoder

Object = dict[str, Any]
SIZES = (1, 7, 64, 100_000)
USAGE: Object = {
    "billed_units": {"input_tokens": 3},
    "tokens": {"input_tokens": 9, "output_tokens": 4},
    "cached_tokens": 5,
}


def event(kind: str, message: Object | None = None, **more: Any) -> Object:
    return {"type": kind, **more, **({} if message is None else {"delta": {"message": message}})}


def begin(index: int, id: str, name: str, arguments: Any = "") -> Object:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return event("tool-call-start", {"tool_calls": call}, index=index)


def more(index: int, text: Any) -> Object:
    return event("tool-call-delta", {"tool_calls": {"function": {"arguments": text}}}, index=index)


def stop(index: int) -> Object:
    return event("tool-call-end", index=index)


def end(reason: str = "TOOL_CALL", **delta: Any) -> Object:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": USAGE, **delta}}


START = event("message-start", {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": []}, id="r1")


def stream(*events: Object) -> bytes:
    named = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in (START, *events)]
    return "".join([*named, "data: [DONE]\n\n"]).encode()


def cohere(*events: Object) -> Response:
    return decode(stream(*events), "cohere-v2")


def sent(*messages: Any, **more: Any) -> Object:
    return WIRE.encode_request(Request(messages, model="command-a", **more))


# Responses


@pytest.mark.parametrize("size", SIZES)
def test_a_stream_and_a_body_are_read_alike(size: int) -> None:
    streamed = stream(
        event("tool-plan-delta", {"tool_plan": "I will "}),
        event("tool-plan-delta", {"tool_plan": "look."}),
        event("content-start", {"content": {"type": "text", "text": ""}}, index=0),
        event("content-delta", {"content": {"text": "Zürich "}}, index=0),
        event("content-delta", {"content": {"text": "😀"}}, index=0),
        event("content-end", index=0),
        begin(0, "look_1", "look"),
        more(0, '{"ci'),
        more(0, 'ty": "Zürich"}'),
        stop(0),
        begin(1, "now_2", "now"),
        stop(1),
        end(),
    )
    calls = [
        {"id": "look_1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Zürich"}'}},
        {"id": "now_2", "type": "function", "function": {"name": "now", "arguments": ""}},
    ]
    content = [{"type": "text", "text": "Zürich 😀"}]
    message = {"role": "assistant", "tool_plan": "I will look.", "content": content, "tool_calls": calls}
    whole = json.dumps({"id": "r1", "message": message, "finish_reason": "TOOL_CALL", "usage": USAGE}).encode()
    for body in (streamed, whole):
        decoder = Decoder("cohere-v2")
        for at in range(0, len(body), size):
            decoder.feed(body[at : at + size])
        r = decoder.response()
        assert r.verdict.whole
        assert (r.text, r.reasoning, r.finish) == ("Zürich 😀", "I will look.", "TOOL_CALL")
        assert calls_of(r) == [("look_1", "look", {"city": "Zürich"}), ("now_2", "now", {})]
        assert r.usage is not None
        assert (r.usage.input_tokens, r.usage.output_tokens, r.usage.cached_tokens) == (9, 4, 5)
        assert r.message.native == Native("cohere-v2", {"tool_plan": "I will look."}, ("look_1", "now_2"))


def test_a_call_is_ready_with_its_own_end_and_not_before() -> None:
    decoder = Decoder("cohere-v2")
    first = decoder.feed(stream(begin(0, "a", "f"), more(0, '{"n": 1'))[: -len("data: [DONE]\n\n")])
    assert not [delta for delta in first if isinstance(delta, CallReady)]
    rest = f"data: {json.dumps(more(0, '}'))}\n\ndata: {json.dumps(stop(0))}\n\n"
    then = decoder.feed(rest.encode())
    assert [delta.call.arguments for delta in then if isinstance(delta, CallReady)] == [{"n": 1}]


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([begin(0, "a", "f"), more(0, '{"n": ')], "unfinished"),
        ([begin(0, "a", "f"), more(0, '{"n": '), stop(0)], "unfinished"),
        ([begin(0, "a", "f"), more(0, '{"n": '), end("MAX_TOKENS")], "cut_call"),
        ([begin(0, "a", "f"), end("MAX_TOKENS")], "cut_call"),
        ([begin(0, "a", "f"), more(0, '{"n": '), stop(0), end()], "cut_call"),
    ],
)
def test_half_a_call_is_never_complete(events: list[Object], kind: str) -> None:
    response = cohere(*events)
    assert [call.complete for call in response.calls] == [False]
    assert response.verdict.kind == kind


def test_null_for_arguments_is_no_object_and_does_not_run() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "null"}}
    body = {"message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "TOOL_CALL"}
    (made,) = decode(json.dumps(body).encode(), "cohere-v2").calls
    assert (made.complete, made.arguments) == (False, None)
    assert "null" in made.problem


@pytest.mark.parametrize(
    ("reason", "meaning", "kind"),
    [
        ("COMPLETE", "done", "whole"),
        ("STOP_SEQUENCE", "done", "whole"),
        ("MAX_TOKENS", "length", "whole"),
        ("ERROR", "other", "error"),
        ("TIMEOUT", "other", "error"),
        ("SOMETHING_NEW", "other", "whole"),
    ],
)
def test_each_reason_has_its_meaning(reason: str, meaning: str, kind: str) -> None:
    verdict = cohere(event("content-delta", {"content": {"text": "hi"}}, index=0), end(reason)).verdict
    assert (verdict.meaning, verdict.kind) == (meaning, kind)


def test_the_words_of_an_error_stand_in_the_last_event() -> None:
    response = cohere(event("content-delta", {"content": {"text": "hi"}}), end("ERROR", error="internal server error"))
    assert (response.error, response.verdict.kind) == ("internal server error", "error")
    told = decode(b'{"id": "x", "message": "invalid request: tool_choice"}', "cohere-v2")
    assert "tool_choice" in told.verdict.reason


def test_the_end_is_the_last_event_and_done_means_nothing() -> None:
    said = event("content-delta", {"content": {"text": "a"}})
    assert cohere(said, end("COMPLETE"), said).text == "a"
    assert decode(stream(said), "cohere-v2").verdict.kind == "unfinished"


def test_pieces_of_a_call_that_never_began_are_damage() -> None:
    assert cohere(more(0, "{}"), end()).verdict.kind == "damaged"


def test_indexes_may_be_missing_or_the_same_for_all() -> None:
    def called(*indexes: Any) -> list[tuple[str, str, Any]]:
        events: list[Object] = []
        for index, id in zip(indexes, "abc", strict=False):
            events += [begin(index, id, "f"), more(index, f'{{"n": "{id}"}}'), stop(index)]
        return calls_of(cohere(*events, end()))

    assert called(0, 1, 2) == called(0, 0, 0) == called(None, None, None) == called("0", "1", "2")


def test_the_deltas_are_the_same_at_every_chunk_size() -> None:
    body = stream(
        event("content-delta", {"content": {"text": "é😀"}}), begin(0, "a", "f"), more(0, "{}"), stop(0), end()
    )
    assert all(feed(body, size, "cohere-v2") == feed(body, len(body), "cohere-v2") for size in range(1, 200))


# What goes back


def test_plan_thinking_and_citations_go_back_with_their_message() -> None:
    cited = {"start": 0, "end": 4, "text": "Rain", "sources": [{"type": "tool", "id": "look_1:0"}]}
    response = cohere(
        event("content-start", {"content": {"type": "thinking", "thinking": "Hm"}}, index=0),
        event("content-delta", {"content": {"thinking": "m."}}, index=0),
        event("content-end", index=0),
        event("tool-plan-delta", {"tool_plan": "Look."}),
        event("content-start", {"content": {"type": "text", "text": ""}}, index=1),
        event("content-delta", {"content": {"text": "Rain."}}, index=1),
        event("citation-start", {"citations": cited}, index=0),
        event("citation-end", index=0),
        begin(0, "look_1", "look", "{}"),
        stop(0),
        end(),
    )
    assert response.reasoning == "Hmm.Look."
    answer = sent(User.of("?"), response.message)["messages"][1]
    assert answer == {
        "role": "assistant",
        "tool_plan": "Look.",
        "citations": [cited],
        "content": [{"type": "thinking", "thinking": "Hmm."}, {"type": "text", "text": "Rain."}],
        "tool_calls": [{"id": "look_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    again = WIRE.decode_request({"messages": [answer]}).messages[0]
    assert isinstance(again, Assistant)
    assert WIRE.encode_request(Request((again,)))["messages"] == [answer]
    shorter = Assistant("", response.calls, "", response.message.native)
    assert "citations" not in sent(User.of("?"), shorter)["messages"][1]  # they would point behind the text


# Requests


@pytest.mark.parametrize(
    ("choice", "spelled", "offered"),
    [
        (None, None, ["look", "now"]),
        ("auto", None, ["look", "now"]),
        ("none", "NONE", ["look", "now"]),
        ("required", "REQUIRED", ["look", "now"]),
        (OneTool("now"), "REQUIRED", ["now"]),
    ],
)
def test_a_choice_is_required_none_or_nothing(choice: Any, spelled: str | None, offered: list[str]) -> None:
    body = sent(User.of("hi"), tools=(ToolSpec("look"), ToolSpec("now")), choice=choice)
    assert body.get("tool_choice") == spelled
    assert [tool["function"]["name"] for tool in body["tools"]] == offered


def test_settings_have_the_names_of_this_wire() -> None:
    sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, stop=("a",), seed=3)
    body = sent(User.of("hi"), sampling=sampling, reasoning="low", extra={"safety_mode": "STRICT"})
    assert body == {
        "model": "command-a",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "thinking": {"type": "enabled", "token_budget": 2048},
        "max_tokens": 9,
        "temperature": 0.5,
        "p": 0.9,
        "stop_sequences": ["a"],
        "seed": 3,
        "safety_mode": "STRICT",
    }
    again = WIRE.decode_request(body)
    assert (again.sampling, again.reasoning, again.extra) == (sampling, "low", {"safety_mode": "STRICT"})
    assert sent(User.of("hi"), sampling=Sampling(top_p=1.0))["p"] == 0.99
    assert sent(User.of("hi"), reasoning="none")["thinking"] == {"type": "disabled"}


def test_strict_is_one_switch_for_all_tools() -> None:
    strict, loose = ToolSpec("a", strict=True), ToolSpec("b")
    assert sent(User.of("hi"), tools=(strict,))["strict_tools"] is True
    assert "strict_tools" not in sent(User.of("hi"), tools=(strict, loose))
    again = WIRE.decode_request(sent(User.of("hi"), tools=(strict,)))
    assert [tool.strict for tool in again.tools] == [True]


def test_what_has_no_content_is_left_out() -> None:
    messages = sent(System.of(""), User.of("hi"), Assistant(""), User.of(""))["messages"]
    assert messages == [{"role": "user", "content": "hi"}]


def test_images_of_a_result_follow_in_a_message_of_the_user() -> None:
    image = Media(mime="image/png", data="iVBORw0KGgo=")
    call = ToolCall("c", "f", {}, "{}")
    result = ToolResult("c", (image,), name="f")
    *_, told, shown = sent(User.of("?"), Assistant("", (call,)), ToolMessage((result,)))["messages"]
    assert told["content"] == "[1 image(s) of this result follow in the next user message]"
    assert shown["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def test_documents_of_a_client_come_back_as_they_were_and_are_text_elsewhere() -> None:
    document = {"type": "document", "document": {"id": "d1", "data": {"text": "Rain."}}}
    raw = [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [document]},
    ]
    request = WIRE.decode_request({"messages": raw})
    results = request.messages[1]
    assert isinstance(results, ToolMessage)
    assert (results.results[0].text, results.results[0].name) == ("Rain.", "f")
    assert WIRE.encode_request(request)["messages"][1]["content"] == [document]


# For a client


def test_a_client_gets_blocks_and_calls_each_with_their_own_numbers() -> None:
    encoder = CohereEncoder("m", "r1")
    deltas: list[Delta] = [
        ReasoningDelta("Hm."),
        TextDelta("hi"),
        CallReady(ToolCall("a", "f", {"n": 1}, '{"n": 1}')),
        CallReady(ToolCall("b", "g", {}, "{}", 1)),
        UsageReported(Usage(9, 4)),
        Ended(Verdict("whole")),
    ]
    told = b"".join(map(encoder.feed, deltas)).split(b"\n\n")
    events = [json.loads(one.partition(b"data: ")[2]) for one in told if one]
    assert [(one["type"], one.get("index")) for one in events] == [
        ("message-start", None),
        ("content-start", 0),
        ("content-delta", 0),
        ("content-end", 0),
        ("content-start", 1),
        ("content-delta", 1),
        ("content-end", 1),
        ("tool-call-start", 0),
        ("tool-call-delta", 0),
        ("tool-call-end", 0),
        ("tool-call-start", 1),
        ("tool-call-delta", 1),
        ("tool-call-end", 1),
        ("message-end", None),
    ]
    assert events[-1]["delta"]["usage"]["tokens"] == {"input_tokens": 9, "output_tokens": 4}
    body = json.loads(encoder.body())
    assert [block["type"] for block in body["message"]["content"]] == ["thinking", "text"]
    assert (len(body["message"]["tool_calls"]), body["finish_reason"]) == (2, "TOOL_CALL")
