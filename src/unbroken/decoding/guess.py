"""Which wire is a body of? Read off the shape of its first events, for people who have a file and no more.

Never used on the path of a request: there the wire is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from unbroken.messages import Json
from unbroken.wires.jsontext import Damaged, loads
from unbroken.wires.sse import Framer

EVENTS_LOOKED_AT = 50
HEAD = 4096

_MARKS = (
    (b"chat.completion", "openai-chat"),
    (b'"choices"', "openai-chat"),
    (b'"candidates"', "gemini"),
    (b'"message_start"', "anthropic-messages"),
    (b'"content_block', "anthropic-messages"),
    (b'"response.', "openai-responses"),
    (b'"object":"response"', "openai-responses"),
    (b'"object": "response"', "openai-responses"),
)

_ANTHROPIC_EVENTS = {
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "message",
}


def guess_wire(body: bytes) -> str | None:
    """The name of the wire, or None when no event looks like any of them."""
    for event in _events(body):
        wire = _wire_of(event)
        if wire is not None:
            return wire
    return _guess_from_a_cut(body[:HEAD])


def _guess_from_a_cut(head: bytes) -> str | None:
    """A body that was cut in its first event has no event at all: what can be read of it still says what it was."""
    for mark, wire in _MARKS:
        if mark in head:
            return wire
    return None


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    framer = Framer(max_body=len(body) + 1)
    for data in [*framer.feed(body), *framer.end()][:EVENTS_LOOKED_AT]:
        try:
            value: Json = loads(data)
        except Damaged:
            continue
        for item in cast("list[Json]", value) if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield cast("dict[str, Any]", item)


def _wire_of(event: dict[str, Any]) -> str | None:
    kind = event.get("type")
    if isinstance(kind, str):
        if kind.startswith("response."):
            return "openai-responses"
        if kind in _ANTHROPIC_EVENTS:
            return "anthropic-messages"
        if kind == "error" and isinstance(event.get("error"), dict):
            return "anthropic-messages"
    if event.get("role") == "assistant" and isinstance(event.get("content"), list):
        return "anthropic-messages"
    if "choices" in event or str(event.get("object")).startswith("chat.completion"):
        return "openai-chat"
    if event.get("object") == "response":
        return "openai-responses"
    inner = event.get("response")
    if isinstance(inner, dict) and "candidates" in inner:  # Code Assist
        return "gemini"
    error = event.get("error")
    if isinstance(error, dict) and error:
        return "gemini" if "status" in error else "openai-chat"
    if "candidates" in event or "usageMetadata" in event or "promptFeedback" in event:
        return "gemini"
    return None
