"""Random requests of a client of one wire to a model of another: the provider accepts what it is sent, by our rules and
by the shared schemas and rules where they are present, and every field of the client arrives or is named."""

from __future__ import annotations

import importlib.util
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from unbroken import connect
from unbroken.models.http import HTTPModel, Written
from unbroken.testing.server import find_refusals
from unbroken.wires import find_wire
from unbroken.wires.body_paths import find
from unbroken.wires.crossing import Name

Object = dict[str, Any]

SHARED = Path(os.environ.get("UNBROKEN_PROVIDERS", Path(__file__).parents[3] / "shared" / "providers"))
WIRES = ["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
MODELS = {
    "openai-chat": [
        "openai-chat:gpt-4.1",
        "openai-chat:gpt-5",
        "openai-chat:gpt-5.1",
        "openai-chat:o3",
        "azure:gpt-4o",
    ],
    "openai-responses": ["openai:gpt-4.1", "openai:gpt-5", "openai:gpt-5.1", "openai:o3"],
    "anthropic-messages": [
        *("anthropic:claude-sonnet-4-5", "anthropic:claude-opus-4-6", "anthropic:claude-opus-4-7"),
        *("anthropic:claude-3-7-sonnet-latest", "anthropic:claude-sonnet-5"),
    ],
    "gemini": ["gemini:gemini-2.5-flash", "gemini:gemini-3-pro-preview", "gemini:gemini-2.0-flash"],
}
CITY: Object = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMAS: list[Object] = [
    CITY,
    {**CITY, "additionalProperties": False},
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maxLength": 3}, "inner": CITY}},
    {"type": "object", "properties": {"all": {"type": "array", "items": CITY, "minItems": 2}}, "required": ["all"]},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "$schema": "x"},
    {"type": "array", "items": {"type": "string"}},
]
schemas = st.sampled_from(SCHEMAS)
flags = st.booleans()
names = st.sampled_from(["a", "user_1", "Weather of today"])
tokens = st.integers(1, 300_000)
fractions = st.sampled_from([0, 0.3, 0.97, 1])
stops = st.lists(st.sampled_from(["END", "STOP", "###"]), min_size=1, max_size=3, unique=True)
metadata = st.dictionaries(st.sampled_from(["team", "run"]), names, min_size=1)
efforts = st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"])


def openai_format(nested: bool) -> st.SearchStrategy[Object]:
    def build(kind: str, name: str, schema: Object, strict: bool | None) -> Object:
        if kind != "json_schema":
            return {"type": kind}
        named = {"name": name.replace(" ", "_"), "schema": schema} | ({} if strict is None else {"strict": strict})
        return {"type": kind, "json_schema": named} if nested else {"type": kind, **named}

    kinds = st.sampled_from(["json_schema", "json_object"])
    return st.builds(build, kinds, names, schemas, st.sampled_from([None, True, False]))


FUNCTION: Object = {"name": "look", "description": "Looks.", "parameters": CITY}
OPENAI: dict[str, st.SearchStrategy[Any]] = {
    "temperature": fractions,
    "top_p": fractions,
    "user": names,
    "safety_identifier": names,
    "prompt_cache_key": names,
    "prompt_cache_retention": st.sampled_from(["24h", "in_memory"]),
    "metadata": metadata,
    "service_tier": st.sampled_from(["auto", "default", "flex", "priority"]),
    "store": flags,
    "parallel_tool_calls": flags,
    "top_logprobs": st.integers(1, 5),
    "unheard_of": st.just({"a": 1}),
}
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "openai-chat": {
        **OPENAI,
        "max_tokens": tokens,
        "max_completion_tokens": tokens,
        "stop": stops | st.just("END"),
        "seed": st.integers(0, 99),
        "frequency_penalty": fractions,
        "presence_penalty": fractions,
        "logprobs": st.just(True),
        "logit_bias": st.just({"50256": -100}),
        "reasoning_effort": efforts,
        "verbosity": st.sampled_from(["low", "medium", "high"]),
        "response_format": openai_format(nested=True),
        "tools": st.just([{"type": "function", "function": FUNCTION}]),
        "tool_choice": st.sampled_from(
            ["auto", "none", "required", {"type": "function", "function": {"name": "look"}}]
        ),
        "web_search_options": st.just({"search_context_size": "low"}),
        "n": st.just(2),
        "prediction": st.just({"type": "content", "content": "a"}),
    },
    "openai-responses": {
        **OPENAI,
        "max_output_tokens": st.integers(16, 300_000),
        "reasoning": st.fixed_dictionaries({"effort": efforts, "summary": st.just("auto")}),
        "text": st.fixed_dictionaries({"format": openai_format(nested=False), "verbosity": st.just("low")}),
        "tools": st.lists(
            st.sampled_from(
                [
                    {"type": "function", "strict": False, **FUNCTION},
                    {"type": "custom", "name": "patch", "description": "Edits."},
                    {"type": "web_search", "search_context_size": "low"},
                    {"type": "code_interpreter", "container": {"type": "auto"}},
                    {"type": "file_search", "vector_store_ids": ["vs_1"]},
                ]
            ),
            min_size=1,
            unique_by=lambda tool: tool["type"],
        ),
        "truncation": st.just("auto"),
        "include": st.just(["message.output_text.logprobs"]),
        "max_tool_calls": st.integers(1, 5),
    },
    "anthropic-messages": {
        "max_tokens": tokens,
        "temperature": fractions,
        "top_p": fractions,
        "top_k": st.integers(1, 50),
        "stop_sequences": stops,
        "thinking": st.sampled_from(
            [{"type": "adaptive"}, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 2000}]
        ),
        "metadata": st.just({"user_id": "user_1"}),
        "service_tier": st.sampled_from(["auto", "standard_only"]),
        "output_config": st.fixed_dictionaries(
            {
                "format": st.fixed_dictionaries({"type": st.just("json_schema"), "schema": schemas}),
                "effort": st.just("low"),
            }
        ),
        "tools": st.lists(
            st.sampled_from(
                [
                    {"name": "look", "description": "Looks.", "input_schema": CITY},
                    {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
                    {"type": "code_execution_20250825", "name": "code_execution"},
                    {"type": "bash_20250124", "name": "bash"},
                ]
            ),
            min_size=1,
            unique_by=lambda tool: tool["name"],
        ),
        "tool_choice": st.sampled_from([{"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}]),
        "context_management": st.just({"edits": [{"type": "clear_tool_uses_20250919"}]}),
        "container": st.just("container_1"),
    },
    "gemini": {
        "generationConfig.maxOutputTokens": tokens,
        "generationConfig.temperature": fractions,
        "generationConfig.topP": fractions,
        "generationConfig.topK": st.integers(1, 40),
        "generationConfig.stopSequences": stops,
        "generationConfig.seed": st.integers(0, 99),
        "generationConfig.frequencyPenalty": fractions,
        "generationConfig.presencePenalty": fractions,
        "generationConfig.responseLogprobs": st.just(True),
        "generationConfig.candidateCount": st.just(2),
        "generationConfig.responseJsonSchema": schemas,
        "generationConfig.thinkingConfig": st.sampled_from([{"thinkingBudget": 2048}, {"thinkingLevel": "low"}]),
        "generationConfig.mediaResolution": st.just("MEDIA_RESOLUTION_LOW"),
        "safetySettings": st.just([{"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "BLOCK_NONE"}]),
        "labels": metadata,
        "serviceTier": st.sampled_from(["standard", "flex", "priority"]),
        "tools": st.lists(
            st.sampled_from([{"functionDeclarations": [FUNCTION]}, {"googleSearch": {}}, {"googleMaps": {}}]),
            min_size=1,
            unique_by=str,
        ),
        "toolConfig": st.sampled_from([{"functionCallingConfig": {"mode": mode}} for mode in ("AUTO", "ANY", "NONE")]),
    },
}
HI: dict[str, Object] = {
    "openai-chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "openai-responses": {"model": "m", "input": "Hi"},
    "anthropic-messages": {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}


def body_of(client: str, fields: Object) -> Object:
    body = dict(HI[client])
    for path, value in fields.items():
        first, _, second = path.partition(".")
        if second:
            body[first] = {**body.get(first, {}), second: value}
        else:
            body[first] = value
    if "generationConfig" in body and "responseJsonSchema" in body["generationConfig"]:
        body["generationConfig"]["responseMimeType"] = "application/json"
    return body


def asked_of(client: str) -> st.SearchStrategy[Object]:
    return st.fixed_dictionaries({}, optional=FIELDS[client]).map(lambda fields: body_of(client, fields))


DEFAULTS = [
    ("parallel_tool_calls", True),
    ("tool_choice", "auto"),
    ("toolConfig", {"functionCallingConfig": {"mode": "AUTO"}}),
]
"""What every model does if it is not told otherwise."""


@cache
def shared() -> Any:
    spec = importlib.util.spec_from_file_location("providers_check", SHARED / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.load()


@cache
def schema_of(wire: str) -> Any:
    path = SHARED / "schemas" / f"{wire}.request.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text("utf-8"))) if path.exists() else None


def connected(model: str) -> HTTPModel:
    more: Object = {"base_url": "https://a.openai.azure.com"} if model.startswith("azure:") else {}
    return connect(model, api_key="key", **more).model


def refusals(model: str, body: Object) -> list[str]:
    """Why the provider would refuse this body."""
    endpoint, data = connected(model).endpoint, json.loads(json.dumps(body))
    headers = {key.lower(): value for key, value in endpoint.headers}
    found = find_refusals(endpoint.wire, data, endpoint.vendor, endpoint.model, headers)
    refused = [refusal.message for refusal in found]
    if (validator := schema_of(endpoint.wire)) is not None:
        refused += [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(data)]
        module, rules = shared()
        asked = {"wire": endpoint.wire, "provider": endpoint.vendor.removesuffix("-chat"), "model": endpoint.model}
        broken = module.broken({**asked, "body": data, "headers": headers, "stream": True}, rules)
        refused += [rule["id"] for rule in broken]
    return refused


def sent(model: str, client: str, body: Object) -> Written:
    """What the model is sent. The provider accepts it."""
    written = connected(model).prepare(find_wire(client).decode_request(json.loads(json.dumps(body))))
    assert refusals(model, written.body) == [], written.body
    return written


def arrives(path: str, client: str, model: str, written: Written) -> bool:
    """Whether a field of the client is in the model's body, in the words of its wire, or is named as left out."""
    if any(name == path or name.startswith(f"{path}.") for name in written.left_out):
        return True
    path = path.replace("responseJsonSchema", "responseMimeType")  # one setting
    here, there = find_wire(client).crossing(), find_wire(model).crossing()
    assert here is not None
    assert there is not None
    settings: list[Name] = [
        name
        for name, places in here.places.items()
        if any(place == path or place.startswith((f"{path}.", f"{path}[", f"{path}{{")) for place in places)
    ]
    return any(find(written.body, place) for name in settings for place in there.places.get(name, ()))


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("client", WIRES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data())
def test_every_field_of_a_client_arrives_or_is_named(client: str, model: str, data: st.DataObject) -> None:
    body = data.draw(asked_of(client))
    name = data.draw(st.sampled_from(MODELS[model]))
    # On its own wire a client may send what its provider refuses; that is then said by the provider.
    assume(client != model or not refusals(name, {**body, "model": name.partition(":")[2]}))
    written = sent(name, client, body)
    if client == model:
        return
    for key, value in body.items():
        if (key in HI[client] and key != "max_tokens") or (key, value) in DEFAULTS:
            continue
        paths = [f"{key}.{inner}" for inner in value] if key == "generationConfig" else [key]
        for path in paths:
            if path == "generationConfig.responseMimeType":
                continue  # said by the schema
            assert path == "tools" or arrives(path, client, model, written), (path, written.left_out, written.body)
        if key == "tools":
            check_tools(value, written)


def check_tools(tools: list[Object], written: Written) -> None:
    """Each tool is offered, in some form, or is named."""
    known = {"function": "look", "custom": "patch", "web_search": "web_search", "code_interpreter": "code"}
    text = json.dumps(written.body.get("tools", [])) + json.dumps(written.body.get("web_search_options", ""))
    for tool in tools:
        kind = str(tool.get("type") or next(iter(tool)))
        if kind in ("function", "name", "functionDeclarations"):
            assert '"look"' in text, written.body
        elif kind == "custom":
            assert f'"{known[kind]}"' in text, written.body
        elif not any(name.startswith(f"tools.{kind}") for name in written.left_out):
            assert any(word in text for word in ("web_search", "googleSearch", "code", "search_context_size")), kind
