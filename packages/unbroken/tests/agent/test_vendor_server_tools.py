"""Tools that the provider runs, requested from OpenRouter, Qwen, Zhipu, xAI and Amazon Nova: what is sent over HTTP to
servers as strict as the real ones, and the error, before anything is sent, where a provider lacks a tool."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from shared_rules import NEEDS_RULES, broken_rules, schema_errors

from unbroken import Agent, UserError, connect, tool
from unbroken_testing import Call, ScriptedServer, check_request
from unbroken_wires.messages import Assistant, Native, Request, ServerTool, User
from unbroken_wires.server_tools import CodeExecution, FileSearch, ImageGeneration, MCPConnector, WebFetch, WebSearch
from unbroken_wires.wires.openai_chat.chat_decoder import read_usage

CHAT, RESPONSES, CONVERSE = "openai-chat", "openai-responses", "bedrock-converse"
QWEN, ZHIPU, GROK = "qwen:qwen3-max", "zhipu:glm-4.6", "xai:grok-4"
ROUTED, NOVA = "openrouter:anthropic/claude-sonnet-4.5", "bedrock:us.amazon.nova-2-lite-v1:0"
DOMAINS, PLACE = ["yr.no", "met.no"], {"city": "Oslo"}


@tool(effect="read")
def pack(item: str) -> str:
    """Packs an item."""
    return f"packed: {item}"


def zhipu(**settings: str) -> dict[str, Any]:
    return {"type": "web_search", "web_search": {"enable": True, "search_engine": "search_pro_jina", **settings}}


def openrouter(name: str, **settings: Any) -> dict[str, Any]:
    return {"type": f"openrouter:{name}"} | ({"parameters": settings} if settings else {})


ROWS: list[tuple[str, str, ServerTool, Any]] = [
    (ROUTED, CHAT, WebSearch(), openrouter("web_search")),
    (ROUTED, RESPONSES, WebSearch(), openrouter("web_search")),
    (
        ROUTED,
        CHAT,
        WebSearch(search_context_size="low", user_location=PLACE),
        openrouter("web_search", search_context_size="low", user_location={"type": "approximate", "city": "Oslo"}),
    ),
    # The searches of some models ignore domains there; this engine keeps to them.
    (
        ROUTED,
        CHAT,
        WebSearch(allowed_domains=DOMAINS),
        openrouter("web_search", allowed_domains=DOMAINS, engine="exa"),
    ),
    (
        ROUTED,
        RESPONSES,
        WebSearch(blocked_domains=DOMAINS),
        openrouter("web_search", excluded_domains=DOMAINS, engine="exa"),
    ),
    (
        ROUTED,
        CHAT,
        WebFetch(allowed_domains=DOMAINS, max_uses=2, max_content_tokens=900),
        openrouter("web_fetch", allowed_domains=DOMAINS, max_uses=2, max_content_tokens=900),
    ),
    (QWEN, CHAT, WebSearch(), {"enable_search": True}),
    (ZHIPU, CHAT, WebSearch(), zhipu()),
    (
        ZHIPU,
        CHAT,
        WebSearch(allowed_domains=["yr.no"], search_context_size="high"),
        zhipu(search_domain_filter="yr.no", content_size="high"),
    ),
    (GROK, RESPONSES, WebSearch(), {"type": "web_search"}),
    (
        GROK,
        RESPONSES,
        WebSearch(allowed_domains=DOMAINS),
        {"type": "web_search", "filters": {"allowed_domains": DOMAINS}},
    ),
    (
        GROK,
        RESPONSES,
        WebSearch(blocked_domains=DOMAINS),
        {"type": "web_search", "filters": {"excluded_domains": DOMAINS}},
    ),
    (GROK, RESPONSES, CodeExecution(), {"type": "code_interpreter"}),
    (
        GROK,
        RESPONSES,
        FileSearch(stores=["collection_1"], max_results=3),
        {"type": "file_search", "vector_store_ids": ["collection_1"], "max_num_results": 3},
    ),
    (
        GROK,
        RESPONSES,
        MCPConnector("https://mcp.example.org/", "docs", token="t", tools=["find"]),
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://mcp.example.org/",
            "authorization": "t",
            "allowed_tools": ["find"],
        },
    ),
    ("bedrock:us.amazon.nova-premier-v1:0", CONVERSE, WebSearch(), {"systemTool": {"name": "nova_grounding"}}),
    (NOVA, CONVERSE, WebSearch(), {"systemTool": {"name": "nova_grounding"}}),
    (NOVA, CONVERSE, CodeExecution(), {"systemTool": {"name": "nova_code_interpreter"}}),
    ("openai:gpt-5.4", RESPONSES, WebSearch(user_location=PLACE), None),
    ("openai:gpt-5.4", RESPONSES, CodeExecution(files=["file_1"]), None),
    ("openai:gpt-5.4", RESPONSES, FileSearch(stores=["vs_1"], max_results=3), None),
    ("openai:gpt-5.4", RESPONSES, ImageGeneration(size="1024x1024"), None),
    ("openai:gpt-5.4", RESPONSES, MCPConnector("https://mcp.example.org/", "docs", tools=["find"]), None),
    ("openai:gpt-4o-search-preview", CHAT, WebSearch(user_location=PLACE), None),
]


@dataclass
class Exchange:
    """A run with a server tool and one of our own: both requests."""

    model: str
    wire: str
    tool: ServerTool
    expected: Any
    bodies: list[dict[str, Any]]
    headers: dict[str, str]

    def own_entry(self) -> Any:
        """What the request has for the server tool: beside functions in the list of tools, or as a field."""
        body = self.bodies[0]
        if self.expected == {"enable_search": True}:
            return {"enable_search": body["enable_search"]}
        tools = body["toolConfig"]["tools"] if self.wire == CONVERSE else body["tools"]
        (entry,) = [each for each in tools if "function" not in each and "toolSpec" not in each and "name" not in each]
        return entry


def connected(server: ScriptedServer, model: str, wire: str) -> Any:
    return connect(model, base_url=server.base_url(wire), api_key="k", wire=wire)


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    async def exchange(model: str, wire: str, asked: ServerTool, expected: Any) -> Exchange:
        provider = model.partition(":")[0]
        async with ScriptedServer([Call("pack", item="umbrella")], "Done.", provider=provider) as server:
            result = await Agent(connected(server, model, wire), tools=[asked, pack]).run("What should I pack?")
            assert (result.text, result.warnings) == ("Done.", ()), model
            return Exchange(model, wire, asked, expected, server.bodies, server.headers[0])

    async def all_of_them() -> list[Exchange]:
        return [await exchange(*row) for row in ROWS]

    return asyncio.run(all_of_them())


def test_each_provider_is_asked_in_its_own_words(exchanges: list[Exchange]) -> None:
    for each in exchanges:
        if each.expected is not None:
            assert each.own_entry() == each.expected, (each.model, each.tool)


def test_the_tool_is_offered_again_with_the_results_of_our_own_calls(exchanges: list[Exchange]) -> None:
    for each in exchanges:
        first, second = each.bodies
        for key in ("tools", "toolConfig", "enable_search", "web_search_options", "include"):
            assert first.get(key) == second.get(key), (each.model, each.tool)


@NEEDS_RULES
def test_the_requests_obey_the_shared_rules_and_schemas(exchanges: list[Exchange]) -> None:
    for each in exchanges:
        provider, _, model = each.model.partition(":")
        for body in each.bodies:
            assert broken_rules(each.wire, provider, model, body, each.headers, True) == [], (each.model, each.tool)
            if provider == "openai":
                assert schema_errors(each.wire, body) == [], (each.model, each.tool)


LACKING: list[tuple[str, str, ServerTool, str]] = [
    (ROUTED, CHAT, CodeExecution(), "CodeExecution: `openrouter:anthropic/.*` has no such tool.*choose another model"),
    (ROUTED, RESPONSES, FileSearch(stores=["a"]), "FileSearch: `openrouter:.*openai-responses.*another model"),
    (ROUTED, CHAT, WebSearch(max_uses=2), r"WebSearch\(max_uses=…\): `openrouter:.*leave the setting out"),
    (ROUTED, CHAT, WebSearch(allowed_domains=["a"], blocked_domains=["b"]), "openrouter:.*not both"),
    (QWEN, CHAT, WebFetch(), "WebFetch: `qwen:qwen3-max.*give a function that does it"),
    (
        QWEN,
        CHAT,
        WebSearch(allowed_domains=["a.org"]),
        r"allowed_domains=…\): `qwen:.*leave the setting out",
    ),
    ("qwen:qwen3-coder-plus", CHAT, WebSearch(), "WebSearch: `qwen:qwen3-coder-plus.*choose another model"),
    (ZHIPU, CHAT, MCPConnector("https://a.org", "a"), "MCPConnector: `zhipu:glm-4.6.*use MCPServer"),
    (ZHIPU, CHAT, WebSearch(allowed_domains=DOMAINS), r"allowed_domains=…\): `zhipu:"),
    (GROK, CHAT, WebSearch(), r'WebSearch: `xai:grok-4 \(openai-chat\)`.*connect\(…, wire="openai-responses"\)'),
    (GROK, CHAT, ImageGeneration(), "ImageGeneration: `xai:grok-4.*choose another model"),
    (GROK, RESPONSES, WebFetch(), "WebFetch: `xai:grok-4.*give a function that does it"),
    (GROK, RESPONSES, CodeExecution(files=["file_1"]), r"CodeExecution\(files=…\): `xai:"),
    ("bedrock:amazon.nova-pro-v1:0", CONVERSE, WebSearch(), "WebSearch: `bedrock:amazon.nova-pro.*another model"),
    ("bedrock:us.amazon.nova-premier-v1:0", CONVERSE, CodeExecution(), "CodeExecution: `bedrock:.*another model"),
    (
        "bedrock:anthropic.claude-sonnet-4-5-v1:0",
        CONVERSE,
        WebSearch(),
        r"WebSearch: `bedrock:anthropic.claude.*\(bedrock-converse\)`.*give a function",
    ),
    (NOVA, CONVERSE, WebSearch(blocked_domains=["a.org"]), r"blocked_domains=…\): `bedrock:"),
]


def test_what_a_provider_lacks_is_an_error_that_names_it_and_the_way_out_before_anything_is_sent() -> None:
    async def ask() -> int:
        async with ScriptedServer("Never asked.") as server:
            for model, wire, asked, words in LACKING:
                with pytest.raises(UserError, match=words):
                    await Agent(connected(server, model, wire), tools=[asked, pack]).run("Hi")
            return len(server.bodies) + len(server.strays)

    assert asyncio.run(ask()) == 0


def test_wishes_without_a_field_are_warnings() -> None:
    async def ask(model: str, wire: str) -> tuple[str, ...]:
        async with ScriptedServer("Done.", provider=model.partition(":")[0]) as server:
            search = WebSearch(user_location=PLACE, search_context_size="low")
            return (await Agent(connected(server, model, wire), tools=[search]).run("Hi")).warnings

    for model, wire in ((QWEN, CHAT), (GROK, RESPONSES), (NOVA, CONVERSE)):
        warnings = asyncio.run(ask(model, wire))
        assert ["user_location" in warnings[0], "search_context_size" in warnings[1]] == [True, True], model


def test_the_last_request_to_nova_still_has_the_tools_of_its_history() -> None:
    """Converse refuses a history with calls if there are no tools, also if it has made them itself."""
    use = {"toolUseId": "tooluse_1", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "Oslo"}}
    found = {"toolUseId": "tooluse_1", "type": "nova_grounding_result", "content": [{"text": "Rain"}]}
    searched = Assistant("Rain.", native=Native(CONVERSE, [{"toolUse": use}, {"toolResult": found}, {"text": "Rain."}]))
    asked = Request((User.of("Weather?"), searched, User.of("Sure?")), server_tools=(WebSearch(),), final=True)
    body = connect(NOVA, api_key="k", location="us-east-1").model.prepare(asked).body
    assert body["toolConfig"] == {"tools": [{"systemTool": {"name": "nova_grounding"}}]}
    assert check_request(CONVERSE, body, provider="bedrock", model="us.amazon.nova-2-lite-v1:0") == []


def test_searches_at_openrouter_are_counted() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "server_tool_use": {"web_search_requests": 3}}
    assert read_usage(usage).web_searches == 3


REFUSED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("openai", CHAT, "gpt-5", {"tools": [{"type": "web_search"}]}),
    ("openrouter", CHAT, "x/y", {"tools": [{"type": "web_fetch"}]}),
    ("zhipu", CHAT, "glm-4.6", {"tools": [{"type": "web_search", "web_search": {"enable": True}}]}),
    ("xai", CHAT, "grok-4", {"tools": [{"type": "web_search"}]}),
    ("qwen", CHAT, "qwen3-max", {"tools": [{"type": "web_search"}]}),
    ("xai", RESPONSES, "grok-4", {"tools": [{"type": "web_search", "filters": {"allowed_domains": ["a"] * 6}}]}),
    (
        "bedrock",
        CONVERSE,
        "amazon.nova-pro-v1:0",
        {"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}},
    ),
]


def test_the_fake_servers_of_these_providers_refuse_what_the_real_ones_refuse() -> None:
    for provider, wire, model, body in REFUSED:
        if wire == CONVERSE:
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
        else:
            asked = {"model": model, ("messages" if wire == CHAT else "input"): [{"role": "user", "content": "Hi"}]}
        assert check_request(wire, {**asked, **body}, provider=provider, model=model), (provider, body)
        assert check_request(wire, asked, provider=provider, model=model) == [], provider
