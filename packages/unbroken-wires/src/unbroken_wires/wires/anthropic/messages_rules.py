"""anthropic-messages: what Claude models refuse, by family. Facts of `anthropic-version: 2023-06-01`, 2025 and 2026."""

from __future__ import annotations

from typing import cast

from unbroken_wires.messages import Json
from unbroken_wires.wires.anthropic.messages_binding import binding_betas
from unbroken_wires.wires.anthropic.messages_server_tools import RULES as SERVER_TOOL_RULES
from unbroken_wires.wires.anthropic.messages_server_tools import is_paused
from unbroken_wires.wires.body_paths import changed, find, places, without
from unbroken_wires.wires.claude_models import (
    ALWAYS_THINKS,
    BEFORE_4_6,
    BETWEEN_TOOLS,
    BINDING,
    CLAUDE,
    NO_FORCED_CALL,
    OUTPUT_LIMITS,
    SINCE_4_6,
    SINCE_4_7,
    WITHOUT_EFFORT,
    Claude,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    ASSISTANT_FIRST,
    Asked,
    AtMost,
    Between,
    Function,
    Matches,
    Mended,
    Needs,
    Never,
    NotTogether,
    Only,
    Refused,
    Rule,
    Sized,
    StrictSchemas,
    Unique,
    When,
    user_first,
)
from unbroken_wires.wires.schemas import CLAUDE_KEYWORDS, as_object, is_object, is_recursive, keywords_of

ANTHROPIC = ("anthropic", "vertex-claude")


# Checks that need more than a path


def _budget_below_limit(asked: Asked) -> list[str]:
    budget, limit = (
        as_int(as_dict(asked.body.get("thinking")).get("budget_tokens")),
        as_int(asked.body.get("max_tokens")),
    )
    interleaved = "interleaved-thinking" in asked.headers.get("anthropic-beta", "")
    return ["thinking.budget_tokens"] if budget and limit and budget >= limit and not interleaved else []


def _odd_output_schemas(asked: Asked) -> list[str]:
    return places(
        asked.body,
        "output_config.format.schema",
        lambda schema: not keywords_of(schema) <= CLAUDE_KEYWORDS or is_recursive(as_dict(schema)),
    )


def _lower_budget(body: Object) -> Mended | None:
    """Thinking gets what is left of the limit, if that is enough; otherwise it is left out."""
    limit = as_int(body.get("max_tokens"))
    if limit > 1024:
        return changed(body, "thinking.budget_tokens", lambda _: max(1024, limit - 1024)), ["thinking.budget_tokens"]
    return without(body, "thinking"), ["thinking"]


def _adaptive(body: Object) -> Mended | None:
    """The budget as an effort."""
    budget = as_int(as_dict(body.get("thinking")).get("budget_tokens"))
    effort = "low" if budget <= 4096 else "medium" if budget <= 16384 else "high"
    thinking = {**as_dict(body.get("thinking")), "type": "adaptive"}
    thinking.pop("budget_tokens", None)
    output = {"effort": effort, **as_dict(body.get("output_config"))}
    return {**body, "thinking": thinking, "output_config": output}, ["thinking.budget_tokens"]


def _least_effort(body: Object) -> Mended | None:
    """The lowest effort is the nearest to no thinking."""
    config = {"effort": "low", **as_dict(body.get("output_config"))}
    return {**without(body, "thinking"), "output_config": config}, ["thinking"]


def _between_tools(body: Object) -> Mended | None:
    return {**body, "thinking": {"type": "between_tools"}}, ["thinking"]


def _choose_freely(body: Object) -> Mended | None:
    """The same choice without the force: whether one call at a time was asked for stays."""
    choice = {key: value for key, value in body["tool_choice"].items() if key != "name"}
    return {**body, "tool_choice": {**choice, "type": "auto"}}, ["tool_choice"]


def _without_thinking(body: Object) -> Mended | None:
    return without(body, "thinking"), ["thinking"]


def _ends_with_assistant(asked: Asked) -> list[str]:
    messages = dicts(asked.body.get("messages"))
    if not messages or messages[-1].get("role") != "assistant" or is_paused(messages[-1]):
        return []
    return [f"messages[{len(messages) - 1}]"]


def _ends_in_space(asked: Asked) -> list[str]:
    last = (dicts(asked.body.get("messages")) or [{}])[-1]
    if last.get("role") != "assistant":
        return []
    content = last.get("content")
    text = content if isinstance(content, str) else as_text((dicts(content) or [{}])[-1].get("text"))
    return ["messages"] if text != text.rstrip() else []


def _without_last_space(body: Object) -> Mended | None:
    messages: list[Json] = list(body["messages"])
    last = cast("Object", messages[-1])
    content = last.get("content")
    if isinstance(content, str):
        new: Json = content.rstrip()
    else:
        blocks = dicts(content)
        new = [*blocks[:-1], {**blocks[-1], "text": as_text(blocks[-1].get("text")).rstrip()}]
    messages[-1] = {**last, "content": new}
    return {**body, "messages": messages}, []


def _without_context_management(body: Object) -> Mended | None:
    return without(body, "context_management"), ["context_management"]


def _lacks_beta(asked: Asked) -> list[str]:
    beta = asked.headers.get("anthropic-beta", "")
    has = "context-management-" in beta or "compact-" in beta
    return ["context_management"] if asked.body.get("context_management") is not None and not has else []


def _lacks_binding_beta(asked: Asked) -> list[str]:
    missing = [beta for beta in binding_betas(asked.body) if beta not in asked.headers.get("anthropic-beta", "")]
    return [f"thinking.{BINDING}"] if missing else []


def _combined_roots(asked: Asked) -> list[str]:
    return places(asked.body, "tools[].input_schema", lambda schema: not is_object(schema))


def _one_object(body: Object) -> Mended | None:
    return changed(body, "tools[].input_schema", as_object), ["tools.input_schema"]


def _calls_without_tools(asked: Asked) -> list[str]:
    if asked.body.get("tools"):
        return []
    return [where for where, _ in find(asked.body, "messages[].content[]{type=tool_use|tool_result}")]


def _with_their_tools(body: Object) -> Mended | None:
    """The tools that the history names, which the model may not call."""
    names = dict.fromkeys(name for _, name in find(body, "messages[].content[]{type=tool_use}.name"))
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return ({**body, "tools": tools, "tool_choice": {"type": "none"}}, []) if tools else None


THINKS = "thinking{type=enabled|adaptive}"
_DOCS = "platform.claude.com/docs: extended thinking"
_NEWS = "platform.claude.com/docs/en/models"

RULES = (
    Rule(
        "anthropic.one-sampling-setting",
        "`temperature` and `top_p` are not accepted together",
        NotTogether("temperature", "top_p"),
        Claude((4, 1), (4, 7)),
        ANTHROPIC,
        error="`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        source="github.com/BerriAI/litellm/issues/15097",
    ),
    Rule(
        "anthropic.no-temperature",
        "`temperature` other than 1 is not accepted",
        Refused("temperature", but=(1,)),
        SINCE_4_7,
        ANTHROPIC,
        error="`temperature` is deprecated for this model.",
        source="github.com/UKGovernmentBEIS/inspect_ai/issues/3721",
    ),
    Rule(
        "anthropic.no-top-p",
        "`top_p` other than 0.99 is not accepted",
        Refused("top_p", but=(0.99,)),
        SINCE_4_7,
        ANTHROPIC,
        error="`top_p` is deprecated for this model.",
        source="github.com/The-PR-Agent/pr-agent/issues/2456",
    ),
    Rule(
        "anthropic.no-top-k",
        "`top_k` is not accepted",
        Refused("top_k"),
        SINCE_4_7,
        ANTHROPIC,
        error="`top_k` is deprecated for this model.",
        source="github.com/The-PR-Agent/pr-agent/issues/2456",
    ),
    Rule(
        "anthropic.no-budget",
        "thinking with a budget is not accepted: adaptive thinking and `output_config.effort` replace it",
        Refused("thinking{type=enabled}", repair=_adaptive),
        SINCE_4_7,
        ANTHROPIC,
        error='"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.',
        source="github.com/anomalyco/opencode/issues/22863",
    ),
    Rule(
        "anthropic.always-thinks",
        "thinking cannot be turned off",
        Refused("thinking{type=disabled}", repair=_least_effort),
        ALWAYS_THINKS,
        ANTHROPIC,
        error='"thinking.type.disabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.',
        source=f"{_NEWS}/opus-5-5/whats-new-opus-5-5",
    ),
    Rule(
        "anthropic.between-tools",
        "thinking cannot be turned off: `between_tools` is the least",
        Refused("thinking{type=disabled}", repair=_between_tools),
        BETWEEN_TOOLS,
        ANTHROPIC,
        error='"thinking.type.disabled" is not supported for this model. Use "thinking.type.between_tools".',
        source=f"{_NEWS}/sonnet-5-5/whats-new-sonnet-5-5",
    ),
    Rule(
        "anthropic.no-forced-call",
        "no call can be forced",
        Refused("tool_choice{type=any|tool}", repair=_choose_freely),
        NO_FORCED_CALL,
        ANTHROPIC,
        error="tool_choice: forcing a call is not supported for this model",
        source=f"{_NEWS}/fable-5-1/migration-guide",
    ),
    Rule(
        "anthropic.no-adaptive-thinking",
        "adaptive thinking is known since Claude 4.6",
        Refused("thinking{type=adaptive}", repair=_without_thinking),
        BEFORE_4_6,
        ANTHROPIC,
        error="adaptive thinking is not supported on this model",
        source=_DOCS,
    ),
    Rule(
        "anthropic.no-effort",
        "`output_config.effort` is not known to this model",
        Refused("output_config.effort"),
        WITHOUT_EFFORT,
        ANTHROPIC,
        error="This model does not support the effort parameter.",
        source=_DOCS,
    ),
    Rule(
        "anthropic.smallest-budget",
        "`thinking.budget_tokens` is at least 1024",
        Between("thinking.budget_tokens", 1024),
        CLAUDE,
        ANTHROPIC,
        error="thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        source=_DOCS,
    ),
    Rule(
        "anthropic.budget-below-max-tokens",
        "`thinking.budget_tokens` is below `max_tokens`, unless thinking is interleaved",
        Function(_budget_below_limit, _lower_budget, "thinking"),
        CLAUDE,
        ANTHROPIC,
        error="`max_tokens` must be greater than `thinking.budget_tokens`.",
        source=_DOCS,
    ),
    Rule(
        "anthropic.forced-call-without-thinking",
        "with thinking on, no call can be forced",
        When(
            "thinking{type=enabled}",
            Refused("tool_choice{type=any|tool}", repair=_without_thinking),
        ),
        CLAUDE,
        ANTHROPIC,
        error="Thinking may not be enabled when tool_choice forces tool use.",
        source="github.com/mastra-ai/mastra/issues/7507",
    ),
    Rule(
        "anthropic.thinking-temperature",
        "with thinking on, `temperature` is 1",
        When(THINKS, Refused("temperature", but=(1,))),
        CLAUDE,
        ANTHROPIC,
        error="`temperature` may only be set to 1 when thinking is enabled.",
        source=_DOCS,
    ),
    Rule(
        "anthropic.thinking-top-p",
        "with thinking on, `top_p` is between 0.95 and 1",
        When(
            THINKS,
            Function(
                lambda a: [w for w, v in find(a.body, "top_p") if not 0.95 <= v <= 1],
                lambda b: (without(b, "top_p"), ["top_p"]),
            ),
        ),
        CLAUDE,
        ANTHROPIC,
        error="`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.",
        source=_DOCS,
    ),
    Rule(
        "anthropic.thinking-top-k",
        "with thinking on, `top_k` is not accepted",
        When(THINKS, Refused("top_k")),
        CLAUDE,
        ANTHROPIC,
        error="`top_k` must be unset when thinking is enabled.",
        source=_DOCS,
    ),
    Rule(
        "anthropic.clear-thinking",
        "the edit `clear_thinking_20251015` needs thinking",
        Needs("context_management.edits[]{type=clear_thinking_20251015}", THINKS),
        CLAUDE,
        ANTHROPIC,
        error="`clear_thinking_20251015` strategy requires `thinking` to be enabled or adaptive",
        source="github.com/anthropics/claude-code/issues/11971",
    ),
    Rule(
        "anthropic.context-management-beta",
        "`context_management` needs its beta header",
        Function(_lacks_beta, _without_context_management, "context_management"),
        CLAUDE,
        ANTHROPIC,
        error="context_management: Extra inputs are not permitted",
        source="github.com/ericc-ch/copilot-api/issues/217",
    ),
    Rule(
        "anthropic.binding-beta",
        "`thinking.block_binding` needs its beta header",
        Function(_lacks_binding_beta, field="thinking"),
        CLAUDE,
        ANTHROPIC,
        error="thinking.adaptive.block_binding: Extra inputs are not permitted",
        source="github.com/BerriAI/litellm/pull/41203",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.user-first",
        "the first message is the user's",
        user_first("messages", "assistant", {"role": "user", "content": ASSISTANT_FIRST}),
        ANY_MODEL,
        ANTHROPIC,
        error='messages: first message must use the "user" role',
        source="github.com/lobehub/lobehub/issues/1601",
    ),
    Rule(
        "anthropic.no-prefill",
        "the last message is not the assistant's",
        Function(_ends_with_assistant),
        SINCE_4_6,
        ANTHROPIC,
        error="This model does not support assistant message prefill. The conversation must end with a user message.",
        source="github.com/ericc-ch/copilot-api/issues/261",
    ),
    Rule(
        "anthropic.prefill-space",
        "a final text of the assistant does not end in white space",
        Function(_ends_in_space, _without_last_space),
        CLAUDE,
        ANTHROPIC,
        error="messages: final assistant content cannot end with trailing whitespace",
        source="github.com/langchain-ai/langchain/issues/35072",
    ),
    *(
        Rule(
            f"anthropic.max-tokens-{limit}",
            f"`max_tokens` is at most {limit}",
            Between("max_tokens", 1, limit),
            models,
            ANTHROPIC,
            error=f"max_tokens: more than {limit}, which is the maximum allowed number of output tokens for this model",
            source="docs.claude.com: models overview",
        )
        for models, limit in OUTPUT_LIMITS
    ),
    Rule(
        "anthropic.temperature-range",
        "`temperature` is between 0 and 1",
        Between("temperature", 0, 1),
        CLAUDE,
        ANTHROPIC,
        error="temperature: range: 0..1",
        source="docs.claude.com: messages",
    ),
    Rule(
        "anthropic.tool-name",
        "the name of a tool has 1 to 128 letters, digits, _ and -",
        Matches("tools[]{input_schema}.name", r"[a-zA-Z0-9_-]{1,128}"),
        CLAUDE,
        ANTHROPIC,
        error="{where}: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        source="github.com/home-assistant/core/issues/147760",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.tool-names-unique",
        "no two tools have the same name",
        Unique("tools[].name"),
        CLAUDE,
        ANTHROPIC,
        error="tools: Tool names must be unique.",
        source="github.com/anthropics/claude-code/issues/10687",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.call-id",
        "the id of a call has letters, digits, _ and -",
        Matches("messages[].content[]{type=tool_use}.id", r"[a-zA-Z0-9_-]+"),
        CLAUDE,
        ANTHROPIC,
        error="{where}: String should match pattern '^[a-zA-Z0-9_-]+$'",
        source="github.com/maximhq/bifrost/issues/5097",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.call-ids-unique",
        "no two calls have the same id",
        Unique("messages[].content[]{type=tool_use}.id"),
        CLAUDE,
        ANTHROPIC,
        error="{where}: `tool_use` ids must be unique",
        source="github.com/trycua/cua/issues/524",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.text-not-empty",
        "no text block is empty",
        Sized("messages[].content[]{type=text}.text", 1),
        CLAUDE,
        ANTHROPIC,
        error="messages: text content blocks must be non-empty",
        source="github.com/anthropics/claude-code/issues/59812",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.content-not-empty",
        "no message is without content",
        Sized("messages[].content", 1),
        CLAUDE,
        ANTHROPIC,
        error="{where}: all messages must have non-empty content except for the optional final assistant message",
        source="github.com/crewAIInc/crewAI/issues/4542",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.cache-marks",
        "at most four blocks have `cache_control`",
        AtMost("**.cache_control", 4),
        CLAUDE,
        ANTHROPIC,
        error="A maximum of 4 blocks with cache_control may be provided. Found 5.",
        source="github.com/Wei-Shaw/sub2api/issues/176",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.schema-root",
        "the schema of a tool is an object without `oneOf`, `allOf` or `anyOf` at its top",
        Function(_combined_roots, _one_object, "tools", alone=True),
        CLAUDE,
        ANTHROPIC,
        error="{where}: input_schema does not support oneOf, allOf, or anyOf at the top level",
        source="github.com/anthropics/claude-code/issues/5973",
    ),
    Rule(
        "anthropic.schema-draft",
        "the schema of a tool has types in lower case",
        Never("tools[].input_schema.**.type", ("STRING", "OBJECT", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY")),
        CLAUDE,
        ANTHROPIC,
        error="{where}: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
        "(https://json-schema.org/draft/2020-12).",
        source="github.com/anthropics/claude-code/issues/86664",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.no-output-format",
        "`output_config.format` is known since Claude 4.1",
        Refused("output_config.format"),
        Claude(before=(4, 1)),
        ANTHROPIC,
        error="output_config.format: structured output is not supported by this model.",
        source="platform.claude.com/docs: structured outputs",
    ),
    Rule(
        "anthropic.output-schema-closed",
        "every object of an output schema has `additionalProperties: false`",
        StrictSchemas("output_config.format.schema", optional=True),
        CLAUDE,
        ANTHROPIC,
        error="output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        source="github.com/ax-llm/ax/issues/458",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.output-schema-keywords",
        "an output schema has no limits of numbers and lengths, and does not contain itself",
        Function(_odd_output_schemas, field="output_config", alone=True),
        CLAUDE,
        ANTHROPIC,
        error="output_config.format.schema: a keyword of the schema is not supported",
        source="platform.claude.com/docs: structured outputs",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.tools-with-their-history",
        "a history with calls or results needs tools",
        Function(_calls_without_tools, _with_their_tools, "messages"),
        CLAUDE,
        ANTHROPIC,
        error="tools: Field required when the history has `tool_use` or `tool_result` blocks",
        source="docs.claude.com: tool use",
    ),
    Rule(
        "anthropic.image-size",
        "the base64 text of an image has at most 10485760 characters",
        Sized("messages[].content[]{type=image}.source.data", 0, 10_485_760),
        CLAUDE,
        ANTHROPIC,
        error="{where}: image exceeds 5 MB maximum",
        source="github.com/anthropics/claude-code/issues/19631",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.tool-choice",
        "`tool_choice` is auto, any, tool or none",
        Only("tool_choice.type", ("auto", "any", "tool", "none")),
        CLAUDE,
        ANTHROPIC,
        error="tool_choice: Input tag found using 'type' does not match any of the expected tags: "
        "'auto', 'any', 'tool', 'none'",
        source="docs.claude.com: messages",
        obeyed="by the encoder",
    ),
    Rule(
        "anthropic.choice-with-tools",
        "`tool_choice` needs tools",
        Needs("tool_choice", "tools[]"),
        CLAUDE,
        ANTHROPIC,
        error="tool_choice may only be specified while providing tools",
        source="docs.claude.com: messages",
    ),
    *SERVER_TOOL_RULES,
)
