"""bedrock-converse: the tools that Amazon's own models have there. Those of other vendors' models are not offered."""

from __future__ import annotations

from unbroken_wires.messages import ServerTool
from unbroken_wires.server_tools import CodeExecution, WebSearch
from unbroken_wires.wires.crossing import Target, put
from unbroken_wires.wires.json_access import Object, as_dict, dicts
from unbroken_wires.wires.rules import Asked, Function, Named, Rule
from unbroken_wires.wires.server_tools import Encoded, ServerTools, given

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


def _keep(body: Object) -> None:
    """Converse has no choice `none`, and refuses a history with calls whose tools are missing. One more search does no
    harm: it runs inside of the answer."""


SERVER_TOOLS = ServerTools(encode=encode, place=_place, forbid=_keep)


# What Bedrock refuses


def _system_tool(name: str) -> Function:
    def check(asked: Asked) -> list[str]:
        tools = dicts(as_dict(asked.body.get("toolConfig")).get("tools"))
        return [
            f"toolConfig.tools[{n}].systemTool"
            for n, tool in enumerate(tools)
            if as_dict(tool.get("systemTool")).get("name") == name
        ]

    return Function(check, field="toolConfig")


RULES = tuple(
    Rule(
        f"bedrock.no-{name.replace('_', '-')}",
        f"this model has no `{name}`",
        _system_tool(name),
        Named("*", *(f"!{glob}" for glob in models.globs)),
        ("bedrock",),
        source="docs.aws.amazon.com/nova/latest: system tools",
        obeyed="by the encoder",
    )
    for name, models in (("nova_grounding", WITH_SEARCH), ("nova_code_interpreter", WITH_CODE))
)
