"""Small builders of openai-chat streams and requests, so that a test resembles what is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from unbroken import Assistant, Decoder, Request, Response, User
from unbroken_wires.deltas import Delta
from unbroken_wires.wires.openai_chat import WIRE


def sse(*events: Any, done: bool = True) -> bytes:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return body + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: Any, finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def calls_chunk(*calls: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return chunk({"tool_calls": list(calls)}, finish)


def piece(index: Any = None, id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """One piece of a call; None leaves out a field, as providers do."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {"index": index, "id": id, "function": function, **more}
    return {key: value for key, value in call.items() if value is not None}


def chat(*pieces: dict[str, Any], finish: str | None = "tool_calls", done: bool = True) -> bytes:
    """A stream with one piece of a call in each event, then the finish reason."""
    events = [calls_chunk(piece) for piece in pieces]
    if finish is not None:
        events.append(chunk({}, finish))
    return sse(*events, done=done)


def feed(body: bytes, size: int, wire: str = "openai-chat", tools: Iterable[str] | None = None) -> list[Delta]:
    """All deltas of a body that arrives in pieces of `size` bytes."""
    decoder = Decoder(wire, list(tools) if tools else None)
    deltas: list[Delta] = []
    for at in range(0, len(body), size):
        deltas += decoder.feed(body[at : at + size])
    return deltas + decoder.end()


def calls_of(response: Response) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, call.arguments) for call in response.calls]


def encoded(*messages: Any, **settings: Any) -> dict[str, Any]:
    return WIRE.encode_request(Request(messages, model="m", **settings))


def read(*messages: dict[str, Any], **settings: Any) -> Request:
    return WIRE.decode_request({"model": "m", "messages": list(messages), **settings})


def read_part(part: Any) -> Any:
    message = read({"role": "user", "content": [part]}).messages[0]
    assert isinstance(message, User)
    return message.parts[0]


def read_answer(**fields: Any) -> Assistant:
    message = read({"role": "assistant", **fields}).messages[0]
    assert isinstance(message, Assistant)
    return message
