"""Provider profiles: each can be found and connected, quirks change only what they name, and the page is generated from
them."""

from __future__ import annotations

import json
import runpy
from typing import Any

import pytest
from checkout import ROOT
from corpus import ABSENT, FOLDER

from unbroken.errors import UnknownProvider
from unbroken.models.connect import connect
from unbroken.models.providers import CHAT, PROFILES, Provider, find_provider
from unbroken.models.quirks import NOTHING_RUNS, Quirks, fit_body, fit_request
from unbroken_wires.messages import (
    Assistant,
    OneTool,
    Request,
    Sampling,
    System,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.wires import WIRES

CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (ToolSpec("search", "finds", CLOSED, strict=True),)
ASK = Request((System.of("Be brief."), User.of("Hi")), tools=TOOLS)


def body_of(model: str, request: Request = ASK, **settings: Any) -> dict[str, Any]:
    return json.loads(connect(model, api_key="key", **settings).model.write(request)[1])


def test_the_page_is_generated_from_the_profiles() -> None:
    page = (ROOT / "docs" / "providers.md").read_text("utf-8")
    generated = runpy.run_path(str(ROOT / "docs" / "providers_page.py"))["make_page"]()
    assert page == generated, "run: python docs/providers_page.py > docs/providers.md"


def test_the_page_of_rules_is_generated_from_the_rules() -> None:
    page = (ROOT / "docs" / "rules.md").read_text("utf-8")
    generated = runpy.run_path(str(ROOT / "docs" / "rules_page.py"))["make_page"]()
    assert page == generated, "run: python docs/rules_page.py > docs/rules.md"


def test_names_and_aliases_are_unique() -> None:
    names = [name for profile in PROFILES for name in (profile.name, *profile.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_connect_works_with_every_profile(profile: Provider) -> None:
    base_url = None if profile.base_url else "https://models.example"
    settings: dict[str, Any] = dict.fromkeys(profile.parts, "here")
    model = connect(f"{profile.name}:m", api_key="key", base_url=base_url, **settings).model
    assert model.wire in WIRES
    assert model.name == f"{profile.name}:m"
    assert model.endpoint.stream_url.scheme in ("http", "https")
    assert "{" not in str(model.endpoint.stream_url)
    assert all(wire in WIRES for wire in profile.other_wires)


def test_an_unknown_provider_is_reported_with_suggestions_and_a_hint() -> None:
    with pytest.raises(UnknownProvider) as caught:
        find_provider("antropic")
    message = str(caught.value)
    assert "did you mean `anthropic`?" in message
    assert "deepseek" in message
    assert "base_url=" in message
    assert "\n" not in message


RECORDED_AS = {
    "openai": ["openai"],
    "openai-chat": ["openai"],
    "openai-responses": ["openai"],
    "gemini": ["google"],
    "vertex": ["google-vertex"],
    "zhipu": ["zai"],
    "llamacpp": ["llama.cpp"],
    "bedrock": ["aws-bedrock"],
}


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_recorded_means_that_several_calls_are_in_a_recording(profile: Provider) -> None:
    index = FOLDER / "index.jsonl"
    if not index.exists():
        pytest.skip(ABSENT)
    names, wires = RECORDED_AS.get(profile.name, [profile.name]), [profile.wire, *profile.other_wires]
    several = [
        entry["id"]
        for entry in map(json.loads, index.read_text("utf-8").splitlines())
        if entry["provider"] in names and entry["wire"] in wires and len(entry["expected"]["tool_calls"]) > 1
    ]
    assert bool(several) == (profile.known_from == "recorded")
    assert profile.several_calls is True or profile.known_from != "recorded"


# Quirks


def test_a_profile_without_quirks_changes_nothing() -> None:
    request = Request((User.of("Hi"),), tools=TOOLS, final=True, choice="required", reasoning="low")
    assert fit_request(request, Quirks()) is request
    body = WIRES[CHAT].encode_request(request)
    assert fit_body(dict(body), request, Quirks()) == body


def test_max_tokens_has_another_name_for_openai() -> None:
    request = Request((User.of("Hi"),), sampling=Sampling(max_tokens=50))
    assert body_of("openai-chat:m", request)["max_completion_tokens"] == 50
    assert "max_tokens" not in body_of("openai-chat:m", request)
    assert body_of("groq:m", request)["max_tokens"] == 50
    assert body_of("openai:m", request)["max_output_tokens"] == 50


def test_extra_is_never_renamed_or_dropped() -> None:
    body = body_of("mistral:m", extra={"seed": 3, "stream_options": {"include_usage": True}}, seed=4)
    assert body["seed"] == 3
    assert body["stream_options"] == {"include_usage": True}


def test_mistral_gets_its_seed_and_no_stream_options() -> None:
    body = body_of("mistral:m", seed=4)
    assert body["random_seed"] == 4
    assert "seed" not in body
    assert "stream_options" not in body


def test_mistral_gets_ids_of_nine_characters_in_call_and_result() -> None:
    call = ToolCall("call_0_0_that_is_long", "search", {}, "{}")
    history = (User.of("Hi"), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "found"),)))
    messages = body_of("mistral:m", Request(history, tools=TOOLS))["messages"]
    id = messages[1]["tool_calls"][0]["id"]
    assert len(id) == 9
    assert messages[2]["tool_call_id"] == id


def test_the_final_request_uses_none_if_the_provider_accepts_it_and_a_system_line_otherwise() -> None:
    final = Request(ASK.messages, tools=TOOLS, final=True)
    assert body_of("openai-chat:m", final)["tool_choice"] == "none"
    said = body_of("ollama:m", final)
    assert "tool_choice" not in said
    assert said["tools"]
    assert said["messages"][-1] == {"role": "system", "content": NOTHING_RUNS}


def test_an_unsupported_choice_is_left_to_the_model() -> None:
    forced = Request(ASK.messages, tools=TOOLS, choice="required")
    assert body_of("moonshot:m", forced).get("tool_choice") is None
    assert body_of("deepseek:m", forced)["tool_choice"] == "required"
    one = Request(ASK.messages, tools=TOOLS, choice=OneTool("search"))
    assert body_of("qwen:m", one)["tool_choice"]["function"]["name"] == "search"


def test_several_calls_are_requested_if_necessary() -> None:
    assert body_of("qwen:m")["parallel_tool_calls"] is True
    assert body_of("llamacpp:m")["parallel_tool_calls"] is True
    assert "parallel_tool_calls" not in body_of("deepseek:m")
    one = Request(ASK.messages, tools=TOOLS, parallel=False)
    assert body_of("qwen:m", one)["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body_of("qwen:m", Request((User.of("Hi"),)))


def test_strict_is_left_out_if_it_is_refused() -> None:
    assert "strict" not in body_of("zhipu:m")["tools"][0]["function"]
    assert body_of("openai-chat:m")["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize(
    ("model", "effort", "spelled"),
    [
        ("openai-chat:m", "low", {"reasoning_effort": "low"}),
        ("qwen:m", "none", {"enable_thinking": False}),
        ("qwen:m", "high", {"enable_thinking": True}),
        ("deepseek:m", "none", {"thinking": {"type": "disabled"}}),
        ("deepseek:m", "high", {"reasoning_effort": "high"}),
        ("zhipu:m", "low", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
        ("zhipu:glm-4.7", "low", {"thinking": {"type": "enabled"}}),
        ("openrouter:m", "low", {"reasoning": {"effort": "low"}}),
    ],
)
def test_an_effort_is_written_in_the_providers_format(model: str, effort: Any, spelled: dict[str, Any]) -> None:
    body = body_of(model, reasoning=effort)
    keys = ("reasoning_effort", "enable_thinking", "thinking", "reasoning")
    assert {key: body[key] for key in keys if key in body} == spelled


def test_vertex_gets_no_ids_and_the_history_keeps_them() -> None:
    call = ToolCall("toolu_1", "search", {"q": "a"}, '{"q": "a"}')
    request = Request(
        (User.of("Hi"), Assistant("", (call,)), ToolMessage((ToolResult.of(call, "found"),))), tools=TOOLS
    )
    contents = body_of("vertex:m", request, project="p", location="l")["contents"]
    assert "id" not in contents[1]["parts"][0]["functionCall"]
    assert "id" not in contents[2]["parts"][0]["functionResponse"]
    assert body_of("gemini:m", request)["contents"][1]["parts"][0]["functionCall"]["id"] == "toolu_1"


def test_quirks_of_openai_chat_do_not_reach_another_wire() -> None:
    final = Request(ASK.messages, tools=TOOLS, final=True)
    body = body_of("minimax:m", final, wire="anthropic-messages")
    assert body["tool_choice"] == {"type": "none"}
    assert "reasoning_split" not in body


def test_a_provider_that_cannot_stream_tools_gets_unstreamed_requests() -> None:
    quirks = Quirks(stream_with_tools=False)
    assert fit_request(ASK, quirks).stream is False
    assert fit_request(Request((User.of("Hi"),)), quirks).stream is True
