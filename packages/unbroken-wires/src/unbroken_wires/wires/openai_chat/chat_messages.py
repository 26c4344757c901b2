"""openai-chat, the messages of a request in both directions: roles, content parts, calls and results.

Whatever an assistant message contained beyond text and calls is kept in its `native` value and sent back unchanged:
fields of the message under their names, `content` (parts other than one plain text), `tool_calls` (for each call the
fields beside its name and arguments, or None), `refusal` (which is also the end of our text and is not sent twice).

A content part that our fields do not cover in full is kept as the client sent it (`Media.native`); one that they do
not cover at all (a file by its id, a video, a vendor's own part) consists of that alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Part,
    Request,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.wires.content_parts import (
    MEDIA_OF,
    audio_format,
    audio_mime,
    cache_control,
    cache_mark,
    call_from_text,
    data_url,
    file_name,
    foreign_text,
    from_data_url,
    image_detail,
    is_foreign,
    is_passage,
    mime_of,
    outgoing_arguments,
    own_native,
    says_more,
    with_functions,
)
from unbroken_wires.wires.json_access import (
    TOOL_NAME,
    IdRule,
    Object,
    as_dict,
    as_list,
    as_text,
    called_name,
    dicts,
    fit,
)

NAME = "openai-chat"
ID_RULE = IdRule(40)

OPAQUE_TEXTS = ("reasoning_content", "reasoning", "reasoning_text")
"""The names of reasoning, which has to travel back: DeepSeek and Kimi, OpenRouter, GitHub Copilot."""

# Outgoing


def encode_messages(messages: Iterable[Message], marks: bool = False, functions: Collection[str] = ()) -> list[Object]:
    """`functions`: names of tools for free text that are offered as functions."""
    encoded: list[Object] = []
    own_ids: set[str] = set()  # a server that makes ids beyond the rule takes them back, and knows no others
    for message in messages:
        if isinstance(message, Assistant):
            if message.native is not None and message.native.wire == NAME:
                own_ids.update(message.native.ids)
            encoded.append(_encode_assistant(with_functions(message, functions) if functions else message))
        elif isinstance(message, ToolMessage):
            encoded.extend(_encode_results(message, marks, own_ids))
        else:
            role = "user" if isinstance(message, User) else "system"
            encoded.append({"role": role, "content": encode_parts(message.parts, marks)})
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
    """The parts as they were, if they have the same text; else those without text, then the text."""
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


def encode_call(call: ToolCall, rule: IdRule | None = TOOL_NAME) -> Object:
    id, name = fit(call.id, ID_RULE), called_name(call, rule)
    if call.kind == "custom":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": call.raw}}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": outgoing_arguments(call)}}


def _encode_results(message: ToolMessage, marks: bool, own_ids: Collection[str]) -> list[Object]:
    """One message a result. This wire has no images in results: they follow in a user message, named by their call.
    Servers that do have them get them where a client put them."""
    encoded: list[Object] = []
    images: list[Object] = []
    for result in message.results:
        kept: Object = {} if result.native is None else as_dict(own_native(result, NAME))
        id = result.call_id
        if id not in own_ids:
            id = fit(id, ID_RULE)
        content = kept.get("content") if kept else plain_text(result.content, marks) or None
        if content is None:
            parts = [encode_part(part, marks) for part in result.content]
            media = [part for part in parts if part.get("type") != "text"]
            texts = [part for part in parts if part.get("type") == "text"]
            if media:
                label = f"[{len(media)} image(s) of this result follow in the next user message]"
                texts.append({"type": "text", "text": label})
                images += [{"type": "text", "text": f"{MEDIA_OF} {id}:"}, *media]
            content = shortest(texts) or ("Error" if result.error else "")  # only the text can show it here
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
    """The parts that our text does not cover; all of them where their order or a field of a text would be lost."""
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


def encode_parts(parts: Sequence[Part], marks: bool = False) -> Json:
    """`marks`: the cache marks came from a client of this wire (OpenRouter and LiteLLM have them), so they are sent."""
    return plain_text(parts, marks) or shortest([encode_part(part, marks) for part in parts])


def plain_text(parts: Sequence[Part], marks: bool) -> str:
    """Of nearly all messages: their only part, if there is nothing else."""
    if len(parts) == 1:
        only = parts[0]
        if type(only) is Text and not (marks and only.cache):
            return only.text
    return ""


def shortest(encoded: list[Object]) -> Json:
    """The content of a message: a plain text where that is enough, which every server accepts."""
    if not encoded:
        return ""
    only = encoded[0]
    if len(encoded) == 1 and len(only) == 2 and only.get("type") == "text":
        text = only.get("text")
        if isinstance(text, str) and text:
            return text
    return encoded


def encode_part(part: Part, marks: bool = False) -> Object:
    if isinstance(part, Media):
        return _encode_media(part)
    encoded: Object = {"type": "text", "text": part.text}
    return {**encoded, "cache_control": cache_control(part.cache)} if part.cache and marks else encoded


def _encode_media(media: Media) -> Object:
    own = as_dict(own_native(media, NAME))
    if own:
        return own
    if is_foreign(media):
        return {"type": "text", "text": foreign_text(media)}
    if media.url.startswith("data:"):
        media = replace(from_data_url(media.url), name=media.name, native=media.native)
    mime, url = media.mime, media.url
    if mime.startswith("image/") or (not mime and mime_of(url) != "application/pdf"):
        image: Object = {"url": data_url(media)}
        if detail := image_detail(media):
            image["detail"] = detail
        return {"type": "image_url", "image_url": image}
    if url or is_passage(media):  # only images may be given by their address
        return {"type": "text", "text": foreign_text(media)}
    if mime.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": audio_format(mime)}}
    return {"type": "file", "file": {"filename": file_name(media), "file_data": data_url(media)}}


def decode_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    parts: list[Part] = []
    for part in as_list(content):
        if isinstance(part, str):
            parts.append(Text(part))
        elif isinstance(part, dict) and part:
            parts.append(decode_part(as_dict(part)))
    return tuple(parts)


def decode_part(part: Object) -> Part:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return Text(text, cache_mark(part))
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case {"type": "text", **rest} if rest.get("text") is None:
            return Text("")
        case {"type": "image_url", "image_url": str(url)}:
            return _kept({**part, "image_url": {"url": url}}, from_data_url(url) if url else None)
        case {"type": "image_url", "image_url": {"url": str(url)}} if url:
            return _kept(part, from_data_url(url))
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}} if data and format:
            return _kept(part, _sound(data, audio_mime(format)))
        case {"type": "file", "file": {"file_data": str(data), **rest}} if data:
            return _kept(part, _file(data, as_text(rest.get("filename"))))
        case _:
            return _kept(part, None)


def _kept(part: Object, media: Media | None) -> Media:
    """The part in our fields, with its own form beside them where that has more."""
    native = Native(NAME, part)
    if media is None:
        return Media(native=native)
    media = replace(media, cache=cache_mark(part))
    return replace(media, native=native) if says_more(part, _encode_media(media)) else media


def _sound(data: str, mime: str) -> Media | None:
    if data.startswith("data:"):  # DashScope wants a data URL here, mostly without its type
        data = data.partition(",")[2]
    elif data.startswith(("http://", "https://")):
        return Media(mime=mime, url=data)
    return Media(mime=mime, data=data) if data else None


def _file(data: str, name: str) -> Media | None:
    if data.startswith("data:"):
        media = from_data_url(data)
        if media.url:  # neither base64 nor of a known type
            return None
    elif data.startswith(("http://", "https://")):  # OpenRouter takes an address here
        media = Media(mime=mime_of(name or data), url=data)
    else:
        media = Media(mime=mime_of(name), data=data)
    return media if name == file_name(media) else replace(media, name=name)


# Reasoning that is gone

_BLANK = " "
"""Kimi K2.5 takes an empty text for none (pi#4178, llmgateway#2093: tried there); DeepSeek takes both."""


def blank_reasoning(body: Object, request: Request) -> tuple[Object, str]:
    """DeepSeek and Moonshot refuse a message with calls and without `reasoning_content` while they think."""
    messages = dicts(body.get("messages"))
    bare = [message for message in messages if message.get("tool_calls") and not message.get("reasoning_content")]
    if not bare:
        return body, ""
    named = {id(message) for message in bare}
    filled = [{**message, "reasoning_content": _BLANK} if id(message) in named else message for message in messages]
    return {**body, "messages": filled}, "left blank"
