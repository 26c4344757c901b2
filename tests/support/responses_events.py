"""Small builders of openai-responses events and calls, so that a test resembles what the provider sends."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from streams import feed

from unbroken import Response, ToolCall, decode

Object = dict[str, Any]


def sse(*events: Object) -> bytes:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines).encode()


def read(*events: Object) -> Response:
    """Decode at several chunk sizes; the deltas must be the same at each."""
    body = sse(*events)
    whole = feed(body, len(body), "openai-responses")
    for size in (1, 7, 64):
        assert feed(body, size, "openai-responses") == whole
    return decode(body, "openai-responses")


def added(index: int, item: Object) -> Object:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: Object) -> Object:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def about(event: str, id: str, index: int, **fields: Any) -> Object:
    return {"type": f"response.{event}", "item_id": id, "output_index": index, **fields}


def completed(*output: Object, status: str = "completed", **fields: Any) -> Object:
    return {"type": f"response.{status}", "response": {"status": status, "output": list(output), **fields}}


def call_item(arguments: str = "", n: int = 1, **fields: Any) -> Object:
    head = {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "look"}
    return {**head, "arguments": arguments, "status": "completed", **fields}


def message_item(text: str, **fields: Any) -> Object:
    part: Object = {"type": "output_text", "text": text, "annotations": []}
    head = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    return {**head, "content": [part], **fields}


REASONING: Object = {
    "type": "reasoning",
    "id": "rs_1",
    "status": "completed",
    "summary": [{"type": "summary_text", "text": "Think."}],
    "encrypted_content": "gAAAA/opaque+==",
}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text("abc_", min_size=1, max_size=6)
values = st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2))


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ...]:
    ids = draw(st.lists(names, max_size=3, unique=True))
    made: list[ToolCall] = []
    for index, id in enumerate(ids):
        if draw(st.booleans()):
            made.append(ToolCall(id, draw(names), None, draw(texts), index, complete=False, kind="custom"))
        else:
            arguments = draw(st.dictionaries(names, values, max_size=2))
            made.append(ToolCall(id, draw(names), arguments, json.dumps(arguments, ensure_ascii=False), index))
    return tuple(made)
