"""openai-chat, a shortcut for non-streaming bodies that are exactly as documented, which nearly all of them are.

For anything else `read_plain` returns None and the decoder reads the body. Both must agree; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from unbroken.messages import Json, ToolCall
from unbroken.wires.jsontext import strict
from unbroken.wires.openai_chat.chat_decoder import read_usage
from unbroken.wires.openai_chat.chat_messages import ID_RULE
from unbroken.wires.values import Object
from unbroken.wires.wire import Plain

_TOP = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"})
_CHOICE = frozenset({"index", "message", "finish_reason", "logprobs"})
_MESSAGE = frozenset({"role", "content", "tool_calls", "refusal", "annotations"})
_CALL = frozenset({"id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})
_NONE: Json = None
_LONGEST = 1000
"""Characters of arguments that are not long enough to be nested too deep."""


def read_plain(event: Object) -> Plain | None:
    choices = event.get("choices", _NONE)
    if not _TOP.issuperset(event) or choices.__class__ is not list or len(choices) != 1:
        return None
    choice = choices[0]
    if choice.__class__ is not dict or not _CHOICE.issuperset(choice) or choice.get("index", _NONE) != 0:
        return None
    message = choice.get("message", _NONE)
    if message.__class__ is not dict or not _MESSAGE.issuperset(message) or message.get("role", _NONE) != "assistant":
        return None
    if message.get("refusal", _NONE) or message.get("annotations", _NONE):
        return None
    text, finish = message.get("content", _NONE), choice.get("finish_reason", _NONE)
    calls = message.get("tool_calls", _NONE) or ()
    if text is not None and text.__class__ is not str:
        return None
    if calls and (calls.__class__ is not list or not all(map(_is_plain, calls))):
        return None
    if finish != ("tool_calls" if calls else "stop") or not (calls or (text and text.strip())):
        return None
    usage = event.get("usage", _NONE)
    if usage is not None and usage.__class__ is not dict:
        return None
    return Plain(text or "", calls, read_usage(usage) if usage else None, finish, read_calls)


def _is_plain(call: Json) -> bool:
    if call.__class__ is not dict or call.keys() != _CALL or call["type"] != "function":
        return False
    id, function = call["id"], call["function"]
    if id.__class__ is not str or not 0 < len(id) <= ID_RULE.longest or function.__class__ is not dict:
        return False
    if function.keys() != _FUNCTION:
        return False
    name, raw = function["name"], function["arguments"]
    if name.__class__ is not str or not name or raw.__class__ is not str or len(raw) > _LONGEST:
        return False
    try:
        return raw[:1] == "{" and raw[-1:] == "}" and orjson.loads(raw).__class__ is dict
    except orjson.JSONDecodeError:
        return False


def read_calls(calls: Sequence[Object]) -> tuple[ToolCall, ...]:
    return tuple([_call(index, call["id"], **call["function"]) for index, call in enumerate(calls)])


def _call(index: int, id: str, name: str, arguments: str) -> ToolCall:
    return ToolCall(id, name, strict.decode(arguments), arguments, index)
