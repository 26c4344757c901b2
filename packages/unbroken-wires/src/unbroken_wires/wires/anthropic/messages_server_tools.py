"""anthropic-messages: the tools that Anthropic runs, by the versions of their definitions, and its own tool search.

The oldest definition that does the work is sent: it is known to every model that has the tool.
"""

from __future__ import annotations

from unbroken_wires.messages import ServerTool
from unbroken_wires.server_tools import CodeExecution, MCPConnector, WebFetch, WebSearch
from unbroken_wires.wires.anthropic.messages_binding import binding_betas
from unbroken_wires.wires.anthropic.messages_decoder import PROVIDER_TOOLS
from unbroken_wires.wires.anthropic.messages_turns import SERVER_USES, halves, open_turn
from unbroken_wires.wires.claude_models import CLAUDE, Claude, Either
from unbroken_wires.wires.crossing import Target
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.rules import Asked, Function, Models, Refused, Rule
from unbroken_wires.wires.server_tools import Encoded, ServerTools, append_tool, given

WEB_SEARCH = "web_search_20250305"
WEB_FETCH = "web_fetch_20250910"
CODE_EXECUTION = "code_execution_20250825"
TOOL_SEARCH = "tool_search_tool_bm25_20251119"
_TOOL_SEARCH_NAME = "tool_search_tool_bm25"

BETAS = {
    "web_fetch_": "web-fetch-2025-09-10",
    "code_execution_": "code-execution-2025-08-25",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""By the beginning of a tool's type. The first two are not needed any more by newer accounts, and never refused."""

_HAIKU_3_5 = Claude((3, 5), (3, 6), tiers=("haiku",))
WITH_SEARCH: Models = Either((Claude(since=(3, 7)), _HAIKU_3_5))
WITH_FETCH = WITH_SEARCH
WITH_CODE: Models = Either((Claude(since=(3, 7)), _HAIKU_3_5))
WITH_TOOL_SEARCH = Claude(since=(4, 5))
_MODELS: tuple[tuple[type[ServerTool], Models], ...] = (
    (WebSearch, WITH_SEARCH),
    (WebFetch, WITH_FETCH),
    (CodeExecution, WITH_CODE),
    (MCPConnector, Claude(since=(3, 5))),
)
_VENDORS: dict[str, tuple[type[ServerTool], ...]] = {
    "anthropic": (WebSearch, WebFetch, CodeExecution, MCPConnector),
    "vertex-claude": (WebSearch,),
}
"""Google's platform runs only the search."""


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    if not isinstance(tool, _VENDORS.get(target.vendor, ())):
        return None
    if not any(isinstance(tool, kind) and target.model in models for kind, models in _MODELS):
        return None
    match tool:
        case WebSearch():
            spelled: Object = {"type": WEB_SEARCH, "name": "web_search"}
            lost = _domains(spelled, tool)
            if tool.user_location:
                spelled["user_location"] = {"type": "approximate", **tool.user_location}
            return Encoded(spelled, (*lost, *given(tool, "search_context_size")))
        case WebFetch():
            spelled = {"type": WEB_FETCH, "name": "web_fetch"}
            lost = _domains(spelled, tool)
            if tool.max_content_tokens is not None:
                spelled["max_content_tokens"] = tool.max_content_tokens
            if tool.citations:
                spelled["citations"] = {"enabled": True}
            return Encoded(spelled, lost)
        case CodeExecution():
            spelled = {"type": CODE_EXECUTION, "name": "code_execution"}
            # Files are part of the prompt on this wire: container_upload blocks.
            return Encoded(spelled, given(tool, "files"))
        case MCPConnector():
            return _connector(tool)
        case _:
            return None


def _domains(spelled: Object, tool: WebSearch | WebFetch) -> tuple[str, ...]:
    """The API takes one of the two lists."""
    if tool.max_uses is not None:
        spelled["max_uses"] = tool.max_uses
    if tool.allowed_domains:
        spelled["allowed_domains"] = list(tool.allowed_domains)
        return given(tool, "blocked_domains")
    if tool.blocked_domains:
        spelled["blocked_domains"] = list(tool.blocked_domains)
    return ()


def _connector(tool: MCPConnector) -> Encoded:
    server: Object = {"type": "url", "url": tool.url, "name": tool.name}
    if tool.token:
        server["authorization_token"] = tool.token
    toolset: Object = {"type": "mcp_toolset", "mcp_server_name": tool.name}
    if tool.tools is not None:
        toolset["default_config"] = {"enabled": False}
        toolset["configs"] = {name: {"enabled": True} for name in tool.tools}
    return Encoded(toolset, given(tool, "headers"), {"mcp_servers": [server]})


def _finds_tools(target: Target) -> bool:
    return target.vendor in _VENDORS and target.model in WITH_TOOL_SEARCH


def _defer(body: Object, names: frozenset[str]) -> None:
    """Adds the search. A deferred tool takes no cache mark: it moves to the search, which stands before all others."""
    search: Object = {"type": TOOL_SEARCH, "name": _TOOL_SEARCH_NAME}
    for tool in dicts(body.get("tools")):
        if tool.get("name") in names:
            tool["defer_loading"] = True
            mark = tool.pop("cache_control", None)
            if mark is not None:
                search["cache_control"] = mark
    body["tools"] = [search, *body.get("tools", ())]


def _betas(body: Object) -> list[str]:
    types = [as_text(tool.get("type")) for tool in dicts(body.get("tools"))]
    return [beta for kind, beta in BETAS.items() if any(type.startswith(kind) for type in types)] + binding_betas(body)


def _forbid(body: Object) -> None:
    body["tool_choice"] = {"type": "none"}


SERVER_TOOLS = ServerTools(
    encode=encode,
    place=append_tool,
    finds_tools=_finds_tools,
    defer=_defer,
    beta_header="anthropic-beta",
    betas=_betas,
    forbid=_forbid,
)


# What the API refuses. Only the servers of `unbroken_testing` look: requests of our own never break these rules.


def _types(asked: Asked, prefix: str) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    return [f"tools.{n}" for n, tool in enumerate(tools) if as_text(tool.get("type")).startswith(prefix)]


def _has_type(prefix: str) -> Function:
    return Function(lambda asked: _types(asked, prefix), field="tools")


def _connects_without_beta(asked: Asked) -> list[str]:
    return [] if BETAS["mcp_toolset"] in asked.headers.get("anthropic-beta", "") else _types(asked, "mcp_toolset")


def _unknown_server(asked: Asked) -> list[str]:
    servers = {as_text(each.get("name")) for each in dicts(asked.body.get("mcp_servers"))}
    tools = [tool for tool in dicts(asked.body.get("tools")) if tool.get("type") == "mcp_toolset"]
    named = {as_text(tool.get("mcp_server_name")) for tool in tools}
    return ["mcp_servers"] if servers != named else []


def _both_lists(asked: Asked) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    return [f"tools.{n}" for n, tool in enumerate(tools) if tool.get("allowed_domains") and tool.get("blocked_domains")]


def _all_deferred(asked: Asked) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    return ["tools"] if tools and all(tool.get("defer_loading") for tool in tools) else []


def _deferred_and_marked(asked: Asked) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    return [f"tools.{n}" for n, tool in enumerate(tools) if tool.get("defer_loading") and tool.get("cache_control")]


def _without_result(asked: Asked) -> list[str]:
    return [f"messages.{n}" for n, _ in halves(dicts(asked.body.get("messages")))]


def _without_container(asked: Asked) -> list[str]:
    """Results of a client's tools, while code waits that runs in a container."""
    messages = dicts(asked.body.get("messages"))
    if asked.body.get("container") or not messages or messages[-1].get("role") == "assistant":
        return []
    turn = [block for message in messages[open_turn(messages) :] for block in dicts(message.get("content"))]
    results = {as_text(block.get("tool_use_id")) for block in turn}
    runs = [block for block in turn if PROVIDER_TOOLS.get(as_text(block.get("name"))) == "code_execution"]
    waits = any(block.get("type") in SERVER_USES and as_text(block.get("id")) not in results for block in runs)
    return ["container"] if waits else []


def is_paused(message: Object) -> bool:
    """Does an answer end in the middle of what the provider's tools do? Then it is sent back as it is, as the last
    message, and the model continues it."""
    types = [as_text(block.get("type")) for block in dicts(as_dict(message).get("content"))]
    return any(type in SERVER_USES or (type.endswith("_tool_result") and type != "tool_result") for type in types)


_DOCS = "platform.claude.com/docs: agents and tools"


def _rule(name: str, says: str, check: Function, error: str, models: Models = CLAUDE) -> Rule:
    return Rule(
        f"anthropic.{name}",
        says,
        check,
        models,
        ("anthropic", "vertex-claude"),
        error=error,
        source=_DOCS,
        obeyed="by the encoder",
    )


RULES = (
    *(
        _rule(
            f"no-{prefix.strip('_').replace('_', '-')}",
            f"this model has no `{prefix.strip('_')}`",
            _has_type(prefix),
            f"'{{where}}' does not support tool types: {prefix.strip('_')}",
            models,
        )
        for prefix, models in (
            ("web_search_", Claude(before=(3, 5))),
            ("web_fetch_", Claude(before=(3, 5))),
            ("code_execution_", Claude(before=(3, 5))),
            ("tool_search_tool_", Claude(before=(4, 5))),
        )
    ),
    _rule(
        "mcp-beta",
        f"`mcp_toolset` needs the beta `{BETAS['mcp_toolset']}`",
        Function(_connects_without_beta, field="tools"),
        "{where}: Input tag 'mcp_toolset' found using 'type' does not match any of the expected tags",
    ),
    _rule(
        "mcp-servers",
        "every MCP server has one `mcp_toolset`, and the other way round",
        Function(_unknown_server, field="tools"),
        "mcp_servers: every server has to be referenced by exactly one mcp_toolset in tools",
    ),
    _rule(
        "one-list-of-domains",
        "`allowed_domains` and `blocked_domains` are not accepted together",
        Function(_both_lists, field="tools"),
        "{where}: only one of allowed_domains and blocked_domains can be specified",
    ),
    _rule(
        "not-all-deferred",
        "at least one tool is not deferred",
        Function(_all_deferred, field="tools"),
        "At least one tool must have defer_loading=false.",
    ),
    _rule(
        "deferred-unmarked",
        "a deferred tool has no `cache_control`",
        Function(_deferred_and_marked, field="tools"),
        "{where}: tools with defer_loading cannot use cache_control",
    ),
    _rule(
        "server-calls-answered",
        "a call of a server tool has its result, unless its turn is still open, and every result has its call",
        Function(_without_result, field="messages"),
        "{where}: `server_tool_use` was found without a corresponding result block",
    ),
    _rule(
        "container",
        "a request that goes on while code waits in a container names it",
        Function(_without_container, field="messages"),
        "container_id is required when there are pending tool uses generated by code execution with tools.",
    ),
    Rule(
        "anthropic.no-container",
        "Google's platform runs no code",
        Refused("container"),
        CLAUDE,
        ("vertex-claude",),
        error="container: Extra inputs are not permitted",
        source=_DOCS,
    ),
)
