"""openai-chat, requests both ways, and the format of our responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streams import encoded, read, read_answer, read_part

from unbroken import (
    Assistant,
    CallReady,
    Ended,
    Sampling,
    System,
    Text,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    User,
    Verdict,
)
from unbroken_wires.deltas import Delta, ReasoningDelta, UsageReported
from unbroken_wires.messages import Media, Native, OneTool, ToolSpec
from unbroken_wires.wires.json_access import MISTRAL, fit
from unbroken_wires.wires.openai_chat import WIRE, ChatEncoder
from unbroken_wires.wires.openai_chat.chat_messages import ID_RULE

WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def part_sent(media: Media) -> dict[str, Any]:
    return encoded(User.of(media))["messages"][0]["content"][0]


def part_sent_as_text(media: Media) -> str:
    return encoded(User.of(media))["messages"][0]["content"]


# Writing requests


def test_a_complete_request_is_written() -> None:
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


def test_tool_settings_are_left_out_without_tools() -> None:
    body = encoded(User.of("hi"), choice="required", parallel=False, final=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


def test_each_result_is_a_message_and_images_follow_in_one_user_message() -> None:
    image = Media(url="https://example.com/a.png")
    results = (ToolResult("a", (Text("one"), image)), ToolResult("b", (Text("two"),), error=True))
    calls = (ToolCall("a", "f", {}, "{}"), ToolCall("b", "f", {}, "{}", 1))
    messages = encoded(User.of("x"), Assistant("", calls), ToolMessage(results))["messages"]
    assert [(m["role"], m.get("tool_call_id")) for m in messages[2:]] == [("tool", "a"), ("tool", "b"), ("user", None)]
    assert messages[3] == {"role": "tool", "tool_call_id": "b", "content": "two"}
    assert messages[4]["content"][1] == {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def test_ids_that_are_too_long_are_shortened_in_call_and_result() -> None:
    long = "toolu_" + "x" * 60
    calls = (ToolCall(long, "f", {}, "{}"),)
    messages = encoded(User.of("x"), Assistant("", calls), ToolMessage((ToolResult(long, (Text("ok"),)),)))["messages"]
    id = messages[1]["tool_calls"][0]["id"]
    assert len(id) <= 40
    assert id == messages[2]["tool_call_id"]
    assert fit(long, ID_RULE) != fit(long + "y", ID_RULE)


def test_a_valid_id_stays_and_mistrals_rule_is_met() -> None:
    assert fit("call_abc", ID_RULE) == "call_abc"
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


def test_results_without_ids_find_their_calls_by_name_and_then_by_position() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": "{}"}}

    def results(*messages: dict[str, Any]) -> list[str]:
        calls = {"role": "assistant", "content": None, "tool_calls": [call("f"), call("g"), call("f")]}
        request = read(calls, *messages)
        return [r.call_id for m in request.messages if isinstance(m, ToolMessage) for r in m.results]

    def result(name: str = "", id: str = "") -> dict[str, Any]:
        return {"role": "tool", "content": "x", "name": name, "tool_call_id": id}

    assert results(result(), result(), result()) == ["call_0_0", "call_0_1", "call_0_2"]
    assert results(result("g"), result("f"), result("f")) == ["call_0_1", "call_0_0", "call_0_2"]
    assert results(result(), result("g"), result(id="call_0_0")) == ["call_0_2", "call_0_1", "call_0_0"]
    assert results(result(), {"role": "user", "content": "and?"}, result()) == ["call_0_0", "call_0_1"]
    one_too_many = results(*[result()] * 4)
    assert len(set(one_too_many)) == 4


def test_a_generated_id_is_not_one_that_a_client_uses() -> None:
    calls = [{"function": {"name": "f"}}, {"id": "call_0_0", "function": {"name": "g"}}]
    ids = [call.id for call in read_answer(content=None, tool_calls=calls).calls]
    assert ids == ["call_0_0a", "call_0_0"]


def test_the_old_single_call_next_to_the_list_is_not_a_second_one() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert len(read_answer(content=None, tool_calls=[call], function_call=call["function"]).calls) == 1


# Media


@pytest.mark.parametrize(
    ("mime", "name", "sent"),
    [
        ("application/pdf", "", "file.pdf"),
        ("application/pdf", "report.pdf", "report.pdf"),
        ("text/plain", "", "file.txt"),
        ("application/x-unknown", "", "file.bin"),
    ],
)
def test_a_file_always_has_a_name(mime: str, name: str, sent: str) -> None:
    media = Media(mime=mime, data="AAAA", name=name)
    part = part_sent(media)
    assert part == {"type": "file", "file": {"filename": sent, "file_data": f"data:{mime};base64,AAAA"}}
    assert read_part(part) == media


@pytest.mark.parametrize(
    ("mime", "format"),
    [
        ("audio/mpeg", "mp3"),
        ("audio/mp3", "mp3"),
        ("audio/wav", "wav"),
        ("audio/x-wav", "wav"),
        ("audio/wave", "wav"),
        ("audio/flac", "flac"),
    ],
)
def test_the_format_of_audio_has_openais_name(mime: str, format: str) -> None:
    part = part_sent(Media(mime=mime, data="AAAA"))
    assert part == {"type": "input_audio", "input_audio": {"data": "AAAA", "format": format}}


@pytest.mark.parametrize(
    "media",
    [
        Media(mime="application/pdf", url="https://example.com/a"),
        Media(mime="audio/mpeg", url="https://example.com/a"),
        Media(url="https://example.com/a.pdf?x=1"),
    ],
)
def test_a_file_address_that_is_not_an_image_is_refused_with_a_message(media: Media) -> None:
    assert media.url in part_sent_as_text(media)
    result = ToolMessage((ToolResult("a", (media,)),))
    sent = encoded(Assistant("", (ToolCall("a", "f", {}, "{}"),)), result)["messages"]
    assert [message["role"] for message in sent] == ["assistant", "tool"]
    assert media.url in sent[1]["content"]


# Writing responses


def chunks(*deltas: Delta, include_usage: bool = True) -> list[dict[str, Any]]:
    encoder = ChatEncoder("m", "chatcmpl-1", include_usage=include_usage)
    events = b"".join(encoder.feed(delta) for delta in deltas).split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]


END = Ended(Verdict("whole"))


@pytest.mark.parametrize(
    "first", [TextDelta("hi"), ReasoningDelta("Hm."), CallReady(ToolCall("a", "f", {}, "{}")), END], ids=repr
)
def test_only_the_first_chunk_has_the_role(first: Delta) -> None:
    told = chunks(first, TextDelta("more"), END) if first is not END else chunks(END)
    assert [chunk["choices"][0]["delta"].get("role") for chunk in told] == ["assistant"] + [None] * (len(told) - 1)


def test_a_client_that_did_not_ask_for_usage_gets_no_chunk_without_choices() -> None:
    usage = UsageReported(Usage(3, 2))
    asked = chunks(TextDelta("hi"), usage, END)
    assert (asked[-1]["choices"], asked[-1]["usage"]["total_tokens"]) == ([], 5)
    told = chunks(TextDelta("hi"), usage, END, include_usage=False)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in told)


def test_a_non_streaming_body_always_has_usage() -> None:
    encoder = ChatEncoder("m", include_usage=False)
    for delta in (TextDelta("hi"), UsageReported(Usage(3, 2)), END):
        encoder.feed(delta)
    assert json.loads(encoder.body())["usage"]["total_tokens"] == 5
