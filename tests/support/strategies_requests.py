"""Random requests of clients: the settings of each wire, spelled as its clients spell them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

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


def converse_format(name: str, schema: Object) -> Object:
    described = {"name": name.replace(" ", "_"), "schema": json.dumps(schema)}
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": described}}}


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
    "ollama": {
        "options.num_predict": tokens,
        "options.temperature": fractions,
        "options.top_p": fractions,
        "options.top_k": st.integers(1, 40),
        "options.stop": stops,
        "options.seed": st.integers(0, 99),
        "options.frequency_penalty": fractions,
        "options.presence_penalty": fractions,
        "options.num_ctx": st.just(8192),
        "options.repeat_penalty": st.just(1.1),
        "think": st.sampled_from([True, False, "low", "medium", "high"]),
        "format": st.just("json") | schemas,
        "keep_alive": st.sampled_from(["5m", -1]),
        "tools": st.just([{"type": "function", "function": FUNCTION}]),
    },
    "cohere-v2": {
        "max_tokens": tokens,
        "temperature": fractions,
        "p": st.sampled_from([0.01, 0.5, 0.99]),
        "k": st.integers(0, 500),
        "stop_sequences": stops,
        "seed": st.integers(0, 99),
        "frequency_penalty": fractions,
        "presence_penalty": fractions,
        "logprobs": st.just(True),
        "response_format": st.just({"type": "json_object"})
        | schemas.map(lambda schema: {"type": "json_object", "json_schema": schema}),
        "thinking": st.sampled_from(
            [{"type": "disabled"}, {"type": "enabled"}, {"type": "enabled", "token_budget": 2000}]
        ),
        "safety_mode": st.sampled_from(["CONTEXTUAL", "STRICT", "OFF"]),
        "citation_options": st.just({"mode": "FAST"}),
        "priority": st.integers(0, 9),
        "tools": st.just([{"type": "function", "function": FUNCTION}]),
        "strict_tools": flags,
        "tool_choice": st.sampled_from(["REQUIRED", "NONE"]),
    },
    "bedrock-converse": {
        "inferenceConfig.maxTokens": tokens,
        "inferenceConfig.temperature": fractions,
        "inferenceConfig.topP": fractions,
        "inferenceConfig.stopSequences": stops,
        "additionalModelRequestFields.top_k": st.integers(1, 50),
        "additionalModelRequestFields.thinking": st.sampled_from(
            [{"type": "adaptive"}, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 2000}]
        ),
        "additionalModelRequestFields.reasoningConfig": st.sampled_from(
            [{"type": "disabled"}, {"type": "enabled", "maxReasoningEffort": "low"}]
        ),
        "additionalModelRequestFields.reasoning_effort": st.sampled_from(["low", "high"]),
        "additionalModelRequestFields.anthropic_beta": st.just(["context-1m-2025-08-07"]),
        "additionalModelResponseFieldPaths": st.just(["/stop_sequence"]),
        "outputConfig": st.builds(converse_format, names, schemas),
        "requestMetadata": metadata,
        "serviceTier": st.sampled_from([{"type": tier} for tier in ("default", "flex", "priority", "reserved")]),
        "performanceConfig": st.just({"latency": "optimized"}),
        "toolConfig.tools": st.lists(
            st.sampled_from(
                [
                    {"toolSpec": {"name": "look", "description": "Looks.", "inputSchema": {"json": CITY}}},
                    {"systemTool": {"name": "nova_grounding"}},
                    {"cachePoint": {"type": "default"}},
                ]
            ),
            min_size=1,
            unique_by=str,
        ),
        "toolConfig.toolChoice": st.sampled_from([{"auto": {}}, {"any": {}}, {"tool": {"name": "look"}}]),
    },
}
HI: dict[str, Object] = {
    "openai-chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "openai-responses": {"model": "m", "input": "Hi"},
    "anthropic-messages": {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    "ollama": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "cohere-v2": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True},
    "bedrock-converse": {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
}


GROUPS: dict[str, tuple[str, ...]] = {
    wire: tuple({key.partition(".")[0] for key in fields if "." in key}) for wire, fields in FIELDS.items()
}
"""The objects of a body that only hold settings."""


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
