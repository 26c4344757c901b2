"""cohere-v2, the messages of a request in both directions: roles, content blocks, calls and results.

Whatever an assistant message contained beyond text and calls is kept in its `native` value and sent back: `tool_plan`,
`thinking` (the texts of its thinking blocks), `citations`, and fields that we do not know.

Results are text, or documents that the model may cite; a client's documents are kept as it sent them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Part,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    User,
)
from unbroken_wires.wires.content_parts import (
    MEDIA_OF,
    call_from_text,
    data_url,
    foreign_text,
    from_data_url,
    image_detail,
    is_foreign,
    mime_of,
    outgoing_arguments,
    own_native,
    says_more,
)
from unbroken_wires.wires.json_access import (
    TOOL_NAME,
    IdRule,
    Object,
    as_dict,
    as_int,
    as_list,
    as_text,
    called_name,
    dicts,
)
from unbroken_wires.wires.jsontext import dump_arguments

NAME = "cohere-v2"

# Outgoing


def encode_messages(messages: Iterable[Message]) -> list[Object]:
    """A message without any content is left out: the API refuses it."""
    encoded: list[Object] = []
    for message in messages:
        match message:
            case System() | User():
                role = "system" if isinstance(message, System) else "user"
                if content := _shortest([encode_part(part) for part in message.parts]):
                    encoded.append({"role": role, "content": content})
            case Assistant():
                if len(said := _encode_assistant(message)) > 1:
                    encoded.append(said)
            case ToolMessage():
                encoded += _encode_results(message)
    return encoded


def _encode_assistant(message: Assistant) -> Object:
    native = message.native
    kept = dict(as_dict(native.value)) if native is not None and native.wire == NAME else {}
    blocks: list[Object] = [
        {"type": "thinking", "thinking": text} for text in as_list(kept.pop("thinking", None)) if as_text(text)
    ]
    if message.text:
        blocks.append({"type": "text", "text": message.text})
    cited = dicts(kept.pop("citations", None))
    if cited and all(as_int(one.get("end")) <= len(message.text) for one in cited):
        kept["citations"] = cited
    encoded: Object = {**kept, "role": "assistant"}
    if content := _shortest(blocks):
        encoded["content"] = content
    if message.calls:
        encoded["tool_calls"] = [encode_call(call) for call in message.calls]
    return encoded


def encode_call(call: ToolCall, rule: IdRule | None = TOOL_NAME) -> Object:
    """A custom call's text has a field of its own."""
    custom = call.kind == "custom"
    arguments = dump_arguments({"input": call.raw}) or "{}" if custom else outgoing_arguments(call)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": called_name(call, rule), "arguments": arguments},
    }


def _encode_results(message: ToolMessage) -> list[Object]:
    """One message a result. There are no images in results: they follow in a user message, named by their call."""
    encoded: list[Object] = []
    images: list[Object] = []
    for result in message.results:
        content: Json = own_native(result, NAME)
        if content is None:
            parts = [encode_part(part) for part in result.content]
            texts = [part["text"] for part in parts if part["type"] == "text"]
            media = [part for part in parts if part["type"] != "text"]
            if media:
                texts.append(f"[{len(media)} image(s) of this result follow in the next user message]")
                images += [{"type": "text", "text": f"{MEDIA_OF} {result.call_id}:"}, *media]
            # Only the text can show an error here; and an empty one is refused.
            content = "\n".join(texts) or ("Error" if result.error else "(empty)")
        encoded.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
    if images:
        encoded.append({"role": "user", "content": images})
    return encoded


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if own := as_dict(own_native(part, NAME)):
        return own
    if is_foreign(part):
        return {"type": "text", "text": foreign_text(part)}
    return _encode_media(part)


def _encode_media(media: Media) -> Object:
    if media.url.startswith("data:"):
        media = replace(from_data_url(media.url), name=media.name, native=media.native)
    if media.mime.startswith("image/") or (not media.mime and mime_of(media.url) != "application/pdf"):
        image: Object = {"url": data_url(media)}
        if detail := image_detail(media):
            image["detail"] = detail
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": foreign_text(media)}


def _shortest(blocks: list[Object]) -> Json:
    """The content of a message: a plain text where that is enough. Empty texts, which are refused, are left out."""
    blocks = [block for block in blocks if block.get("type") != "text" or block.get("text")]
    match blocks:
        case [{"type": "text", "text": str(text)}]:
            return text
        case _:
            return blocks


# Incoming


def decode_messages(messages: list[Object]) -> tuple[Message, ...]:
    return tuple(_read(messages))


_ASSISTANT = frozenset({"role", "content", "tool_calls"})


def _read(messages: list[Object]) -> Iterator[Message]:
    results: list[ToolResult] = []
    names: dict[str, str] = {}
    nameless: Iterator[str] = iter(())  # calls that came without an id: results without one answer them in order
    rounds = 0
    for message in messages:
        role = message.get("role")
        if role == "tool":
            results.append(_decode_result(message, names, nameless))
            continue
        if results:
            yield ToolMessage(tuple(results))
            results.clear()
        if role == "system":
            yield System(tuple(part for part in decode_content(message.get("content")) if isinstance(part, Text)))
        elif role == "assistant":
            assistant = _decode_assistant(message, rounds)
            rounds += bool(assistant.calls)
            names.update({call.id: call.name for call in assistant.calls})
            if assistant.calls:
                given = {as_text(call.get("id")) for call in dicts(message.get("tool_calls"))}
                nameless = iter([call.id for call in assistant.calls if call.id not in given])
            yield assistant
        else:
            yield User(decode_content(message.get("content")))
    if results:
        yield ToolMessage(tuple(results))


def _decode_assistant(message: Object, rounds: int) -> Assistant:
    calls: list[ToolCall] = []
    for index, raw in enumerate(dicts(message.get("tool_calls"))):
        function = as_dict(raw.get("function"))
        id = as_text(raw.get("id")) or f"call_{rounds}_{index}"
        calls.append(call_from_text(id, as_text(function.get("name")), function.get("arguments"), index))
    content = message.get("content")
    thinking = [as_text(block.get("thinking")) for block in dicts(content) if block.get("type") == "thinking"]
    text = content if isinstance(content, str) else "".join(as_text(block.get("text")) for block in dicts(content))
    kept = {key: value for key, value in message.items() if key not in _ASSISTANT and value not in (None, "", [])}
    if any(thinking):
        kept["thinking"] = [text for text in thinking if text]
    native = Native(NAME, kept, tuple(call.id for call in calls)) if kept else None
    reasoning = "".join([as_text(message.get("tool_plan")), *thinking])
    return Assistant(text, tuple(calls), reasoning, native)


def _decode_result(message: Object, names: dict[str, str], nameless: Iterator[str]) -> ToolResult:
    id, content = as_text(message.get("tool_call_id")) or next(nameless, ""), message.get("content")
    parts = decode_content(content)
    native = None
    if any(isinstance(part, Media) for part in parts):
        native = Native(NAME, content)
        parts = tuple(Text(_document_text(part)) if isinstance(part, Media) else part for part in parts)
    return ToolResult(id, parts, name=names.get(id, ""), native=native)


def _document_text(part: Media) -> str:
    """What a document says, for other wires."""
    data = as_dict(as_dict(as_dict(own_native(part, NAME)).get("document")).get("data"))
    only = next(iter(data.values())) if len(data) == 1 else None
    return only if isinstance(only, str) else dump_arguments(data) or ""


def decode_content(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(_decode_part(block) for block in dicts(content))


def _decode_part(block: Object) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image_url", "image_url": {"url": str(url)}} if url:
            media = from_data_url(url)
            return replace(media, native=Native(NAME, block)) if says_more(block, _encode_media(media)) else media
        case _:
            return Media(native=Native(NAME, block))
