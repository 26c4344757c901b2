"""openai-chat, the messages of a request both ways: roles, calls and their results.

What an assistant message said beyond text and calls is kept in its `native` value and given back as it was: fields of
the message under their names, `content` (parts that are not one plain text), `tool_calls` (for each call what stood
beside its name and arguments, or None), `refusal` (which is also the end of our text, and is not said twice).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from unbroken.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken.wires.ids import CHAT, fit
from unbroken.wires.openai_chat.content import (
    NAME,
    decode_part,
    decode_parts,
    encode_part,
    encode_parts,
    plain_text,
    shortest,
)
from unbroken.wires.parts import call_from_text, outgoing_arguments, own_native
from unbroken.wires.values import Object, as_dict, as_list, as_text, dicts

OPAQUE_TEXTS = ("reasoning_content", "reasoning", "reasoning_text")
"""The names of reasoning, which has to travel back: DeepSeek and Kimi, OpenRouter, GitHub Copilot."""

IMAGES_OF = "Images of the result of"
"""Begins the user message that carries what a result cannot on this wire."""

# Outgoing


def encode_messages(messages: Iterable[Message], marks: bool = False) -> list[Object]:
    encoded: list[Object] = []
    own_ids: set[str] = set()  # a server that makes ids beyond the rule takes them back, and knows no others
    for message in messages:
        match message:
            case System():
                encoded.append({"role": "system", "content": encode_parts(message.parts, marks)})
            case User():
                encoded.append({"role": "user", "content": encode_parts(message.parts, marks)})
            case Assistant():
                if message.native is not None and message.native.wire == NAME:
                    own_ids.update(message.native.ids)
                encoded.append(_encode_assistant(message))
            case ToolMessage():
                encoded.extend(_encode_results(message, marks, own_ids))
    return encoded


def _encode_assistant(message: Assistant) -> Object:
    native = message.native
    if native is None or native.wire != NAME:
        plain: Object = {"role": "assistant", "content": message.text or (None if message.calls else "")}
        if message.calls:
            plain["tool_calls"] = [encode_call(call) for call in message.calls]
        return plain
    kept = dict(as_dict(native.value))
    content, refusal = dicts(kept.pop("content", None)), as_text(kept.pop("refusal", None))
    beside = dict(zip(native.ids, as_list(kept.pop("tool_calls", None)), strict=False))
    text = message.text
    if refusal and text.endswith(refusal):
        text = text.removesuffix(refusal)
        kept["refusal"] = refusal
    empty = None if message.calls or "refusal" in kept or "audio" in kept else ""
    encoded: Object = {**kept, "role": "assistant", "content": _encode_content(content, text) or empty}
    if message.calls:
        encoded["tool_calls"] = [_merged(encode_call(call), as_dict(beside.get(call.id))) for call in message.calls]
        for call, written in zip(message.calls, encoded["tool_calls"], strict=True):
            if call.id in native.ids:
                written["id"] = call.id
    return encoded


def _encode_content(kept: list[Object], text: str) -> Json:
    """The parts as they were, as long as they say the same text; else those that say none, then the text."""
    if not kept:
        return text
    if _text(kept) == text:
        return kept
    rest = [part for part in kept if not _text([part])]
    return [*rest, {"type": "text", "text": text}] if text else rest


def _text(content: Json) -> str:
    return "".join(part.text for part in decode_parts(content) if isinstance(part, Text))


def _merged(call: Object, beside: Object) -> Object:
    for key, value in beside.items():
        own = call.get(key)
        call[key] = {**as_dict(value), **as_dict(own)} if isinstance(own, dict) else own or value
    return call


def encode_call(call: ToolCall) -> Object:
    if call.kind == "custom":
        return {"id": fit(call.id, CHAT), "type": "custom", "custom": {"name": call.name, "input": call.raw}}
    function = {"name": call.name, "arguments": outgoing_arguments(call)}
    return {"id": fit(call.id, CHAT), "type": "function", "function": function}


def _encode_results(message: ToolMessage, marks: bool, own_ids: Collection[str]) -> list[Object]:
    """One message a result. This wire has no images in results: they follow in a user message, named by their call.
    Servers that do have them get them where a client put them."""
    encoded: list[Object] = []
    images: list[Object] = []
    for result in message.results:
        kept: Object = {} if result.native is None else as_dict(own_native(result, NAME))
        id = result.call_id
        if id not in own_ids:
            id = fit(id, CHAT)
        content = kept.get("content") if kept else plain_text(result.content, marks) or None
        if content is None:
            parts = [encode_part(part, marks) for part in result.content]
            media = [part for part in parts if part.get("type") != "text"]
            texts = [part for part in parts if part.get("type") == "text"]
            if media:
                label = f"[{len(media)} image(s) of this result follow in the next user message]"
                texts.append({"type": "text", "text": label})
                images += [{"type": "text", "text": f"{IMAGES_OF} {id}:"}, *media]
            content = shortest(texts) or ("Error" if result.error else "")  # only the text can say it here
        encoded.append({**kept, "role": "tool", "tool_call_id": id, "content": content})
    if images:
        encoded.append({"role": "user", "content": images})
    return encoded


# Incoming


def decode_messages(messages: list[Object]) -> tuple[Message, ...]:
    return tuple(_History(messages).read(messages))


_ASSISTANT = frozenset({"role", "content", "tool_calls", "function_call", "refusal"})
_CALL = frozenset({"id", "type", "index", "function", "custom"})
_RESULT = frozenset({"role", "content", "tool_call_id"})


class _History:
    """Reads messages in their order and knows which calls still have no result: a result without an id answers one of
    those of the last round, by name where it has one, else by place."""

    def __init__(self, messages: list[Object]) -> None:
        calls = (call for message in messages for call in dicts(message.get("tool_calls")))
        self._taken = {as_text(call.get("id")) for call in calls}
        self._rounds = 0
        self._open: dict[str, str] = {}
        """Of the last round: the id of each call that has no result, and its name."""

    def read(self, messages: list[Object]) -> Iterator[Message]:
        results: list[Object] = []
        for message in messages:
            role, content = message.get("role"), message.get("content")
            if role in ("tool", "function"):
                results.append(message)
                continue
            if results:
                yield self._results(results)
                results = []
            if role in ("system", "developer"):
                yield System(tuple(part for part in decode_parts(content) if isinstance(part, Text)))
            elif role == "assistant":
                yield self._assistant(message)
            else:
                yield User(decode_parts(content))
        if results:
            yield self._results(results)

    def _results(self, messages: list[Object]) -> ToolMessage:
        ids = [as_text(message.get("tool_call_id")) for message in messages]
        for id in ids:
            self._open.pop(id, None)
        named: dict[str, deque[str]] = {}
        for id, name in self._open.items():
            named.setdefault(name, deque()).append(id)
        for at, message in enumerate(messages):
            name = as_text(message.get("name"))
            if not ids[at] and name and named.get(name):
                ids[at] = named[name].popleft()
                del self._open[ids[at]]
        left = iter(list(self._open))
        for at, id in enumerate(ids):
            if not id:
                ids[at] = next(left, "") or self._mint(f"result_{self._rounds}_{at}")
                self._open.pop(ids[at], None)
        return ToolMessage(tuple(_result(message, id) for message, id in zip(messages, ids, strict=True)))

    def _assistant(self, message: Object) -> Assistant:
        calls: list[ToolCall] = []
        beside: list[Object | None] = []
        raw_calls = dicts(message.get("tool_calls"))
        legacy = as_dict(message.get("function_call"))
        if not raw_calls and legacy.get("name"):
            raw_calls = [{"function": legacy}]
        for index, raw in enumerate(raw_calls):
            id = as_text(raw.get("id")) or self._mint(f"call_{self._rounds}_{index}")
            call, more = _call(raw, id, index)
            calls.append(call)
            beside.append(more or None)
        if calls:
            self._rounds += 1
            self._open = {call.id: call.name for call in calls}
        refusal = as_text(message.get("refusal"))
        kept = _beyond(message, _ASSISTANT)
        if refusal:
            kept["refusal"] = refusal
        content = _kept_content(message.get("content"))
        if content:
            kept["content"] = content
        if any(beside):
            kept["tool_calls"] = beside
        return Assistant(
            text=_text(message.get("content")) + refusal,
            calls=tuple(calls),
            reasoning=next((text for key in OPAQUE_TEXTS if (text := as_text(message.get(key)))), ""),
            native=Native(NAME, kept, tuple(call.id for call in calls)) if kept else None,
        )

    def _mint(self, id: str) -> str:
        while id in self._taken:
            id += "a"
        self._taken.add(id)
        return id


def _beyond(fields: Object, known: frozenset[str]) -> Object:
    """What a client said that has no field of ours. An empty text counts: DeepSeek and Kimi refuse a history in which
    the key `reasoning_content` is missing."""
    return {key: value for key, value in fields.items() if key not in known and value is not None}


def _call(raw: Object, id: str, index: int) -> tuple[ToolCall, Object]:
    """The call, and what stood beside its name and arguments: signatures of Gemini and LiteLLM."""
    more = _beyond(raw, _CALL)
    if raw.get("type") == "custom" and isinstance(raw.get("custom"), dict):
        key, known = "custom", frozenset({"name", "input"})
        inner = as_dict(raw["custom"])
        text = as_text(inner.get("input"))
        call = ToolCall(id, as_text(inner.get("name")), None, text, index, complete=False, kind="custom")
    else:
        key, known = "function", frozenset({"name", "arguments"})
        inner = as_dict(raw.get("function"))
        call = call_from_text(id, as_text(inner.get("name")), inner.get("arguments"), index)
    inside = _beyond(inner, known)
    return call, {**more, key: inside} if inside else more


def _kept_content(content: Json) -> list[Object]:
    """The parts that our text does not say; all of them where their order or a field of a text would be lost."""
    parts = dicts(content)
    last = parts[-1:]
    plain = bool(last) and last[0].keys() == {"type", "text"} and isinstance(decode_part(last[0]), Text)
    before = parts[:-1] if plain else parts
    return before if not _text(before) else parts


def _result(message: Object, id: str) -> ToolResult:
    content = decode_parts(message.get("content"))
    kept = _beyond(message, _RESULT)
    if any(isinstance(part, Media) for part in content):
        kept["content"] = message["content"]
    native = Native(NAME, kept) if kept else None
    return ToolResult(id, content, name=as_text(message.get("name")), native=native)
