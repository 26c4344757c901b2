"""openai-chat, writing responses: `ChatEncoder` for a client, `ChatProviderWriter` as a provider writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson

from unbroken_wires.deltas import Delta, Meaning, TextDelta
from unbroken_wires.messages import Json, Request, ToolCall, Usage
from unbroken_wires.wires.history_losses import Citation
from unbroken_wires.wires.http_api import openai_error
from unbroken_wires.wires.json_access import Object
from unbroken_wires.wires.jsontext import dumps, strict
from unbroken_wires.wires.openai_chat.chat_decoder import read_usage
from unbroken_wires.wires.openai_chat.chat_messages import ID_RULE, encode_call
from unbroken_wires.wires.openai_chat.chat_relay import RelayedCall, RelayedChat
from unbroken_wires.wires.raw_history import same_input
from unbroken_wires.wires.wire import DeltaEncoder, Plain

_AFTER_TEXT = b'},"finish_reason":null}]}\n\n'


def error_body(status: int, message: str, kind: str = "") -> Object:
    """A body for a response with this status. For the kind "too_long" clients shorten their history."""
    return openai_error(status, message, kind, "messages")


def error_event(status: int, message: str, kind: str = "") -> bytes:
    """The last event of a stream that has begun."""
    return b"data: " + dumps(error_body(status, message, kind)) + b"\n\n"


class ChatEncoder(DeltaEncoder):
    """A call is written when it is complete: a client never sees half of one.

    `include_usage` is the client's choice in `stream_options`. One that did not ask for usage gets none in a stream,
    as from OpenAI: the chunk that carries it has no choices, and such clients look at the first of them. A body always
    has it. A response does not repeat its request: `request` and `now` change nothing.
    """

    def __init__(
        self,
        model: str = "",
        id: str = "chatcmpl-0",
        *,
        created: int = 0,
        include_usage: bool = True,
        request: Mapping[str, Json] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.include_usage = include_usage
        self._begun = False
        self._head: Object = {"id": id, "created": created, "model": model}
        self._before_text = b""
        """What stands before the text of a chunk, once nothing but the text changes."""
        self._relayed = RelayedChat()
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Object] = []
        self._annotations: list[Object] = []
        self._finish = ""
        self._error: Object | None = None

    def follow(self, data: bytes) -> None:
        self._before_text = b""
        self._relayed.add(data)

    def feed(self, delta: Delta) -> bytes:
        if self._before_text and isinstance(delta, TextDelta):
            self._texts.append(delta.text)
            return self._before_text + dumps(delta.text) + _AFTER_TEXT
        if self._relayed.catch_up():
            self._begun = self._begun or self._relayed.role
            self._head = {**self._head, **self._relayed.head}
        return self.write(delta)

    def _text(self, text: str) -> bytes:
        self._texts.append(text)
        chunk = self._chunk({"content": text})
        empty = self._event({"choices": [{"index": 0, "delta": {"content": ""}}]})
        self._before_text = empty.removesuffix(b'""}}]}\n\n')
        return chunk

    def _reasoning(self, text: str) -> bytes:
        self._thoughts.append(text)
        return self._chunk({"reasoning_content": text})

    def cite(self, citations: Sequence[Citation]) -> bytes | None:
        self._annotations = [
            {
                "type": "url_citation",
                "url_citation": {"url": one.url, "title": one.title, "start_index": one.start, "end_index": one.end},
            }
            for one in citations
        ]
        return self._chunk({"annotations": self._annotations})

    def body(self) -> bytes:
        if self._error is not None:
            return dumps(self._error)
        message: Object = {"role": "assistant", "content": "".join(self._texts) or None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._annotations:
            message["annotations"] = self._annotations
        if self._calls:
            message["tool_calls"] = self._calls
        body: Object = {**self._head, "object": "chat.completion"}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": self._finish or "stop"}]
        if self._usage is not None:
            body["usage"] = _encode_usage(self._usage)
        return dumps(body)

    def _call(self, call: ToolCall) -> bytes:
        encoded = encode_call(call, None)
        passed = self._relayed.find(call)
        if passed is not None:
            return self._rest_of(passed, encoded)
        self._calls.append(encoded)
        index = self._relayed.next_index + len(self._calls) - 1
        return self._chunk({"tool_calls": [{"index": index, **encoded}]})

    def _rest_of(self, passed: RelayedCall, encoded: Object) -> bytes:
        kind, field = ("custom", "input") if passed.custom else ("function", "arguments")
        said, whole = "".join(passed.pieces), encoded.get(kind, {}).get(field, "")
        if passed.whole or same_input(said, whole):
            return b""
        passed.torn = not whole.startswith(said)
        if passed.torn:
            return b""
        passed.pieces = [whole]
        return self._chunk({"tool_calls": [{"index": passed.index, kind: {field: whole[len(said) :]}}]})

    def fail(self, status: int, message: str, kind: str = "") -> bytes:
        self._error = error_body(status, message, kind)
        return b"" if self._relayed.done else error_event(status, message, kind)

    def end(self, told: Meaning) -> bytes:
        passed = self._relayed
        if told == "done" and any(call.cut for call in passed.calls):
            told = "length"  # nothing takes back what the client has seen of it
        self._finish = _finish(told, bool(self._calls or passed.calls))
        if passed.done:
            return b""
        last = b"" if passed.finished else self._chunk({}, self._finish)
        if self._usage is not None and self.include_usage and not passed.usage:
            last += self._event({"choices": [], "usage": _encode_usage(self._usage)})
        return last + b"data: [DONE]\n\n"

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        if not self._begun:  # the clients of OpenAI take the role from the first chunk, and one of them insists on it
            delta = {"role": "assistant", **delta}
            self._begun = True
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, event: Object) -> bytes:
        return b"data: " + dumps({**self._head, "object": "chat.completion.chunk", **event}) + b"\n\n"


class ChatProviderWriter(ChatEncoder):
    """Begins with an empty chunk that has the role, and writes the arguments of a call as they come."""

    call_prefix = "call"

    def __init__(self, request: Request, id: str) -> None:
        super().__init__(request.model, id)
        self._fragments: list[str] = []

    def begin(self) -> bytes:
        return self._chunk({"content": ""})

    def open_call(self, id: str, name: str) -> bytes:
        call: Object = {"id": id} if id else {}
        call |= {"type": "function", "function": {"name": name, "arguments": ""}}
        self._calls.append(call)
        return self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **call}]})

    def grow_call(self, text: str) -> bytes:
        self._fragments.append(text)
        return self._chunk({"tool_calls": [{"index": len(self._calls) - 1, "function": {"arguments": text}}]})

    def close_call(self, complete: bool) -> bytes:
        self._calls[-1]["function"]["arguments"] = "".join(self._fragments)
        self._fragments.clear()
        return b""


def _finish(meaning: Meaning, calls: bool) -> str:
    if meaning == "length":
        return "length"
    if meaning == "refused":
        return "content_filter"
    return "tool_calls" if calls else "stop"


def _encode_usage(usage: Usage) -> Object:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


# openai-chat, a shortcut for non-streaming bodies that are exactly as documented, which nearly all of them are.
#
# For anything else `read_plain` returns None and the decoder reads the body. Both must agree; a test compares them.


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
