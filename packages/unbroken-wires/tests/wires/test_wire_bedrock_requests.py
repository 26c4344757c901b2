"""The wire bedrock-converse: requests both ways, and what each family of models takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from unbroken import Assistant, Request, Sampling, User
from unbroken_testing import check_request
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
)
from unbroken_wires.wires.bedrock import WIRE
from unbroken_wires.wires.bedrock.converse_reasoning import turn_reasoning_off

Object = dict[str, Any]
CLAUDE, NOVA, OTHER = "us.anthropic.claude-sonnet-4-5", "us.amazon.nova-2-lite-v1:0", "mistral.mistral-large"
TOOL = ToolSpec("look", "Look.", {"type": "object", "properties": {}})
CALL = ToolCall("tooluse_1", "look", {"n": 1}, '{"n": 1}')


def sent(*messages: Any, model: str = CLAUDE, **more: Any) -> Object:
    request = Request(messages, tools=more.pop("tools", (TOOL,)), model=model, **more)
    return json.loads(json.dumps(WIRE.encode_request(request)))


def through(request: Request) -> Request:
    return WIRE.decode_request(json.loads(json.dumps(WIRE.encode_request(request))))


def test_a_request_is_written_without_its_model_and_its_stream() -> None:
    sampling = Sampling(max_tokens=9, temperature=1.5, top_p=0.9, stop=("a",))
    body = sent(System.of("Be brief."), User.of("hi"), choice="auto", sampling=sampling)
    assert body == {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "system": [{"text": "Be brief."}],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "look",
                        "description": "Look.",
                        "inputSchema": {"json": {"type": "object", "properties": {}}},
                    }
                }
            ],
            "toolChoice": {"auto": {}},
        },
        "inferenceConfig": {"maxTokens": 9, "temperature": 1, "topP": 0.9, "stopSequences": ["a"]},
    }
    assert check_request("bedrock-converse", body) == []


@pytest.mark.parametrize(
    ("choice", "spelled"),
    [("required", {"any": {}}), (OneTool("look"), {"tool": {"name": "look"}}), ("none", None), (None, None)],
)
def test_each_choice_has_its_spelling_but_none(choice: Any, spelled: Any) -> None:
    assert sent(User.of("hi"), choice=choice)["toolConfig"].get("toolChoice") == spelled
    assert "toolChoice" not in sent(User.of("hi"), choice=choice, final=True)["toolConfig"]


def test_roles_alternate_and_results_stand_before_what_the_user_says() -> None:
    results = ToolMessage((ToolResult.of(CALL, "seen"),))
    history = (User.of("a"), User.of("b"), Assistant("", (CALL,)), results, User.of("c"), System.of("d"), User.of("e"))
    messages = sent(*history)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [next(iter(block)) for block in messages[2]["content"]] == ["toolResult", "text", "text", "text"]
    assert messages[2]["content"][2] == {"text": "<system>d</system>"}
    _, _, told, said = through(Request(history, tools=(TOOL,), model=CLAUDE)).messages
    assert isinstance(told, ToolMessage)
    assert (told.results[0].text, told.results[0].name) == ("seen", "look")
    assert isinstance(said, User)
    assert said.text == "c<system>d</system>e"


def test_blank_texts_and_empty_messages_are_left_out() -> None:
    messages = sent(User.of(" ", "hi"), Assistant(" \n"), User.of("there"))["messages"]
    assert messages == [{"role": "user", "content": [{"text": "hi"}, {"text": "there"}]}]


def test_ids_fit_the_rule_and_come_once() -> None:
    odd = ToolCall("call|" + "x" * 90, "look", {}, "{}")
    messages = sent(User.of("?"), Assistant("", (odd,)), ToolMessage((ToolResult.of(odd, "ok"),)))["messages"]
    id = messages[1]["content"][0]["toolUse"]["toolUseId"]
    assert messages[2]["content"][0]["toolResult"]["toolUseId"] == id
    assert len(id) <= 64
    answered = (Assistant("", (CALL,)), ToolMessage((ToolResult.of(CALL, "ok"),)))
    body = sent(User.of("?"), *answered, User.of("!"), *answered)
    assert check_request("bedrock-converse", body) == []


@pytest.mark.parametrize(("model", "status"), [(CLAUDE, "error"), (NOVA, "error"), (OTHER, None)])
def test_a_failed_result_says_so_to_the_families_that_know_the_field(model: str, status: str | None) -> None:
    result = ToolResult("tooluse_1", (), error=True)
    told = sent(User.of("?"), Assistant("", (CALL,)), ToolMessage((result,)), model=model)["messages"][2]
    assert told["content"][0]["toolResult"] == {
        "toolUseId": "tooluse_1",
        "content": [{"text": "Error"}],
        **({"status": status} if status else {}),
    }


def test_json_of_a_result_comes_back_as_it_was_and_is_text_elsewhere() -> None:
    content = [{"json": {"n": 1}}]
    raw: list[Any] = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a", "name": "look", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "a", "content": content}}]},
    ]
    request = WIRE.decode_request({"messages": raw})
    results = request.messages[1]
    assert isinstance(results, ToolMessage)
    assert results.results[0].text == '{"n": 1}'
    assert WIRE.encode_request(request)["messages"][1]["content"][0]["toolResult"]["content"] == content


def test_images_and_documents_travel_and_a_document_has_a_text_beside_it() -> None:
    image = Media(mime="image/png", data="iVBORw0KGgo=")
    pdf = Media(mime="application/pdf", data="JVBERi0=", name="The report_2.pdf")
    (message,) = sent(User((image, pdf)))["messages"]
    assert message["content"] == [
        {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
        {"document": {"format": "pdf", "name": "The report 2", "source": {"bytes": "JVBERi0="}}},
        {"text": "The report 2"},
    ]
    again = WIRE.decode_request({"messages": [message]}).messages[0]
    assert isinstance(again, User)
    assert again.parts[0] == image
    far = Media(url="https://example.com/a.png")
    assert "https://example.com/a.png" in sent(User((far,)))["messages"][0]["content"][0]["text"]
    stored: Object = {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://a/b"}}}}
    kept = WIRE.decode_request({"messages": [{"role": "user", "content": [stored]}]})
    assert WIRE.encode_request(kept)["messages"][0]["content"] == [stored]


def test_cache_marks_are_blocks_of_their_own_for_the_families_that_take_them() -> None:
    said = User((Text("long", "1h"), Text("short")))
    marked = sent(System((Text("be brief", "5m"),)), said)
    assert marked["system"] == [{"text": "be brief"}, {"cachePoint": {"type": "default"}}]
    content = marked["messages"][0]["content"]
    assert content == [{"text": "long"}, {"cachePoint": {"type": "default", "ttl": "1h"}}, {"text": "short"}]
    assert b"cachePoint" not in json.dumps(sent(said, model=OTHER)).encode()
    again = through(Request((System((Text("be brief", "5m"),)), said), model=CLAUDE))
    assert again.messages == (System((Text("be brief", "5m"),)), said)


@pytest.mark.parametrize(("model", "points"), [(CLAUDE, 3), (NOVA, 2), (OTHER, 0)])
def test_marks_are_placed_where_the_family_takes_them(model: str, points: int) -> None:
    body = sent(System.of("be brief"), User.of("hi"), cache=True, model=model)
    assert json.dumps(body).count("cachePoint") == points


def test_a_fourth_mark_is_where_the_request_before_ended() -> None:
    said = [System.of("be brief"), User.of("hi"), Assistant("yes?"), User.of("go on")]
    body = sent(*said, cache=True, model=CLAUDE)
    assert [json.dumps(turn).count("cachePoint") for turn in body["messages"]] == [1, 0, 1]


def test_of_too_many_marks_the_last_ones_stay() -> None:
    said = User(tuple(Text(str(n), "5m") for n in range(6)))
    content = sent(said)["messages"][0]["content"]
    assert [next(iter(block)) for block in content] == ["text"] * 3 + ["cachePoint", "text"] * 3 + ["cachePoint"]


# Reasoning


@pytest.mark.parametrize(
    ("model", "effort", "fields"),
    [
        (CLAUDE, "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (CLAUDE, "none", None),
        (NOVA, "xhigh", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}),
        (NOVA, "none", {"reasoningConfig": {"type": "disabled"}}),
        ("openai.gpt-oss-120b-1:0", "minimal", {"reasoning_effort": "low"}),
        (OTHER, "high", None),
    ],
)
def test_each_family_has_its_own_field_for_an_effort(model: str, effort: Any, fields: Any) -> None:
    body = sent(User.of("hi"), model=model, reasoning=effort)
    assert body.get("additionalModelRequestFields") == fields
    again = WIRE.decode_request({**body, "modelId": model})
    if fields:
        assert WIRE.encode_request(again).get("additionalModelRequestFields") == fields


def test_what_thinking_forbids_is_left_out() -> None:
    sampling = Sampling(max_tokens=100, temperature=0.2, top_p=0.5)
    body = sent(User.of("hi"), reasoning="low", sampling=sampling)
    assert body["inferenceConfig"] == {"maxTokens": 2148}
    forced = sent(User.of("hi"), reasoning="low", sampling=sampling, choice="required")
    assert "additionalModelRequestFields" not in forced
    assert forced["inferenceConfig"] == {"maxTokens": 100, "temperature": 0.2, "topP": 0.5}
    assert "inferenceConfig" not in sent(User.of("hi"), model=NOVA, reasoning="high", sampling=sampling)


def test_a_turn_that_began_without_thinking_goes_on_without() -> None:
    results = ToolMessage((ToolResult.of(CALL, "seen"),))
    thought: Object = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}
    use: Object = {"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"n": 1}}}
    own = Assistant("", (CALL,), "Hm.", Native("bedrock-converse", [thought, use], ("tooluse_1",)))
    foreign = Assistant("", (CALL,), "Hm.")
    kept = sent(User.of("?"), own, results, reasoning="low")
    assert kept["messages"][1]["content"] == [thought, use]
    assert "thinking" in kept["additionalModelRequestFields"]
    assert "additionalModelRequestFields" not in sent(User.of("?"), foreign, results, reasoning="low")
    later = sent(User.of("?"), foreign, results, Assistant("Done."), User.of("And?"), reasoning="low")
    assert "thinking" in later["additionalModelRequestFields"]
    request = Request((User.of("?"), foreign, results), model=CLAUDE, reasoning="low")
    body = {**kept, "messages": sent(User.of("?"), foreign, results)["messages"]}
    without, done = turn_reasoning_off(body, request)
    assert (without["additionalModelRequestFields"], done) == ({}, "thinking is off")
    assert turn_reasoning_off(kept, request) == (kept, "")


# What a client sent


def test_what_a_client_said_beyond_our_fields_comes_back() -> None:
    body: Object = {
        "messages": [{"role": "user", "content": [{"text": "hi"}, {"guardContent": {"text": {"text": "x"}}}]}],
        "guardrailConfig": {"guardrailIdentifier": "g"},
        "inferenceConfig": {"maxTokens": 9, "somethingNew": 1},
        "additionalModelRequestFields": {"top_k": 5, "thinking": {"type": "adaptive"}},
        "toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}], "toolChoice": {"auto": {}}},
        "performanceConfig": {"latency": "optimized"},
    }
    assert WIRE.encode_request(WIRE.decode_request(body)) == body


def test_extra_is_merged_into_the_objects_that_hold_settings() -> None:
    system_tool = {"systemTool": {"name": "nova_grounding"}}
    extra = {"additionalModelRequestFields": {"top_k": 5}, "toolConfig": {"tools": [system_tool]}}
    body = sent(User.of("hi"), reasoning="low", extra=extra)
    assert body["additionalModelRequestFields"].keys() == {"thinking", "top_k"}
    assert [next(iter(tool)) for tool in body["toolConfig"]["tools"]] == ["toolSpec", "systemTool"]


def test_the_path_names_the_model_and_the_stream() -> None:
    http = WIRE.http
    found = http.find("/model/us.anthropic.claude-3:0/converse-stream")
    assert found is not None
    assert (found.model, found.stream) == ("us.anthropic.claude-3:0", True)
    profile = http.find("/model/arn:aws:bedrock:us-east-1:1:inference-profile/x/converse")
    assert profile is not None
    assert (profile.model, profile.stream) == ("arn:aws:bedrock:us-east-1:1:inference-profile/x", False)
    assert http.find("/model/x/invoke") is None


def test_claude_since_4_6_thinks_as_much_as_it_likes_with_an_effort() -> None:
    asked = Request((User.of("Hi."),), reasoning="high", model="us.anthropic.claude-opus-4-6-v1")
    body = WIRE.encode_request(asked)
    fields = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    assert body["additionalModelRequestFields"] == fields
    again = WIRE.decode_request({**body, "modelId": asked.model})
    assert (again.reasoning, again.extra) == ("high", {})


def test_a_name_that_is_refused_is_sent_shorter() -> None:
    name = "search the web!" + "x" * 60
    body = WIRE.encode_request(Request((User.of("Hi."),), tools=(ToolSpec(name),), choice=OneTool(name)))
    sent = body["toolConfig"]["tools"][0]["toolSpec"]["name"]
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", sent)
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": sent}}
