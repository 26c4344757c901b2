"""openai-responses: the tools that OpenAI runs, and its own tool search."""

from __future__ import annotations

from unbroken_wires.messages import Json, ServerTool
from unbroken_wires.server_tools import CodeExecution, FileSearch, ImageGeneration, MCPConnector, WebSearch
from unbroken_wires.wires.crossing import Target
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.openai_models import OPENAI
from unbroken_wires.wires.openai_settings import openrouter_tool
from unbroken_wires.wires.rules import Asked, Function, Mended, Models, Named, Rule
from unbroken_wires.wires.server_tools import Encoded, ServerTools, append_tool, given

_OLD = ("gpt-3.5*", "gpt-4", "gpt-4-*", "chatgpt-4o*", "o1-mini*", "o1-preview*")
WITHOUT_TOOLS = Named(*_OLD)
WITHOUT_SEARCH = Named(*_OLD, "gpt-4.1-nano*", "o1*", "o3-mini*")
WITHOUT_CODE = Named(*_OLD, "o1*", "o3-mini*")
WITHOUT_FILES = Named(*_OLD, "o1-pro*")
WITHOUT_IMAGES = Named(*_OLD, "o1*", "o3-mini*", "o4-mini*", "*codex*", "*deep-research*", "gpt-5-pro*")
WITH_TOOL_SEARCH = Named("gpt-5.4*", "gpt-5.5*", "gpt-5.6*", "gpt-5.7*", "gpt-5.8*", "gpt-5.9*", "gpt-6*")
_LACKING: tuple[tuple[type[ServerTool], Models], ...] = (
    (WebSearch, WITHOUT_SEARCH),
    (CodeExecution, WITHOUT_CODE),
    (FileSearch, WITHOUT_FILES),
    (ImageGeneration, WITHOUT_IMAGES),
    (MCPConnector, WITHOUT_TOOLS),
)


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    if target.vendor == "xai":
        return _encode_for_xai(tool)
    if target.vendor == "openrouter":
        return openrouter_tool(tool)
    if target.vendor not in OPENAI or any(isinstance(tool, kind) and target.model in lack for kind, lack in _LACKING):
        return None
    match tool:
        case WebSearch():
            return _search(tool)
        case CodeExecution():
            container: Object = {"type": "auto"} | ({"file_ids": list(tool.files)} if tool.files else {})
            # Without `include` the call comes back without what its code has printed.
            include: Json = ["code_interpreter_call.outputs"]
            return Encoded({"type": "code_interpreter", "container": container}, body={"include": include})
        case FileSearch():
            spelled: Object = {"type": "file_search", "vector_store_ids": list(tool.stores)}
            if tool.max_results is not None:
                spelled["max_num_results"] = tool.max_results
            if tool.filters is not None:
                spelled["filters"] = tool.filters
            return Encoded(spelled, body={"include": ["file_search_call.results"]})
        case ImageGeneration():
            fields = {"size": tool.size, "quality": tool.quality, "output_format": tool.format}
            fields["background"] = tool.background
            return Encoded({"type": "image_generation", **{key: value for key, value in fields.items() if value}})
        case MCPConnector():
            return Encoded(_connector(tool))
        case _:
            return None


def _encode_for_xai(tool: ServerTool) -> Encoded | None:
    match tool:
        case WebSearch():
            lists = {"allowed_domains": tool.allowed_domains, "excluded_domains": tool.blocked_domains}
            filters = {name: list(domains) for name, domains in lists.items() if domains}
            lost = given(tool, "max_uses", "user_location", "search_context_size")
            return Encoded({"type": "web_search"} | ({"filters": filters} if filters else {}), lost)
        case CodeExecution():
            return Encoded({"type": "code_interpreter"}, given(tool, "files"))
        case FileSearch():
            limit = {"max_num_results": tool.max_results} if tool.max_results is not None else {}
            stores: Object = {"vector_store_ids": list(tool.stores)}  # it calls them collections
            return Encoded({"type": "file_search", **stores, **limit}, given(tool, "filters"))
        case MCPConnector():
            spelled = _connector(tool)
            del spelled["require_approval"]  # not known to it: calls are never approved
            return Encoded(spelled)
        case _:
            return None


def _search(tool: WebSearch) -> Encoded:
    spelled: Object = {"type": "web_search"}
    if tool.allowed_domains:
        spelled["filters"] = {"allowed_domains": list(tool.allowed_domains)}
    if tool.user_location:
        spelled["user_location"] = {"type": "approximate", **tool.user_location}
    if tool.search_context_size:
        spelled["search_context_size"] = tool.search_context_size
    # There is a limit of all calls together (`max_tool_calls`), but none for one tool.
    return Encoded(spelled, given(tool, "blocked_domains", "max_uses"))


def _connector(tool: MCPConnector) -> Object:
    spelled: Object = {"type": "mcp", "server_label": tool.name, "server_url": tool.url, "require_approval": "never"}
    if tool.token:
        spelled["authorization"] = tool.token
    if tool.headers:
        spelled["headers"] = dict(tool.headers)
    if tool.tools is not None:
        spelled["allowed_tools"] = list(tool.tools)
    return spelled


def _finds_tools(target: Target) -> bool:
    return target.vendor in OPENAI and target.model in WITH_TOOL_SEARCH


def _defer(body: Object, names: frozenset[str]) -> None:
    for tool in dicts(body.get("tools")):
        if tool.get("name") in names:
            tool["defer_loading"] = True
    body["tools"] = [*body.get("tools", ()), {"type": "tool_search"}]


def _forbid(body: Object) -> None:
    body["tool_choice"] = "none"


SERVER_TOOLS = ServerTools(encode=encode, place=append_tool, finds_tools=_finds_tools, defer=_defer, forbid=_forbid)


# What the API refuses


def _has_type(type: str) -> Function:
    return Function(
        lambda asked: [
            f"tools[{n}]" for n, tool in enumerate(dicts(asked.body.get("tools"))) if tool.get("type") == type
        ],
        field="tools",
    )


def _deferred_without_search(asked: Asked) -> list[str]:
    tools = dicts(asked.body.get("tools"))
    if any(tool.get("type") == "tool_search" for tool in tools):
        return []
    return [f"tools[{n}]" for n, tool in enumerate(tools) if tool.get("defer_loading")]


def _incomplete(asked: Asked) -> list[str]:
    needed = {"file_search": "vector_store_ids", "code_interpreter": "container", "mcp": "server_label"}
    tools = list(enumerate(dicts(asked.body.get("tools"))))
    lacking = [(n, needed[type]) for n, tool in tools if (type := as_text(tool.get("type"))) in needed]
    return [f"tools[{n}].{field}" for n, field in lacking if not tools[n][1].get(field)]


_WITHOUT_MINIMAL = ("web_search", "image_generation", "code_interpreter")


def _too_many_domains(asked: Asked) -> list[str]:
    tools = enumerate(dicts(asked.body.get("tools")))
    lists = [(n, list(as_dict(tool.get("filters")).values())) for n, tool in tools if tool.get("type") == "web_search"]
    return [f"tools[{n}].filters" for n, filters in lists if len(filters) > 1 or any(len(each) > 5 for each in filters)]


def _least_effort(asked: Asked) -> list[str]:
    used = [as_text(tool.get("type")) for tool in dicts(asked.body.get("tools"))]
    minimal = as_dict(asked.body.get("reasoning")).get("effort") == "minimal"
    return ["reasoning.effort"] if minimal and any(type in _WITHOUT_MINIMAL for type in used) else []


def _low_effort(body: Object) -> Mended | None:
    return {**body, "reasoning": {**as_dict(body.get("reasoning")), "effort": "low"}}, ["reasoning.effort"]


_DOCS = "platform.openai.com/docs: tools"
_NO_TOOL = "Hosted tool '{type}' is not supported with this model."
RULES = (
    *(
        Rule(
            f"responses.no-{type.replace('_', '-')}",
            f"this model has no `{type}`",
            _has_type(type),
            models,
            OPENAI,
            _NO_TOOL.format(type=type),
            source=_DOCS,
            obeyed="by the encoder",
        )
        for type, models in (
            ("web_search", WITHOUT_SEARCH),
            ("code_interpreter", WITHOUT_CODE),
            ("file_search", WITHOUT_FILES),
            ("image_generation", WITHOUT_IMAGES),
            ("mcp", WITHOUT_TOOLS),
            (
                "tool_search",
                Named("gpt-3.5*", "gpt-4*", "o1*", "o3*", "o4*", "gpt-5", "gpt-5-*", "gpt-5.1*", "gpt-5.2*"),
            ),
        )
    ),
    Rule(
        "responses.deferred-with-search",
        "deferred tools need `tool_search`",
        Function(_deferred_without_search, field="tools"),
        Named("*"),
        OPENAI,
        "Deferred tools require a tool_search tool.",
        source=_DOCS,
        obeyed="by the encoder",
    ),
    Rule(
        "responses.server-tool-fields",
        "a server tool has the fields that it needs",
        Function(_incomplete, field="tools"),
        Named("*"),
        OPENAI,
        "Missing required parameter: '{where}'.",
        source=_DOCS,
        obeyed="by the encoder",
    ),
    Rule(
        "xai.search-domains",
        "a search has up to five domains, either allowed or excluded",
        Function(_too_many_domains, field="tools"),
        Named("*"),
        ("xai",),
        source="docs.x.ai: web search",
        obeyed="by the encoder",
    ),
    Rule(
        "responses.tools-with-minimal-effort",
        "server tools need more than the effort `minimal`",
        Function(_least_effort, _low_effort, "reasoning"),
        Named("gpt-5*"),
        OPENAI,
        "The following tools cannot be used with reasoning.effort 'minimal': web_search.",
        source=_DOCS,
    ),
)
