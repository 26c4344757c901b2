"""The wire gemini: what a client of it sent is sent unchanged, what the API refuses is not sent, and nothing raises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import Assistant, decode
from unbroken_wires.messages import (
    Json,
    Media,
    Message,
    Native,
    Request,
    System,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.content_parts import FOREIGN
from unbroken_wires.wires.gemini import WIRE
from unbroken_wires.wires.gemini.gemini_contents import PLACEHOLDER
from unbroken_wires.wires.gemini.gemini_requests import json_schema
from unbroken_wires.wires.json_access import UNNAMED, as_dict

Object = dict[str, Any]


def fc(name: str, args: Object | None = None, **more: Any) -> Object:
    return {"functionCall": {"name": name, "args": args or {}}, **more}


def answer(name: str, response: Json, **more: Any) -> Object:
    return {"functionResponse": {"name": name, "response": response, **more}}


def contents(*messages: Message, model: str = "") -> list[Object]:
    return WIRE.encode_request(Request(messages, model=model))["contents"]


def from_client(*parts: Object) -> Message:
    return WIRE.decode_request({"contents": [{"role": "user", "parts": list(parts)}]}).messages[0]


# Empty content


def test_empty_texts_and_messages_are_left_out() -> None:
    body = WIRE.encode_request(
        Request(
            (
                System.of("", "Be brief."),
                User.of("", "x", ""),
                Assistant("", (), "only reasoning"),
                System.of(""),
                User.of(""),
                User(()),
                ToolMessage(()),
                Assistant("", native=Native("gemini", [{"text": ""}, {"thought": True}, {}])),
                Assistant("", native=Native("gemini", [{"text": "", "thoughtSignature": "cw=="}])),
            )
        )
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "x"}]},
        {"role": "model", "parts": [{"text": "", "thoughtSignature": "cw=="}]},
    ]
    assert "systemInstruction" not in WIRE.encode_request(Request((System.of(""), User.of("x"))))


def test_an_empty_text_next_to_results_is_not_a_message() -> None:
    body = {"contents": [{"role": "user", "parts": [answer("f", {"output": "1"}), {"text": ""}]}]}
    assert [type(message) for message in WIRE.decode_request(body).messages] == [ToolMessage]


# What a client sent


@pytest.mark.parametrize(
    ("response", "text", "error"),
    [
        ({"a": 1, "b": [2]}, '{"a": 1, "b": [2]}', False),
        ({"result": "fine"}, "fine", False),
        ({"output": 5}, "5", False),
        ({"error": {"code": 4}}, '{"code": 4}', True),
        ({}, "", False),
    ],
)
def test_an_object_result_reaches_the_same_wire_unchanged(response: Object, text: str, error: bool) -> None:
    body = {"contents": [{"role": "model", "parts": [fc("f")]}, {"role": "user", "parts": [answer("f", response)]}]}
    request = WIRE.decode_request(body)
    message = request.messages[1]
    assert isinstance(message, ToolMessage)
    assert (message.results[0].text, message.results[0].error) == (text, error)
    assert WIRE.encode_request(request)["contents"] == body["contents"]
    assert WIRE.decode_request(WIRE.encode_request(request)).messages == request.messages
    elsewhere = find_wire("openai-chat").encode_request(request)["messages"]
    assert elsewhere[-1]["content"] == text


def test_the_other_fields_of_a_result_reach_the_same_wire() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "aWNv", "displayName": "a.png"}}
    part = answer("f", {"image": {"$ref": "a.png"}}, id="own", scheduling="SILENT", parts=[image])
    message = from_client(part)
    assert isinstance(message, ToolMessage)
    assert contents(message)[0]["parts"] == [part]
    assert [(m.data, m.name) for m in message.results[0].content if isinstance(m, Media)] == [("aWNv", "a.png")]


def test_a_result_without_additional_fields_needs_no_native_form() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "aWNv"}}
    for part in (answer("f", {"output": "1"}, parts=[image]), answer("f", {"error": "no"}), answer("f", None)):
        message = from_client(part)
        assert isinstance(message, ToolMessage)
        assert message.results[0].native is None


@pytest.mark.parametrize(
    ("part", "mime", "name"),
    [
        ({"inlineData": {"mimeType": "image/png", "data": "aWNv", "displayName": "a.png"}}, "image/png", "a.png"),
        ({"fileData": {"fileUri": "u", "mimeType": "video/mp4"}, "videoMetadata": {"fps": 1}}, "video/mp4", ""),
        ({"inlineData": {"mimeType": "a/b", "data": "aWNv"}, "mediaResolution": {"level": "LOW"}}, "a/b", ""),
        ({"inlineData": {"data": "aWNv"}}, "", ""),
        ({"codeExecutionResult": {"outcome": "OUTCOME_OK"}}, "", ""),
        ({"newThing": {"a": [1]}, "other": 1}, "", ""),
    ],
)
def test_a_part_with_additional_fields_reaches_the_same_wire(part: Object, mime: str, name: str) -> None:
    message = from_client({"text": "look"}, part)
    assert isinstance(message, User)
    media = message.parts[1]
    assert isinstance(media, Media)
    assert (media.mime, media.name, media.native) == (mime, name, Native("gemini", part))
    assert contents(message) == [{"role": "user", "parts": [{"text": "look"}, part]}]
    assert WIRE.decode_request({"contents": contents(message)}).messages == (message,)


def test_a_part_of_another_wire_is_named_and_not_sent() -> None:
    strange = Media(native=Native("openai-responses", {"type": "input_file", "file_id": "file-1"}))
    call = ToolCall("a", "f", {})
    user, _, results = contents(
        User.of(strange), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "x", strange),))
    )
    assert user["parts"] == [{"text": FOREIGN}]
    assert results["parts"] == [answer("f", {"output": f"x\n{FOREIGN}"}, id="a")]


def test_the_other_fields_of_a_declaration_reach_the_same_wire() -> None:
    full: Object = {
        "name": "f",
        "description": "F",
        "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
        "response": {"type": "STRING"},
        "behavior": "NON_BLOCKING",
    }
    plain: Object = {"name": "g", "parametersJsonSchema": {"type": "object"}, "response": None}
    body = {"contents": [], "tools": [{"functionDeclarations": [full, plain]}]}
    request = WIRE.decode_request(body)
    assert [tool.native is None for tool in request.tools] == [False, True]
    assert request.tools[0].parameters == {"type": "object", "properties": {"a": {"type": "string"}}}
    del plain["response"]
    assert WIRE.encode_request(request)["tools"] == [{"functionDeclarations": [full, plain]}]


# Schemas


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    names = ("example", "default", "enum", "properties", "items", "any_of", "min_items", "type")
    schema = {"type": "OBJECT", "properties": {name: {"type": "STRING"} for name in names}, "required": ["any_of"]}
    assert json_schema(schema) == {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": ["any_of"],
    }


def test_keywords_in_snake_case_and_counts_as_strings_are_read() -> None:
    schema = {
        "any_of": [{"type": "ARRAY", "min_items": "1", "max_items": 3, "items": {"type": "STRING", "maxLength": "9"}}],
        "property_ordering": ["a_b"],
        "additional_properties": {"type": "NUMBER"},
        "default": {"any_of": "OBJECT", "type": "OBJECT"},
        "minItems": "many",
        "nullable": True,
    }
    assert json_schema(schema) == {
        "anyOf": [
            {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "maxLength": 9}},
            {"type": "null"},
        ],
        "propertyOrdering": ["a_b"],
        "additionalProperties": {"type": "number"},
        "default": {"any_of": "OBJECT", "type": "OBJECT"},
        "minItems": "many",
    }
    assert json_schema({"type": "TYPE_UNSPECIFIED", "title": "any"}) == {"title": "any"}


# Signatures that are missing


def signed_by(parts: list[Object]) -> list[Any]:
    return [part.get("thoughtSignature") for part in parts if "functionCall" in part]


def test_an_unsigned_call_of_this_turn_gets_the_placeholder_if_the_model_requires_it() -> None:
    first, second = (ToolCall(f"toolu_{n}", "f", {}, index=n) for n in range(2))
    asked = Assistant("I look.", (first, second))
    results = ToolMessage((ToolResult.of(first, "1"), ToolResult.of(second, "2")))
    history = (User.of("?"), asked, results, User.of("and?"), asked, results, asked, results)
    for model in ("gemini-3-pro-preview", "models/gemini-3.1-flash", "gemini-flash-latest"):
        sent = contents(*history, model=model)
        assert [signed_by(content["parts"]) for content in sent if content["role"] == "model"] == [
            [None, None],
            [PLACEHOLDER, None],
            [PLACEHOLDER, None],
        ]
    for model in ("gemini-2.5-pro", "claude-3", ""):
        assert "thoughtSignature" not in json.dumps(contents(*history, model=model))


def test_a_signature_is_neither_replaced_nor_moved_to_another_call() -> None:
    parts = [fc("f", thoughtSignature="cw=="), fc("g")]
    body = json.dumps({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}).encode()
    message = decode(body, "gemini").message
    _, both = contents(User.of("?"), message, model="gemini-3-pro")
    assert both["parts"] == parts
    _, second = contents(User.of("?"), replace(message, calls=message.calls[1:]), model="gemini-3-pro")
    assert second["parts"] == [fc("g", thoughtSignature=PLACEHOLDER)]
    assert message.native is not None
    assert message.native.value == parts


# Anything at all

KEYS = [
    "contents",
    "parts",
    "role",
    "text",
    "thought",
    "functionCall",
    "function_response",
    "name",
    "args",
    "id",
    "response",
    "output",
    "error",
    "tools",
    "functionDeclarations",
    "parameters",
    "properties",
    "any_of",
    "type",
    "toolConfig",
    "functionCallingConfig",
    "mode",
    "allowedFunctionNames",
    "generationConfig",
    "thinkingConfig",
    "stopSequences",
    "temperature",
    "maxOutputTokens",
    "seed",
    "topP",
    "thinkingBudget",
    "thinkingLevel",
    "stream",
    "systemInstruction",
    "inlineData",
    "fileData",
    "mimeType",
    "data",
    "fileUri",
    "nullable",
    "minItems",
    "model",
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["model", "user", "ANY", "f", "", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)


@given(anything, st.sampled_from(KEYS))
def test_any_request_is_read_and_written_without_an_exception(value: Json, key: str) -> None:
    for body in (
        as_dict(value),
        {key: value},
        {"contents": [{"parts": value}]},
        {"contents": [{"parts": [{key: value}]}]},
    ):
        request = WIRE.decode_request(body)
        for again in (request, replace(request, final=True, choice="required", model="gemini-3")):
            WIRE.encode_request(again)
        assert WIRE.decode_request(WIRE.encode_request(request)).messages == tuple(
            named(message) for message in request.messages if says_something(message)
        )


def named(message: Message) -> Message:
    """A call or result without a name is sent with one."""
    match message:
        case Assistant():
            return replace(message, calls=tuple(replace(call, name=call.name or UNNAMED) for call in message.calls))
        case ToolMessage():
            return ToolMessage(tuple(replace(result, name=result.name or UNNAMED) for result in message.results))
        case _:
            return message


def says_something(message: Message) -> bool:
    match message:
        case System() | User():
            return bool(message.parts)
        case Assistant():
            return bool(message.text or message.calls or message.native)
        case ToolMessage():
            return bool(message.results)


@pytest.mark.parametrize("key", ["items", "parts", "a"])
def test_a_request_of_any_depth_is_read_and_written_without_an_exception(key: str) -> None:
    deep: Json = "x"
    for _ in range(20_000):
        deep = {key: deep}
    parts: list[Object] = [answer("f", {"a": deep}), answer("f", {"output": deep}), {"newThing": deep}]
    tools = [{"functionDeclarations": [{"name": "f", "parameters": deep, "response": deep}]}]
    body: Object
    for body in (
        {"contents": [{"role": "model", "parts": [fc("f", {"a": deep})]}, {"parts": parts}], "tools": tools},
        {"contents": [{"parts": deep}]},
        {"contents": deep, "systemInstruction": deep, "toolConfig": deep, "generationConfig": deep, "tools": deep},
    ):
        WIRE.encode_request(WIRE.decode_request(body))


@pytest.mark.parametrize(
    "calling",
    [
        {"mode": "VALIDATED"},
        {"mode": "VALIDATED", "allowedFunctionNames": ["a", "b"]},
        {"mode": "ANY", "allowedFunctionNames": ["a", "b"]},
        {"mode": "ANY", "allowedFunctionNames": ["a"]},
    ],
)
def test_a_choice_that_only_this_wire_knows_survives(calling: dict[str, Any]) -> None:
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    body |= {"tools": [{"googleSearch": {}}], "toolConfig": {"functionCallingConfig": calling}}
    again = WIRE.encode_request(WIRE.decode_request(body))
    assert (again["toolConfig"], again["tools"]) == (body["toolConfig"], body["tools"])
