"""ollama, the messages of a request in both directions.

Content is one text, with images beside it. Newer servers give calls an id and take it back; older ones ignore the
field. So an id is always sent, and a result without one answers the first open call of its name, else the first of all.

The thinking of an assistant message, and any other field beyond text and calls, is kept in its `native` value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from unbroken_wires.wires.content_parts import call_from_text, foreign_text, from_data_url, outgoing_object, own_native
from unbroken_wires.wires.json_access import (
    TOOL_NAME,
    IdRule,
    Object,
    as_dict,
    as_list,
    as_text,
    called_name,
    dicts,
    fit_name,
)

NAME = "ollama"

# Outgoing


def encode_messages(messages: Iterable[Message]) -> list[Object]:
    encoded: list[Object] = []
    names: dict[str, str] = {}
    for message in messages:
        match message:
            case System():
                encoded.append({"role": "system", **_encode_content(message.parts)})
            case User():
                encoded.append({"role": "user", **_encode_content(message.parts)})
            case Assistant():
                names.update({call.id: called_name(call, TOOL_NAME) for call in message.calls})
                encoded.append(_encode_assistant(message))
            case ToolMessage():
                encoded += [_encode_result(result, names.get(result.call_id, "")) for result in message.results]
    return encoded


def _encode_assistant(message: Assistant) -> Object:
    native = message.native
    kept = as_dict(native.value) if native is not None and native.wire == NAME else {}
    encoded: Object = {**kept, "role": "assistant", "content": message.text}
    if message.calls:
        encoded["tool_calls"] = [encode_call(call) for call in message.calls]
    return encoded


def encode_call(call: ToolCall, rule: IdRule | None = TOOL_NAME, index: int | None = None) -> Object:
    """Arguments are an object here: `{}` for a call that was cut, and a field of its own for a custom call's text."""
    arguments: Json = {"input": call.raw} if call.kind == "custom" else outgoing_object(call)
    place: Object = {} if index is None else {"index": index}
    return {"id": call.id, "function": {**place, "name": called_name(call, rule), "arguments": arguments}}


def _encode_result(result: ToolResult, name: str) -> Object:
    kept = as_dict(own_native(result, NAME))
    content = _encode_content(result.content)
    if result.error and content == {"content": ""}:
        content["content"] = "Error"  # only the text can show it here
    return {
        **kept,
        "role": "tool",
        **content,
        "tool_name": name or fit_name(result.name, TOOL_NAME),
        "tool_call_id": result.call_id,
    }


def _encode_content(parts: Sequence[Part]) -> Object:
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif data := _image(part):
            images.append(data)
        else:
            texts.append(foreign_text(part))
    content: Object = {"content": "\n".join(texts)}
    return {**content, "images": images} if images else content


def _image(media: Media) -> str:
    """Its data in base64; empty if it is no image, or only an address, which the server does not read."""
    if media.url.startswith("data:"):
        media = replace(from_data_url(media.url), name=media.name)
    return media.data if media.mime.startswith("image/") else ""


# Incoming


def decode_messages(messages: list[Object]) -> tuple[Message, ...]:
    return tuple(_History(messages).read(messages))


_ASSISTANT = frozenset({"role", "content", "tool_calls"})
_RESULT = frozenset({"role", "content", "images", "tool_name", "tool_call_id", "name"})


class _History:
    """Reads messages in their order and knows which calls of the last round still have no result."""

    def __init__(self, messages: list[Object]) -> None:
        calls = (call for message in messages for call in dicts(message.get("tool_calls")))
        self._taken = {id for call in calls if (id := as_text(call.get("id")))}
        self._rounds = 0
        self._open: dict[str, str] = {}
        """The id and the name of each call that has no result."""

    def read(self, messages: list[Object]) -> Iterator[Message]:
        results: list[ToolResult] = []
        for message in messages:
            role = message.get("role")
            if role == "tool":
                results.append(self._result(message))
                continue
            if results:
                yield ToolMessage(tuple(results))
                results.clear()
            if role == "system":
                yield System(tuple(part for part in _decode_content(message) if isinstance(part, Text)))
            elif role == "assistant":
                yield self._assistant(message)
            else:
                yield User(_decode_content(message))
        if results:
            yield ToolMessage(tuple(results))

    def _assistant(self, message: Object) -> Assistant:
        calls: list[ToolCall] = []
        for index, raw in enumerate(dicts(message.get("tool_calls"))):
            function = as_dict(raw.get("function"))
            id = as_text(raw.get("id")) or self._mint(f"call_{self._rounds}_{index}")
            calls.append(call_from_text(id, as_text(function.get("name")), function.get("arguments"), index))
        if calls:
            self._rounds += 1
            self._open = {call.id: call.name for call in calls}
        kept = {key: value for key, value in message.items() if key not in _ASSISTANT and value not in (None, "", [])}
        native = Native(NAME, kept, tuple(call.id for call in calls)) if kept else None
        return Assistant(as_text(message.get("content")), tuple(calls), as_text(message.get("thinking")), native)

    def _result(self, message: Object) -> ToolResult:
        name = as_text(message.get("tool_name")) or as_text(message.get("name"))
        id = as_text(message.get("tool_call_id"))
        if not id:
            named = (each for each, called in self._open.items() if called == name)
            id = next(named, "") or next(iter(self._open), "") or self._mint(f"result_{self._rounds}")
        name = self._open.pop(id, "") or name
        kept = {key: value for key, value in message.items() if key not in _RESULT and value is not None}
        native = Native(NAME, kept) if kept else None
        return ToolResult(id, _decode_content(message), name=name, native=native)

    def _mint(self, id: str) -> str:
        while id in self._taken:
            id += "a"
        self._taken.add(id)
        return id


def _decode_content(message: Object) -> tuple[Part, ...]:
    text = as_text(message.get("content"))
    images = [data for data in as_list(message.get("images")) if isinstance(data, str) and data]
    return (*((Text(text),) if text else ()), *(Media(mime=_mime(data), data=data) for data in images))


_BEGINNINGS = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""How the base64 text of an image begins: this wire does not name its type."""


def _mime(data: str) -> str:
    return next((mime for begin, mime in _BEGINNINGS.items() if data.startswith(begin)), "image/png")
