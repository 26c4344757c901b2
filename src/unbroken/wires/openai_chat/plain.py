"""openai-chat, a whole body that leaves nothing to doubt, read at once: what nearly all of them are.

The decoder reads every bend that was ever seen, in pieces; that takes its time. Here only what is exactly as documented
is read, and for anything else the answer is None: then the decoder decides. Both must say the same (a test holds them
together).
"""

from __future__ import annotations

from typing import cast

from unbroken.messages import Assistant, Json, ToolCall
from unbroken.wires.jsontext import strict
from unbroken.wires.openai_chat.decoder import read_usage
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
    calls = _calls(message.get("tool_calls", _NONE))
    if calls is None or (text is not None and text.__class__ is not str):
        return None
    if finish != ("tool_calls" if calls else "stop") or not (calls or (text and text.strip())):
        return None
    usage = event.get("usage", _NONE)
    if usage is not None and usage.__class__ is not dict:
        return None
    return Plain(Assistant(text or "", calls), read_usage(usage) if usage else None, finish)


def _calls(calls: Json) -> tuple[ToolCall, ...] | None:
    if calls is None:
        return ()
    if calls.__class__ is not list:
        return None
    read = tuple([_call(call, index) for index, call in enumerate(cast("list[Json]", calls))])
    return None if None in read else cast("tuple[ToolCall, ...]", read)


def _call(call: Json, index: int) -> ToolCall | None:
    if call.__class__ is not dict or call.keys() != _CALL or call["type"] != "function":
        return None
    id, function = call["id"], call["function"]
    if id.__class__ is not str or not id or function.__class__ is not dict or function.keys() != _FUNCTION:
        return None
    name, raw = function["name"], function["arguments"]
    if name.__class__ is not str or not name or raw.__class__ is not str or len(raw) > _LONGEST:
        return None
    if raw[:1] != "{" or raw[-1:] != "}":
        return None
    try:
        arguments = strict.decode(raw)
    except (ValueError, RecursionError):
        return None
    return ToolCall(id, name, arguments, raw, index) if arguments.__class__ is dict else None
