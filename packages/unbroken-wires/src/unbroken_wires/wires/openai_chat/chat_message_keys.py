"""openai-chat: which keys of messages a provider knows, where it refuses others, as data. They are left behind when a
history comes from another provider: reasoning, signatures of calls, marks."""

from __future__ import annotations

from collections.abc import Mapping

from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts
from unbroken_wires.wires.rules import ANY_MODEL, Asked, Function, Mended, Rule

_CALL = frozenset({"id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})
_RESULT = "role content tool_call_id name"

_KEYS: tuple[tuple[tuple[str, ...], dict[str, str], str, int, str], ...] = (
    (
        ("mistral",),
        {"assistant": "role content tool_calls prefix", "tool": _RESULT, "": "role content"},
        "Extra inputs are not permitted",
        422,
        "package mistralai: models of messages",
    ),
    (
        ("groq", "cerebras"),
        {"assistant": "role content name tool_calls reasoning", "tool": _RESULT, "": "role content name"},
        "'{where}' : property is unsupported",
        400,
        "console.groq.com/docs/api-reference, inference-docs.cerebras.ai/api-reference/chat-completions",
    ),
)
"""Providers, the keys by role, the error for any other with its status, and the source."""


def _unknown(message: Object, known: Mapping[str, frozenset[str]]) -> list[str]:
    keys = known.get(as_text(message.get("role")), known[""])
    names = [f"messages.{key}" for key in message if key not in keys]
    for call in dicts(message.get("tool_calls")):
        inner = as_dict(call.get("function"))
        names += [f"messages.tool_calls.{key}" for key in call if key not in _CALL]
        names += [f"messages.tool_calls.function.{key}" for key in inner if key not in _FUNCTION]
    return names


def _only(value: Object, keys: frozenset[str]) -> Object:
    return {key: each for key, each in value.items() if key in keys}


def _trimmed(message: Object, known: Mapping[str, frozenset[str]]) -> Object:
    message = _only(message, known.get(as_text(message.get("role")), known[""]))
    if calls := [_only(call, _CALL) for call in dicts(message.get("tool_calls"))]:
        message["tool_calls"] = [
            {**call, "function": _only(as_dict(call.get("function")), _FUNCTION)} for call in calls
        ]
    return message


def _only_known(keys: Mapping[str, str]) -> Function:
    known = {role: frozenset(names.split()) for role, names in keys.items()}

    def check(asked: Asked) -> list[str]:
        names = [name for message in dicts(asked.body.get("messages")) for name in _unknown(message, known)]
        return list(dict.fromkeys(names))

    def mend(body: Object) -> Mended:
        messages = [_trimmed(message, known) for message in dicts(body["messages"])]
        return {**body, "messages": messages}, check(Asked(body))

    return Function(check, mend, "messages")


MESSAGE_KEY_RULES = tuple(
    Rule(
        f"{providers[0]}.message-keys",
        "unknown keys of messages are not accepted",
        _only_known(keys),
        ANY_MODEL,
        providers,
        error,
        status,
        source,
    )
    for providers, keys, error, status, source in _KEYS
)
