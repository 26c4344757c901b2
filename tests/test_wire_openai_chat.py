"""openai-chat: what servers bend, what must travel back, and the shape of what we write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from streams import calls_chunk, chat, chunk, piece, sse

from unbroken import (
    Assistant,
    Media,
    Native,
    OneTool,
    Request,
    Sampling,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
    decode,
)
from unbroken.wires.ids import CHAT, MISTRAL, fit
from unbroken.wires.openai_chat import WIRE

WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def encoded(*messages: Any, **settings: Any) -> dict[str, Any]:
    return WIRE.encode_request(Request(messages, model="m", **settings))


def sent_back(message: Assistant) -> dict[str, Any]:
    """The assistant message as it goes out with the next request."""
    return encoded(User.of("x"), message)["messages"][1]


# Reading


def test_a_whole_message_at_the_end_of_a_stream_is_not_said_twice() -> None:
    last = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "Hello there"}}]}
    response = decode(sse(chunk({"content": "Hello "}), chunk({"content": "there"}), last))
    assert (response.text, response.finish) == ("Hello there", "stop")


def test_a_message_beside_every_delta_is_not_read() -> None:
    both = [
        {"choices": [{"index": 0, "delta": {"content": "Hel"}, "message": {"content": "Hel"}, "finish_reason": None}]},
        {
            "choices": [
                {"index": 0, "delta": {"content": "lo"}, "message": {"content": "Hello"}, "finish_reason": "stop"}
            ]
        },
    ]
    assert decode(sse(*both)).text == "Hello"


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource", "abort"])
def test_a_finish_reason_that_says_the_server_gave_up_is_an_error(reason: str) -> None:
    response = decode(sse(chunk({"content": "Hel"}), chunk({}, reason)))
    assert (response.verdict.kind, response.finish) == ("error", reason)


def test_the_error_object_says_more_than_the_finish_reason() -> None:
    response = decode(sse(chunk({"content": "Hel"}), {**chunk({}, "error"), "error": {"code": 502, "message": "dead"}}))
    assert response.error == {"code": 502, "message": "dead"}


def test_minimax_puts_its_errors_beside_empty_choices() -> None:
    body = {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}
    response = decode(json.dumps(body).encode())
    assert response.error == {"code": 1008, "message": "insufficient balance"}
    fine = {**chunk({"content": "hi"}, "stop"), "base_resp": {"status_code": 0, "status_msg": ""}}
    assert decode(sse(fine)).verdict.whole


def test_text_that_comes_with_a_call_comes_before_it() -> None:
    body = sse(chunk({"content": "Look: ", "tool_calls": [piece(0, "a", "f", "{}")]}), chunk({}, "tool_calls"))
    response = decode(body)
    assert (response.text, len(response.calls)) == ("Look: ", 1)


def test_the_same_reasoning_under_two_names_is_told_once() -> None:
    response = decode(sse(chunk({"reasoning_content": "Hm.", "reasoning": "Hm."}), chunk({"content": "x"}, "stop")))
    assert response.reasoning == "Hm."


def test_usage_is_told_in_one_spelling_and_raw() -> None:
    raw = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    usage = decode(sse(chunk({"content": "x"}, "stop"), {"choices": [], "usage": raw})).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (10, 7, 4, 3)
    assert usage.raw == raw


def test_an_answer_that_is_an_image_is_not_empty() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert decode(sse(chunk({"images": [image]}), chunk({}, "stop"))).verdict.whole
    assert decode(sse(chunk({}, "stop"))).verdict.kind == "empty"


# What must travel back


def test_reasoning_content_goes_back_as_it_came() -> None:
    body = sse(
        chunk({"reasoning_content": "Let me "}),
        chunk({"reasoning_content": "think."}),
        calls_chunk(piece(0, "a", "f", "{}")),
        chunk({}, "tool_calls"),
    )
    assert sent_back(decode(body).message)["reasoning_content"] == "Let me think."


def test_reasoning_details_are_put_together_block_by_block() -> None:
    def details(*items: dict[str, Any]) -> dict[str, Any]:
        return chunk({"reasoning": "x", "reasoning_details": list(items)})

    body = sse(
        details({"type": "reasoning.text", "index": 0, "text": "Let ", "format": "anthropic-claude-v1"}),
        details({"type": "reasoning.text", "index": 0, "text": "me.", "signature": None}),
        details({"type": "reasoning.text", "index": 0, "signature": "c2ln"}),
        details({"type": "reasoning.encrypted", "index": 1, "data": "gAAA", "id": "rs_1"}),
        chunk({"content": "ok"}, "stop"),
    )
    assert sent_back(decode(body).message)["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Let me.", "format": "anthropic-claude-v1", "signature": "c2ln"},
        {"type": "reasoning.encrypted", "index": 1, "data": "gAAA", "id": "rs_1"},
    ]


def test_mistrals_thinking_goes_back_as_a_part_of_the_content() -> None:
    def thinking(text: str) -> dict[str, Any]:
        return chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]})

    response = decode(sse(thinking("Let me "), thinking("think."), chunk({"content": "Hi"}, "stop")))
    assert (response.text, response.reasoning) == ("Hi", "Let me think.")
    assert sent_back(response.message)["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Let me think."}]},
        {"type": "text", "text": "Hi"},
    ]


def test_a_thought_signature_goes_back_with_its_own_call() -> None:
    signed = piece(1, "b", "g", "{}", extra_content={"google": {"thought_signature": "c2ln"}})
    message = decode(chat(piece(0, "a", "f", "{}"), signed)).message
    calls = sent_back(message)["tool_calls"]
    assert [call.get("extra_content") for call in calls] == [None, {"google": {"thought_signature": "c2ln"}}]
    only_second = replace(message, calls=message.calls[1:])
    assert sent_back(only_second)["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}


def test_what_another_wire_kept_is_not_sent_here() -> None:
    message = Assistant("hi", reasoning="secret", native=Native("anthropic-messages", [{"type": "thinking"}]))
    assert sent_back(message) == {"role": "assistant", "content": "hi"}


def test_streamed_and_whole_keep_the_same() -> None:
    streamed = sse(
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning_content": "."}),
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
    )
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    assert decode(streamed).message == decode(whole, stream=False).message


# Writing requests


def test_a_request_in_full() -> None:
    body = encoded(
        System.of("Be brief."),
        User.of("What is this?", Media(mime="image/png", data="iVBORw0KGgo=")),
        tools=(WEATHER, ToolSpec("g", strict=True)),
        choice=OneTool("get_weather"),
        parallel=False,
        reasoning="low",
        sampling=Sampling(max_tokens=5, temperature=0.0, top_p=0.5, stop=("END",), seed=7),
        extra={"user": "u1"},
    )
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather.",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                },
            },
            {
                "type": "function",
                "function": {
                    "name": "g",
                    "description": "",
                    "parameters": {"type": "object", "properties": {}},
                    "strict": True,
                },
            },
        ],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "low",
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "stop": ["END"],
        "seed": 7,
        "user": "u1",
    }


def test_tool_settings_are_left_out_where_there_are_no_tools() -> None:
    body = encoded(User.of("hi"), choice="required", parallel=False, final=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


def test_each_result_is_a_message_and_images_follow_in_one_of_the_user() -> None:
    image = Media(url="https://example.com/a.png")
    results = (ToolResult("a", (Text("one"), image)), ToolResult("b", (Text("two"),), error=True))
    calls = (ToolCall("a", "f", {}, "{}"), ToolCall("b", "f", {}, "{}", 1))
    messages = encoded(User.of("x"), Assistant("", calls), ToolMessage(results))["messages"]
    assert [(m["role"], m.get("tool_call_id")) for m in messages[2:]] == [("tool", "a"), ("tool", "b"), ("user", None)]
    assert messages[3] == {"role": "tool", "tool_call_id": "b", "content": "two"}
    assert messages[4]["content"][1] == {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def test_ids_that_are_too_long_are_shortened_alike_in_call_and_result() -> None:
    long = "toolu_" + "x" * 60
    calls = (ToolCall(long, "f", {}, "{}"),)
    messages = encoded(User.of("x"), Assistant("", calls), ToolMessage((ToolResult(long, (Text("ok"),)),)))["messages"]
    id = messages[1]["tool_calls"][0]["id"]
    assert len(id) <= 40
    assert id == messages[2]["tool_call_id"]
    assert fit(long, CHAT) != fit(long + "y", CHAT)


def test_an_id_that_fits_stays_and_mistrals_rule_is_met() -> None:
    assert fit("call_abc", CHAT) == "call_abc"
    assert fit("D681PevKs", MISTRAL) == "D681PevKs"
    short = fit("call_abc", MISTRAL)
    assert len(short) == 9
    assert short.isalnum()


# Reading requests


def test_a_clients_request_is_read() -> None:
    request = WIRE.decode_request(
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "Hm.",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "one"},
            ],
            "max_completion_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stop": "END",
            "metadata": {"a": "b"},
        }
    )
    assert request.messages == (
        System.of("Be brief."),
        User.of("hi"),
        Assistant(
            "",
            (ToolCall("a", "f", {"x": 1}, '{"x": 1}'),),
            "Hm.",
            Native("openai-chat", {"reasoning_content": "Hm."}, ("a",)),
        ),
        ToolMessage((ToolResult("a", (Text("one"),)),)),
    )
    assert request.sampling == Sampling(max_tokens=9, stop=("END",))
    assert request.extra == {"metadata": {"a": "b"}, "max_completion_tokens": 9}


def test_the_old_function_messages_become_a_call_and_its_result() -> None:
    request = WIRE.decode_request(
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "one"},
            ]
        }
    )
    assistant, results = request.messages[1:]
    assert isinstance(assistant, Assistant)
    assert isinstance(results, ToolMessage)
    assert assistant.calls[0].id == results.results[0].call_id == "call_0_0"
