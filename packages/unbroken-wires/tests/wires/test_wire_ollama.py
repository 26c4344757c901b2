"""The wire ollama: lines of JSON, calls complete and mostly without ids, thinking that goes back, options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams import calls_of, feed

from unbroken import Assistant, Decoder, Request, Response, Sampling, User, decode
from unbroken_wires.deltas import CallReady, Ended, TextDelta, UsageReported, Verdict
from unbroken_wires.messages import (
    Media,
    Native,
    OneTool,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    Usage,
)
from unbroken_wires.wires.ollama import WIRE, OllamaEncoder

Object = dict[str, Any]
SIZES = (1, 7, 64, 100_000)


def line(message: Object | None = None, **more: Any) -> bytes:
    head: Object = {"model": "qwen3", "created_at": "2026-01-01T00:00:00Z"}
    head["message"] = {"role": "assistant", "content": "", **(message or {})}
    return json.dumps({**head, "done": False, **more}).encode() + b"\n"


def done(reason: str = "stop", **more: Any) -> bytes:
    return line(done=True, done_reason=reason, **more)


def call(name: str, arguments: Any, id: str = "") -> Object:
    return {**({"id": id} if id else {}), "function": {"name": name, "arguments": arguments}}


def ollama(*lines: bytes) -> Response:
    return decode(b"".join(lines), "ollama")


def sent(*messages: Any, **more: Any) -> Object:
    return WIRE.encode_request(Request(messages, model="qwen3", **more))


# Responses


@pytest.mark.parametrize("size", SIZES)
def test_a_stream_and_a_body_are_read_alike(size: int) -> None:
    calls = [call("look", {"city": "Zürich 😀"}), call("now", {}, "call_x")]
    usage = {"prompt_eval_count": 9, "eval_count": 4}
    stream = b"".join(
        [
            line({"thinking": "Hm, "}),
            line({"thinking": "two."}),
            line({"content": "Let me "}),
            line({"content": "look."}),
            line({"tool_calls": calls[:1]}),
            line({"tool_calls": calls[1:]}),
            done("stop", **usage),
        ]
    )
    whole = {"content": "Let me look.", "thinking": "Hm, two.", "tool_calls": calls}
    for body in (stream, line(whole, done=True, done_reason="stop", **usage).strip()):
        decoder = Decoder("ollama")
        for at in range(0, len(body), size):
            decoder.feed(body[at : at + size])
        r = decoder.response()
        assert r.verdict.whole
        assert (r.text, r.reasoning, r.finish) == ("Let me look.", "Hm, two.", "stop")
        assert calls_of(r) == [("call_0_0", "look", {"city": "Zürich 😀"}), ("call_x", "now", {})]
        assert r.usage is not None
        assert (r.usage.input_tokens, r.usage.output_tokens, dict(r.usage.raw)) == (9, 4, usage)


def test_calls_are_ready_with_their_own_line() -> None:
    decoder = Decoder("ollama")
    deltas = decoder.feed(line({"tool_calls": [call("a", {"n": 2**70}), call("b", None)]}))
    assert [delta.call.arguments for delta in deltas if isinstance(delta, CallReady)] == [{"n": 2**70}]
    assert calls_of(decoder.response())[1][2] is None  # not before the end says that nothing is missing
    assert calls_of(ollama(line({"tool_calls": [call("b", None)]}), done()))[0][2] == {}


@pytest.mark.parametrize(
    ("arguments", "complete"), [('{"n": 1}', True), ('{"n": ', False), ([1], False), ("[1]", False), (7, False)]
)
def test_arguments_that_are_no_object_are_parsed_strictly_or_refused(arguments: Any, complete: bool) -> None:
    response = ollama(line({"tool_calls": [call("a", arguments)]}), done())
    assert [each.complete for each in response.calls] == [complete]


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [("stop", "done"), ("length", "length"), ("", "done"), ("load", "other"), ("unload", "other")],
)
def test_each_reason_has_its_meaning(reason: str, meaning: str) -> None:
    verdict = ollama(line({"content": "hi"}), done(reason)).verdict
    assert verdict.meaning == meaning


def test_an_old_server_gives_no_reason() -> None:
    response = ollama(line({"content": "hi"}), line(done=True))
    assert (response.finish, response.verdict.kind) == (None, "whole")


@pytest.mark.parametrize("lines", [[line({"content": "hi"})], [line({"tool_calls": [call("a", {})]})], [done()[:-30]]])
def test_a_stream_without_its_last_line_is_not_complete(lines: list[bytes]) -> None:
    decoder = Decoder("ollama")
    decoder.feed(b"".join(lines))
    assert decoder.response().verdict.kind in ("unfinished", "foreign")


def test_an_error_in_the_middle_is_an_error() -> None:
    response = ollama(line({"content": "Let me"}), b'{"error":"an error was encountered while running the model"}\n')
    assert (response.verdict.kind, response.error) == ("error", "an error was encountered while running the model")


def test_nothing_is_read_after_the_end() -> None:
    assert ollama(line({"content": "a"}), done(), line({"content": "b"}), done("length")).text == "a"


@pytest.mark.parametrize(
    "message", [{"tool_calls": 5}, {"tool_calls": [5]}, {"tool_calls": [{"function": 5}]}, {"content": [1]}, 7]
)
def test_values_of_unexpected_types_never_raise(message: Any) -> None:
    odd = json.dumps({"message": message, "done": False}).encode() + b"\n"
    assert ollama(line({"content": "before "}), odd, line({"content": "after"}), done()).text == "before after"


def test_the_deltas_are_the_same_at_every_chunk_size() -> None:
    body = line({"content": "é😀"}) + line({"tool_calls": [call("a", {"x": "}{"})]}) + done()
    assert all(feed(body, size, "ollama") == feed(body, len(body), "ollama") for size in range(1, len(body)))


# What goes back


def test_thinking_goes_back_with_the_call_it_led_to() -> None:
    response = ollama(line({"thinking": "Hm."}), line({"tool_calls": [call("now", {})]}), done())
    assert response.message.native == Native("ollama", {"thinking": "Hm."}, ("call_0_0",))
    result = ToolMessage((ToolResult.of(response.calls[0], "noon"),))
    _, answer, told = sent(User.of("?"), response.message, result)["messages"]
    assert answer == {
        "role": "assistant",
        "content": "",
        "thinking": "Hm.",
        "tool_calls": [{"id": "call_0_0", "function": {"name": "now", "arguments": {}}}],
    }
    assert told == {"role": "tool", "content": "noon", "tool_name": "now", "tool_call_id": "call_0_0"}


def test_thinking_of_another_wire_stays_behind() -> None:
    foreign = Assistant("hi", (), "Hm.", Native("anthropic-messages", []))
    assert sent(User.of("?"), foreign)["messages"][1] == {"role": "assistant", "content": "hi"}


# Requests


def test_settings_are_options() -> None:
    sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.9, stop=("a", "b"), seed=3)
    body = sent(User.of("hi"), sampling=sampling, extra={"options": {"num_ctx": 9000}, "keep_alive": "5m"})
    assert body["options"] == {
        "num_predict": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["a", "b"],
        "seed": 3,
        "num_ctx": 9000,
    }
    again = WIRE.decode_request(body)
    assert (again.sampling, again.extra) == (sampling, {"options": {"num_ctx": 9000}, "keep_alive": "5m"})


def test_a_request_is_a_stream_unless_it_says_otherwise() -> None:
    assert sent(User.of("hi"))["stream"] is True
    assert sent(User.of("hi"), stream=False)["stream"] is False
    assert WIRE.decode_request({"messages": []}).stream
    assert WIRE.http.streams({})
    assert not WIRE.http.streams({"stream": False})


@pytest.mark.parametrize(
    ("effort", "model", "think"),
    [("high", "qwen3", True), ("none", "qwen3", False), ("xhigh", "gpt-oss:20b", "high"), ("none", "gpt-oss", "low")],
)
def test_an_effort_is_a_switch_or_a_level(effort: Any, model: str, think: Any) -> None:
    assert WIRE.encode_request(Request((User.of("hi"),), reasoning=effort, model=model))["think"] == think


@pytest.mark.parametrize(("think", "effort"), [(True, "medium"), (False, "none"), ("high", "high"), ("max", None)])
def test_what_a_client_says_about_thinking_comes_back_as_it_was(think: Any, effort: Any) -> None:
    request = WIRE.decode_request({"model": "m", "messages": [{"role": "user", "content": "hi"}], "think": think})
    assert request.reasoning == effort
    assert WIRE.encode_request(request)["think"] == think


def test_without_a_tool_choice_none_means_no_tools() -> None:
    tools = (ToolSpec("look"), ToolSpec("now"))
    assert len(sent(User.of("hi"), tools=tools, choice="required")["tools"]) == 2
    assert len(sent(User.of("hi"), tools=tools, choice=OneTool("look"))["tools"]) == 2
    assert "tools" not in sent(User.of("hi"), tools=tools, choice="none")
    assert "tools" not in sent(User.of("hi"), tools=tools, final=True, extra={"tools": [{"type": "x"}]})


def test_images_stand_beside_the_text_and_what_cannot_travel_is_named_in_it() -> None:
    said = User.of("Look:", Media(mime="image/jpeg", data="/9j/4AA="), Media(url="https://example.com/a.png"))
    (message,) = sent(said)["messages"]
    assert message["images"] == ["/9j/4AA="]
    assert message["content"].startswith("Look:\n[an attachment")
    assert "https://example.com/a.png" in message["content"]
    (again,) = WIRE.decode_request({"messages": [message]}).messages
    assert isinstance(again, User)
    assert again.parts[1] == Media(mime="image/jpeg", data="/9j/4AA=")


def test_results_without_ids_answer_by_name_then_in_order() -> None:
    calls = [call("f", {}), call("g", {}), call("f", {"n": 2})]
    told = [("g", "1"), ("f", "2"), ("", "3")]
    raw = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_name": name, "content": text} for name, text in told),
    ]
    _, results = WIRE.decode_request({"messages": raw}).messages
    assert isinstance(results, ToolMessage)
    assert [(r.call_id, r.name, r.text) for r in results.results] == [
        ("call_0_1", "g", "1"),
        ("call_0_0", "f", "2"),
        ("call_0_2", "f", "3"),
    ]


def test_an_error_shows_in_the_text_alone() -> None:
    made = ToolCall("c", "f", {}, "{}")
    messages = (User.of("?"), Assistant("", (made,)), ToolMessage((ToolResult("c", (), error=True),)))
    assert sent(*messages)["messages"][-1]["content"] == "Error"


def test_system_messages_stay_where_they_are() -> None:
    roles = [m["role"] for m in sent(System.of("a", "b"), User.of("hi"), System((Text("c"),)))["messages"]]
    assert roles == ["system", "user", "system"]


# For a client


def test_a_client_gets_lines_and_a_last_one_with_the_counts() -> None:
    encoder = OllamaEncoder("m", created=1750000000)
    deltas: list[Any] = [
        TextDelta("hi"),
        CallReady(ToolCall("a", "f", {"n": 1}, '{"n": 1}')),
        CallReady(ToolCall("b", "g", {}, "{}", 1)),
        UsageReported(Usage(9, 4)),
        Ended(Verdict("whole")),
    ]
    said = [json.loads(one) for one in b"".join(map(encoder.feed, deltas)).splitlines()]
    assert {one["created_at"] for one in said} == {"2025-06-15T15:06:40Z"}
    assert [one["message"].get("tool_calls") for one in said][1:3] == [
        [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"n": 1}}}],
        [{"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}}],
    ]
    assert [one["done"] for one in said] == [False, False, False, True]
    assert (said[-1]["done_reason"], said[-1]["prompt_eval_count"], said[-1]["eval_count"]) == ("stop", 9, 4)
    assert len(json.loads(encoder.body())["message"]["tool_calls"]) == 2
