"""openai-chat, fields of a client that we do not model: they are sent back unchanged, whatever they are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import JSON
from streams import encoded, read, read_answer, read_part

from unbroken import Assistant, Request, Text, User
from unbroken_wires.messages import Media, Message, Native
from unbroken_wires.wires import WIRES
from unbroken_wires.wires.content_parts import FOREIGN
from unbroken_wires.wires.json_access import UNNAMED
from unbroken_wires.wires.openai_chat import WIRE

NAME = "openai-chat"


def given_back(*messages: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A client's request as it is sent on the same wire."""
    request = read(*messages, **settings)
    body = WIRE.encode_request(request)
    assert WIRE.decode_request(body).messages == request.messages
    return body


BEYOND: list[dict[str, Any]] = [
    {"content": "hi", "reasoning_content": ""},
    {"content": "hi", "reasoning_content": "Hm."},
    {"content": "hi", "reasoning_text": "Hm.", "reasoning_opaque": "b3A="},
    {"content": "hi", "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]},
    {"content": "hi", "provider_specific_fields": {"a": 1}, "annotations": [], "name": "bob"},
    {"content": "hi", "prefix": True},
    {"content": None, "audio": {"id": "audio_1"}},
    {"content": None, "refusal": "I cannot."},
    {"content": "Well: ", "refusal": "I cannot."},
    {"content": [{"type": "refusal", "refusal": "I cannot."}]},
    {"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "hi"}]},
    {"content": [{"type": "text", "text": "hi"}, {"type": "thinking", "thinking": []}]},
    {"content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
]


@pytest.mark.parametrize("fields", BEYOND)
def test_additional_fields_of_a_client_answer_are_sent_back(fields: dict[str, Any]) -> None:
    message = {"role": "assistant", **fields}
    assert given_back(message)["messages"] == [message]


def test_a_refusal_is_text_elsewhere_and_not_repeated_here() -> None:
    refused = read_answer(content=None, refusal="I cannot.", annotations=None)
    assert refused.text == "I cannot."
    assert encoded(replace(refused, text="Something else."))["messages"] == [
        {"role": "assistant", "content": "Something else."}
    ]
    for wire in WIRES:
        body = json.dumps(WIRES[wire].encode_request(Request((User.of("x"), refused), model="m")))
        assert body.count("I cannot.") == 1


def test_changed_text_replaces_its_parts() -> None:
    thinking: dict[str, Any] = {"type": "thinking", "thinking": []}
    answer = read_answer(content=[{"type": "text", "text": "a"}, thinking])
    assert encoded(replace(answer, text="b"))["messages"][0]["content"] == [thinking, {"type": "text", "text": "b"}]


def test_fields_next_to_a_call_and_inside_it_are_sent_back() -> None:
    calls: list[dict[str, Any]] = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "thought_signature": "c2ln"},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}", "provider_specific_fields": {}}},
        {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x", "format": "y"}},
        {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    assert given_back(message)["messages"] == [message]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
        {"type": "something_new", "x": [1]},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "data:", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "file", "file": {"file_data": "data:,"}},
    ],
)
def test_a_part_that_only_this_wire_understands_is_sent_back_and_named_elsewhere(part: dict[str, Any]) -> None:
    assert read_part(part) == Media(native=Native(NAME, part))
    message = {"role": "user", "content": [part]}
    assert given_back(message)["messages"] == [message]
    stranger = Media(native=Native("gemini", {"fileData": {}}))
    assert encoded(User.of(stranger))["messages"] == [{"role": "user", "content": FOREIGN}]


@pytest.mark.parametrize(
    ("part", "media"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            Media(url="https://example.com/a.png"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.pdf"}},
            Media(url="https://example.com/a.pdf"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}, "cache_control": {"type": "ephemeral"}},
            Media(url="https://a.b/c.png", cache="5m"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "data:;base64,AAAA", "format": "mp3"}},
            Media(mime="audio/mpeg", data="AAAA"),
        ),
        (
            {"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a.pdf"}},
            Media(mime="application/pdf", data="JVBERi0=", name="a.pdf"),
        ),
        (
            {"type": "file", "file": {"file_data": "https://example.com/a.pdf", "filename": "b"}},
            Media(mime="application/octet-stream", url="https://example.com/a.pdf", name="b"),
        ),
    ],
)
def test_a_part_with_additional_fields_has_both_forms(part: dict[str, Any], media: Media) -> None:
    assert read_part(part) == replace(media, native=Native(NAME, part))
    message = {"role": "user", "content": [part]}
    assert given_back(message)["messages"] == [message]


@pytest.mark.parametrize(
    ("part", "media"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a.b/c"}}, Media(url="https://a.b/c")),
        ({"type": "image_url", "image_url": "https://a.b/c"}, Media(url="https://a.b/c")),
        ({"type": "image_url", "image_url": {"url": "https://a.b/c", "detail": None}}, Media(url="https://a.b/c")),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
            Media(mime="application/pdf", data="AAAA", name="a.pdf"),
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
            Media(mime="application/pdf", data="AAAA"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            Media(mime="audio/wav", data="AAAA"),
        ),
    ],
)
def test_a_part_without_additional_fields_has_only_ours(part: dict[str, Any], media: Media) -> None:
    assert read_part(part) == media


def test_a_result_keeps_its_name_its_images_and_unknown_fields() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [image], "name": "f", "x": 1},
    ]
    assert given_back(*messages)["messages"] == messages


def test_cache_marks_of_a_client_are_sent_to_wires_that_have_them() -> None:
    block = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    message = {"role": "user", "content": [block]}
    request = read(message)
    assert request.messages == (User((Text("long", "1h"),)),)
    assert WIRE.encode_request(request)["messages"] == [message]
    assert encoded(*request.messages)["messages"] == [{"role": "user", "content": "long"}]
    assert WIRES["anthropic-messages"].encode_request(request)["messages"][0]["content"] == [block]


def test_a_tool_with_additional_fields_is_sent_back() -> None:
    function: dict[str, Any] = {"name": "f", "description": "F.", "parameters": {"type": "object", "properties": {}}}
    plain = {"type": "function", "function": function}
    more = [{**plain, "cache_control": {"type": "ephemeral"}}, {"type": "function", "function": {**function, "x": 1}}]
    request = read(tools=[plain, *more, {"function": {"name": "g"}}])
    assert [tool.native and tool.native.value for tool in request.tools] == [None, *more, None]
    assert WIRE.encode_request(request)["tools"][:3] == [plain, *more]


def test_tool_settings_are_sent_even_if_all_tools_are_of_another_kind() -> None:
    custom = {"type": "custom", "custom": {"name": "shell"}}
    body = given_back(tools=[custom], tool_choice="required", parallel_tool_calls=False)
    assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == ([custom], "required", False)


def test_stream_options_are_kept_unless_they_are_ours() -> None:
    ours, theirs = {"include_usage": True}, {"include_usage": False, "include_obfuscation": False}
    assert read(stream=True, stream_options=ours).extra == {}
    assert given_back(stream=True)["stream_options"] == ours
    assert given_back(stream=True, stream_options=theirs)["stream_options"] == theirs
    whole = replace(read(stream=True, stream_options=theirs), stream=False)
    assert "stream_options" not in WIRE.encode_request(whole)


# Anything may be anywhere

KEYS = st.sampled_from(
    ["type", "text", "refusal", "image_url", "url", "input_audio", "data", "format", "file", "file_data", "filename"]
)
PARTS = st.dictionaries(
    KEYS,
    JSON
    | st.sampled_from(["text", "image_url", "input_audio", "file", "refusal", "data:;base64,", "data:a/b;base64,AA"])
    | st.dictionaries(KEYS, JSON | st.just("data:a/b;base64,"), max_size=3),
    max_size=4,
)
FIELDS = st.sampled_from(
    ["content", "tool_calls", "function_call", "refusal", "reasoning_content", "name", "tool_call_id"]
)
MESSAGES = st.dictionaries(FIELDS, JSON | st.lists(PARTS, max_size=3), max_size=5)
ROLES = st.sampled_from(["user", "assistant", "tool", "function", "system", 5])


def without_raw(message: Message) -> Message:
    if not isinstance(message, Assistant):
        return message
    same: dict[str, Any] = {"raw": "", "arguments": {}, "complete": True, "problem": ""}
    calls = (replace(call, name=call.name or UNNAMED, **same) for call in message.calls)
    return replace(message, calls=tuple(calls))


@given(messages=st.lists(st.tuples(ROLES, MESSAGES), max_size=4), tools=JSON | st.lists(PARTS, max_size=2), other=JSON)
def test_anything_can_be_read_and_written_and_read_again_equally(
    messages: list[tuple[Any, dict[str, Any]]], tools: Any, other: Any
) -> None:
    body = {"messages": [{"role": role, **fields} for role, fields in messages], "tools": tools}
    request = WIRE.decode_request({**body, "stream_options": other, "tool_choice": other, "stop": other})
    once = WIRE.decode_request(WIRE.encode_request(request))  # a call without arguments has some now: `{}`
    assert WIRE.decode_request(WIRE.encode_request(once)).messages == once.messages
    assert [without_raw(message) for message in once.messages] == [without_raw(m) for m in request.messages]


@pytest.mark.parametrize("key", ["text", "refusal", "input", "data", "url"])
def test_deeply_nested_values_are_not_inspected(key: str) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    part = {"type": "text" if key == "text" else "image_url", key: deep, "image_url": {"url": "u", "x": deep}}
    call = {"id": "a", "type": "custom", "custom": {"name": deep, "input": deep}}
    request = read({"role": "user", "content": [part]}, {"role": "assistant", "refusal": deep, "tool_calls": [call]})
    assert WIRE.encode_request(request)["messages"]
