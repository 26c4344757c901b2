"""Providers that require their own reasoning back: how a request is fixed if it is lost."""

from __future__ import annotations

from typing import Any

from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.relay import RelayRequest, Verbatim
from unbroken_wires.messages import Assistant, Native, Request, ToolCall, ToolMessage, ToolResult, ToolSpec, User
from unbroken_wires.wires.jsontext import loads

CALL = ToolCall("call_1", "look", {"at": "it"}, '{"at": "it"}')
TOOL = ToolSpec("look")


def asked(model: HTTPModel, request: Request) -> dict[str, Any]:
    return loads(model.write(request)[1])


def history(native: Native | None = None) -> tuple[User | Assistant | ToolMessage, ...]:
    return (
        User.of("Look."),
        Assistant("", (CALL,), native=native),
        ToolMessage((ToolResult.of(CALL, "seen"),)),
    )


def model(name: str) -> HTTPModel:
    return connect(name, base_url="http://127.0.0.1:9", api_key="k").model


def test_kimi_gets_a_blank_if_its_reasoning_is_lost() -> None:
    kimi = model("moonshot:kimi-k2.5")
    request = Request(history(), (TOOL,))
    assert asked(kimi, request)["messages"][1]["reasoning_content"] == " "
    assert kimi.prepare(request).lost_reasoning == "left blank"


def test_existing_reasoning_is_not_changed() -> None:
    kimi = model("moonshot:kimi-k2.5")
    own = Native("openai-chat", {"reasoning_content": "I should look."}, ("call_1",))
    request = Request(history(own), (TOOL,))
    assert asked(kimi, request)["messages"][1]["reasoning_content"] == "I should look."
    assert kimi.prepare(request).lost_reasoning == ""


def test_a_forwarded_body_is_fixed_too_and_is_not_modified_itself() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        ],
    }
    messages = history()
    request = RelayRequest(messages, stream=False, verbatim=Verbatim("openai-chat", body, messages))
    assert asked(model("deepseek:deepseek-v4"), request)["messages"][1]["reasoning_content"] == " "
    assert "reasoning_content" not in body["messages"][1]


def test_claude_does_not_think_in_a_turn_that_began_without_thinking() -> None:
    claude = model("anthropic:claude")
    request = Request(history(), (TOOL,), reasoning="high")
    assert "thinking" not in asked(claude, request)
    assert claude.prepare(request).lost_reasoning == "thinking is off"
    assert "thinking" in asked(claude, Request((User.of("Look."),), (TOOL,), reasoning="high"))


def test_claude_thinks_if_its_signed_thinking_is_there() -> None:
    claude = model("anthropic:claude")
    signed = Native(
        "anthropic-messages",
        [
            {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
            {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "it"}},
        ],
        ("call_1",),
    )
    request = Request(history(signed), (TOOL,), reasoning="high")
    assert asked(claude, request)["thinking"]["type"] == "enabled"
    assert claude.prepare(request).lost_reasoning == ""


def test_thinking_requested_by_a_client_is_turned_off_as_well() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9000,
        "thinking": {"type": "enabled", "budget_tokens": 4000},
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "seen"}]},
        ],
    }
    messages = history()
    request = RelayRequest(messages, (TOOL,), stream=False, verbatim=Verbatim("anthropic-messages", body, messages))
    claude = model("anthropic:claude")
    assert "thinking" not in asked(claude, request)
    assert claude.prepare(request).lost_reasoning == "thinking is off"
    assert asked(claude, request)["max_tokens"] == 9000


def test_a_thinking_client_without_calls_in_its_turn_is_not_changed() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 9000,
        "thinking": {"type": "enabled", "budget_tokens": 4000},
        "messages": [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Look."}],
    }
    messages = (Assistant("Hello."), User.of("Look."))
    request = RelayRequest(messages, stream=False, verbatim=Verbatim("anthropic-messages", body, messages))
    assert asked(model("anthropic:claude"), request)["thinking"] == body["thinking"]


def test_gemini_3_gets_the_documented_placeholder_also_in_a_forwarded_body() -> None:
    body: dict[str, Any] = {
        "contents": [
            {"role": "user", "parts": [{"text": "Look."}]},
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"result": "seen"}}}]},
        ]
    }
    messages = history()
    request = RelayRequest(messages, stream=False, verbatim=Verbatim("gemini", body, messages))
    gemini = model("gemini:gemini-3-pro")
    part = asked(gemini, request)["contents"][1]["parts"][0]
    assert part["thoughtSignature"] == "skip_thought_signature_validator"
    assert gemini.prepare(request).lost_reasoning == "signed with a placeholder"
    assert model("gemini:gemini-2.5-pro").prepare(request).lost_reasoning == ""


def test_a_provider_that_does_not_require_reasoning_is_not_affected() -> None:
    openai = model("openai:gpt-5")
    assert openai.prepare(Request(history(), (TOOL,))).lost_reasoning == ""
    assert "reasoning_content" not in asked(openai, Request(history(), (TOOL,)))["messages"][1]
