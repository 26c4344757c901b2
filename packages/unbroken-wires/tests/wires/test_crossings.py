"""Settings of a client reach a model of another wire in that wire's own words, and what does not arrive is named."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from checkout import DOCS

from unbroken import Assistant, Request, Sampling, User, connect
from unbroken.models.request_writer import Written
from unbroken_testing.server import find_refusals
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.body_paths import find
from unbroken_wires.wires.crossing import Name

MODELS = {
    "openai-chat": "openai-chat:gpt-4.1",
    "openai-responses": "openai:gpt-4.1",
    "anthropic-messages": "anthropic:claude-sonnet-4-5",
    "gemini": "gemini:gemini-3-pro-preview",
    "ollama": "ollama:qwen3",
    "cohere-v2": "cohere:command-a-03-2025",
    "bedrock-converse": "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {"city": {"type": "string"}, "note": {"type": "string"}}, "required": ["city"]}
HI: dict[str, dict[str, Any]] = {
    "openai-chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "openai-responses": {"model": "m", "input": "Hi"},
    "anthropic-messages": {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    "ollama": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "cohere-v2": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "bedrock-converse": {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
}
WIRES = list(HI)
NEEDS_SCHEMA = ("anthropic-messages", "bedrock-converse")


def sent(client: str, model: str, fields: dict[str, Any]) -> Written:
    """What a model is sent for a client's request with these fields."""
    request = find_wire(client).decode_request({**HI[client], **fields})
    more: dict[str, Any] = {"wire": model} if model in MODELS else {}
    if model == "bedrock-converse":
        more["location"] = "eu-west-1"
    http = connect(MODELS.get(model, model), api_key="key", **more).model
    written = http.prepare(request)
    endpoint = http.endpoint
    headers = {key.lower(): value for key, value in endpoint.headers}
    refused = find_refusals(endpoint.wire, written.body, endpoint.vendor, endpoint.model, headers)
    assert [refusal.message for refusal in refused] == []
    return written


def asking_for(wire: str, schema: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """The fields with which a client of this wire asks for structured output."""
    match wire:
        case "openai-chat" if schema is None:
            return {"response_format": {"type": "json_object"}}
        case "openai-chat":
            named = {"name": "weather", "schema": schema, **more}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case "openai-responses" if schema is None:
            return {"text": {"format": {"type": "json_object"}}}
        case "openai-responses":
            return {"text": {"format": {"type": "json_schema", "name": "weather", "schema": schema, **more}}}
        case "anthropic-messages":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        case "ollama":
            return {"format": schema or "json"}
        case "cohere-v2":
            return {"response_format": {"type": "json_object", **({"json_schema": schema} if schema else {})}}
        case "bedrock-converse":
            named = {"schema": json.dumps(schema), "name": "weather"}
            return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": named}}}}
        case _:
            asked = {} if schema is None else {"responseJsonSchema": schema}
            return {"generationConfig": {"responseMimeType": "application/json", **asked}}


def structured(wire: str, body: dict[str, Any]) -> Any:
    """The schema in a body; True for JSON without one, None if the body does not ask for JSON."""
    match wire:
        case "openai-chat":
            format = body.get("response_format", {})
            return format.get("json_schema", {}).get("schema") or (format.get("type") == "json_object" or None)
        case "openai-responses":
            format = body.get("text", {}).get("format", {})
            return format.get("schema") or (format.get("type") == "json_object" or None)
        case "anthropic-messages":
            return body.get("output_config", {}).get("format", {}).get("schema")
        case "ollama":
            return True if body.get("format") == "json" else body.get("format")
        case "cohere-v2":
            format = body.get("response_format", {})
            return format.get("json_schema") or (format.get("type") == "json_object" or None)
        case "bedrock-converse":
            format = body.get("outputConfig", {}).get("textFormat", {})
            return json.loads(format["structure"]["jsonSchema"]["schema"]) if format else None
        case _:
            config = body.get("generationConfig", {})
            asked = config.get("responseMimeType") == "application/json"
            return (config.get("responseJsonSchema") or True) if asked else None


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("client", WIRES)
def test_a_schema_for_the_answer_reaches_every_wire(client: str, model: str) -> None:
    written = sent(client, model, asking_for(client, SCHEMA))
    assert structured(model, written.body) == SCHEMA
    assert written.left_out == ()


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("client", [wire for wire in WIRES if wire not in NEEDS_SCHEMA])
def test_json_without_a_schema_arrives_or_is_named_as_left_out(client: str, model: str) -> None:
    written = sent(client, model, asking_for(client, None))
    names = {
        "openai-chat": "response_format",
        "openai-responses": "text.format",
        "gemini": "generationConfig.responseMimeType",
        "ollama": "format",
        "cohere-v2": "response_format",
    }
    if model in NEEDS_SCHEMA:
        assert written.left_out == (names[client],)
    else:
        assert structured(model, written.body) is True
        assert written.left_out == ()


@pytest.mark.parametrize(
    ("client", "model"), [("openai-chat", "openai-responses"), ("openai-responses", "openai-chat")]
)
@pytest.mark.parametrize("strict", [True, False])
def test_name_description_and_strictness_stay_between_the_wires_of_openai(
    client: str, model: str, strict: bool
) -> None:
    written = sent(client, model, asking_for(client, SCHEMA, strict=strict, description="The weather."))
    body = written.body
    format = body["text"]["format"] if model == "openai-responses" else body["response_format"]["json_schema"]
    assert (format["name"], format["description"], format["strict"]) == ("weather", "The weather.", strict)


@pytest.mark.parametrize("client", ["anthropic-messages", "gemini"])
def test_an_answer_is_strict_if_its_schema_allows_that(client: str) -> None:
    exact = sent(client, "openai-chat", asking_for(client, SCHEMA)).body["response_format"]["json_schema"]
    assert exact["strict"] is True
    loose = sent(client, "openai-chat", asking_for(client, OPEN)).body["response_format"]["json_schema"]
    assert (loose["strict"], loose["schema"]) == (False, OPEN)


def test_a_schema_of_gemini_without_additional_properties_is_closed_for_openai() -> None:
    schema = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}
    config = {"response_mime_type": "application/json", "response_schema": schema}
    format = sent("gemini", "openai-responses", {"generationConfig": config}).body["text"]["format"]
    closed = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    assert format["schema"] == {**closed, "additionalProperties": False}
    assert format["strict"] is True


def test_objects_are_closed_for_anthropic_and_limits_become_part_of_the_description() -> None:
    rated = {"type": "integer", "minimum": 1, "maximum": 5, "description": "The rating"}
    schema = {"type": "object", "properties": {"rating": rated, "inner": OPEN}, "required": ["rating"]}
    found = structured(
        "anthropic-messages",
        sent("openai-chat", "anthropic-messages", asking_for("openai-chat", schema)).body,
    )
    assert found["additionalProperties"] is False
    assert found["properties"]["inner"]["additionalProperties"] is False
    assert found["properties"]["rating"] == {"type": "integer", "description": "The rating (minimum: 1, maximum: 5)"}


def test_the_beta_spelling_of_anthropic_is_read_too() -> None:
    format = {"type": "json_schema", "schema": SCHEMA}
    written = sent("anthropic-messages", "gemini", {"output_format": format})
    assert structured("gemini", written.body) == SCHEMA
    assert written.left_out == ()


@pytest.mark.parametrize("model", ["openai-chat", "openai-responses"])
def test_a_list_as_the_answer_is_named_as_left_out_for_openai(model: str) -> None:
    fields = asking_for("gemini", {"type": "array", "items": {"type": "string"}})
    written = sent("gemini", model, fields)
    assert structured(model, written.body) is None
    assert written.left_out == ("generationConfig.responseJsonSchema",)


def test_models_that_refuse_json_beside_functions_keep_their_functions() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": OPEN}}
    fields = {**asking_for("openai-chat", SCHEMA), "tools": [tool]}
    older = sent("openai-chat", "gemini:gemini-2.5-flash", fields)
    assert structured("gemini", older.body) is None
    assert older.left_out == ("response_format",)
    assert structured("gemini", sent("openai-chat", "gemini", fields).body) == SCHEMA


def test_claude_models_without_structured_output_are_asked_without_it() -> None:
    written = sent("openai-chat", "anthropic:claude-3-7-sonnet-latest", asking_for("openai-chat", SCHEMA))
    assert written.left_out == ("response_format",)


@pytest.mark.parametrize(
    ("model", "place", "most"), [("openai-chat", "stop", 4), ("gemini", "generationConfig.stopSequences", 5)]
)
def test_more_stop_sequences_than_the_provider_takes_are_named(model: str, place: str, most: int) -> None:
    stops = ["a", "b", "c", "d", "e", "f"]
    written = sent("anthropic-messages", model, {"stop_sequences": stops})
    assert find(written.body, place)[0][1] == stops[:most]
    assert written.left_out == ("stop_sequences",)


SEARCHES: dict[str, dict[str, Any]] = {
    "openai-chat": {"web_search_options": {}},
    "openai-responses": {"tools": [{"type": "web_search"}]},
    "anthropic-messages": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "gemini": {"tools": [{"googleSearch": {}}]},
}
CODE: dict[str, dict[str, Any]] = {
    "openai-responses": {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    "anthropic-messages": {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    "gemini": {"tools": [{"codeExecution": {}}]},
}
PAGES: dict[str, dict[str, Any]] = {
    "anthropic-messages": {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    "gemini": {"tools": [{"urlContext": {}}]},
}


@pytest.mark.parametrize("tools", [SEARCHES, CODE, PAGES], ids=["search", "code", "pages"])
@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("client", WIRES)
def test_a_tool_of_the_provider_is_the_same_tool_of_another_provider(
    client: str, model: str, tools: dict[str, dict[str, Any]]
) -> None:
    if client not in tools:
        return
    name = "openai-chat:gpt-4o-search-preview" if model == "openai-chat" else model
    written = sent(client, name, tools[client])
    field = next(iter(tools.get(model, {"tools": []})))
    assert written.body.get(field) == tools.get(model, {}).get(field)
    assert bool(written.left_out) == (model not in tools)


@pytest.mark.parametrize("model", ["anthropic-messages", "bedrock-converse"])
@pytest.mark.parametrize(("limit", "budget"), [(500, None), (1025, 1024), (4000, 2976), (30000, 24576)])
def test_a_clients_token_limit_is_never_raised_for_thinking(model: str, limit: int, budget: int | None) -> None:
    written = sent("openai-chat", model, {"reasoning_effort": "high", "max_tokens": limit})
    body = written.body
    fields = body.get("additionalModelRequestFields", {}) if model == "bedrock-converse" else body
    most = body["inferenceConfig"]["maxTokens"] if model == "bedrock-converse" else body["max_tokens"]
    assert most == limit
    assert fields.get("thinking", {}).get("budget_tokens") == budget
    assert written.left_out == (() if budget == 24576 else ("reasoning_effort",))


ATTACHED: dict[str, list[dict[str, Any]]] = {
    "anthropic-messages": [
        {
            "type": "search_result",
            "source": "https://example.org",
            "title": "Fish",
            "content": [{"type": "text", "text": "Cod."}],
        },
        {
            "type": "document",
            "title": "Pets",
            "source": {"type": "content", "content": [{"type": "text", "text": "Dog."}]},
        },
        {"type": "document", "title": "Wild", "source": {"type": "content", "content": "Elk."}},
    ],
    "bedrock-converse": [
        {"searchResult": {"source": "https://example.org", "title": "Fish", "content": [{"text": "Cod."}]}},
        {"document": {"format": "txt", "name": "Pets", "source": {"text": "Dog."}}},
        {"document": {"format": "txt", "name": "Wild", "source": {"content": [{"text": "Elk."}]}}},
    ],
}


@pytest.mark.parametrize("model", WIRES)
@pytest.mark.parametrize("client", ATTACHED)
def test_texts_that_are_attached_arrive_as_texts(client: str, model: str) -> None:
    text = {"type": "text", "text": "Hi"} if client == "anthropic-messages" else {"text": "Hi"}
    written = sent(client, model, {"messages": [{"role": "user", "content": [text, *ATTACHED[client]]}]})
    body = json.dumps(written.body)
    assert "https://example.org" in body
    for word in ("Cod.", "Dog.", "Elk."):
        assert word in body or base64.b64encode(word.encode()).decode() in body
    assert "cannot be passed on" not in body
    assert written.left_out == ()


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/fish.png"}}
PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}


@pytest.mark.parametrize(
    ("model", "part", "name"),
    [
        ("bedrock-converse", IMAGE, "messages.image"),
        ("ollama", IMAGE, "messages.image"),
        ("ollama", PDF, "messages.document"),
        ("cohere-v2", PDF, "messages.document"),
    ],
)
def test_an_attachment_that_cannot_cross_is_named(model: str, part: dict[str, Any], name: str) -> None:
    content = [{"type": "text", "text": "Hi"}, part]
    assert sent("openai-chat", model, {"messages": [{"role": "user", "content": content}]}).left_out == (name,)


def test_what_the_other_search_cannot_do_is_named() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "blocked_domains": ["a.com"]}
    search |= {"user_location": {"type": "approximate", "city": "Rome"}}
    written = sent("anthropic-messages", "openai-responses", {"tools": [search]})
    assert written.body["tools"] == [
        {"type": "web_search", "user_location": {"type": "approximate", "city": "Rome"}},
    ]
    assert written.left_out == ("tools.web_search_20250305.blocked_domains", "tools.web_search_20250305.max_uses")


def test_a_model_without_web_search_is_asked_without_it() -> None:
    assert sent("gemini", "openai-chat", SEARCHES["gemini"]).left_out == ("tools.googleSearch",)


@pytest.mark.parametrize("model", ["openai-chat", "anthropic-messages", "gemini"])
def test_tools_that_no_other_provider_has_are_named(model: str) -> None:
    tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}, {"type": "image_generation"}]
    written = sent("openai-responses", model, {"tools": tools})
    assert written.left_out == ("tools.file_search", "tools.image_generation")


@pytest.mark.parametrize("client", WIRES)
@pytest.mark.parametrize("model", WIRES)
def test_a_history_that_begins_with_the_assistant_is_accepted_everywhere(client: str, model: str) -> None:
    greeting = (Assistant("Hello, I am Ann."), User.of("Hi. Who are you?"))
    written = sent(client, model, find_wire(client).encode_request(Request(greeting, model="m")))
    said = json.dumps(written.body)
    assert said.index("I am Ann") < said.index("Who are you")
    assert ("speaks first" in said) == (model in ("anthropic-messages", "gemini", "bedrock-converse"))
    assert [name for name in written.left_out if name.endswith("[0]")] == (
        ["contents[0]" if model == "gemini" else "messages[0]"] if "speaks first" in said else []
    )


def test_an_agent_reports_what_was_put_before_the_assistants_message() -> None:
    model = connect("anthropic:claude-sonnet-4-5", api_key="key").model
    written = model.prepare(Request((Assistant("Hello, I am Ann."), User.of("Hi."))))
    assert [message["role"] for message in written.body["messages"]] == ["user", "assistant", "user"]
    assert written.left_out == ("messages[0]",)


@pytest.mark.parametrize(
    ("model", "fields", "include"),
    [
        ("openai:gpt-5", {"store": False}, ["reasoning.encrypted_content"]),
        ("openai:gpt-5", {"store": False, "reasoning_effort": "low"}, ["reasoning.encrypted_content"]),
        ("openai:gpt-5.1", {"store": False, "reasoning_effort": "none"}, None),
        ("openai:gpt-5", {}, None),
        ("openai:gpt-4.1", {"store": False}, None),
    ],
)
def test_a_client_that_forbids_storing_keeps_the_reasoning_of_the_responses_api(
    model: str, fields: dict[str, Any], include: list[str] | None
) -> None:
    written = sent("openai-chat", model, fields)
    assert written.body.get("include") == include
    assert written.left_out == ()


ROWS: dict[Name, str] = {
    "max_tokens": "most tokens of the answer",
    "temperature": "temperature",
    "top_p": "top p",
    "top_k": "top k",
    "stop": "stop sequences",
    "seed": "seed",
    "frequency_penalty": "frequency penalty",
    "presence_penalty": "presence penalty",
    "effort": "reasoning effort",
    "output": "structured output",
    "verbosity": "verbosity",
    "choice": "tool choice",
    "allowed_tools": "choice of several tools",
    "strict": "arguments that follow the schema exactly",
    "parallel": "calls at once",
    "web_search": "web search by the provider",
    "web_fetch": "fetching of pages by the provider",
    "code_execution": "code run by the provider",
    "user": "user",
    "safety_identifier": "safety identifier",
    "metadata": "metadata",
    "service_tier": "service tier",
    "cache_key": "key of the prompt cache",
    "cache_retention": "retention of the prompt cache",
    "store": "storing of the answer",
}


def places(wire: str) -> Mapping[Name, tuple[str, ...]]:
    crossing = find_wire(wire).crossing()
    assert crossing is not None
    return crossing.places


def table() -> list[str]:
    """The table of docs/crossings.md, from the crossings themselves."""
    lines = ["| setting | " + " | ".join(WIRES) + " |", "|---" * (len(WIRES) + 1) + "|"]
    for name, words in ROWS.items():
        paths = [places(wire).get(name, ("-",))[0] for wire in WIRES]
        cells = [path if path == "-" else f"`{path}`".replace("|", "\\|") for path in paths]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return lines


def test_the_docs_have_the_table_of_what_crosses() -> None:
    page = (DOCS / "crossings.md").read_text("utf-8")
    assert "\n".join(table()) in page, "\n".join(table())
    assert set(ROWS) == set(get_args(Name))


@pytest.mark.parametrize(
    ("model", "left_out"),
    [
        ("openai-chat", ()),
        ("openai-responses", ("stop", "seed")),
        ("anthropic-messages", ("seed",)),
        ("gemini", ()),
        ("ollama", ("choice",)),
        ("cohere-v2", ()),
        ("bedrock-converse", ("seed",)),
    ],
)
def test_a_setting_of_ones_own_that_a_wire_lacks_is_named(model: str, left_out: tuple[str, ...]) -> None:
    more: dict[str, Any] = {"location": "eu-west-1"} if model == "bedrock-converse" else {}
    http = connect(MODELS[model], api_key="key", wire=model, **more).model
    sampling = Sampling(max_tokens=99, temperature=0.5, stop=("END",), seed=7)
    asked = Request((User.of("Hi"),), tools=(ToolSpec("look"),), choice="required", sampling=sampling, parallel=False)
    assert http.prepare(asked).left_out == left_out
