"""Requests of every kind, for every family of models, are accepted by the provider: by our rules, and by the shared
ones where they are present."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from shared_rules import PRESENT, broken_rules

from unbroken import connect
from unbroken.errors import InvalidRequest
from unbroken_testing.server import find_refusals
from unbroken_wires.messages import (
    Assistant,
    Native,
    OneTool,
    Request,
    System,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)

# fmt: off
MODELS = [
    "anthropic:claude-opus-4-7", "anthropic:claude-opus-4-6", "anthropic:claude-sonnet-4-6",
    "anthropic:claude-opus-4-5", "anthropic:claude-sonnet-4-5", "anthropic:claude-opus-4-1",
    "anthropic:claude-opus-4-20250514", "anthropic:claude-3-7-sonnet-latest", "anthropic:claude-3-haiku-20240307",
    "anthropic:claude-sonnet-5", "openai:gpt-5", "openai:gpt-5.1", "openai:gpt-5.4", "openai:o3", "openai:gpt-4o",
    "openai:gpt-5-chat-latest", "openai-chat:gpt-5", "openai-chat:gpt-5.1", "openai-chat:gpt-5.4", "openai-chat:o3",
    "openai-chat:o1-mini", "openai-chat:gpt-4o", "gemini:gemini-2.5-pro", "gemini:gemini-2.5-flash",
    "gemini:gemini-2.0-flash", "gemini:gemini-3-pro-preview", "vertex:gemini-2.5-pro", "deepseek:deepseek-v4",
    "deepseek:deepseek-chat", "qwen:qwen3-max", "moonshot:kimi-k2.5", "zhipu:glm-5", "minimax:minimax-m3",
    "mistral:mistral-large-latest", "groq:qwen/qwen3-32b", "xai:grok-4", "xai:grok-3-mini", "cerebras:llama-4",
    "ollama:llama3.1:8b",
]
# fmt: on

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}
REFERENCES = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "$defs": {"A": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
ALTERNATIVES = {
    "anyOf": [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
    ]
}
WEATHER = ToolSpec("get_weather", "The weather.", CITY)
LONG_NAME = "server.with.dots/a-name-of-a-tool-that-is-longer-than-sixty-four-characters-in-all"
THOUGHT = Native(
    "anthropic-messages",
    [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}},
    ],
    ("call_1",),
)


def asked(*, id: str = "call_1", name: str = "get_weather", reasoning: str = "", native: Native | None = None) -> Any:
    call = ToolCall(id, name, {"city": "Paris"}, '{"city": "Paris"}')
    result = ToolMessage((ToolResult.of(call, "sunny"),))
    return User.of("Hi"), Assistant("", (call,), reasoning, native), result


HI = (User.of("Hi"),)
TOOLS = (WEATHER, ToolSpec("nothing"))
REQUESTS = {
    "plain": Request((System.of("Be brief."), *HI)),
    "tools": Request(HI, TOOLS),
    "strict tool": Request(HI, (ToolSpec("get_weather", "", CITY, strict=True),)),
    "long name": Request(asked(name=LONG_NAME), (ToolSpec(LONG_NAME, "", CITY),)),
    "schemas": Request(HI, (ToolSpec("refs", "", REFERENCES), ToolSpec("either", "", ALTERNATIVES))),
    "result": Request(asked(), TOOLS),
    "long id": Request(asked(id="call_" + "x" * 60), TOOLS),
    "odd id": Request(asked(id="functions.get_weather:0"), TOOLS),
    "foreign reasoning": Request(asked(reasoning="I think."), TOOLS),
    "foreign native": Request(asked(reasoning="hm", native=THOUGHT), TOOLS),
    "history without tools": Request((*asked(), Assistant("Sunny."), User.of("Thanks."))),
    "user after result": Request((*asked(), User.of("And now?")), TOOLS),
    "required": Request(HI, TOOLS, choice="required"),
    "one tool": Request(HI, TOOLS, choice=OneTool("get_weather")),
    "final": Request(asked(), TOOLS, final=True),
    "one call": Request(HI, TOOLS, parallel=False),
    "late system message": Request((*HI, System.of("Be brief."), User.of("Go."))),
    "empty answer": Request((*HI, Assistant(""), User.of("Again."))),
    "not streamed": Request(HI, stream=False),
    "only a system message": Request((System.of("Write a poem."),)),
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3, "top_p": 0.9},
    {"top_p": 0.5, "stop": "END", "seed": 7},
    {"max_tokens": 300_000},
    {"reasoning": "none"},
    {"reasoning": "minimal", "max_tokens": 100},
    {"reasoning": "high", "temperature": 0.3, "max_tokens": 500},
    {"reasoning": "xhigh", "max_tokens": 20_000, "top_p": 0.5},
]


def connected(name: str, settings: Mapping[str, Any]) -> Any:
    if name.startswith("vertex:"):
        settings = {**settings, "project": "p", "location": "l"}
    return connect(name, api_key="key", **settings).model


def written(name: str, settings: Mapping[str, Any], request: Request) -> tuple[Any, dict[str, Any], dict[str, str]]:
    return written_by(connected(name, settings), request)


def written_by(model: Any, request: Request) -> tuple[Any, dict[str, Any], dict[str, str]]:
    _, data = model.write(request)
    headers = {key.lower(): value for key, value in model.endpoint.headers}
    return model, json.loads(data), headers


@pytest.mark.parametrize("name", MODELS)
def test_every_family_of_models_accepts_what_it_is_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_HOST"):
        monkeypatch.delenv(variable, raising=False)
    for settings in SETTINGS:
        connection = connected(name, settings)
        for kind, request in REQUESTS.items():
            model, body, headers = written_by(connection, request)
            endpoint = model.endpoint
            refused = find_refusals(endpoint.wire, body, endpoint.vendor, endpoint.model, headers)
            complaints = [refusal.message for refusal in refused if refusal.rule != "history"]
            assert complaints == [], (kind, settings, body)
            if PRESENT:
                broken = broken_rules(endpoint.wire, endpoint.vendor, endpoint.model, body, headers, request.stream)
                assert broken == [], (kind, settings, body)


@pytest.mark.parametrize("name", ["anthropic:claude-opus-4-6", "anthropic:claude-sonnet-5"])
def test_an_answer_to_be_continued_is_an_error_where_the_model_cannot_continue_it(name: str) -> None:
    with pytest.raises(InvalidRequest, match="the last message is not the assistant's"):
        written(name, {}, Request((*HI, Assistant("Sure:"))))


def test_what_a_model_refuses_is_named() -> None:
    model = connect("openai-chat:gpt-5.4", api_key="key", temperature=0.3, reasoning="high", stop="END").model
    prepared = model.prepare(Request(HI, TOOLS))
    assert set(prepared.left_out) == {"reasoning_effort", "stop"}
    assert prepared.body["reasoning_effort"] == "none"
    assert prepared.body["temperature"] == 0.3  # accepted, as the model does not reason now


def test_a_setting_in_extra_is_sent_although_the_model_may_refuse_it() -> None:
    model = connect("openai-chat:gpt-5", api_key="key", extra={"temperature": 0.3}).model
    assert model.prepare(Request(HI)).body["temperature"] == 0.3


def test_claude_gets_adaptive_thinking_where_it_knows_it_and_a_budget_where_not() -> None:
    def thinking(name: str) -> Any:
        body = written(name, {"reasoning": "high"}, Request(HI))[1]
        return body["thinking"]["type"], body.get("output_config")

    assert thinking("anthropic:claude-opus-4-7") == ("adaptive", {"effort": "high"})
    assert thinking("anthropic:claude-sonnet-4-6") == ("adaptive", {"effort": "high"})
    assert thinking("anthropic:claude-sonnet-4-5") == ("enabled", None)


def test_the_limit_of_an_answer_is_that_of_the_model() -> None:
    limits = {"claude-3-haiku-20240307": 4096, "claude-opus-4-1": 32_000, "claude-sonnet-4-5": 64_000}
    for name, limit in limits.items():
        assert written(f"anthropic:{name}", {}, Request(HI))[1]["max_tokens"] == limit
    assert written("anthropic:not-known", {}, Request(HI))[1]["max_tokens"] == 8192


def test_tools_that_were_accepted_are_checked_again_beside_other_settings_only() -> None:
    model = connect("openai-chat:gpt-5.4", api_key="key").model
    refused = (ToolSpec("look", parameters={"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}]}),)
    fine = (ToolSpec("look"),)
    ask = Request((User.of("Hi."),), tools=fine)
    assert model.prepare(ask).left_out == ()
    assert model.prepare(replace(ask)).left_out == ()
    assert model.prepare(replace(ask, reasoning="high")).left_out == ("reasoning_effort",)
    for _ in range(2):
        assert model.prepare(replace(ask, tools=refused)).left_out == ("tools.function.parameters",)
    own: Any = {"type": "function", "function": {"name": "see", "parameters": {"anyOf": []}}}
    assert model.prepare(replace(ask, extra={"tools": [own]})).body["tools"][1:] == [own]


@pytest.mark.parametrize("model", ["openai-chat:gpt-5", "anthropic:claude-opus-4-6", "gemini:gemini-3-pro-preview"])
def test_a_tool_cannot_have_the_short_name_of_another(model: str) -> None:
    connected = connect(model, api_key="key").model
    long = "delete_everything_" * 10
    (sent,) = names_in(connected.prepare(Request((User.of("Hi."),), tools=(ToolSpec(long),))).body)
    asked = Request((User.of("Hi."),), tools=(ToolSpec(long), ToolSpec(sent)))
    with pytest.raises(InvalidRequest, match=f"two tools would be called `{sent}`"):
        connected.prepare(asked)


def names_in(body: Mapping[str, Any]) -> list[str]:
    tools = body["tools"]
    declared = tools[0].get("functionDeclarations") or [tool.get("function", tool) for tool in tools]
    return [each["name"] for each in declared]


def test_azure_and_openai_are_asked_on_responses_for_models_that_take_tools_only_there() -> None:
    azure = {"base_url": "https://a.openai.azure.com"}
    assert connected("azure:gpt-5.6", azure).wire == "openai-responses"
    assert connected("azure:gpt-5.6-luna", azure).wire == "openai-responses"
    assert connected("azure:gpt-5.4", azure).wire == "openai-chat"
    assert connected("azure:gpt-5.6", {**azure, "wire": "openai-chat"}).wire == "openai-chat"
    assert connected("azure:gpt-5.6", {**azure, "api_version": "2024-10-21"}).wire == "openai-chat"
    assert connected("openai:gpt-5.6", {}).wire == "openai-responses"


def test_tools_on_chat_completions_turn_off_the_reasoning_that_a_model_does_by_default_and_say_so() -> None:
    prepared = connect("openai-chat:gpt-5.6", api_key="key").model.prepare(Request(HI, TOOLS))
    assert (prepared.body["reasoning_effort"], prepared.left_out) == ("none", ("reasoning_effort",))
    assert "reasoning_effort" not in connect("openai-chat:gpt-5.6", api_key="key").model.prepare(Request(HI)).body


@pytest.mark.parametrize(
    ("name", "effort", "sent"),
    [
        ("groq:openai/gpt-oss-120b", "none", "low"),
        ("groq:openai/gpt-oss-120b", "xhigh", "high"),
        ("groq:qwen/qwen3-32b", "medium", "default"),
        ("xai:grok-4.5", "none", "low"),
        ("xai:grok-4.3", "none", "none"),
        ("xai:grok-3-mini", "medium", "high"),
        ("cerebras:gpt-oss-120b", "minimal", "low"),
        ("mistral:mistral-small-latest", "minimal", "none"),
        ("openai-chat:gpt-5-pro", "low", "high"),
        ("groq:llama-3.3-70b-versatile", "high", None),
        ("zhipu:glm-5.2", "medium", "medium"),
        ("zhipu:glm-5.3", "medium", "high"),
        ("zhipu:glm-4.7", "high", None),
        ("moonshot:kimi-k3", "xhigh", "max"),
        ("moonshot:kimi-k2.6", "high", None),
        ("groq:a-model-of-tomorrow", "high", "high"),
    ],
)
def test_an_effort_becomes_the_nearest_that_the_family_takes(name: str, effort: Any, sent: str | None) -> None:
    prepared = connect(name, api_key="key", reasoning=effort).model.prepare(Request(HI))
    assert prepared.body.get("reasoning_effort") == sent
    assert ("reasoning_effort" in prepared.left_out) == (effort != sent)


def test_thinking_that_cannot_be_turned_off_is_turned_down_and_reported() -> None:
    def asked(name: str) -> Any:
        prepared = connect(name, api_key="key", reasoning="none").model.prepare(Request(HI))
        assert "thinking" in prepared.left_out
        return prepared.body

    glm = asked("zhipu:glm-5.3")
    assert (glm["thinking"], glm["reasoning_effort"]) == ({"type": "enabled"}, "low")
    kimi = asked("moonshot:kimi-k3")
    assert ("thinking" in kimi, kimi["reasoning_effort"]) == (False, "low")
    opus = asked("anthropic:claude-opus-5-5")
    assert ("thinking" in opus, opus["output_config"]) == (False, {"effort": "low"})
    assert asked("anthropic:claude-sonnet-5-5")["thinking"] == {"type": "between_tools"}
    opus_5 = connect("anthropic:claude-opus-5", api_key="key", reasoning="none").model.prepare(Request(HI))
    assert (opus_5.body["thinking"], opus_5.left_out) == ({"type": "disabled"}, ())


def test_a_call_is_not_forced_where_claude_does_not_take_it() -> None:
    request = Request(HI, TOOLS, choice=OneTool("get_weather"), parallel=False)
    prepared = connect("anthropic:claude-opus-5-5", api_key="key").model.prepare(request)
    assert prepared.body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert prepared.left_out == ("tool_choice",)


def test_a_server_of_its_own_gets_the_keys_of_its_messages_back() -> None:
    own = Native("openai-chat", {"reasoning_content": "hm", "tool_calls": [{"extra_content": {"a": 1}}]}, ("call_1",))
    model = connect("openai:gemma-4", api_key="key", base_url="http://127.0.0.1:9/v1").model
    said = model.prepare(Request(asked(native=own), TOOLS)).body["messages"][1]
    assert (said["reasoning_content"], said["tool_calls"][0]["extra_content"]) == ("hm", {"a": 1})
    prepared = connect("groq:llama-3.3-70b-versatile", api_key="key").model.prepare(Request(asked(native=own), TOOLS))
    assert prepared.body["messages"][1].keys() == {"role", "content", "tool_calls"}
    assert prepared.left_out == ("messages.reasoning_content", "messages.tool_calls.extra_content")


@pytest.mark.parametrize("name", ["mistral:mistral-large-latest", "minimax:minimax-m3"])
def test_new_instructions_in_the_middle_are_said_by_the_user_where_system_text_comes_first(name: str) -> None:
    history = (System.of("Be brief."), *HI, Assistant("Hello."), System.of("Be long.", "Be kind."), *HI)
    said = connect(name, api_key="key").model.prepare(Request(history)).body["messages"]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user", "user"]
    assert said[3]["content"] == "<system>Be long.\nBe kind.</system>"


@pytest.mark.parametrize(("model", "left"), [("kimi-k2.6", "thinking"), ("kimi-k3", "tool_choice")])
def test_kimi_does_not_think_about_a_call_that_is_forced_or_is_not_forced(model: str, left: str) -> None:
    offered: Any = [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    ]
    wanted = {"type": "function", "function": {"name": "look"}}
    request = Request(HI, extra={"tools": offered, "tool_choice": wanted}, wire="openai-chat")
    prepared = connect(f"moonshot:{model}", api_key="key").model.prepare(request)
    assert prepared.left_out == (left,)
    both = left == "thinking"
    assert ("tool_choice" in prepared.body, "thinking" in prepared.body) == (both, both)
