"""What a client's messages and tools say reaches a model of another wire, or is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unbroken import connect
from unbroken.errors import InvalidRequest
from unbroken.wires import find_wire
from unbroken.wires.history_losses import lost_from_history

Object = dict[str, Any]

HI: Object = {"role": "user", "content": "Hi"}
PARAMETERS: Object = {"type": "object", "properties": {}}


def lost(client: str, model: str, body: Object) -> list[str]:
    return lost_from_history(body, find_wire(client).decode_request(body), model)


def test_the_name_of_a_speaker_is_named() -> None:
    body: Object = {"model": "m", "messages": [{**HI, "name": "ann"}]}
    assert lost("openai-chat", "anthropic-messages", body) == ["messages.name"]
    assert lost("openai-chat", "openai-chat", body) == []


@pytest.mark.parametrize("model", ["openai-chat", "openai-responses", "ollama", "cohere-v2"])
def test_a_failed_result_is_named_where_results_cannot_fail(model: str) -> None:
    use: Object = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}
    messages: list[Object] = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body: Object = {"model": "m", "max_tokens": 9, "messages": messages}
    assert lost("anthropic-messages", model, body) == ["messages.tool_result.is_error"]
    assert lost("anthropic-messages", "gemini", body) == []


@pytest.mark.parametrize("model", ["anthropic-messages", "gemini", "ollama", "bedrock-converse"])
def test_arguments_that_are_no_object_are_named_where_they_have_to_be_one(model: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1]"}}
    messages: list[Object] = [
        HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
    ]
    body: Object = {"model": "m", "messages": messages}
    assert lost("openai-chat", model, body) == ["messages.tool_calls.function.arguments"]
    assert lost("openai-chat", "openai-responses", body) == []


def test_the_detail_of_an_image_crosses_between_openais_wires_and_is_named_elsewhere() -> None:
    part = {"type": "input_image", "image_url": "https://example.org/x.png", "detail": "high"}
    body: Object = {"model": "m", "input": [{"role": "user", "content": [part]}]}
    request = find_wire("openai-responses").decode_request(body)
    sent = connect("openai-chat:gpt-4.1", api_key="key").model.prepare(request)
    assert sent.body["messages"][0]["content"][0]["image_url"] == {"url": part["image_url"], "detail": "high"}
    chat = find_wire("openai-chat").decode_request(sent.body)
    back = connect("openai:gpt-4.1", api_key="key").model.prepare(chat)
    assert '"detail": "high"' in json.dumps(back.body)
    assert lost("openai-responses", "openai-chat", body) == []
    assert lost("openai-responses", "gemini", body) == ["input.input_image.detail"]


def test_fields_of_a_tool_that_no_other_wire_has_are_named() -> None:
    tool: Object = {"name": "f", "input_schema": PARAMETERS, "defer_loading": True, "input_examples": [{"a": 1}]}
    body: Object = {"model": "m", "max_tokens": 9, "messages": [HI], "tools": [tool]}
    assert lost("anthropic-messages", "openai-chat", body) == ["tools.defer_loading", "tools.input_examples"]


@pytest.mark.parametrize("model", ["openai-chat:gpt-4.1", "anthropic:claude-sonnet-4-5", "ollama:qwen3"])
def test_a_cache_of_gemini_is_refused_elsewhere_because_a_part_of_the_prompt_would_be_missing(model: str) -> None:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    request = find_wire("gemini").decode_request({"contents": contents, "cachedContent": "cachedContents/1"})
    with pytest.raises(InvalidRequest, match="cachedContent"):
        connect(model, api_key="key").model.prepare(request)
