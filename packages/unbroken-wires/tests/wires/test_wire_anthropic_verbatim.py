"""anthropic-messages, requests of a client of this wire: what only this wire can express is sent unchanged."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from unbroken import Assistant, Request, Sampling, Text, ToolCall, ToolMessage, ToolResult, User, decode
from unbroken_wires.messages import Effort, Media, Message, Native, ToolSpec
from unbroken_wires.wires import WIRES, find_wire
from unbroken_wires.wires.anthropic import WIRE
from unbroken_wires.wires.content_parts import FOREIGN

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}


def there_and_back(body: dict[str, Any]) -> dict[str, Any]:
    """The body after a conversion to our types and back; the client's is not modified."""
    before = copy.deepcopy(body)
    again = WIRE.encode_request(WIRE.decode_request(body))
    assert body == before
    return again


def ask(*content: Any, **settings: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 64000, "messages": [{"role": "user", "content": [*content]}], **settings}


# Thinking

TOOL_USE: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "find", "input": {}}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}


def answer(*blocks: dict[str, Any]) -> Assistant:
    body = {"type": "message", "content": list(blocks), "stop_reason": "tool_use"}
    return decode(json.dumps(body).encode(), wire=WIRE.name).message


def round_of(id: str, *before: dict[str, Any]) -> tuple[Message, ...]:
    return answer(*before, {**TOOL_USE, "id": id}), ToolMessage((ToolResult(id, (Text("ok"),)),))


def thinks(*messages: Message, **fields: Any) -> bool:
    body = WIRE.encode_request(Request(messages, reasoning="medium", **fields))
    assert body["max_tokens"] == (16384 if "thinking" in body else 8192)
    return "thinking" in body


def test_thinking_stays_on_in_a_loop_of_calls_that_began_with_it() -> None:
    loop: tuple[Message, ...] = (User.of("x"), *round_of("a", THOUGHT))
    for id in "bcd":
        assert thinks(*loop)
        loop += round_of(id)  # without interleaved thinking only the first message of the loop has any
    assert thinks(*loop)


def test_thinking_stays_off_in_a_loop_that_began_without_it() -> None:
    began = (User.of("x"), *round_of("a"))
    assert not thinks(*began)
    assert not thinks(*began, *round_of("b", THOUGHT))
    assert thinks(*began, Assistant("So."), User.of("And?"))
    assert thinks(*began, User.of("And?"), *round_of("b", THOUGHT))
    assert not thinks(User.of("x"), *round_of("a", THOUGHT), User.of("And?"), *round_of("b"))


def test_thinking_is_off_if_a_call_is_forced_or_the_answer_is_prefilled() -> None:
    assert not thinks(User.of("x"), tools=(ToolSpec("find"),), choice="required")
    assert not thinks(User.of("x"), Assistant("The answer is"))


@pytest.mark.parametrize(
    ("thinking", "more", "effort"),
    [
        ({"type": "enabled", "budget_tokens": 31999, "display": "omitted"}, {}, "xhigh"),
        ({"type": "enabled", "budget_tokens": 7000}, {}, "medium"),
        ({"type": "enabled", "budget_tokens": 8192, "display": "omitted"}, {}, "medium"),
        ({"type": "enabled", "budget_tokens": 8192}, {"max_tokens": 4000}, "medium"),
        ({"type": "adaptive"}, {}, "high"),
        ({"type": "adaptive", "display": "summarized"}, {"output_config": {"effort": "low"}}, "low"),
        ({"type": "adaptive"}, {"output_config": {"effort": "max"}}, "xhigh"),
        ({"type": "kinds to come"}, {}, None),
    ],
)
def test_thinking_that_an_effort_cannot_express_is_sent_back_exactly(
    thinking: dict[str, Any], more: dict[str, Any], effort: Effort | None
) -> None:
    body = ask({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, thinking=thinking, **more)
    assert there_and_back(body) == body
    request = WIRE.decode_request(body)
    assert (request.reasoning, request.extra["thinking"]) == (effort, thinking)


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 8192}])
def test_thinking_that_an_effort_expresses_exactly_needs_no_extra(thinking: dict[str, Any]) -> None:
    body = ask({"type": "image", "source": {"type": "url", "url": "https://x.test/a"}}, thinking=thinking)
    assert WIRE.decode_request(body).extra == {}
    assert there_and_back(body) == body


def test_a_default_limit_leaves_room_for_the_exact_budget() -> None:
    extra = {"thinking": {"type": "enabled", "budget_tokens": 10000}}
    assert WIRE.encode_request(Request((User.of("x"),), extra=extra))["max_tokens"] == 18192


# Sampling


@pytest.mark.parametrize(("given", "sent"), [(0.3, 0.3), (1, 1), (1.7, 1), (2, 1)])
def test_a_temperature_above_one_is_sent_as_one(given: float, sent: float) -> None:
    request = Request((User.of("x"),), sampling=Sampling(temperature=given))
    assert WIRE.encode_request(request)["temperature"] == sent


def test_adaptive_thinking_accepts_no_temperature_either() -> None:
    sampling = Sampling(temperature=0.3, top_p=0.5)
    request = Request((User.of("x"),), sampling=sampling, extra={"thinking": {"type": "adaptive"}})
    assert {"temperature", "top_p"}.isdisjoint(WIRE.encode_request(request))


# Tools


@pytest.mark.parametrize(
    "more",
    [
        {"defer_loading": True},
        {"eager_input_streaming": True},
        {"input_examples": [{"q": "snow"}]},
        {"cache_control": {"type": "ephemeral", "ttl": "7d"}},
        {"allowed_callers": ["code_execution_20250825"]},
        {"type": "custom"},
    ],
)
def test_additional_fields_of_a_tool_are_sent_back(more: dict[str, Any]) -> None:
    tool = {"name": "find", "description": "Finds.", "input_schema": SCHEMA, "strict": True, **more}
    body = ask({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}, tools=[tool])
    (spec,) = WIRE.decode_request(body).tools
    assert (spec.name, spec.parameters, spec.native) == ("find", SCHEMA, Native(WIRE.name, tool))
    assert json.dumps(there_and_back(body)["tools"]) == json.dumps([tool])


def test_a_tool_without_additional_fields_has_no_native_form() -> None:
    tools = [
        {"name": "find", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral", "ttl": "1h"}, "strict": None},
        {"name": "now", "description": "Now.", "input_schema": SCHEMA, "strict": False},
    ]
    assert [tool.native for tool in WIRE.decode_request(ask("x", tools=tools)).tools] == [None, None]


def test_marks_are_set_on_a_copy_of_a_tool() -> None:
    tool = {"name": "find", "input_schema": SCHEMA, "defer_loading": True}
    spec = ToolSpec("find", parameters=SCHEMA, native=Native(WIRE.name, tool))
    body = WIRE.encode_request(Request((User.of("x"),), tools=(spec,), cache=True))
    assert body["tools"] == [{**tool, "cache_control": {"type": "ephemeral"}}]
    assert "cache_control" not in tool


# Parts

IMAGE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
ONLY_HERE: list[dict[str, Any]] = [
    {"type": "tool_reference", "tool_name": "find"},
    {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    {"type": "document", "source": {"type": "file", "file_id": "file_2"}, "title": "A", "cache_control": {"type": "x"}},
    {"type": "container_upload", "file_id": "file_3"},
]
MORE_HERE: list[dict[str, Any]] = [
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
    {"type": "search_result", "source": "https://x.test", "title": "Snow", "content": [{"type": "text", "text": "x"}]},
    {"type": "document", "source": PDF, "title": "A", "context": "old", "citations": {"enabled": True}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi"}, "context": "old"},
    {"type": "document", "source": {"type": "base64", "media_type": "application/msword", "data": "AAAA"}},
    {"type": "image", "source": IMAGE, "cache_control": {"type": "ephemeral", "ttl": "7d"}},
    {"type": "image", "source": {**IMAGE, "detail": "high"}},
    {"type": "image", "source": {"type": "url", "url": "https://x.test/scan.pdf"}},
]


def with_results(block: dict[str, Any]) -> dict[str, Any]:
    """A block next to the user's text and inside a result."""
    result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
    body = ask({"type": "text", "text": "x"}, block)
    body["messages"] += [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [result]}]
    return body


@pytest.mark.parametrize("block", ONLY_HERE + MORE_HERE, ids=lambda block: block["type"])
def test_a_block_with_additional_fields_is_sent_back_unchanged(block: dict[str, Any]) -> None:
    body = with_results(block)
    assert json.dumps(there_and_back(body)["messages"]) == json.dumps(body["messages"])


@pytest.mark.parametrize("block", ONLY_HERE, ids=lambda block: block["type"])
def test_a_block_that_only_this_wire_has_is_a_native_part(block: dict[str, Any]) -> None:
    alone = Media(native=Native(WIRE.name, block))
    request = WIRE.decode_request(with_results(block))
    assert request.messages[0] == User.of("x", alone)
    assert request.messages[2] == ToolMessage((ToolResult("a", (alone,), name="find"),))


def test_a_block_of_another_wire_becomes_a_note() -> None:
    video = Media(native=Native("gemini", {"fileData": {"fileUri": "gs://x"}}), cache="5m")
    body = WIRE.encode_request(Request((User.of(video), ToolMessage((ToolResult("a", (video,)),)))))
    said = [{"type": "text", "text": FOREIGN, "cache_control": {"type": "ephemeral"}}]
    assert body["messages"][0]["content"] == body["messages"][1]["content"][0]["content"] == said


@pytest.mark.parametrize(
    ("block", "media"),
    [
        ({"type": "image", "source": IMAGE, "cache_control": None}, Media(mime="image/png", data="AAAA")),
        (
            {"type": "document", "source": PDF, "title": "a.pdf"},
            Media(mime=PDF["media_type"], data="AAAA", name="a.pdf"),
        ),
        ({"type": "document", "source": {"type": "text", "data": "Hi"}}, Media(mime="text/plain", data="SGk=")),
        ({"type": "image", "source": {"type": "url", "url": "https://x.test/a"}}, Media(url="https://x.test/a")),
    ],
)
def test_media_without_additional_fields_have_no_native_form(block: dict[str, Any], media: Media) -> None:
    request = WIRE.decode_request(ask(block))
    assert request.messages == (User.of(media),)
    assert WIRE.decode_request(WIRE.encode_request(request)).messages == request.messages


def test_a_block_in_the_system_text_that_is_not_text_is_kept_as_json() -> None:
    block = {"type": "image", "source": IMAGE}
    body = there_and_back(ask({"type": "text", "text": "x"}, system=[{"type": "text", "text": "Brief."}, block]))
    assert [part["text"] for part in body["system"]] == ["Brief.", json.dumps(block)]


# Settings


def test_settings_that_only_this_wire_has_stay_with_the_request() -> None:
    extra = {
        "mcp_servers": [{"type": "url", "url": "https://x.test", "name": "x"}],
        "container": {"id": "c", "skills": [{"type": "anthropic", "skill_id": "pdf"}]},
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "metadata": {"user_id": "u"},
        "betas": ["interleaved-thinking-2025-05-14"],
        "output_config": {"effort": "low"},
        "service_tier": "auto",
        "top_k": 5,
        "cache_control": {"type": "ephemeral"},
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
    }
    body = ask({"type": "image", "source": IMAGE}, **extra)
    request = WIRE.decode_request(body)
    assert (request.extra, request.wire, request.reasoning) == (extra, WIRE.name, None)
    assert there_and_back(body) == body
    for wire in WIRES:
        if wire != WIRE.name:
            assert extra.keys().isdisjoint(find_wire(wire).encode_request(request))


def test_a_choice_among_provider_tools_survives() -> None:
    body: dict[str, Any] = ask("x", tool_choice={"type": "any"})
    body["tools"] = [{"type": "web_search_20250305", "name": "web_search"}]
    again = WIRE.encode_request(WIRE.decode_request(body))
    assert (again["tool_choice"], again["tools"]) == (body["tool_choice"], body["tools"])


def test_repeated_ids_in_a_later_round_stay_unique() -> None:
    def round_of(*ids: str) -> tuple[Message, ...]:
        calls = tuple(ToolCall(id, "f", {}, "{}", n) for n, id in enumerate(ids))
        return Assistant("", calls), ToolMessage(tuple(ToolResult(id, (Text("ok"),)) for id in ids))

    messages = (User.of("x"), *round_of("c0", "c0_3"), *round_of("c0"))
    turns = WIRE.encode_request(Request(messages, model="m"))["messages"][1:]
    used = [block["id"] for turn in turns for block in turn["content"] if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for turn in turns for block in turn["content"] if block["type"] == "tool_result"]
    assert len(set(used)) == 3
    assert used == answered
