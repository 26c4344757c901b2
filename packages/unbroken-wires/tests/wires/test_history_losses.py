"""What a client's messages and tools say reaches a model of another wire, or is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unbroken import connect
from unbroken.errors import InvalidRequest
from unbroken_wires.messages import Request, User
from unbroken_wires.wires import find_wire

Object = dict[str, Any]

HI: Object = {"role": "user", "content": "Hi"}
PARAMETERS: Object = {"type": "object", "properties": {}}


MODELS = {
    "openai-chat": "openai-chat:gpt-4.1",
    "openai-responses": "openai:gpt-4.1",
    "anthropic-messages": "anthropic:claude-sonnet-4-5",
    "gemini": "gemini:gemini-2.5-pro",
    "ollama": "ollama:qwen3",
    "cohere-v2": "cohere:command-a-03-2025",
    "bedrock-converse": "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}


def lost(client: str, model: str, body: Object) -> list[str]:
    """What the gateway names in the header `x-unbroken-dropped`."""
    crossing = find_wire(client).crossing()
    assert crossing is not None
    request = find_wire(client).decode_request(body)
    more: Object = {"location": "us-east-1"} if model == "bedrock-converse" else {}
    left_out = connect(MODELS[model], api_key="key", wire=model, **more).model.prepare(request).left_out
    return [*left_out, *(crossing.history.in_body(body) if client != model else ())]


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


PDF = "JVBERi0="
ANNOTATION: Object = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 2,
    "url": "https://example.org",
    "title": "T",
}
ANSWERS: dict[str, tuple[Object, list[str]]] = {
    "openai-chat": (
        {"role": "assistant", "content": "Hi", "annotations": [ANNOTATION], "reasoning_content": "Hm."},
        ["messages.annotations"],
    ),
    "openai-responses": (
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [ANNOTATION]}],
        },
        ["input.output_text.annotations"],
    ),
    "anthropic-messages": (
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
                {"type": "text", "text": "Hi", "citations": [{"type": "char_location"}]},
            ],
        },
        ["messages.server_tool_use", "messages.web_search_tool_result", "messages.text.citations"],
    ),
    "gemini": (
        {
            "role": "model",
            "parts": [
                {"executable_code": {"language": "PYTHON", "code": "1"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
                {"text": "Hm.", "thought": True},
                {"text": "Hi", "thoughtSignature": "c2ln"},
            ],
        },
        ["contents.parts.executableCode", "contents.parts.codeExecutionResult"],
    ),
    "ollama": ({"role": "assistant", "content": "Hi", "thinking": "Hm.", "mood": "good"}, ["messages.mood"]),
    "cohere-v2": (
        {"role": "assistant", "content": "Hi", "tool_plan": "Look.", "citations": [{"start": 0, "end": 2}]},
        ["messages.tool_plan", "messages.citations"],
    ),
    "bedrock-converse": (
        {
            "role": "assistant",
            "content": [
                {"toolUse": {"toolUseId": "a", "name": "search", "input": {}, "type": "server_tool_use"}},
                {"citationsContent": {"content": [{"text": "Hi"}], "citations": [{"title": "T"}]}},
            ],
        },
        ["messages.toolUse", "messages.citationsContent.citations"],
    ),
}
"""A message of a model that says more than text and calls, and how a client of its wire names that."""


def body_with(wire: str, *messages: Object) -> Object:
    http = find_wire(wire).http
    first: Object = {"role": "user", "parts": [{"text": "Hi"}]} if wire == "gemini" else HI
    if wire == "bedrock-converse":
        first = {"role": "user", "content": [{"text": "Hi"}]}
    more: Object = {"max_tokens": 9} if wire == "anthropic-messages" else {}
    return {"model": "m", http.messages_field: [first, *messages], **more}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("client", ANSWERS)
def test_what_only_the_clients_wire_can_say_of_an_answer_is_named(client: str, model: str) -> None:
    message, names = ANSWERS[client]
    body = body_with(client, message, body_with(client)[find_wire(client).http.messages_field][0])
    assert lost(client, model, body) == (names if client != model else [])


@pytest.mark.parametrize("model", ["openai-chat", "gemini", "anthropic-messages"])
@pytest.mark.parametrize("type", ["web_search_call", "file_search_call", "image_generation_call", "mcp_call"])
def test_a_tool_that_the_provider_of_responses_ran_is_named(type: str, model: str) -> None:
    item: Object = {"type": type, "id": "x_1", "status": "completed"}
    spoken: Object = {"role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    assert lost("openai-responses", model, body_with("openai-responses", item, spoken, HI)) == [f"input.{type}"]


@pytest.mark.parametrize("model", [model for model in MODELS if model != "anthropic-messages"])
def test_the_context_of_a_document_is_named_on_every_other_wire(model: str) -> None:
    source: Object = {"type": "text", "media_type": "text/plain", "data": "Fish."}
    document: Object = {
        "type": "document",
        "source": source,
        "title": "T",
        "context": "C",
        "citations": {"enabled": True},
    }
    body = body_with("anthropic-messages", {"role": "user", "content": [document]})
    assert lost("anthropic-messages", model, body) == ["messages.document.context", "messages.document.citations"]
    sent = json.dumps(prepared(model, "anthropic-messages", body))
    assert "T" in sent


def prepared(model: str, client: str, body: Object) -> Object:
    more: Object = {"location": "us-east-1"} if model == "bedrock-converse" else {}
    http = connect(MODELS[model], api_key="key", wire=model, **more).model
    return dict(http.prepare(find_wire(client).decode_request(body)).body)


def test_the_title_of_a_file_is_named_where_files_have_no_names() -> None:
    source: Object = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    document: Object = {"type": "document", "source": source, "title": "T"}
    body = body_with("anthropic-messages", {"role": "user", "content": [document]})
    assert lost("anthropic-messages", "gemini", body) == ["messages.document.title"]
    for model in ("openai-chat", "openai-responses", "bedrock-converse"):
        assert lost("anthropic-messages", model, body) == []


def test_an_image_in_a_system_message_is_named_because_only_text_arrives() -> None:
    image: Object = {"type": "input_image", "image_url": "https://example.org/x.png"}
    item: Object = {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}, image]}
    assert lost("openai-responses", "anthropic-messages", body_with("openai-responses", item)) == ["input.input_image"]
    assert lost("openai-responses", "openai-responses", body_with("openai-responses", item)) == []


def test_an_agent_that_changes_to_a_model_of_another_wire_learns_what_it_is_not_sent() -> None:
    message, names = ANSWERS["anthropic-messages"]
    history = find_wire("anthropic-messages").decode_request(body_with("anthropic-messages", message)).messages
    request = Request((*history, User.of("Go on.")))
    for model in MODELS:
        more: Object = {"location": "us-east-1"} if model == "bedrock-converse" else {}
        left_out = connect(MODELS[model], api_key="key", wire=model, **more).model.prepare(request).left_out
        assert list(left_out) == ([] if model == "anthropic-messages" else names)


@pytest.mark.parametrize("model", ["openai-chat:gpt-4.1", "anthropic:claude-sonnet-4-5", "ollama:qwen3"])
def test_a_cache_of_gemini_is_refused_elsewhere_because_a_part_of_the_prompt_would_be_missing(model: str) -> None:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    request = find_wire("gemini").decode_request({"contents": contents, "cachedContent": "cachedContents/1"})
    with pytest.raises(InvalidRequest, match="cachedContent"):
        connect(model, api_key="key").model.prepare(request)
