"""anthropic-messages: thinking that is bound to what is before it, and system text between the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from unbroken_testing import check_request
from unbroken_wires.messages import (
    Assistant,
    Message,
    Native,
    Request,
    System,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.anthropic.messages_bound import BoundThinking
from unbroken_wires.wires.claude_models import LATER_SYSTEM, PREFIX_CHECKED

WIRE = find_wire("anthropic-messages")
NEW, OLD = "claude-opus-5-5", "claude-opus-4-6"
BLOCKS = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Hello."}]
HELLO = Assistant("Hello.", (), "Hm.", Native("anthropic-messages", BLOCKS))
DROPS = {"prefix_mismatch_behavior": "drop_block"}
BETA = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}


def body_of(*messages: Message, model: str = NEW, **more: Any) -> dict[str, Any]:
    return WIRE.encode_request(Request(messages or (User.of("Hi."), HELLO, User.of("And?")), model=model, **more))


@pytest.mark.parametrize(
    "model",
    [
        "claude-fable-5-1",
        "claude-fable-5-2",
        "claude-mythos-5-1",
        "claude-opus-5-5",
        "claude-sonnet-5-5",
        "claude-haiku-5-5-20261001",
        "anthropic/claude-opus-5.5",
        "us.anthropic.claude-sonnet-5-5-v1:0",
        "claude-fable-5-1@20260901",
        "claude-opus-6",
        "claude-saga-7-1",
    ],
)
def test_newer_models_check_what_is_before_their_thinking(model: str) -> None:
    assert model in PREFIX_CHECKED
    assert model in LATER_SYSTEM
    assert body_of(model=model)["thinking"] == {"type": "adaptive", "block_binding": DROPS}


@pytest.mark.parametrize(
    "model", ["claude-fable-5", "claude-opus-5", "claude-opus-5-20260901", "claude-sonnet-5", OLD, "glm-5"]
)
def test_older_models_do_not_and_get_no_field_that_they_do_not_know(model: str) -> None:
    assert model not in PREFIX_CHECKED
    assert "thinking" not in body_of(model=model)


def test_only_a_request_whose_sender_knows_that_nothing_has_changed_does_not_ask() -> None:
    messages = (User.of("Hi."), HELLO, User.of("And?"))
    request = Request(messages, model=NEW, appended=messages)
    assert "thinking" not in WIRE.encode_request(request)
    assert "thinking" not in body_of(User.of("Hi."))
    changed = replace(request, messages=(User.of("Ho."), *messages[1:]))  # as middleware does
    assert WIRE.encode_request(changed)["thinking"]["block_binding"] == DROPS


def test_what_a_client_says_about_it_is_kept() -> None:
    said = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
    assert body_of(extra={"thinking": said})["thinking"] == said
    assert body_of(extra={"thinking": {"type": "adaptive", "display": "omitted"}})["thinking"] == {
        "type": "adaptive",
        "display": "omitted",
        "block_binding": DROPS,
    }


@pytest.mark.parametrize("more", [{"reasoning": "none"}, {"choice": "required"}])
def test_without_thinking_the_earlier_thinking_is_left_out(more: Any) -> None:
    call = ToolCall("c", "look", {})
    native: Any = [BLOCKS[0], {"type": "tool_use", "id": "c", "name": "look", "input": {}}]
    asked = Assistant("", (call,), "Hm.", Native("anthropic-messages", native, ("c",)))
    body = body_of(User.of("Hi."), asked, ToolMessage((ToolResult.of(call, "x"),)), tools=(ToolSpec("look"),), **more)
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    assert "block_binding" not in str(body)


def test_the_field_without_its_header_is_refused() -> None:
    body = {**body_of(), "model": NEW}
    problem = "thinking.adaptive.block_binding: Extra inputs are not permitted"
    assert check_request("anthropic-messages", body) == [problem]
    assert check_request("anthropic-messages", body, headers=BETA) == []


# A server that binds thinking


def asked(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"system": "Be brief.", "tools": [{"name": "look"}], "messages": list(messages), **more}


FIRST = {"role": "user", "content": "Hi."}
SECOND = {"role": "user", "content": [{"type": "text", "text": "And?"}]}


def answer_to(body: dict[str, Any]) -> dict[str, Any]:
    signed = BoundThinking(body, NEW).sign(b'{"type":"thinking","thinking":"Hm.","signature":"sig-1"}')
    block = {"type": "thinking", "thinking": "Hm.", "signature": signed.decode().split('"')[-2]}
    return {"role": "assistant", "content": [block, {"type": "text", "text": "Hello."}]}


@pytest.mark.parametrize(
    "change",
    [
        {"system": "Be long."},
        {"tools": [{"name": "look"}, {"name": "listen"}]},
        {"messages": [{"role": "user", "content": "Ho."}]},
        {"messages": []},
    ],
    ids=str,
)
def test_thinking_behind_something_else_is_refused_or_dropped(change: dict[str, Any]) -> None:
    said = answer_to(asked(FIRST))
    body = {**asked(FIRST), **change}
    body["messages"] = [*body["messages"], said, SECOND]
    where = f"messages.{len(body['messages']) - 2}.content.0"
    assert BoundThinking(body, NEW).problem.startswith(
        f"{where}: Invalid `signature` in `thinking` block. The block is bound"
    )
    assert BoundThinking(body, OLD).problem == ""
    dropping = BoundThinking({**body, "thinking": {"type": "adaptive", "block_binding": DROPS}}, NEW)
    assert dropping.problem == ""
    report = b'"input_transformations":[{"type":"thinking_dropped","reason":"prefix_binding_mismatch","path":"%s"}],'
    assert dropping.sign(b'{"type":"message","role":"assistant"}') == (
        b'{"type":"message",' + report % where.encode() + b'"role":"assistant"}'
    )


def test_more_messages_cache_marks_and_other_spellings_of_a_text_are_no_change() -> None:
    said = answer_to(asked(FIRST))
    marked = {"role": "user", "content": [{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}]}
    assert BoundThinking(asked(marked, said, SECOND), NEW).problem == ""
    later = answer_to(asked(marked, said, SECOND))
    assert BoundThinking(asked(FIRST, said, SECOND, later, FIRST), NEW).problem == ""
    bare = {**said, "content": said["content"][1:]}
    assert "messages.3.content.0" in BoundThinking(asked(FIRST, bare, SECOND, later, FIRST), NEW).problem


# System text between the messages


def roles(messages: Sequence[Message], model: str = NEW) -> list[tuple[str, str]]:
    body = body_of(*messages, model=model)
    assert check_request("anthropic-messages", {**body, "model": model}, headers=BETA) == []
    return [
        (
            turn["role"],
            content if isinstance(content := turn["content"], str) else " ".join(b.get("text", "") for b in content),
        )
        for turn in body["messages"]
    ]


def test_system_text_stands_behind_the_user_where_the_model_takes_it() -> None:
    one, two, hi, ho = System.of("One."), System.of("Two."), User.of("Hi."), User.of("Ho.")
    plain = Assistant("Yes.")
    assert roles([hi, one]) == [("user", "Hi."), ("system", "One.")]
    assert roles([hi, one, plain, ho]) == [("user", "Hi."), ("system", "One."), ("assistant", "Yes."), ("user", "Ho.")]
    assert roles([hi, one, two]) == [("user", "Hi."), ("system", "One. Two.")]
    assert roles([hi, one], OLD) == [("user", "Hi."), ("user", "<system>One.</system>")]


def test_cache_marks_stand_on_what_the_user_said() -> None:
    messages = [User.of("Hi."), System.of("One."), Assistant("Yes."), User.of("Ho."), System.of("Two.")]
    said = body_of(*messages, cache=True)["messages"]
    assert ["cache_control" in str(message) for message in said] == [True, False, False, True, False]


def test_elsewhere_it_is_the_users_and_marked() -> None:
    one, hi = System.of("One."), User.of("Hi.")
    marked = ("user", "<system>One.</system>")
    assert roles([hi, Assistant("Yes."), one]) == [("user", "Hi."), ("assistant", "Yes."), marked]
    assert roles([hi, one, User.of("Ho.")]) == [("user", "Hi."), marked, ("user", "Ho.")]


# The same at Bedrock


def converse(**more: Any) -> dict[str, Any]:
    said = Native(
        "bedrock-converse",
        [{"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}, {"text": "Hello."}],
    )
    messages = (User.of("Hi."), Assistant("Hello.", (), "Hm.", said), User.of("And?"))
    settings: Any = {"model": "us.anthropic.claude-opus-5-5-v1:0", **more}
    return find_wire("bedrock-converse").encode_request(Request(messages, **settings))


def test_bedrock_is_asked_in_its_own_words() -> None:
    binding = {"type": "adaptive", "block_binding": {"mismatch_behavior": "drop_block"}}
    fields = {"thinking": binding, "anthropic_beta": ["thinking-binding-controls-2026-08-01"]}
    assert converse()["additionalModelRequestFields"] == fields
    assert converse(reasoning="low")["additionalModelRequestFields"] == {**fields, "output_config": {"effort": "low"}}
    assert "additionalModelRequestFields" not in converse(model="anthropic.claude-opus-4-6-v1")
    assert "reasoningContent" not in str(converse(reasoning="none")["messages"])
