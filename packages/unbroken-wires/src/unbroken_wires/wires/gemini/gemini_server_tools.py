"""gemini: the tools that Google runs. Models before 3 take them only without functions."""

from __future__ import annotations

from unbroken_wires.messages import ServerTool
from unbroken_wires.server_tools import CodeExecution, FileSearch, WebFetch, WebSearch
from unbroken_wires.wires.crossing import Target, put
from unbroken_wires.wires.gemini.gemini_rules import BEFORE_3
from unbroken_wires.wires.json_access import Object, dicts
from unbroken_wires.wires.rules import Named
from unbroken_wires.wires.server_tools import Encoded, ServerTools, given

WITHOUT_SEARCH = Named("gemini-1.0*", "gemini-1.5*", "gemma*", "gemini-*-image*", "gemini-*-tts*")
WITHOUT_FETCH = Named(*WITHOUT_SEARCH.globs, "gemini-2.0*")
WITHOUT_FILES = Named(*WITHOUT_FETCH.globs)
WITHOUT_CODE = Named("gemini-1.0*", "gemma*", "gemini-*-image*", "gemini-*-tts*")


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    model, vertex = target.model, target.vendor == "vertex"
    match tool:
        case WebSearch() if model not in WITHOUT_SEARCH:
            blocked = tool.blocked_domains if vertex else ()
            lost = given(tool, "allowed_domains", "max_uses", "user_location", "search_context_size")
            lost += () if blocked else given(tool, "blocked_domains")
            settings: Object = {"excludeDomains": list(blocked)} if blocked else {}
            return Encoded({"googleSearch": settings}, lost)
        case WebFetch() if model not in WITHOUT_FETCH:
            limits = ("allowed_domains", "blocked_domains", "max_uses", "max_content_tokens", "citations")
            return Encoded({"urlContext": {}}, given(tool, *limits))
        case CodeExecution() if model not in WITHOUT_CODE:
            return Encoded({"codeExecution": {}}, given(tool, "files"))
        case FileSearch() if model not in WITHOUT_FILES and not vertex:
            spelled: Object = {"fileSearchStoreNames": list(tool.stores)}
            if tool.max_results is not None:
                spelled["topK"] = tool.max_results
            if isinstance(tool.filters, str):
                spelled["metadataFilter"] = tool.filters
            lost = ("filters",) if tool.filters is not None and "metadataFilter" not in spelled else ()
            return Encoded({"fileSearch": spelled}, lost)
        case _:
            return None


def _why_not(body: Object, target: Target) -> str:
    if target.model not in BEFORE_3 or not _has_functions(body):
        return ""
    return (
        f"`{target.model}` has it only without functions among the tools: leave one of them out, or choose a model "
        "from Gemini 3 on"
    )


def _has_functions(body: Object) -> bool:
    return any("functionDeclarations" in tool for tool in dicts(body.get("tools")))


def _place(body: Object, encoded: Encoded, target: Target) -> None:
    beside = _has_functions(body)
    body["tools"] = [*dicts(body.get("tools")), encoded.tool]
    if beside and target.model not in BEFORE_3:
        # The answer has to contain what the tools did, because that comes back with the history.
        put(body, "toolConfig.includeServerSideToolInvocations", True)


SERVER_TOOLS = ServerTools(encode=encode, place=_place, why_not=_why_not)
