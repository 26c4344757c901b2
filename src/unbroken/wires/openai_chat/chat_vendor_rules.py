"""openai-chat: what other providers than OpenAI refuse."""

from __future__ import annotations

from collections.abc import Callable

from unbroken.wires.body_paths import find, without
from unbroken.wires.rules import (
    ANY_MODEL,
    Asked,
    Function,
    Matches,
    Mended,
    Named,
    Never,
    NotTogether,
    Only,
    Refused,
    Rule,
)
from unbroken.wires.values import Object, as_dict, as_text, dicts


def not_strict(body: Object) -> Mended | None:
    return without(body, "tools[].function{strict=True}.strict"), ["tools.function.strict"]


def _system_later(asked: Asked) -> list[str]:
    """System messages after another one."""
    roles = [as_text(message.get("role")) for message in dicts(asked.body.get("messages"))]
    first = next((n for n, role in enumerate(roles) if role != "system"), len(roles))
    return [f"messages[{n}]" for n, role in enumerate(roles) if role == "system" and n > first]


def _system_as_user(body: Object) -> Mended | None:
    """System lines in the middle are sent as the user's, marked as what they are."""
    messages = dicts(body.get("messages"))
    first = next((n for n, message in enumerate(messages) if message.get("role") != "system"), 0)
    new = [
        {**message, "role": "user", "content": f"<system>{message.get('content')}</system>"}
        if n > first and message.get("role") == "system"
        else message
        for n, message in enumerate(messages)
    ]
    return {**body, "messages": new}, []


def _never_after(role: str, before: str, repair: Callable[[Object], Mended | None]) -> Function:
    def check(asked: Asked) -> list[str]:
        roles = [message.get("role") for message in dicts(asked.body.get("messages"))]
        return [f"messages[{n}]" for n in range(1, len(roles)) if (roles[n - 1], roles[n]) == (before, role)]

    return Function(check, repair, "messages")


def _ends_with_assistant(asked: Asked) -> list[str]:
    messages = dicts(asked.body.get("messages"))
    last = messages[-1] if messages else {}
    ends = last.get("role") == "assistant" and last.get("prefix") is not True
    return [f"messages[{len(messages) - 1}]"] if ends else []


def _as_prefix(body: Object) -> Mended | None:
    """The answer that the model is to continue."""
    messages = dicts(body.get("messages"))
    return {**body, "messages": [*messages[:-1], {**messages[-1], "prefix": True}]}, []


def _bridged(body: Object) -> Mended | None:
    """With a word of the assistant between a result and the user."""
    messages: list[Object] = []
    for message in dicts(body.get("messages")):
        if messages and (messages[-1].get("role"), message.get("role")) == ("tool", "user"):
            messages.append({"role": "assistant", "content": "Understood."})
        messages.append(message)
    return {**body, "messages": messages}, []


def _only_system(asked: Asked) -> list[str]:
    return [] if find(asked.body, "messages[]{role=user|tool|assistant}") else ["messages"]


def _system_to_user(body: Object) -> Mended | None:
    messages = dicts(body.get("messages"))
    return {**body, "messages": [*messages[:-1], *({**message, "role": "user"} for message in messages[-1:])]}, []


def _unknown_keys(known: frozenset[str]) -> Function:
    return Function(
        lambda asked: sorted(asked.body.keys() - known),
        lambda body: ({key: value for key, value in body.items() if key in known}, sorted(body.keys() - known)),
    )


def _thinks(asked: Asked) -> bool:
    return as_dict(asked.body.get("thinking")).get("type") != "disabled"


def _calls_without_reasoning(asked: Asked) -> list[str]:
    return (
        [where for where, _ in find(asked.body, "messages[]{tool_calls}{!reasoning_content}")] if _thinks(asked) else []
    )


def _forced(asked: Asked) -> list[str]:
    return ["tool_choice"] if asked.body.get("tool_choice") not in (None, "auto", "none") else []


def _thinking_off(body: Object) -> Mended | None:
    return {**body, "thinking": {"type": "disabled"}}, ["thinking"]


_MISTRAL_KEYS = frozenset(
    (
        *("model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed", "metadata"),
        *("response_format", "tools", "tool_choice", "presence_penalty", "frequency_penalty", "min_tokens"),
        *("repetition_penalty", "top_k", "logprobs", "top_logprobs", "prompt_logprobs", "top_prompt_logprobs", "n"),
        *("prediction", "parallel_tool_calls", "reasoning_effort", "prompt_mode", "guardrails", "prompt_cache_key"),
        *("service_tier", "safe_prompt"),
    )
)

VENDOR_RULES = (
    Rule(
        "xai.json-without-tools",
        "`response_format` with a schema is accepted beside `tools` since Grok 4",
        NotTogether("tools[]", "response_format{type=json_schema}"),
        Named("grok-2*", "grok-3*"),
        ("xai",),
        source="docs.x.ai/docs/guides/structured-outputs",
    ),
    Rule(
        "deepseek.forced-call",
        "while it thinks, no call can be forced",
        Function(lambda asked: _forced(asked) if _thinks(asked) else [], _thinking_off, "tool_choice"),
        Named("deepseek-v4*", "deepseek-reasoner*"),
        ("deepseek",),
        source="api-docs.deepseek.com: thinking mode",
    ),
    Rule(
        "deepseek.reasoning-back",
        "while it thinks, a message with calls has its `reasoning_content`",
        Function(_calls_without_reasoning),
        Named("deepseek-v4*", "deepseek-reasoner*"),
        ("deepseek",),
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        source="api-docs.deepseek.com: thinking mode",
        obeyed="by the encoder",
    ),
    Rule(
        "qwen.forced-call",
        "while it thinks, no call can be forced",
        Function(
            lambda asked: _forced(asked) if asked.body.get("enable_thinking") is True else [],
            lambda body: ({**body, "enable_thinking": False}, ["enable_thinking"]),
            "enable_thinking",
        ),
        ANY_MODEL,
        ("qwen",),
        "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to required "
        "or object in thinking mode",
        source="help.aliyun.com: function calling",
    ),
    Rule(
        "qwen.thinking-streams",
        "thinking is for streams",
        Function(
            lambda asked: (
                ["enable_thinking"]
                if asked.body.get("enable_thinking") is True and not asked.body.get("stream")
                else []
            ),
            lambda body: ({**body, "enable_thinking": False}, ["enable_thinking"]),
            "enable_thinking",
        ),
        Named("qwen3-*", "qwen3*b*", "qwq*"),
        ("qwen",),
        "parameter.enable_thinking must be set to false for non-streaming calls",
        source="help.aliyun.com: deep thinking",
    ),
    Rule(
        "moonshot.temperature",
        "`temperature` is 1 with thinking and 0.6 without",
        Function(
            lambda asked: [
                where for where, value in find(asked.body, "temperature") if value != (1 if _thinks(asked) else 0.6)
            ],
            lambda body: (without(body, "temperature"), ["temperature"]),
            "temperature",
        ),
        Named("kimi-k2.5*", "kimi-k2.6*", "kimi-k2.7*", "kimi-k3*"),
        ("moonshot",),
        "invalid temperature: only 1 is allowed for this model",
        source="platform.moonshot.ai/docs",
    ),
    Rule(
        "moonshot.reasoning-back",
        "while it thinks, a message with calls has its `reasoning_content`",
        Function(_calls_without_reasoning),
        Named("kimi-k2.5*", "kimi-k2.6*", "kimi-k2.7*", "kimi-k2-thinking*", "kimi-k3*"),
        ("moonshot",),
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        source="platform.moonshot.ai/docs",
        obeyed="by the encoder",
    ),
    Rule(
        "zhipu.choice",
        "`tool_choice` is auto",
        Refused("tool_choice", but=("auto",)),
        ANY_MODEL,
        ("zhipu",),
        "Tool choice must be auto",
        source="docs.z.ai: function calling",
    ),
    Rule(
        "zhipu.user",
        "at least one message is the user's",
        Function(_only_system, _system_to_user, "messages"),
        ANY_MODEL,
        ("zhipu", "mistral", "minimax", "qwen", "moonshot"),
        "The messages parameter is illegal. Please check the documentation.",
        source="docs.z.ai",
    ),
    Rule(
        "minimax.parameters",
        "every tool has parameters",
        Refused("tools[].function{!parameters}"),
        ANY_MODEL,
        ("minimax",),
        "invalid params, function parameters is empty (2013)",
        source="platform.minimax.io/docs",
        obeyed="by the encoder",
    ),
    Rule(
        "minimax.system-first",
        "system messages are before all others",
        Function(_system_later, _system_as_user),
        ANY_MODEL,
        ("minimax",),
        "invalid params, chat content has invalid message role: system (2013)",
        source="platform.minimax.io/docs",
    ),
    Rule(
        "mistral.keys",
        "unknown fields are not accepted",
        _unknown_keys(_MISTRAL_KEYS),
        ANY_MODEL,
        ("mistral",),
        "Extra inputs are not permitted",
        422,
        source="docs.mistral.ai/api",
    ),
    Rule(
        "mistral.call-id",
        "the id of a call has 9 letters and digits",
        Matches("messages[].tool_calls[].id", "[a-zA-Z0-9]{9}"),
        ANY_MODEL,
        ("mistral",),
        "Tool call id must be a-z, A-Z, 0-9, with a length of 9.",
        source="docs.mistral.ai",
        obeyed="by the encoder",
    ),
    Rule(
        "mistral.user-after-tool",
        "no user message follows a tool message directly",
        _never_after("user", "tool", _bridged),
        ANY_MODEL,
        ("mistral",),
        "Unexpected role 'user' after role 'tool'",
        source="docs.mistral.ai",
    ),
    Rule(
        "mistral.last-role",
        "the last message is the user's or a tool's",
        Function(_ends_with_assistant, _as_prefix, "messages"),
        ANY_MODEL,
        ("mistral",),
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        source="docs.mistral.ai",
    ),
    Rule(
        "groq.effort-qwen",
        "`reasoning_effort` is none or default",
        Only(
            "reasoning_effort",
            ("none", "default"),
            dict.fromkeys(("minimal", "low", "medium", "high", "xhigh"), "default"),
        ),
        Named("qwen3*"),
        ("groq",),
        "reasoning_effort must be one of none or default",
        source="console.groq.com/docs/reasoning",
    ),
    Rule(
        "groq.reasoning-content",
        "no message has `reasoning_content`",
        Refused("messages[].reasoning_content"),
        ANY_MODEL,
        ("groq",),
        "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property "
        "'reasoning_content' is unsupported)]",
        source="console.groq.com/docs",
    ),
    Rule(
        "xai.effort",
        "`reasoning_effort` is not accepted",
        Refused("reasoning_effort"),
        Named("grok-4", "grok-4-0709", "grok-4-latest", "grok-4-fast*", "grok-4-1-fast*", "grok-code-fast*"),
        ("xai",),
        "Model grok-4-latest does not support parameter reasoningEffort.",
        source="docs.x.ai: reasoning",
    ),
    Rule(
        "xai.effort-values",
        "`reasoning_effort` has no xhigh and no minimal",
        Never("reasoning_effort", ("xhigh", "minimal"), {"xhigh": "high", "minimal": "low"}),
        Named("grok-4.3*", "grok-4.5*", "grok-3-mini*"),
        ("xai",),
        source="docs.x.ai: reasoning",
    ),
    Rule(
        "xai.stop",
        "`stop` is not accepted by models that reason",
        Refused("stop"),
        Named("grok-4*", "grok-3-mini*", "!*non-reasoning*"),
        ("xai",),
        source="docs.x.ai: reasoning",
    ),
    Rule(
        "cerebras.parallel",
        "`parallel_tool_calls` false is not accepted",
        Refused("parallel_tool_calls", but=(True,)),
        ANY_MODEL,
        ("cerebras",),
        "parallel_tool_calls=False is not supported by this model.",
        source="inference-docs.cerebras.ai",
    ),
    Rule(
        "cerebras.strict",
        "strict tools are not accepted",
        Refused("tools[].function{strict=True}", repair=not_strict),
        Named("llama*"),
        ("cerebras",),
        "Tools with strict=True are not supported by this model",
        source="inference-docs.cerebras.ai",
    ),
    Rule(
        "ollama.effort",
        "`reasoning_effort` other than none is for models that think",
        Refused("reasoning_effort", but=("none",)),
        Named("llama3*", "llama-3*", "gemma*", "mistral*", "qwen2*", "phi*"),
        ("ollama",),
        '"llama3.1:8b" does not support thinking',
        source="docs.ollama.com",
    ),
)
