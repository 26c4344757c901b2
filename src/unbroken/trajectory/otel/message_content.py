"""Messages and tools as the semantic conventions for generative AI write them: JSON texts, where content is wanted.

The data of media is left out: a span is no place for a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from unbroken.messages import Assistant, Json, Media, Message, Part, System, Text, ToolMessage, ToolSpec, User
from unbroken.wires.jsontext import dumps


def json_text(value: Json) -> str:
    try:
        return dumps(value).decode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001 - a user's value that is no JSON must not end a run
        return f"(this cannot be written: {type(error).__name__})"


def instructions(messages: Iterable[Message]) -> list[Json]:
    """What the system says: it stands apart from what was said."""
    return [part for message in messages if isinstance(message, System) for part in _parts(message.parts)]


def history(messages: Iterable[Message]) -> list[Json]:
    return [_message(message) for message in messages if not isinstance(message, System)]


def answer(message: Assistant, finish: str) -> list[Json]:
    return [{**_message(message), "finish_reason": finish}]


def tools(specs: Iterable[ToolSpec]) -> list[Json]:
    return [
        {"type": "function", "name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in specs
    ]


def _message(message: Message) -> dict[str, Json]:
    match message:
        case System(parts):
            return {"role": "system", "parts": _parts(parts)}
        case User(parts):
            return {"role": "user", "parts": _parts(parts)}
        case Assistant():
            return {"role": "assistant", "parts": _assistant_parts(message)}
        case ToolMessage(results):
            answered = [{"type": "tool_call_response", "id": each.call_id, "response": each.text} for each in results]
            return {"role": "tool", "parts": answered}
        case _:
            assert_never(message)


def _assistant_parts(message: Assistant) -> list[Json]:
    parts: list[Any] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.text:
        parts.append({"type": "text", "content": message.text})
    for call in message.calls:
        arguments = call.raw if call.arguments is None else call.arguments
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return parts


def _parts(parts: Sequence[Part]) -> list[Json]:
    return [{"type": "text", "content": part.text} if isinstance(part, Text) else _media(part) for part in parts]


def _media(media: Media) -> Json:
    about = {"type": "uri" if media.url else "blob", "modality": media.mime.partition("/")[0] or "file"}
    if media.mime:
        about["mime_type"] = media.mime
    return about | {"uri": media.url} if media.url else about
