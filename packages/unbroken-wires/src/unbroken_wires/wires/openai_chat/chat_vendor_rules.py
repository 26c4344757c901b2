"""openai-chat: what other providers than OpenAI refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unbroken_wires.messages import Json
from unbroken_wires.wires.body_paths import find, without
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.openai_chat.chat_message_keys import MESSAGE_KEY_RULES
from unbroken_wires.wires.rules import (
    ANY_MODEL,
    Asked,
    Check,
    Function,
    Matches,
    Mended,
    Models,
    Named,
    Never,
    NotTogether,
    Refused,
    Rule,
)


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
        {**message, "role": "user", "content": _marked(message.get("content"))}
        if n > first and message.get("role") == "system"
        else message
        for n, message in enumerate(messages)
    ]
    return {**body, "messages": new}, []


def _marked(content: Json) -> str:
    texts = [as_text(part.get("text")) for part in dicts(content)] if isinstance(content, list) else [as_text(content)]
    return f"<system>{chr(10).join(texts)}</system>"


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


def _not_forced(body: Object) -> Mended | None:
    return without(body, "tool_choice"), ["tool_choice"]


def _thinking_off(body: Object) -> Mended | None:
    return {**body, "thinking": {"type": "disabled"}}, ["thinking"]


_MISTRAL_KEYS = frozenset(
    (
        "model",
        "messages",
        "temperature",
        "top_p",
        "max_tokens",
        "stream",
        "stop",
        "random_seed",
        "metadata",
        "response_format",
        "tools",
        "tool_choice",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "repetition_penalty",
        "top_k",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "top_prompt_logprobs",
        "n",
        "prediction",
        "parallel_tool_calls",
        "reasoning_effort",
        "prompt_mode",
        "guardrails",
        "prompt_cache_key",
        "service_tier",
        "safe_prompt",
    )
)

_FIXED_SAMPLING = Named("kimi-k2.[5-9]*", "kimi-k[3-9]*")
_THINKING_OFF = Refused("thinking{type=disabled}")


def _think_little(body: Object) -> Mended:
    return {**body, "thinking": {"type": "enabled"}, "reasoning_effort": "low"}, ["thinking"]


def _effort_alone(body: Object) -> Mended:
    """For models that always think and have no other word for it than the effort."""
    off = as_dict(body.get("thinking")).get("type") == "disabled"
    rest = {key: value for key, value in body.items() if key != "thinking"}
    return ({**rest, "reasoning_effort": "low"}, ["thinking"]) if off else (rest, [])


_ALWAYS_THINK: tuple[tuple[str, Models, Check, str, str], ...] = (
    (
        "zhipu",
        Named("glm-5.[3-9]*", "glm-[6-9]*", "glm-z1*", "glm-4.1v-thinking*"),
        replace(_THINKING_OFF, repair=_think_little),
        "This model always engages in thinking and cannot be disabled; please use low, high, or max",
        "github.com/NousResearch/hermes-agent/issues/85890",
    ),
    (
        "moonshot",
        Named("kimi-k2.7-code*", "kimi-k2-thinking*"),
        _THINKING_OFF,
        "invalid thinking: only type=enabled is allowed for this model",
        "platform.kimi.ai/docs: model parameters",
    ),
    (
        "moonshot",
        Named("kimi-k[3-9]*"),
        Refused("thinking", repair=_effort_alone),
        "invalid thinking: this model always reasons, use reasoning_effort",
        "platform.kimi.ai/docs/guide/use-thinking-effort",
    ),
    (
        "qwen",
        Named("qwq*", "qvq*", "qwen*-thinking*"),
        Never("enable_thinking", (False,)),
        "The value of the enable_thinking parameter is restricted to True.",
        "help.aliyun.com: deep thinking",
    ),
)
"""Providers and the models whose thinking cannot be turned off."""

VENDOR_RULES = (
    *MESSAGE_KEY_RULES,
    *(
        Rule(
            f"{provider}.always-thinks", "thinking cannot be turned off", check, models, (provider,), error, 400, source
        )
        for provider, models, check, error, source in _ALWAYS_THINK
    ),
    *(
        Rule(
            f"moonshot.{name.replace('_', '-')}",
            f"`{name}` is fixed",
            Refused(name, but=but),
            _FIXED_SAMPLING,
            ("moonshot",),
            f"invalid {name}: only {but[0]} is allowed for this model",
            source="platform.kimi.ai/docs: model parameters",
        )
        for name, but in (("top_p", (0.95,)), ("n", (1,)), ("presence_penalty", (0,)), ("frequency_penalty", (0,)))
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
        _FIXED_SAMPLING,
        ("moonshot",),
        "invalid temperature: only 1 is allowed for this model",
        source="platform.moonshot.ai/docs",
    ),
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
    *(
        Rule(
            "moonshot.forced-call",
            "while it thinks, no call can be forced",
            Function(lambda asked: _forced(asked) if _thinks(asked) else [], mend, "tool_choice"),
            models,
            ("moonshot",),
            "tool_choice 'specified' is incompatible with thinking enabled",
            source="github.com/can1357/oh-my-pi/issues/1077",
        )
        for models, mend in (
            (Named("kimi-k2.5*", "kimi-k2.6*"), _thinking_off),
            (Named("kimi-k2.7*", "kimi-k2-thinking*", "kimi-k[3-9]*"), _not_forced),
        )
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
    *(
        Rule(
            f"{provider}.system-first",
            "system messages are before all others",
            Function(_system_later, _system_as_user, "messages"),
            ANY_MODEL,
            (provider,),
            error,
            source=source,
        )
        for provider, error, source in (
            (
                "minimax",
                "invalid params, chat content has invalid message role: system (2013)",
                "platform.minimax.io/docs",
            ),
            (
                "mistral",
                "Unexpected role 'system' after role 'assistant'",
                "github.com/spring-projects/spring-ai/issues/2380",
            ),
        )
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
