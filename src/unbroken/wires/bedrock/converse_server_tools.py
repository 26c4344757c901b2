"""bedrock-converse: the tools that Amazon's own models have there. Those of other vendors' models are not offered."""

from __future__ import annotations

from unbroken.messages import ServerTool
from unbroken.server_tools import CodeExecution, WebSearch
from unbroken.wires.crossing import Target, put
from unbroken.wires.rules import Named
from unbroken.wires.server_tools import Encoded, ServerTools, given
from unbroken.wires.values import Object, as_dict, dicts

WITH_SEARCH = Named("nova-premier*", "nova-2*")
WITH_CODE = Named("nova-2*")


def encode(tool: ServerTool, target: Target) -> Encoded | None:
    match tool:
        case WebSearch() if target.model in WITH_SEARCH:
            limits = ("allowed_domains", "blocked_domains", "max_uses", "user_location", "search_context_size")
            return Encoded({"systemTool": {"name": "nova_grounding"}}, given(tool, *limits))
        case CodeExecution() if target.model in WITH_CODE:
            return Encoded({"systemTool": {"name": "nova_code_interpreter"}}, given(tool, "files"))
        case _:
            return None


def _place(body: Object, encoded: Encoded, target: Target) -> None:
    tools = dicts(as_dict(body.get("toolConfig")).get("tools"))
    put(body, "toolConfig.tools", [*tools, encoded.tool])


SERVER_TOOLS = ServerTools(encode=encode, place=_place)
