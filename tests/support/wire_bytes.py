"""Responses of each wire event by event, if a test needs what a script cannot express: unusual indexes, ids, ends.

openai-chat has its builders in `streams`. Here a call is given in the provider's format, and the rest around it is
regular.
"""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]


def data(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def named(*events: Object) -> bytes:
    return b"".join(b"event: " + event["type"].encode() + b"\n" + data(event) for event in events)


def messages(*events: Object, stop: str = "tool_use") -> bytes:
    """anthropic-messages: these events between the beginning and the end of a message."""
    message: Object = {"id": "m", "role": "assistant", "content": [], "usage": {}}
    start: Object = {"type": "message_start", "message": message}
    reason = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}
    return named(start, *events, reason, {"type": "message_stop"})


def tool_use(index: Any, id: str, name: str, *pieces: str, given: Any = None) -> list[Object]:
    """One block of anthropic-messages; `given` is the input at its beginning."""
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {} if given is None else given}, *pieces)


def block(index: Any, content: Object, *pieces: str) -> list[Object]:
    place: Object = {} if index is None else {"index": index}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        {"type": "content_block_start", **place, "content_block": content},
        *[{"type": "content_block_delta", **place, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", **place},
    ]


def responses(*events: Object, output: list[Object] | None = None) -> bytes:
    """openai-responses: these events between the beginning and the end of a response."""
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    head: Object = {"id": "resp", "object": "response", "status": "in_progress", "output": []}
    ended = {**head, "status": "completed", "output": done if output is None else output}
    return named(
        {"type": "response.created", "response": head}, *events, {"type": "response.completed", "response": ended}
    )


def function_call(index: Any, id: str, name: str, *pieces: str, number: int | None = None) -> list[Object]:
    """One item of openai-responses."""
    own = f"fc_{index if number is None else number}"
    place: Object = {} if index is None else {"output_index": index}
    item: Object = {"type": "function_call", "id": own, "call_id": id, "name": name, "arguments": ""}
    arguments = "".join(pieces)
    about = "response.function_call_arguments"
    return [
        {"type": "response.output_item.added", **place, "item": {**item, "status": "in_progress"}},
        *[{"type": f"{about}.delta", "item_id": own, **place, "delta": piece} for piece in pieces],
        {"type": f"{about}.done", "item_id": own, **place, "arguments": arguments},
        {
            "type": "response.output_item.done",
            **place,
            "item": {**item, "status": "completed", "arguments": arguments},
        },
    ]


def gemini(*parts: Object, finish: str = "STOP") -> bytes:
    """gemini: each part in a separate event."""
    events: list[Object] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], "responseId": "r"}
        for part in parts
    ]
    last: Object = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": finish, "index": 0}
    return data(*events, {"candidates": [last], "responseId": "r"})
