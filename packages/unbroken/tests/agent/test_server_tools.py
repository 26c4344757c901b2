"""Tools that the provider runs: requested in the words of each wire, reported as events, given back with the history,
counted. The servers are strict: they refuse what the real ones refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Conversation, Limits, Prices, RunView, ScriptedModel, UserError, connect, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.events import Event, ServerCallFinished, ServerCallStarted
from unbroken.tools.selection import select
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, End, ProviderCall, Say, ScriptedServer, Uses, check_request
from unbroken_wires.messages import Assistant, Native, Request, ServerCall, ServerTool, User
from unbroken_wires.server_tools import CodeExecution, FileSearch, ImageGeneration, MCPConnector, WebFetch, WebSearch
from unbroken_wires.wires import find_wire

ANTHROPIC, RESPONSES, GEMINI = "anthropic-messages", "openai-responses", "gemini"
MODELS = {
    ANTHROPIC: "anthropic:claude-sonnet-4-5",
    RESPONSES: "openai-responses:gpt-5.4",
    GEMINI: "gemini:gemini-3-flash-preview",
}
SEARCH = ProviderCall("web_search", {"query": "weather in Oslo"}, "Rain in Oslo")
QUERY = {"query": "weather in Oslo"}


@tool(effect="read")
def pack(item: str) -> str:
    """Packs an item."""
    return f"packed: {item}"


def agent_for(server: ScriptedServer, wire: str, tools: Sequence[Any], **options: Any) -> Agent:
    model = connect(MODELS[wire], base_url=server.base_url(wire), api_key="k")
    return Agent(model, tools=tools, **options)


async def run_on(wire: str, tools: Sequence[Any], *answers: Any) -> tuple[list[Event], ScriptedServer, Any]:
    events: list[Event] = []
    async with ScriptedServer(*answers) as server:
        result = await agent_for(server, wire, tools, sinks=[events.append]).run("What should I pack for Oslo?")
    return events, server, result


@pytest.mark.parametrize("wire", [ANTHROPIC, RESPONSES, GEMINI])
def test_a_search_runs_at_the_provider_between_calls_of_our_own(wire: str) -> None:
    first = [SEARCH, Call("pack", item="umbrella"), Uses(90, 20)]
    events, server, result = asyncio.run(run_on(wire, [WebSearch(), pack], first, [Say("An umbrella."), Uses(120, 9)]))
    assert result.text == "An umbrella."
    assert [record.name for record in result.calls] == ["pack"]
    assert [call.tool for call in result.server_calls] == ["web_search"]
    reported = [each for each in events if isinstance(each, ServerCallStarted | ServerCallFinished)]
    assert [type(each) for each in reported] == [ServerCallStarted, ServerCallFinished]
    last = reported[-1]
    assert isinstance(last, ServerCallFinished)
    assert (last.tool, last.outcome, last.error) == ("web_search", "done", "")
    assert "weather in Oslo" in str(last.arguments)
    view = RunView.of(events)
    assert [(call.tool, call.outcome) for call in view.server_calls] == [("web_search", "done")]
    assert len(view.calls) == 1
    # What the search did goes back to the provider, word for word.
    given_back = {ANTHROPIC: "encrypted-srvtoolu", RESPONSES: "web_search_call", GEMINI: "toolResponse"}[wire]
    assert given_back not in str(server.bodies[0])
    assert given_back in str(server.bodies[1])


def test_the_next_turn_of_a_conversation_still_has_the_search() -> None:
    async def talk() -> list[Any]:
        async with ScriptedServer([SEARCH, "Rain."], "As I said: rain.") as server:
            conversation = Conversation(agent_for(server, ANTHROPIC, [WebSearch()]))
            await conversation.say("How is the weather in Oslo?")
            await conversation.say("Sure?")
            return server.bodies[1]["messages"][1]["content"]

    kinds = [block["type"] for block in asyncio.run(talk())]
    assert kinds == ["server_tool_use", "web_search_tool_result", "text"]


REQUESTS: list[tuple[str, ServerTool, dict[str, Any]]] = [
    (
        ANTHROPIC,
        WebSearch(allowed_domains=["yr.no"], max_uses=2, user_location={"city": "Oslo"}),
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "max_uses": 2,
            "allowed_domains": ["yr.no"],
            "user_location": {"type": "approximate", "city": "Oslo"},
        },
    ),
    (
        ANTHROPIC,
        WebFetch(blocked_domains=["x.com"], max_content_tokens=900, citations=True),
        {
            "type": "web_fetch_20250910",
            "name": "web_fetch",
            "blocked_domains": ["x.com"],
            "max_content_tokens": 900,
            "citations": {"enabled": True},
        },
    ),
    (ANTHROPIC, CodeExecution(), {"type": "code_execution_20250825", "name": "code_execution"}),
    (
        RESPONSES,
        WebSearch(allowed_domains=["yr.no"], search_context_size="low"),
        {"type": "web_search", "filters": {"allowed_domains": ["yr.no"]}, "search_context_size": "low"},
    ),
    (
        RESPONSES,
        CodeExecution(files=["file_1"]),
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}},
    ),
    (
        RESPONSES,
        FileSearch(stores=["vs_1"], max_results=3),
        {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3},
    ),
    (
        RESPONSES,
        ImageGeneration(size="1024x1024", quality="low"),
        {"type": "image_generation", "size": "1024x1024", "quality": "low"},
    ),
    (
        RESPONSES,
        MCPConnector("https://mcp.example.org/", "docs", token="t", tools=["find"]),
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://mcp.example.org/",
            "require_approval": "never",
            "authorization": "t",
            "allowed_tools": ["find"],
        },
    ),
    (GEMINI, WebSearch(), {"googleSearch": {}}),
    (GEMINI, WebFetch(), {"urlContext": {}}),
    (GEMINI, CodeExecution(), {"codeExecution": {}}),
    (
        GEMINI,
        FileSearch(stores=["fileSearchStores/a"], max_results=2, filters='kind = "law"'),
        {"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/a"], "topK": 2, "metadataFilter": 'kind = "law"'}},
    ),
]


@pytest.mark.parametrize(("wire", "asked", "sent"), REQUESTS, ids=lambda value: str(value)[:40])
def test_one_spelling_becomes_the_tool_of_each_wire(wire: str, asked: ServerTool, sent: dict[str, Any]) -> None:
    _, server, _ = asyncio.run(run_on(wire, [asked], "Done."))
    assert server.bodies[0]["tools"] == [sent]


def test_a_connector_is_sent_with_its_beta_and_its_server() -> None:
    connector = MCPConnector("https://mcp.example.org/", "docs", token="secret-token", tools=["find"])
    answer = [ProviderCall("mcp", {"text": "x"}, "found", name="find"), "Found."]
    events, server, result = asyncio.run(run_on(ANTHROPIC, [connector], answer))
    assert server.headers[0]["anthropic-beta"] == "mcp-client-2025-11-20"
    assert server.bodies[0]["mcp_servers"][0]["authorization_token"] == "secret-token"
    assert server.bodies[0]["tools"][0]["configs"] == {"find": {"enabled": True}}
    assert "secret-token" not in repr(connector)
    assert [(each.tool, each.name) for each in events if isinstance(each, ServerCallFinished)] == [("mcp", "find")]
    assert result.server_calls[0].name == "find"


def test_betas_of_a_model_stay_beside_those_of_its_tools() -> None:
    async def ask() -> str:
        async with ScriptedServer("Done.") as server:
            model = connect(
                MODELS[ANTHROPIC], base_url=server.url, api_key="k", headers={"anthropic-beta": "files-api-2025-04-14"}
            )
            await Agent(model, tools=[WebFetch()]).run("Hi")
            return server.headers[0]["anthropic-beta"]

    assert asyncio.run(ask()) == "files-api-2025-04-14,web-fetch-2025-09-10"


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        (
            "openai-responses:gpt-5",
            WebFetch(),
            "WebFetch: `openai-responses:gpt-5 \\(openai-responses\\)` has no such tool",
        ),
        ("openai-responses:gpt-4.1-nano", WebSearch(), "WebSearch: .*gpt-4.1-nano"),
        (
            "anthropic:claude-sonnet-4-5",
            FileSearch(stores=["a"]),
            "FileSearch: .*anthropic-messages.*function of your own",
        ),
        ("anthropic:claude-3-haiku-20240307", WebSearch(), "claude-3-haiku"),
        ("gemini:gemini-3-flash-preview", MCPConnector("https://a.org", "a"), "MCPConnector: .*gemini"),
        ("openai-chat:gpt-4o", WebSearch(), 'on another wire: connect\\("openai-responses:gpt-4o", …\\)'),
        ("openai:gpt-5", CodeExecution(), 'on another wire: connect\\(…, wire="openai-responses"\\)'),
        ("compatible:gpt-5", CodeExecution(), "choose another model, or give a function"),
        ("ollama:llama3", CodeExecution(), "ollama"),
        ("cohere:command-a", WebSearch(), "cohere-v2"),
        ("openai-responses:gpt-5", WebSearch(max_uses=1), "max_uses=…\\): .* has no such setting"),
        ("gemini:gemini-3-flash-preview", WebSearch(blocked_domains=["a.org"]), "blocked_domains"),
        ("gemini:gemini-2.5-flash", WebSearch(), "only without functions.*Gemini 3"),
    ],
)
def test_a_tool_that_the_provider_lacks_is_an_error_before_anything_is_sent(
    model: str, asked: ServerTool, words: str
) -> None:
    async def ask() -> int:
        async with ScriptedServer("Never asked.") as server:
            base_url = server.url + ("" if model.startswith(("anthropic", "gemini", "cohere")) else "/v1")
            with pytest.raises(UserError, match=words):
                await Agent(connect(model, base_url=base_url, api_key="k"), tools=[asked, pack]).run("Hi")
            return len(server.bodies) + len(server.strays)

    assert asyncio.run(ask()) == 0


def test_a_wish_that_a_wire_has_no_field_for_is_a_warning() -> None:
    _, _, result = asyncio.run(run_on(GEMINI, [WebSearch(user_location={"city": "Oslo"})], "Done."))
    assert any("WebSearch.user_location" in warning for warning in result.warnings)


def test_a_paused_turn_is_continued_and_its_search_ends_in_the_next_answer() -> None:
    """Also by models that take no prefill otherwise: Claude since 4.6."""

    async def ask() -> tuple[list[Event], Any, list[Any]]:
        events: list[Event] = []
        call = ProviderCall("web_search", QUERY, id="srvtoolu_1", part="call")
        found = ProviderCall("web_search", result="Rain", id="srvtoolu_1", part="result")
        async with ScriptedServer([call, End("paused")], [found, "Rain."], "Bye.") as server:
            model = connect("anthropic:claude-opus-4-7", base_url=server.url, api_key="k")
            conversation = Conversation(Agent(model, tools=[WebSearch()], sinks=[events.append]))
            result = await conversation.say("How is the weather in Oslo?")
            await conversation.say("Thanks.")
            return events, result, server.bodies

    events, result, bodies = asyncio.run(ask())
    assert (result.text, result.requests) == ("Rain.", 2)
    assert bodies[1]["messages"][-1]["role"] == "assistant"
    finished = [each for each in events if isinstance(each, ServerCallFinished)]
    assert [(each.turn, each.outcome, each.arguments) for each in finished] == [(1, "done", QUERY)]


def test_a_pause_that_was_never_continued_leaves_no_call_without_a_result() -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": QUERY}
    paused = Assistant("Let me look.", native=Native(ANTHROPIC, [{"type": "text", "text": "Let me look."}, use]))
    history = (User.of("Weather?"), paused, User.of("Never mind."))
    body = find_wire(ANTHROPIC).encode_request(Request(history, model="claude-sonnet-4-5"))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text"]
    assert check_request(ANTHROPIC, body) == []
    broken = {**body, "messages": [body["messages"][0], {"role": "assistant", "content": [use]}, body["messages"][2]]}
    assert "without a corresponding result" in check_request(ANTHROPIC, broken)[0]


def test_a_search_that_failed_is_reported_with_its_reason() -> None:
    failed = ProviderCall("web_search", QUERY, error="max_uses_exceeded")
    events, _, _ = asyncio.run(run_on(ANTHROPIC, [WebSearch()], [failed, "I could not look."]))
    finished = [each for each in events if isinstance(each, ServerCallFinished)]
    assert [(each.outcome, each.error) for each in finished] == [("failed", "max_uses_exceeded")]


def test_an_image_is_an_answer_without_text() -> None:
    drawn = ProviderCall("image_generation", result="aGVsbG8=")
    _, server, result = asyncio.run(run_on(RESPONSES, [ImageGeneration()], [drawn]))
    assert len(server.bodies) == 1
    assert [call.item["result"] for call in result.server_calls] == ["aGVsbG8="]


def test_searches_are_counted_and_cost_what_the_price_list_says() -> None:
    pytest.importorskip("genai_prices")
    answer = [SEARCH, "Rain.", Uses(1000, 100, searches=2)]
    _, _, result = asyncio.run(run_on(ANTHROPIC, [WebSearch()], answer))
    assert result.usage.web_searches == 2
    assert result.cost == pytest.approx(0.003 + 0.0015 + 0.02)


def test_a_scripted_search_with_one_query_is_counted_on_gemini_too() -> None:
    _, _, result = asyncio.run(run_on(GEMINI, [WebSearch()], [SEARCH, "Rain.", Uses(1000, 100)]))
    assert result.usage.web_searches == 1


def test_a_tool_without_a_known_price_makes_the_cost_unknown() -> None:
    answer = [ProviderCall("code_execution", {"code": "print(1)"}, "1"), "It is 1.", Uses(1000, 100)]
    _, _, result = asyncio.run(run_on(RESPONSES, [CodeExecution()], answer))
    assert (result.usage.server_calls, result.cost) == (1, None)
    prices = Prices(input=1.0, output=2.0)
    assert prices.of(result.usage) is None
    assert Prices(input=1.0, output=2.0, server_call=30.0).of(result.usage) == pytest.approx(0.0012 + 0.03)
    assert Limits(cost=1.0, prices=prices).prices is prices


def test_a_recorded_run_replays_with_the_provider_s_tools_and_without_their_secrets(tmp_path: Path) -> None:
    connector = MCPConnector(
        "https://user:secret-word@mcp.example.org/x?key=secret-query", "docs", token="secret-token"
    )
    assert repr(connector) == "MCPConnector(url='https://mcp.example.org/x', name='docs', tools=None)"

    async def record() -> Agent:
        async with ScriptedServer([SEARCH, Call("pack", item="umbrella")], "An umbrella.") as server:
            agent = agent_for(server, ANTHROPIC, [WebSearch(max_uses=2), connector, pack], record=tmp_path)
            await agent.run("What should I pack?")
            return agent

    agent = asyncio.run(record())
    (path,) = tmp_path.glob("*.jsonl")
    assert not any(secret in path.read_text() for secret in ("secret-token", "secret-word", "secret-query"))
    result = agent.replay(path)
    assert result.text == "An umbrella."
    assert [call.tool for call in result.server_calls] == ["web_search"]
    assert agent_of(read_recording(path)).replay(path).text == "An umbrella."


def test_items_of_another_wire_are_left_out_with_a_warning() -> None:
    async def ask() -> Any:
        async with ScriptedServer([SEARCH, "Rain."], "Rain, as I said.") as server:
            first = await agent_for(server, ANTHROPIC, [WebSearch()]).run("Weather?")
            second = agent_for(server, RESPONSES, [WebSearch()])
            return await second.run("Sure?", history=first.messages), server.bodies[1]

    result, body = asyncio.run(ask())
    assert "server_tool_use" not in str(body)
    assert any("server_tool_use" in warning for warning in result.warnings)


def test_a_script_can_play_a_provider_s_tool_without_a_server() -> None:
    model = ScriptedModel([ProviderCall("web_search", QUERY, "Rain"), "Rain."], wire=ANTHROPIC)
    result = Agent(model, tools=[WebSearch()]).run_sync("Weather?")
    assert result.server_calls == (
        ServerCall(
            "server_tool_use",
            result.server_calls[0].id,
            "web_search",
            QUERY,
            item=result.server_calls[0].item,
            tool="web_search",
        ),
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ANTHROPIC, {"tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}]}, "mcp_toolset"),
    (
        ANTHROPIC,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "model": "claude-3-haiku-20240307"},
        "does not support tool types: web_search",
    ),
    (RESPONSES, {"tools": [{"type": "web_search"}], "model": "gpt-4.1-nano"}, "Hosted tool 'web_search'"),
    (RESPONSES, {"tools": [{"type": "file_search"}]}, "vector_store_ids"),
    (
        GEMINI,
        {"tools": [{"functionDeclarations": [{"name": "f", "description": "f"}]}, {"googleSearch": {}}]},
        "include_server_side_tool_invocations",
    ),
]


@pytest.mark.parametrize(("wire", "body", "words"), REFUSED)
def test_the_fake_servers_refuse_what_the_real_ones_refuse(wire: str, body: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {
        ANTHROPIC: {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
        RESPONSES: {"model": "gpt-5.4", "input": "Hi"},
        GEMINI: {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    }[wire]
    refused = check_request(
        wire, {**asked, **body}, model=body.get("model", "gemini-3-flash" if wire == GEMINI else "")
    )
    assert any(words in refusal for refusal in refused), refused


def test_nothing_of_a_provider_s_tool_can_be_selected() -> None:
    with pytest.raises(UserError, match="the provider runs `WebSearch`"):
        select([WebSearch(), pack], only=["pack"])


def test_the_same_tool_with_two_settings_is_an_error() -> None:
    with pytest.raises(UserError, match="given twice"):
        Agent(ScriptedModel("Hi"), tools=[WebSearch(), WebSearch(max_uses=2)])
    with pytest.raises(UserError, match="give an object"):
        Agent(ScriptedModel("Hi"), tools=[WebSearch])


def test_wrong_settings_are_errors() -> None:
    with pytest.raises(UserError, match="planet"):
        WebSearch(user_location={"planet": "Mars"})
    with pytest.raises(UserError, match="number from 1"):
        WebSearch(max_uses=0)
    with pytest.raises(UserError, match="at least one store"):
        FileSearch(stores=[])
    with pytest.raises(UserError, match="https"):
        MCPConnector("mcp.example.org", "docs")


def test_the_token_of_a_connector_is_in_no_raw_log(tmp_path: Path) -> None:
    async def ask() -> str:
        async with ScriptedServer("Hi.") as server:
            model = connect(MODELS[ANTHROPIC], base_url=server.url, api_key="k", raw_log=tmp_path / "raw.log")
            connector = MCPConnector("https://mcp.example.org/?key=secret-query", "docs", token="secret-token")
            await Agent(model, [connector]).run("Hi")
            return str(server.bodies[0])

    assert "secret-token" in asyncio.run(ask())
    logged = [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert logged
    assert not any("secret-token" in text or "secret-query" in text for text in logged)


def test_a_model_without_a_connector_names_the_class_that_connects_from_here() -> None:
    with pytest.raises(UserError, match=r"MCPConnector: .* use MCPServer, which connects from here"):
        asyncio.run(run_on(GEMINI, [MCPConnector("https://mcp.example.org/", "docs")], ["Hi."]))
