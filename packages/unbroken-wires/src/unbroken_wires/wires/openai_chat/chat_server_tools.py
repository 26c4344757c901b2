"""openai-chat: a web search, as OpenAI and others with this wire spell it, and the tools of OpenRouter."""

from __future__ import annotations

from unbroken_wires.messages import ServerTool
from unbroken_wires.server_tools import WebSearch
from unbroken_wires.wires.crossing import Target
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.openai_models import OPENAI
from unbroken_wires.wires.openai_settings import openrouter_tool
from unbroken_wires.wires.rules import ANY_MODEL, Asked, Function, Named, Rule
from unbroken_wires.wires.server_tools import Encoded, ServerTools, append_tool, given

QWEN_WITHOUT_SEARCH = Named("*coder*", "*-mt-*", "*-math-*", "*-ocr*")


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    if target.vendor == "openrouter":
        return openrouter_tool(tool)
    if not isinstance(tool, WebSearch):
        return None
    if target.vendor in OPENAI:
        # Only these models search here, and they always do.
        return _options(tool) if "search" in target.model else None
    if target.vendor == "qwen":
        return None if target.model in QWEN_WITHOUT_SEARCH else _qwen(tool)
    return _zhipu(tool) if target.vendor == "zhipu" else None


def _options(tool: WebSearch) -> Encoded:
    options: Object = {"search_context_size": tool.search_context_size} if tool.search_context_size else {}
    if tool.user_location:
        options["user_location"] = {"type": "approximate", "approximate": dict(tool.user_location)}
    return Encoded(
        body={"web_search_options": options}, lost=given(tool, "allowed_domains", "blocked_domains", "max_uses")
    )


def _qwen(tool: WebSearch) -> Encoded:
    return Encoded(
        body={"enable_search": True},
        lost=given(tool, "allowed_domains", "blocked_domains", "max_uses", "user_location", "search_context_size"),
    )


def _zhipu(tool: WebSearch) -> Encoded:
    search: Object = {"enable": True, "search_engine": "search_pro_jina"}  # the only one that Z.ai has
    domains = tool.allowed_domains
    if len(domains) == 1:
        search["search_domain_filter"] = domains[0]
    if tool.search_context_size:
        search["content_size"] = "high" if tool.search_context_size == "high" else "medium"
    left = () if len(domains) == 1 else ("allowed_domains",)
    return Encoded(
        {"type": "web_search", "web_search": search}, given(tool, *left, "blocked_domains", "max_uses", "user_location")
    )


SERVER_TOOLS = ServerTools(encode=encode, place=append_tool)


# What the providers refuse


def _other_types(*known: str, prefix: str = "") -> Function:
    def check(asked: Asked) -> list[str]:
        types = [as_text(tool.get("type")) for tool in dicts(asked.body.get("tools"))]
        return [
            f"tools[{n}].type"
            for n, type in enumerate(types)
            if type not in ("", "function", *known) and not (prefix and type.startswith(prefix))
        ]

    return Function(check, field="tools")


def _without_engine(asked: Asked) -> list[str]:
    tools = enumerate(dicts(asked.body.get("tools")))
    searches = [(n, as_dict(tool.get("web_search"))) for n, tool in tools if tool.get("type") == "web_search"]
    return [f"tools[{n}].web_search.search_engine" for n, search in searches if not search.get("search_engine")]


RULES = (
    Rule(
        "openai.tool-types",
        "tools are functions, or custom",
        _other_types("custom"),
        ANY_MODEL,
        OPENAI,
        "Invalid value for '{where}'. Supported values are: 'function' and 'custom'.",
        source="platform.openai.com/docs: chat completions",
        obeyed="by the encoder",
    ),
    Rule(
        "openrouter.tool-types",
        "tools are functions, or those that it runs itself",
        _other_types("web_search", "web_search_preview", "web_search_2025_08_26", prefix="openrouter:"),
        ANY_MODEL,
        ("openrouter",),
        "Invalid input: '{where}'",
        source="openrouter.ai/docs/guides/features/server-tools",
        obeyed="by the encoder",
    ),
    Rule(
        "zhipu.tool-types",
        "tools are functions, or `web_search` and `retrieval`, which it runs itself",
        _other_types("web_search", "retrieval"),
        ANY_MODEL,
        ("zhipu",),
        source="docs.z.ai: chat completion",
        obeyed="by the encoder",
    ),
    Rule(
        "zhipu.search-engine",
        "a search names its engine",
        Function(_without_engine, field="tools"),
        ANY_MODEL,
        ("zhipu",),
        source="docs.z.ai: chat completion",
        obeyed="by the encoder",
    ),
    *(
        Rule(
            f"{vendor}.tool-types",
            "all tools are functions",
            _other_types(),
            ANY_MODEL,
            (vendor,),
            source=source,
            obeyed="by the encoder",
        )
        for vendor, source in (("xai", "docs.x.ai: function calling"), ("qwen", "help.aliyun.com: function calling"))
    ),
)
