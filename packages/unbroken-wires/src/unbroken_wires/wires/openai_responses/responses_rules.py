"""openai-responses: what OpenAI's models refuse, by family."""

from __future__ import annotations

from unbroken_wires.wires.body_paths import changed, find, places, without
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.openai_efforts import effort_rules
from unbroken_wires.wires.openai_models import (
    FIRST_REASONING,
    LATER_GPT_5,
    OPENAI,
    OUTPUT_LIMITS,
    reasons,
)
from unbroken_wires.wires.openai_output_rules import output_rules
from unbroken_wires.wires.openai_responses.responses_server_tools import RULES as SERVER_TOOL_RULES
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    Asked,
    AtMost,
    Between,
    Function,
    Matches,
    Mended,
    Needs,
    Refused,
    Rule,
    Sized,
    StrictSchemas,
)
from unbroken_wires.wires.schemas import as_object, is_object

_DOCS = "platform.openai.com/docs"
_PARAMETERS = "tools[]{type=function}.parameters"
_CHAT_NAMES = {
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "stop": "",
    "seed": "",
    "messages": "input",
    "frequency_penalty": "",
    "presence_penalty": "",
    "logit_bias": "",
    "n": "",
    "verbosity": "text.verbosity",
}


def _unsupported(name: str) -> str:
    return f"Unsupported parameter: '{name}' is not supported with this model."


def _sampling_with_effort(path: str) -> Function:
    def check(asked: Asked) -> list[str]:
        effort = as_dict(asked.body.get("reasoning")).get("effort")
        return [where for where, value in find(asked.body, path) if value != 1 and reasons(effort, asked.model)]

    return Function(check, lambda body: (without(body, path), [path]), path)


def _without_effort(body: Object) -> Mended | None:
    """Without the effort, and without the object if nothing else is in it."""
    rest = {key: value for key, value in as_dict(body.get("reasoning")).items() if key not in ("effort", "summary")}
    body = {**body, "reasoning": rest} if rest else without(body, "reasoning")
    include = [each for each in as_list(body.get("include")) if each != "reasoning.encrypted_content"]
    body = {**body, "include": include} if include else without(body, "include")
    return body, ["reasoning.effort"]


def _without_references(body: Object) -> Mended | None:
    """Without reasoning that only its id refers to, and without the ids of the items beside it: they would ask for it.
    They are of answers from before the client forbade storing."""
    items = find(without(body, "input[]{type=reasoning}{!encrypted_content}"), "input[]")
    bare = [{key: value for key, value in as_dict(item).items() if key != "id"} for _, item in items]
    return {**body, "input": bare}, ["input.reasoning"]


def _reasoning_alone(asked: Asked) -> list[str]:
    items = dicts(asked.body.get("input"))
    return [
        f"input[{n}]"
        for n, item in enumerate(items)
        if item.get("type") == "reasoning"
        and (n + 1 == len(items) or as_text(items[n + 1].get("role")) in ("user", "system", "developer"))
    ]


def _not_strict(body: Object) -> Mended | None:
    tools = [
        {**tool, "strict": False} if tool.get("type") == "function" and tool.get("strict") is True else tool
        for tool in dicts(body.get("tools"))
    ]
    return {**body, "tools": tools}, ["tools.strict"]


RULES = (
    *(
        Rule(
            f"responses.{name.replace('_', '-')}",
            f"`{name}` is not accepted",
            Refused(name, but=but),
            FIRST_REASONING,
            OPENAI,
            _unsupported(name),
            source="github.com/CopilotKit/CopilotKit/issues/7191",
        )
        for name, but in (("temperature", (1,)), ("top_p", (1,)), ("top_logprobs", ()))
    ),
    *(
        Rule(
            f"responses.{name.replace('_', '-')}-with-effort",
            f"`{name}` needs `reasoning.effort` none",
            _sampling_with_effort(name),
            LATER_GPT_5,
            OPENAI,
            _unsupported(name),
            source=f"{_DOCS}/guides/latest-model",
        )
        for name in ("temperature", "top_p", "top_logprobs")
    ),
    *effort_rules("responses", "reasoning.effort", _without_effort),
    *(
        Rule(
            f"responses.max-tokens-{limit}",
            f"the answer has at most {limit} tokens",
            Between("max_output_tokens", 16, limit),
            models,
            OPENAI,
            "Invalid 'max_output_tokens': integer out of range.",
            source=f"{_DOCS}/models",
        )
        for models, limit in OUTPUT_LIMITS
    ),
    *(
        Rule(
            f"responses.no-{name.replace('_', '-')}",
            f"`{name}` is a field of chat completions",
            Refused(name),
            ANY_MODEL,
            OPENAI,
            f"Unsupported parameter: '{name}'."
            + (f" In the Responses API, this parameter has moved to '{moved}'." if moved else ""),
            source="github.com/OpenHands/software-agent-sdk/issues/755",
        )
        for name, moved in _CHAT_NAMES.items()
    ),
    Rule(
        "responses.reasoning-followed",
        "a reasoning item is followed by the item that it led to",
        Function(_reasoning_alone),
        ANY_MODEL,
        OPENAI,
        "Item of type 'reasoning' was provided without its required following item.",
        source="github.com/vercel/ai/issues/7099",
        obeyed="by the encoder",
    ),
    Rule(
        "responses.stateless-reasoning",
        "with `store` false a reasoning item has its `encrypted_content`",
        Function(
            lambda asked: (
                [where for where, _ in find(asked.body, "input[]{type=reasoning}{!encrypted_content}")]
                if asked.body.get("store") is False
                else []
            ),
            _without_references,
            "input",
        ),
        ANY_MODEL,
        OPENAI,
        "Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item "
        "from your input.",
        source="github.com/anomalyco/opencode/issues/8987",
    ),
    Rule(
        "responses.call-id",
        "`call_id` has 1 to 64 characters",
        Sized("input[].call_id", 1, 64),
        ANY_MODEL,
        OPENAI,
        "Invalid '{where}': string too long. Expected a string with maximum length 64.",
        source="github.com/decolua/9router/issues/393",
        obeyed="by the encoder",
    ),
    *(
        Rule(
            f"responses.{kind.replace('_', '-')}-id",
            f"the id of an item of type {kind} begins with {prefix}",
            Matches(f"input[]{{type={kind}}}.id", f"{prefix}[a-zA-Z0-9_-]*"),
            ANY_MODEL,
            OPENAI,
            f"Invalid '{{where}}'. Expected an ID that begins with '{prefix}'.",
            source="github.com/openai/codex/issues/33176",
            obeyed="by the encoder",
        )
        for kind, prefix in (("function_call", "fc"), ("message", "msg"), ("reasoning", "rs"))
    ),
    Rule(
        "responses.strict-schema",
        "in a strict tool every object is closed and every property is required",
        StrictSchemas("tools[]{type=function}{strict=True}.parameters", repair=_not_strict),
        ANY_MODEL,
        OPENAI,
        "Invalid schema for function: 'additionalProperties' is required to be supplied and to be false.",
        source=f"{_DOCS}/guides/structured-outputs",
    ),
    Rule(
        "responses.schema-root",
        "the schema of a tool is an object without `oneOf`, `anyOf`, `allOf`, `enum` or `not` at its top",
        Function(
            lambda asked: places(asked.body, _PARAMETERS, lambda schema: not is_object(schema)),
            lambda body: (changed(body, _PARAMETERS, as_object), ["tools.parameters"]),
            "tools",
            alone=True,
        ),
        ANY_MODEL,
        OPENAI,
        "Invalid schema for function: schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' "
        "at the top level.",
        source="github.com/anomalyco/opencode/issues/35516",
    ),
    Rule(
        "responses.tool-name",
        "the name of a tool has 1 to 64 letters, digits, _ and -",
        Matches("tools[]{type=function}.name", r"[a-zA-Z0-9_-]{1,64}"),
        ANY_MODEL,
        OPENAI,
        "Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
        "'^[a-zA-Z0-9_-]+$'.",
        source="github.com/CherryHQ/cherry-studio/issues/2895",
        obeyed="by the encoder",
    ),
    Rule(
        "responses.tools-128",
        "there are at most 128 tools",
        AtMost("tools[]", 128),
        ANY_MODEL,
        OPENAI,
        "Invalid 'tools': array too long. Expected an array with maximum length 128.",
        source="github.com/0x4m4/hexstrike-ai/issues/29",
        obeyed="by the encoder",
    ),
    Rule(
        "responses.parallel-with-tools",
        "`parallel_tool_calls` needs tools",
        Needs("parallel_tool_calls", "tools[]"),
        ANY_MODEL,
        OPENAI,
        "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        source="github.com/openai/swarm/issues/30",
    ),
    *output_rules("responses", "text.format", "text.format"),
    *SERVER_TOOL_RULES,
)
