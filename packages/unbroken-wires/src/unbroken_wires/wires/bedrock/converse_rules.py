"""bedrock-converse: what Bedrock refuses, by model family."""

from __future__ import annotations

from unbroken_wires.messages import Json
from unbroken_wires.wires.bedrock.converse_reasoning import FIELDS
from unbroken_wires.wires.bedrock.converse_server_tools import RULES as SERVER_TOOL_RULES
from unbroken_wires.wires.body_paths import changed, places, shown
from unbroken_wires.wires.claude_models import OUTPUT_LIMITS, SINCE_4_7, Claude, Either, adaptive_effort
from unbroken_wires.wires.content_parts import object_from_text
from unbroken_wires.wires.json_access import Object, as_dict, as_text
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    ASSISTANT_FIRST,
    Asked,
    Between,
    Function,
    Mended,
    Named,
    NotTogether,
    Refused,
    Rule,
    When,
    user_first,
)
from unbroken_wires.wires.schemas import as_object, claude_form, closed, is_object

BEDROCK = ("bedrock",)
_DOCS = "docs.aws.amazon.com/bedrock/latest: Converse, ToolChoice"
_SCHEMAS = "toolConfig.tools[].toolSpec.inputSchema.json"


WITHOUT_OUTPUT_FORMAT = Either(
    (
        Claude(before=(4, 5)),
        Claude(since=(4, 7)),
        Named("nova*", "titan*", "llama*", "command*", "*jamba*", "*palmyra*", "*deepseek.r1*"),
    )
)


def _odd_output_schemas(asked: Asked) -> list[str]:
    def is_odd(text: Json) -> bool:
        schema = object_from_text(as_text(text))
        return not schema or claude_form(schema) is None or closed(schema) != schema

    return places(asked.body, "outputConfig.textFormat.structure.jsonSchema.schema", is_odd)


def _adaptive(body: Object) -> Mended | None:
    fields = {**as_dict(body.get(FIELDS)), "thinking": {"type": "adaptive"}}
    fields.setdefault("output_config", {"effort": adaptive_effort("high", "")})
    return {**body, FIELDS: fields}, [f"{FIELDS}.thinking.budget_tokens"]


def _without_forced(body: Object) -> Mended | None:
    config = {name: value for name, value in as_dict(body.get("toolConfig")).items() if name != "toolChoice"}
    return {**body, "toolConfig": config}, ["toolConfig.toolChoice"]


RULES = (
    Rule(
        "bedrock.user-first",
        "the first message is the user's",
        user_first("messages", "assistant", {"role": "user", "content": [{"text": ASSISTANT_FIRST}]}),
        ANY_MODEL,
        BEDROCK,
        "A conversation must start with a user message. Try again with a conversation that starts with a user message.",
        source="github.com/langgenius/dify/issues/12340",
    ),
    Rule(
        "bedrock.one-sampling-setting",
        "`temperature` and `topP` are not accepted together",
        NotTogether("inferenceConfig.temperature", "inferenceConfig.topP"),
        Claude((4, 1), (4, 7)),
        BEDROCK,
        "The model returned the following errors: `temperature` and `top_p` cannot both be specified for this model. "
        "Please use only one.",
        source="github.com/BerriAI/litellm/issues/15097",
    ),
    *(
        Rule(
            f"bedrock.no-{name.lower()}",
            f"`{name}` is not accepted",
            Refused(f"inferenceConfig.{name}"),
            SINCE_4_7,
            BEDROCK,
            f"The model returned the following errors: `{own}` is deprecated for this model.",
            source="github.com/UKGovernmentBEIS/inspect_ai/issues/3721",
        )
        for name, own in (("temperature", "temperature"), ("topP", "top_p"))
    ),
    Rule(
        "bedrock.no-top-k",
        "`top_k` is not accepted",
        Refused(f"{FIELDS}.top_k"),
        SINCE_4_7,
        BEDROCK,
        "The model returned the following errors: `top_k` is deprecated for this model.",
        source="github.com/The-PR-Agent/pr-agent/issues/2456",
    ),
    Rule(
        "bedrock.adaptive-thinking",
        "thinking with a budget is not accepted: adaptive thinking and `output_config.effort` replace it",
        Refused(f"{FIELDS}.thinking{{type=enabled}}", repair=_adaptive),
        SINCE_4_7,
        BEDROCK,
        'The model returned the following errors: "thinking.type.enabled" is not supported for this model.',
        source="platform.claude.com/docs: extended thinking",
    ),
    Rule(
        "bedrock.forced-call-without-thinking",
        "with thinking on, no call can be forced",
        When(
            f"{FIELDS}.thinking{{type=enabled|adaptive}}", Refused("toolConfig.toolChoice.any", repair=_without_forced)
        ),
        Claude(),
        BEDROCK,
        "The model returned the following errors: Thinking may not be enabled when tool_choice forces tool use.",
        source="github.com/mastra-ai/mastra/issues/7507",
    ),
    *(
        Rule(
            f"bedrock.output-limit-{limit}",
            f"`maxTokens` is at most {limit:,}",
            Between("inferenceConfig.maxTokens", None, limit),
            models,
            BEDROCK,
            f"The maximum tokens you requested exceeds the model limit of {limit}. Try again with a maximum tokens "
            f"value that is lower than {limit}.",
            source="platform.claude.com/docs: models",
        )
        for models, limit in OUTPUT_LIMITS
    ),
    *(
        Rule(
            f"bedrock.no-forced-{kind}",
            f"`toolChoice.{kind}` is not known to these models",
            Refused(f"toolConfig.toolChoice.{kind}", repair=_without_forced),
            Named("llama*", "command*", "jamba*", "titan*", *others),
            BEDROCK,
            f"This model doesn't support the toolConfig.toolChoice.{kind} field. Remove toolConfig.toolChoice.{kind} "
            "and try again.",
            source=_DOCS,
        )
        for kind, others in (("any", ()), ("tool", ("mistral*", "mixtral*")))
    ),
    Rule(
        "bedrock.no-output-format",
        "`outputConfig.textFormat` is known to Claude 4.5 and 4.6, and to some models of other vendors",
        Refused("outputConfig.textFormat"),
        WITHOUT_OUTPUT_FORMAT,
        BEDROCK,
        "The model returned the following errors: output_config.format: Extra inputs are not permitted",
        source="docs.aws.amazon.com/bedrock/latest/userguide/structured-output.html",
    ),
    Rule(
        "bedrock.output-schema",
        "an output schema is the text of a JSON Schema in which every object is closed",
        Function(_odd_output_schemas, field="outputConfig", alone=True),
        ANY_MODEL,
        BEDROCK,
        "The model returned the following errors: output_config.format.schema: For 'object' type, "
        "'additionalProperties' must be explicitly set to false",
        source="github.com/future-agi/future-agi/issues/412",
        obeyed="by the encoder",
    ),
    Rule(
        "bedrock.schema-is-an-object",
        "the schema of a tool is an object, without alternatives at its top",
        Function(
            lambda asked: places(asked.body, _SCHEMAS, lambda schema: not is_object(schema)),
            lambda body: (changed(body, _SCHEMAS, as_object), [shown(_SCHEMAS)]),
            "toolConfig",
        ),
        Claude(),
        BEDROCK,
        "The model returned the following errors: tools.0.custom.input_schema: input_schema does not support oneOf, "
        "allOf, or anyOf at the top level",
        source="github.com/anthropics/claude-code/issues/5973",
    ),
    *SERVER_TOOL_RULES,
)
