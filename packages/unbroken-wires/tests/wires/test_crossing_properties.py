"""Random requests of a client of one wire to a model of another: the provider accepts what it is sent, by our rules and
by the shared schemas and rules where they are present, and every field of the client arrives or is named."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from open_responses import FOLDER
from strategies import fewer, histories
from strategies_requests import CITY, GROUPS, HI, asked_of

from unbroken import Assistant, Text, ToolMessage, User, connect
from unbroken.models.http import HTTPModel
from unbroken.models.request_writer import Written
from unbroken_testing.server import find_refusals
from unbroken_wires.messages import Message, Request, ToolSpec
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.body_paths import find, shown
from unbroken_wires.wires.crossing import Name

Object = dict[str, Any]

MODELS = {
    "openai-chat": [
        "openai-chat:gpt-4.1",
        "openai-chat:gpt-5",
        "openai-chat:gpt-5.1",
        "openai-chat:o3",
        "azure:gpt-4o",
        "ollama:qwen3:4b",
        "cohere:command-a-03-2025",
    ],
    "openai-responses": ["openai:gpt-4.1", "openai:gpt-5", "openai:gpt-5.1", "openai:o3"],
    "anthropic-messages": [
        "anthropic:claude-sonnet-4-5",
        "anthropic:claude-opus-4-6",
        "anthropic:claude-opus-4-7",
        "anthropic:claude-3-7-sonnet-latest",
        "anthropic:claude-sonnet-5",
        "vertex-claude:claude-sonnet-4-5",
    ],
    "gemini": [
        "gemini:gemini-2.5-flash",
        "gemini:gemini-3-pro-preview",
        "gemini:gemini-2.0-flash",
        "vertex:gemini-2.5-flash",
    ],
    "ollama": ["ollama:qwen3:4b", "ollama:gpt-oss:20b", "ollama:llama3.2"],
    "cohere-v2": [
        "cohere:command-a-03-2025",
        "cohere:command-a-reasoning-08-2025",
        "cohere:command-r-plus-08-2024",
        "cohere:command-r7b-12-2024",
    ],
    "bedrock-converse": [
        "bedrock:anthropic.claude-3-7-sonnet-20250219-v1:0",
        "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "bedrock:global.anthropic.claude-opus-4-7",
        "bedrock:us.amazon.nova-2-lite-v1:0",
        "bedrock:amazon.nova-pro-v1:0",
        "bedrock:openai.gpt-oss-120b-1:0",
        "bedrock:meta.llama3-3-70b-instruct-v1:0",
    ],
}
OWN = ("openai", "openai-chat", "anthropic", "gemini")
"""The providers that the shared schemas are about."""
DEFAULTS: list[tuple[str, Any]] = [
    ("parallel_tool_calls", True),
    ("tool_choice", "auto"),
    ("strict_tools", False),
    ("toolConfig", {"functionCallingConfig": {"mode": "AUTO"}}),
    ("toolConfig.toolChoice", {"auto": {}}),
]
"""What every model does if it is not told otherwise."""


@cache
def shared() -> Any:
    spec = importlib.util.spec_from_file_location("providers_check", FOLDER.parent / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.load()


@cache
def schema_of(wire: str) -> Any:
    path = FOLDER / f"{wire}.request.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text("utf-8"))) if path.exists() else None


@cache
def connected(model: str, wire: str) -> HTTPModel:
    more: Object = {"base_url": "https://a.openai.azure.com"} if model.startswith("azure:") else {}
    more |= {"project": "p", "location": "us-east1"} if model.startswith("vertex") else {}
    more |= {"location": "us-east-1"} if model.startswith("bedrock:") else {}
    return connect(model, api_key="key", wire=wire, **more).model


def refusals(model: HTTPModel, body: Object) -> list[str]:
    """Why the provider would refuse this body."""
    endpoint, data = model.endpoint, json.loads(json.dumps(body))
    if endpoint.vendor == "vertex-claude":  # the model is in the URL
        assert data.pop("anthropic_version", None) or "model" in data
        data["model"] = endpoint.model
    headers = {key.lower(): value for key, value in endpoint.headers}
    found = find_refusals(endpoint.wire, data, endpoint.vendor, endpoint.model, headers)
    refused = [refusal.message for refusal in found]
    if endpoint.vendor in OWN and (validator := schema_of(endpoint.wire)) is not None:
        refused += [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(data)]
        module, rules = shared()
        asked = {"wire": endpoint.wire, "provider": endpoint.vendor.removesuffix("-chat"), "model": endpoint.model}
        broken = module.broken({**asked, "body": data, "headers": headers, "stream": True}, rules)
        refused += [rule["id"] for rule in broken]
    return refused


def sent(model: HTTPModel, client: str, body: Object) -> Written:
    """What the model is sent. The provider accepts it."""
    written = model.prepare(find_wire(client).decode_request(json.loads(json.dumps(body))))
    assert refusals(model, written.body) == [], written.body
    return written


def arrives(path: str, client: str, wire: str, written: Written) -> bool:
    """Whether a field of the client is in the model's body, in the words of its wire, or is named as left out."""
    own = path.replace("responseJsonSchema", "responseMimeType")  # one setting
    here, there = find_wire(client).crossing(), find_wire(wire).crossing()
    assert here is not None
    assert there is not None
    settings: list[Name] = [
        name
        for name, places in here.places.items()
        if any(place == own or place.startswith((f"{own}.", f"{own}[", f"{own}{{")) for place in places)
    ]
    # A setting that has several names on the client's wire is reported by the first of them.
    names = {path, *(shown(here.places[name][0]) for name in settings)}
    if any(left == name or left.startswith(f"{name}.") for left in written.left_out for name in names):
        return True
    return any(find(written.body, place) for name in settings for place in there.places.get(name, ()))


few = settings(
    max_examples=fewer(10),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
"""There are 49 pairs."""


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize("client", MODELS)
@few
@given(data=st.data())
def test_every_field_of_a_client_arrives_or_is_named(client: str, wire: str, data: st.DataObject) -> None:
    body = data.draw(asked_of(client))
    model = connected(data.draw(st.sampled_from(MODELS[wire])), wire)
    # On its own wire a client may send what its provider refuses; that is then said by the provider.
    assume(client != wire or not refusals(model, {**body, "model": model.endpoint.model}))
    written = sent(model, client, body)
    if client == wire:
        return
    for key, value in body.items():
        if key in HI[client] and key != "max_tokens":
            continue
        for path, one in (
            [(f"{key}.{inner}", value[inner]) for inner in value] if key in GROUPS[client] else [(key, value)]
        ):
            if path in ("tools", "toolConfig.tools"):
                check_tools(one, written)
            elif path == "strict_tools" and "tools" not in body:
                continue  # about nothing
            elif path != "generationConfig.responseMimeType" and (path, one) not in DEFAULTS:  # the schema says it
                assert arrives(path, client, wire, written), (path, written.left_out, written.body)


def check_tools(tools: list[Object], written: Written) -> None:
    """Each tool is offered, in some form, or is named."""
    known = {"function": "look", "custom": "patch", "web_search": "web_search", "code_interpreter": "code"}
    config = written.body.get("toolConfig", {})
    text = json.dumps([written.body.get("tools", []), config, written.body.get("web_search_options", "")])
    for tool in tools:
        kind = str(tool.get("type") or next(iter(tool)))
        if kind in ("function", "name", "functionDeclarations", "toolSpec"):
            assert '"look"' in text, written.body
        elif kind == "cachePoint":
            continue  # saves money, and changes no answer
        elif kind == "custom":
            assert f'"{known[kind]}"' in text, written.body
        elif not any(name.startswith((f"tools.{kind}", "toolConfig.tools")) for name in written.left_out):
            assert any(word in text for word in ("web_search", "googleSearch", "code", "search_context_size")), kind


@given(data=st.data())
def test_every_word_of_a_history_arrives_beside_any_settings(data: st.DataObject) -> None:
    client, wire = data.draw(st.sampled_from(list(MODELS))), data.draw(st.sampled_from(list(MODELS)))
    model = connected(data.draw(st.sampled_from(MODELS[wire])), wire)
    messages = (*data.draw(histories()), User((Text("And now?"),)))
    called = {call.name: None for each in messages if isinstance(each, Assistant) for call in each.calls}
    tools = tuple(ToolSpec(name, "Looks.", CITY) for name in {"look": None, **called})
    history = find_wire(client).encode_request(Request(messages, tools, model="m"))
    body = {**data.draw(asked_of(client)), **history}
    assume(client != wire or not refusals(model, {**body, "model": model.endpoint.model}))
    written = sent(model, client, body)
    text = json.dumps(written.body, ensure_ascii=False)
    for message in messages:
        for word in words_of(message):
            assert json.dumps(word, ensure_ascii=False)[1:-1] in text, (word, written.body)


def words_of(message: Message) -> list[str]:
    match message:
        case Assistant():
            return [*([message.text] if message.text else []), *(call.name for call in message.calls)]
        case ToolMessage():
            return [part.text for result in message.results for part in result.content if isinstance(part, Text)]
        case _:
            return [part.text for part in message.parts if isinstance(part, Text)]
