"""The wire gemini: what is kept of an answer for the next request, requests both ways, answers for a client."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from corpus import ABSENT, RECORDINGS
from hypothesis import given
from hypothesis import strategies as st
from streams import calls_of

from unbroken import Assistant, CallReady, Response, TextDelta, decode
from unbroken_wires.deltas import Delta, Ended, Meaning, ReasoningDelta, UsageReported, Verdict
from unbroken_wires.messages import (
    Choice,
    Effort,
    Media,
    Message,
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
    Usage,
    User,
)
from unbroken_wires.wires.gemini import WIRE, GeminiEncoder
from unbroken_wires.wires.gemini.gemini_requests import json_schema

Object = dict[str, Any]


def body_of(*parts: Object, finish: str = "STOP") -> bytes:
    return json.dumps({"candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": finish}]}).encode()


def fc(name: str, args: Object, id: str = "", **more: Any) -> Object:
    return {"functionCall": {**({"id": id} if id else {}), "name": name, "args": args}, **more}


def contents(*messages: Message) -> list[Object]:
    return WIRE.encode_request(Request(messages))["contents"]


def through(request: Request) -> Request:
    """Written, sent as bytes, read."""
    return WIRE.decode_request(json.loads(json.dumps(WIRE.encode_request(request))))


def without_notes(message: Assistant) -> Assistant:
    """How a call was received (that its id was generated) is not part of a request."""
    return replace(message, calls=tuple(replace(call, notes=()) for call in message.calls))


# What is sent back


def test_signatures_stay_on_their_parts() -> None:
    stream = [
        [{"text": "Hm", "thought": True}],
        [{"text": "m.", "thought": True}, {"text": "I "}],
        [{"text": "look.", "thoughtSignature": "czE="}],
        [{"text": " Now."}, {"text": ""}],
        [fc("f", {"a": 1}, thoughtSignature="czI="), fc("f", {"a": 2}, id="own")],
        [{"text": "", "thoughtSignature": "czM="}, {"inlineData": {"mimeType": "image/png", "data": "aWNv"}}],
    ]
    events = [json.dumps({"candidates": [{"content": {"parts": parts}}]}) for parts in stream]
    events.append('{"candidates": [{"finishReason": "STOP"}]}')
    r = decode("".join(f"data: {event}\n\n" for event in events).encode(), "gemini")
    kept = [
        {"text": "Hmm.", "thought": True},
        {"text": "I "},
        {"text": "look.", "thoughtSignature": "czE="},
        {"text": " Now."},
        fc("f", {"a": 1}, thoughtSignature="czI="),
        fc("f", {"a": 2}, id="own"),
        {"text": "", "thoughtSignature": "czM="},
        {"inlineData": {"mimeType": "image/png", "data": "aWNv"}},
    ]
    assert r.message.native == Native("gemini", kept, ("call_0_0", "own"))
    results = ToolMessage(tuple(ToolResult.of(call, "ok") for call in r.calls))
    request = Request((User.of("?"), without_notes(r.message), results))
    encoded = WIRE.encode_request(request)["contents"]
    assert encoded[1] == {"role": "model", "parts": kept}
    assert encoded[2]["parts"] == [
        {"functionResponse": {"name": "f", "response": {"output": "ok"}}},
        {"functionResponse": {"id": "own", "name": "f", "response": {"output": "ok"}}},
    ]
    assert through(request).messages == request.messages


def test_text_and_calls_need_no_native_form() -> None:
    assert decode(body_of({"text": "a"}, fc("f", {"a": 1}), fc("g", {}, id="x")), "gemini").message.native is None
    assert decode(body_of(fc("f", {}), {"text": "after"}), "gemini").message.native is not None


def test_removed_calls_are_not_sent_back() -> None:
    r = decode(body_of(fc("f", {}, thoughtSignature="cw=="), fc("g", {}), {"text": "x"}), "gemini")
    [first] = contents(replace(r.message, calls=r.calls[:1]))
    assert first["parts"] == [fc("f", {}, thoughtSignature="cw=="), {"text": "x"}]


def test_a_call_found_in_the_text_gets_a_separate_part() -> None:
    leaked = '<tool_call>{"name": "g", "arguments": {"x": 1}}</tool_call>'
    r = decode(body_of({"text": leaked}, fc("f", {"a": 1}, thoughtSignature="cw==")), "gemini", tools=["f", "g"])
    parts = [part["functionCall"]["name"] for part in contents(r.message)[0]["parts"] if "functionCall" in part]
    assert sorted(parts) == sorted(call.name for call in r.calls) == ["f", "g"]


@pytest.mark.skipif(not RECORDINGS, reason=ABSENT)
def test_recorded_parts_are_sent_back_byte_for_byte() -> None:
    seen = 0
    for recording in RECORDINGS:
        if recording.wire == "gemini" and not recording.stream:
            parts = json.loads(recording.body)["candidates"][0]["content"]["parts"]
            r = decode(recording.body, "gemini", stream=False)
            request = Request((User.of("?"), without_notes(r.message)))
            assert WIRE.encode_request(request)["contents"][1]["parts"] == parts, recording.id
            assert through(request).messages == request.messages, recording.id
            seen += 1
    assert seen == 20


# Requests


def test_a_conversation_is_written_in_the_format_of_the_api() -> None:
    calls = (ToolCall("call_0_0", "f", {"a": 1}), ToolCall("toolu_1", "f", None, '{"a', 1, False))
    image = Media("image/png", "aWNv")
    request = Request(
        (
            System.of("Be brief."),
            System.of("Be kind."),
            User.of("look", image, Media(url="https://x.test/a.pdf", mime="application/pdf")),
            Assistant("I look.", calls, "secret"),
            ToolMessage((ToolResult.of(calls[1], "Error: cut", error=True), ToolResult.of(calls[0], "fine", image))),
            System.of("Now hurry."),
        ),
        tools=(ToolSpec("f", "Does f.", {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}),),
        choice=OneTool("f"),
        parallel=False,
        reasoning="low",
        sampling=Sampling(100, 0.5, 0.9, ("END",), 7),
        extra={"generationConfig": {"topK": 4}, "safetySettings": []},
        model="gemini-x",
    )
    assert WIRE.encode_request(request) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "look"},
                    {"inlineData": {"mimeType": "image/png", "data": "aWNv"}},
                    {"fileData": {"fileUri": "https://x.test/a.pdf", "mimeType": "application/pdf"}},
                ],
            },
            {"role": "model", "parts": [{"text": "I look."}, fc("f", {"a": 1}), fc("f", {}, id="toolu_1")]},
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "name": "f",
                            "response": {"output": "fine"},
                            "parts": [{"inlineData": {"mimeType": "image/png", "data": "aWNv"}}],
                        }
                    },
                    {"functionResponse": {"id": "toolu_1", "name": "f", "response": {"error": "Error: cut"}}},
                ],
            },
            {"role": "user", "parts": [{"text": "<system>Now hurry.</system>"}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "f",
                        "description": "Does f.",
                        "parametersJsonSchema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}},
                    }
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {
            "maxOutputTokens": 100,
            "temperature": 0.5,
            "topP": 0.9,
            "stopSequences": ["END"],
            "seed": 7,
            "thinkingConfig": {"thinkingBudget": 2048, "includeThoughts": True},
            "topK": 4,
        },
        "safetySettings": [],
    }


def test_the_final_request_keeps_the_tools_and_forbids_calls() -> None:
    body = WIRE.encode_request(Request((User.of("?"),), tools=(ToolSpec("f"),), choice="required", final=True))
    assert body["tools"][0]["functionDeclarations"][0]["name"] == "f"
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "NONE"}}


@pytest.mark.parametrize("choice", [None, "auto", "none", "required", OneTool("f")])
@pytest.mark.parametrize("effort", [None, "none", "minimal", "low", "medium", "high", "xhigh"])
def test_settings_survive_a_round_trip(choice: Choice | None, effort: Effort | None) -> None:
    request = Request(
        (User.of("?"),),
        tools=(ToolSpec("f", "F", {"type": "object", "properties": {"a": {"type": "string"}}}), ToolSpec("g")),
        choice=choice,
        reasoning=effort,
        sampling=Sampling(1, 0, 1.0, ("a", "b"), 3),
        extra={
            "generationConfig": {"responseMimeType": "text/plain"},
            "toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}},
            "tools": [{"googleSearch": {}}],
            "cachedContent": "c",
        },
        wire="gemini",
    )
    assert through(request) == request


def test_a_thinking_setting_reaches_the_same_wire_unchanged() -> None:
    for thinking, effort in (
        ({"thinkingBudget": 1000, "includeThoughts": False}, "low"),
        ({"thinkingLevel": "HIGH", "includeThoughts": False}, "high"),
        ({"thinkingBudget": -1}, None),
    ):
        body: Object = {"contents": [], "generationConfig": {"thinkingConfig": thinking}}
        request = WIRE.decode_request(body)
        assert request.reasoning == effort
        assert WIRE.encode_request(request) == body


def test_model_and_stream_are_read_from_the_url_in_the_body() -> None:
    plain = WIRE.decode_request({"contents": []})
    assert (plain.model, plain.stream) == ("", True)
    given_both = WIRE.decode_request({"contents": [], "model": "models/gemini-x", "stream": False})
    assert (given_both.model, given_both.stream, given_both.extra) == ("gemini-x", False, {})


def test_both_spellings_are_read() -> None:
    camel: Object = {
        "systemInstruction": {"parts": {"text": "Be brief."}},
        "contents": [
            {"parts": [{"inlineData": {"mimeType": "image/png", "data": "aWNv"}}]},
            {"role": "model", "parts": [fc("f", {"snake_key": 1}, thoughtSignature="cw==")]},
            {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {"output": "1"}}}]},
        ],
        "tools": {"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]},
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"maxOutputTokens": 5, "thinkingConfig": {"thinkingBudget": 0}},
    }
    snake = re.sub(r'(?<=[a-z])[A-Z](?=\w*": )', lambda hump: f"_{hump.group().lower()}", json.dumps(camel))
    assert '"max_output_tokens"' in snake
    request = WIRE.decode_request(camel)
    assert WIRE.decode_request(json.loads(snake)) == request
    assert request.messages[1] == User((Media("image/png", "aWNv"),))
    assert isinstance(request.messages[2], Assistant)
    assert request.messages[2].calls[0].arguments == {"snake_key": 1}
    assert request.messages[3] == ToolMessage((ToolResult("call_0_0", (Text("1"),), name="f"),))


def test_results_without_ids_belong_to_the_open_calls_of_their_name_in_order() -> None:
    def answer(name: str, output: Any, id: str = "") -> Object:
        return {"functionResponse": {**({"id": id} if id else {}), "name": name, "response": output}}

    body = {
        "contents": [
            {"role": "model", "parts": [fc("f", {}), fc("g", {}), fc("f", {}), fc("f", {}, id="own")]},
            {"role": "user", "parts": [answer("f", {"output": "1"}, "own"), answer("g", {"error": {"code": 4}})]},
            {"role": "user", "parts": [answer("f", {"a": 1}), answer("f", {"result": 0}), {"text": "go on"}]},
            {"role": "model", "parts": [fc("f", {})]},
            {"role": "user", "parts": [answer("", {}), answer("h", {"output": "?"})]},
        ]
    }
    _, first, user, _, second = WIRE.decode_request(body).messages
    assert isinstance(first, ToolMessage)
    assert isinstance(second, ToolMessage)
    assert [(r.call_id, r.text, r.error) for r in first.results] == [
        ("own", "1", False),
        ("call_0_1", '{"code": 4}', True),
        ("call_0_0", '{"a": 1}', False),
        ("call_0_2", "0", False),
    ]
    assert user == User.of("go on")
    assert [(r.call_id, r.text) for r in second.results] == [("call_1_0", ""), ("unknown_h", "?")]


def test_a_duplicate_id_is_resolved() -> None:
    parts = [fc("f", {"n": 1}, id="x"), fc("f", {"n": 2}, id="x")]
    answers = [{"functionResponse": {"id": "x", "name": "f", "response": {"output": n}}} for n in "12"]
    messages = WIRE.decode_request({"contents": [{"role": "model", "parts": parts}, {"parts": answers}]}).messages
    assert isinstance(messages[0], Assistant)
    assert isinstance(messages[1], ToolMessage)
    assert [call.id for call in messages[0].calls] == ["x", "call_0_1"]
    assert [(result.call_id, result.text) for result in messages[1].results] == [("x", "1"), ("call_0_1", "2")]


def test_a_schema_of_the_api_becomes_json_schema() -> None:
    schema: Object = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "nullable": True}, "n": {"type": 3}}}
    schema["properties"]["any"] = {"anyOf": [{"type": "ARRAY", "items": {"type": "NUMBER"}}]}
    assert json_schema(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"]},
            "n": {"type": "integer"},
            "any": {"anyOf": [{"type": "array", "items": {"type": "number"}}]},
        },
    }
    assert schema["type"] == "OBJECT"


# Round trips

texts = st.text(min_size=1, max_size=12)
names = st.sampled_from(["f", "g", "look_up"])
arguments = st.dictionaries(st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.text(), max_size=3)
ids = st.none() | st.text("abcXYZ019_-", min_size=1, max_size=20)
media = st.sampled_from([Media("image/png", "aWNv"), Media(url="https://x.test/i.png"), Media("a/b", url="gs://b/o")])
users = st.builds(User, st.lists(st.builds(Text, texts) | media, min_size=1, max_size=3).map(tuple))


@st.composite
def rounds(draw: st.DrawFn, number: int) -> list[Message]:
    calls: list[ToolCall] = []
    for index in range(draw(st.integers(0, 3))):
        value = draw(arguments)
        id = draw(ids)
        id = f"{id}-{number}-{index}" if id else f"call_{number}_{index}"
        calls.append(ToolCall(id, draw(names), value, json.dumps(value, ensure_ascii=False), index))
    if not calls:
        return [Assistant(draw(texts))]
    results = [
        ToolResult(call.id, (*map(Text, draw(st.lists(texts, max_size=1))), *draw(st.lists(media, max_size=1))))
        for call in calls
    ]
    named = [replace(r, name=c.name, error=draw(st.booleans())) for r, c in zip(results, calls, strict=True)]
    return [Assistant(draw(st.just("") | texts), tuple(calls)), ToolMessage(tuple(named))]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = [System.of(draw(texts))] if draw(st.booleans()) else []
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        messages.append(draw(users))
        played = draw(rounds(number))
        number += len(played) - 1
        messages += played
    return tuple(messages)


@given(conversations())
def test_messages_can_be_read_back_from_a_request(messages: tuple[Message, ...]) -> None:
    assert through(Request(messages)).messages == messages


deltas = st.lists(
    st.builds(TextDelta, texts) | st.builds(ReasoningDelta, texts) | st.tuples(names, arguments), max_size=6
)


@given(deltas, st.sampled_from(["done", "length", "refused"]))
def test_an_answer_can_be_read_back_from_a_client_response(said: list[Delta], meaning: Meaning) -> None:
    encoder = GeminiEncoder("gemini-x", "r1")
    fed: list[Delta] = [*said]
    fed += [UsageReported(Usage(10, 7, 2, 0, 3)), Ended(Verdict("whole", meaning=meaning))]
    stream = b"".join(encoder.feed(delta) for delta in fed)
    for r in (decode(stream, "gemini"), decode(encoder.body(), "gemini", stream=False)):
        assert r.text == "".join(delta.text for delta in fed if isinstance(delta, TextDelta))
        assert r.reasoning == "".join(delta.text for delta in fed if isinstance(delta, ReasoningDelta))
        assert [call[1:] for call in calls_of(r)] == [
            (d.call.name, d.call.arguments) for d in fed if isinstance(d, CallReady)
        ]
        assert r.verdict.meaning == meaning
        assert r.usage is not None
        assert replace(r.usage, raw={}) == Usage(10, 7, 2, 0, 3)


def test_a_count_of_tokens_is_never_negative() -> None:
    encoder = GeminiEncoder("gemini-x", "r1")
    for delta in (TextDelta("a"), UsageReported(Usage(10, 7, reasoning_tokens=9)), Ended(Verdict("whole"))):
        encoder.feed(delta)
    usage = json.loads(encoder.body())["usageMetadata"]
    assert (usage["candidatesTokenCount"], usage["thoughtsTokenCount"]) == (0, 9)


def test_the_non_streaming_body_equals_the_stream() -> None:
    def said(r: Response) -> Any:
        return r.message, r.finish, r.usage

    encoder = GeminiEncoder("gemini-x", "r1")
    call = ToolCall("a", "f", {"x": 1})
    fed = [ReasoningDelta("Hm."), TextDelta("One"), TextDelta(" two"), CallReady(call), Ended(Verdict("whole"))]
    stream = b"".join(encoder.feed(delta) for delta in fed)
    assert said(decode(stream, "gemini")) == said(decode(encoder.body(), "gemini"))
    body = json.loads(encoder.body())
    assert (body["modelVersion"], body["responseId"]) == ("gemini-x", "r1")
    assert [len(part) for part in body["candidates"][0]["content"]["parts"]] == [2, 1, 1]
