"""Schemas of structured answers: what each provider refuses, and that no encoder writes it, whatever the type is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, create_model

from unbroken import Output, Request, User
from unbroken.models.structured_output import why_not_native
from unbroken_testing.server import check_request
from unbroken_wires.messages import OutputSchema, ToolSpec
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.schemas import claude_form, is_strict, strict_form

OPEN = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED = {**OPEN, "additionalProperties": False}
TREE = {
    "$defs": {"T": {**CLOSED, "properties": {"a": {"$ref": "#/$defs/T"}}}},
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/T"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


def chat(schema: Any, name: str = "answer", strict: bool = True) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}
    }


def responses(schema: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}}


def claude(schema: Any) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def gemini(schema: Any, **more: Any) -> dict[str, Any]:
    return {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema, **more}}


def bedrock(schema: Any) -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": text}}}}}


def cohere(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_object", "json_schema": schema}}


LIMITED = {**CLOSED, "properties": {"a": {"type": "string", "minLength": 3}}}
CASES = [
    # wire, provider, model, fields, whether they are accepted
    ("openai-chat", "openai", "gpt-5", chat(CLOSED), True),
    ("openai-chat", "openai", "gpt-5", chat(OPEN), False),
    ("openai-chat", "openai", "gpt-5", chat(OPEN, strict=False), True),
    ("openai-chat", "openai", "gpt-5", chat({"type": "array", "items": {"type": "string"}}, strict=False), False),
    ("openai-chat", "openai", "gpt-5", chat(CLOSED, name="two words"), False),
    ("openai-chat", "openai", "gpt-5", chat({**CLOSED, "properties": {"a": {"oneOf": []}}}), False),
    ("openai-chat", "openai", "gpt-4", chat(CLOSED), False),
    ("openai-chat", "openai", "gpt-4", {"response_format": {"type": "json_object"}}, True),
    ("openai-chat", "xai", "grok-3", {**chat(CLOSED), "tools": "tools"}, False),
    ("openai-chat", "xai", "grok-4", {**chat(CLOSED), "tools": "tools"}, True),
    ("openai-responses", "openai", "gpt-5", responses(CLOSED), True),
    ("openai-responses", "openai", "gpt-5", responses(OPEN), False),
    ("openai-responses", "openai", "gpt-3.5-turbo", responses(CLOSED), False),
    ("anthropic-messages", "anthropic", "claude-sonnet-4-5", claude(CLOSED), True),
    ("anthropic-messages", "anthropic", "claude-sonnet-4-5", claude(OPEN), False),
    ("anthropic-messages", "anthropic", "claude-sonnet-4-5", claude(TREE), False),
    ("anthropic-messages", "anthropic", "claude-sonnet-4-5", claude(LIMITED), False),
    ("anthropic-messages", "anthropic", "claude-3-7-sonnet", claude(CLOSED), False),
    ("gemini", "gemini", "gemini-2.5-pro", gemini(OPEN), True),
    ("gemini", "gemini", "gemini-2.5-pro", gemini(OPEN, responseMimeType="text/plain"), False),
    ("gemini", "gemini", "gemini-2.5-pro", gemini(OPEN, responseSchema=OPEN), False),
    ("gemini", "gemini", "gemini-2.5-pro", gemini({"type": "string", "const": "a"}), False),
    ("gemini", "gemini", "gemini-2.5-pro", {**gemini(OPEN), "tools": "tools"}, False),
    ("gemini", "gemini", "gemini-3-pro", {**gemini(OPEN), "tools": "tools"}, True),
    ("cohere-v2", "cohere", "command-a", cohere(OPEN), True),
    ("cohere-v2", "cohere", "command-a", cohere({"type": "object", "properties": {}}), False),
    ("cohere-v2", "cohere", "command-a", {**cohere(OPEN), "tools": "tools"}, False),
    ("ollama", "ollama", "qwen3", {"format": OPEN}, True),
    ("ollama", "ollama", "qwen3", {"format": "json"}, True),
    ("ollama", "ollama", "qwen3", {"format": "xml"}, False),
    ("bedrock-converse", "bedrock", "anthropic.claude-sonnet-4-5-v1:0", bedrock(CLOSED), True),
    ("bedrock-converse", "bedrock", "anthropic.claude-sonnet-4-5-v1:0", bedrock(OPEN), False),
    ("bedrock-converse", "bedrock", "anthropic.claude-sonnet-4-5-v1:0", bedrock("no schema"), False),
    ("bedrock-converse", "bedrock", "amazon.nova-pro-v1:0", bedrock(CLOSED), False),
]


@pytest.mark.parametrize(("wire", "provider", "model", "fields", "accepted"), CASES)
def test_servers_for_tests_refuse_what_the_provider_refuses(
    wire: str, provider: str, model: str, fields: Mapping[str, Any], accepted: bool
) -> None:
    tools = (TOOL,) if "tools" in fields else ()
    body = find_wire(wire).encode_request(Request((User.of("Hello."),), tools, model=model))
    given = {key: value for key, value in fields.items() if key != "tools"}
    refused = check_request(wire, {**body, **given}, provider=provider, model=model)
    assert (refused == []) is accepted, refused


LEAVES = st.sampled_from(
    [str, int, float, bool, None, int | None, Literal["a", "b"], Any, dict[str, int], tuple[int, str], str | int]
)
NAMES = ("a", "b", "c")


def model_of(kinds: list[tuple[Any, bool]]) -> Any:
    fields: dict[str, Any] = {
        name: (kind | None, None) if optional and isinstance(kind, type) else (kind, Field(description="A field."))
        for name, (kind, optional) in zip(NAMES, kinds, strict=False)
    }
    return create_model("Model", **fields)


TYPES = st.recursive(
    LEAVES,
    lambda inner: (
        inner.filter(lambda kind: kind is not None).map(lambda kind: list[kind])
        | st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(model_of)
    ),
    max_leaves=6,
)


@dataclass(frozen=True)
class Asked:
    wire: str
    provider: str
    model: str


MODELS = [
    Asked("openai-chat", "openai-chat", "gpt-5"),
    Asked("openai-responses", "openai-responses", "gpt-5"),
    Asked("anthropic-messages", "anthropic", "claude-sonnet-4-5"),
    Asked("gemini", "gemini", "gemini-3-pro"),
    Asked("cohere-v2", "cohere", "command-a"),
    Asked("ollama", "ollama", "qwen3"),
    Asked("bedrock-converse", "bedrock", "anthropic.claude-sonnet-4-5-v1:0"),
]


@given(TYPES)
def test_every_provider_accepts_what_is_written_for_any_type(kind: Any) -> None:
    output = OutputSchema(Output(kind).schema)
    for asked in MODELS:
        request = Request((User.of("Hello."),), output=output, model=asked.model)
        body = find_wire(asked.wire).encode_request(request)
        refused = check_request(asked.wire, body, provider=asked.provider, model=asked.model)
        assert refused == [], (asked, refused)
        if asked.wire.startswith(("openai", "gemini", "ollama")):
            assert why_not_native(asked.wire, asked.provider, asked.model, output, beside_tools=False) == ""


@given(TYPES)
def test_the_forms_of_a_schema_are_what_they_promise_to_be(kind: Any) -> None:
    schema = Output(kind).schema
    before = json.dumps(schema)
    strict, closed = strict_form(schema), claude_form(schema)
    assert json.dumps(schema) == before
    assert strict is None or is_strict(strict)
    assert strict is None or closed is not None or "$ref" in before
    for form in (strict, closed):
        assert form is None or form.keys() >= {"type", "properties"}


def test_a_property_without_a_default_stays_optional_and_is_not_strict() -> None:
    optional = {**CLOSED, "required": []}
    assert strict_form(optional) is None
    nullable = {**optional, "properties": {"a": {"type": ["string", "null"]}}}
    assert strict_form(nullable) == {**nullable, "required": ["a"]}


def test_what_a_strict_schema_cannot_say_is_in_the_description() -> None:
    schema = TypeAdapter(create_model("M", a=(str, Field(min_length=2, description="A name.")))).json_schema()
    strict = strict_form(schema)
    assert strict is not None
    assert strict["properties"]["a"]["description"] == "A name. (minLength: 2)"
