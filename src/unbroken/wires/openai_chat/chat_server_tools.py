"""openai-chat: a web search, as OpenAI and others with this wire spell it. They run no other tools here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unbroken.messages import ServerTool
from unbroken.server_tools import WebSearch
from unbroken.wires.crossing import Target
from unbroken.wires.openai_models import OPENAI
from unbroken.wires.server_tools import Encoded, ServerTools, append_tool, given
from unbroken.wires.values import Object


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    if not isinstance(tool, WebSearch):
        return None
    if target.vendor in OPENAI:
        # Only these models search here, and they always do.
        return _options(tool) if "search" in target.model else None
    other = _OTHERS.get(target.vendor)
    return None if other is None else other(tool)


def _options(tool: WebSearch) -> Encoded:
    options: Object = {"search_context_size": tool.search_context_size} if tool.search_context_size else {}
    if tool.user_location:
        options["user_location"] = {"type": "approximate", "approximate": dict(tool.user_location)}
    return Encoded(
        body={"web_search_options": options}, lost=given(tool, "allowed_domains", "blocked_domains", "max_uses")
    )


def _openrouter(tool: WebSearch) -> Encoded:
    plugin: Object = {"id": "web"}
    if tool.allowed_domains:
        plugin["include_domains"] = list(tool.allowed_domains)
    if tool.blocked_domains:
        plugin["exclude_domains"] = list(tool.blocked_domains)
    options: Object = {"search_context_size": tool.search_context_size} if tool.search_context_size else {}
    body: Object = {"plugins": [plugin]} | ({"web_search_options": options} if options else {})
    return Encoded(body=body, lost=given(tool, "max_uses", "user_location"))


def _qwen(tool: WebSearch) -> Encoded:
    return Encoded(
        body={"enable_search": True},
        lost=given(tool, "allowed_domains", "blocked_domains", "max_uses", "user_location", "search_context_size"),
    )


def _zhipu(tool: WebSearch) -> Encoded:
    search: Object = {"enable": True}
    domains = tool.allowed_domains
    if len(domains) == 1:
        search["search_domain_filter"] = domains[0]
    if tool.search_context_size:
        search["content_size"] = "high" if tool.search_context_size == "high" else "medium"
    left = () if len(domains) == 1 else ("allowed_domains",)
    return Encoded(
        {"type": "web_search", "web_search": search}, given(tool, *left, "blocked_domains", "max_uses", "user_location")
    )


_OTHERS: Mapping[str, Callable[[WebSearch], Encoded]] = {"openrouter": _openrouter, "qwen": _qwen, "zhipu": _zhipu}


SERVER_TOOLS = ServerTools(encode=encode, place=append_tool)
