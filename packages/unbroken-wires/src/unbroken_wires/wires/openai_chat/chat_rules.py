"""openai-chat: what OpenAI's models refuse, by family."""

from __future__ import annotations

from unbroken_wires.wires.body_paths import changed, find, places, without
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.openai_chat.chat_server_tools import RULES as SERVER_TOOL_RULES
from unbroken_wires.wires.openai_chat.chat_vendor_rules import VENDOR_RULES, not_strict
from unbroken_wires.wires.openai_efforts import effort_rules
from unbroken_wires.wires.openai_models import (
    FIRST_REASONING,
    LATER_GPT_5,
    O_SERIES,
    OPENAI,
    OUTPUT_LIMITS,
    REASONING,
    TOOLS_WITHOUT_EFFORT,
    reasons,
)
from unbroken_wires.wires.openai_output_rules import output_rules
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    Asked,
    AtMost,
    Between,
    Function,
    Matches,
    Mended,
    Named,
    Needs,
    Refused,
    Rule,
    Sized,
    StrictSchemas,
    When,
    at_most_in,
)
from unbroken_wires.wires.schemas import as_object, is_object

SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "logit_bias")


def _unsupported(name: str) -> str:
    return f"Unsupported parameter: '{name}' is not supported with this model."


def _reasons(asked: Asked) -> bool:
    return reasons(asked.body.get("reasoning_effort"), asked.model)


def _with_effort_only(path: str, default: object) -> Function:
    """A sampling setting that needs the effort `none`."""

    def check(asked: Asked) -> list[str]:
        return [where for where, value in find(asked.body, path) if value != default and _reasons(asked)]

    return Function(check, lambda body: (without(body, path), [path]), path)


def _completion_tokens(body: Object) -> Mended | None:
    """The same limit under the name that reasoning models know."""
    limit = body["max_tokens"]
    rest = {key: value for key, value in body.items() if key != "max_tokens"}
    return {"max_completion_tokens": limit, **rest}, []


def _effort_beside_tools(body: Object) -> Mended | None:
    return {**body, "reasoning_effort": "none"}, ["reasoning_effort"]


_PARAMETERS = "tools[].function.parameters"


def _combined_roots(asked: Asked) -> list[str]:
    return places(asked.body, _PARAMETERS, lambda schema: not is_object(schema))


def _one_object(body: Object) -> Mended | None:
    return changed(body, _PARAMETERS, as_object), ["tools.function.parameters"]


_DOCS = "platform.openai.com/docs"

OPENAI_RULES = (
    Rule(
        "openai.max-tokens",
        "`max_tokens` is called `max_completion_tokens`",
        Refused("max_tokens", repair=_completion_tokens),
        REASONING,
        OPENAI,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        source="github.com/langgenius/dify/issues/24307",
    ),
    Rule(
        "openai.temperature",
        "`temperature` is 1",
        Refused("temperature", but=(1,)),
        FIRST_REASONING,
        OPENAI,
        "Unsupported value: 'temperature' does not support this value with this model. Only the default (1) value is "
        "supported.",
        source="github.com/tmc/langchaingo/issues/1355",
    ),
    *(
        Rule(
            f"openai.{name.replace('_', '-')}",
            f"`{name}` is not accepted",
            Refused(name, but=but),
            FIRST_REASONING,
            OPENAI,
            _unsupported(name),
            source="github.com/chatboxai/chatbox/issues/2627",
        )
        for name, but in (
            ("top_p", (1,)),
            ("presence_penalty", (0,)),
            ("frequency_penalty", (0,)),
            ("logprobs", (False,)),
            ("top_logprobs", ()),
            ("logit_bias", ()),
        )
    ),
    *(
        Rule(
            f"openai.{name.replace('_', '-')}-with-effort",
            f"`{name}` needs `reasoning_effort` none",
            _with_effort_only(name, default),
            LATER_GPT_5,
            OPENAI,
            _unsupported(name),
            source=f"{_DOCS}/guides/latest-model",
        )
        for name, default in (("temperature", 1), ("top_p", 1), ("logprobs", False), ("top_logprobs", None))
    ),
    Rule(
        "openai.stop-4",
        "`stop` has at most 4 texts",
        at_most_in("stop", 4),
        ANY_MODEL,
        OPENAI,
        "Invalid 'stop': array too long. Expected an array with maximum length 4.",
        source=f"{_DOCS}/api-reference/chat",
    ),
    Rule(
        "openai.stop",
        "`stop` is not accepted",
        Refused("stop"),
        Named("o3*", "o4*", "gpt-5*", "gpt-6*", "!gpt-5-chat*", "!gpt-5.*-chat*"),
        OPENAI,
        _unsupported("stop"),
        source="github.com/crewAIInc/crewAI/issues/2661",
    ),
    Rule(
        "openai.parallel-tool-calls",
        "`parallel_tool_calls` is not accepted",
        Refused("parallel_tool_calls"),
        O_SERIES,
        OPENAI,
        _unsupported("parallel_tool_calls"),
        source="github.com/evalstate/fast-agent/issues/279",
    ),
    *effort_rules("openai", "reasoning_effort"),
    Rule(
        "openai.tools-with-effort",
        "function tools need `reasoning_effort` none: the Responses API takes both",
        When(
            "tools[]",
            Function(
                lambda asked: ["reasoning_effort"] if _reasons(asked) else [],
                _effort_beside_tools,
                "reasoning_effort",
            ),
        ),
        TOOLS_WITHOUT_EFFORT,
        OPENAI,
        "Function tools with reasoning_effort are not supported for this model in /v1/chat/completions. Please use "
        "/v1/responses instead.",
        source="github.com/pipecat-ai/pipecat/issues/4043",
    ),
    *(
        Rule(
            f"openai.max-tokens-{limit}",
            f"the answer has at most {limit} tokens",
            Between(name, 1, limit),
            models,
            OPENAI,
            f"max_tokens is too large. This model supports at most {limit} completion tokens.",
            source=f"{_DOCS}/models",
        )
        for models, limit in OUTPUT_LIMITS
        for name in ("max_tokens", "max_completion_tokens")
    ),
    Rule(
        "openai.call-id",
        "the id of a call has at most 40 characters",
        Sized("messages[].tool_calls[].id", 1, 40),
        ANY_MODEL,
        OPENAI,
        "Invalid '{where}': string too long. Expected a string with maximum length 40.",
        source="github.com/microsoft/autogen/issues/6377",
        obeyed="by the encoder",
    ),
    Rule(
        "openai.tool-name",
        "the name of a tool has 1 to 64 letters, digits, _ and -",
        Matches("tools[]{type=function}.function.name", r"[a-zA-Z0-9_-]{1,64}"),
        ANY_MODEL,
        (*OPENAI, "deepseek", "qwen"),
        "Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
        "'^[a-zA-Z0-9_-]+$'.",
        source="github.com/CherryHQ/cherry-studio/issues/2895",
        obeyed="by the encoder",
    ),
    Rule(
        "openai.tools-128",
        "there are at most 128 tools",
        AtMost("tools[]", 128),
        ANY_MODEL,
        OPENAI,
        "Invalid 'tools': array too long. Expected an array with maximum length 128.",
        source="github.com/0x4m4/hexstrike-ai/issues/29",
        obeyed="by the encoder",
    ),
    Rule(
        "openai.parallel-with-tools",
        "`parallel_tool_calls` needs tools",
        Needs("parallel_tool_calls", "tools[]"),
        ANY_MODEL,
        OPENAI,
        "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        source="github.com/openai/swarm/issues/30",
    ),
    Rule(
        "openai.choice-with-tools",
        "`tool_choice` needs tools",
        Needs("tool_choice", "tools[]"),
        ANY_MODEL,
        OPENAI,
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        source="github.com/writer/writer-framework/issues/1013",
    ),
    Rule(
        "openai.strict-schema",
        "in a strict tool every object is closed and every property is required",
        StrictSchemas("tools[].function{strict=True}.parameters", repair=not_strict),
        ANY_MODEL,
        OPENAI,
        "Invalid schema for function: 'additionalProperties' is required to be supplied and to be false.",
        source=f"{_DOCS}/guides/structured-outputs",
    ),
    Rule(
        "openai.schema-root",
        "the schema of a tool is an object without `oneOf`, `anyOf`, `allOf`, `enum` or `not` at its top",
        Function(_combined_roots, _one_object, "tools", alone=True),
        ANY_MODEL,
        OPENAI,
        "Invalid schema for function: schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' "
        "at the top level.",
        source="github.com/anomalyco/opencode/issues/35516",
    ),
    Rule(
        "openai.no-system",
        "there is no system message",
        Function(
            lambda asked: [where for where, _ in find(asked.body, "messages[]{role=system|developer}")],
            lambda body: (changed(body, "messages[]{role=system|developer}.role", lambda _: "user"), []),
        ),
        Named("o1-mini*", "o1-preview*"),
        OPENAI,
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        source="github.com/pydantic/pydantic-ai/issues/974",
    ),
    *output_rules("openai", "response_format", "response_format.json_schema"),
)

RULES = (*OPENAI_RULES, *VENDOR_RULES, *SERVER_TOOL_RULES)
